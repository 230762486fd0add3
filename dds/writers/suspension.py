"""What the writers of a suspended publisher write, until it is resumed. DDS 1.4, 2.2.2.4.1.8.

Why in this process: the node would send what is in a writer's inbox. So what is held costs the group nothing, and is
lost with the process; its source timestamps are those of writing.

Rules: what is held is given to the node in the order of writing; the group agrees on the order of several writers, as
ever. A coherent set is held and given as one. Each writer holds at most as much as its inbox would take. While somebody
resumes, others' writes go behind what is held.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping

from dds.exceptions import DDSException, DDSSampleTooLarge
from dds.waiting.wake import Deadline
from spindle.locks import Condition

Put = Callable[[bytes, int, "int | None", int], None]  # data, tag, source timestamp, handle of the instance


@dataclasses.dataclass(frozen=True)
class Source:
    """A writer: its handle, its topic, and how many messages it may hold."""

    ref: int
    topic: str
    slots: int


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """What goes out at once: how many messages of each writer, and what sends them."""

    counts: Mapping[Source, int]
    send: Callable[[], None]


class Suspension:
    """Of one publisher."""

    def __init__(self) -> None:
        self.is_active = False
        self._changed = Condition()
        self._held: collections.deque[Held] = collections.deque()
        self._counts: collections.Counter[int] = collections.Counter()  # of these, by writer

    def begin(self) -> None:
        with self._changed:
            if self.is_active:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, "the publisher is suspended already")
            self.is_active = True

    def holding(self, source: Source, largest: int, put: Put) -> Put:
        """A put() for this writer that holds what it is given, as long as that lasts. `largest`: bytes that a message
        may have."""
        def hold(data: bytes, tag: int, timestamp: int | None, key: int) -> None:
            if len(data) > largest and self.is_active:
                raise DDSSampleTooLarge(
                    f"writing to topic {source.topic!r}: a message of {len(data)} bytes; {largest} are the most")
            copied, at = bytes(data), timestamp or time.time_ns()
            if not self.holds({source: 1}, lambda: put(copied, tag, at, key)):
                put(data, tag, timestamp, key)

        return hold

    def holds(self, counts: Mapping[Source, int], send: Callable[[], None]) -> bool:
        """Keep this until the publisher is resumed; False if it isn't suspended. DDSException (OUT_OF_RESOURCES) if a
        writer has too much of it."""
        with self._changed:
            if not self.is_active:
                return False
            for source, count in counts.items():
                if self._counts[source.ref] + count > source.slots:
                    raise DDSException(
                        DDSException.DDS_RETCODE_OUT_OF_RESOURCES,
                        f"writing to topic {source.topic!r}: the writer has written "
                        f"{self._counts[source.ref] + count - 1} samples since its publisher was suspended, and "
                        f"{source.slots} may wait for its node (ResourceLimits.max_samples): resume() the publisher "
                        "earlier, or give the writer a larger limit")
            self._held.append(Held(counts, send))
            self._counts.update({source.ref: count for source, count in counts.items()})
            return True

    def end(self) -> None:
        """Send all. Raises as the first that fails; what it was about and all behind it is held then. What the node
        finds too large is not: that could never be sent."""
        with self._changed:
            if not self.is_active:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, "the publisher is not suspended")
            while self._held:
                first = self._held[0]
                try:
                    first.send()
                except DDSSampleTooLarge:
                    self._forget(self._held.popleft())
                    raise
                self._forget(self._held.popleft())
            self.is_active = False
            self._changed.notify_all()

    def _forget(self, held: Held) -> None:
        for source, count in held.counts.items():
            self._counts[source.ref] -= count
        self._changed.notify_all()

    def discard(self, ref: int) -> None:
        """The writer with this handle is closed: what it has held is never sent, nor is a set that it has a part in."""
        with self._changed:
            if not self._counts[ref]:
                return
            for one in [one for one in self._held if any(source.ref == ref for source in one.counts)]:
                self._held.remove(one)
                self._forget(one)
            del self._counts[ref]

    def wait_until_sent(self, ref: int, deadline: Deadline) -> bool:
        """True once nothing of this writer is held; False if that takes too long."""
        if not self._held:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._counts[ref], deadline.left_s())


__all__ = ["Source", "Suspension"]
