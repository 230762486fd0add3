"""Goal: whoever gives up what a logged topic is gets what he was told, whatever others do to the topic at that instant,
and however slow this node's disk is.
Method: nodes on one event loop; what comes at one time is made to."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import TopicInUse, TopicMismatch
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.files import OsFiles
from spindle.journal.live import JournalFile
from spindle.node.node import Node
from spindle.restart.questions import Questions
from tests.spindle.node.test_node import Group, take, until, with_group, write
from tests.spindle.ports import reader_of, writer_of
from tests.spindle.stand_in import StandInNode

OLD = TopicSpec("log", "old", level=Level.LOGGED, size_max=64)
NEW = TopicSpec("log", "new", level=Level.LOGGED, size_max=64)


async def written(node: Node, spec: TopicSpec, *payloads: bytes) -> None:
    """Declared, written, on the disk, and closed, as far as the group is concerned."""
    await node.declare_topic(spec)
    port = await node.open_writer("log")
    await write(writer_of(node, port), *payloads)
    await node.close_writer(port)
    await until(lambda: not node.topics()[0].members, "nobody has it open")


def test_a_journal_that_is_still_being_closed_is_waited_for(
        runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the topic which was given up, and the node has forgotten that topic by then."""
    close, retired, lock = JournalFile.close, Questions.retired, OsFiles.lock
    wanted = threading.Event()  # by whoever opens the topic anew
    refused = threading.Event()  # who has not waited

    def slowly(file: JournalFile) -> None:
        wanted.wait(10.0)
        refused.wait(1.0)
        close(file)

    def locks(files: OsFiles, path: Path) -> int | None:
        handle = lock(files, path)
        if handle is None:
            refused.set()
        return handle

    async def wants(questions: Questions, topic: str) -> None:
        if questions.node_id == 1 and declared:
            wanted.set()
        await retired(questions, topic)

    declared = []

    @with_group
    async def run(group: Group) -> None:
        one, two = [await group.start(journal_dir=tmp_path / str(n)) for n in (1, 2)]
        with monkeypatch.context() as patched:
            patched.setattr(JournalFile, "close", slowly)
            patched.setattr(Questions, "retired", wants)
            patched.setattr(OsFiles, "lock", locks)
            await written(one, OLD, b"old")
            await two.delete_topic("log", renews=True)
            declared.append(await one.declare_topic(NEW))
            reader = await one.open_reader("log", keep_all=True, from_history=True)
            wanted.set()
            await write(writer_of(one, await one.open_writer("log")), b"new")
            assert await take(reader_of(one, reader), 1) == [b"new"]
        assert list((tmp_path / "1").glob("*.aside")) and not refused.is_set()

    run(runtime_dir)


@pytest.mark.parametrize("late", [False, True])
def test_what_somebody_else_declares_at_that_instant_is_given_up_too(
        runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Only this node's journal knew of it when it was asked for. Method: the declaration gets in between, while the
    node looks at its disk, or on the way to the leader."""

    @with_group
    async def run(group: Group) -> None:
        one = await group.start(journal_dir=tmp_path, node_id=2)
        await written(one, OLD, b"old")
        await one.stop()
        leader, one = await group.start(node_id=1), await group.start(journal_dir=tmp_path, node_id=2)
        topics, agree = one._changes.topics, one._changes.topics._agree
        seen: list[Any] = []
        declaring: list[asyncio.Task[Any]] = []

        async def somebody_is_faster(*_: Any) -> bool:
            await leader.declare_topic(OLD)
            await until(lambda: one.topic("log") is not None, "node 2 knows")
            return True

        async def agrees(wish: Any, *rest: Any) -> None:
            if late and not seen:
                declaring.append(asyncio.ensure_future(leader.declare_topic(OLD)))
                await asyncio.sleep(0)
                assert one.topic("log") is None
            seen.append(wish)
            await agree(wish, *rest)

        if not late:
            monkeypatch.setattr("spindle.topics.table.keeps_any", somebody_is_faster)
        topics._agree = agrees  # type: ignore[method-assign]
        await one.delete_topic("log", renews=True)
        await asyncio.gather(*declaring)
        assert one.topic("log") is None and one.topics(awaited=True)[0].awaits_definition
        assert [wish.undeclared for wish in seen] == ([True, False] if late else [False])

    run(runtime_dir)


def test_to_delete_it_and_to_give_it_up_are_two_wishes(runtime_dir: Path, tmp_path: Path) -> None:
    """Of two programs at one node; the leader answers both, also if they come at once."""

    @with_group
    async def run(group: Group) -> None:
        one, two = [await group.start(journal_dir=tmp_path, open_timeout_s=5.0) for _ in range(2)]
        await written(two, OLD, b"old")
        answers = await asyncio.gather(two.delete_topic("log", renews=True), two.delete_topic("log"),
                                       return_exceptions=True)
        assert answers[0] is None and (answers[1] is None or isinstance(answers[1], TopicInUse))
        assert one.topic("log") is None or await until(lambda: one.topic("log") is None, "node 1 knows")

    run(runtime_dir)


def test_who_opens_what_was_given_up_is_told_and_declares_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    """An old program that goes on would else say what the topic is, and put its journals aside."""

    @with_group
    async def run(group: Group) -> None:
        one = await group.start(journal_dir=tmp_path)
        await written(one, OLD, b"old")
        await one.delete_topic("log", renews=True)
        with pytest.raises(TopicMismatch, match="has been given up"):
            await one.open_writer("log")
        assert one.status()["topics"][0]["waits_for"] == "its next declaration, which says what it is"

    run(runtime_dir)


def test_a_node_that_is_about_to_hear_of_it_declares_it_anew(runtime_dir: Path, tmp_path: Path) -> None:
    """It was given up at another node just before, and this one has messages of another type. Method: what the node
    knows is behind until it waits."""

    @with_group
    async def run(group: Group) -> None:
        one = await group.start(journal_dir=tmp_path)
        await written(one, OLD, b"old")
        await one.stop()
        one, two = await group.start(journal_dir=tmp_path), await group.start(journal_dir=tmp_path)
        topics, known = one._changes.topics, one._changes.topics.known
        waited: list[str] = []

        async def hears(name: str, anew: bool = False) -> Any:
            if not waited:
                await two._changes.topics._agree(*giving_up(two))
                await until(lambda: bool(one.topics(awaited=True)), "node 1 knows")
            waited.append(name)
            return await known(name, anew)

        topics.known = hears  # type: ignore[method-assign]
        await one.declare_topic(NEW)
        assert waited and one.topics()[0].spec.type_name == "new"

    run(runtime_dir)


def giving_up(node: Node) -> tuple[Any, str, Any]:
    """As of a node that has a journal of it."""
    from spindle.membership.messages import Deletion

    return Deletion("log", (0, 0), True, True), "log", lambda view: view.topic("log") is not None


def test_a_program_whose_node_is_about_to_hear_of_it_declares_it_anew(runtime_dir: Path) -> None:
    """What the node knows is what the topic was, which was given up, and declared anew by somebody else."""
    with StandInNode(runtime_dir / "node.sock") as node, node.session() as session:
        node.call(lambda: node.declare_topic(OLD))

        async def hears(name: str, anew: bool = False) -> None:
            if anew:
                node._topics[name] = dataclasses.replace(node._topics[name], spec=NEW.with_window())

        with pytest.raises(TopicMismatch, match="--redefine"):
            session.declare_topic(NEW)
        node.hears_of = hears  # type: ignore[method-assign]
        assert session.declare_topic(NEW).spec.type_name == "new"
