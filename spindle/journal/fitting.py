"""Whether the journal that a node has on disk is of the topic as it is declared.

Why: a group keeps a topic's definition only while it runs. When all of its nodes were down, whoever declares the topic
first says what it is; and of a logged topic there are messages on disk. If these are of another type, readers would
take them for samples of theirs. So whoever declares it is told at once what its own node has, and whoever opens it what
the node has whose journal it would go on with (`spindle.restart.catching_up`). What a node has otherwise doesn't
matter: it is put aside when the node takes over what the others have.

Rules: what decides is the newest file's head, by the same measure as two declarations in one group: types that may
change go with each other, bytes go with nothing else. Slots, window and history may change: journals know none of them.
What can't be read says nothing here; opening it says why.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from spindle.errors import JournalError, TopicMismatch
from spindle.journal.files import Files, OsFiles
from spindle.journal.recovery import journal_numbers, open_scan

if TYPE_CHECKING:
    from spindle.group.topics import TopicSpec


def check_fits(directory: Path, spec: TopicSpec, node_id: int, files: Files | None = None) -> None:
    """Raise TopicMismatch if this node's journal of the topic is of another type. Blocks."""
    found = newest_type(directory, spec.name, node_id, files or OsFiles())
    if found is not None:
        path, type_name, type_hash = found
        check_type(spec, type_name, type_hash, f"node {node_id}", f" in {path}")


def check_type(spec: TopicSpec, type_name: str, type_hash: bytes, holder: str, place: str = "") -> None:
    """Raise TopicMismatch if messages of this type are none of the topic's. `holder`, `place`: who has them, and where,
    for people."""
    try:
        dataclasses.replace(spec, type_name=type_name, type_hash=type_hash).check_same(spec)
    except TopicMismatch:
        raise TopicMismatch(
            f"topic {spec.name!r} is logged, and {holder} has messages of another type of it on disk: "
            f"{_shown(type_name, type_hash, spec.type_name)}{place}, and you want "
            f"{_shown(spec.type_name, spec.type_hash, type_name)}. Use that type, or another topic name; or, while "
            f"nobody has it open, give up what it is: `spindle topics {quote(spec.name)} --redefine` puts its journals "
            "aside, and the next declaration says what it is (docs/operations.md, \"Journals\")") from None


def newest_type(directory: Path, topic: str, node_id: int, files: Files) -> tuple[Path, str, bytes] | None:
    """The newest file that says anything, and the type in its head: name and hash. Blocks."""
    try:
        numbered = journal_numbers(files, directory, topic, node_id)
    except (JournalError, OSError):
        return None
    for _, path in sorted(numbered, reverse=True):
        try:
            handle = files.open(path)
            try:
                head = open_scan(files, handle, path).head
                return path, head.type_name, bytes.fromhex(head.type_hash)
            finally:
                files.close(handle)
        except (JournalError, OSError, ValueError):
            continue
    return None


def _shown(name: str, type_hash: bytes, other: str) -> str:
    """A type for people; with its hash if the names are the same."""
    return name if name != other else f"{name} ({type_hash.hex()[:16]})"


__all__ = ["check_fits", "check_type", "newest_type"]
