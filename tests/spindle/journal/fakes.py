"""What stands in for the delivery log and for the disk in the journal's tests.

`MemorySource` is the reading side of a delivery log, fed by the test. `MemoryFiles` is a disk that keeps its files in
memory and every change in `trace`, so that a test can build what a crash would have left. `FailingFiles` is one that
refuses at a chosen operation.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.files import Buffer
from spindle_core.errors import NodeGone

SPEC = TopicSpec("flight/air data", type_name="AirData", type_hash=b"\x12\x34", level=Level.LOGGED, size_max=1024)


@dataclasses.dataclass
class FakeInfo:
    """What a delivery log says of a message."""

    source_timestamp: int
    reception_timestamp: int
    sender: int
    writer: int
    sequence: int
    view_id: int
    index: int
    relay: int = 0
    tag: int = 0
    key: int = 0


def messages(count: int, start: int = 0, view_id: int = 3, sequence: int = 0, senders: int = 3,
             size: int = 20) -> list[tuple[bytes, FakeInfo]]:
    """`count` messages from delivery index `start` on: senders in turn, every fifth place in the order a null."""
    made = []
    for place in range(count):
        sequence += 2 if place % 5 == 4 else 1
        index = start + place
        payload = f"{view_id}.{sequence}:".encode().ljust(size * (place % 3), b"x")
        made.append((payload, FakeInfo(1_000_000 + index, 2_000_000 + index, sequence % senders + 1, sequence % 2,
                                       sequence, view_id, index, key=index << 40 if index // 20 % 2 else 0)))
    return made


class MemorySource:
    """The reading side of a delivery log."""

    def __init__(self) -> None:
        self._pairs: list[tuple[bytes, FakeInfo]] = []
        self._lock = threading.Lock()
        self._ring = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._gone = False

    def put(self, pairs: Sequence[tuple[bytes, FakeInfo]]) -> None:
        with self._lock:
            self._pairs += pairs
        os.eventfd_write(self._ring, 1)

    def mark_gone(self) -> None:
        self._gone = True
        os.eventfd_write(self._ring, 1)

    def take_pairs(self, n: int) -> list[tuple[bytes, FakeInfo]]:
        with self._lock:
            taken, self._pairs = self._pairs[:n], self._pairs[n:]
        return taken

    def arm(self) -> bool:
        return bool(self._pairs) or self._gone

    def wait(self, timeout_s: float = -1.0) -> bool:
        assert timeout_s == 0.0, "the journal sleeps on the descriptor"
        if not self._pairs and self._gone:
            raise NodeGone("gone")
        return bool(self._pairs)

    def fileno(self) -> int:
        return self._ring

    def clear(self) -> None:
        try:
            os.eventfd_read(self._ring)
        except BlockingIOError:
            pass

    def __del__(self) -> None:
        os.close(self._ring)


@dataclasses.dataclass
class Inode:
    """A file's bytes, whatever it is called."""

    number: int
    data: bytearray = dataclasses.field(default_factory=bytearray)


# One change of the disk: (kind, inode number or -1, offset or size, data, name, other name)
Change = tuple[str, int, int, bytes, str, str]


def apply(files: dict[int, bytearray], names: dict[str, int], change: Change) -> None:
    """Do one change to a disk image."""
    kind, number, offset, data, name, other = change
    if kind == "write":
        content = files[number]
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
    elif kind == "truncate":
        content = files[number]
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    elif kind == "create":
        files[number] = bytearray()
        names[name] = number
    elif kind == "rename":
        names[other] = names.pop(name)
    elif kind == "remove":
        names.pop(name, None)


class MemoryFiles:
    """A disk in memory. `trace` holds every change and every sync in order; `on_change` is called after each."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {}
        self.names_to_files: dict[str, int] = {}
        self.trace: list[Change] = []
        self.handles: dict[int, int] = {}
        self.locks: dict[int, str] = {}
        self._next = 1

    @classmethod
    def of(cls, content: dict[str, bytes]) -> MemoryFiles:
        """A disk with these files and an empty trace."""
        made = cls()
        for name, data in content.items():
            made.close(made.create(Path("/journal") / name))
            made.files[made.names_to_files[name]][:] = data
        made.trace.clear()
        return made

    def content(self) -> dict[str, bytes]:
        """All files by name."""
        return {name: bytes(self.files[number]) for name, number in self.names_to_files.items()}

    def _do(self, change: Change) -> None:
        self.before(change)
        self.trace.append(change)
        apply(self.files, self.names_to_files, change)

    def before(self, change: Change) -> None:
        """Hook: what happens before a change or a sync is done. May raise OSError instead of it."""

    def _handle(self, number: int) -> int:
        self._next += 1
        self.handles[self._next] = number
        return self._next

    def make_directory(self, path: Path) -> None:
        pass

    def names(self, path: Path) -> list[str]:
        return list(self.names_to_files)

    def create(self, path: Path) -> int:
        self._next += 1
        number = self._next
        self._do(("create", number, 0, b"", path.name, ""))
        return self._handle(number)

    def open(self, path: Path, writable: bool = False) -> int:
        if path.name not in self.names_to_files:
            raise FileNotFoundError(2, "No such file", str(path))
        return self._handle(self.names_to_files[path.name])

    def size(self, handle: int) -> int:
        return len(self.files[self.handles[handle]])

    def identity(self, handle: int) -> tuple[int, ...]:
        number = self.handles[handle]
        return number, len(self.files[number]), zlib.crc32(self.files[number])

    def read(self, handle: int, size: int, offset: int) -> bytes:
        assert offset >= 0 and size >= 0
        return bytes(self.files[self.handles[handle]][offset : offset + size])

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
        self._do(("write", self.handles[handle], offset, b"".join(buffers), "", ""))

    def allocate(self, handle: int, offset: int, size: int) -> None:
        assert offset + size <= self.size(handle), "allocate must not change the size of the file"
        self.before(("allocate", self.handles[handle], offset, b"", "", ""))

    def truncate(self, handle: int, size: int) -> None:
        self._do(("truncate", self.handles[handle], size, b"", "", ""))

    def sync(self, handle: int) -> None:
        self._do(("sync", self.handles[handle], 0, b"", "", ""))

    def close(self, handle: int) -> None:
        del self.handles[handle]
        self.locks.pop(handle, None)

    def rename(self, source: Path, target: Path) -> None:
        self._do(("rename", self.names_to_files[source.name], 0, b"", source.name, target.name))

    def remove(self, path: Path) -> None:
        self._do(("remove", -1, 0, b"", path.name, ""))

    def sync_directory(self, path: Path) -> None:
        self._do(("sync_directory", -1, 0, b"", "", ""))

    def lock(self, path: Path) -> int | None:
        if path.name in self.locks.values():
            return None
        handle = self._handle(-1)
        self.locks[handle] = path.name
        return handle

    def free_bytes(self, path: Path) -> int:
        return 12_345


class FailingFiles(MemoryFiles):
    """A disk that raises what `refuse(change)` returns, instead of doing the change."""

    def __init__(self, refuse: Callable[[Change], OSError | None]) -> None:
        super().__init__()
        self.refuse = refuse

    def before(self, change: Change) -> None:
        error = self.refuse(change)
        if error is not None:
            raise error


class Witness:
    """Collects what a journal reports, and lets a test wait for it."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.failures: list[Exception] = []
        self.failed = threading.Event()

    def on_durable(self, index: int) -> None:
        self.durable.append(index)

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)
        self.failed.set()
