"""What people and scripts do with journals: look, check, repair, convert.

    info(path)           what is there: topics, files, counts, times
    verify(path)         check every byte; `repair=True` cuts a torn tail
    read(path)           the messages, as Python objects
    export(path, out)    the messages as JSON lines or CSV

`path` is always a directory of journals or one file. Nothing here needs a running node, and all of it may be used
beside one, except that a journal in use is not repaired.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spindle.errors import JournalError
from spindle.journal.errors import JournalBusy, JournalCorrupt, NotAJournal
from spindle.journal.exporting import export
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import MESSAGE, WRITER_MASK, Damage
from spindle.journal.live import unpack_index
from spindle.journal.names import lock_path, parse
from spindle.journal.reading import (
    Channels,
    JournalFiles,
    JournalMessage,
    Progress,
    add_channels,
    find_journals,
    messages_of,
    read,
    step_of,
)
from spindle.journal.recovery import misnamed, open_scan
from spindle.journal.recovery import repair as repair_file
from spindle.journal.scan import Scan, State

__all__ = ["FileReport", "JournalMessage", "Report", "Status", "export", "info", "read", "verify"]


class Status(str, enum.Enum):
    """Verdict on a file or a journal, from best to worst."""

    OK = "ok"  # whole
    TORN = "torn"  # ends with bytes that a crash left unfinished; everything before is whole
    CORRUPT = "corrupt"  # damaged

    @property
    def rank(self) -> int:
        """0 is best."""
        return list(Status).index(self)


@dataclasses.dataclass
class FileReport:
    """What verify found out about one file."""

    path: Path
    status: Status = Status.OK
    topic: str = ""
    type_name: str = ""
    node_id: int = -1
    number: int = 0  # of the file within its journal, from 1
    group: str = ""
    closed: bool = False  # ends with a summary; otherwise it is being written, or its node was killed
    in_use: bool = False  # a running process holds the journal
    size: int = 0  # bytes of the file
    data_end: int = 0  # where the whole commits end
    commits: int = 0
    messages: int = 0
    writers: int = 0
    first_position: int = 0  # of the first message, or of the next one if there is none
    next_position: int = 0
    first_order: tuple[int, int] | None = None  # view id and sequence number of the first message
    last_order: tuple[int, int] | None = None
    start_time: int = 0  # log time of the first message, UTC ns
    end_time: int = 0
    problem: str = ""  # empty if whole
    problem_offset: int = -1
    repaired: bool = False
    torn_path: Path | None = None  # where a repair put the torn tail
    torn_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {key: _plain(value) for key, value in dataclasses.asdict(self).items()}


@dataclasses.dataclass
class Report:
    """What verify found out. `ok` says it in one word, `problems` in sentences."""

    path: Path
    files: list[FileReport] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    status: Status = Status.OK

    @property
    def ok(self) -> bool:
        """True if every file is whole and they follow each other without a gap."""
        return self.status is Status.OK

    @property
    def messages(self) -> int:
        """Whole messages in all files."""
        return sum(one.messages for one in self.files)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "status": self.status.value,
            "messages": self.messages,
            "problems": self.problems,
            "files": [one.to_dict() for one in self.files],
        }

    def note(self, status: Status, problem: str) -> None:
        """One more problem; the status is that of the worst."""
        self.problems.append(problem)
        if status.rank > self.status.rank:
            self.status = status


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value.value if isinstance(value, enum.Enum) else value


def verify(
    path: Path | str,
    *,
    topic: str | None = None,
    node_id: int | None = None,
    repair: bool = False,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Report:
    """Check every journal at `path`: checksums, structure, each message, the order, the counts, the summary, and that
    the files of a journal follow each other without a gap.

    repair    cut a torn tail off, keep it beside as `<file>.torn`, and close the file. Damage of another kind is never
              touched
    progress  called with bytes read and bytes in all
    Raises JournalError if there is nothing to verify, JournalBusy if a journal to be repaired is in use.
    """
    files = files or OsFiles()
    report = Report(Path(path))
    journals = find_journals(path, topic, node_id, files)
    every = [one for journal in journals for one in journal.paths]
    sizes = [one.stat().st_size for one in every] if progress else []
    for journal in journals:
        reports = []
        for one in journal.paths:
            step = step_of(progress, sizes, every.index(one)) if progress else None
            found = _verify_file(files, one, repair, step, in_its_place=one != report.path)
            if found is not None:
                reports.append(found)
        report.files += reports
        for done in reports:
            if done.status is not Status.OK and not done.repaired:
                report.note(done.status, f"{done.path}: {done.problem}")
        for before, after in itertools.pairwise(reports):
            problem = _gap(before, after)
            if problem:
                report.note(Status.CORRUPT, problem)
    return report


def _verify_file(files: Files, path: Path, wants_repair: bool, step: Callable[[int], None] | None,
                 in_its_place: bool) -> FileReport | None:
    """The report on one file; None if it is gone, because a running node keeps only so many. `in_its_place`: a node may
    go on with it, so it must be what its name says."""
    report = FileReport(path)
    parts = parse(path.name)
    if parts:
        report.node_id, report.number = parts.node_id, parts.number
    try:
        handle = files.open(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and path.name not in files.names(path.parent):
            return None
        report.status, report.problem = Status.CORRUPT, f"cannot be read: {error.strerror}"
        return report
    try:
        report.size = files.size(handle)
        scan = open_scan(files, handle, path)
        report.in_use = _in_use(files, path)
        _check_messages(scan, step, report)
        _fill(report, scan)
        if in_its_place and (problem := misnamed(path, scan)):
            report.status, report.problem, report.problem_offset = Status.CORRUPT, problem, 0
    except NotAJournal as error:
        report.status, report.problem, report.problem_offset = Status.CORRUPT, str(error), 0
    except JournalCorrupt as error:
        report.status, report.problem, report.problem_offset = Status.CORRUPT, str(error), error.offset
    finally:
        files.close(handle)
    if wants_repair and report.status is Status.TORN:
        _repair_file(files, report)
    return report


def _check_messages(scan: Scan, step: Callable[[int], None] | None, report: FileReport) -> None:
    """Read the file through; where a commit with good checksums contradicts itself, note Damage in the scan."""
    channels: Channels = {}
    log_time = 0
    try:
        for layout, body in scan.commits(progress=step):
            if layout.channel_records:
                add_channels(channels, layout)
            found: dict[int, list[int]] = {}  # what the message indexes should say
            offset = sum(map(len, layout.channel_records))
            for message in messages_of(scan.head.topic, layout, body, channels):
                if message.log_time < log_time:
                    raise Damage(layout.offset, "the log time falls back")
                log_time = message.log_time
                channel = MESSAGE.unpack_from(body, offset)[2]
                found.setdefault(channel, []).extend((log_time, offset))
                offset += MESSAGE.size + len(message.payload)
            indexed = {channel: list(unpack_index(scan.record(at, len(body))[1]))
                       for channel, at in layout.index_offsets.items()}
            if indexed != found or log_time != layout.end_time:
                raise Damage(layout.offset, "the message indexes or times do not agree with the messages")
    except Damage as damage:
        scan.damage, scan.state = damage, State.CORRUPT


def _fill(report: FileReport, scan: Scan) -> None:
    head, summary = scan.head, scan.summary
    report.topic, report.type_name, report.group = head.topic, head.type_name, head.group
    report.node_id, report.number = head.node_id, head.number
    report.size, report.data_end = scan.size, scan.end
    report.closed = scan.state is State.CLOSED
    report.commits, report.messages, report.writers = summary.commits, summary.messages, summary.channels
    report.first_position, report.next_position = head.position, scan.next_position
    report.start_time, report.end_time = summary.times
    if scan.first and scan.last:
        report.first_order = (scan.first.record.view_id, scan.first.record.sequence)
        report.last_order = (scan.last.record.view_id, scan.last.record.last_sequence)
    if scan.damage is not None:
        report.problem_offset = scan.damage.offset
        if scan.state is State.TORN:
            report.status = Status.TORN
            report.torn_bytes = scan.size - scan.end
            report.problem = (f"torn tail: the last {report.torn_bytes:,} bytes make no whole commit ({scan.damage}); "
                              f"the {summary.messages:,} messages before are whole. The next start of the node, or "
                              "`spindle journal verify --repair`, cuts the tail off and keeps it beside the file")
        else:
            report.status = Status.CORRUPT
            report.problem = (f"damaged before its end: {scan.damage}; {summary.messages:,} messages before it are "
                              "whole, and there is more behind it. Put back a copy, or read what is whole on both "
                              "sides with `spindle journal export --skip-damaged`")


def _in_use(files: Files, path: Path) -> bool:
    """True if a running process holds the journal that `path` belongs to."""
    lock = lock_path(path)
    if lock is None or lock.name not in files.names(path.parent):
        return False
    try:
        handle = files.lock(lock)
    except OSError:
        return False  # not ours to lock: say what can be seen
    if handle is None:
        return True
    files.close(handle)
    return False


def _repair_file(files: Files, report: FileReport) -> None:
    """Cut the torn tail of one file, under the journal's lock."""
    lock = lock_path(report.path)
    held = files.lock(lock) if lock else None
    if lock and held is None:
        raise JournalBusy(f"{report.path} is in use by a running node and is not repaired; stop the node first")
    try:
        handle = files.open(report.path, writable=True)
        try:
            scan = open_scan(files, handle, report.path).run()
            if scan.state is State.TORN:
                report.torn_path, report.torn_bytes = repair_file(files, handle, scan)
                report.repaired = report.closed = True
                report.size = files.size(handle)
        finally:
            files.close(handle)
    except OSError as error:
        if isinstance(error, JournalError):
            raise
        raise JournalError(f"cannot repair {report.path}: {error.strerror}") from error
    finally:
        if held is not None:
            files.close(held)


def _gap(before: FileReport, after: FileReport) -> str:
    """What is wrong between two files that should follow each other; empty if nothing is."""
    if Status.CORRUPT in (before.status, after.status):
        return ""  # said already, and its counts mean nothing
    if after.number != before.number + 1:
        return f"between {before.path.name} and {after.path.name} a file is missing"
    if not before.closed:
        return f"{before.path}: not closed although {after.path.name} follows it, so its end is missing"
    if after.first_position != before.next_position:
        return (f"{after.path}: begins with message {after.first_position:,} of the journal, but {before.path.name} "
                f"ends before {before.next_position:,}")
    same_life = before.group == after.group != ""
    if same_life and before.last_order and after.first_order and after.first_order <= before.last_order:
        return f"{after.path}: begins in the order before the end of {before.path.name}"
    return ""


def info(
    path: Path | str,
    *,
    topic: str | None = None,
    node_id: int | None = None,
    progress: Progress | None = None,
    files: Files | None = None,
) -> dict[str, Any]:
    """What is at `path`, JSON-able: {"path", "journals": [...]}, each journal with

    topic, type, encoding, node, groups   of its newest file that can be read
    messages, commits, bytes, writers     over all files; `writers` as [{"sender", "writer", "messages"}]
    start_time, end_time                  log times, UTC ns; 0 if there is no message
    first, last                           {"view", "sequence", "position"} of the first and last message, or None
    state                                 "live" (in use), "closed", "unfinished" (its node was killed), "torn" or
                                          "corrupt"
    files                                 [{"path", "number", "size", "messages", "commits", "state", "problem"}]

    Checks commits by their CRC on the way, not each message as `verify` does. Raises JournalError if there is none.
    """
    files = files or OsFiles()
    journals = find_journals(path, topic, node_id, files)
    every = [one for journal in journals for one in journal.paths]
    sizes = [one.stat().st_size for one in every] if progress else []
    found = []
    for journal in journals:
        steps = [step_of(progress, sizes, every.index(one)) if progress else None for one in journal.paths]
        found.append(_journal_info(files, journal, steps))
    return {"path": str(path), "journals": found}


def _journal_info(files: Files, journal: JournalFiles, steps: list[Callable[[int], None] | None]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "topic": journal.stem, "type": "", "encoding": "", "node": journal.node_id, "groups": [], "messages": 0,
        "commits": 0, "bytes": 0, "writers": [], "start_time": 0, "end_time": 0, "first": None, "last": None,
        "state": "", "files": [],
    }
    writers: dict[tuple[int, int], int] = {}
    for path, step in zip(journal.paths, steps, strict=True):
        one: dict[str, Any] = {"path": str(path), "number": 0, "size": 0, "messages": 0, "commits": 0,
                               "state": "corrupt", "problem": ""}
        answer["files"].append(one)
        try:
            handle = files.open(path)
        except OSError as error:
            one["problem"] = f"cannot be read: {error.strerror}"
            continue
        try:
            one["size"] = files.size(handle)
            _file_info(open_scan(files, handle, path), step, one, answer, writers)
        except JournalError as error:
            one["problem"] = str(error)
        finally:
            files.close(handle)
        if one["state"] == "live" and not _in_use(files, path):
            one["state"] = "unfinished"
    answer["writers"] = [{"sender": sender, "writer": writer, "messages": count}
                         for (sender, writer), count in sorted(writers.items())]
    answer["bytes"] = sum(one["size"] for one in answer["files"])
    states = [one["state"] for one in answer["files"]]
    answer["state"] = next((bad for bad in ("corrupt", "torn") if bad in states), states[-1])
    return answer


def _file_info(scan: Scan, step: Callable[[int], None] | None, one: dict[str, Any], answer: dict[str, Any],
               writers: dict[tuple[int, int], int]) -> None:
    """Read one file and add what it says to `one` and `answer`."""
    channels: Channels = {}
    for layout, _ in scan.commits(progress=step):
        add_channels(channels, layout)
        for channel, count in layout.counts.items():
            if channel in channels:
                sender, writer = channels[channel]
                one_of = sender, writer & WRITER_MASK
                writers[one_of] = writers.get(one_of, 0) + count
        record = layout.record
        if answer["first"] is None:
            answer["first"] = {"view": record.view_id, "sequence": record.sequence, "position": record.position}
            answer["start_time"] = layout.start_time
        answer["end_time"] = layout.end_time
        answer["last"] = {"view": record.view_id, "sequence": record.last_sequence,
                          "position": record.position + record.count - 1}
    head, summary = scan.head, scan.summary
    one.update(number=head.number, size=scan.size, messages=summary.messages, commits=summary.commits,
               state=scan.state.value, problem=str(scan.damage) if scan.damage else "")
    answer.update(topic=head.topic, type=head.type_name, encoding=head.schemas[-1].message_encoding, node=head.node_id)
    answer["messages"] += summary.messages
    answer["commits"] += summary.commits
    if head.group and head.group not in answer["groups"]:
        answer["groups"].append(head.group)
