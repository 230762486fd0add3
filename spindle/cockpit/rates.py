"""Rates and latencies between looks at a node, and their history for charts.

Rules: a rate is over the last second, so that it is steady at any number of looks a second; latencies are over the last
ten. What went back (a new life of the node, a topic that was declared anew) begins anew. Every history has a length.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

RATE_S = 1.0
LATENCY_S = 10.0
HISTORY_MAX = 900  # points, one a second: a quarter of an hour


class TopicRates:
    """Of one topic. `update()` with each look; then the attributes are those of that moment.

    rate      messages delivered per second at the node
    bytes_s   bytes of them
    latencies messages of the last ten seconds by latency; empty if the node is no member
    """

    def __init__(self) -> None:
        self.rate = self.bytes_s = 0.0
        self.latencies: list[int] = []
        self.history = History(3)  # rate, bytes_s, median latency in s
        self._looks: deque[tuple[float, int, int, int]] = deque()
        self._earlier: deque[tuple[float, Sequence[int]]] = deque()

    def update(self, now_s: float, topic: dict[str, Any]) -> None:
        """`topic` is its part of the node's figures, at `now_s` (monotonic)."""
        delivered, seen = topic.get("delivered"), topic.get("seen", 0)
        if delivered is None:
            self._looks.clear()
            self._earlier.clear()
            self.rate = self.bytes_s = 0.0
            self.latencies = []
            return
        looks = self._looks
        if looks and (delivered < looks[-1][1] or seen < looks[-1][2]):
            looks.clear()
            self._earlier.clear()
        looks.append((now_s, delivered, seen, topic.get("seen_bytes", 0)))
        while len(looks) > 2 and looks[1][0] <= now_s - RATE_S:
            looks.popleft()
        first = looks[0]
        span_s = now_s - first[0]
        self.rate = (delivered - first[1]) / span_s if span_s else 0.0
        looked_at = seen - first[2]
        size = (topic.get("seen_bytes", 0) - first[3]) / looked_at if looked_at else 0.0
        self.bytes_s = self.rate * size
        self._count_latencies(now_s, topic.get("latencies") or [])

    def _count_latencies(self, now_s: float, counts: Sequence[int]) -> None:
        earlier = self._earlier
        if not earlier or now_s - earlier[-1][0] >= 1.0:
            earlier.append((now_s, counts))
        while len(earlier) > 1 and earlier[1][0] <= now_s - LATENCY_S:
            earlier.popleft()
        if counts:
            before = earlier[0][1]
            self.latencies = [now - then for now, then in zip(counts, before, strict=True)] if before else list(counts)

    def percentile(self, part: float, floors_s: Sequence[float]) -> float | None:
        """The latency in s that so large a part of the messages doesn't exceed, within a bucket's width; None if there
        were none."""
        total = sum(self.latencies)
        if not total:
            return None
        wanted, so_far = part * total, 0.0
        for bucket, count in enumerate(self.latencies):
            if count and so_far + count >= wanted:
                low = floors_s[bucket]
                high = floors_s[bucket + 1] if bucket + 1 < len(floors_s) else 2 * low
                return low + (high - low) * (wanted - so_far) / count
            so_far += count
        return floors_s[-1]


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
