"""`bench multicast` and `bench latency`: runs the nodes, compares what they delivered, puts the numbers together.

Why the slowest node counts: a multicast is delivered when everybody has it, so the rate is that of all messages over
the time from the first sender's start to the last receiver's end.

Rules: a run in which anything was lost, torn, or in another order somewhere is reported as such, with its numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from spindle_lab.bench.app_run import run_apps
from spindle_lab.bench.crew import READY_TIMEOUT_S, Crew, play
from spindle_lab.bench.options import MulticastOptions
from spindle_lab.bench.reach import check_fabric, fds_to, offer_to
from spindle_lab.bench.results import latency_us, mean, median, median_run, merge_counts

BATCHES = {"send": "send", "receive": "receive", "delivery": "delivery"}


def run_once(options: MulticastOptions) -> dict[str, Any]:
    """One run. Raises BenchFailed when it doesn't come to its end."""
    check_fabric(options.fabric)
    if options.api == "core":
        done = run_core(options)
    else:
        done = run_apps(options)
    return assemble(options, done)


def run_core(options: MulticastOptions) -> list[dict[str, Any]]:
    """Nodes of the bare core, each in a process: no membership, a static epoch, offers exchanged through us."""
    config = options.worker_config()
    with Crew("core", [{**config, "rank": rank} for rank in range(options.nodes)]) as crew:
        offers = crew.gather_fds("offer", max(READY_TIMEOUT_S, options.timeout_s))
        try:
            for rank, worker in enumerate(crew.workers):
                others = [(peer, offer_to(offers[peer][0]["values"], rank), fds_to(offers[peer][1], peer, rank))
                          for peer in range(options.nodes) if peer != rank]
                message = {"event": "peers", "offers": [(peer, values, len(fds)) for peer, values, fds in others]}
                worker.channel.send(message, tuple(fd for _, _, fds in others for fd in fds))
        finally:
            for _, fds in offers:
                for fd in fds:
                    os.close(fd)
        return play(crew, options.timeout_s)



def assemble(options: MulticastOptions, done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of one run from what each node reported."""
    tallies = [node["tally"] for node in done]
    start_ns = min(node["start_ns"] for node in done)
    # A node that never saw its last message has no end of its own: then the last report's time stands for it.
    end_ns = max(tally["end_ns"] or node["report_ns"] for node, tally in zip(done, tallies, strict=True))
    elapsed_s = max(1, end_ns - start_ns) / 1e9
    delivered = min(tally["delivered"] for tally in tallies)
    counters = {name: sum(node["counters"].get(name, 0) for node in done) for name in done[0]["counters"]}
    lost = sum(tally["lost"] + tally["missing"] for tally in tallies)
    hashes = {(tally["order_hash"], tally["delivered"]) for tally in tallies}
    counts = options.counts()
    full_rate = options.messages_each / elapsed_s
    return {
        "nodes": options.nodes,
        "size": options.size,
        "senders": options.n_senders,
        "api": options.api,
        "daemon": options.daemon,
        "fabric": options.fabric,
        "level": options.level,
        "switches": options.switches,
        "delayed": options.delayed,
        "delay_us": options.delay_us if options.delayed in ("one", "half") else 0,
        "count": options.messages_each,
        "window": done[0].get("window", options.window),
        "elapsed_s": round(elapsed_s, 4),
        "messages_per_s": round(delivered / elapsed_s),
        "bytes_per_s": round(delivered * options.size / elapsed_s),
        "leaving_bytes_per_s": round(delivered * options.size * (options.nodes - 1) / elapsed_s),  # of all nodes
        "messages_per_s_per_full_sender": round(full_rate) if any(count > 0 for count in counts) else 0,
        "latency_us": latency_us(
            merge_counts(tally["latency_ns_counts"] for tally in tallies),
            max(tally["latency_max_ns"] for tally in tallies),
        ),
        "ordered": options.ordered,
        "order_identical": len(hashes) == 1 and not any(tally["misordered"] for tally in tallies),
        "order_hash": tallies[0]["order_hash"],
        "lost": lost,
        "corrupt": sum(tally["corrupt"] for tally in tallies),
        "nulls": counters.get("nulls", 0),
        "pushes": counters.get("pushes", 0),
        "posts": counters.get("posts", 0),
        "stalls": counters.get("stalls", 0),
        "sleeps": counters.get("sleeps", 0),
        "rings": counters.get("rings", 0),
        "traffic": {name: sum(node["traffic"][name] for node in done) for name in done[0].get("traffic", {})},
        **posting(options, tallies, done),
        "cpu_s": round(sum(node["cpu_s"] + node.get("daemon_cpu_s", 0.0) for node in done), 3),
        "cpu_share": {
            "applications": [round(node["cpu_s"] / elapsed_s, 3) for node in done],
            "daemons": [round(node["daemon_cpu_s"] / elapsed_s, 3) for node in done if "daemon_cpu_s" in node],
        },
        "batch_mean": {
            name: mean(counters.get(f"{prefix}_messages", 0), counters.get(f"{prefix}_batches", 0))
            for name, prefix in BATCHES.items()
        },
    }


def posting(options: MulticastOptions, tallies: Sequence[dict[str, Any]],
            done: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Over verbs: what was asked of the device for each message that was delivered at a node, and how well these
    requests were combined. These are counts: they don't depend on how fast anything is."""
    if options.fabric != "verbs" or "traffic" not in done[0]:
        return {}
    sums = {name: sum(node["traffic"][name] for node in done) for name in done[0]["traffic"]}
    delivered = max(1, sum(tally["delivered"] for tally in tallies))
    requests = max(1, sums["work_requests"])
    return {"verbs": {
        "posts_per_message": round(sums["posts"] / delivered, 4),
        "work_requests_per_message": round(sums["work_requests"] / delivered, 4),
        "doorbells_per_message": round(sums["doorbells"] / delivered, 4),
        "work_requests_per_doorbell": round(sums["work_requests"] / max(1, sums["doorbells"]), 2),
        "signalled_share": round(sums["signalled"] / requests, 4),
        "inlined_share": round(sums["inlined"] / requests, 4),
    }}  # fmt: skip


def run(options: MulticastOptions, *, repeat: int = 1, with_limit: bool = False) -> dict[str, Any]:
    """The median of `repeat` runs; with_limit: each beside a run of what limits it, and the ratio of the medians.

    The limit is that of the bare loops; over connections it is one stream, and what is compared are all the bytes of
    payload that leave nodes.
    """
    from spindle_lab.bench import limit, stream

    runs: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    for _ in range(repeat):
        if with_limit and options.fabric != "shm":
            limits.append(stream.run_once(fabric=options.fabric))
        elif with_limit:
            limits.append(limit.run_once(options.nodes, options.size, senders=options.n_senders))
        runs.append(run_once(options))
    result = median_run(runs)
    # One bad run among the repeated ones is a bad result, whichever the median is.
    result["order_identical"] = all(run["order_identical"] for run in runs)
    result["lost"] = max(run["lost"] for run in runs)
    result["corrupt"] = max(run["corrupt"] for run in runs)
    if limits and options.fabric != "shm":
        for name in limits[0]:
            result[f"limit_{name}"] = median([found[name] for found in limits])
        result["limit_runs"] = [found["bytes_per_s"] for found in limits]
        result["ratio_to_limit"] = round(result["leaving_bytes_per_s"] / result["limit_bytes_per_s"], 3)
        result["ratio_of_a_node"] = round(result["ratio_to_limit"] / options.n_senders, 3)
    elif limits:
        rates = [found["messages_per_s"] for found in limits]
        result["limit_messages_per_s"] = median(rates)
        result["limit_runs"] = rates
        result["ratio_to_limit"] = round(result["messages_per_s"] / median(rates), 3)
    return result


def latency_run(options: MulticastOptions, *, repeat: int = 1) -> dict[str, Any]:
    """The run of median p50 among `repeat` paced runs."""
    runs = [run_once(options) for _ in range(repeat)]
    for result in runs:
        result["p50_us"] = result["latency_us"]["p50"]
    chosen = median_run(runs, "p50_us")
    chosen["lost"] = max(run["lost"] for run in runs)
    chosen["order_identical"] = all(run["order_identical"] for run in runs)
    return chosen
