"""Which closed files of a journal may go, and when there is too little room on the disk.

Why apart from the writer: what is to be dropped follows from names, sizes and times of files alone.

Rules: only closed files go, the oldest first, so what is left has no gap. A file is as old as its last message can be:
as the beginning of the file that follows it. A clock that was set back, or stood wrong until it was set, makes nothing
older: a file isn't taken for older than one before it, nor are beginnings believed that are still to come. The live
file is never touched.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from spindle.errors import JournalError
from spindle.journal.files import Files

ALWAYS, WHEN_FULL = "always", "when full"
DROP_MODES = (ALWAYS, WHEN_FULL)


@dataclasses.dataclass(frozen=True)
class Retention:
    """What is to be kept of the closed files of each topic.

    keep_files   so many; 0 = all
    keep_bytes   so many bytes of them; 0 = all
    keep_s       those whose messages are not older, seconds; 0 = all
    drop         what may go goes ALWAYS, or only when less than `free_min` bytes are free
    free_min     bytes that are to stay free on the file system; 0 = no mark
    """

    keep_files: int = 0
    keep_bytes: int = 0
    keep_s: float = 0.0
    drop: str = ALWAYS
    free_min: int = 0

    @property
    def lets_go(self) -> bool:
        """True if it ever lets a file go."""
        return bool(self.keep_files or self.keep_bytes or self.keep_s)


@dataclasses.dataclass(frozen=True)
class ClosedFile:
    """size in bytes; end_ns: no message in it is later, UTC."""

    path: Path
    size: int
    end_ns: int


def surplus(files: Sequence[ClosedFile], keep: Retention, now_ns: int) -> list[ClosedFile]:
    """Those of a journal's closed files, oldest first, that may go."""
    count = max(0, len(files) - keep.keep_files) if keep.keep_files else 0
    if keep.keep_bytes:
        kept = 0
        for place in range(len(files) - 1, -1, -1):
            kept += files[place].size
            if kept > keep.keep_bytes:
                count = max(count, place + 1)
                break
    if keep.keep_s:
        oldest_ns = now_ns - int(keep.keep_s * 1e9)
        while count < len(files) and files[count].end_ns < oldest_ns:
            count += 1
    return list(files[:count])


def ends(begins: Sequence[int], now_ns: int) -> list[int]:
    """When messages of each closed file ended at the latest, of when files were begun, the live one last; UTC, ns."""
    past = [one if one <= now_ns else 0 for one in begins]
    return [end or now_ns for end in itertools.accumulate(past, max)][1:]


class Keeper:
    """Drops files of one journal. For the thread that writes it. numbers(): its files as (number, path), oldest first,
    the live one last."""

    def __init__(self, files: Files, directory: Path, keep: Retention) -> None:
        self._files, self._directory, self.keep = files, directory, keep
        self._begins: dict[Path, int] = {}  # when a file was begun, UTC ns

    def drop(self, paths: Sequence[Path]) -> int:
        """Drop what may go; how many. The last of `paths` is the live file. Raises OSError."""
        if not self.keep.lets_go or len(paths) < 2:
            return 0
        begins = [self._begun(path) if self.keep.keep_s else 0 for path in paths]
        now_ns = time.time_ns()
        ended = ends(begins, now_ns)
        closed = [ClosedFile(path, self._size(path), end) for path, end in zip(paths[:-1], ended, strict=True)]
        gone = surplus(closed, self.keep, now_ns)
        for one in gone:
            self._files.remove(one.path)
            self._begins.pop(one.path, None)
        if gone:
            self._files.sync_directory(self._directory)
        return len(gone)

    def lacks_room(self, needed: int = 0) -> str:
        """Why there is too little room for so many bytes, in words; empty if there is enough, or nobody can tell."""
        if not self.keep.free_min:
            return ""
        try:
            free = self._files.free_bytes(self._directory)
        except OSError:
            return ""
        return lack(self._directory, free, self.keep.free_min) if free - needed < self.keep.free_min else ""

    def _size(self, path: Path) -> int:
        handle = self._files.open(path)
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

    def _begun(self, path: Path) -> int:
        """When a file was begun; one that can't be read counts as new."""
        if path not in self._begins:
            from spindle.journal.recovery import open_scan

            handle = self._files.open(path)
            try:
                self._begins[path] = open_scan(self._files, handle, path).head.created_ns
            except JournalError:
                self._begins[path] = time.time_ns()
            finally:
                self._files.close(handle)
        return self._begins[path]


def lack(directory: Path, free: int, free_min: int) -> str:
    return (f"{free:,} bytes are free on the disk of {directory}, and [journal] free_min is {free_min:,}: make room, "
            "or let files go with [journal] keep_files, keep_bytes or keep_age_s")


__all__ = ["ALWAYS", "DROP_MODES", "WHEN_FULL", "ClosedFile", "Keeper", "Retention", "ends", "lack", "surplus"]
