"""Disks of simulated hosts: what was not synced may be lost with the power, and every call may be slow or fail.

A file is its bytes and what has been written since its last sync. A process that is killed loses nothing, as the
kernel has it; a host that loses its power keeps of each file any of the unsynced writes, torn at sectors, and of the
directory's changes any first part, as file systems order those.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from spindle.journal.files import Buffer, OsFiles

if TYPE_CHECKING:
    from spindle_lab.whole.system import Process, System

SECTOR = 512
OPERATIONS = tuple(name for name in vars(OsFiles) if not name.startswith("_"))


class Inode:
    """A file, whatever it is called. `safe` is what the disk has for certain."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self.numbers)
        self.changes = 0
        self.data = bytearray()
        self.safe = b""
        self.writes: list[tuple[int, bytes, int]] = []  # since the last sync: offset, bytes, size of the file then

    def put(self, offset: int, data: bytes) -> None:
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.writes.append((offset, data, -1))
        self.changes += 1

    def cut(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.writes.append((0, b"", size))
        self.changes += 1

    def sync(self) -> None:
        self.safe = bytes(self.data)
        self.writes.clear()


class Disk:
    """The disk of one host, through `spindle.journal.files.Files`."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.names_now: dict[Path, Inode] = {}
        self.names_safe: dict[Path, Inode] = {}
        self._changes: list[dict[Path, Inode]] = []  # what the names were after each change since the last sync
        self._handles: dict[int, tuple[Inode, Path, Process]] = {}
        self._locks: dict[Path, int] = {}
        self._next = 1 << 20  # no descriptor of the kernel's
        self.sync_ns = (0, 300_000)
        self.full = False
        self.failing = False  # writes and syncs fail
        self.syncs = 0

    # --- faults

    def lose_power(self) -> None:
        """Nobody has anything open any more, and what was not synced is partly gone."""
        rng = self.system.random
        states = [self.names_safe, *self._changes]
        self.names_now = dict(rng.choice(states))
        for inode in {id(one): one for one in self.names_now.values()}.values():
            kept = bytearray(inode.safe)
            for offset, data, size in inode.writes:
                if rng.random() < 0.5:
                    continue
                if size >= 0:
                    del kept[size:]
                    kept.extend(bytes(size - len(kept)))
                    continue
                if rng.random() < 0.3 and offset // SECTOR != (offset + len(data) - 1) // SECTOR:
                    data = data[: rng.randrange(len(data)) // SECTOR * SECTOR + SECTOR - offset % SECTOR]
                if len(kept) < offset:
                    kept.extend(bytes(offset - len(kept)))
                kept[offset : offset + len(data)] = data
            inode.data = kept
            inode.changes += 1
            inode.sync()
        self.names_safe = dict(self.names_now)
        self._changes.clear()
        self._handles.clear()
        self._locks.clear()

    def killed(self, process: Process) -> None:
        """The kernel closes what it had open."""
        for handle, (_, _, owner) in list(self._handles.items()):
            if owner is process:
                self.close(handle)

    def _may_fail(self) -> None:
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _room(self) -> None:
        self._may_fail()
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rest(self) -> None:
        if self.system.thread is not None and self.sync_ns[1]:
            self.system.wait(None, self.system.random.randint(*self.sync_ns) / 1e9)

    # --- Files

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)  # directories are the kernel's: their names matter to nobody here

    def names(self, path: Path) -> list[str]:
        return [one.name for one in self.names_now if one.parent == path]

    def _descriptor(self) -> None:
        if self.system.current.short is not None:
            self.system.current.short.open()

    def _handle(self, inode: Inode, path: Path) -> int:
        self._next += 1
        self._handles[self._next] = (inode, path, self.system.current)
        return self._next

    def _changed(self) -> None:
        self._changes.append(dict(self.names_now))

    def create(self, path: Path) -> int:
        self._descriptor()
        self._room()
        inode = self.names_now[Path(path)] = Inode()
        self._changed()
        return self._handle(inode, Path(path))

    def open(self, path: Path, writable: bool = False) -> int:
        self._descriptor()
        inode = self.names_now.get(Path(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._handle(inode, Path(path))

    def _inode(self, handle: int) -> Inode:
        if handle not in self._handles:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._handles[handle][0]

    def size(self, handle: int) -> int:
        return len(self._inode(handle).data)

    def identity(self, handle: int) -> tuple[int, ...]:
        inode = self._inode(handle)
        return inode.number, inode.changes, len(inode.data)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._inode(handle).data[offset : offset + size])

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
        self._room()
        self._inode(handle).put(offset, b"".join(bytes(one) for one in buffers))

    def allocate(self, handle: int, offset: int, size: int) -> None:
        self._room()
        inode = self._inode(handle)
        if len(inode.data) < offset + size:
            inode.cut(offset + size)

    def truncate(self, handle: int, size: int) -> None:
        self._may_fail()
        self._inode(handle).cut(size)

    def sync(self, handle: int) -> None:
        inode = self._inode(handle)
        upto = len(inode.writes)
        data = bytes(inode.data)
        self._rest()
        self._may_fail()
        self._inode(handle)  # still there
        inode.safe = data
        del inode.writes[:upto]
        self.syncs += 1

    def close(self, handle: int) -> None:
        _, path, _ = self._handles.pop(handle, (None, None, None))
        if path is not None and self._locks.get(path) == handle:
            del self._locks[path]

    def rename(self, source: Path, target: Path) -> None:
        self._may_fail()
        if Path(source) not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        self.names_now[Path(target)] = self.names_now.pop(Path(source))
        self._changed()

    def remove(self, path: Path) -> None:
        self._may_fail()
        if self.names_now.pop(Path(path), None) is not None:
            self._changed()

    def sync_directory(self, path: Path) -> None:
        names = dict(self.names_now)
        upto = len(self._changes)
        self._rest()
        self._may_fail()
        self.names_safe = names
        del self._changes[:upto]

    def lock(self, path: Path) -> int | None:
        self._descriptor()
        if Path(path) in self._locks:
            return None
        inode = self.names_now.setdefault(Path(path), Inode())
        handle = self._handle(inode, Path(path))
        self._locks[Path(path)] = handle
        return handle

    def free_bytes(self, path: Path) -> int:
        return 0 if self.full else 1 << 40


@contextmanager
def in_place_of_files(system: System, disks: dict[str, Disk]) -> Iterator[None]:
    """While in it, `OsFiles` is the disk of the host whose process asks."""

    def asks(name: str) -> Any:
        def operation(_: OsFiles, *args: Any, **more: Any) -> Any:
            return getattr(disks[system.current.host], name)(*args, **more)

        return operation

    with ExitStack() as stack:
        for name in OPERATIONS:
            stack.enter_context(patch.object(OsFiles, name, asks(name)))
        yield
