"""One node of a group that has a guest for each, over verbs alone: what `make rdma-test` runs on every guest.

All write, all read, and print a digest of the order in which it came: alike everywhere. A large sample goes from the
first guest to the second, and from that to the third while it comes. Then the power of the last guest is cut, when it
has seen all, and while the second one reads a large sample of it, which goes on with the first one; the others must go
on without it, and agree on what they write then.

NODE, NODES and PEERS are as guests.py says.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spindle.config.settings import NodeConfig
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from tests.spindle.large.group import PERIOD, TOPIC, pattern, sealed
from tests.spindle.ports import reader_of, writer_of

PORT = 7411
FIRST, SECOND = 200, 100
RELAYED, CUT = 7, 8  # ids of large samples
SIZES = {RELAYED: (9 << 20) + 5, CUT: 96 << 20}  # bytes
PATIENCE_S = 60.0


def say(what: str) -> None:
    print(what, flush=True)


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:g} s: {what}")
        await asyncio.sleep(0.01)


async def write(writer: Any, mine: int, phase: str, count: int) -> None:
    def work() -> None:
        for k in range(count):
            writer.write(f"{phase} {mine} {k};".encode().ljust(40 * (k % 50 + 1), b"."), timeout_s=PATIENCE_S)

    await asyncio.get_running_loop().run_in_executor(None, work)


async def read(reader: Any, count: int) -> list[bytes]:
    got: list[bytes] = []
    await until(lambda: got.extend(reader.take(count - len(got))) or len(got) >= count, f"{count} messages")
    return got


async def large(node: Any, large_id: int, sources: list[int]) -> None:
    """Reads a large sample over RDMA, and compares it in pieces, between which the node answers others."""
    before, size = node.large_samples.status()["read_over_rdma"], SIZES[large_id]
    brought = await node.large.bring(large_id, size, TOPIC, sources)
    node.large.store.put(large_id, brought.fd, size, TOPIC)
    fd = node.large.store.open(large_id)
    piece = pattern(256 * PERIOD, large_id)
    for at in range(0, size, len(piece)):
        wanted = piece[:size - at]
        if os.pread(fd, len(wanted), at) != wanted:
            raise SystemExit(f"large sample {large_id} is not what it was")
        await asyncio.sleep(0)
    os.close(fd)
    say(f"large sample {large_id}: {node.large_samples.status()['read_over_rdma'] - before} bytes over RDMA")


def digest(messages: list[bytes]) -> str:
    whole = hashlib.sha256()
    for message in messages:
        whole.update(len(message).to_bytes(8, "little") + message)
    return whole.hexdigest()[:16]


async def main() -> None:
    mine, everybody = int(os.environ["NODE"]), os.environ["PEERS"].split(",")
    last = len(everybody) - 1
    contacts = tuple(f"{address}:{PORT}" for address in everybody)
    directory = Path("/run/spindle-rdma")
    directory.mkdir(exist_ok=True)
    # Before the node runs: on an emulated guest this takes seconds, in which its loop would answer nobody.
    samples = {large_id: sealed(pattern(SIZES[large_id], large_id)) for large_id in (RELAYED, CUT)
               if mine == 0 or (mine == last and large_id == CUT)}
    node = Node(NodeConfig(runtime_dir=directory, node_id=mine + 1, listen=contacts[mine], contacts=contacts,
                           plain=True, fabric="verbs", join_timeout_s=PATIENCE_S, suspect_timeout_s=8.0))
    await node.start()
    await until(lambda: len(node.view().node_ids) == len(everybody), "all nodes in one view")
    say("together")
    for large_id, fd in samples.items():
        node.large.store.put(large_id, fd, SIZES[large_id], TOPIC)
    if mine:
        await large(node, RELAYED, list(range(mine, 0, -1)))
    if mine == 0:
        await node.declare_topic(TopicSpec("t", level=Level.ATOMIC, size_max=4000))
    await until(lambda: any(topic.spec.name == "t" for topic in node.topics()), "the topic")
    reader = reader_of(node, await node.open_reader("t", keep_all=True, from_history=False))
    writer = writer_of(node, await node.open_writer("t"))
    await until(lambda: all(len(topic.members) == len(topic.senders) == len(everybody) for topic in node.topics()),
                "all reading and writing")
    await write(writer, mine, "first", FIRST)
    say(f"order {digest(await read(reader, FIRST * len(everybody)))}")
    fabric = node.engine.epoch.fabric
    another = 1 if node.engine.epoch.my_rank == 0 else 0  # ranks are by age, and who comes first isn't certain
    say(f"fabric {fabric.part_of(another)} {fabric.parts['verbs'].statistics()}")
    if mine == last:
        givers = node.large.ways._givers  # type: ignore[union-attr]
        await until(lambda: any(giver._on_the_way for giver in givers.values()), "somebody reads of it")
        say("cut my power")
        await asyncio.sleep(10 * PATIENCE_S)
    if mine == 1:
        await large(node, CUT, [last + 1, 1])
    begun = time.monotonic()
    await until(lambda: len(node.view().node_ids) == len(everybody) - 1, "the view without the one that was cut off")
    say(f"without it after {time.monotonic() - begun:.1f} s")
    await write(writer, mine, "second", SECOND)
    say(f"order {digest(await read(reader, SECOND * last))}")
    await until(lambda: writer.acknowledged == FIRST + SECOND, "acknowledged")
    await node.stop()
    say("done")


if __name__ == "__main__":
    asyncio.run(main())
