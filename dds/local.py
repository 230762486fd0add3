"""Reading one's own writes.

Why: in DDS programs a writer and a reader of one process often face each other, and `writer.write(x); reader.take()`
is expected to find x, because there a local write reaches local readers before it returns. Here a sample is delivered
when the group has it, some tens of microseconds later. So a read that finds less than was asked for, while samples
written in this process are on their way, waits for them a little.

Rules: a wait takes at most WAIT_S, and all of them together no more than a budget, which time refills. The budget is
generous for reads that found nothing, as they follow a single write, and small for those that found something: a
program that writes and takes in a loop keeps its speed, and one that polls loses a small share of its time.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spindle.client import WriterHandle

    InboxWriter = Any

WAIT_S = 0.1  # of one read


class Budget:
    """Seconds to spend: `most_s` at first, and again after a while, because `share` of the time is added."""

    def __init__(self, most_s: float, share: float) -> None:
        self._most_s = most_s
        self._share = share
        self._left_s = most_s
        self._looked_at = time.monotonic()

    def left_s(self) -> float:
        now = time.monotonic()
        self._left_s = min(self._most_s, self._left_s + (now - self._looked_at) * self._share)
        self._looked_at = now
        return min(WAIT_S, self._left_s)

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds
        self._looked_at = time.monotonic()


class LocalWriters:
    """The open writers (spindle.client.WriterHandle) of one topic in this process."""

    _all: dict[tuple[int, str], LocalWriters] = {}

    def __init__(self) -> None:
        self.handles: list[weakref.ref[WriterHandle]] = []
        self.budget_empty = Budget(1.0, 0.05)
        self.budget_short = Budget(0.02, 0.005)

    @classmethod
    def of(cls, domain_id: int, topic: str) -> LocalWriters:
        return cls._all.setdefault((domain_id, topic), cls())

    def add(self, handle: WriterHandle) -> None:
        self.handles = [*(one for one in self.handles if one() is not None), weakref.ref(handle)]

    def discard(self, handle: WriterHandle) -> None:
        self.handles = [one for one in self.handles if one() not in (None, handle)]

    def on_their_way(self) -> list[tuple[InboxWriter, int]]:
        """Writers with undelivered samples, and the count that each must reach."""
        found = []
        for ref in self.handles:
            handle = ref()
            if handle is not None:
                committed = handle.inbox.committed
                if handle.inbox.acknowledged < committed:
                    found.append((handle.inbox, committed))
        return found


__all__ = ["LocalWriters"]
