"""Reading one's own writes.

Why: in DDS programs a writer and a reader of one process often face each other, and `writer.write(x); reader.take()`
is expected to find x, because there a local write reaches local readers before it returns. Here a sample is delivered
when the group has it, some tens of microseconds later. So a read that finds less than was asked for, while samples
written in this process are on their way, waits for them a little.

Rules: the wait is bounded by a budget: BUDGET_S at most, refilled at SHARE of the time that passes. A program that
writes and polls in a loop so loses at most that share to it, and one that reads seldom always finds what it wrote.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spindle.client import WriterHandle

    InboxWriter = Any

BUDGET_S = 0.1
SHARE = 0.02


class LocalWriters:
    """The open writers (spindle.client.WriterHandle) of one topic in this process."""

    _all: dict[tuple[int, str], LocalWriters] = {}

    def __init__(self) -> None:
        self.handles: list[weakref.ref[WriterHandle]] = []
        self._budget_s = BUDGET_S
        self._looked_at = time.monotonic()

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

    def allowance_s(self) -> float:
        """How long a read may wait now."""
        now = time.monotonic()
        self._budget_s = min(BUDGET_S, self._budget_s + (now - self._looked_at) * SHARE)
        self._looked_at = now
        return self._budget_s

    def spend(self, seconds: float) -> None:
        self._budget_s -= seconds
        self._looked_at = time.monotonic()


__all__ = ["LocalWriters"]
