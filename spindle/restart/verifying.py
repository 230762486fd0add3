"""`spindle journal verify`: the files of journals, and beside them the standings, without which a node takes none up.

Why not in `spindle.journal.tools`: what a standing says is this room's.
"""

from __future__ import annotations

from pathlib import Path

from spindle.errors import JournalError
from spindle.journal.files import Files, OsFiles
from spindle.journal.names import lock_path, parse
from spindle.journal.reading import JournalFiles, Progress, find_journals
from spindle.journal.tools import Report, Status, verify
from spindle.restart.ledger import SUFFIX, load


def verify_journals(path: Path, topic: str | None = None, node_id: int | None = None, repair: bool = False,
                    progress: Progress | None = None, files: Files | None = None) -> Report:
    """As `spindle.journal.tools.verify`; a standing that is damaged, or missing in a node's directory, is a problem,
    too. `repair` touches none: `spindle journal repair` does."""
    files = files or OsFiles()
    report = verify(path, topic=topic, node_id=node_id, repair=repair, progress=progress, files=files)
    for journal in find_journals(path, topic, node_id, files):
        if all(parse(one.name) is not None for one in journal.paths):
            problem = _problem(files, journal, report)
            if problem:
                report.note(Status.CORRUPT, problem)
    return report


def _problem(files: Files, journal: JournalFiles, report: Report) -> str:
    """What is the matter with the standing of a journal; empty if nothing is."""
    directory = journal.paths[0].parent
    path = directory / f"{journal.stem}-{journal.node_id}{SUFFIX}"
    try:
        load(files, path)
    except FileNotFoundError:
        found = [one for one in report.files if one.path in journal.paths]
        lock = lock_path(journal.paths[0])
        # Copies of files have none; nor has a journal in which nothing is yet, or a node may be just writing it.
        if lock is None or lock.name not in files.names(directory) or any(one.in_use for one in found) or not any(
                one.messages for one in found):
            return ""
        return (f"{path} is missing: it says who held the topic last. Put back a copy. Without it the node goes on as "
                "if it alone had held the topic; if other nodes may have more, move its journal away with `spindle "
                "journal set-aside`: the node then gets all from them")
    except JournalError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""


__all__ = ["verify_journals"]
