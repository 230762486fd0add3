"""Goal: a growing file takes what room a disk has, to the last. Method: a disk in memory that has so much."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spindle.journal.format import PADDING, RECORD, crosses_sector
from spindle.journal.growing import RESERVE_MIN, GrowingFile, NoRoom, begin
from tests.spindle.journal.fakes import MemoryFiles

ROOM = 5_000_000


class Small(MemoryFiles):
    def allocate(self, handle: int, offset: int, size: int) -> None:
        super().allocate(handle, offset, size)
        if offset + size > ROOM:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_the_last_room_on_a_disk_is_used() -> None:
    """It grows in large steps, and in small ones where a large one has no room."""
    files, path = Small(), Path("/f")
    first = RECORD.pack(PADDING, 1015) + bytes(1015)
    handle, size = begin(files, path, first)
    file = GrowingFile(files, handle, path, len(first), size)
    assert not crosses_sector(file.end)
    with pytest.raises(NoRoom):
        while True:
            file.show(RECORD.pack(PADDING, 10_231), [bytes(10_231)], file.end + 10_240)
    assert ROOM - 2 * RESERVE_MIN < file.end < file.size <= ROOM
