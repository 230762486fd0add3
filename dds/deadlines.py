"""Deadlines: which instances were not written in time. DDS 1.4, 2.2.3.7.

The same for both ends: a writer watches what it writes itself, a reader what comes to it.

Rules: the first sample of an instance starts its deadline, each later one starts it anew, its end ends it. Each period
without a sample counts once.
"""

from __future__ import annotations

import collections
import heapq


class Deadlines:
    """Times are ns of any one clock that the caller keeps to; instances are their handles."""

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self._latest_ns = 0
        self._on_time: collections.OrderedDict[int, int] = collections.OrderedDict()  # due; written last stands last
        self._missed: dict[int, int] = {}  # of the others: when the next period of theirs ends
        self._ends: list[tuple[int, int]] = []  # a heap of these, (when, instance), and of some that are on time again

    def __len__(self) -> int:
        return len(self._on_time) + len(self._missed)

    def written(self, instance: int, now_ns: int) -> None:
        """A sample of it was written, or has come, at this time; at the latest of these times if that is later."""
        self._latest_ns = max(self._latest_ns, now_ns)
        self._missed.pop(instance, None)
        self._on_time[instance] = self._latest_ns + self.period_ns
        self._on_time.move_to_end(instance)

    def ended(self, instance: int) -> None:
        """Nobody is to write it any more."""
        self._on_time.pop(instance, None)
        self._missed.pop(instance, None)

    @property
    def next_ns(self) -> int | None:
        """When the next one is missed."""
        while self._ends and self._missed.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        times = [next(iter(self._on_time.values()), None), self._ends[0][0] if self._ends else None]
        return min((one for one in times if one is not None), default=None)

    def missed(self, now_ns: int) -> list[tuple[int, int]]:
        """(instance, periods that passed without a sample) for all that were missed by now, each period once."""
        found = []
        while (due := self.next_ns) is not None and due <= now_ns:
            if self._on_time and next(iter(self._on_time.values())) == due:
                instance, _ = self._on_time.popitem(last=False)
            else:
                _, instance = heapq.heappop(self._ends)
            periods = 1 + (now_ns - due) // self.period_ns
            found.append((instance, periods))
            self._missed[instance] = due + periods * self.period_ns
            heapq.heappush(self._ends, (self._missed[instance], instance))
        return found


__all__ = ["Deadlines"]
