"""What the writers of a suspended publisher write, until it is resumed. DDS 1.4, 2.2.2.4.1.8.

Why in this process: the node would send what is in a writer's inbox. So what is held costs the group nothing, and is
lost with the process; its source timestamps are those of writing.

Rules: what is held is given to the node in the order of writing; the group agrees on the order of several writers, as
ever. Each writer holds at most as much as its inbox would take. While somebody resumes, others' writes go behind what
is held.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

from dds.exceptions import DDSException, DDSSampleTooLarge
from dds.waiting.wake import Deadline

Put = Callable[[bytes, int, "int | None", int], None]  # data, tag, source timestamp, handle of the instance


@dataclasses.dataclass(frozen=True)
class Held:
    """One message of the writer with this handle, and what sends it."""

    ref: int
    put: Put
    data: bytes
    tag: int
    timestamp: int
    key: int


class Suspension:
    """Of one publisher."""

    def __init__(self) -> None:
        self.is_active = False
        self._changed = threading.Condition(threading.RLock())
        self._held: collections.deque[Held] = collections.deque()
        self._counts: collections.Counter[int] = collections.Counter()  # of these, by writer

    def begin(self) -> None:
        with self._changed:
            if self.is_active:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, "the publisher is suspended already")
            self.is_active = True

    def holding(self, ref: int, topic: str, slots: int, size_max: int, put: Put) -> Put:
        """A put() for the writer with this handle that holds what it is given, as long as that lasts."""
        def hold(data: bytes, tag: int, timestamp: int | None, key: int) -> None:
            with self._changed:
                if self.is_active:
                    if len(data) > size_max:
                        raise DDSSampleTooLarge(
                            f"writing to topic {topic!r}: a message of {len(data)} bytes is larger than the topic's "
                            f"size_max of {size_max}")
                    if self._counts[ref] >= slots:
                        raise DDSException(
                            DDSException.DDS_RETCODE_OUT_OF_RESOURCES,
                            f"writing to topic {topic!r}: the writer has written {slots} samples since its publisher "
                            "was suspended, as many as may wait for its node (ResourceLimits.max_samples): resume() "
                            "the publisher earlier, or give the writer a larger limit")
                    self._held.append(Held(ref, put, bytes(data), tag, timestamp or time.time_ns(), key))
                    self._counts[ref] += 1
                    return
            put(data, tag, timestamp, key)

        return hold

    def end(self) -> None:
        """Send all. Raises as the first put() that fails; what it was about and all behind it is held then."""
        with self._changed:
            if not self.is_active:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, "the publisher is not suspended")
            while self._held:
                first = self._held[0]
                first.put(first.data, first.tag, first.timestamp, first.key)
                self._forget_first()
            self.is_active = False
            self._changed.notify_all()

    def _forget_first(self) -> None:
        first = self._held.popleft()
        self._counts[first.ref] -= 1
        self._changed.notify_all()

    def discard(self, ref: int) -> None:
        """The writer with this handle is closed: what it has held is never sent."""
        with self._changed:
            if self._counts.pop(ref, 0):
                self._held = collections.deque(one for one in self._held if one.ref != ref)
                self._changed.notify_all()

    def wait_until_sent(self, ref: int, deadline: Deadline) -> bool:
        """True once nothing of this writer is held; False if that takes too long."""
        if not self._held:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._counts[ref], deadline.left_s())


__all__ = ["Suspension"]
