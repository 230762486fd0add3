"""Topics whose nodes keep the last messages of each key: late readers, at whatever node and by whatever way, get the
same.

Method: nodes on one event loop, as in test_histories.py; the table that every one should have is the model's
(spindle_lab/whole/lasts.py), made from all that was written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import WireError
from spindle.group.levels import Level
from spindle.group.topics import (
    CLEANUP_NEVER,
    EFFECT_ENDS,
    EFFECT_LEAVES,
    EFFECT_OF_WRITER,
    EFFECT_SAMPLE,
    TIMING_WORD,
    TopicSpec,
)
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.restart import giving
from spindle.restart.codec import order_to_wire
from spindle.restart.giving import Giving
from spindle.restart.tables import OVER_AT_ONCE, TableState, add
from spindle_core.table_copy import table_messages
from spindle_lab.whole.lasts import Lasts
from spindle_lab.whole.said import Said
from tests.spindle.node.test_node import Group, until, with_group
from tests.spindle.ports import writer_of

END, FAREWELL = 1, 9
WORD = 77
TIMING = bytes(TIMING_WORD if tag == WORD else 0 for tag in range(256))
EFFECTS = bytes([EFFECT_SAMPLE, EFFECT_ENDS | EFFECT_LEAVES, *[0] * 7, EFFECT_OF_WRITER | EFFECT_LEAVES, *[0] * 246])
LEVELS = [Level.VOLATILE, Level.LOGGED]
SMALL: dict[str, Any] = {"log_capacity": 1 << 16, "log_hot": 1 << 14}


def spec_of(level: Level, depth: int = 1, room: int = 1 << 20, size_max: int = 256) -> TopicSpec:
    return TopicSpec("t", level=level, size_max=size_max, history_depth=depth, history_bytes=room, effects=EFFECTS)


def limited(level: Level, **limits: int) -> TopicSpec:
    return dataclasses.replace(spec_of(level), timing=TIMING, **limits)


def over(node: Node) -> list[tuple[int, int, bool]]:
    """Keys that are over there."""
    local = node._changes.topics.local["t"]
    with node.engine.parked():
        return local.log.table_over()


async def write(writer: Any, messages: list[tuple[int, bytes, int]]) -> None:
    """Pairs of a key and a payload, with a tag."""
    for key, payload, tag in messages:
        while True:
            try:
                writer.write(payload, timeout_s=0, tag=tag, key=key)
                break
            except TimeoutError:
                await asyncio.sleep(0.001)
    await until(lambda: writer.acknowledged == writer.committed, "delivered")


def expected(spec: TopicSpec, messages: list[tuple[int, bytes, int]]) -> list[tuple[int, bytes]]:
    model = Lasts(spec).note_all(Said((1, place), key, tag, 1, 1, 0, len(payload), payload)
                                 for place, (key, payload, tag) in enumerate(messages))
    return [(one.key, one.body) for one in model.kept]


def messages(count: int, keys: int, size: int = 20) -> list[tuple[int, bytes, int]]:
    """The first keys fall silent one after the other; every seventh ends."""
    return [(max(place * keys // count, place % keys) + 1, b"%d " % place + bytes(size), END if place % 7 == 6 else 0)
            for place in range(count)]


def late_reader(node: Node, port: Any) -> Any:
    from spindle.applications.relayed import reader_of

    return reader_of(node.engine, port, skips=False)


async def late(node: Node, count: int) -> list[tuple[int, bytes]]:
    """What a reader that opens now gets first."""
    port = await node.open_reader("t", keep_all=True, from_history=True)
    reader = late_reader(node, port)
    found: list[tuple[int, bytes]] = []

    def more() -> bool:
        found.extend((info.key, bytes(payload)) for payload, info in reader.take_pairs(1000))
        return len(found) >= count

    await until(more, f"{count} messages of the table")
    await asyncio.sleep(0.02)
    more()
    reader.close()
    await node.close_reader(port)
    return found


def figures(node: Node) -> dict[str, int]:
    found = node._changes.topics.local["t"].table_figures()
    return {key: value for key, value in found.items() if key != "kept_bytes_max"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [1, 3])
def test_late_readers_at_every_node_get_the_same(runtime_dir: Path, tmp_path: Path, level: Level, depth: int) -> None:
    """At the node that wrote, at one that had a reader all the time, and at one that comes late."""

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start(journal_dir=tmp_path / str(number)) for number in range(3)]
        spec, said = spec_of(level, depth), messages(3000, 40)
        await nodes[0].declare_topic(spec)
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        port = await nodes[1].open_reader("t", keep_all=False, from_history=False)
        await write(writer, said)
        wanted = expected(spec, said)
        assert 40 < len(wanted) < 300 or depth == 1
        for node in nodes:
            assert await late(node, len(wanted)) == wanted
        await write(writer, more := messages(100, 60, 5))
        wanted = expected(spec, said + more)
        for node in reversed(nodes[:2]):
            assert await late(node, len(wanted)) == wanted
        assert figures(nodes[0]) == figures(nodes[1])
        await nodes[1].close_reader(port)

    run(runtime_dir)


@pytest.mark.parametrize("level", LEVELS)
def test_a_key_that_fell_silent_long_ago_is_not_lost(runtime_dir: Path, tmp_path: Path, level: Level) -> None:
    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "1", **SMALL)
        spec = spec_of(level)
        await first.declare_topic(spec)
        writer = writer_of(first, await first.open_writer("t"))
        said = [(1, b"once", 0), *((2, b"%d" % number, 0) for number in range(5000))]
        await write(writer, said)
        second = await group.start(journal_dir=tmp_path / "2", **SMALL)
        for node in (first, second):
            assert await late(node, 2) == [(1, b"once"), (2, b"4999")]

    run(runtime_dir)


def test_a_table_larger_than_what_is_on_the_way_at_once(runtime_dir: Path) -> None:
    """2,000 keys with 5,000 bytes each, in chunks, and the node that gives them goes in the middle: the next one gives
    all of it."""

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start() for _ in range(3)]
        spec, said = spec_of(Level.VOLATILE, 1, 32 << 20, 6000), [(number + 1, bytes([number % 251]) * 5000, 0)
                                                                  for number in range(2000)]
        await nodes[0].declare_topic(spec)
        ports = [await node.open_reader("t", keep_all=False, from_history=False) for node in nodes[:2]]
        writer = writer_of(nodes[1], await nodes[1].open_writer("t"))
        await write(writer, said)
        opening = asyncio.ensure_future(late(nodes[2], 1999))
        giving: Giving = nodes[0]._changes.topics.questions.giving
        await until(lambda: any(window._sent > 1 << 20 for _, window in giving._given.values()), "the first node gives")
        log = nodes[1]._changes.topics.local["t"].log
        before = log.delivered
        writer.write(b"", timeout_s=0, tag=END, key=1)  # what the first node has given of this key is over when it goes
        await until(lambda: log.delivered > before, "it has ended")
        await nodes[0].stop()
        assert await opening == [(key, payload) for key, payload, _ in said[1:]]
        await nodes[1].close_reader(ports[1])

    run(runtime_dir)


def test_what_found_no_room_is_counted_and_the_same_at_all(runtime_dir: Path) -> None:
    @with_group
    async def run(group: Group) -> None:
        first, second = await group.start(), await group.start()
        spec = spec_of(Level.VOLATILE, 2, 8192, 64)
        await first.declare_topic(spec)
        writer = writer_of(first, await first.open_writer("t"))
        said = messages(2000, 300, 50)
        await write(writer, said)
        wanted = expected(spec, said)
        assert await late(second, len(wanted)) == wanted
        assert figures(first) == figures(second) and figures(first)["given_up"] > 0
        port = await second.open_reader("t", keep_all=True, from_history=True)
        reader = late_reader(second, port)
        assert reader.lost == figures(first)["given_up"]
        reader.close()

    run(runtime_dir)


def test_a_table_is_read_back_from_the_journals(runtime_dir: Path, tmp_path: Path) -> None:
    """All nodes go; those that come next have the same table, also the one that came late, whose journal was given."""
    spec, said = spec_of(Level.LOGGED, 2), messages(4000, 50)

    @with_group
    async def before(group: Group) -> None:
        first = await group.start(node_id=1, journal_dir=tmp_path / "1", **SMALL)
        await first.declare_topic(spec)
        writer = writer_of(first, await first.open_writer("t"))
        await write(writer, said)
        second = await group.start(node_id=2, journal_dir=tmp_path / "2", **SMALL)
        wanted = expected(spec, said)
        assert await late(second, len(wanted)) == wanted

    @with_group
    async def after(group: Group) -> None:
        nodes = [await group.start(node_id=number, journal_dir=tmp_path / str(number), **SMALL) for number in (2, 1)]
        await nodes[0].declare_topic(spec)
        wanted = expected(spec, said)
        ports = [await node.open_reader("t", keep_all=False, from_history=False) for node in nodes]
        for node in nodes:
            assert await late(node, len(wanted)) == wanted
        assert figures(nodes[0]) == figures(nodes[1]) and figures(nodes[0])["keys"] == len({key for key, _ in wanted})
        for node, port in zip(nodes, ports, strict=True):
            await node.close_reader(port)

    before(runtime_dir)
    after(runtime_dir)


def test_who_is_still_making_its_table_gives_it_later(runtime_dir: Path) -> None:
    """All of another member's table has come, and becomes this node's own in the next turn of its loop: until then
    nobody is given what was there before."""
    @with_group
    async def run(group: Group) -> None:
        node = await group.start()
        await node.declare_topic(spec_of(Level.VOLATILE))
        await node.open_reader("t", keep_all=True, from_history=False)
        local = node._changes.topics.local["t"]
        local._restoring = True
        donation = local.donate()
        assert donation.cut is None and list(local._backlog) == [donation]
        local._backlog.clear()
        local._restoring = False
        assert local.donate().cut == local.log.delivered

    run(runtime_dir)


def test_a_writer_that_ends_is_left_out_of_what_is_kept(runtime_dir: Path) -> None:
    @with_group
    async def run(group: Group) -> None:
        first, second = await group.start(), await group.start()
        spec = TopicSpec("t", level=Level.VOLATILE, size_max=64, history_depth=1,
                         effects=EFFECTS[:FAREWELL] + bytes([EFFECT_OF_WRITER | EFFECT_LEAVES | EFFECT_ENDS])
                         + EFFECTS[FAREWELL + 1 :])
        await first.declare_topic(spec)
        one, other = [await first.open_writer("t", farewell=FAREWELL) for _ in range(2)]
        await write(writer_of(first, one), [(1, b"a", 0), (2, b"b", 0)])
        await write(writer_of(first, other), [(2, b"c", 0)])
        await first.close_writer(one)
        assert await late(second, 1) == [(2, b"c")]

    run(runtime_dir)


# --- limits, and what is over

@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("limits", [{"samples_max": 25}, {"keys_max": 7}, {"samples_max": 9, "history_depth": 0}])
def test_limits_hold_at_every_node(runtime_dir: Path, tmp_path: Path, level: Level, limits: dict[str, int]) -> None:
    """Also at one that comes late and goes on."""

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start(journal_dir=tmp_path / str(number)) for number in range(2)]
        spec, said = limited(level, **limits), messages(500, 40)
        await nodes[0].declare_topic(spec)
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        await write(writer, said)
        port = await nodes[1].open_reader("t", keep_all=False, from_history=False)
        wanted = expected(spec, said)
        for node in nodes:
            assert await late(node, len(wanted)) == wanted
        await write(writer, more := messages(100, 60, 5))
        wanted = expected(spec, said + more)
        for node in nodes:
            assert await late(node, len(wanted)) == wanted
        assert figures(nodes[0]) == figures(nodes[1]) and figures(nodes[0])["limited"] > 0
        await nodes[1].close_reader(port)

    run(runtime_dir)


def test_whoever_comes_late_knows_what_is_over_and_since_when(runtime_dir: Path) -> None:
    """More keys than one chunk says; some wait for the word with which their delay begins."""

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start() for _ in range(3)]
        count = OVER_AT_ONCE + 300
        await nodes[0].declare_topic(limited(Level.VOLATILE, cleanup_ns=3600 * 10**9))
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        ports = [await nodes[1].open_reader("t", keep_all=False, from_history=False)]
        await write(writer, [(key, b"x", 0) for key in range(1, count + 1)])
        await write(writer, [(key, b"", END) for key in range(count, 0, -1)])
        wanted = over(nodes[0])
        assert [key for key, _, _ in wanted] == list(range(count, 0, -1)) and wanted == over(nodes[1])
        ports.append(await nodes[2].open_reader("t", keep_all=False, from_history=False))
        assert over(nodes[2]) == wanted and figures(nodes[2]) == figures(nodes[0])
        for node, port in zip(nodes[1:], ports, strict=True):
            await node.close_reader(port)

    run(runtime_dir)


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_over_goes_everywhere_and_not_early(runtime_dir: Path, tmp_path: Path, level: Level) -> None:
    """Though the node that wrote it goes, and one that came while the delay ran is the last that is left."""

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start(journal_dir=tmp_path / str(number)) for number in range(3)]
        delay_ns = 500_000_000
        await nodes[0].declare_topic(limited(level, cleanup_ns=delay_ns))
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        await nodes[1].open_reader("t", keep_all=False, from_history=False)
        await write(writer, [(1, b"stays", 0), (2, b"goes", 0)])
        begin_ns = time.time_ns()
        await write(writer, [(2, b"", END)])
        last = await nodes[2].open_reader("t", keep_all=False, from_history=False)
        for node in nodes[:2]:
            await node.stop()
        await until(lambda: figures(nodes[2])["keys"] == 1, "the other key is forgotten")
        assert time.time_ns() >= begin_ns + delay_ns and figures(nodes[2])["given_up"] == 0
        assert await late(nodes[2], 1) == [(1, b"stays")]
        await nodes[2].close_reader(last)

    run(runtime_dir)


def test_what_was_over_is_over_after_a_restart_of_all(runtime_dir: Path, tmp_path: Path) -> None:
    """The journals say it, as they say what time it was."""
    spec, known = limited(Level.LOGGED, cleanup_ns=CLEANUP_NEVER, samples_max=30), []

    @with_group
    async def before(group: Group) -> None:
        nodes = [await group.start(node_id=number, journal_dir=tmp_path / str(number)) for number in (1, 2)]
        await nodes[0].declare_topic(spec)
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        port = await nodes[1].open_reader("t", keep_all=False, from_history=False)
        await write(writer, messages(200, 50))
        known.extend([over(nodes[0]), figures(nodes[0])])
        await nodes[1].close_reader(port)

    @with_group
    async def after(group: Group) -> None:
        nodes = [await group.start(node_id=number, journal_dir=tmp_path / str(number)) for number in (1, 2)]
        await nodes[0].declare_topic(spec)
        ports = [await node.open_reader("t", keep_all=False, from_history=False) for node in nodes]
        for node in nodes:
            assert known == [over(node), figures(node)] and known[0]
        for node, port in zip(nodes, ports, strict=True):
            await node.close_reader(port)

    before(runtime_dir)
    after(runtime_dir)


def test_a_message_without_a_timestamp_has_none_in_a_journal(runtime_dir: Path, tmp_path: Path) -> None:
    """What a node says in a writer's name has none, and counts at a node that reads it back as at all others."""
    spec = limited(Level.LOGGED, cleanup_ns=CLEANUP_NEVER)

    def last(node: Node) -> Any:
        local = node._changes.topics.local["t"]
        with node.engine.parked():
            return list(table_messages(local.log.copy_table(shared=False)))[-1]

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start(journal_dir=tmp_path / str(number)) for number in range(2)]
        await nodes[0].declare_topic(spec)
        port = await nodes[0].open_writer("t", farewell=FAREWELL)
        reader = await nodes[0].open_reader("t", keep_all=False, from_history=False)
        await write(writer_of(nodes[0], port), [(1, b"x", 0)])
        await nodes[0].close_writer(port)
        await until(lambda: figures(nodes[0])["kept"] == 2, "the writer has left")
        late = await nodes[1].open_reader("t", keep_all=False, from_history=False)
        found = [last(node) for node in nodes]
        assert [(one[4], one[8]) for one in found] == [(0, FAREWELL)] * 2
        await nodes[0].close_reader(reader)
        await nodes[1].close_reader(late)

    run(runtime_dir)


def test_no_more_keys_are_over_than_a_table_has_room_for() -> None:
    state = TableState((0, 0))
    add(state, pb.HistoryChunk(over=[pb.KeyOver(key=1, ns=2, waits=True)] * 32), 4096)
    assert state.over == [(1, 2, True)] * 32
    with pytest.raises(WireError, match="more than 32 keys"):
        add(state, pb.HistoryChunk(over=[pb.KeyOver(key=1)]), 4096)


@pytest.mark.parametrize("behind", [(-1, 0), (0, -1)])
def test_a_table_behind_no_place_of_the_order_is_refused(runtime_dir: Path, behind: tuple[int, int]) -> None:
    """The member that gives it is asked for nothing more; what comes live is all there is then."""
    nowhere = pb.HistoryChunk(start=pb.HistoryStart(table=pb.KeyTable(behind=order_to_wire(behind))))

    @with_group
    async def run(group: Group) -> None:
        nodes = [await group.start() for _ in range(2)]
        await nodes[0].declare_topic(spec_of(Level.VOLATILE))
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        await write(writer, [(1, b"before", 0)])
        with patch.object(giving, "to_chunks", lambda _: iter([nowhere])):
            port = await nodes[1].open_reader("t", keep_all=True, from_history=True)
        reader = late_reader(nodes[1], port)
        await write(writer, [(1, b"after", 0)])
        found: list[bytes] = []

        def more() -> bool:
            found.extend(bytes(payload) for payload, _ in reader.take_pairs(9))
            return bool(found)

        await until(more, "the next one")
        assert found == [b"after"]
        reader.close()

    run(runtime_dir)
