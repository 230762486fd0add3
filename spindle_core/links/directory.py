"""What a node offers to links: its regions by name, in a hash that others read one-sidedly.

Why: finding a region costs a read or two, and no processor of its owner (KRCore, sections 4.2 and 4.3: the meta server,
ValidMR). Each node has a directory of its own regions, so each word of it has one writer.

A name has its place in one of WINDOW entries from its hash on, and all of these come with one read. An entry may be
seen half written: its checksum tells, and who reads it reads again. The memory has WINDOW - 1 entries more than places,
so no read wraps around.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from spindle_core.memory import Mapping

WINDOW = 16  # entries that a name may stand in
NAME_MAX = 64  # bytes
PLACES = 8192
ENTRY = struct.Struct("<IBB2xQQ32s64s8x")  # checksum, in use, length of the name, version, writer, grant, name
ENTRY_SIZE = ENTRY.size  # bytes: two lines
WINDOW_SIZE = WINDOW * ENTRY_SIZE  # bytes that a lookup reads


class Torn(Exception):
    """An entry was read while it was being written: read again."""


@dataclass(frozen=True)
class Entry:
    """A region that a node offers. `grant`: as the regions of its owner give it to `writer` (a node's id, 0: nobody may
    write); `version` grows with each change of the name."""

    name: str
    version: int
    grant: bytes
    writer: int


def place_of(name: str) -> int:
    """Offset, in bytes, of the WINDOW_SIZE bytes among which a name stands. ValueError for what can't be a name."""
    raw = name.encode()
    if not 1 <= len(raw) <= NAME_MAX:
        raise ValueError(f"a name of {len(raw)} bytes: must have between 1 and {NAME_MAX}")
    return zlib.crc32(raw) % PLACES * ENTRY_SIZE


def _pack(entry: Entry) -> bytes:
    raw = entry.name.encode()
    rest = ENTRY.pack(0, 1, len(raw), entry.version, entry.writer, entry.grant, raw)[4:]
    return zlib.crc32(rest).to_bytes(4, "little") + rest


def _parse(data: memoryview | bytes) -> Entry | None:
    """None: a free place. Raises Torn."""
    if not any(data[:8]):
        if any(data):
            raise Torn
        return None
    check, used, length, version, writer, grant, raw = ENTRY.unpack(data)
    if check != zlib.crc32(data[4:]) or used != 1 or not 1 <= length <= NAME_MAX:
        raise Torn
    return Entry(raw[:length].decode(errors="replace"), version, grant, writer)


def find(window: bytes, name: str) -> Entry | None:
    """The entry of a name in the bytes that were read from its place on; None: there is none. Raises Torn where one of
    them was being written, unless the name was found all the same."""
    torn = False
    for at in range(0, WINDOW_SIZE, ENTRY_SIZE):
        try:
            entry = _parse(window[at : at + ENTRY_SIZE])
        except Torn:
            torn = True
            continue
        if entry is not None and entry.name == name:
            return entry
    if torn:
        raise Torn
    return None


class Directory:
    """The owner's end. `memory` is to be registered, and its grant told to every node."""

    def __init__(self) -> None:
        self.memory = Mapping.create("spindle-directory", (PLACES + WINDOW - 1) * ENTRY_SIZE)
        self._view = self.memory.view()
        self._places: dict[str, int] = {}
        self._used: set[int] = set()
        self._version = 0

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def put(self, name: str, grant: bytes, writer: int = 0) -> Entry:
        """Offers a region. ValueError where the name is taken, is no name, or where its WINDOW is full."""
        if name in self._places:
            raise ValueError(f"there is a region {name!r} already")
        first = place_of(name)
        at = next((at for at in range(first, first + WINDOW_SIZE, ENTRY_SIZE) if at not in self._used), -1)
        if at < 0:
            raise ValueError(f"no place is left for {name!r}: {WINDOW} names with a hash like its own are there")
        self._version += 1
        entry = Entry(name, self._version, grant, writer)
        self._view[at : at + ENTRY_SIZE] = _pack(entry)
        self._places[name] = at
        self._used.add(at)
        return entry

    def remove(self, name: str) -> None:
        """From here on nobody finds it; who has found it has a lease. KeyError if it isn't there."""
        at = self._places.pop(name)
        self._used.remove(at)
        self._view[at : at + ENTRY_SIZE] = bytes(ENTRY_SIZE)
