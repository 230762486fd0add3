"""`spindle journal repair`: damaged journals are cut before their damage; their nodes get the rest from the others.

Why not by itself: damage in the middle means that a disk or somebody changed what was safe once. That is worth a look
by somebody who knows whether the other nodes have it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from spindle.errors import JournalError
from spindle.journal.errors import JournalBusy
from spindle.journal.files import Files, OsFiles
from spindle.journal.names import file_safe
from spindle.journal.reading import JournalFiles, find_journals
from spindle.journal.recovery import open_scan
from spindle.restart.disk import Store, cut_damage


class Repaired(NamedTuple):
    """One journal that was damaged. `kept` are the files that hold what was cut off."""

    topic: str
    node_id: int
    kept: list[Path]


def repair_journals(path: Path, topic: str | None = None, node_id: int | None = None,
                    files: Files | None = None) -> list[Repaired]:
    """Cuts the damaged ones of the journals at `path`, a directory or one file. Raises JournalError; JournalBusy if
    nothing is done because nodes have them."""
    files = files or OsFiles()
    directory = path if path.is_dir() else path.parent
    found: list[Repaired] = []
    busy: JournalBusy | None = None
    for journal in find_journals(path, topic, node_id, files):
        name = topic or _topic_of(files, journal)
        try:
            kept = cut_damage(Store(directory, name, journal.node_id, files))
        except JournalBusy as error:
            busy = error
            continue
        except OSError as error:
            if isinstance(error, JournalError):
                raise
            raise JournalError(f"cannot repair {journal.paths[-1]}: {error.strerror}") from error
        if kept:
            found.append(Repaired(name, journal.node_id, kept))
    if busy is not None and not found:
        raise busy
    return found


def _topic_of(files: Files, journal: JournalFiles) -> str:
    """The topic in full, from the first file whose head can be read."""
    for path in journal.paths:
        try:
            handle = files.open(path)
        except OSError:
            continue
        try:
            topic: str = open_scan(files, handle, path).head.topic
            if file_safe(topic) == journal.stem:
                return topic
        except JournalError:
            continue
        finally:
            files.close(handle)
    raise JournalError(f"no file of the journal {journal.stem} of node {journal.node_id} says what its topic is "
                       "called: give --topic")
