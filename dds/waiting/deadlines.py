"""Deadlines: which instances were not written in time (DDS 1.4, 2.2.3.7), and delays.

The same for both ends: a writer watches what it writes itself, a reader what comes to it.

Rules: the first sample of an instance starts its deadline, each later one starts it anew, its end ends it. Each period
without a sample counts once, also if nobody has looked before the next sample: that one is what tells of it then.
"""

from __future__ import annotations

import collections
import heapq
import time
from typing import Generic, TypeVar

T = TypeVar("T")
SET_NS = 100_000_000  # off by more, a clock was set; by less, this process may have been held up


class Deadlines:
    """Times are ns of any one clock that the caller keeps to; instances are their handles."""

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self._latest_ns = 0
        self._on_time: collections.OrderedDict[int, int] = collections.OrderedDict()  # due; written last stands last
        self._missed: dict[int, int] = {}  # of the others: when the next period of theirs ends
        self._late: list[tuple[int, int]] = []  # see late()
        self._ends: list[tuple[int, int]] = []  # a heap of these, (when, instance), and of some that are on time again

    def __len__(self) -> int:
        return len(self._on_time) + len(self._missed)

    def written(self, instance: int, now_ns: int, is_certain: bool = True) -> None:
        """A sample of it was written, or has come, at this time; at the latest of these times if that is later.
        is_certain=False: or at any time before, so that it may have been in time."""
        self._latest_ns = max(self._latest_ns, now_ns)
        if is_certain:
            self._count(instance, self._latest_ns)
        self._missed.pop(instance, None)
        self._on_time[instance] = self._latest_ns + self.period_ns
        self._on_time.move_to_end(instance)

    def change(self, period_ns: int) -> None:
        """Another period, counted from when each instance was written last."""
        longer, self.period_ns = period_ns - self.period_ns, period_ns
        for instance in self._on_time:
            self._on_time[instance] += longer
        self._missed = {instance: due + longer for instance, due in self._missed.items()}
        self._ends = [(due, instance) for instance, due in self._missed.items()]
        heapq.heapify(self._ends)

    def begin_anew(self, now_ns: int) -> None:
        """What came until now is not known."""
        self._latest_ns = max(self._latest_ns, now_ns)
        due = self._latest_ns + self.period_ns
        self._on_time = collections.OrderedDict((one, due) for one in (*self._on_time, *self._missed))
        self._missed, self._ends = {}, []

    def _count(self, instance: int, now_ns: int) -> None:
        due = self._on_time.get(instance) or self._missed.get(instance)
        if due is not None and due < now_ns:
            self._late.append((instance, 1 + (now_ns - due - 1) // self.period_ns))

    def late(self) -> list[tuple[int, int]]:
        """(instance, periods) of what was written, or ended, late, if missed() had not told of it before; each once."""
        found, self._late = self._late, []
        return found

    def ended(self, instance: int, now_ns: int | None = None) -> None:
        """Nobody is to write it any more, since this time; None: whether it was late is not known."""
        if now_ns is not None:
            self._count(instance, now_ns)
        self._on_time.pop(instance, None)
        self._missed.pop(instance, None)

    @property
    def pause_s(self) -> float:
        """How long whoever looks at them sleeps at least: periods that nobody could follow are counted many at once."""
        return 0.001 if self.period_ns >= 1_000_000 else 0.01

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


class Arrivals:
    """When what is let in now has come: the node stamped it by the clock of its host, which may be set; deadlines go by
    one that can't be."""

    def __init__(self, same_clock: bool) -> None:
        """same_clock: the node has the clock of this host."""
        self._same_clock = same_clock
        self.begin_at(time.monotonic_ns())

    def begin_at(self, now_ns: int) -> None:
        """All that had come by `now_ns`, monotonic, was let in, or counts as come then."""
        self._after_ns = now_ns
        self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def came_at(self, reception_ns: int) -> int | None:
        """Monotonic ns; None if nobody knows."""
        now_ns, utc_ns = time.monotonic_ns(), time.time_ns()
        age_ns = utc_ns - reception_ns
        if not self._same_clock or age_ns < 0 or abs(utc_ns - now_ns - self._ahead_ns) > SET_NS:
            return None
        return max(now_ns - age_ns, self._after_ns)


class Delays(Generic[T]):
    """What is over a fixed time after it was put in. Times as for Deadlines."""

    def __init__(self, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self._over_at: collections.OrderedDict[T, int] = collections.OrderedDict()  # what was put in last stands last

    def __len__(self) -> int:
        return len(self._over_at)

    def put(self, what: T, now_ns: int) -> None:
        """It begins now, also if it had begun before. Now is not earlier than at any call before."""
        self._over_at[what] = now_ns + self._delay_ns
        self._over_at.move_to_end(what)

    def discard(self, what: T) -> None:
        self._over_at.pop(what, None)

    @property
    def next_ns(self) -> int | None:
        """When the next one is over."""
        return next(iter(self._over_at.values()), None)

    def over(self, now_ns: int) -> list[T]:
        """Those that are over by now; they are forgotten."""
        found = []
        while (due := self.next_ns) is not None and due <= now_ns:
            found.append(self._over_at.popitem(last=False)[0])
        return found


__all__ = ["Arrivals", "Deadlines", "Delays"]
