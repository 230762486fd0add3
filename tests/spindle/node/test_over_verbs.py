"""Nodes over RDMA keep their connections through view changes, and agree on new ones where one of them needs that.

Needs an RDMA device: `make rdma-test ARGS=fabric` runs it on a guest that has one in software. Nodes of one process,
each with a runtime directory of its own, so that they reach each other over the device alone. Groups of several guests
are the step `views`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from tests.spindle.on_guest import group, until
from tests.spindle.ports import reader_of, writer_of
from tests.spindle_core.fabric.verbs_peers import needs_verbs

pytestmark = needs_verbs


async def exchange(nodes: list[Node], topic: str) -> None:
    """A new topic, and so a new view; what the first node writes comes everywhere."""
    await nodes[0].declare_topic(TopicSpec(topic, level=Level.ATOMIC))
    readers = [reader_of(node, await node.open_reader(topic, keep_all=True, from_history=False)) for node in nodes]
    writer = writer_of(nodes[0], await nodes[0].open_writer(topic))
    writer.write(b"over verbs")
    for reader in readers:
        got: list[bytes] = []
        await until(lambda reader=reader, got=got: got.extend(reader.take(1)) or got)
        assert got == [b"over verbs"]


def made(nodes: list[Node]) -> list[int]:
    return [node._changes.next._pairs.made for node in nodes]  # type: ignore[union-attr]


def test_connections_are_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with group(tmp_path, 3) as nodes:
            view, before = nodes[0].view().view_id, made(nodes)
            for topic in ("first", "second", "third"):
                await exchange(nodes, topic)
            assert nodes[0].view().view_id > view and made(nodes) == before

    asyncio.run(run())


def test_who_needs_another_connection_gets_it(tmp_path: Path) -> None:
    """One node's connections wait for another time than the other one's, as if it alone knew already of the group's
    new timeout: it makes them anew for the next view, the others find out from its offer and make theirs, and offer
    again. Those between the others stay."""

    async def run() -> None:
        async with group(tmp_path, 3) as nodes:
            await exchange(nodes, "before")
            before = made(nodes)
            nodes[1]._changes.next.set_timeout(60.0)
            await exchange(nodes, "after")
            grown = [now - then for now, then in zip(made(nodes), before, strict=True)]
            assert grown[1] >= 4 and grown[0] >= 2 and grown[2] >= 2
            assert len(nodes[0].view().node_ids) == 3

    asyncio.run(run())
