"""The journal's whole contact with a disk: a dozen operations, so that tests can take the disk's place.

Why a seam: that a journal survives every crash can only be shown by stopping after each of its writes and by losing
any of those that were not synced. Tests give the journal a `Files` that records what it does, and build the images.

Rules: errors are OSError, as the system calls raise them. `write` has written everything when it returns. Nothing
here retries a failed sync: after one, the kernel may have dropped the very pages that it could not write.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Files(Protocol):
    """What the journal asks of a file system. A handle is an int that only the same object understands."""

    def make_directory(self, path: Path) -> None:
        """Make `path` and its parents where they are missing."""

    def names(self, path: Path) -> list[str]:
        """File names in a directory, in no order."""

    def create(self, path: Path) -> int:
        """Make an empty file, replacing one of the same name; open it for reading and writing."""

    def open(self, path: Path, writable: bool = False) -> int:
        """Open an existing file."""

    def size(self, handle: int) -> int:
        """Size of the file in bytes."""

    def identity(self, handle: int) -> tuple[int, ...]:
        """Alike only for the same file with the same content, as far as the file system tells without reading it."""

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers one behind the other from `offset`. One buffer that does not cross a sector of 512 bytes
        is written whole or not at all, even if the process is killed meanwhile."""

    def allocate(self, handle: int, offset: int, size: int) -> None:
        """Make the file system set blocks aside for a range inside the file, where it can."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self, handle: int) -> None:
        """Return when the file's bytes and its size are on the disk."""

    def close(self, handle: int) -> None:
        """Give the handle back; drops its lock."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in the same directory, replacing what has it."""

    def remove(self, path: Path) -> None:
        """Remove a file; it is no error if there is none."""

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are on the disk."""

    def lock(self, path: Path) -> int | None:
        """Make `path` if missing and lock it for this handle alone; None if somebody else holds it."""

    def free_bytes(self, path: Path) -> int:
        """What an unprivileged process may still write on the file system of `path`, bytes."""


class OsFiles:
    """The real disk."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def open(self, path: Path, writable: bool = False) -> int:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def identity(self, handle: int) -> tuple[int, ...]:
        found = os.fstat(handle)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def read(self, handle: int, size: int, offset: int) -> bytes:
        first = os.pread(handle, size, offset)
        if len(first) == size or not first:
            return first
        parts, got = [first], len(first)  # the kernel reads at most 2 GiB at a time
        while got < size:
            part = os.pread(handle, size - got, offset + got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
        written = os.pwritev(handle, buffers, offset)
        total = sum(len(one) for one in buffers)
        if written == total:
            return
        # A short write is legal (a nearly full disk, a signal); the rest goes on, and a full disk says so then.
        rest = memoryview(b"".join(buffers))
        while written < total:
            step = os.pwrite(handle, rest[written:], offset + written)
            if step == 0:
                raise OSError(errno.EIO, "the file system accepted no bytes")
            written += step

    def allocate(self, handle: int, offset: int, size: int) -> None:
        try:
            os.posix_fallocate(handle, offset, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                raise

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path) -> int | None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        return handle

    def free_bytes(self, path: Path) -> int:
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize
