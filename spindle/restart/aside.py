"""Putting aside what nodes have of a logged topic, so that it can begin anew with another definition.

Rules: all of it goes, its standing (`spindle.restart.ledger`) too: that alone would say that others have the topic's
messages. Nothing that a node has open is touched. Files are moved, one by one, to where none of the same name is; who
is interrupted does it again.
"""

from __future__ import annotations

import dataclasses
import errno
import re
from pathlib import Path

from spindle.errors import JournalError
from spindle.journal.directory import directory_error
from spindle.journal.errors import JournalBusy
from spindle.journal.files import Files, OsFiles
from spindle.journal.names import LOCK_SUFFIX, file_safe, lock_name


@dataclasses.dataclass
class PutAside:
    """What was moved of one node's journal."""

    node_id: int
    names: list[str]


def set_aside(directory: Path | str, out: Path | str, topic: str, node_id: int | None = None,
              files: Files | None = None) -> list[PutAside]:
    """Move everything of the topic from `directory` to the directory `out`, which is made if it is missing. Raises
    JournalError, also if there is nothing; JournalBusy if a node has it open. Then nothing was moved."""
    directory, out, files = Path(directory), Path(out), files or OsFiles()
    try:
        names = files.names(directory)
    except OSError as error:
        raise JournalError(f"{directory} can't be looked at: {error.strerror or error}") from error
    ours = re.compile(re.escape(file_safe(topic)) + r"-([0-9]+)([-.].*)\Z", re.DOTALL)
    found: dict[int, list[str]] = {}
    for name in sorted(names):
        parts = ours.match(name)
        if parts is not None and parts[2] != LOCK_SUFFIX and node_id in (None, int(parts[1])):
            found.setdefault(int(parts[1]), []).append(name)
    if not found:
        raise JournalError(f"there is nothing of topic {topic!r} in {directory}"
                           + (f" of node {node_id}" if node_id is not None else ""))
    return _moved(files, directory, out, topic, found)


def _moved(files: Files, directory: Path, out: Path, topic: str, found: dict[int, list[str]]) -> list[PutAside]:
    locks: list[int] = []
    try:
        for number in found:
            lock = files.lock(directory / lock_name(topic, number))
            if lock is None:
                raise JournalBusy(f"a running node has topic {topic!r} open in {directory}: stop node {number} first, "
                                  "and all others of its group")
            locks.append(lock)
        files.make_directory(out)
        taken = set(files.names(out)) & {name for names in found.values() for name in names}
        if taken:
            raise JournalError(f"{out / min(taken)} is there already; name another directory")
        for number, names in found.items():
            for name in names:
                files.rename(directory / name, out / name)
            files.remove(directory / lock_name(topic, number))
        files.sync_directory(out)
        files.sync_directory(directory)
    except OSError as error:
        if isinstance(error, JournalError):
            raise
        if error.errno == errno.EXDEV:
            raise JournalError(f"{out} is on another file system than {directory}; name a directory on the same one"
                               ) from error
        raise directory_error(out, error, files, "put a journal aside",
                              "Name another directory, or mend this one") from error
    finally:
        for lock in locks:
            files.close(lock)
    return [PutAside(number, names) for number, names in found.items()]


__all__ = ["PutAside", "set_aside"]
