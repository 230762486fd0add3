"""Disks that fail: a library built from disk.c, preloaded into the daemons, and the page that tells it what to do. With
clock.c it also has clocks that are wrong.

Also damage to files between two lives of a node: a journal whose end is cut or overwritten, or with a bit flipped in
its middle.

Rules: without a C compiler there are no disk faults, and the run says so. Only journals of dead nodes are damaged.
`tear` is what a crash may leave. `lose_tail` and `damage_middle` destroy what was acknowledged, which no crash does and
only other nodes' copies can make good.
"""

from __future__ import annotations

import enum
import itertools
import mmap
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = [Path(__file__).with_name(name) for name in ("disk.c", "clock.c")]
PAGE = 4096
WORDS = struct.Struct("=II")


class Mode(enum.IntEnum):
    """What the disk does. The values are those of disk.c."""

    PASS = 0  # works
    FULL = 1  # no space
    WRITE_EIO = 2  # writing fails
    SYNC_EIO = 3  # syncing fails
    SHORT = 4  # writes half of what is asked, which is legal
    TORN_FULL = 5  # writes half, then there is no space
    SLOW = 6  # syncing takes 80 ms


HARMLESS = (Mode.SHORT, Mode.SLOW)
DISK_FULL = (Mode.FULL, Mode.TORN_FULL)
DISK_BROKEN = (Mode.WRITE_EIO, Mode.SYNC_EIO)


def build(directory: Path) -> Path | None:
    """The library, compiled into `directory`; None if there is no compiler that works."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        return None
    library = directory / "disk.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), *map(str, SOURCES), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return library if done.returncode == 0 else None


class Disk:
    """The disk of one node."""

    def __init__(self, control: Path, directory: Path) -> None:
        control.write_bytes(bytes(PAGE))
        with control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE)
        self.spoiled_in_all = 0  # calls that were spoiled, once it is closed
        self._control = control
        self.directory = directory

    def environment(self, library: Path) -> dict[str, str]:
        """For the daemon that works on this disk."""
        return {
            "LD_PRELOAD": str(library),
            "SPINDLE_CHAOS_DISK": str(self._control),
            "SPINDLE_CHAOS_DISK_DIR": str(self.directory.resolve()),
        }

    @property
    def mode(self) -> Mode:
        return Mode(WORDS.unpack_from(self._page)[0])

    @mode.setter
    def mode(self, mode: Mode) -> None:
        WORDS.pack_into(self._page, 0, mode, self.spoiled)

    @property
    def spoiled(self) -> int:
        """Calls that did not do what they were asked."""
        return int(WORDS.unpack_from(self._page)[1])

    def close(self) -> None:
        self.spoiled_in_all = self.spoiled
        self._page.close()


class Commit:
    """Where a commit lies in a file."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


@contextmanager
def _commits(path: Path) -> Iterator[list[Commit]]:
    """The whole commits of a journal file."""
    from spindle.journal.files import OsFiles
    from spindle.journal.recovery import open_scan

    files = OsFiles()
    handle = files.open(path)
    try:
        scan = open_scan(files, handle, path)
        starts = [layout.offset for layout, _ in scan.commits()]
        yield [Commit(start, end) for start, end in itertools.pairwise([*starts, scan.end])]
    finally:
        files.close(handle)


def newest_file(directory: Path, minimum: int) -> tuple[Path, list[Commit]] | None:
    """The newest journal file in a directory, if it holds at least so many commits, with these. Older ones were closed
    and synced before it was begun: no crash reaches them."""
    from spindle.errors import SpindleError

    path = max(directory.glob("*.mcap"), default=None)
    if path is None:
        return None
    try:
        with _commits(path) as commits:
            return (path, commits) if len(commits) >= minimum else None
    except (SpindleError, OSError):
        return None


def tear(directory: Path, draw: random.Random) -> str:
    """Leave behind the last commit what a crash in the middle of the next one may leave: nothing acknowledged is lost.
    Says what was done, "" if there is no file for it."""
    found = newest_file(directory, 1)
    if found is None:
        return ""
    path, commits = found
    last = commits[-1]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(last.start)
        old = file.read(last.end - last.start)
        begun = draw.choice([draw.randbytes(len(old)), old])[: draw.randrange(1, len(old))]
        file.seek(last.end)
        file.write(begun)
        if last.end + len(begun) < size and draw.random() < 0.5:
            file.truncate(draw.randrange(last.end + len(begun), size))
    return f"{path.name}: {len(begun):,} bytes of a commit begun at byte {last.end:,}"


def lose_tail(directory: Path, draw: random.Random) -> str:
    """Spoil the last commit of the newest file, as a disk does that lies about its syncs; says what was done, "" if
    there is nothing to spoil."""
    found = newest_file(directory, 2)
    if found is None:
        return ""
    path, commits = found
    last = commits[-1]
    at = draw.randrange(last.start + 1, last.end)
    if draw.random() < 0.5:
        os.truncate(path, at)
        return f"{path.name} cut at byte {at:,}, in its last commit"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size - at))
    return f"{path.name} is zeros from byte {at:,}, in its last commit"


def damage_middle(directory: Path, draw: random.Random) -> str:
    """Flip bits in a commit that others follow; says what was done, "" if there is none."""
    found = newest_file(directory, 4)
    if found is None:
        return ""
    path, commits = found
    one = draw.choice(commits[: len(commits) // 2])
    at = draw.randrange(one.start, one.end)
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ (1 << draw.randrange(8))]))
    return f"{path.name}: one bit of byte {at:,} flipped, with {len(commits)} commits in the file"


__all__ = ["DISK_BROKEN", "DISK_FULL", "HARMLESS", "Disk", "Mode", "build", "damage_middle", "lose_tail", "tear"]
