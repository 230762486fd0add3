"""`bench idle`: what a group costs that has nothing to do.

Three daemons, an application at each with a reader and a writer; messages flow, then stop. From a second later on
nothing may be pushed any more, and the nodes should hardly run.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from spindle_lab.bench.app_run import Daemons
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import Crew
from spindle_lab.bench.options import MulticastOptions
from spindle_lab.bench.reach import check_fabric

SETTLE_S = 1.0
WARM_MESSAGES = 1000
PATIENT = {"membership.join_timeout_s": "50"}  # below what daemons are given to come up


def run(nodes: int = 3, seconds: float = 5.0, fabric: str = "shm") -> dict[str, Any]:
    """CPU share of each daemon and application, and everything pushed, posted and rung, while idle for `seconds`."""
    check_fabric(fabric)
    options = MulticastOptions(nodes=nodes, api="session", daemon=True, count=WARM_MESSAGES, fabric=fabric)
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        config = {**options.worker_config(), "runtime_dir": directory, "idle_s": seconds}
        with Daemons(Path(directory), nodes, {"network.fabric": fabric, **PATIENT}) as daemons:
            with Crew("idle", [{**config, "rank": rank} for rank in range(nodes)]) as crew:
                crew.gather("ready")
                crew.broadcast({"event": "go"})
                crew.gather("idle")
                time.sleep(SETTLE_S)
                crew.broadcast({"event": "look"})
                crew.gather("looked")
                before = [daemon.cpu_s() for daemon in daemons.members]
                start_ns = time.monotonic_ns()
                time.sleep(seconds)
                elapsed_s = (time.monotonic_ns() - start_ns) / 1e9
                used = [daemon.cpu_s() - b for daemon, b in zip(daemons.members, before, strict=True)]
                crew.broadcast({"event": "look"})
                looked = crew.gather("looked")
                crew.broadcast({"event": "stop"})
                crew.gather("stopped")
    total = {name: sum(one["counters"].get(name, 0) for one in looked) for name in looked[0]["counters"]}
    return {
        "nodes": nodes,
        "fabric": fabric,
        "seconds": round(elapsed_s, 2),
        "pushes": total.get("pushes", 0),
        "posts": total.get("posts", 0),
        "nulls": total.get("nulls", 0),
        "laps": total.get("laps", 0),
        "sleeps": total.get("sleeps", 0),
        "cpu_share_daemons": [round(share / elapsed_s, 5) for share in used],
        "cpu_share_applications": [round(one["cpu_s"] / elapsed_s, 5) for one in looked],
    }


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One application: takes part in a short flood, then only looks at its node's counters when told to."""
    from spindle_lab.bench.app_node import await_matched, measure
    from spindle_lab.bench.open_port import open_port
    from spindle_lab.bench.worker import cpu_s

    port = open_port(config)
    await_matched(port, config)
    channel.send({"event": "ready"})
    channel.receive(60.0)
    measure(port, config)
    channel.send({"event": "idle"})
    counters: dict[str, int] = {}
    used_s = 0.0
    while True:
        message, _ = channel.receive(config["idle_s"] + 60.0)
        if message["event"] == "stop":
            break
        now, now_s = port.counters(), cpu_s()
        channel.send(
            {
                "event": "looked",
                "counters": {name: value - counters.get(name, 0) for name, value in now.items()},
                "cpu_s": now_s - used_s,
            }
        )
        counters, used_s = now, cpu_s()
    port.close()
    channel.send({"event": "stopped"})
