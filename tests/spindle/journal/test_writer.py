"""Goal: the journal's thread writes all that is delivered, acknowledges only what is on the disk, never after an error,
and says clearly what is wrong. Method: a delivery log and a disk made for the purpose, real directories where the error
comes from the system."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from mcap.reader import make_reader

from spindle.errors import JournalError
from spindle.journal import Journal, JournalBusy, JournalCorrupt, JournalWriteFailed, check_directory
from spindle.journal.files import OsFiles
from spindle.journal.format import SEQUENCE_SPAN
from spindle.journal.recovery import Known, recover
from spindle.journal.retention import Retention
from spindle.journal.tools import read, verify
from tests.spindle.journal.fakes import (
    SPEC,
    Change,
    FailingFiles,
    FakeInfo,
    MemoryFiles,
    MemorySource,
    Witness,
    messages,
)

WAIT_S = 10.0


class Setup:
    """One journal with its source and its witness."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.source = MemorySource()
        self.witness = Witness()
        self.directory = directory
        options.setdefault("group_commit_ms", 0.0)
        self.journal = Journal(directory, SPEC, 1, self.source, self.witness.on_durable, self.witness.on_failure,
                               **options)  # type: ignore[arg-type]

    def put(self, pairs: list[tuple[bytes, FakeInfo]]) -> None:
        """Deliver, and wait until it is durable."""
        self.source.put(pairs)
        assert self.journal.wait_durable(pairs[-1][1].index + 1, WAIT_S)


def same(directory: Path, pairs: list[tuple[bytes, FakeInfo]]) -> bool:
    return [(one.payload, one.index) for one in read(directory)] == [(payload, info.index) for payload, info in pairs]


def test_what_is_delivered_is_on_disk_and_acknowledged(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    sent = messages(100) + messages(50, start=100, view_id=4)
    setup.put(sent[:60])
    setup.put(sent[60:])
    assert setup.journal.status()["durable_index"] == 150
    assert setup.witness.durable == sorted(setup.witness.durable) and setup.witness.durable[-1] == 150
    assert same(tmp_path, sent)
    status = setup.journal.status()
    assert (status["messages"], status["position"], status["failure"]) == (150, 150, None)
    setup.journal.close()
    setup.journal.close()
    report = verify(tmp_path)
    assert report.ok and report.files[0].closed and report.messages == 150
    assert not setup.witness.failures


def test_a_commit_never_spans_views_nor_too_far_sequence_numbers(tmp_path: Path) -> None:
    """Also shows that 64-bit sequence numbers survive MCAP's 32-bit field."""
    setup = Setup(tmp_path)
    numbers = [5, 6, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 3 * SEQUENCE_SPAN, 2**63 + 1]
    sent = [(b"x", FakeInfo(1, 1, 1, 1, number, 1, place)) for place, number in enumerate(numbers)]
    sent += [(b"y", FakeInfo(1, 1, 1, 1, 3, 2, len(numbers)))]
    setup.put(sent)
    got = list(read(tmp_path))
    assert [one.sequence for one in got] == [*numbers, 3] and [one.view_id for one in got] == [1] * len(numbers) + [2]
    assert setup.journal.status()["commits"] == 5
    setup.journal.close()
    assert verify(tmp_path).ok


def test_timestamps_that_fall_back_or_are_missing(tmp_path: Path) -> None:
    """log_time never falls, so that readers that sort by time keep the order of delivery."""
    setup = Setup(tmp_path)
    times = [(100, 500), (0, 400), (-1, 600), (2**64, 0), (7, 2**64 + 5)]
    setup.put([(b"%d" % i, FakeInfo(source, seen, 1, 1, i, 1, i)) for i, (source, seen) in enumerate(times)])
    got = list(read(tmp_path))
    assert [one.log_time for one in got] == [500, 500, 600, 600, 2**64 - 1]
    assert [one.publish_time for one in got] == [100, 500, 600, 600, 7]
    setup.journal.close()


def test_group_commit_gathers(tmp_path: Path) -> None:
    """The first message after a pause is written at once; what follows within the group's time goes together."""
    setup = Setup(tmp_path, group_commit_ms=200.0)
    sent = messages(50)
    setup.put(sent[:1])
    assert setup.witness.durable == [1]
    for pair in sent[1:]:
        setup.source.put([pair])
    assert setup.journal.wait_durable(50, WAIT_S)
    assert len(setup.witness.durable) == 2
    setup.journal.close()


def test_high_descriptors(tmp_path: Path) -> None:
    """select() knows none above 1023; a node with many applications has them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this needs 2048 descriptors (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < 1024:
            held.append(os.open(os.devnull, os.O_RDONLY))
        setup = Setup(tmp_path, group_commit_ms=20.0)
        sent = messages(3)
        for pair in sent:
            setup.put([pair])
        setup.journal.close()
        assert not setup.witness.failures
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_close_writes_what_is_left(tmp_path: Path) -> None:
    setup = Setup(tmp_path, group_commit_ms=60_000.0)
    sent = messages(20)
    setup.put(sent[:1])
    setup.source.put(sent[1:])
    started = time.monotonic()
    setup.journal.close()
    assert time.monotonic() - started < 50, "close must not wait for the group's time"
    assert same(tmp_path, sent) and setup.witness.durable[-1] == 20


def test_the_end_of_the_delivery_log_closes_the_journal(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.source.put(messages(5))
    setup.source.mark_gone()
    setup.journal._thread.join(WAIT_S)
    assert verify(tmp_path).files[0].closed and verify(tmp_path).messages == 5
    assert not setup.witness.failures
    setup.journal.close()


def test_closing_from_a_callback_does_not_hang(tmp_path: Path) -> None:
    source, failures = MemorySource(), []
    done = threading.Event()

    def on_durable(index: int) -> None:
        journal.close()
        done.set()

    journal = Journal(tmp_path, SPEC, 1, source, on_durable, failures.append)
    source.put(messages(3))
    assert done.wait(WAIT_S)
    journal.close()
    assert verify(tmp_path).files[0].closed and not failures


def test_lives_of_one_group_go_on_in_one_file(tmp_path: Path) -> None:
    """However often a topic is reopened, there is one file, and all is in it; the next one begins when it is large,
    when somebody else's messages would follow, or when it can't be trusted."""
    known = Known()
    sent = 0
    whose: list[tuple[int, int]] = []
    for life in range(20):
        setup = Setup(tmp_path, group="g", held=(life - 1, 12) if life else (-1, -1), known=known)
        assert setup.journal.recovery.position == sent
        more = messages(10, view_id=life, sequence=0, senders=1 + life % 4)  # every life counts its log from 0
        setup.put(more)
        whose += [(info.sender, info.writer) for _, info in more]
        status = setup.journal.status()
        sent += 10
        assert (status["messages"], status["position"], status["commits"]) == (10, sent, 1)
        setup.journal.close()
    got = list(read(tmp_path))
    assert [one.index for one in got] == [one.position for one in got] == list(range(200))
    assert [(one.sender, one.writer) for one in got] == whose
    report = verify(tmp_path)
    assert report.ok and len(report.files) == 1 and report.files[0].closed
    # Other tools take a channel for what its number was first said to be, so no number may be given twice.
    with setup.journal.path.open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    channels = [(int(one.metadata["sender"]), int(one.metadata["writer"])) for one in summary.channels.values()]
    assert sorted(channels) == sorted(set(whose))

    def next_number(**options: object) -> int:
        setup = Setup(tmp_path, held=(got[-1].view_id, got[-1].sequence), **options)
        setup.journal.close()
        return int(setup.journal.path.name.split("-")[-1].split(".")[0])

    assert next_number(group="g", known=known) == 1
    assert next_number(group="h", known=known) == next_number(group="g", max_file_size=1000) == 2
    with patch("spindle.journal.live.GO_ON_BYTES", 1000):
        assert next_number(group="g", known=known) == 2


def test_what_is_known_of_a_file_counts_while_nobody_has_touched_it(tmp_path: Path) -> None:
    known = Known()
    setup = Setup(tmp_path, group="g", known=known)
    setup.put(messages(10))
    setup.journal.close()
    files, path = OsFiles(), setup.journal.path
    with patch("spindle.journal.recovery.open_scan", side_effect=AssertionError("read")):
        found = recover(files, tmp_path, SPEC.name, 1, known)
    assert found == recover(files, tmp_path, SPEC.name, 1) and found.position == 10
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt):
        recover(files, tmp_path, SPEC.name, 1, known)


def test_an_idle_journal_sleeps(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.put(messages(1))
    before = time.thread_time_ns(), time.process_time_ns()
    threading.Event().wait(0.5)
    used_ns = (time.process_time_ns() - before[1]) - (time.thread_time_ns() - before[0])
    assert used_ns < 20e6
    setup.journal.close()


def test_lives_follow_each_other(tmp_path: Path) -> None:
    sent: list[tuple[bytes, FakeInfo]] = []
    for life in range(3):
        setup = Setup(tmp_path)
        assert setup.journal.recovery.position == len(sent) and setup.journal.recovery.number == life + 1
        more = messages(10, view_id=life)  # every life counts its delivery log from 0
        setup.put(more)
        sent += more
        setup.journal.close()
    got = list(read(tmp_path))
    assert [one.position for one in got] == list(range(30)) and [one.index for one in got] == [*range(10)] * 3
    assert verify(tmp_path).ok


def test_restarts_without_messages_leave_no_trail(tmp_path: Path) -> None:
    for _ in range(3):
        setup = Setup(tmp_path)
        setup.journal.close()
        assert [path.name for path in tmp_path.glob("*.mcap")] == [setup.journal.path.name]
        assert setup.journal.path.name.endswith("-000001.mcap")
    assert verify(tmp_path).ok


def test_history_that_the_journal_holds_is_not_written_twice(tmp_path: Path) -> None:
    """A node that comes back gets the history of the topic, by and large what it has on disk already."""
    everything = messages(40)
    setup = Setup(tmp_path, group="life-1")
    setup.put(everything[:30])
    setup.journal.close()
    again = Setup(tmp_path, group="life-1")
    history = [(payload, FakeInfo(**{**vars(info), "index": place}))
               for place, (payload, info) in enumerate(everything[20:])]
    again.put(history[:5])
    assert again.witness.durable == [5], "held messages are acknowledged: they are on the disk"
    again.put(history[5:])
    assert again.journal.status()["already_held"] == 10
    again.journal.close()
    assert [one.payload for one in read(tmp_path)] == [payload for payload, _ in everything]
    assert verify(tmp_path).ok


@pytest.mark.parametrize("groups", [("", ""), ("life-1", "life-2"), ("life-1", "")])
def test_another_life_of_the_group_starts_its_order_anew(tmp_path: Path, groups: tuple[str, str]) -> None:
    for group in groups:
        setup = Setup(tmp_path, group=group)
        setup.put(messages(10))
        setup.journal.close()
    assert len(list(read(tmp_path))) == 20 and verify(tmp_path).ok


def test_rotation_and_retention(tmp_path: Path) -> None:
    setup = Setup(tmp_path, max_file_size=3000, retention=Retention(keep_files=2))
    sent = messages(200, size=40)
    for start in range(0, 200, 10):
        setup.put(sent[start : start + 10])
    setup.journal.close()
    paths = sorted(tmp_path.glob("*.mcap"))
    assert len(paths) == 3
    report = verify(tmp_path)
    assert report.ok and all(one.closed for one in report.files) and report.files[0].number > 1
    got = list(read(tmp_path))
    assert [one.payload for one in got] == [payload for payload, _ in sent[-len(got) :]] and 0 < len(got) < 200
    assert setup.journal.status()["messages"] == 200


@pytest.mark.parametrize("what", ["write", "sync", "allocate"])
@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "12,345 bytes free"), (errno.EIO, "Check the disk")])
def test_an_error_of_the_disk_ends_acknowledgements(what: str, code: int, says: str) -> None:
    """The error comes once and then the disk works again, as after a failed fsync: it must not be trusted any more."""
    armed = threading.Event()

    def refuse(change: Change) -> OSError | None:
        if armed.is_set() and change[0] == what:
            armed.clear()
            return OSError(code, os.strerror(code))
        return None

    files = FailingFiles(refuse)
    setup = Setup(Path("/journal"), files=files)
    sent = messages(400, size=300)
    setup.put(sent[:3])
    armed.set()
    setup.source.put(sent[3:350])  # large enough to make the file grow
    assert setup.witness.failed.wait(WAIT_S)
    assert setup.witness.durable[-1] == 3, "nothing may be acknowledged after the error"
    error = setup.witness.failures[0]
    assert isinstance(error, JournalWriteFailed) and isinstance(error.__cause__, OSError)
    text = str(error)
    assert "flight/air data" in text and str(setup.journal.path) in text and says in text and "index below 3" in text
    trace = len(files.trace)
    setup.source.put(sent[350:])
    with pytest.raises(JournalWriteFailed):
        setup.journal.wait_durable(400, WAIT_S)
    setup.journal.close()
    assert len(files.trace) == trace, "nothing may be written after the error"
    assert len(setup.witness.failures) == 1
    content = {name: data for name, data in files.content().items() if name.endswith(".mcap")}
    report = verify(Path("/journal"), files=MemoryFiles.of(content))
    assert report.ok and report.messages >= 3


def test_an_error_at_rotation_is_reported(tmp_path: Path) -> None:
    def refuse(change: Change) -> OSError | None:
        full = change[0] == "create" and "000002" in change[4]
        return OSError(errno.ENOSPC, "No space left on device") if full else None

    setup = Setup(Path("/journal"), files=FailingFiles(refuse), max_file_size=100)
    setup.source.put(messages(3))
    assert setup.witness.failed.wait(WAIT_S)
    assert setup.witness.durable == [3]
    setup.journal.close()


def test_a_gap_or_disorder_is_never_written(tmp_path: Path) -> None:
    lost = messages(10)
    del lost[4]
    late = messages(10)
    late[5], late[6] = late[6], late[5]
    back = messages(5, view_id=4) + messages(5, start=5, view_id=3)
    for number, wrong in enumerate((lost, late, back)):
        directory = tmp_path / str(number)
        setup = Setup(directory)
        setup.source.put(wrong)
        assert setup.witness.failed.wait(WAIT_S)
        assert "please report it" in str(setup.witness.failures[0])
        setup.journal.close()
        assert verify(directory).ok


def test_a_gap_between_two_commits_is_noticed(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.put(messages(5))
    setup.source.put(messages(5, start=6, sequence=100))
    assert setup.witness.failed.wait(WAIT_S)
    assert "message 5 of the delivery log should follow, but 6 did" in str(setup.witness.failures[0])
    setup.journal.close()


def test_two_writers_of_one_journal(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    with pytest.raises(JournalBusy, match="being written by another process"):
        Setup(tmp_path)
    setup.journal.close()
    Setup(tmp_path).journal.close()


def test_a_corrupt_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for start in range(0, 30, 10):
        setup.put(messages(10, start=start, sequence=start * 2))
    setup.journal.close()
    data = bytearray(setup.journal.path.read_bytes())
    data[len(data) // 3] ^= 0x10
    setup.journal.path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match="damaged before its end"):
        Setup(tmp_path)
    assert setup.journal.path.read_bytes() == data
    setup.journal.path.rename(tmp_path / "aside")  # the way out that the error names
    Setup(tmp_path).journal.close()


def test_unusable_directories(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for directory in (in_the_way, in_the_way / "below"):
        with pytest.raises(JournalError, match=r"cannot keep a journal in .*`dir` under \[journal\]"):
            Setup(directory)
        with pytest.raises(JournalError, match="cannot keep a journal in"):
            check_directory(directory)
    check_directory(tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


def test_a_directory_without_the_right_to_write(tmp_path: Path) -> None:
    """As root every directory is writable, so the refusal comes from the disk's stand-in."""

    def refuse(change: Change) -> OSError | None:
        return PermissionError(errno.EACCES, "Permission denied") if change[0] == "create" else None

    with pytest.raises(JournalError, match=r"Permission denied; give the user of the node \(uid \d+\) the right"):
        Setup(tmp_path, files=FailingFiles(refuse))
    with pytest.raises(JournalError, match="Permission denied"):
        check_directory(tmp_path, FailingFiles(refuse))


def test_unknown_fsync_mode(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="group, never"):
        Setup(tmp_path, fsync="sometimes")


def test_without_fsync_nothing_is_synced_but_the_file_itself(tmp_path: Path) -> None:
    files = MemoryFiles()
    setup = Setup(Path("/journal"), files=files, fsync="never")
    before = sum(change[0] == "sync" for change in files.trace)
    setup.put(messages(10))
    assert sum(change[0] == "sync" for change in files.trace) == before
    setup.journal.close()
