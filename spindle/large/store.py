"""The memory of large samples, and those that this node has.

A large sample lies in one memfd that is sealed against every change, its writer's own included. So whoever has its
descriptor may map it without a copy and needn't trust anybody.

Rules:
- What is sealed is found by its seals and its size, never by what its giver says.
- Descriptors that go out are opened anew, to read: nobody shares this process's file description.
- A sample that is dropped while it is being read stays in memory until that read is over.
- All calls are for any thread.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spindle.errors import ConfigError, NodeStopped, SampleMissing, SampleUnfit, SpindleError, shortage

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SIZE_MAX = 4 << 30  # bytes of one sample
PIECE_BYTES = 256 << 10  # of one on its way between a node and an application elsewhere


def make(size: int) -> int:
    """Memory for a sample of this size, to be filled and sealed: its descriptor. Raises ConfigError, NoResources."""
    check_size(size)
    try:
        fd = os.memfd_create("spindle large", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        raise _short(error, size) from error
    return fd


def check_size(size: int) -> None:
    """Raises ConfigError if no sample has this size."""
    if not 0 < size <= SIZE_MAX:
        raise ConfigError(f"a large sample has 1 to {SIZE_MAX} bytes, not {size}; divide it into several samples")


def _short(error: OSError, size: int) -> SpindleError:
    return shortage(error, f"a large sample of {size} bytes") or SampleUnfit(
        f"no memory for a large sample of {size} bytes: {error.strerror}")


@contextmanager
def filling(fd: int, size: int) -> Iterator[memoryview]:
    """The memory, mapped to be written, for the time of a `with`. No view of it may be left after that: what is mapped
    so can't be sealed. Raises NoResources."""
    try:
        mapped = mmap.mmap(fd, size)
    except OSError as error:
        raise _short(error, size) from error
    with mapped, memoryview(mapped) as view:
        yield view


def write_whole(fd: int, content: bytes, at: int) -> None:
    """All of it. Raises OSError."""
    with memoryview(content) as left:
        done = 0
        while done < len(left):
            done += os.pwrite(fd, left[done:], at + done)


def seal(fd: int) -> None:
    """From now on nobody can change it. Raises SampleUnfit while it is mapped to be written."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        raise SampleUnfit(f"a large sample can't be sealed: {error.strerror}; end all mappings that may write to it "
                          "first") from error


def check(fd: int, size: int) -> None:
    """Raises SampleUnfit unless this is sealed memory of exactly this size."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise SampleUnfit("a large sample must lie in a memfd; what came is something else") from None
    if seals & SEALS != SEALS:
        raise SampleUnfit("the memory of a large sample must be sealed (F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW, "
                          f"F_SEAL_SEAL), so that nobody can change it; this has {seals:#x} of {SEALS:#x}")
    if (found := os.fstat(fd).st_size) != size:
        raise SampleUnfit(f"a large sample was to have {size} bytes; its memory has {found}")


def open_anew(fd: int) -> int:
    """Another description of the same memory, that can only read. Raises NoResources."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise shortage(error, "a large sample") or SampleMissing(
            f"a large sample can't be opened: {error.strerror}; is /proc mounted?") from error


class Held:
    """One sample that this node has. `ended` says why it has it no more; "": it has."""

    __slots__ = ("_lock", "ended", "fd", "large_id", "size", "topic")

    def __init__(self, large_id: int, fd: int, size: int, topic: str) -> None:
        self.large_id, self.fd, self.size, self.topic = large_id, fd, size, topic
        self.ended = ""
        self._lock = threading.Lock()

    @property
    def reached(self) -> int:
        """Bytes that are there, from the first on."""
        return self.size

    @property
    def whole(self) -> bool:
        """All of it is there, and sealed."""
        return True

    @property
    def waits(self) -> bool:
        """As of a filling."""
        return False

    def open(self) -> int:
        """A descriptor of its own, to read. Raises SampleMissing, NoResources."""
        with self._lock:
            if self.ended:
                raise SampleMissing(self.ended)
            return open_anew(self.fd)

    def end(self, why: str) -> None:
        """Closes its descriptor. Idempotent."""
        with self._lock:
            if not self.ended:
                self.ended = why
                os.close(self.fd)
                self.fd = -1

    def __del__(self) -> None:
        if self.fd >= 0:  # its node was given up, not stopped
            os.close(self.fd)


class Store:
    """The large samples of one node. `watchers` are called with the id of one that has come or gone."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.bytes_held = 0
        self.watchers: list[Callable[[int], None]] = []

    def put(self, large_id: int, fd: int, size: int, topic: str) -> None:
        """Takes over the descriptor. A second one of the same sample is closed. Raises ConfigError, SampleUnfit,
        NodeStopped; it is closed then, too."""
        try:
            if not 0 < large_id < 1 << 64:
                raise ConfigError(f"a large sample has an id of 64 bits that isn't 0, not {large_id}")
            check_size(size)
            check(fd, size)
            with self._lock:
                if self._closed:
                    raise NodeStopped("the node stops: it takes no large samples any more")
                known = self._held.get(large_id)
                if known is None:
                    self._held[large_id] = Held(large_id, fd, size, topic)
                    self.bytes_held += size
                    fd = -1
                elif known.size != size:
                    raise SampleUnfit(f"two large samples have the id {large_id:#x}: one has {known.size} bytes, the "
                                      f"other {size}")
        finally:
            if fd >= 0:
                os.close(fd)
        self._tell(large_id)

    def find(self, large_id: int) -> Held | None:
        """What it has of this id. Who reads it opens it: `fd` is the store's own."""
        return self._held.get(large_id)

    def open(self, large_id: int) -> int:
        """A descriptor of its own, to read. Raises SampleMissing, NoResources."""
        held = self._held.get(large_id)
        if held is None:
            raise SampleMissing(f"this node has no large sample {large_id:#x}")
        return held.open()

    def drop(self, large_id: int) -> None:
        """Ends it here. Idempotent."""
        with self._lock:
            held = self._held.pop(large_id, None)
            if held is None:
                return
            self.bytes_held -= held.size
        held.end(f"it has dropped the large sample {large_id:#x}")
        self._tell(large_id)

    def ids(self) -> list[int]:
        """Of all that it has."""
        return list(self._held)

    def _tell(self, large_id: int) -> None:
        for watcher in tuple(self.watchers):
            watcher(large_id)

    def close(self) -> None:
        """Drops everything, and takes nothing any more. Idempotent."""
        self._closed = True
        for large_id in self.ids():
            self.drop(large_id)
