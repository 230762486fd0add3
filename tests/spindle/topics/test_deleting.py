"""Goal: a topic that nobody has open can be deleted, and its number comes back, without anything of the old one ever
counting for the new one.

Method: nodes on one loop, and applications at daemons' sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import TopicInUse, TopicUnknown
from spindle.group.events import TOPIC_ADDED, TOPIC_REMOVED
from spindle.group.levels import Level
from spindle.group.topics import TOPICS_MAX, TopicSpec
from spindle.membership.machine import Machine, Phase
from spindle.membership.messages import Rejected, Role
from spindle.node.node import Node
from tests.spindle.node.test_node import take, write
from tests.spindle.nodes import run_with_nodes
from tests.spindle.ports import reader_of, writer_of


async def has(node: Node, name: str, there: bool) -> None:
    """Waits until the node knows of the topic, or not any more."""
    while (node.topic(name) is not None) is not there:
        await asyncio.sleep(0.001)


@pytest.mark.slow
def test_all_numbers_come_back(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        for turn in (1, 2):
            names = [f"topic-{turn}-{number}" for number in range(TOPICS_MAX)]
            await asyncio.gather(*(one.declare_topic(TopicSpec(name, window=1, size_max=64)) for name in names))
            assert len({topic.topic_id for topic in one.topics()}) == TOPICS_MAX
            await asyncio.gather(*(two.delete_topic(name) for name in names))
            assert not two.topics()
        await asyncio.wait_for(has(one, "topic-2-0", False), 10.0)

    run_with_nodes(runtime_dir, 2, body)


@pytest.mark.parametrize("level", [Level.ATOMIC, Level.VOLATILE])
def test_of_two_topics_with_one_name_and_number_neither_gets_the_other_s(runtime_dir: Path, level: Level) -> None:
    """Messages, kept ones too, and readers that go on from where they were."""

    async def body(one: Node, two: Node) -> None:
        events: list[tuple[str, str]] = []
        two.add_listener(lambda event: events.append((event.kind, event.topic.spec.name)) if event.topic else None)
        for n in range(TOPICS_MAX):  # the number that is free next is that of the topic that is deleted
            await one.declare_topic(TopicSpec(f"other-{n}" if n else "t", level=level, window=8, size_max=64))
        starts, numbers = [], []
        for turn in (b"old", b"new"):
            if turn == b"new":
                await two.declare_topic(TopicSpec("t", level=level, window=8, size_max=32))
            await asyncio.wait_for(has(one, "t", True), 10.0)
            topic = one.topic("t")
            assert topic is not None
            numbers.append(topic.topic_id)
            reader = await two.open_reader("t", keep_all=True, from_history=True, after=starts)
            writer = await one.open_writer("t")
            with pytest.raises(TopicInUse, match="close them first"):
                await two.delete_topic("t")
            await write(writer_of(one, writer), turn)
            assert await take(reader_of(two, reader), 1) == [turn]
            starts.append(reader.start)
            await one.close_writer(writer)
            await two.close_reader(reader)
            while any(node.topic("t").members for node in (one, two)):  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            await two.delete_topic("t")
            await asyncio.wait_for(has(one, "t", False), 10.0)
            with pytest.raises(TopicUnknown):
                await one.open_writer("t")
        assert numbers[0] == numbers[1]
        kinds = [kind for kind, name in events if name == "t"]
        assert kinds == [TOPIC_ADDED, TOPIC_REMOVED, TOPIC_ADDED, TOPIC_REMOVED]

    run_with_nodes(runtime_dir, 2, body)


def test_a_logged_topic_stays(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        await one.declare_topic(TopicSpec("kept", level=Level.LOGGED))
        with pytest.raises(TopicInUse, match="journals"):
            await one.delete_topic("kept")
        with pytest.raises(TopicUnknown):
            await one.delete_topic("nobody's")

    run_with_nodes(runtime_dir, 2, body)


def test_who_opens_and_who_deletes_at_one_time_are_told_who_was_first(runtime_dir: Path) -> None:
    """Either the topic is there, with its writer, or it is gone and nothing of the opening is left."""

    async def body(one: Node, two: Node) -> None:
        outcomes = set()
        for turn in range(40):
            await one.declare_topic(TopicSpec("t", window=8, size_max=64))
            await asyncio.wait_for(has(two, "t", True), 10.0)

            async def at(turns: int, what: Awaitable[object]) -> object:
                for _ in range(turns):
                    await asyncio.sleep(0)
                return await what

            late = (0, turn) if turn % 2 else (turn, 0)  # rounds of the loop
            opened, deleted = await asyncio.gather(
                at(late[0], two.open_writer("t")), at(late[1], one.delete_topic("t")), return_exceptions=True)
            outcomes.add((type(opened).__name__, type(deleted).__name__))
            if deleted is None:
                assert isinstance(opened, TopicUnknown)
            else:
                assert isinstance(deleted, TopicInUse) and not isinstance(opened, BaseException)
                await two.close_writer(opened)
                while one.topic("t").members:  # type: ignore[union-attr]
                    await asyncio.sleep(0.001)
                await one.delete_topic("t")
            await asyncio.wait_for(has(two, "t", False), 10.0)
            assert not two._changes.topics.local
            assert not any(role.member for role, _ in two._changes.topics._wished.values())
        assert outcomes == {("WriterPort", "TopicInUse"), ("TopicUnknown", "NoneType")}

    run_with_nodes(runtime_dir, 2, body)


def test_all_programs_of_a_node_that_delete_at_one_time_are_answered(runtime_dir: Path) -> None:
    """Those of the leader too, who refuses the first before the second one asks; and those who ask while a view
    changes, after which the leader knows only the newest wish of a node."""

    async def body(one: Node, two: Node) -> None:
        for name in ("used", "other"):
            await one.declare_topic(TopicSpec(name))
        writing = await one.open_writer("used")
        for node in (one, two):
            await asyncio.wait_for(has(node, "other", True), 10.0)
            for _ in range(5):
                refused = await asyncio.gather(*(node.delete_topic("used") for _ in range(3)), return_exceptions=True)
                assert [type(error) for error in refused] == [TopicInUse] * 3
                reader, *refused = await asyncio.gather(
                    node.open_reader("other", keep_all=True, from_history=False),
                    *(node.delete_topic("used") for _ in range(3)), return_exceptions=True)
                assert [type(error) for error in refused] == [TopicInUse] * 3
                await node.close_reader(reader)
            await node.declare_topic(TopicSpec("unused"))
            await asyncio.gather(*(node.delete_topic("unused") for _ in range(3)))
        await one.close_writer(writing)
        await two.delete_topic("used")

    run_with_nodes(runtime_dir, 2, body)


def test_who_asks_while_another_is_refused_at_one_time_is_answered_too(runtime_dir: Path) -> None:
    """The refusal is there, and whoever waited for it has not run yet. (Found by the simulator, which took until the
    eight seconds of the group's silence were over.)"""

    async def body(one: Node, two: Node) -> None:
        await one.declare_topic(TopicSpec("kept", level=Level.LOGGED))
        topics, late = two._changes.topics, []
        rejected = topics.rejected

        def hears(action: Rejected) -> None:
            rejected(action)
            if not late:
                late.append(asyncio.ensure_future(two.delete_topic("kept")))

        topics.rejected = hears  # type: ignore[method-assign]
        with pytest.raises(TopicInUse):
            await two.delete_topic("kept")
        with pytest.raises(TopicInUse):
            await late[0]

    run_with_nodes(runtime_dir, 2, body)


def test_what_is_declared_and_deleted_at_one_time_is_declared_again(runtime_dir: Path) -> None:
    """The group has agreed on the topic, and whoever declared it has not run yet. (Found by the simulator.)"""

    async def body(one: Node, two: Node) -> None:
        topics, seen = two._changes.topics, []
        until = topics._until

        async def deleted_meanwhile(name: str, *rest: Any) -> None:
            await until(name, *rest)
            if not seen:
                seen.append(name)
                await one.delete_topic(name)
                await asyncio.wait_for(has(two, name, False), 10.0)

        topics._until = deleted_meanwhile  # type: ignore[method-assign]
        await two.declare_topic(TopicSpec("t"))
        assert seen and two.topic("t") is not None

    run_with_nodes(runtime_dir, 2, body)


def test_an_opening_waits_until_the_role_in_the_deleted_topic_of_that_name_is_taken_back(runtime_dir: Path) -> None:
    """The leader took the wish for the deleted topic for one for that which was declared next. Method: what a node does
    when it hears of that, without the deletion: so the role is there that is about to be taken back."""

    async def body(one: Node, two: Node) -> None:
        await one.declare_topic(TopicSpec("t", level=Level.ATOMIC, window=8, size_max=64))
        await asyncio.wait_for(has(two, "t", True), 10.0)
        await two.open_reader("t", keep_all=True, from_history=False)
        table = two._changes.topics
        table._deleted.append(table.local.pop("t"))
        table._give_up_opening("t")
        assert table._wished["t"][0] == Role("t", False, False)  # openings know that it is to be taken back
        table._drive()
        while one._changes.topics._machine.phase is Phase.STABLE:  # until the leader has planned with it
            await asyncio.sleep(0)
        assert two.node_id in two.topic("t").members  # type: ignore[union-attr]
        answer, was_member = table._answer, []
        table._answer = lambda view: (was_member.append(two.node_id in view.topic("t").members), answer(view))[1]
        reader = await asyncio.wait_for(two.open_reader("t", keep_all=True, from_history=False), 10.0)
        assert was_member[0] is False and was_member[-1] is True  # it did not rely on the role that it had
        writer = await one.open_writer("t")
        await write(writer_of(one, writer), b"x")
        assert await asyncio.wait_for(take(reader_of(two, reader), 1), 10.0) == [b"x"]

    run_with_nodes(runtime_dir, 2, body)


def test_a_node_in_a_minority_calls_no_topic_unknown(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may have gone on and declared it. Method: the node takes itself for one of a minority, until it has
    the topic."""

    async def body(one: Node, two: Node) -> None:
        alone = True
        its = two._changes.topics._machine
        monkeypatch.setattr(Machine, "in_minority", property(lambda machine: alone and machine is its))
        opening = asyncio.ensure_future(two.open_writer("t"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not opening.done()
        await one.declare_topic(TopicSpec("t"))
        alone = False
        await asyncio.wait_for(opening, 10.0)

    run_with_nodes(runtime_dir, 2, body)
