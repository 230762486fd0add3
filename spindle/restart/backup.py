"""Backups of journals: copies that are whole, of nodes that run or not; and putting them back.

A backup is a directory of journals like any other: `spindle journal info|verify|export` and `spindle replay` read it.
Each file in it is closed. Of the file that a node is writing it has what was committed when it was copied. Beside the
files of a topic it has their standing (`spindle.restart.ledger`), as it was after them, so a group whose journals are
all restored knows its holders, and goes on from there.

Rules: a copy is made under another name, checked, synced, and named when it is whole. What a backup has already, closed
and the same, is not copied again. No message in a backup is ever overwritten: files there that the journal is not the
continuation of any more, because that was begun anew, are put aside. Restoring touches no journal that is there, and
none that is in use, and puts together nothing that doesn't belong together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spindle.errors import JournalError
from spindle.journal.errors import JournalBusy, JournalCorrupt
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import PAGE
from spindle.journal.names import lock_name, parse
from spindle.journal.reading import JournalFiles, find_journals
from spindle.journal.recovery import corrupt_error, open_scan
from spindle.journal.scan import Scan, State
from spindle.restart.disk import ASIDE_SUFFIX, free_name
from spindle.restart.ledger import SUFFIX as STANDING_SUFFIX

PART_SUFFIX = ".part"  # of the name of a copy that isn't whole yet
COPY_BYTES = 4 << 20
ATTEMPTS = 5  # at a file that its node changes meanwhile

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclasses.dataclass
class Copied:
    """What was done with one journal. `kept`: files that were there already, and the same. `aside`: what files that
    were there, of another journal of this topic, are called now."""

    topic: str
    node_id: int
    files: int = 0
    kept: int = 0
    messages: int = 0
    size: int = 0  # bytes that were copied
    live: bool = False  # a node writes it
    aside: list[str] = dataclasses.field(default_factory=list)


def backup(source: Path | str, target: Path | str, topic: str | None = None, node_id: int | None = None,
           progress: Progress | None = None, files: Files | None = None) -> list[Copied]:
    """Copy the journals in the directory `source` into the directory `target`, which is made if it is missing. Raises
    JournalError, JournalCorrupt for a damaged file: a backup of that would hide it."""
    source, target, files = Path(source), Path(target), files or OsFiles()
    journals = find_journals(source, topic, node_id, files)
    if not source.is_dir():
        raise JournalError(f"{source} is one file; name the directory of the journals, and --topic")
    if source.resolve() == target.resolve():
        raise JournalError(f"{target} is where the journals are; name another directory")
    with _explained(target, "back journals up"):
        files.make_directory(target)
        step = _Step(progress, [path for one in journals for path in one.paths])
        return [_backed_up(files, one, target, step) for one in journals]


def restore(source: Path | str, target: Path | str, topic: str | None = None, node_id: int | None = None,
            progress: Progress | None = None, files: Files | None = None) -> list[Copied]:
    """Copy the journals of a backup into a node's directory. Raises JournalError if there is a journal of the same
    topic and node already, JournalBusy if a node has it open, JournalCorrupt for a damaged backup; then nothing was
    restored of that journal."""
    source, target, files = Path(source), Path(target), files or OsFiles()
    journals = find_journals(source, topic, node_id, files)
    with _explained(target, "restore journals"):
        files.make_directory(target)
        names = set(files.names(target))
        for one in journals:
            there = sorted(name for name in names if (parts := parse(name)) is not None
                           and (parts.stem, parts.node_id) == (one.stem, one.node_id))
            standing = f"{one.stem}-{one.node_id}{STANDING_SUFFIX}"
            if there or standing in names:
                raise JournalError(f"{target / (there[0] if there else standing)} is there already: a journal is "
                                   "restored where there is none. Move its files away first, or restore another "
                                   "with --topic")
        step = _Step(progress, [path for one in journals for path in one.paths])
        return [_restored(files, one, target, step) for one in journals]


@contextmanager
def _explained(target: Path, doing: str) -> Iterator[None]:
    from spindle.journal.directory import directory_error

    try:
        yield
    except JournalError:
        raise
    except OSError as error:
        raise directory_error(target, error, OsFiles(), doing, "Name another directory, or mend this one") from error


class _Step:
    """Turns bytes of one file after the other into progress over all."""

    def __init__(self, progress: Progress | None, paths: list[Path]) -> None:
        self._progress = progress
        self._sizes = {path: path.stat().st_size if path.exists() else 0 for path in paths}
        self._before = 0

    def of(self, done: int) -> None:
        if self._progress is not None:
            self._progress(self._before + done, sum(self._sizes.values()))

    def ends(self, path: Path) -> None:
        self._before += self._sizes.get(path, 0)


def _backed_up(files: Files, journal: JournalFiles, target: Path, step: _Step) -> Copied:
    found = Copied(journal.stem, journal.node_id, aside=_put_aside(files, journal, target))
    for place, path in enumerate(journal.paths):
        try:
            _copy_file(files, path, target, step, found)
        except FileNotFoundError:
            if place and found.files + found.kept:
                raise JournalError(f"{path} has gone while its journal was copied, but files before it were not: it is "
                                   "no retention that removed it. Try again") from None
            continue  # the node keeps only so many, and this was the oldest
        step.ends(path)
    _copy_standing(files, journal, target)
    for name in files.names(target):  # what the backup had of files that are gone is the beginning of the same journal
        if name.endswith(PART_SUFFIX):
            files.remove(target / name)
    files.sync_directory(target)
    return found


def _put_aside(files: Files, journal: JournalFiles, target: Path) -> list[str]:
    """Keep, under other names, the files in `target` that the journal is not the continuation of; those names. The
    journal was begun anew since, or goes on elsewhere than it did."""
    copies = {parts.number: target / name for name in files.names(target) if (parts := parse(name)) is not None
              and (parts.stem, parts.node_id) == (journal.stem, journal.node_id)}
    numbers = [parts.number for path in journal.paths if (parts := parse(path.name)) is not None]
    common = [number for number in numbers if number in copies]
    before = copies.get(min(numbers, default=0) - 1)
    if not common:
        if not copies or (before is not None and _goes_on(files, before, journal.paths[0])):
            return []
        others = list(copies)
    else:
        paths = dict(zip(numbers, journal.paths, strict=True))
        first = next((number for number in common if not _goes_on(files, copies[number], paths[number])),
                     max(numbers) + 1)
        others = list(copies) if first == common[0] else [number for number in copies if number >= first]
    paths_aside = [copies[number] for number in sorted(others)]
    standing = target / f"{journal.stem}-{journal.node_id}{STANDING_SUFFIX}"
    if len(others) == len(copies) and standing.name in files.names(target):
        paths_aside.append(standing)
    names = [free_name(files, path, ASIDE_SUFFIX) for path in paths_aside]
    for path, name in zip(paths_aside, names, strict=True):
        files.rename(path, name)
    if names:
        files.sync_directory(target)
    return [name.name for name in names]


def _goes_on(files: Files, copy: Path, path: Path) -> bool:
    """Whether the file `path` of a journal has all that `copy` in the backup has, or is the next one behind it. Of
    files that can't be read or have gone the copying will tell, and a copy that makes no sense is replaced."""
    opened = []
    try:
        for one in (copy, path):
            opened.append(files.open(one))
        kept, scan = open_scan(files, opened[0], copy), open_scan(files, opened[1], path)
        if kept.head.file_id != scan.head.file_id:
            kept.run()
            return kept.head.number + 1 == scan.head.number and kept.next_position == scan.head.position
        kept.run()
        last = max(0, kept.end - PAGE), min(PAGE, kept.end)
        return files.read(opened[0], last[1], last[0]) == files.read(opened[1], last[1], last[0])
    except (JournalError, FileNotFoundError):
        return True
    finally:
        for handle in opened:
            files.close(handle)


def _copy_file(files: Files, path: Path, target: Path, step: _Step, found: Copied) -> None:
    """Copy one file up to its last commit, and close the copy."""
    for attempt in range(ATTEMPTS):
        handle = files.open(path)
        try:
            scan = open_scan(files, handle, path)
            found.topic = scan.head.topic
            if _is_there(files, scan, target / path.name):
                found.kept += 1
                found.messages += _messages(files, target / path.name)
                return
            scan.run(step.of)
            if scan.state is State.CORRUPT:
                raise corrupt_error(scan)
            if not _write_copy(files, handle, scan, target / path.name):
                if attempt < ATTEMPTS - 1:
                    continue  # its node has cut it meanwhile, or begun it anew
                raise JournalError(f"{path} changes faster than it can be copied; try again")
            found.files += 1
            found.messages += scan.summary.messages
            found.size += scan.end
            found.live = found.live or scan.state is State.LIVE
            return
        finally:
            files.close(handle)


def _is_there(files: Files, scan: Scan, copy: Path) -> bool:
    """True if the backup has this file, closed, as it is now. A file is known by its id; one that was gone on with is
    longer."""
    if copy.name not in files.names(copy.parent):
        return False
    handle = files.open(copy)
    try:
        kept = open_scan(files, handle, copy)
        same = kept.head == scan.head and kept.size == scan.size
        return same and files.read(handle, PAGE, max(0, kept.size - PAGE)) == files.read(
            scan._handle, PAGE, max(0, scan.size - PAGE))
    except JournalError:
        return False
    finally:
        files.close(handle)


def _messages(files: Files, path: Path) -> int:
    handle = files.open(path)
    try:
        return open_scan(files, handle, path).run().summary.messages
    finally:
        files.close(handle)


def _write_copy(files: Files, handle: int, scan: Scan, copy: Path) -> bool:
    """Write what `scan` has found whole, closed, under the name `copy`. False if it is another file by now."""
    part = copy.with_name(copy.name + PART_SUFFIX)
    made = files.create(part)
    try:
        at = 0
        while at < scan.end:
            data = files.read(handle, min(COPY_BYTES, scan.end - at), at)
            if not data:
                return False
            files.write(made, [data], at)
            at += len(data)
        files.write(made, [scan.summary.closing(scan.end)], scan.end)
        files.sync(made)
        check = open_scan(files, made, part).run()
        if check.state is not State.CLOSED or check.summary.messages != scan.summary.messages:
            return False
    except JournalCorrupt:
        return False
    except OSError:
        files.remove(part)  # a full disk gets its room back
        raise
    finally:
        files.close(made)
    files.rename(part, copy)
    return True


def _copy_standing(files: Files, journal: JournalFiles, target: Path) -> None:
    """Behind the files: no message in them is later than it says."""
    name = f"{journal.stem}-{journal.node_id}{STANDING_SUFFIX}"
    source = journal.paths[0].parent
    if name not in files.names(source):
        return
    _copy_plain(files, source / name, target / name)


def _copy_plain(files: Files, path: Path, copy: Path) -> None:
    handle = files.open(path)
    try:
        data = files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)
    part = copy.with_name(copy.name + PART_SUFFIX)
    made = files.create(part)
    try:
        files.write(made, [data], 0)
        files.sync(made)
    finally:
        files.close(made)
    files.rename(part, copy)


def _restored(files: Files, journal: JournalFiles, target: Path, step: _Step) -> Copied:
    found = Copied(journal.stem, journal.node_id)
    made: list[Path] = []
    lock: int | None = None
    before: Scan | None = None
    try:
        for path in journal.paths:
            handle = files.open(path)
            try:
                scan = open_scan(files, handle, path)
                found.topic = scan.head.topic
                if lock is None:
                    lock = files.lock(target / lock_name(scan.head.topic, scan.head.node_id))
                    if lock is None:
                        raise JournalBusy(f"a running node has topic {scan.head.topic!r} open in {target}: stop node "
                                          f"{scan.head.node_id} first")
                scan.run(step.of)
                if scan.state is State.CORRUPT:
                    raise corrupt_error(scan)
                if before is not None and (before.head.number + 1, before.next_position) != (
                        scan.head.number, scan.head.position):
                    raise JournalError(f"{path} doesn't go on where the file before it ends: they are of different "
                                       f"journals, or one is missing. `spindle journal verify {path.parent}` shows "
                                       "which belong together: move the others to another directory")
                before = scan
                if not _write_copy(files, handle, scan, target / path.name):
                    raise JournalError(f"{path} changes while it is read; is it in use?")
                made.append(target / path.name)
                found.files += 1
                found.messages += scan.summary.messages
                found.size += scan.end
            finally:
                files.close(handle)
            step.ends(path)
        _copy_standing(files, journal, target)
        files.sync_directory(target)
        made = []
        return found
    except BaseException:
        standing = f"{journal.stem}-{journal.node_id}{STANDING_SUFFIX}"
        made.append(target / standing)  # there was none before
        made += [target / (name + PART_SUFFIX) for name in (*(path.name for path in journal.paths), standing)]
        raise
    finally:
        for path in made:  # all of a journal or nothing
            files.remove(path)
        if lock is not None:
            files.close(lock)


__all__ = ["Copied", "backup", "restore"]
