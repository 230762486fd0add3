"""Rates and latencies between looks at a node, and their history for charts.

Rules: a rate is over the last second, so that it is steady at any number of looks a second; latencies are over the last
ten. What went back (a new life of the node, a topic that was declared anew) begins anew. Every history has a length.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

from spindle.group.figures import Latencies

RATE_S = 1.0
LATENCY_S = 10.0
LATENCY_EVERY_S = 0.95  # latencies are looked at again; a look may come a little early
HISTORY_MAX = 900  # points, one a second: a quarter of an hour


class TopicRates:
    """Of one topic. `update()` with each look; then the attributes are those of that moment.

    rate      messages delivered per second at the node
    bytes_s   bytes of them
    latencies messages of the last ten seconds by latency
    median_s  half of them are not later; None: there were none
    late_s    the same of 99 of 100
    """

    def __init__(self) -> None:
        self.rate = self.bytes_s = 0.0
        self.latencies = Latencies()
        self.median_s: float | None = None
        self.late_s: float | None = None
        self.history = History(3)  # rate, bytes_s, median latency in s
        self._looks: deque[tuple[float, int, int]] = deque()
        self._earlier: deque[tuple[float, Mapping[str, int]]] = deque()

    def update(self, now_s: float, figures: Mapping[str, Any] | None) -> None:
        """`figures` of a topic in a status, at `now_s` (monotonic); None: nobody tells any."""
        looks = self._looks
        if figures is None or (looks and figures["messages"] < looks[-1][1]):
            looks.clear()
            self._earlier.clear()
        if figures is None:
            self.rate = self.bytes_s = 0.0
            self.latencies, self.median_s, self.late_s = Latencies(), None, None
            return
        looks.append((now_s, figures["messages"], figures["bytes"]))
        while len(looks) > 2 and looks[1][0] <= now_s - RATE_S:
            looks.popleft()
        span_s = now_s - looks[0][0]
        self.rate = (figures["messages"] - looks[0][1]) / span_s if span_s else 0.0
        self.bytes_s = max(0, figures["bytes"] - looks[0][2]) / span_s if span_s else 0.0
        earlier = self._earlier
        if earlier and now_s - earlier[-1][0] < LATENCY_EVERY_S:
            return  # it is most of the work, and nobody reads it faster
        counted: Mapping[str, int] = figures.get("latencies") or {}
        earlier.append((now_s, counted))
        while len(earlier) > 2 and earlier[1][0] <= now_s - LATENCY_S:
            earlier.popleft()
        before = earlier[0][1]
        self.latencies = Latencies(tuple(sorted([(float(bound), count - before.get(bound, 0))
                                                 for bound, count in counted.items() if count > before.get(bound, 0)])))
        self.median_s, self.late_s = self.latencies.within_s(0.5), self.latencies.within_s(0.99)


class History:
    """Points of some figures over time, the last HISTORY_MAX of them; nan where there was nothing."""

    def __init__(self, figures: int) -> None:
        self._columns = [array("d") for _ in range(figures + 1)]
        self._lock = threading.Lock()

    def add(self, time_s: float, *figures: float) -> None:
        """At `time_s`, UTC."""
        with self._lock:
            for column, value in zip(self._columns, (time_s, *figures), strict=True):
                column.append(value)
                if len(column) > 2 * HISTORY_MAX:
                    del column[:-HISTORY_MAX]

    def columns(self) -> list[list[float | None]]:
        """Times, and each figure's values; None for nan, which JSON doesn't have."""
        with self._lock:
            columns = [column[-HISTORY_MAX:] for column in self._columns]
        return [[None if value != value else value for value in column] for column in columns]


__all__ = ["HISTORY_MAX", "History", "TopicRates"]
