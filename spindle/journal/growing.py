"""A file that is a whole MCAP file after every write, and grows: what journals and recordings have in common.

Why each write is where it is: see `spindle.journal.format`. In short, data is first written into the padding, where
nobody looks, and then shown by one write of nine bytes; growing and closing do the same. So a process that dies at any
point leaves a whole file.

Rules: after an error of any operation the object must only be `abandon`ed: nothing is retried, nothing is closed
cleanly. The exception is `NoRoom`: then the file is as it was before, and the same may be tried again. One thread uses
it. Where a record begins, its header must lie within a sector (`crosses_sector`).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from pathlib import Path

from spindle.journal.files import Files
from spindle.journal.format import LIVE_TRAILER, PAGE, RECORD, padding_header

RESERVE_MIN = 64 << 10  # bytes of padding that a file begins with...
RESERVE_MAX = 4 << 20  # ...and that it grows by at most, doubling each time


class NoRoom(OSError):
    """The disk is full, and the file is as it was."""


def begin(files: Files, path: Path, data: bytes) -> tuple[int, int]:
    """Make a live file that begins with `data`; its handle and its size. Synced. Raises OSError; a file that
    could be made, but not written, is removed then: on a full disk it would hold room, and nothing that is whole."""
    size = round_up(len(data) + RESERVE_MIN)
    handle = files.create(path)
    try:
        files.write(handle, [LIVE_TRAILER], size - len(LIVE_TRAILER))
        files.allocate(handle, 0, size)
        files.write(handle, [data, padding_header(len(data), size)], 0)
        files.sync(handle)
    except BaseException as error:
        files.close(handle)
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):
                files.remove(path)
        raise
    return handle, size


class GrowingFile:
    """A live file.

    end   of its data, where the next goes; a padding header stands there
    size  of the file, padding and footer included
    """

    def __init__(self, files: Files, handle: int, path: Path, end: int, size: int) -> None:
        self._files, self._handle, self.path = files, handle, path
        self.end, self.size = end, size
        self._reserve = RESERVE_MIN

    def show(self, head: bytes, rest: Sequence[bytes], end: int) -> None:
        """Write `head` and `rest` at the end of the data, with padding from `end` on; visible with the last write.
        Raises NoRoom."""
        if end + RECORD.size > self.size - len(LIVE_TRAILER):
            self._grow(end + RECORD.size)
        visible, hidden = head[: RECORD.size], head[RECORD.size :]
        self._files.write(self._handle, [hidden, *rest, padding_header(end, self.size)], self.end + RECORD.size)
        self._files.write(self._handle, [visible], self.end)
        self.end = end

    def _grow(self, needed: int) -> None:
        """Make room for data up to byte `needed`, and some more. Raises NoRoom."""
        try:
            self._grow_by(needed)
        except NoRoom:
            if self._reserve == RESERVE_MIN:
                raise
            self._reserve = RESERVE_MIN  # a little may still fit
            self._grow_by(needed)

    def _grow_by(self, needed: int) -> None:
        old = self.size
        size = round_up(max(needed, old) + self._reserve)
        # After the first write the file ends with a new footer; until the last one its padding leads to the old footer.
        try:
            self._files.write(self._handle, [LIVE_TRAILER], size - len(LIVE_TRAILER))
            self._files.allocate(self._handle, old, size - old)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._files.truncate(self._handle, old)
            raise NoRoom(error.errno, error.strerror) from error
        self._files.write(self._handle, [padding_header(self.end, size)], self.end)
        self.size = size
        self._reserve = min(2 * self._reserve, RESERVE_MAX)

    def sync(self) -> None:
        """Return when all that is shown is on the disk."""
        self._files.sync(self._handle)

    def end_with(self, closing: bytes) -> None:
        """Put `closing` behind the data instead of the padding; the file is closed then, and on the disk."""
        needed = self.end + len(closing)
        if needed > self.size - len(LIVE_TRAILER):
            self._grow(needed)
        finish(self._files, self._handle, self.end, closing)
        self.abandon()

    def abandon(self) -> None:
        """Give the handle back and leave the file as it is. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._files.close(handle)


def finish(files: Files, handle: int, end: int, closing: bytes) -> None:
    """Turn a live file with room for it into a closed one: `closing` instead of the padding at `end`. Synced."""
    files.write(handle, [closing[RECORD.size :]], end + RECORD.size)
    # What the nine bytes show must be on the disk before them, else a closed file could have a damaged summary.
    files.sync(handle)
    files.write(handle, [closing[: RECORD.size]], end)
    files.truncate(handle, end + len(closing))
    files.sync(handle)


def round_up(size: int) -> int:
    """Next multiple of a page, so that the footer at the file's end lies within one."""
    return -(-size // PAGE) * PAGE


__all__ = ["GrowingFile", "NoRoom", "begin", "finish", "round_up"]
