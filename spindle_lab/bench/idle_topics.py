"""`bench idle-topics`: what topics in which nothing happens cost one in which something does.

Why alternating: the machine drifts, so each run with idle topics has one without beside it, and medians are compared.

Rules: a flood for the rate, a paced run for the latency; in both the idle topics have the same members and senders as
the active one, and stay open all the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spindle_lab.bench import multicast
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.options import MulticastOptions
from spindle_lab.bench.results import median

PACE_PER_S = 1000.0


def run(options: MulticastOptions, repeat: int = 3) -> dict[str, Any]:
    """Rates per second and p50 latencies in us of an active topic alone and beside `options.idle_topics` idle ones, and
    the ratios of the medians. Raises BenchFailed if anything was lost or misordered."""
    alone = replace(options, idle_topics=0)
    found: dict[str, list[float]] = {"rate_alone": [], "rate_beside": [], "p50_alone": [], "p50_beside": []}
    for _ in range(repeat):
        for name, one in (("alone", alone), ("beside", options)):
            found[f"rate_{name}"].append(right(multicast.run_once(one))["messages_per_s"])
        for name, one in (("alone", alone), ("beside", options)):
            paced = replace(one, senders="one", pace_per_s=PACE_PER_S, count=0)
            found[f"p50_{name}"].append(right(multicast.run_once(paced))["latency_us"]["p50"])
    medians = {name: median(values) for name, values in found.items()}
    return {
        "nodes": options.nodes,
        "size": options.size,
        "api": options.api,
        "fabric": options.fabric,
        "idle_topics": options.idle_topics,
        "messages_per_s_alone": round(medians["rate_alone"]),
        "messages_per_s": round(medians["rate_beside"]),
        "rate_ratio": round(medians["rate_beside"] / medians["rate_alone"], 3),
        "p50_us_alone": round(medians["p50_alone"], 2),
        "p50_us": round(medians["p50_beside"], 2),
        "latency_ratio": round(medians["p50_beside"] / medians["p50_alone"], 3),
    }


def right(result: dict[str, Any]) -> dict[str, Any]:
    if result["lost"] or result["corrupt"] or not result["order_identical"]:
        raise BenchFailed("messages were lost, torn or not in the same order on all nodes: this is a defect")
    return result
