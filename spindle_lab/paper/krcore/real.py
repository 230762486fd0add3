"""Real runs beside the model: `spindle bench links` on this machine, as it was kept last.

No RDMA is in it: daemons of one machine, over shared memory and TCP, and programs in Python.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spindle_lab.paper.page import figure_text

KEPT = Path(__file__).with_name("real.json")

# Key of the benchmark's result: what it is, and the paper's nearest figure.
ROWS = {
    "open_cached_own_node_us": ("a link is opened that the program has had, and reads 8 bytes of a region; own node",
                                "0.9 us and a read"),
    "open_cached_beside_us": ("the same, another node of the host", "0.9 us and a read"),
    "open_cached_far_us": ("the same, over TCP", "0.9 us and a read"),
    "open_uncached_beside_us": ("the same with a region of which the node has not heard, another node of the host",
                                "5.4 us and a read"),
    "open_uncached_far_us": ("the same, over TCP", "5.4 us and a read"),
    "open_new_us": ("a link that the program has to ask its daemon for, and a read", "5.4 us and a read"),
    "fresh_tls_us": ("a TCP connection with TLS, both ends of which prove who they are", "15.7 ms (verbs)"),
    "read_64_us": ("a read of 64 bytes, another node of the host", "3.15 us"),
    "read_64_far_us": ("the same, over TCP", "3.15 us"),
    "call_64_us": ("a call with 64 bytes, and its answer, between two programs of the host: past their nodes",
                   "9.6 us"),
    "call_64_pools_us": ("the same through the pools of their nodes", "9.6 us"),
}


def reduced(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a result of `spindle_lab.bench.links.run`."""
    return {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "rounds": found["rounds"],
            "us": {name: {"p50": found[name]["p50"], "p99": found[name]["p99"]} for name in ROWS}}


def keep(found: Mapping[str, Any], kept: Path = KEPT) -> None:
    kept.write_text(json.dumps(reduced(found), indent=1) + "\n", encoding="utf-8")


def section(kept: Path = KEPT) -> str:
    """Markdown."""
    if not kept.exists():
        return "None are kept: `spindle paper krcore --real` runs them on the machine at hand."
    found = json.loads(kept.read_text(encoding="utf-8"))
    rows = ["| | median | 99% | the paper's nearest |", "|---|---:|---:|---:|"]
    for name, (what, paper) in ROWS.items():
        median, slow = (figure_text(found["us"][name][key], "us") for key in ("p50", "p99"))
        rows.append(f"| {what} | {median} | {slow} | {paper} |")
    return (f"`spindle bench links` on {found['machine']}, {found['cores']} cores that also do everything else, "
            f"{found['rounds']:,} rounds; `spindle paper krcore --real` runs it anew. There are no deviations, since "
            "this is another machine without RDMA: shared memory, TCP over loopback, threads that sleep and share "
            "cores, and Python above the pool.\n\n" + "\n".join(rows))
