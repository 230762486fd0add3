"""What a node keeps beside a journal: its standing in the topic, in `<topic>-<node>.standing`.

Why a file of its own: the journal grows by messages, this is replaced as a whole, a few hundred bytes a view change,
and must be right even where the journal is damaged. JSON with a checksum, because somebody will look at it in a bad
hour.

Rules: an update is on the disk, under the file's name, when it returns (written beside, synced, renamed, directory
synced). `seen_view` only grows, and is written before a message of that view is acknowledged; so are holders. Any
thread may update; one lock sees to it, and readers don't wait for it: the event loop reads too, and a disk may take
its time over an update. A file that can't be read is JournalCorrupt, never taken for an empty one.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import zlib
from pathlib import Path
from typing import Any

from spindle.journal.errors import JournalCorrupt
from spindle.journal.files import Files, OsFiles
from spindle.journal.names import file_safe, parse
from spindle.journal.recovery import open_scan
from spindle.restart.chain import Holders, Life, Standing, Successor

SUFFIX = ".standing"
NEW_SUFFIX = ".standing.new"
SIZE_MAX = 16 << 20  # bytes; a file that is larger is none of ours


def ledger_path(directory: Path, topic: str, node_id: int) -> Path:
    return directory / f"{file_safe(topic)}-{node_id}{SUFFIX}"


class Ledger:
    """The standing of one node in one topic. Made without touching the disk."""

    def __init__(self, directory: Path, topic: str, node_id: int, files: Files | None = None) -> None:
        self.path = ledger_path(directory, topic, node_id)
        self._topic, self._node_id = topic, node_id
        self._files = files or OsFiles()
        self._updating = threading.Lock()  # held while the disk writes
        self._loading = threading.Lock()  # held while the file is read, once
        self._standing: Standing | None = None
        self.exists = False  # known after the first read: False means a journal without a ledger, or none at all

    def read(self) -> Standing:
        """The standing that is on the disk; an empty one if there is no file. Looks there the first time only, and
        waits for no update. Raises JournalCorrupt, OSError."""
        standing = self._standing
        if standing is not None:
            return standing
        with self._loading:
            if self._standing is None:
                try:
                    loaded = load(self._files, self.path)
                    self.exists = True
                except FileNotFoundError:
                    loaded = Standing()
                self._standing = loaded
            return self._standing

    def update(self, **changes: Any) -> Standing:
        """Replaces fields of the standing, durably; writes nothing if nothing changes. Raises like read."""
        with self._updating:
            before = self.read()
            changes["seen_view"] = max(before.seen_view, changes.get("seen_view", -1))
            after = dataclasses.replace(before, **changes)
            if after != before or not self.exists:
                self._write(after)
                self._standing, self.exists = after, True
            return after

    def replace(self, standing: Standing) -> None:
        """Writes this one, durably, in the place of one that can't be read. Raises OSError."""
        with self._updating:
            self._write(standing)
            self._standing, self.exists = standing, True

    def _write(self, standing: Standing) -> None:
        self._files.make_directory(self.path.parent)
        unfinished = self.path.with_name(self.path.name.removesuffix(SUFFIX) + NEW_SUFFIX)
        handle = self._files.create(unfinished)
        try:
            self._files.write(handle, [encode(standing, self._topic, self._node_id)], 0)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(unfinished, self.path)
        self._files.sync_directory(self.path.parent)


def load(files: Files, path: Path) -> Standing:
    """What the file says. Raises JournalCorrupt, OSError."""
    handle = files.open(path)
    try:
        return decode(files.read(handle, min(files.size(handle), SIZE_MAX), 0), path)
    finally:
        files.close(handle)


def encode(standing: Standing, topic: str, node_id: int) -> bytes:
    """A JSON line, and a line with its checksum."""
    content = {"topic": topic, "node": node_id, **dataclasses.asdict(standing)}
    line = json.dumps(content, sort_keys=True).encode()
    return line + b"\n%08x\n" % zlib.crc32(line)


def decode(data: bytes, path: Path) -> Standing:
    """Raises JournalCorrupt, with the way out, if the bytes are not what encode() makes."""
    line, _, rest = data.partition(b"\n")
    try:
        if rest != b"%08x\n" % zlib.crc32(line):
            raise ValueError("the checksum does not match")
        content = json.loads(line)
        holders, successor = content["holders"], content["successor"]
        return Standing(
            lives=tuple(Life(one["name"], one["first_view"], _order(one["after"])) for one in content["lives"]),
            holders=_holders(holders) if holders is not None else None,
            whole=bool(content["whole"]),
            successor=Successor(_holders(successor["holders"]), tuple(map(int, successor["required"])),
                                bool(successor.get("renews", False)))
            if successor is not None else None,
            seen_view=int(content["seen_view"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise JournalCorrupt(f"{path} is damaged: {error}. It says who held the topic last. Put back a copy, or have "
                             f"`spindle journal repair --topic TOPIC {path.parent}` put one in its place that claims "
                             "nothing: the node then gets all from the others, or, where there are none, goes on with "
                             "its messages if [journal] restart is \"any\"", path) from None


def _order(pair: Any) -> tuple[int, int]:
    view_id, sequence = pair
    return int(view_id), int(sequence)


def _holders(content: Any) -> Holders:
    return Holders(int(content["view_id"]), tuple(map(int, content["members"])))


def _last_view(files: Files, path: Path) -> int:
    """View of the last message up to the end of a journal's file; -1 if there is none, or it can't be read."""
    try:
        handle = files.open(path)
        try:
            scan = open_scan(files, handle, path).run()
        finally:
            files.close(handle)
    except OSError:  # damage is one of them
        return -1
    return scan.last.record.view_id if scan.last is not None else scan.head.last_view


def view_floor(directory: Path | None, node_id: int, files: Files | None = None) -> int:
    """The first view id that is later than all that the journals of this node know of; 0 without journals. What can't
    be read is left out: whoever opens such a topic is told why."""
    files = files or OsFiles()
    floor = 0
    if directory is None:
        return floor
    try:
        names = files.names(directory)
    except OSError:
        return floor
    last: dict[str, tuple[int, str]] = {}  # of each journal, its newest file
    for name in names:
        parts = parse(name)
        if parts is not None and parts.node_id == node_id:
            last[parts.stem] = max(last.get(parts.stem, (0, "")), (parts.number, name))
    for stem, (_, name) in last.items():
        if f"{stem}-{node_id}{SUFFIX}" not in names:  # lost; else a node that is alone would wait for a later view
            floor = max(floor, _last_view(files, directory / name) + 1)
    for name in names:
        if not name.endswith(f"-{node_id}{SUFFIX}"):
            continue
        try:
            standing = load(files, directory / name)
        except OSError:  # damage is one of them
            continue
        known = [standing.seen_view]
        if standing.holders is not None:
            known.append(standing.holders.view_id)
        if standing.successor is not None:
            known.append(standing.successor.holders.view_id)
        known += [life.first_view for life in standing.lives]
        floor = max(floor, *(view_id + 1 for view_id in known))
    return floor
