"""Names of journal files: `<topic>-<node id>-<number>.mcap`.

Why not the topic as it is: topics may contain slashes, dots and any letter. The file-safe form keeps letters, digits
and underscores and writes every other byte as %XX, so two topics never share a name and the name can be read back.
A name that would be too long for a file system is cut and gets a digest; the file itself says its topic in full.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

STEM_BYTES_MAX = 160  # of the topic's part; the limit of file systems is 255 bytes for the whole name
SUFFIX = ".mcap"
UNFINISHED_SUFFIX = ".mcap.new"  # being made; has no messages yet
TORN_SUFFIX = ".torn"  # appended to the name of the file that the bytes were cut from
LOCK_SUFFIX = ".lock"

_NAME = re.compile(r"(?P<stem>.+)-(?P<node>[0-9]+)-(?P<number>[0-9]+)\.mcap\Z", re.DOTALL)
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


class FileName(NamedTuple):
    """A journal's file name taken apart. `stem` is the file-safe form of the topic."""

    stem: str
    node_id: int
    number: int


def file_safe(topic: str) -> str:
    """The form of `topic` that is used in file names."""
    raw = topic.encode()
    stem = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(stem) > STEM_BYTES_MAX:
        # "%+" can't come from the encoding above, so a cut name is never another topic's whole name.
        stem = stem[: STEM_BYTES_MAX - 34] + "%+" + hashlib.sha256(raw).hexdigest()[:32]
    return stem


def file_name(topic: str, node_id: int, number: int) -> str:
    """Name of the `number`th file (from 1) of the journal of `topic` on node `node_id`."""
    return f"{file_safe(topic)}-{node_id}-{number:06d}{SUFFIX}"


def lock_name(topic: str, node_id: int) -> str:
    """Name of the file that a running node locks while it writes this journal."""
    return f"{file_safe(topic)}-{node_id}{LOCK_SUFFIX}"


def parse(name: str) -> FileName | None:
    """The parts of a journal's file name, or None if `name` isn't one."""
    found = _NAME.match(name)
    return FileName(found["stem"], int(found["node"]), int(found["number"])) if found else None


def lock_path(path: Path) -> Path | None:
    """Lock file of the journal that the file `path` belongs to by its name; None if the name isn't a journal's."""
    parts = parse(path.name)
    return path.with_name(f"{parts.stem}-{parts.node_id}{LOCK_SUFFIX}") if parts else None


def is_of_journal(path: Path) -> bool:
    """True if `path` is a file of a journal that some node writes or has written: its lock lies beside it."""
    lock = lock_path(path)
    return lock is not None and lock.exists() and path.exists()
