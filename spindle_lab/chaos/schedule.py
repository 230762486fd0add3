"""What a fault does later: lets go of what it stopped, mends what it broke."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable


class Schedule:
    """What is to be done later, by the clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._numbers), what))

    def run(self) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            heapq.heappop(self._heap)[2]()

    @property
    def next_in_s(self) -> float:
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else 1.0

    def clear(self) -> None:
        self._heap.clear()
