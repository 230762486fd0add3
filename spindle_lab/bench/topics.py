"""`bench topics`: how long it takes to open many topics, each at every node of a group.

Why: each topic that is opened is a change that all nodes agree on, so a program that opens its topics at start waits
for every agreement that isn't reached together with another one.

Method: a daemon for each node. `together`: a program at each node declares all topics, opens a writer and a reader of
each, in one order, all programs at the same time. `sequence`: one program does the same at all nodes, through a session
at each, and goes on when an endpoint is there. The time is that from the first call to the last return; `views` is how
many the group installed for it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from spindle_lab.bench.app_run import Daemons
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import Crew

OPENING_TIMEOUT_S = 300.0


def run(nodes: int = 3, topics: int = 200, level: int = 1, fabric: str = "auto") -> dict[str, Any]:
    """Seconds and views of both ways, each with daemons of its own."""
    return {"nodes": nodes, "topics": topics,
            "together": measured(nodes, topics, level, together=True, fabric=fabric),
            "sequence": measured(nodes, topics, level, together=False, fabric=fabric)}


def measured(nodes: int, topics: int, level: int, together: bool, fabric: str) -> dict[str, Any]:
    settings = {"network.fabric": f'"{fabric}"'} if fabric != "auto" else {}
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        with Daemons(Path(directory), nodes, settings) as daemons:
            everybody = list(range(1, nodes + 1))
            config = {"runtime_dir": directory, "topics": topics, "level": level}
            programs = [{**config, "node_ids": [one]} for one in everybody] if together else [
                {**config, "node_ids": everybody}]
            cpu_s = sum(daemon.cpu_s() for daemon in daemons.members)
            with Crew("topics", programs) as crew:
                crew.gather("ready")
                crew.broadcast({"event": "go"})
                results = crew.gather("opened", OPENING_TIMEOUT_S)
                crew.broadcast({"event": "stop"})
            cpu_s = sum(daemon.cpu_s() for daemon in daemons.members) - cpu_s
    return {"seconds": round(max(one["seconds"] for one in results), 2),
            "views": max(one["views"] for one in results), "daemons_cpu_s": round(cpu_s, 2)}


def work(channel: Channel, config: dict[str, Any]) -> None:
    """A program: opens all topics at the nodes that it is given."""
    from spindle.client.attaching import attach
    from spindle.group.topics import TopicSpec

    sessions = [attach(runtime_dir=config["runtime_dir"], node_id=one) for one in config["node_ids"]]
    channel.send({"event": "ready"})
    channel.receive(60.0)
    begun, view = time.perf_counter(), sessions[0].view().view_id
    handles: list[Any] = []
    for number in range(config["topics"]):
        name = f"topic-{number}"
        for session in sessions:
            session.declare_topic(TopicSpec(name, level=config["level"]))
            handles.append(session.open_writer(name))
            handles.append(session.open_reader(name, keep_all=True, from_history=False))
    seconds, views = time.perf_counter() - begun, sessions[0].view().view_id - view
    channel.send({"event": "opened", "seconds": seconds, "views": views})
    channel.receive(60.0)
