"""Memory of samples that writers of this node have sent and that nobody has any more, for their next ones.

New memory is cleared by the kernel, which costs as much as filling it. Memory that was a sample before is not: its
writer gets it again, with its own old bytes in it, once the kernel says that nobody else has it (see memory.py). Until
then it waits here; what waits for long goes back to the kernel.

All calls are for any thread. Time is given: seconds of a clock that never goes back.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable

from spindle.errors import NoResources, SpindleError
from spindle.large import memory

KEEP_S = 5.0  # after a sample was dropped
COUNT_MAX = 32  # of a node: each has a descriptor
SKIPPED_MAX = 63  # samples for whose memory nobody waits, after that was in vain many times
_BUSY_MAX = 8  # that are asked about before one that is free


class Patience:
    """Whether a writer's next sample waits for memory that somebody still has: not after that was in vain, for one
    sample, then for three, seven, and so on."""

    __slots__ = ("_skip", "_skipped")

    def __init__(self) -> None:
        self._skip = self._skipped = 0

    def asked(self) -> bool:
        if self._skipped < self._skip:
            self._skipped += 1
            return False
        return True

    def told(self, in_vain: bool) -> None:
        self._skip = min(2 * self._skip + 1, SKIPPED_MAX) if in_vain else 0
        self._skipped = 0


@dataclasses.dataclass(frozen=True, eq=False)
class _Spare:
    topic: str
    writer: object
    fd: int  # only reads
    capacity: int
    since_s: float


class SpareMemory:
    """See the module's text. `bytes_max`: of one topic; beyond that, and beyond COUNT_MAX, the first goes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._spares: list[_Spare] = []  # the oldest first, but for those that were asked about

    def keep(self, topic: str, writer: object, fd: int, capacity: int, now_s: float) -> None:
        """Takes over the descriptor."""
        with self._lock:
            self._spares.append(_Spare(topic, writer, fd, capacity, now_s))
            if len(self._spares) > COUNT_MAX:
                os.close(self._spares.pop(0).fd)
            of_topic = [one for one in self._spares if one.topic == topic]
            used = sum(one.capacity for one in of_topic)
            for one in of_topic:
                if used <= self._bytes_max:
                    break
                self._drop(one)
                used -= one.capacity

    def _drop(self, one: _Spare) -> None:
        self._spares.remove(one)
        os.close(one.fd)

    def take(self, topic: str, writer: object, capacity: int) -> int:
        """A descriptor that can write, the only one of memory of this capacity; -1 if there is none yet."""
        busy = 0
        with self._lock:
            for one in tuple(self._spares):
                if one.topic != topic or one.writer is not writer or one.capacity != capacity:
                    continue
                if memory.is_free(one.fd):
                    try:
                        return memory.open_to_write(one.fd)
                    except SpindleError:
                        return -1
                    finally:
                        self._drop(one)
                self._spares.remove(one)  # others are asked about first the next time
                self._spares.append(one)
                busy += 1
                if busy == _BUSY_MAX:
                    break
            return -1

    def waiting(self, topic: str, writer: object, capacity: int) -> bool | None:
        """None: nothing of this writer and capacity is here; True: of what is, somebody still has each; else False."""
        with self._lock:
            found = [one for one in self._spares
                     if one.topic == topic and one.writer is writer and one.capacity == capacity]
            return not any(memory.is_free(one.fd) for one in found) if found else None

    def make(self, size: int) -> int:
        """As memory.make_closable(); what waits here goes before that fails. Raises NoResources."""
        try:
            return memory.make_closable(size)
        except NoResources:
            self.clear()
            return memory.make_closable(size)

    def let_go(self, before_s: float) -> None:
        """What waits since before that goes back to the kernel."""
        self._end(lambda one: one.since_s < before_s)

    def writer_ended(self, writer: object) -> None:
        """It sends no more."""
        self._end(lambda one: one.writer is writer)

    def topic_ended(self, topic: str) -> None:
        """The node has no part in it any more."""
        self._end(lambda one: one.topic == topic)

    def clear(self) -> None:
        """Nothing is left here: memory or descriptors have run out."""
        self._end(lambda _: True)

    def _end(self, which: Callable[[_Spare], bool]) -> None:
        with self._lock:
            for one in [one for one in self._spares if which(one)]:
                self._drop(one)

    def __del__(self) -> None:
        # Its node was given up, not stopped. Without the lock: it may have been held when this process was forked.
        for one in self._spares:
            os.close(one.fd)

    @property
    def bytes_kept(self) -> int:
        with self._lock:
            return sum(one.capacity for one in self._spares)
