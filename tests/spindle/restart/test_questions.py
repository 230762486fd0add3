"""Goal: what nodes say to each other of a topic holds for the view that it is about, whoever installs that first.

Method: nodes on one event loop. A node is asked about a view that it has not installed yet; or an answer and the view
that ends it come in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.restart.chain import Standing, Summary
from spindle.restart.ledger import Ledger
from spindle.restart.questions import Questions
from tests.spindle.node.test_node import Group, until, with_group
from tests.spindle.restart.test_donors import Died, held_and_left


def asks(node: Node, view_id: int) -> None:
    """Node 2 asks the node about the topic as it is in that view."""
    query = pb.RestartQuery(topic="t", view_id=view_id)
    node._changes.topics.questions.take(2, pb.PeerMessage(restart_query=query))


def test_who_leaves_a_topic_with_a_view_does_not_say_that_it_has_it_there(runtime_dir: Path, tmp_path: Path) -> None:
    """Whoever asks may have installed that view before: it would wait for ever for messages of a node that has left."""

    @with_group
    async def run(group: Group) -> None:
        node = await group.start(journal_dir=tmp_path / "1")
        await group.start(journal_dir=tmp_path / "2")
        await node.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2000))
        reader = await node.open_reader("t", keep_all=False, from_history=False)
        said: list[tuple[int, bool]] = []

        def heard(_: int, message: pb.PeerMessage) -> bool:
            if message.HasField("restart_summary"):
                said.append((message.restart_summary.view_id, message.restart_summary.serving))
            return True

        with patch.object(node._changes.topics.questions, "_send", heard):
            now = node.view().view_id
            asks(node, now + 1)
            asks(node, now)
            await until(lambda: said, "the answer to the second question")
            assert said == [(now, True)]
            await node.close_reader(reader)
            await until(lambda: len(said) == 2, "the answer to the first")
            assert said[1] == (now + 1, False)

    run(runtime_dir)


def test_an_answer_of_the_view_before_is_not_acted_upon(runtime_dir: Path, tmp_path: Path) -> None:
    """Node 1 says that it has the topic, and is out of it with the next view; both are known when node 4 goes on."""

    @with_group
    async def run(group: Group) -> None:
        nodes = await held_and_left(group, tmp_path / "journal", 4)
        kept: list[Any] = []
        before = Questions._heard

        def keep(self: Questions, topic: str, node_id: int, view_id: int, summary: Summary) -> None:
            if self.node_id == 4 and not kept:
                kept.append((node_id, view_id))
            else:
                before(self, topic, node_id, view_id, summary)

        with patch.object(Questions, "_heard", keep):  # one answer is missing in this view
            opening = asyncio.ensure_future(nodes[3].open_reader("t", keep_all=True, from_history=True))
            await until(lambda: kept, "questions")
            catching_up = nodes[3]._changes.topics.local["t"].catching_up
            assert catching_up is not None
            changed = catching_up.view_changed

            def together(*arguments: Any) -> None:
                catching_up.heard(1, kept[0][1], Summary(serving=True))
                changed(*arguments)

            with patch.object(catching_up, "view_changed", together):
                await nodes[0].declare_topic(TopicSpec("another"))
                await nodes[0].open_writer("another")  # a view
                await asyncio.wait_for(opening, 10)

    run(runtime_dir)


def test_who_can_not_write_down_who_goes_on_tries_again(runtime_dir: Path, tmp_path: Path) -> None:
    """The disk of a node that is no member has no room for a while: the topic begins once it has."""
    tries = []
    write = Ledger._write

    def full_at_first(self: Ledger, standing: Standing) -> None:
        if self.path.parent == tmp_path / "1":
            tries.append(standing)
            if len(tries) < 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, standing)

    @with_group
    async def run(group: Group) -> None:
        await group.start(journal_dir=tmp_path / "1")
        node = await group.start(journal_dir=tmp_path / "2")
        await node.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2000))
        await asyncio.wait_for(node.open_reader("t", keep_all=False, from_history=False), 10)
        assert len(tries) >= 4

    with patch.object(Ledger, "_write", full_at_first):
        run(runtime_dir)


@pytest.mark.slow
def test_who_could_not_look_at_its_journal_is_asked_again(runtime_dir: Path, tmp_path: Path) -> None:
    """The disks of two of three holders fail for a moment, and no view changes meanwhile."""
    from spindle.restart import disk

    looks = []
    take_up = disk.take_up

    def failing_at_first(store: disk.Store, ledger: Ledger) -> disk.TakenUp:
        if store.node_id in (1, 2):
            looks.append(store.node_id)
            if len(looks) <= 4:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return take_up(store, ledger)

    @with_group
    async def run(group: Group) -> None:
        nodes = await held_and_left(group, tmp_path / "journal", 4)
        with patch.object(disk, "take_up", failing_at_first):
            await asyncio.wait_for(nodes[3].open_reader("t", keep_all=True, from_history=True), 10)
        assert len(looks) > 4

    run(runtime_dir)


def test_who_is_asked_while_it_stops_stops_all_the_same(runtime_dir: Path, tmp_path: Path) -> None:
    """Its peers are heard until they know: about a view that it never installs, and for a history."""

    @with_group
    async def run(group: Group) -> None:
        node = await group.start(journal_dir=tmp_path / "1")
        await group.start(journal_dir=tmp_path / "2")
        await node.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2000))
        await node.open_reader("t", keep_all=False, from_history=False)
        node.fail(Died("on purpose"))
        asks(node, node.view().view_id + 1)
        request = pb.HistoryRequest(number=1, topic="t", view_id=node.view().view_id + 1)
        node._changes.topics.questions.take(2, pb.PeerMessage(history_request=request))
        await asyncio.wait_for(node.stop(), 10)

    run(runtime_dir)
