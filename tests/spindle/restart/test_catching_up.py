"""Goal: a topic becomes whole on a node, or whoever opens it there is told why it can't; whatever interrupts a node
that takes up its journal, nothing of the journal's end is left out of the log.

Method: nodes on one event loop, of which the disk of one fails where the test says. And the production class with a log
and a journal that are lists; it is cancelled at every place, and begun again.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import JournalError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.files import OsFiles
from spindle.journal.names import SUFFIX
from spindle.restart import catching_up
from spindle.restart.catching_up import CatchingUp
from tests.spindle.node.test_node import Group, take, until, with_group, write
from tests.spindle.ports import reader_of, writer_of

PARTS = 5
SENT = [b"%d " % number + bytes(2000) for number in range(200)]  # more than a log of the second node takes


class Local:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.full = 0
        self.spec = TopicSpec("t")

    async def journal(self) -> None:
        await asyncio.sleep(0)

    def append_history(self, messages: list[Any]) -> None:
        """However often it is begun again, one part at most waits for room (seed 217198)."""
        assert not self.full, "more is taken while there is no room for what is here"
        self.log += messages
        self.full = 3

    @property
    def history_waiting(self) -> int:
        """There is no room for a few looks."""
        self.full = max(0, self.full - 1)
        return catching_up.WAITING_MAX + 1 if self.full else 0


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_who_is_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(catching_up, "plain", lambda message: message)
    monkeypatch.setattr(catching_up, "TAIL_AT_ONCE", 3)
    monkeypatch.setattr(catching_up, "ROOM_POLL_S", 0)

    async def scenario() -> list[Any]:
        one = CatchingUp.__new__(CatchingUp)
        one.local, one.progress = Local(), 0  # type: ignore[assignment]
        one._tail, one._reading = iter(range(3 * PARTS)), None  # type: ignore[assignment]
        for attempt in itertools.count(1):
            task = asyncio.ensure_future(one._append_tail())
            for _ in range(attempt * turns):
                await asyncio.sleep(0)
            if task.done() or attempt > 10:
                break
            task.cancel()
            await asyncio.wait([task])
        await one._append_tail() if task.done() else await task
        return one.local.log  # type: ignore[attr-defined, no-any-return]

    assert asyncio.run(scenario()) == list(range(3 * PARTS))


def test_a_journal_that_can_not_begin_ends_the_opening(runtime_dir: Path, tmp_path: Path) -> None:
    """Nobody reads the log then, and the history would wait for room in it for ever."""
    full = [True]
    create = OsFiles.create

    def no_room(self: OsFiles, path: Path) -> int:
        if full[0] and path.parent == tmp_path / "2" and SUFFIX in path.name:
            time.sleep(0.2)  # a history that doesn't wait for the journal has filled the log by then
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(self, path)

    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "1")
        second = await group.start(journal_dir=tmp_path / "2", log_capacity=1 << 16, log_hot=1 << 14)
        await first.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2100))
        await write(writer_of(first, await first.open_writer("t")), *SENT)
        with patch.object(OsFiles, "create", no_room):
            with pytest.raises(JournalError, match="No space left"):
                await asyncio.wait_for(second.open_reader("t", keep_all=True, from_history=True), 10)
            full[0] = False
            reader = reader_of(second, await second.open_reader("t", keep_all=True, from_history=True))
            await take(reader, 20)

    run(runtime_dir)


@pytest.mark.parametrize("restarts", [False, True])
def test_whose_journal_ended_before_the_others_begin_shows_nobody_the_hole(
        runtime_dir: Path, tmp_path: Path, restarts: bool) -> None:
    """Node 2 leaves early; more is written than node 3 gets, which comes late, and then is the last that has the topic:
    as a member, or on its disk. What node 2 had is kept beside its journal."""

    @with_group
    async def run(group: Group) -> None:
        first = await group.start(journal_dir=tmp_path / "1", log_capacity=1 << 16, log_hot=1 << 14)
        second, third = [await group.start(journal_dir=tmp_path / str(n)) for n in (2, 3)]
        await first.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=2100))
        early = await second.open_reader("t", keep_all=True, from_history=True)
        port = await first.open_writer("t")
        await write(writer_of(first, port), *SENT[:5])
        assert await take(reader_of(second, early), 5) == SENT[:5]
        await second.close_reader(early)
        await until(lambda: second.topics()[0].members == (1,), "node 2 is out of the topic")
        await write(writer_of(first, port), *SENT[5:])
        late = await third.open_reader("t", keep_all=False, from_history=False)
        await first.close_writer(port)
        await until(lambda: second.topics()[0].members == (3,), "node 3 alone is in the topic")
        await first.stop()
        if restarts:
            await third.close_reader(late)
            await until(lambda: not second.topics()[0].members, "all are out of the topic")
        again = await asyncio.wait_for(second.open_reader("t", keep_all=True, from_history=True), 10)
        reader, got = reader_of(second, again), list[bytes]()
        await until(lambda: got.extend(reader.take(100)) or got[-1:] == SENT[-1:], "the last message")
        assert got == SENT[-len(got):] and len(got) > 10
        assert list((tmp_path / "2").glob("*.forked"))

    run(runtime_dir)
