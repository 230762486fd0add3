"""`python -m tests.spindle.cockpit.load`: what a cockpit costs that is watched, with many nodes and topics.

Method: real daemons on this host, one with a cockpit; every topic is read at every node and written at one, five times
a second; one page is open. Processor time is the kernel's count for the two processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from spindle.client import Session, attach
from spindle.group.topics import TopicSpec
from tests.spindle.cockpit.support import group, page
from tests.spindle.daemons import Daemon

QOS = b'{"qos":{}}'
HZ = 5.0


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has used, s."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


async def watch(url: str, nodes: list[Daemon], topics: int, seconds: float, write: list[object]) -> None:
    async with page(url) as seen:
        await seen.until(lambda: len(seen.state.get("topics", ())) >= topics, "all topics", 60)
        pid = next(one["pid"] for one in seen.state["applications"] if one["name"] == "spindle cockpit")

        async def publish() -> None:
            while True:
                for one in write:
                    one.write(bytes(100))  # type: ignore[attr-defined]
                await asyncio.sleep(1 / HZ)

        publishing = asyncio.ensure_future(publish())
        try:
            for _ in range(25):
                await seen.hear()
            pids = {"cockpit": pid, "its node": nodes[0].pid}
            before, began_s, looks = {name: cpu_seconds(one) or 0.0 for name, one in pids.items()}, time.monotonic(), 0
            while time.monotonic() - began_s < seconds:
                looks += (await seen.hear())["type"] == "figures"
            span_s = time.monotonic() - began_s
            for name, one in pids.items():
                print(f"{name}: {100 * ((cpu_seconds(one) or 0.0) - before[name]) / span_s:.1f}% of a core")
            print(f"{looks / span_s:.1f} looks a second, {len(seen.topics)} topics")
        finally:
            publishing.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spindle.cockpit.load")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    names = [f"area/{number // 10}/topic-{number}" for number in range(options.topics)]
    with tempfile.TemporaryDirectory(prefix="spindle-", dir="/tmp") as directory, (
            group(Path(directory), options.nodes)) as (url, nodes), ExitStack() as stack:
        sessions: list[Session] = [stack.enter_context(attach(runtime_dir=directory, node_id=node.node_id, name="load"))
                                   for node in nodes]
        for name in names:
            sessions[0].declare_topic(TopicSpec(name, size_max=256, window=8))

        def read(session: Session) -> None:
            for name in names:
                stack.enter_context(session.open_reader(
                    name, keep_all=False, from_history=False, guid=os.urandom(16), endpoint=QOS))

        with ThreadPoolExecutor(len(sessions)) as pool:
            list(pool.map(read, sessions))
        writers = [stack.enter_context(sessions[0].open_writer(name, guid=os.urandom(16), endpoint=QOS)).inbox
                   for name in names]
        asyncio.run(watch(url, nodes, len(names), options.seconds, writers))


if __name__ == "__main__":
    main()
