"""Goal: histories of any size, any number of them at once, by any line, reach their newcomers; what waits for a node is
bounded, nobody is cast out for it, and nothing is left when one of the two goes in the middle (S36, S37, S38).

Method: nodes on one event loop; what a connection has queued is looked at with every frame. A reader that stands still
is a connection that isn't read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import GroupSilent, NoResources, SpindleError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from spindle.restart.catching_up import WAITING_MAX
from spindle.restart.giving import Giving
from spindle.restart.history import Donation, Message
from spindle.restart.pieces import CHUNK_COST_MAX
from spindle.restart.streams import AHEAD_BYTES
from spindle.topics.larges import LargeSamples
from spindle.topics.local_topic import LocalTopic
from spindle.transport.peers import BULK_QUEUED_MAX
from spindle.transport.wire import Connection
from tests.spindle.node.test_node import Group, take, until, with_group, write
from tests.spindle.ports import reader_of, writer_of

CONTROL = 64 << 10  # what may wait of everything else, in these tests


def descriptors() -> Counter[str]:
    """What this process has open, by kind."""
    gc.collect()
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/self/fd/{fd}").split("[")[0]] += 1
    return found


@pytest.fixture(autouse=True)
def queued_max() -> Iterator[list[int]]:
    """The most bytes that ever waited on a connection. Never more than a turn and a chunk, beside some words."""
    seen = [0]
    original = Connection._put

    def looked_at(self: Connection, *arguments: Any) -> None:
        original(self, *arguments)
        seen[0] = max(seen[0], self._out_bytes)

    with patch.object(Connection, "_put", looked_at):
        yield seen
    assert seen[0] <= BULK_QUEUED_MAX + CHUNK_COST_MAX + CONTROL


def given_all(node: Node) -> bool:
    """True if nothing is left of what a node gave."""
    giving = node._changes.topics.questions.giving
    return not giving._pinned and not giving._given


async def filled(node: Node, specs: list[TopicSpec], payload: bytes, count: int) -> None:
    """Has the node hold `count` messages in each topic."""
    for spec in specs:
        await node.declare_topic(spec)
        writer = writer_of(node, await node.open_writer(spec.name))
        await write(writer, *[b"%d " % number + payload for number in range(count)])
        local = node._changes.topics.local[spec.name]
        await until(lambda local=local: local.log is not None and local.log.delivered == count, "delivered")


async def opened(node: Node, specs: list[TopicSpec]) -> list[Any]:
    """Readers of all topics, opened at once."""
    ports = await asyncio.gather(*(node.open_reader(spec.name, keep_all=True, from_history=True) for spec in specs))
    return [reader_of(node, port) for port in ports]


async def numbers(reader: Any, count: int) -> list[int]:
    return [int(one.split(b" ", 1)[0]) for one in await take(reader, count)]


@with_group
async def test_several_histories_to_one_newcomer_at_once(group: Group) -> None:
    """Four volatile topics of 400 messages of 8,000 bytes, to a fresh node."""
    first, second = await group.start(), await group.start()
    specs = [TopicSpec(f"t{number}", level=Level.VOLATILE, size_max=8192) for number in range(4)]
    await filled(first, specs, bytes(8000), 400)
    for reader in await opened(second, specs):
        assert await numbers(reader, 400) == list(range(400))
    await until(lambda: given_all(first), "nothing left of what was given")


@pytest.mark.slow
def test_volatile_and_logged_histories_to_one_newcomer_at_once(runtime_dir: Path, tmp_path: Path) -> None:
    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "one")
        second = await group.start(journal_dir=tmp_path / "two")
        specs = [TopicSpec(f"t{number}", level=Level.LOGGED if number % 2 else Level.VOLATILE, size_max=100_000)
                 for number in range(6)]
        await filled(first, specs, bytes(90_000), 40)
        for reader in await opened(second, specs):
            assert await numbers(reader, 40) == list(range(40))
        await until(lambda: given_all(first), "nothing left of what was given")

    run(runtime_dir)


@pytest.mark.parametrize("level", [Level.VOLATILE, Level.LOGGED])
@pytest.mark.parametrize("count, size", [
    pytest.param(1, 64, marks=pytest.mark.slow), pytest.param(4, 20, marks=pytest.mark.slow), (14, 5)])
def test_histories_of_large_messages(runtime_dir: Path, tmp_path: Path, level: Level, count: int, size: int) -> None:
    """Each is larger than every queue (S37)."""

    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "one")
        second = await group.start(journal_dir=tmp_path / "two")
        specs = [TopicSpec(f"t{number}", level=level, size_max=size << 20, window=1) for number in range(count)]
        await filled(first, specs, bytes((size << 20) - 10), 1)
        for reader in await opened(second, specs):
            assert [len(one) for one in await take(reader, 1)] == [(size << 20) - 8]
        assert len(first.view().node_ids) == 2

    run(runtime_dir)


def connection(node: Node, to: Node) -> Connection:
    return node._peers.connected[to.node_id].conn


@with_group
async def test_a_newcomer_that_stands_still_in_the_middle_holds_up_nothing_else(group: Group) -> None:
    """Its connection isn't read: little waits for it, a third node gets its histories all the same, and it gets its
    own as soon as it reads again."""
    nodes = await group.three()
    specs = [TopicSpec(f"t{number}", level=Level.VOLATILE, size_max=8192) for number in range(3)]
    await filled(nodes[0], specs, bytes(8000), 400)
    stuck = connection(nodes[1], nodes[0])
    loop = asyncio.get_running_loop()
    queue = connection(nodes[0], nodes[1])
    original = Giving._give

    async def stopped(self: Giving, node_id: int, *arguments: Any) -> None:
        if node_id == nodes[1].node_id:
            loop.remove_reader(stuck._fd)
        await original(self, node_id, *arguments)

    with patch.object(Giving, "_give", stopped):
        late = asyncio.ensure_future(nodes[1].open_reader("t0", keep_all=True, from_history=True))
        await until(lambda: queue._out_bytes, "something waits for node 2")
        waits = queue._out_bytes
        await asyncio.sleep(0.05)
        assert queue._out_bytes <= max(waits, BULK_QUEUED_MAX + CHUNK_COST_MAX) and not late.done()
    loop.add_reader(stuck._fd, stuck._readable)
    assert await numbers(reader_of(nodes[1], await late), 400) == list(range(400))
    for reader in await opened(nodes[2], specs):
        assert await numbers(reader, 400) == list(range(400))


@with_group
async def test_a_log_without_room_stops_the_giver(group: Group) -> None:
    """Little waits at the newcomer then, and the rest stays where it is."""
    first, second = await group.start(log_capacity=64 << 20), await group.start(log_capacity=64 << 20)
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(first, [spec], bytes(8000), 1500)
    room = asyncio.Event()
    append = LocalTopic._append

    async def without_room(self: LocalTopic, queue: Any) -> None:
        if self.engine is second.engine:
            await room.wait()
        await append(self, queue)

    with patch.object(LocalTopic, "_append", without_room):
        opening = asyncio.ensure_future(opened(second, [spec]))
        await until(lambda: "t" in second._changes.topics.local, "the topic")
        local = second._changes.topics.local["t"]
        await until(lambda: local.history_waiting > WAITING_MAX, "what waits for room")
        ((_, window),) = first._changes.topics.questions.giving._given.values()
        await until(lambda: window._sent - window._taken >= AHEAD_BYTES, "the giver waits")
        assert local.history_waiting <= WAITING_MAX + CHUNK_COST_MAX
        assert window._sent <= WAITING_MAX + AHEAD_BYTES + 4 * CHUNK_COST_MAX
        room.set()
        (reader,) = await opening
    assert await numbers(reader, 1500) == list(range(1500))


def holding(node: Node, begun: asyncio.Event) -> Any:
    """Makes what a node gives stand still behind its first chunk."""
    original = Giving._chunks

    async def one_chunk(self: Giving, *arguments: Any) -> Any:
        async for chunk in original(self, *arguments):
            yield chunk
            if self is node._changes.topics.questions.giving:
                begun.set()
                await asyncio.Event().wait()

    return patch.object(Giving, "_chunks", one_chunk)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["dies", "leaves the topic", "gives up"])
def test_a_newcomer_goes_in_the_middle(runtime_dir: Path, end: str) -> None:
    """Nothing is kept for it then: its log's room comes free, and writers go on."""

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start(open_timeout_s=0.3 if end == "gives up" else 10.0) for _ in range(3)]
        spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
        await filled(nodes[0], [spec], bytes(8000), 400)
        writer = writer_of(nodes[0], nodes[0]._changes.topics.local["t"].writers[0])
        begun = asyncio.Event()
        with holding(nodes[0], begun):
            opening = asyncio.ensure_future(nodes[1].open_reader("t", keep_all=True, from_history=True))
            await begun.wait()
            assert nodes[0]._changes.topics.questions.giving.pinned == 1
            if end == "dies":
                nodes[1].fail(SpindleError("on purpose"))
            elif end == "leaves the topic":
                opening.cancel()
            ended = (await asyncio.gather(opening, return_exceptions=True))[0]
            if end == "gives up":
                assert isinstance(ended, GroupSilent) and "messages from node 1" in str(ended)
            await until(lambda: given_all(nodes[0]), "nothing left of what was given")
        await write(writer, *[bytes(8000)] * 1500)  # more than the log has room for
        await nodes[1].stop()

    run(runtime_dir)


@with_group
async def test_a_newcomer_goes_without_having_asked(group: Group) -> None:
    first, second = await group.start(), await group.start()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(first, [spec], bytes(8000), 40)
    giving = first._changes.topics.questions.giving
    with patch.object(Giving, "asked", lambda *_: None):
        opening = asyncio.ensure_future(second.open_reader("t", keep_all=True, from_history=True))
        await until(lambda: giving.pinned, "something kept")
        opening.cancel()
        await until(lambda: not giving.pinned, "nothing kept any more")


@with_group
async def test_what_runs_out_at_a_view_change_keeps_nobody_from_joining(group: Group) -> None:
    """No descriptor is left to keep the history at the view: the newcomer gets what is retained when it asks."""
    first, second = await group.start(), await group.start()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(first, [spec], bytes(8000), 40)
    keep = Donation.__init__
    failed = []

    def failing(self: Donation, *arguments: Any) -> None:
        if not failed:
            failed.append(1)
            raise OSError(24, "Too many open files")
        keep(self, *arguments)

    with patch.object(Donation, "__init__", failing):
        (reader,) = await opened(second, [spec])
    assert failed and await numbers(reader, 40) == list(range(40))
    assert len(first.view().node_ids) == 2


@with_group
async def test_who_can_not_give_a_history_is_followed_by_who_can(group: Group) -> None:
    nodes = await group.three()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(nodes[0], [spec], bytes(8000), 40)
    await opened(nodes[1], [spec])
    following = Donation.following
    broken = [nodes[0].engine]

    def failing(self: Donation) -> Any:
        if self._engine in broken:
            raise OSError(24, "Too many open files")
        return following(self)

    with patch.object(Donation, "following", failing):
        (reader,) = await opened(nodes[2], [spec])
        assert await numbers(reader, 40) == list(range(40))
        # When nobody can, it begins with what comes live.
        again = await group.start()
        broken += [node.engine for node in nodes]
        (reader,) = await opened(again, [spec])
    writer = writer_of(nodes[0], nodes[0]._changes.topics.local["t"].writers[0])
    await write(writer, b"40 live")
    assert await numbers(reader, 1) == [40]
    await until(lambda: all(map(given_all, nodes)), "nothing left of what was given")


@with_group
async def test_a_history_is_given_up_while_the_bytes_of_one_of_its_samples_come(group: Group) -> None:
    """Goal: the newcomer goes on without it, and nothing of it stays in memory. Method: the only giver dies while the
    newcomer waits for bytes, which come after all."""
    nodes = await group.three()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(nodes[0], [spec], bytes(8000), 40)
    newcomer = nodes[1]
    begun, come = asyncio.Event(), asyncio.Event()
    with_bytes = LargeSamples.with_bytes

    async def late(self: LargeSamples, spec: TopicSpec, message: Message) -> Message | None:
        if self is newcomer.large_samples and not begun.is_set():
            begun.set()
            await come.wait()
            large_id, entry = self.keep(spec.name, bytes(1 << 20))
            assert self._larges.has(large_id)
            return message._replace(payload=entry, large=True)
        return await with_bytes(self, spec, message)

    with patch.object(LargeSamples, "with_bytes", late), holding(nodes[0], asyncio.Event()):
        opening = asyncio.ensure_future(opened(newcomer, [spec]))
        await begun.wait()
        local = newcomer._changes.topics.local["t"]
        await until(lambda: local.history_waiting, "a part of it is here")
        nodes[0].fail(SpindleError("on purpose"))
        await until(lambda: local.whole and not local.history_waiting, "it has given that up")
        come.set()
        (reader,) = await opening
    assert not newcomer.large_samples._store.ids()
    await write(writer_of(nodes[2], await nodes[2].open_writer("t")), b"40 live")
    assert await numbers(reader, 1) == [40]


@with_group
async def test_bytes_of_a_history_that_is_given_up_go(group: Group) -> None:
    """Method: the only giver dies while a sample whose bytes are here waits for room in the newcomer's log."""
    nodes = await group.three()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(nodes[0], [spec], bytes(8000), 40)
    larges, begun = nodes[1].large_samples, asyncio.Event()

    async def without_room(self: LocalTopic, queue: Any) -> None:
        if not begun.is_set():
            queue[0] = larges.beside(spec, queue[0]._replace(payload=bytes(1 << 20)))
            begun.set()
        await asyncio.sleep(0.01)

    with patch.object(LocalTopic, "_append", without_room), holding(nodes[0], asyncio.Event()):
        opening = asyncio.ensure_future(opened(nodes[1], [spec]))
        await begun.wait()
        assert larges._store.ids()
        nodes[0].fail(SpindleError("on purpose"))
        await opening
    assert not larges._store.ids()


@with_group
async def test_who_can_not_keep_a_large_sample_of_a_history_tries_again(group: Group) -> None:
    """It has no descriptor for it at first."""
    first, second = await group.start(), await group.start()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(first, [spec], bytes(100), 40)
    beside, short = LargeSamples.beside, itertools.count()

    def failing(self: LargeSamples, spec: TopicSpec, message: Message) -> Message:
        if self is second.large_samples and next(short) < 2:
            raise NoResources("on purpose")
        return beside(self, spec, message)

    with patch.object(LargeSamples, "beside", failing):
        (reader,) = await opened(second, [spec])
        assert await numbers(reader, 40) == list(range(40))


@with_group
async def test_a_history_that_can_not_go_into_the_log_ends_the_node(group: Group) -> None:
    """Goal: no topic stands still without a word."""
    first, second = await group.start(), await group.start()
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=8192)
    await filled(first, [spec], bytes(100), 40)

    async def failing(self: LargeSamples, spec: TopicSpec, message: Message) -> Message:
        raise RuntimeError("on purpose")

    with patch.object(LargeSamples, "with_bytes", failing), pytest.raises(SpindleError, match="on purpose"):
        await opened(second, [spec])


@pytest.mark.slow
def test_many_topics_and_newcomers_at_once_leave_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    """Ten topics, volatile and logged, for three newcomers that open all of them at once; then all readers close."""

    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "0")
        specs = [TopicSpec(f"t{number}", level=Level.LOGGED if number % 3 == 0 else Level.VOLATILE, size_max=8192,
                           window=8) for number in range(10)]
        await filled(first, specs, bytes(4000), 50)
        late = [await group.start(journal_dir=tmp_path / str(number)) for number in (1, 2, 3)]
        found = await asyncio.gather(*(opened(node, specs) for node in late))
        for readers in found:
            for reader in readers:
                assert await numbers(reader, 50) == list(range(50))
        await until(lambda: given_all(first), "nothing left of what was given")

    before = descriptors()
    run(runtime_dir)
    left = descriptors()
    left.subtract(before)
    assert not +left, +left
