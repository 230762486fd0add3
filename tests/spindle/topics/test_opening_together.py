"""Goal: what is asked for together shares a view: topics are opened by many at once in a few changes, and declared in
none.

Method: three nodes on one loop; the views that were installed are counted. And openings that meet closings get what was
asked for last.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from spindle.errors import TopicLimit
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from tests.spindle.node.test_node import take, write
from tests.spindle.nodes import run_with_nodes
from tests.spindle.ports import reader_of, writer_of

TOPICS = 50
ROUNDS = 10


def test_what_many_ask_for_at_once_takes_a_few_views(runtime_dir: Path) -> None:
    """All requests of a node that come while a change is under way are in the next one: at most one such change is
    under way when they begin, and each node's requests reach the leader in one piece or two. A declaration is a
    revision of the view that there is."""

    async def body(*nodes: Node) -> None:
        before = nodes[0].view().view_id
        names = [f"topic-{number}" for number in range(TOPICS)]
        await asyncio.gather(*(node.declare_topic(TopicSpec(name)) for node in nodes for name in names))
        assert nodes[0].view().view_id == before
        await asyncio.gather(*(node.open_writer(name) for node in nodes for name in names),
                             *(node.open_reader(name, keep_all=True, from_history=False)
                               for node in nodes for name in names))
        assert nodes[0].view().view_id - before <= 12
        assert all(len(topic.members) == len(topic.senders) == 3 for topic in nodes[2].topics())

    run_with_nodes(runtime_dir, 3, body)


def test_who_opens_while_the_last_one_closes_has_what_comes_then(runtime_dir: Path) -> None:
    """The group carries out a wish to leave the topic while another reader, or writer, of it is opened."""

    async def body(one: Node, two: Node) -> None:
        await one.declare_topic(TopicSpec("t"))
        writing = await one.open_writer("t")
        reading = await two.open_reader("t", keep_all=True, from_history=False)
        for number in range(ROUNDS):
            await two.close_reader(reading)
            reading = await two.open_reader("t", keep_all=True, from_history=False)
            closing = asyncio.ensure_future(one.close_writer(writing))
            writing = await one.open_writer("t")
            await closing
            await write(writer_of(one, writing), b"%d" % number)
            assert await take(reader_of(two, reading), 1) == [b"%d" % number]

    run_with_nodes(runtime_dir, 2, body)


def test_both_open_while_the_last_one_closes(runtime_dir: Path) -> None:
    """A writer and a reader are opened while the group carries out a wish to leave: the writer's wish says nothing of
    the membership that the reader finds."""

    async def body(one: Node, two: Node) -> None:
        await one.declare_topic(TopicSpec("t"))
        writing = await one.open_writer("t")
        for number in range(ROUNDS):
            closing = await two.open_reader("t", keep_all=True, from_history=False)
            await two.close_reader(closing)
            other, reading = await asyncio.gather(
                two.open_writer("t"), two.open_reader("t", keep_all=True, from_history=False))
            await write(writer_of(one, writing), b"%d" % number)
            assert await take(reader_of(two, reading), 1) == [b"%d" % number]
            await two.close_writer(other)
            await two.close_reader(reading)

    run_with_nodes(runtime_dir, 2, body)


def test_all_programs_of_a_node_that_declare_what_can_t_be_are_told(runtime_dir: Path) -> None:
    """At the leader, who refuses the first before the second one asks; and while a view changes, after which the leader
    knows only the newest wish of a node."""

    async def body(one: Node, two: Node) -> None:
        await one.declare_topic(TopicSpec("other"))
        huge = TopicSpec("huge", size_max=64 << 20, window=1 << 14)
        for node in (one, two):
            while node.topic("other") is None:
                await asyncio.sleep(0.001)
            reader, *refused = await asyncio.gather(
                node.open_reader("other", keep_all=True, from_history=False),
                *(node.declare_topic(huge) for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in refused] == [TopicLimit] * 3
            await node.close_reader(reader)

    run_with_nodes(runtime_dir, 2, body)
