"""Memory of samples that writers of this node have sent and that nobody has any more, for their next ones.

New memory is cleared by the kernel, which costs as much as filling it. Memory that was a sample before is not: its
writer gets it again, with its own old bytes in it, once the kernel says that nobody else has it (see memory.py). Until
then it waits here; what waits for long goes back to the kernel.

All calls are for any thread. Time is given: seconds of a clock that never goes back.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Callable

from spindle.errors import SpindleError
from spindle.large.memory import is_free, open_to_write

KEEP_S = 5.0  # after a sample was dropped
COUNT_MAX = 64  # of one writer


@dataclasses.dataclass(frozen=True)
class _Spare:
    fd: int  # only reads
    capacity: int
    since_s: float


class SpareMemory:
    """See the module's text. `bytes_max`: of one topic; beyond that the oldest goes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._of: dict[tuple[str, object], list[_Spare]] = {}  # by topic and writer; the oldest first

    def keep(self, topic: str, writer: object, fd: int, capacity: int, now_s: float) -> None:
        """Takes over the descriptor."""
        with self._lock:
            spares = self._of.setdefault((topic, writer), [])
            spares.append(_Spare(fd, capacity, now_s))
            while len(spares) > COUNT_MAX or self._bytes_of(topic) > self._bytes_max:
                os.close(spares.pop(0).fd)
                if not spares:
                    del self._of[topic, writer]
                    break

    def _bytes_of(self, topic: str) -> int:
        return sum(one.capacity for (name, _), spares in self._of.items() if name == topic for one in spares)

    def take(self, topic: str, writer: object, capacity: int) -> int:
        """A descriptor that can write, the only one of memory of this capacity; -1 if there is none yet."""
        with self._lock:
            spares = self._of.get((topic, writer), [])
            for one in spares:
                if one.capacity != capacity or not is_free(one.fd):
                    continue
                spares.remove(one)
                if not spares:
                    del self._of[topic, writer]
                try:
                    return open_to_write(one.fd)
                except SpindleError:
                    return -1
                finally:
                    os.close(one.fd)
            return -1

    def let_go(self, before_s: float) -> None:
        """What waits since before that goes back to the kernel."""
        with self._lock:
            for key, spares in list(self._of.items()):
                for one in [one for one in spares if one.since_s < before_s]:
                    spares.remove(one)
                    os.close(one.fd)
                if not spares:
                    del self._of[key]

    def writer_ended(self, writer: object) -> None:
        """It sends no more."""
        self._end(lambda _, of: of is writer)

    def topic_ended(self, topic: str) -> None:
        """The node has no part in it any more."""
        self._end(lambda name, _: name == topic)

    def _end(self, which: Callable[[str, object], bool]) -> None:
        with self._lock:
            for key in [key for key in self._of if which(*key)]:
                for one in self._of.pop(key):
                    os.close(one.fd)

    def clear(self) -> None:
        """Nothing is left here."""
        self.let_go(math.inf)

    def __del__(self) -> None:
        self.clear()  # its node was given up, not stopped

    @property
    def bytes_kept(self) -> int:
        with self._lock:
            return sum(one.capacity for spares in self._of.values() for one in spares)
