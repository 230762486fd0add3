"""The large samples that this node has.

What never changes is in spindle/large/memory.py.

Rules:
- Descriptors that go out are opened anew, to read: nobody shares this process's file description.
- A sample that is dropped while it is being read stays in memory until that read is over.
- All calls are for any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from spindle.errors import ConfigError, NodeStopped, SampleMissing, SampleUnfit
from spindle.large import memory

Spare = Callable[[int], None]  # takes over the descriptor of memory that may be used again


class Held:
    """One sample that this node has. `ended` says why it has it no more; "": it has."""

    __slots__ = ("_lock", "_spare", "ended", "fd", "large_id", "size", "topic")

    def __init__(self, large_id: int, fd: int, size: int, topic: str, spare: Spare | None = None) -> None:
        self.large_id, self.fd, self.size, self.topic = large_id, fd, size, topic
        self._spare = spare
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
            return memory.open_anew(self.fd)

    def open_sealed(self) -> int:
        """The same, for programs and nodes of other users. Raises SampleUnfit, too."""
        with self._lock:
            if not self.ended:
                memory.seal_closed(self.fd)
                self._spare = None
        return self.open()

    def end(self, why: str) -> None:
        """Closes its descriptor, or gives it to who uses the memory again. Idempotent."""
        with self._lock:
            if self.ended:
                return
            self.ended = why
            fd, self.fd = self.fd, -1
        if self._spare is not None:
            self._spare(fd)
        else:
            os.close(fd)

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

    def put(self, large_id: int, fd: int, size: int, topic: str, spare: Spare | None = None) -> None:
        """Takes over the descriptor; when the sample is dropped, `spare` does. A second one of the same sample is
        closed. Raises ConfigError, SampleUnfit, NodeStopped; it is closed then, too."""
        try:
            if not 0 < large_id < 1 << 64:
                raise ConfigError(f"a large sample has an id of 64 bits that isn't 0, not {large_id}")
            memory.check_size(size)
            memory.check(fd, size)
            with self._lock:
                if self._closed:
                    raise NodeStopped("the node stops: it takes no large samples any more")
                known = self._held.get(large_id)
                if known is None:
                    self._held[large_id] = Held(large_id, fd, size, topic, spare)
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
