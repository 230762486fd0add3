"""Goal: journals can be copied while their nodes write them, each copy is whole, and a group that has lost all its
disks goes on from one; what would overwrite or hide something is refused.
Method: embedded nodes and their journals; the command line in this process, `spindle daemon` where its end matters."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spindle.client import attach
from spindle.errors import JournalError
from spindle.journal.files import Buffer, OsFiles
from spindle.journal.tools import read, verify
from spindle.restart.backup import PART_SUFFIX, backup, restore
from spindle.restart.ledger import SUFFIX
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import daemons
from tests.spindle.journal.test_node import SPEC, TOPIC, start


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


@contextmanager
def group(directory: Path, count: int) -> Iterator[list[Any]]:
    sessions: list[Any] = []
    try:
        for node_id in range(1, count + 1):
            sessions.append(start(directory, node_id))
        yield sessions
    finally:
        for session in reversed(sessions):
            session.close()


def texts(directory: Path, node_id: int = 1) -> list[bytes]:
    return [one.payload for one in read(directory, topic=TOPIC, node_id=node_id)]


def write(session: Any, numbers: range) -> None:
    with session.open_writer(TOPIC) as writer:
        writer.inbox.write_many([b"%d" % number for number in numbers], timeout_s=20)
        assert writer.inbox.wait_acknowledged(20, persisted=True)


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def history(session: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    with session.open_reader(TOPIC, keep_all=True, from_history=True) as reader:
        while len(found) < count and reader.log.wait(20):
            found += [payload for payload, _ in reader.log.take_pairs(100)]
    return found


def test_a_backup_of_a_node_that_writes(tmp_path: Path, cli: Cli) -> None:
    """Again and again while messages come: each is whole and a prefix, none shorter than the last."""
    journals, out, ends = tmp_path / "journal", tmp_path / "backup", threading.Event()
    with group(tmp_path, 1) as (session,):
        with session.open_writer(TOPIC) as writer:
            numbers = iter(range(10**9))

            def run() -> None:
                while not ends.is_set():
                    writer.inbox.write_many([b"%d" % next(numbers) for _ in range(5)], timeout_s=20)
                    ends.wait(0.002)  # or the copies take ever longer

            thread = threading.Thread(target=run)
            thread.start()
            try:
                before = 0
                for _ in range(15):
                    result = cli("journal", "backup", journals, "-o", out, "--json")
                    assert result.code == 0, result.err
                    (one,) = result.json
                    assert one["topic"] == TOPIC and one["messages"] >= before
                    report = verify(out)
                    assert report.ok and all(file.closed for file in report.files)
                    assert report.messages == one["messages"]
                    before = one["messages"]
                assert texts(out) == expected(before) and before > 20
            finally:
                ends.set()
                thread.join()
        assert not [path for path in out.iterdir() if path.name.endswith(PART_SUFFIX)]
        assert [path for path in out.iterdir() if path.name.endswith(SUFFIX)]
    assert len(texts(journals)) >= before
    shown = cli("journal", "backup", journals, "-o", out)
    assert shown.code == 0 and "backed up" in shown.out and f"topic {TOPIC} of node 1" in shown.out
    again = cli("journal", "backup", journals, "-o", out, "--json").json[0]
    assert (again["files"], again["kept"]) == (0, 1) and texts(out) == texts(journals)


def test_a_group_that_has_lost_everything_goes_on_from_backups(tmp_path: Path, cli: Cli) -> None:
    journals, out = tmp_path / "journal", tmp_path / "backup"
    with group(tmp_path, 3) as sessions:
        for session in sessions[1:]:
            session.open_reader(TOPIC, keep_all=False, from_history=False)
        write(sessions[0], range(200))
        assert cli("journal", "backup", journals, "-o", out).code == 0
        write(sessions[0], range(200, 300))  # which no backup has
    shutil.rmtree(journals)
    result = cli("journal", "restore", out, journals)
    assert result.code == 0 and result.out.count("restored  topic") == 3, result.err
    with group(tmp_path, 3) as sessions:
        assert history(sessions[2], 200) == expected(200)
        write(sessions[1], range(200, 250))
    assert texts(journals, 2) == expected(250) and verify(journals).ok


@pytest.mark.slow
def test_one_that_is_restored_gets_the_rest_from_the_others(tmp_path: Path, cli: Cli) -> None:
    journals, out = tmp_path / "journal", tmp_path / "backup"
    with group(tmp_path, 3) as sessions:
        for session in sessions[:2]:
            session.open_reader(TOPIC, keep_all=False, from_history=False)
        sessions[2].open_reader(TOPIC, keep_all=False, from_history=False)
        write(sessions[0], range(100))
        assert cli("journal", "backup", journals, "-o", out, "--node", 3).code == 0
        sessions.pop().close()
        write(sessions[0], range(100, 150))
        for path in journals.glob("*-3*"):
            path.unlink()
        assert cli("journal", "restore", out, journals).code == 0
        sessions.append(start(tmp_path, 3))
        assert history(sessions[2], 150) == expected(150)
    assert texts(journals, 3) == expected(150) and not list(journals.glob("*.forked"))


def test_what_is_there_or_in_use_is_not_touched(tmp_path: Path, cli: Cli) -> None:
    journals, out = tmp_path / "journal", tmp_path / "backup"
    with group(tmp_path, 1) as (session,):
        write(session, range(10))
        backup(journals, out)
        refused = cli("journal", "restore", out, journals)
        assert refused.code == 10 and "is there already" in refused.err
        session.open_reader(TOPIC, keep_all=False, from_history=False)
        empty = tmp_path / "elsewhere"
        empty.mkdir()
        (lock,) = journals.glob("*.lock")
        import fcntl

        with (empty / lock.name).open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            refused = cli("journal", "restore", out, empty)
            assert refused.code == 10 and "stop node 1 first" in refused.err
        assert [path.name for path in empty.iterdir()] == [lock.name]
    assert cli("journal", "backup", journals, "-o", journals).code == 10
    assert cli("journal", "backup", tmp_path / "nothing", "-o", out).code == 10


def test_damage_is_neither_backed_up_nor_restored(tmp_path: Path, cli: Cli) -> None:
    journals, out = tmp_path / "journal", tmp_path / "backup"
    with group(tmp_path, 1) as (session,):
        for first in range(0, 50, 10):
            write(session, range(first, first + 10))
    backup(journals, out)
    for directory in (journals, out):
        (path,) = directory.glob("*.mcap")
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 0xFF
        path.write_bytes(data)
    refused = cli("journal", "backup", journals, "-o", tmp_path / "second")
    assert refused.code == 10 and "damaged before its end" in refused.err
    refused = cli("journal", "restore", out, tmp_path / "new")
    assert refused.code == 10 and not list((tmp_path / "new").glob("*.mcap"))


def test_what_fails_on_a_full_disk_leaves_nothing_of_the_journal(tmp_path: Path) -> None:
    class Full(OsFiles):
        def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
            if offset:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(handle, buffers, offset)

    journals, out, new = tmp_path / "journal", tmp_path / "backup", tmp_path / "new"
    with group(tmp_path, 1) as (session,):
        write(session, range(50))
    with pytest.raises(JournalError, match=r"^cannot back journals up in .*No space left.* Name another directory"):
        backup(journals, out, files=Full())
    assert not list(out.iterdir()), "what fills the disk"
    backup(journals, out)
    with pytest.raises(JournalError, match=r"^cannot restore journals in .*No space left"):
        restore(out, new, files=Full())
    assert [path.suffix for path in new.iterdir()] == [".lock"]
    restore(out, new)
    assert texts(new) == expected(50)


@pytest.mark.slow
def test_a_killed_daemon_is_backed_up_without_its_torn_end(runtime_dir: Path, tmp_path: Path, cli: Cli) -> None:
    journals, out = tmp_path / "journal", tmp_path / "backup"
    with daemons(runtime_dir, 1, ["--journal-dir", str(journals)]) as (daemon,):
        with attach(0, runtime_dir=runtime_dir) as session:
            session.declare_topic(SPEC)
            write(session, range(100))
            daemon.kill()
    (path,) = journals.glob("*.mcap")
    data = path.read_bytes()
    assert cli("journal", "backup", journals, "-o", out).code == 0
    assert verify(out).files[0].closed and texts(out) == expected(100) and path.read_bytes() == data


def lives(directory: Path, *numbers: range) -> Path:
    """A node's journal with a file for each life of its group, each with these messages."""
    for some in numbers:
        with group(directory, 1) as (session,):
            write(session, some)
    return directory / "journal"


def test_a_journal_that_was_begun_anew_replaces_nothing_in_a_backup(tmp_path: Path, cli: Cli) -> None:
    """The topic was declared anew, its journal put aside or lost: what the backup had of the former one stays."""
    out, restored = tmp_path / "backup", tmp_path / "restored"
    assert cli("journal", "backup", lives(tmp_path / "a", range(30), range(30, 60)), "-o", out).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    result = cli("journal", "backup", lives(tmp_path / "b", range(100, 105)), "-o", out)
    assert result.code == 0 and "is what was there of another journal" in result.out
    assert verify(out).ok and texts(out) == [b"%d" % number for number in range(100, 105)]
    assert before == {path.name.removesuffix(".aside"): path.read_bytes() for path in out.iterdir()
                      if path.name.endswith(".aside")}
    assert [one.payload for name in sorted(before) if name.endswith(".mcap")
            for one in read(out / f"{name}.aside")] == expected(60)
    result = cli("journal", "backup", lives(tmp_path / "b", range(105, 110)), "-o", out, "--json")
    assert result.code == 0 and not result.json[0]["aside"], "it goes on"
    assert cli("journal", "restore", out, restored).code == 0
    assert texts(restored) == [b"%d" % number for number in range(100, 110)]


def test_a_backup_that_has_missed_files_is_begun_anew(tmp_path: Path, cli: Cli) -> None:
    """Retention took them in the meantime; behind a file that is there nothing is missing."""
    out = tmp_path / "backup"
    journals = lives(tmp_path, range(10))
    assert cli("journal", "backup", journals, "-o", out).code == 0
    lives(tmp_path, range(10, 20))
    first, second = sorted(journals.glob("*.mcap"))
    first.unlink()
    result = cli("journal", "backup", journals, "-o", out, "--json")
    assert result.code == 0 and not result.json[0]["aside"] and texts(out) == expected(20) and verify(out).ok
    lives(tmp_path, range(20, 30), range(30, 40))
    second.unlink()
    sorted(journals.glob("*.mcap"))[0].unlink()
    result = cli("journal", "backup", journals, "-o", out, "--json")
    assert result.code == 0 and len(result.json[0]["aside"]) == 3, "two files and the standing"
    assert verify(out).ok and texts(out) == expected(40)[30:]


def test_files_that_do_not_belong_together_are_not_restored(tmp_path: Path, cli: Cli) -> None:
    mixed, restored = tmp_path / "mixed", tmp_path / "restored"
    journals = lives(tmp_path / "a", range(30), range(30, 60)), lives(tmp_path / "b", range(100, 105))
    shutil.copytree(journals[0], mixed)
    shutil.copy(next(journals[1].glob("*.mcap")), mixed)
    result = cli("journal", "restore", mixed, restored)
    assert result.code == 10 and "doesn't go on where the file before it ends" in result.err
    assert not list(restored.glob("*.mcap"))
