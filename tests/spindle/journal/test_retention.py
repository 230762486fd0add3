"""Goal: closed files go as retention says, the oldest first, and never more. Where the disk has too little room,
nothing is lost, and nothing acknowledged until there is room again.
Method: journals in memory with a disk that says how much is free; a small real file system if mounting is allowed."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import JournalError
from spindle.journal import Journal, check_directory
from spindle.journal.retention import ALWAYS, WHEN_FULL, ClosedFile, Retention, ends, surplus
from spindle.journal.tools import read, verify
from tests.spindle.journal.fakes import SPEC, Change, FailingFiles, MemoryFiles, MemorySource, Witness, messages
from tests.support import wait_until

DIRECTORY = Path("/journal")
MARK = 1 << 20


def closed(*sizes_and_ends: tuple[int, int]) -> list[ClosedFile]:
    return [ClosedFile(Path(str(number)), size, end) for number, (size, end) in enumerate(sizes_and_ends)]


def test_what_may_go() -> None:
    files = closed((100, 10), (100, 20), (100, 30), (100, 40))
    second = 10**9

    def gone(**keep: Any) -> int:
        found = surplus(files, Retention(**keep), 35 + second)
        assert found == files[:len(found)]
        return len(found)

    assert gone() == 0
    assert [gone(keep_files=count) for count in (1, 3, 4, 9)] == [3, 1, 0, 0]
    assert [gone(keep_bytes=count) for count in (1, 99, 100, 250, 400)] == [4, 4, 3, 2, 0]
    assert gone(keep_s=1.0) == 3 and gone(keep_s=2.0) == 0
    assert gone(keep_files=3, keep_bytes=250) == 2 and gone(keep_files=1, keep_s=2.0) == 3


def test_a_clock_that_stood_wrong_makes_nothing_older() -> None:
    """A computer whose clock has no battery begins at 0 with each start, until it is set."""
    assert ends([100, 200, 300], 350) == [200, 300]
    assert ends([5, 200, 3], 250) == [200, 200]  # started, set, started
    assert ends([5, 200, 3], 10) == [5, 5]  # and not yet set: what is to come tells nothing
    assert ends([100, 900, 200], 250) == [100, 200]  # once it was far ahead
    assert ends([900, 950, 930], 10) == [10, 10]


def test_what_a_clock_that_is_set_late_keeps() -> None:
    """Method: files of a start with the right time, then those of the next one, whose clock is set in the middle."""
    files, year = Disk(), 365 * 86400 * 10**9
    with patch("time.time_ns", lambda: 50 * year):
        first = Writing(files, Retention(keep_s=60.0))
        first.put(100)
        first.journal.close()
    kept = set(names(files))
    assert len(kept) > 3
    with patch("time.time_ns", lambda: 10**9):
        second = Writing(files, Retention(keep_s=60.0))
        second._following, second.sent = first._following, list(first.sent)
        second.put(30)
    with patch("time.time_ns", lambda: 50 * year + 10**9):
        second.put(100)
        second.journal.close()
    assert kept <= set(names(files))
    assert not second.witness.failures


def test_any_limits_leave_no_gap() -> None:
    draw = random.Random(5)
    for _ in range(300):
        end = 0
        files = closed(*((draw.randrange(1, 9), end := end + draw.randrange(9)) for _ in range(draw.randrange(9))))
        keep = Retention(draw.randrange(5), draw.randrange(20), draw.randrange(3) / 1e9 * 9)
        now = end + draw.randrange(20)
        found = surplus(files, keep, now)
        assert found == files[:len(found)]
        for one in files[len(found):]:  # nothing is kept that a limit lets go
            behind = files[files.index(one):]
            assert not keep.keep_files or len(behind) <= keep.keep_files
            assert not keep.keep_bytes or sum(other.size for other in behind) <= keep.keep_bytes
            assert not keep.keep_s or behind[0].end_ns >= now - int(keep.keep_s * 1e9)


class Disk(MemoryFiles):
    """One that says how much is free."""

    free = 1 << 40

    def free_bytes(self, path: Path) -> int:
        return self.free


class Writing:
    def __init__(self, files: MemoryFiles, keep: Retention, max_file_size: int = 3000) -> None:
        self.source, self.witness, self.halts = MemorySource(), Witness(), list[str]()
        self.journal = Journal(DIRECTORY, SPEC, 1, self.source, self.witness.on_durable, self.witness.on_failure,
                               group_commit_ms=0.0, max_file_size=max_file_size, files=files, retention=keep,
                               on_halt=self.halts.append)
        self.sent: list[Any] = []
        self._following = iter(  # a new writer every thirty
            (payload, dataclasses.replace(info, writer=1 + place // 30))
            for place, (payload, info) in enumerate(messages(1000, size=100)))

    def put(self, count: int, wait: bool = True) -> None:
        for pair in itertools.islice(self._following, count):
            self.sent.append(pair)
            self.source.put([pair])
            assert not wait or self.journal.wait_durable(len(self.sent), 10)


def names(files: MemoryFiles) -> list[str]:
    return sorted(name for name in files.names(DIRECTORY) if name.endswith(".mcap"))


@pytest.fixture(autouse=True)
def _quick() -> Any:
    with patch("spindle.journal.writer.HALT_PERIOD_S", 0.01):
        yield


def test_files_and_bytes() -> None:
    files = Disk()
    one = Writing(files, Retention(keep_files=3))
    one.put(200)
    one.journal.close()
    assert len(names(files)) == 4 and one.journal.status()["dropped_files"]
    files = Disk()
    one = Writing(files, Retention(keep_bytes=10_000))
    one.put(200)
    one.journal.close()
    kept = [len(files.content()[name]) for name in names(files)[:-1]]
    assert sum(kept) <= 10_000 < sum(kept) + kept[0] + 3000 and len(kept) > 1


def test_age_also_while_nothing_is_written() -> None:
    """The files of messages that are too old go without another message."""
    files = Disk()
    with patch("spindle.journal.writer.RETAIN_PERIOD_S", 0.02), patch("time.time_ns", lambda: 10**18):
        one = Writing(files, Retention(keep_s=60.0))
        one.put(100)
        assert len(names(files)) > 3
        with patch("time.time_ns", lambda: 10**18 + 61 * 10**9):
            wait_until(lambda: len(names(files)) == 1)
        one.put(5)
        one.journal.close()
    assert not one.witness.failures


@pytest.mark.parametrize("drop", [ALWAYS, WHEN_FULL])
def test_when_full_files_go_only_then(drop: str) -> None:
    files = Disk()
    one = Writing(files, Retention(keep_files=2, drop=drop, free_min=MARK))
    one.put(100)
    assert (len(names(files)) > 3) == (drop == WHEN_FULL)
    if drop == WHEN_FULL:
        before = len(names(files))
        files.free = 10
        one.put(1, wait=False)
        wait_until(lambda: len(names(files)) == 3)
        assert before > 3
        files.free = 1 << 40
        assert one.journal.wait_durable(len(one.sent), 10)
    one.journal.close()


def test_what_retention_keeps_is_kept_and_the_writer_waits() -> None:
    """Nothing is acknowledged while there is no room, nothing is lost, and it goes on by itself."""
    files = Disk()
    one = Writing(files, Retention(free_min=MARK))
    one.put(50)
    files.free = MARK - 1
    one.put(20, wait=False)
    wait_until(lambda: one.halts)
    assert "1,048,575 bytes are free" in one.halts[0] and "keep_files" in one.halts[0]
    assert one.journal.status()["halted"] == one.halts[0]
    assert not one.journal.wait_durable(len(one.sent), 0.2) and one.journal.durable == 50
    files.free = 1 << 40
    assert one.journal.wait_durable(len(one.sent), 10)
    assert one.halts[-1] == "" and len(one.halts) == 2 and not one.journal.status()["halted"]
    one.journal.close()
    assert [message.payload for message in read(DIRECTORY, files=files)] == [payload for payload, _ in one.sent]
    assert not one.witness.failures


def test_a_node_that_stops_meanwhile_writes_into_what_was_kept_free() -> None:
    files = Disk()
    one = Writing(files, Retention(free_min=MARK))
    one.put(5)
    files.free = 0
    one.put(20, wait=False)
    wait_until(lambda: one.halts)
    one.journal.close()
    assert not one.witness.failures and one.journal.durable == 25
    assert len(list(read(DIRECTORY, files=files))) == 25


@pytest.mark.parametrize("refused", range(1, 13))
def test_a_disk_that_fills_between_look_and_write(refused: int) -> None:
    """Growing, closing and beginning a file find no room although there was some: tried again, as if nothing had been.
    """
    left = [refused, 3]

    def refuse(change: Change) -> OSError | None:
        if change[0] != "allocate":
            return None
        left[0] -= 1
        if left[0] >= 0 or left[1] <= 0:
            return None
        left[1] -= 1
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FailingFiles(refuse)
    with patch.object(MemoryFiles, "free_bytes", lambda *_: 1 << 40), \
            patch("spindle.journal.growing.RESERVE_MIN", 4096), patch("spindle.journal.growing.RESERVE_MAX", 4096):
        one = Writing(files, Retention(free_min=MARK), max_file_size=20_000)
        for _ in range(20):
            one.put(30, wait=False)
            assert one.journal.wait_durable(len(one.sent), 20), one.witness.failures
        one.journal.close()
    assert not one.witness.failures
    assert [(message.payload, message.writer) for message in read(DIRECTORY, files=files)] == [
        (payload, info.writer) for payload, info in one.sent]
    assert left[1] == 0


def test_a_directory_without_room_is_refused(tmp_path: Path) -> None:
    check_directory(tmp_path, free_min=1)
    said_once = r"^cannot keep a journal in [^:]*: [0-9,]* bytes are free .* free_min is 1,000,000,0.*: make"
    with pytest.raises(JournalError, match=said_once):
        check_directory(tmp_path, free_min=10**18)


def on_small_disk(mount: Path, size: str, test: Callable[[], None]) -> None:
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)], capture_output=True,
                          text=True)
    if made.returncode:
        pytest.skip(f"mounting a small file system is not allowed here: {made.stderr.strip()}")
    try:
        test()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [Retention(keep_files=2, drop=WHEN_FULL, free_min=MARK), Retention(free_min=MARK)],
                         ids=["lets go", "keeps all"])
def test_a_real_disk_fills_while_retention_runs(tmp_path: Path, keep: Retention) -> None:
    """24 MB for 50 MB of messages: with retention all of them get through; without it, what came before is whole, and
    the rest gets through when somebody makes room."""
    mount = tmp_path / "small"

    def run() -> None:
        source, witness, halts = MemorySource(), Witness(), list[str]()
        journal = Journal(mount, SPEC, 1, source, witness.on_durable, witness.on_failure, group_commit_ms=0.0,
                          max_file_size=300_000, retention=keep, on_halt=halts.append)
        sent = messages(5000, size=10_000)
        for start in range(0, len(sent), 100):
            source.put(sent[start:start + 100])
            while not journal.wait_durable(start + 100, 0.1) and not (halts and not keep.keep_files):
                assert not witness.failures
        if keep.keep_files:
            assert journal.status()["dropped_files"] and not halts
        else:
            assert not journal.wait_durable(5000, 0.1)
            report = verify(mount)
            assert report.ok and report.messages >= journal.durable > 100
            subprocess.run(["mount", "-o", "remount,size=80m", str(mount)], check=True)
            assert journal.wait_durable(5000, 60)
        journal.close()
        assert not witness.failures and verify(mount).ok
        found = [message.payload for message in read(mount)]
        assert found == [payload for payload, _ in sent[-len(found):]]

    on_small_disk(mount, "24m", run)
