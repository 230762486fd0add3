"""Goal: whoever has a sample of a topic that keeps history has its type, whatever has gone since; and a type goes when
the last of its samples has.

Method: nodes on one event loop, with rows that are mapped and with rows that are sent. Words between nodes are held up
or left out at the node that hears them; nodes of another version are ones that say so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import ConfigError, GroupSilent, NodeStopped, SpindleError, TopicLimit, WireError
from spindle.group.levels import Level
from spindle.group.topics import EFFECT_SAMPLE, NAME_BYTES_MAX, TOPICS_MAX, TopicSpec
from spindle.group.types import TYPE_BYTES_MAX, TYPES_MAX, key_of
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.restart import giving
from spindle.topics.types import Types
from tests.spindle.node.test_node import Group, take, until, with_group, write
from tests.spindle.ports import reader_of, writer_of

SPEC = TopicSpec("t", level=Level.VOLATILE, size_max=2000)
LOGGED = TopicSpec("t", level=Level.LOGGED, size_max=2000)


@pytest.fixture(autouse=True, params=["auto", "tcp"])
def fabric(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "fabric", request.param)


class Died(SpindleError):
    """A node of this test was made to fail."""


async def a_member(node: Node) -> None:
    await node.open_reader("t", keep_all=False, from_history=False)


@contextlib.contextmanager
def deaf(node: Node, *kinds: str) -> Iterator[list[Any]]:
    """What others say of these kinds waits, until the end of the block; yields what waits."""
    original, waiting = Types.take, []

    def take_later(self: Types, life: Any, message: pb.PeerMessage) -> None:
        if self is node._changes.topics.types and message.WhichOneof("body") in kinds:
            waiting.append((life, message))
        else:
            original(self, life, message)

    with patch.object(Types, "take", take_later):
        yield waiting
    for life, message in waiting:
        original(node._changes.topics.types, life, message)


@with_group
async def test_every_member_knows_the_type_before_the_writer_is_open(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    for node in nodes[1:]:
        await a_member(node)
    with deaf(nodes[1], "type_held") as waiting:
        opening = asyncio.ensure_future(nodes[0].open_writer("t", type_=b"A"))
        await until(lambda: waiting and nodes[2].types("t") == (b"A",), "what it says")
        await asyncio.sleep(0.05)
        assert not opening.done() and nodes[1].types("t") == ()
    await opening
    assert [node.types("t") for node in nodes] == [(b"A",)] * 3
    await nodes[0].open_writer("t", type_=b"A")  # known already
    await nodes[2].open_writer("t", type_=b"B")
    assert [set(node.types("t")) for node in nodes] == [{b"A", b"B"}] * 3


@with_group
async def test_a_late_joiner_has_the_types_of_writers_whose_node_has_died(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    for said in (b"A", b"B"):
        await write(writer_of(nodes[0], await nodes[0].open_writer("t", type_=said)), said)
    await take(reader_of(nodes[1], await nodes[1].open_reader("t", keep_all=True, from_history=True)), 2)
    nodes[0].fail(Died("on purpose"))
    await until(lambda: len(nodes[1].view().node_ids) == 2, "the view without it")
    late = await nodes[2].open_reader("t", keep_all=True, from_history=True)
    assert late.types == (b"A", b"B") == nodes[2].types("t")
    assert await take(reader_of(nodes[2], late), 2) == [b"A", b"B"]
    await nodes[0].stop()


@with_group
async def test_types_come_before_the_first_message_of_a_history(group: Group) -> None:
    """Also in small chunks, of which there are many."""
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    said = [b"%d " % number + bytes(10_000) for number in range(20)]
    writers = [await nodes[0].open_writer("t", type_=one) for one in said]
    for port in writers:
        await write(writer_of(nodes[0], port), b"sample")
    seen: list[tuple[int, int]] = []
    original = giving.Giving._chunks

    async def looked_at(self: giving.Giving, node_id: int, request: pb.HistoryRequest) -> Any:
        async for chunk in original(self, node_id, request):
            seen.append((len(chunk.types), len(chunk.messages)))
            yield chunk

    with patch.object(giving, "CHUNK_BYTES", 30_000), patch.object(giving.Giving, "_chunks", looked_at):
        late = await nodes[1].open_reader("t", keep_all=True, from_history=True)
    assert list(late.types) == said
    types = [count for count, messages in seen if not messages]
    assert sum(types) == 20 and max(types) == 2 and seen[: len(types)] == [(count, 0) for count in types]


@with_group
async def test_an_answer_from_a_view_that_the_writers_node_has_not_installed_does_not_count_yet(group: Group) -> None:
    """Goal: nobody who became a member with that view is left out. Its guide may have answered it before it heard of
    the type, and the writer's samples come to it live."""
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    with deaf(nodes[0], "type_known") as waiting:
        opening = asyncio.ensure_future(nodes[0].open_writer("t", type_=b"A"))
        await until(lambda: waiting, "the answer")
        waiting[0][1].type_known.view_id = nodes[0].view().view_id + 1
    await asyncio.sleep(0.05)
    assert not opening.done()
    await nodes[2].declare_topic(TopicSpec("other", level=Level.VOLATILE))
    await nodes[2].open_writer("other")  # another view
    await opening


@with_group
async def test_who_becomes_a_member_meanwhile_is_waited_for(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    with deaf(nodes[1], "type_held") as of_one, deaf(nodes[2], "type_held"):
        opening = asyncio.ensure_future(nodes[0].open_writer("t", type_=b"A"))
        await until(lambda: of_one, "what it says")
        await a_member(nodes[2])
    await opening
    assert [node.types("t") for node in nodes] == [(b"A",)] * 3


@with_group
async def test_a_member_that_dies_or_leaves_is_not_waited_for(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    for node in nodes[1:]:
        await a_member(node)
    with deaf(nodes[1], "type_held") as waiting, deaf(nodes[2], "type_held"):
        opening = asyncio.ensure_future(nodes[0].open_writer("t", type_=b"A"))
        await until(lambda: waiting, "what it says")
        await nodes[1].stop()
        nodes[2].fail(Died("on purpose"))
        with contextlib.suppress(SpindleError):
            await opening
    await nodes[2].stop()


@pytest.mark.slow
@with_group
async def test_a_member_that_says_nothing_ends_the_opening_and_nothing_is_left(group: Group) -> None:
    nodes = [await group.start(open_timeout_s=0.5) for _ in range(2)]
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    with deaf(nodes[1], "type_held"):
        with pytest.raises(GroupSilent, match=r"topic 't': not every member has said within 0\.5 s that it keeps"):
            await nodes[0].open_writer("t", type_=b"A")
    local = nodes[0]._changes.topics.local["t"]
    assert local.writers_wanted == 0 and local.types_written() == set()
    await nodes[0].open_writer("t", type_=b"A")
    assert nodes[1].types("t") == (b"A",)


@with_group
async def test_a_node_that_stops_ends_the_opening(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    with deaf(nodes[1], "type_held") as waiting:
        opening = asyncio.ensure_future(nodes[0].open_writer("t", type_=b"A"))
        await until(lambda: waiting, "what it says")
        nodes[0].fail(Died("on purpose"))
        with pytest.raises(NodeStopped):
            await opening
    await nodes[0].stop()


# --- how long they are kept

async def goes(nodes: list[Node], writer: Any, *left: bytes) -> None:
    """Only these are left when enough was written: a node may hear late that a type is over."""
    for _ in range(100):
        await write(writer, *[bytes(2000)] * 40)  # more than a log keeps
        if all(set(node.types("t")) == set(left) for node in nodes):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{[node.types('t') for node in nodes]} are kept, not {left}")


@with_group
async def test_a_type_goes_with_the_last_of_its_samples_in_the_history(group: Group) -> None:
    nodes = [await group.start(log_capacity=1 << 16, log_hot=1 << 12) for _ in range(3)]
    await nodes[0].declare_topic(SPEC)
    for node in nodes:
        await a_member(node)
    first = await nodes[0].open_writer("t", type_=b"A")
    await write(writer_of(nodes[0], first), b"sample")
    await nodes[0].close_writer(first)
    other = await nodes[0].open_writer("t", type_=b"B")
    writer = writer_of(nodes[0], other)
    await write(writer, *[b"B"] * 3)
    await asyncio.sleep(0.1)
    assert [set(node.types("t")) for node in nodes] == [{b"A", b"B"}] * 3
    await goes(nodes, writer, b"B")
    nodes[0].fail(Died("on purpose"))
    await nodes[0].stop()
    await until(lambda: len(nodes[1].view().node_ids) == 2, "the view without it")
    assert [node.types("t") for node in nodes[1:]] == [(b"B",)] * 2
    port = await nodes[1].open_writer("t", type_=b"C")
    await goes(nodes[1:], writer_of(nodes[1], port), b"C")


@with_group
async def test_one_of_several_writers_that_closes_takes_nothing_along(group: Group) -> None:
    nodes = [await group.start(log_capacity=1 << 16, log_hot=1 << 12) for _ in range(2)]
    await nodes[0].declare_topic(SPEC)
    for node in nodes:
        await a_member(node)
    ports = [await node.open_writer("t", type_=b"A") for node in (nodes[0], nodes[0], nodes[1])]
    for port in ports[:2]:
        await nodes[0].close_writer(port)
    other = writer_of(nodes[1], await nodes[1].open_writer("t"))
    await write(other, *[bytes(2000)] * 100)
    await asyncio.sleep(0.1)
    assert [node.types("t") for node in nodes] == [(b"A",)] * 2
    await nodes[1].close_writer(ports[2])
    await goes(nodes, other)


@with_group
async def test_what_is_written_again_meanwhile_is_not_over(group: Group) -> None:
    """Method: something is on its way by a writer that may have spoken for the one that has gone."""
    nodes = [await group.start() for _ in range(2)]
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    first = await nodes[0].open_writer("t", type_=b"A")
    others = nodes[1]._changes.topics.types
    local = nodes[0]._changes.topics.local["t"]
    on_its_way = SimpleNamespace(inbox=SimpleNamespace(committed=1, acknowledged=0))
    local.writers.append(on_its_way)  # type: ignore[arg-type]
    await nodes[0].close_writer(first)
    await asyncio.sleep(0.05)
    assert others.written("t") == {key_of(b"A")}
    second = await nodes[0].open_writer("t", type_=b"A")
    on_its_way.inbox.acknowledged = 1
    await asyncio.sleep(0.3)
    assert others.written("t") == {key_of(b"A")}
    local.writers.remove(on_its_way)  # type: ignore[arg-type]
    await nodes[0].close_writer(second)
    await until(lambda: others.written("t") == set(), "it is over")


@with_group
async def test_what_is_kept_of_a_key_may_be_of_any_age(group: Group) -> None:
    nodes = [await group.start(log_capacity=1 << 16, log_hot=1 << 12) for _ in range(2)]
    spec = TopicSpec("t", level=Level.VOLATILE, size_max=2000, history_depth=1, history_bytes=1 << 20,
                     effects=bytes([EFFECT_SAMPLE, *[0] * 255]))
    await nodes[0].declare_topic(spec)
    for node in nodes:
        await a_member(node)
    port = await nodes[0].open_writer("t", type_=b"A")
    writer = writer_of(nodes[0], port)
    await asyncio.get_running_loop().run_in_executor(None, lambda: writer.write(b"A", timeout_s=10.0, key=1))
    await nodes[0].close_writer(port)
    other = writer_of(nodes[0], await nodes[0].open_writer("t"))
    await asyncio.get_running_loop().run_in_executor(
        None, lambda: [other.write(bytes(2000), timeout_s=10.0, key=2) for _ in range(200)])
    await asyncio.sleep(0.1)
    assert nodes[1].status()["topics"][0]["oldest_index"] > 1
    assert [node.types("t") for node in nodes] == [(b"A",)] * 2


@with_group
async def test_nothing_is_said_of_topics_that_keep_nothing(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t", level=Level.ATOMIC))
    await a_member(nodes[1])
    with deaf(nodes[1], "type_held") as waiting:
        await nodes[0].open_writer("t", type_=b"A")
        assert not waiting
    assert nodes[0].types("t") == nodes[1].types("t") == nodes[1].types("unknown") == ()


# --- limits

@with_group
async def test_more_types_than_a_topic_takes_are_refused_with_the_limit(group: Group) -> None:
    """Method: a member has heard of as many by others."""
    nodes = [await group.start() for _ in range(2)]
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    await nodes[0].open_writer("t")
    for number in range(TYPES_MAX):
        nodes[1]._changes.topics.types.take((9, 9), pb.PeerMessage(
            type_held=pb.TypeHeld(topic="t", type=b"%d" % number, number=number)))
    with pytest.raises(TopicLimit, match=f"node 2: topic 't' is written with {TYPES_MAX} types"):
        await nodes[0].open_writer("t", type_=b"A")
    assert nodes[1]._changes.topics.types.written("t") == {key_of(b"%d" % number) for number in range(TYPES_MAX)}
    assert nodes[0]._changes.topics.types.written("t") == set()
    assert nodes[0]._changes.topics.local["t"].writers_wanted == 1
    over = pb.TypeOver(topic="t", key=key_of(b"7"))
    nodes[1]._changes.topics.types.take((9, 9), pb.PeerMessage(type_over=over))
    await nodes[0].open_writer("t", type_=b"A")
    assert len(nodes[1].types("t")) == TYPES_MAX and b"A" in nodes[1].types("t")


@with_group
async def test_of_types_that_nobody_writes_the_oldest_make_room(group: Group) -> None:
    nodes = [await group.start() for _ in range(2)]
    await nodes[0].declare_topic(SPEC)
    await a_member(nodes[1])
    for number in range(TYPES_MAX + 2):
        port = await nodes[0].open_writer("t", type_=b"%d" % number)
        if number:
            await write(writer_of(nodes[0], port), b"sample")
            await nodes[0].close_writer(port)
    wanted = [b"%d" % number for number in (0, *range(3, TYPES_MAX + 2))]
    assert [list(node.types("t")) for node in nodes] == [wanted] * 2
    late = await (await group.start()).open_reader("t", keep_all=True, from_history=True)
    assert list(late.types) == wanted


@with_group
async def test_what_no_type_can_be_is_refused_at_the_edges(group: Group) -> None:
    nodes = [await group.start() for _ in range(2)]
    await nodes[0].declare_topic(SPEC)
    with pytest.raises(ConfigError, match=f"1 to {TYPE_BYTES_MAX} bytes, not by {TYPE_BYTES_MAX + 1}"):
        await nodes[0].open_writer("t", type_=bytes(TYPE_BYTES_MAX + 1))
    types = nodes[0]._changes.topics.types

    def hears(topic: str, said: bytes) -> None:
        types.take((2, 7), pb.PeerMessage(type_held=pb.TypeHeld(topic=topic, type=said, number=1)))

    for topic, said in [("t", b""), ("t", bytes(TYPE_BYTES_MAX + 1)), ("x" * (NAME_BYTES_MAX + 1), b"A")]:
        with pytest.raises(WireError):
            hears(topic, said)
    for number in range(TOPICS_MAX - 1):
        hears(f"{number}", b"A")
    with pytest.raises(WireError, match=f"more than {TOPICS_MAX} topics"):
        hears("one more", b"A")
    types.take((2, 7), pb.PeerMessage(type_over=pb.TypeOver(topic="1", key=key_of(b"A"))))
    hears("one more", b"A")  # where one has gone
    for number in range(2 * TYPES_MAX):
        hears("0", b"%d" % number)
    assert len(types.written("0")) == TYPES_MAX
    types.take((2, 7), pb.PeerMessage(type_over=pb.TypeOver(topic="0", key=b"nonsense")))
    types.take((2, 7), pb.PeerMessage(type_over=pb.TypeOver(topic="0", key=key_of(b"A"))))
    types.take((9, 9), pb.PeerMessage(type_over=pb.TypeOver(topic="0", key=key_of(b"A"))))
    types.take((2, 7), pb.PeerMessage(type_known=pb.TypeKnown(topic="0", key=b"", number=3)))
    assert len(types.written("0")) == TYPES_MAX - 1


@with_group
async def test_a_history_with_what_no_type_can_be_is_refused(group: Group) -> None:
    """The member that gives it is asked for nothing more; of a volatile topic the rest is what comes live."""
    nodes = await group.three()
    await nodes[0].declare_topic(SPEC)
    await write(writer_of(nodes[0], await nodes[0].open_writer("t")), b"sample")
    with patch.object(giving, "_of_types", lambda _: iter([pb.HistoryChunk(types=[bytes(TYPE_BYTES_MAX + 1)])])):
        late = await nodes[1].open_reader("t", keep_all=True, from_history=True)
    assert late.types == () and reader_of(nodes[1], late).take(1) == []


# --- neighbouring versions

@with_group
async def test_nodes_that_keep_no_types_are_members_all_the_same(group: Group) -> None:
    """Goal: a node of an earlier version is not waited for, and passes over what it doesn't know. Method: one that says
    none of its abilities, and is deaf to what it would not know."""
    old = await group.start()
    old._peers.abilities = 0
    new = [await group.start() for _ in range(2)]
    await old.declare_topic(SPEC)
    await a_member(old)
    with deaf(old, "type_held", "type_known", "type_over"):
        for node in new:
            port = await node.open_writer("t", type_=b"A")
            await write(writer_of(node, port), b"sample")
        assert new[0].types("t") == new[1].types("t") == (b"A",) and old.types("t") == ()
        await new[1].close_writer(port)
        again = await group.start()
        late = await again.open_reader("t", keep_all=True, from_history=True)
        assert late.types == (b"A",)  # by the writer that is left: the node that gives the history knows none
        assert await take(reader_of(again, late), 2) == [b"sample"] * 2


# --- logged topics

@with_group
async def test_the_types_of_a_logged_topic_outlive_all_nodes(group: Group) -> None:
    directory = group.runtime_dir / "journals"
    nodes = [await group.start(node_id=number, journal_dir=directory) for number in (1, 2)]
    await nodes[0].declare_topic(LOGGED)
    await a_member(nodes[1])
    for said in (b"A", b"B"):
        port = await nodes[0].open_writer("t", type_=said)
        writer = writer_of(nodes[0], port)
        await write(writer, said)
        await asyncio.get_running_loop().run_in_executor(None, lambda one=writer: one.wait_acknowledged(10, True))
        await nodes[0].close_writer(port)
    for node in nodes:
        node.fail(Died("on purpose"))
        await node.stop()
    again = [await group.start(node_id=number, journal_dir=directory) for number in (1, 2)]
    await again[0].declare_topic(LOGGED)
    ports = await asyncio.gather(*(node.open_reader("t", keep_all=True, from_history=True) for node in again))
    for node, port in zip(again, ports, strict=True):
        assert port.types == (b"A", b"B")
        assert await take(reader_of(node, port), 2) == [b"A", b"B"]
    late = await group.start(node_id=3, journal_dir=directory)
    port = await late.open_reader("t", keep_all=True, from_history=True)
    assert port.types == (b"A", b"B") and await take(reader_of(late, port), 2) == [b"A", b"B"]


@with_group
async def test_the_restarting_node_gets_them_from_the_source_of_the_journal(group: Group) -> None:
    """Method: the node that restarts the topic has only its beginning on disk, from before the type was known."""
    directory = group.runtime_dir / "journals"
    nodes = [await group.start(node_id=number, journal_dir=directory) for number in (1, 2)]
    await nodes[1].declare_topic(LOGGED)
    first = await nodes[0].open_reader("t", keep_all=False, from_history=False)
    plain = await nodes[1].open_writer("t")
    await write(writer_of(nodes[1], plain), b"plain")
    await until(lambda: plain.inbox.acknowledged == 1, "its delivery")
    await nodes[0].close_reader(first)
    await until(lambda: nodes[0]._changes.topics.questions.holders("t")[1] == (2,), "it has left the topic")
    port = await nodes[1].open_writer("t", type_=b"A")
    writer = writer_of(nodes[1], port)
    await write(writer, b"A")
    await asyncio.get_running_loop().run_in_executor(None, lambda: writer.wait_acknowledged(10, True))
    for node in nodes:
        await node.stop()
    again = [await group.start(node_id=number, journal_dir=directory) for number in (1, 2)]
    await again[0].declare_topic(LOGGED)
    port_again = await again[0].open_reader("t", keep_all=True, from_history=True)
    assert port_again.types == (b"A",)
    assert await take(reader_of(again[0], port_again), 2) == [b"plain", b"A"]


def test_what_the_journal_lacks_on_disk_holds_the_type(tmp_path: Path) -> None:
    """Not before all of its samples are on disk does a type go: the file that gets them must say it."""
    from spindle.topics.local_topic import LocalTopic

    class Journal:
        durable = 5

    class Log:
        delivered, oldest_index = 20, 20

    class Task:
        def done(self) -> bool:
            return True

        def cancelled(self) -> bool:
            return False

        def exception(self) -> None:
            return None

        def result(self) -> Journal:
            return Journal()

    from spindle.group.types import KeptTypes

    local = LocalTopic.__new__(LocalTopic)
    local.spec, local.log, local.journal_task = LOGGED, Log(), Task()  # type: ignore[assignment]
    local._history_of, local._restoring, local._history, local._backlog = None, False, [], []  # type: ignore[assignment]
    local.types, local.types_written = KeptTypes("t"), set
    local.types.keep(b"A", set())
    local.look_at_types()
    assert list(local.types.said.values()) == [b"A"]
    Journal.durable = 20
    local.look_at_types()
    assert not local.types.said
