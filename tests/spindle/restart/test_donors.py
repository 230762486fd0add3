"""Goal: a fresh member gets the whole history once and in order although the member that gives it dies in the middle; a
restart goes on although the source of the journal, or the restarting node itself, dies in the middle.
Method: nodes on one event loop; the giver is made to stop in the middle of its stream, and then fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from spindle.errors import SpindleError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.reading import read
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.restart import pieces
from spindle.restart.giving import Giving
from spindle.topics.local_topic import LocalTopic
from spindle.topics.ports import ReaderPort
from tests.spindle.node.test_node import Group, take, until, with_group, write
from tests.spindle.ports import reader_of, writer_of

SENT = [b"%d " % number + bytes(number) for number in range(1500)]


class Died(SpindleError):
    """A node of this test was made to fail."""


def stopping_streams(node: Node, begun: asyncio.Event, chunks: int = 1) -> Any:
    """Makes the histories that `node` gives hang after so many chunks."""
    original = Giving._chunks

    async def hanging(self: Giving, node_id: int, request: pb.HistoryRequest) -> Any:
        count = 0
        async for chunk in original(self, node_id, request):
            if self is node._changes.topics.questions.giving and count == chunks:
                begun.set()
                await asyncio.Event().wait()
            count += bool(chunk.messages)
            yield chunk

    return patch.object(Giving, "_chunks", hanging)


@with_group
async def test_the_donor_of_a_volatile_topic_dies(group: Group) -> None:
    nodes = await group.three()
    begun = asyncio.Event()
    await nodes[0].declare_topic(TopicSpec("t", level=Level.VOLATILE, size_max=2000))
    await nodes[0].open_reader("t", keep_all=False, from_history=False)
    writer = writer_of(nodes[1], await nodes[1].open_writer("t"))
    await write(writer, *SENT)
    with stopping_streams(nodes[0], begun):
        opening = asyncio.ensure_future(nodes[2].open_reader("t", keep_all=True, from_history=True))
        await begun.wait()
        await write(writer, b"between")  # live, in the view in which the history was to come
        nodes[0].fail(Died("on purpose"))
        reader = reader_of(nodes[2], await asyncio.wait_for(opening, 10))
    await write(writer, b"live")
    assert await take(reader, 1502) == [*SENT, b"between", b"live"]
    await nodes[0].stop()


@contextlib.asynccontextmanager
async def a_beginning_of_a_history(nodes: list[Node]) -> AsyncIterator[tuple[asyncio.Future[ReaderPort], LocalTopic]]:
    """The last node has the first of two messages that only the first node kept, and waits for the other one: its
    reader that opens, and its topic."""
    begun = asyncio.Event()
    await nodes[0].declare_topic(TopicSpec("t", level=Level.VOLATILE, size_max=2000))
    await write(writer_of(nodes[0], await nodes[0].open_writer("t")), b"alone", b"lost")
    with patch.object(pieces, "CHUNK_MESSAGES", 1), stopping_streams(nodes[0], begun):
        opening = asyncio.ensure_future(nodes[2].open_reader("t", keep_all=True, from_history=True))
        await begun.wait()
        local = nodes[2]._changes.topics.local["t"]
        await until(lambda: local.log is not None and local.log.delivered == 1, "a beginning of the history")
        yield opening, local


@with_group
async def test_the_last_donor_of_a_volatile_topic_dies(group: Group) -> None:
    """The opening ends, and the topic goes on with what came live. A beginning of the history is left out: what came
    after it is lost, and nobody is shown a hole."""
    nodes = await group.three()
    async with a_beginning_of_a_history(nodes) as (opening, _):
        nodes[0].fail(Died("on purpose"))
        reader = reader_of(nodes[2], await asyncio.wait_for(opening, 10))
    writer = writer_of(nodes[1], await nodes[1].open_writer("t"))
    await write(writer, b"live")
    assert await take(reader, 1) == [b"live"]
    await nodes[0].stop()


@with_group
async def test_who_gives_on_what_it_has_not_got_whole_withdraws_it(group: Group) -> None:
    """Goal: nobody is shown a hole (seed 212379). Method: the last donor dies when a member that gets the history from
    it has promised what it has to the next one."""
    nodes = await group.three()
    async with a_beginning_of_a_history(nodes) as (opening, local):
        promised = local.donate()
        nodes[0].fail(Died("on purpose"))
        reader = reader_of(nodes[2], await asyncio.wait_for(opening, 10))
    assert promised.withdrawn and promised.closed
    writer = writer_of(nodes[1], await nodes[1].open_writer("t"))
    await write(writer, b"live")
    assert await take(reader, 1) == [b"live"]
    await nodes[0].stop()


@with_group
async def test_who_can_not_go_on_from_what_has_come_gives_all_that_it_has(group: Group) -> None:
    """Goal: nobody is shown a hole. Method: the donor dies in the middle, and the log of the next one, which is
    smaller, begins later than there."""
    nodes = [await group.start(log_capacity=capacity) for capacity in (8 << 20, 512 << 10, 8 << 20)]
    begun = asyncio.Event()
    await nodes[0].declare_topic(TopicSpec("t", level=Level.VOLATILE, size_max=2000))
    await nodes[0].open_reader("t", keep_all=False, from_history=False)
    writer = writer_of(nodes[1], await nodes[1].open_writer("t"))
    await write(writer, *SENT)
    with stopping_streams(nodes[0], begun):
        opening = asyncio.ensure_future(nodes[2].open_reader("t", keep_all=True, from_history=True))
        await begun.wait()
        nodes[0].fail(Died("on purpose"))
        reader = reader_of(nodes[2], await asyncio.wait_for(opening, 10))
    await write(writer, b"live")
    taken: list[bytes] = []
    while b"live" not in taken:
        taken += await take(reader, 1)
    assert 2 < len(taken) < len(SENT), "what the next one has kept"
    assert taken == [*SENT, b"live"][-len(taken):]
    await nodes[0].stop()


def test_the_donor_of_a_logged_topic_dies(runtime_dir: Path, tmp_path: Path) -> None:
    @with_group
    async def run(group: Group) -> None:
        nodes = await group.three(journal_dir=tmp_path / "journal")
        await nodes[0].declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2000))
        await nodes[0].open_reader("t", keep_all=False, from_history=False)
        writer = writer_of(nodes[1], await nodes[1].open_writer("t"))
        await write(writer, *SENT)
        begun = asyncio.Event()
        with stopping_streams(nodes[0], begun):
            opening = asyncio.ensure_future(nodes[2].open_reader("t", keep_all=True, from_history=True))
            await begun.wait()
            nodes[0].fail(Died("on purpose"))
            reader = reader_of(nodes[2], await asyncio.wait_for(opening, 10))
        await write(writer, b"live")
        assert await take(reader, 1501) == [*SENT, b"live"]
        await nodes[0].stop()

    run(runtime_dir)


async def held_and_left(group: Group, journal_dir: Path, count: int) -> list[Node]:
    """Nodes of which the first three held a topic and left it, all of them whole."""
    nodes = [await group.start(journal_dir=journal_dir) for _ in range(count)]
    await nodes[0].declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2000))
    readers = [await node.open_reader("t", keep_all=False, from_history=False) for node in nodes[:3]]
    port = await nodes[1].open_writer("t")
    await write(writer_of(nodes[1], port), *SENT)
    await nodes[1].close_writer(port)
    for node, reader_port in zip(nodes, readers, strict=False):
        await node.close_reader(reader_port)
    await until(lambda: not nodes[-1].topics()[0].members, "all out of the topic")
    return nodes


def test_the_source_of_a_restart_dies_and_another_takes_over(runtime_dir: Path, tmp_path: Path) -> None:
    """Node 4 restarts the topic from node 1's journal, which dies in the middle; what 2 and 3 have is enough."""

    @with_group
    async def run(group: Group) -> None:
        nodes = await held_and_left(group, tmp_path / "journal", 4)
        begun = asyncio.Event()
        with stopping_streams(nodes[0], begun):
            opening = asyncio.ensure_future(nodes[3].open_reader("t", keep_all=True, from_history=True))
            await begun.wait()
            nodes[0].fail(Died("on purpose"))
            reader = reader_of(nodes[3], await asyncio.wait_for(opening, 10))
        assert await take(reader, 1500) == SENT
        await nodes[0].stop()

    run(runtime_dir)


def test_the_restarting_node_dies_and_another_takes_over(runtime_dir: Path, tmp_path: Path) -> None:
    """Nodes 4 and 5 open the topic; 4, which restarts it, dies in the middle, and 5 does it anew from a whole journal,
    not from what 4 had got by then (S20)."""

    @with_group
    async def run(group: Group) -> None:
        nodes = await held_and_left(group, tmp_path / "journal", 5)
        begun = asyncio.Event()
        with stopping_streams(nodes[0], begun):
            first = asyncio.ensure_future(nodes[3].open_reader("t", keep_all=True, from_history=True))
            await begun.wait()
        second = asyncio.ensure_future(nodes[4].open_reader("t", keep_all=True, from_history=True))
        await until(lambda: nodes[4].topics()[0].members == (4, 5), "both members")
        nodes[3].fail(Died("on purpose"))
        reader = reader_of(nodes[4], await asyncio.wait_for(second, 10))
        assert await take(reader, 1500) == SENT
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], SpindleError)
        # What was cut short on node 4 is no source, and it is made whole again when it comes back.
        again = await group.start(journal_dir=tmp_path / "journal", node_id=4)
        reader = reader_of(again, await again.open_reader("t", keep_all=True, from_history=True))
        assert await take(reader, 1500) == SENT
        await nodes[3].stop()

    run(runtime_dir)


def test_a_next_guide_whose_journal_begins_later_gives_all_that_it_has(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: an opening goes on though no other member has what would follow: with the other one's history, which is
    shorter, and without a hole. Method: node 3 had the topic early, and gets what came since from node 1, its guide,
    which dies in the middle. Node 2 was given no more than node 1's log holds, so its journal begins later. What node 3
    had by then is kept beside its journal."""

    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "1", log_capacity=1 << 16, log_hot=1 << 14)
        second, third = [await group.start(journal_dir=tmp_path / str(number)) for number in (2, 3)]
        await first.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2000))
        early = await third.open_reader("t", keep_all=True, from_history=True)
        writer = writer_of(first, await first.open_writer("t"))
        await write(writer, *SENT[:5])
        await take(reader_of(third, early), 5)
        await third.close_reader(early)
        await until(lambda: third.topics()[0].members == (1,), "node 3 is out of the topic")
        await write(writer, *SENT[5:])
        held = reader_of(second, await second.open_reader("t", keep_all=True, from_history=True))
        kept = await take(held, 1)
        assert int(kept[0].split()[0]) > 1000
        begun = asyncio.Event()
        with stopping_streams(first, begun):
            opening = asyncio.ensure_future(third.open_reader("t", keep_all=True, from_history=True))
            await begun.wait()
            local = third._changes.topics.local["t"]
            await until(lambda: local.log is not None and local.log.delivered > 100, "a beginning of the history")
            first.fail(Died("on purpose"))
            reader = reader_of(third, await asyncio.wait_for(opening, 10))
        writer = writer_of(second, await second.open_writer("t"))
        await write(writer, b"live")
        taken: list[bytes] = []
        while b"live" not in taken:
            taken += await take(reader, 1)
        assert taken[0] == kept[0] and taken == [*SENT, b"live"][-len(taken):]
        assert list((tmp_path / "3").glob("*.forked"))
        for node in (first, second, third):
            await node.stop()
        assert [one.payload for one in read(tmp_path / "3", topic="t")] == taken

    run(runtime_dir)
