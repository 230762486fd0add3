"""Goal: a topic becomes whole on a node, or whoever opens it there is told why it can't.

Method: nodes on one event loop; the disk of one of them fails where the test says.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from spindle.errors import JournalError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.files import OsFiles
from spindle.journal.names import SUFFIX
from tests.spindle.node.test_node import Group, take, with_group, write
from tests.spindle.ports import reader_of, writer_of

SENT = [b"%d " % number + bytes(2000) for number in range(200)]  # more than a log of the second node takes


def test_a_journal_that_can_not_begin_ends_the_opening(runtime_dir: Path, tmp_path: Path) -> None:
    """Nobody reads the log then, and the history would wait for room in it for ever."""
    full = [True]
    create = OsFiles.create

    def no_room(self: OsFiles, path: Path) -> int:
        if full[0] and path.parent == tmp_path / "2" and SUFFIX in path.name:
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
