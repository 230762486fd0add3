"""Goal: what a node promises its applications: topics, ports, history, journals, endpoints, clean ends, clear errors.

Method: several nodes on one event loop in this process, over the real engine and sockets; the applications' ends of the
ports are made here (ports.py). A write may wait for a view change, so it never runs on the loop itself.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import (
    ConfigError,
    JoinFailed,
    JournalError,
    NodeIdTaken,
    NodeStopped,
    NoMajority,
    TopicMismatch,
    TopicUnknown,
)
from spindle.group.endpoints import Endpoint
from spindle.group.events import ENDPOINT_ADDED, ENDPOINT_REMOVED, GONE, TOPIC_ADDED, VIEW, Event
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from tests.spindle.ports import reader_of, writer_of


class Group:
    """Nodes of one domain in this process. All are stopped at the end."""

    fabric = "auto"

    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir
        self.nodes: list[Node] = []

    async def start(self, **config: Any) -> Node:
        usual = {"runtime_dir": self.runtime_dir, "join_timeout_s": 5.0, "fabric": self.fabric}
        node = Node(NodeConfig(**{**usual, **config}))
        await node.start()
        self.nodes.append(node)
        return node

    async def three(self, **config: Any) -> list[Node]:
        return [await self.start(**config) for _ in range(3)]


@pytest.fixture(autouse=True, params=["auto", "tcp"])
def fabric(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: with rows that are mapped, and with rows that are sent."""
    monkeypatch.setattr(Group, "fabric", request.param)


def with_group(test: Callable[[Group], Awaitable[None]]) -> Callable[[Path], None]:
    """Runs an async test on a loop of its own, with a bound, and stops its nodes."""

    @functools.wraps(test)
    def run(runtime_dir: Path) -> None:
        async def body() -> None:
            group = Group(runtime_dir)
            try:
                await asyncio.wait_for(test(group), 30)
            finally:
                for node in group.nodes:
                    await node.stop()

        asyncio.run(body())

    del run.__wrapped__  # type: ignore[attr-defined]  # or pytest would look for a fixture `group`
    return run


async def until(condition: Callable[[], object], what: str, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.002)


async def write(writer: Any, *messages: bytes, timeout_s: float = 10.0) -> None:
    """Writes from another thread: the loop must go on."""
    await asyncio.get_running_loop().run_in_executor(
        None, lambda: [writer.write(message, timeout_s=timeout_s) for message in messages])


async def take(reader: Any, count: int) -> list[bytes]:
    got: list[bytes] = []
    await until(lambda: got.extend(reader.take(count - len(got))) or len(got) >= count, f"{count} messages")
    return got


@with_group
async def test_first_node_is_a_member_at_once_and_leaves_nothing(group: Group) -> None:
    started = time.monotonic()
    node = await group.start()
    assert time.monotonic() - started < 1.0
    assert node.node_id == 1 and node.view().node_ids == (1,)
    await node.stop()
    await node.wait_stopped()
    assert os.listdir(node.config.domain_dir) == ["bootstrap.lock"]


@with_group
async def test_lowest_free_id_is_taken(group: Group) -> None:
    nodes = await group.three()
    await nodes[1].stop()
    again = await group.start()
    assert [node.node_id for node in nodes] == [1, 2, 3] and again.node_id == 2
    assert again.view().node_ids == (1, 3, 2)


@with_group
async def test_duplicate_id_is_refused_with_the_pid(group: Group) -> None:
    await group.start(node_id=7)
    with pytest.raises(NodeIdTaken, match=rf"node id 7 is taken by pid {os.getpid()}.*; choose another \[node\] id"):
        await group.start(node_id=7)
    await group.start(node_id=8)


@with_group
async def test_domains_do_not_see_each_other(group: Group) -> None:
    one, other = await group.start(domain_id=1), await group.start(domain_id=2)
    assert one.view().node_ids == other.view().node_ids == (1,)


@with_group
async def test_same_declaration_is_idempotent_another_is_a_mismatch(group: Group) -> None:
    nodes = await group.three()
    spec = TopicSpec("t", type_name="A", type_hash=b"x", size_max=100)
    infos = [await node.declare_topic(spec) for node in nodes]
    assert {info.topic_id for info in infos} == {1} and infos[0].spec.window > 0
    for other in (TopicSpec("t", type_name="B", type_hash=b"x", size_max=100),
                  TopicSpec("t", type_name="A", type_hash=b"y", size_max=100),
                  TopicSpec("t", type_name="A", type_hash=b"x", size_max=101),
                  TopicSpec("t", type_name="A", type_hash=b"x", size_max=100, level=Level.UNORDERED)):
        with pytest.raises(TopicMismatch, match="in the group, you want"):
            await nodes[2].declare_topic(other)


@with_group
async def test_declarations_at_once_have_one_winner(group: Group) -> None:
    nodes = await group.three()
    results = await asyncio.gather(
        *(node.declare_topic(TopicSpec("t", size_max=100 + number)) for number, node in enumerate(nodes)),
        return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["TopicInfo", "TopicMismatch", "TopicMismatch"]


@with_group
async def test_undeclared_topic_and_bad_start_index(group: Group) -> None:
    node = await group.start()
    with pytest.raises(TopicUnknown, match="not declared"):
        await node.open_writer("nothing")
    with pytest.raises(ConfigError, match="start index -2"):
        await node.open_reader("nothing", keep_all=True, from_history=False, start_index=-2)


@pytest.mark.parametrize("level", list(Level))
def test_messages_pass_in_order_at_every_level(runtime_dir: Path, tmp_path: Path, level: Level) -> None:
    @with_group
    async def body(group: Group) -> None:
        nodes = await group.three(journal_dir=tmp_path)
        await nodes[0].declare_topic(TopicSpec("t", level=level, size_max=64))
        readers = [reader_of(node, await node.open_reader("t", keep_all=True, from_history=False)) for node in nodes]
        writers = [writer_of(node, await node.open_writer("t")) for node in nodes]
        for k in range(100):
            for number, writer in enumerate(writers):
                await write(writer, b"%d %d" % (number, k))
        sequences = [await take(reader, 300) for reader in readers]
        if level.ordered:
            assert sequences[0] == sequences[1] == sequences[2]
        for sequence in sequences:
            for number in range(3):
                assert [one for one in sequence if one.startswith(b"%d " % number)] == [
                    b"%d %d" % (number, k) for k in range(100)]
        if level is Level.LOGGED:
            # The other members hear of what is on disk through the persisted numbers.
            await until(lambda: nodes[0].status()["topics"][0]["journal"]["durable_index"] == 300, "300 on disk")
            await until(lambda: all(writer.wait_acknowledged(0, persisted=True) for writer in writers), "all persisted")

    body(runtime_dir)


@with_group
async def test_readers_and_writers_come_and_go_as_view_changes(group: Group) -> None:
    """The first and the last reader or writer on a node change the view; those in between don't."""
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t"))
    port = await nodes[1].open_reader("t", keep_all=False, from_history=False)
    view_id = nodes[1].view().view_id
    second = await nodes[1].open_reader("t", keep_all=False, from_history=False)
    assert nodes[1].view().view_id == view_id
    assert nodes[1].topics()[0].members == (2,) and nodes[1].topics()[0].senders == ()
    writer = await nodes[1].open_writer("t")
    assert nodes[1].topics()[0].senders == (2,)
    await nodes[1].close_writer(writer)
    await until(lambda: nodes[0].topics()[0].senders == (), "no sender")
    await nodes[1].close_reader(port)
    await nodes[1].close_reader(port)
    assert nodes[1].topics()[0].members == (2,)
    await nodes[1].close_reader(second)
    await until(lambda: nodes[2].topics()[0].members == (), "no member")
    assert nodes[0].topics()[0].spec.name == "t"


@with_group
async def test_closing_a_writer_sends_what_it_had_committed(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t", size_max=64))
    reader = reader_of(nodes[2], await nodes[2].open_reader("t", keep_all=True, from_history=False))
    port = await nodes[0].open_writer("t", slots=64)
    writer = writer_of(nodes[0], port)
    await write(writer, *(b"%d" % k for k in range(64)))
    await nodes[0].close_writer(port)
    assert await take(reader, 64) == [b"%d" % k for k in range(64)]
    await until(lambda: nodes[2].topics()[0].senders == (), "no sender")


@with_group
async def test_history_comes_before_live_messages_and_once(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t", level=Level.VOLATILE, size_max=2000))
    writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
    sent = [b"%d " % k + bytes(k) for k in range(1500)]
    await write(writer, *sent[:1000])
    opening = asyncio.ensure_future(nodes[1].open_reader("t", keep_all=True, from_history=True))
    await write(writer, *sent[1000:])
    reader = reader_of(nodes[1], await opening)
    assert await take(reader, 1500) == sent
    # A third one gets it from either, and the history of a topic outlives its first donor.
    third = reader_of(nodes[2], await nodes[2].open_reader("t", keep_all=True, from_history=True))
    assert await take(third, 1500) == sent
    assert not nodes[2].status()["topics"][0]["waits_for_history"]


@pytest.mark.slow
@with_group
async def test_a_reader_that_never_takes_does_not_hold_up_view_changes(group: Group) -> None:
    """A keep-all reader blocks delivery and then the writers; joins and leaves go on, and when it reads at last it has
    everything in order."""
    nodes = await group.three(log_capacity=64 << 10, log_hot=64 << 10, default_size_max=1000)
    await nodes[0].declare_topic(TopicSpec("t", size_max=1000, window=16))
    port = await nodes[1].open_reader("t", keep_all=True, from_history=False)
    writer = writer_of(nodes[0], await nodes[0].open_writer("t", slots=16))
    other = reader_of(nodes[2], await nodes[2].open_reader("t", keep_all=True, from_history=False))
    sent = 0
    while True:
        try:
            await write(writer, b"%06d" % sent + bytes(900), timeout_s=0.3)
            sent += 1
            other.take(100)
        except TimeoutError:
            break
    assert sent > 60
    for _ in range(3):
        late = await asyncio.wait_for(group.start(), 5)
        assert late.view().node_ids[-1] == late.node_id
        await asyncio.wait_for(late.stop(), 5)
    reader = reader_of(nodes[1], port)
    got = [int(message[:6]) for message in await take(reader, sent)]
    assert got == list(range(sent))
    await write(writer, b"%06d" % sent)
    assert int((await take(reader, 1))[0][:6]) == sent


@with_group
async def test_logged_topic_needs_a_journal_directory(group: Group) -> None:
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t", level=Level.LOGGED))
    with pytest.raises(JournalError, match=r"\[journal\] dir"):
        await nodes[0].open_writer("t")
    assert nodes[0].topics()[0].members == ()


def test_unwritable_journal_directory_is_told_to_who_opens(runtime_dir: Path, tmp_path: Path) -> None:
    @with_group
    async def body(group: Group) -> None:
        (tmp_path / "file").write_text("in the way")
        node = await group.start(journal_dir=tmp_path / "file" / "journal")
        await node.declare_topic(TopicSpec("t", level=Level.LOGGED))
        with pytest.raises(JournalError, match="cannot keep a journal"):
            await node.open_reader("t", keep_all=True, from_history=False)
        assert node.topics()[0].members == ()

    body(runtime_dir)


def test_logged_topic_can_be_left_and_entered_again(runtime_dir: Path, tmp_path: Path) -> None:
    """The journal of the first membership is closed before that of the second takes it up."""

    @with_group
    async def body(group: Group) -> None:
        nodes = [await group.start(journal_dir=tmp_path) for _ in range(2)]
        await nodes[0].declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=64))
        writer = writer_of(nodes[0], await nodes[0].open_writer("t"))
        for round_number in range(3):
            port = await nodes[1].open_reader("t", keep_all=True, from_history=True)
            await write(writer, b"%d" % round_number)
            assert await take(reader_of(nodes[1], port), round_number + 1) == [
                b"%d" % k for k in range(round_number + 1)]
            await nodes[1].close_reader(port)
            await until(lambda: 2 not in nodes[0].topics()[0].members, "node 2 out of the topic")

    body(runtime_dir)


@with_group
async def test_endpoints_are_known_everywhere_and_go_with_their_node(group: Group) -> None:
    nodes = [await group.start(), await group.start()]
    events: list[Event] = []
    nodes[1].add_listener(events.append)
    mine = Endpoint(b"1" * 16, 1, True, "t", b"qos", "app", 5)
    nodes[0].announce_endpoint(mine)
    await until(lambda: nodes[1].endpoints("t") == [mine], "the endpoint at the other node")
    late = await group.start()
    await until(lambda: late.endpoints() == [mine], "the endpoint at a late node")
    nodes[0].withdraw_endpoint(mine.guid)
    await until(lambda: not late.endpoints(), "its withdrawal")
    nodes[0].announce_endpoint(mine)
    await until(lambda: late.endpoints() == [mine], "it again")
    await nodes[0].stop()
    await until(lambda: not late.endpoints(), "its end with the node")
    kinds = [event.kind for event in events]
    assert kinds.count(ENDPOINT_ADDED) == kinds.count(ENDPOINT_REMOVED) == 2 and VIEW in kinds


@with_group
async def test_listeners_hear_of_views_topics_and_the_end(group: Group) -> None:
    nodes = [await group.start(), await group.start()]
    events: list[Event] = []
    nodes[1].add_listener(events.append)
    await nodes[0].declare_topic(TopicSpec("t"))
    await until(lambda: any(event.kind == TOPIC_ADDED for event in events), "the topic")
    await nodes[1].stop()
    assert events[-1].kind == GONE and "node 2" in events[-1].text


@with_group
async def test_nothing_can_be_opened_after_the_end(group: Group) -> None:
    node = await group.start()
    await node.declare_topic(TopicSpec("t"))
    await node.stop()
    await node.stop()
    with pytest.raises(NodeStopped):
        await node.open_writer("t")


@with_group
async def test_a_member_that_fails_costs_the_others_nothing(group: Group) -> None:
    """Goal: the others go on without it, at once, and what they were about to do gets done. Method: one of three nodes
    fails in the middle of an opening of another; then the leader fails as well."""
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t"))
    opening = asyncio.ensure_future(nodes[1].open_writer("t"))
    nodes[2].fail(JournalError("the disk is full"))
    await opening
    await until(lambda: nodes[1].view().node_ids == (1, 2), "a view without node 3")
    with pytest.raises(JournalError):
        await nodes[2].wait_stopped()
    nodes[0].fail(JournalError("the disk is full"))
    await until(lambda: nodes[1].view().node_ids == (2,), "a view without node 1")
    reader = reader_of(nodes[1], await nodes[1].open_reader("t", keep_all=True, from_history=False))
    await write(writer_of(nodes[1], await opening), b"goes on")
    assert await take(reader, 1) == [b"goes on"]


@with_group
async def test_who_waits_is_told_when_the_node_fails(group: Group) -> None:
    """Goal: nobody hangs in a node that fails. Method: it fails in the middle of an opening."""
    nodes = await group.three()
    await nodes[0].declare_topic(TopicSpec("t"))
    opening = asyncio.ensure_future(nodes[1].open_writer("t"))
    await asyncio.sleep(0)
    nodes[1].fail(JournalError("the disk is full"))
    with pytest.raises(NodeStopped, match="the disk is full"):
        await opening
    with pytest.raises(NodeStopped, match="the disk is full"):
        await nodes[1].open_reader("t", keep_all=True, from_history=False)


@with_group
async def test_two_that_lose_touch_stop_as_neither_is_a_majority(group: Group) -> None:
    """Goal: never two groups: who can't know whether the other lives gives up in time. Method: two nodes of one process
    (so nobody sees a process end) whose connection breaks."""
    nodes = [await group.start(suspect_timeout_s=0.2) for _ in range(2)]
    nodes[0]._peers.connected[2].conn.close()
    for node in nodes:
        with pytest.raises(NoMajority, match="1 of 2 members"):
            await node.wait_stopped()


@pytest.mark.slow
@with_group
async def test_join_that_is_never_answered_fails_in_time(group: Group) -> None:
    """A process that listens under a node's name but doesn't serve: the newcomer says so instead of forming a second
    group."""
    import socket

    await (await group.start()).stop()
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(group.runtime_dir / "domain-0" / "node-1.sock"))
    sock.listen()
    with pytest.raises(JoinFailed, match="none let this one join"):
        await group.start(join_timeout_s=0.5)
    sock.close()
    assert (await group.start()).node_id == 1  # the leftover is removed by the next


@pytest.mark.slow
@with_group
async def test_topics_have_a_limit_that_is_named(group: Group) -> None:
    node = await group.start()
    results = await asyncio.gather(
        *(node.declare_topic(TopicSpec(f"t{number}")) for number in range(256)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, Exception)]
    assert len(refused) == 1 and "255 topics" in str(refused[0])
    assert len(node.topics()) == 255


@with_group
async def test_memory_of_a_topic_has_a_limit_that_is_named(group: Group) -> None:
    node = await group.start()
    with pytest.raises(Exception, match="smaller window or size_max"):
        await node.declare_topic(TopicSpec("t", size_max=64 << 20, window=65536))


@with_group
async def test_join_while_the_only_member_leaves(group: Group) -> None:
    """However the two meet, the newcomer ends up as the only member of a group, and at once."""
    for pause_s in (0, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.008):
        first = await group.start()
        leaving = asyncio.ensure_future(first.stop())
        await asyncio.sleep(pause_s)
        second = await asyncio.wait_for(group.start(), 5)
        await leaving
        await until(lambda second=second: second.view().node_ids == (second.node_id,), "alone")
        await second.stop()
