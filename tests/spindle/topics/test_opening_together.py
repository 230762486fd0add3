"""Goal: what is asked for together shares a view: topics are declared and opened by many at once in a few changes.

Method: three nodes on one loop; the views that were installed are counted. And openings that meet closings get what was
asked for last.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from spindle.config.settings import NodeConfig
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from tests.spindle.node.test_node import take, write
from tests.spindle.ports import reader_of, writer_of

TOPICS = 50
ROUNDS = 10


def test_what_many_ask_for_at_once_takes_a_few_views(runtime_dir: Path) -> None:
    """All requests of a node that come while a change is under way are in the next one: at most one such change is
    under way when they begin, and each node's requests reach the leader in one piece or two."""

    async def body() -> None:
        nodes = [Node(NodeConfig(runtime_dir=runtime_dir, join_timeout_s=20.0)) for _ in range(3)]
        try:
            for node in nodes:
                await node.start()
            before = nodes[0].view().view_id
            names = [f"topic-{number}" for number in range(TOPICS)]
            await asyncio.gather(*(node.declare_topic(TopicSpec(name)) for node in nodes for name in names))
            declared = nodes[0].view().view_id
            await asyncio.gather(*(node.open_writer(name) for node in nodes for name in names),
                                 *(node.open_reader(name, keep_all=True, from_history=False)
                                   for node in nodes for name in names))
            opened = nodes[0].view().view_id
            assert declared - before <= 8 and opened - declared <= 12
            assert all(len(topic.members) == len(topic.senders) == 3 for topic in nodes[2].topics())
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))

    asyncio.run(asyncio.wait_for(body(), 60))


def test_who_opens_while_the_last_one_closes_has_what_comes_then(runtime_dir: Path) -> None:
    """The group carries out a wish to leave the topic while another reader, or writer, of it is opened."""

    async def body() -> None:
        nodes = [Node(NodeConfig(runtime_dir=runtime_dir, join_timeout_s=20.0)) for _ in range(2)]
        try:
            for node in nodes:
                await node.start()
            await nodes[0].declare_topic(TopicSpec("t"))
            writing = await nodes[0].open_writer("t")
            reading = await nodes[1].open_reader("t", keep_all=True, from_history=False)
            for number in range(ROUNDS):
                await nodes[1].close_reader(reading)
                reading = await nodes[1].open_reader("t", keep_all=True, from_history=False)
                closing = asyncio.ensure_future(nodes[0].close_writer(writing))
                writing = await nodes[0].open_writer("t")
                await closing
                await write(writer_of(nodes[0], writing), b"%d" % number)
                assert await take(reader_of(nodes[1], reading), 1) == [b"%d" % number]
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))

    asyncio.run(asyncio.wait_for(body(), 60))


def test_both_open_while_the_last_one_closes(runtime_dir: Path) -> None:
    """A writer and a reader are opened while the group carries out a wish to leave: the writer's wish says nothing of
    the membership that the reader finds."""

    async def body() -> None:
        nodes = [Node(NodeConfig(runtime_dir=runtime_dir, join_timeout_s=20.0)) for _ in range(2)]
        try:
            for node in nodes:
                await node.start()
            await nodes[0].declare_topic(TopicSpec("t"))
            writing = await nodes[0].open_writer("t")
            for number in range(ROUNDS):
                closing = await nodes[1].open_reader("t", keep_all=True, from_history=False)
                await nodes[1].close_reader(closing)
                other, reading = await asyncio.gather(
                    nodes[1].open_writer("t"), nodes[1].open_reader("t", keep_all=True, from_history=False))
                await write(writer_of(nodes[0], writing), b"%d" % number)
                assert await take(reader_of(nodes[1], reading), 1) == [b"%d" % number]
                await nodes[1].close_writer(other)
                await nodes[1].close_reader(reading)
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))

    asyncio.run(asyncio.wait_for(body(), 60))
