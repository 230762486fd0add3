"""Plays the recorded flight in time, faster if asked to.

Rules: a row is due at `at + (its time - start) / speed` on the wall clock. Two publishers that are told the same
`--at`, `--start` and `--speed` so stamp the same row with the same time, whatever delays either; they stamp with the
time due, as a sensor stamps with the time of measurement. A late publisher catches up; it never drops a row.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator

from flight_data import FlightRow


class Replay:
    """Iterates over (row, due time in ns of the wall clock), sleeping until each is due.

    start, duration: seconds of the flight from its first row; rows outside are left out. at: wall-clock time (Unix,
    s) at which `start` is played, default now. `stop()` ends the iteration at once; it is safe in a signal handler.
    """

    def __init__(
        self,
        rows: Iterable[FlightRow],
        *,
        speed: float = 1.0,
        start: float = 0.0,
        duration: float = math.inf,
        at: float | None = None,
    ) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed must be a positive number, not {speed}")
        if start < 0 or duration <= 0:
            raise ValueError(f"start must not be negative and duration positive, not {start} and {duration}")
        self._rows = rows
        self._speed, self._start, self._duration = speed, start, duration
        self._at_ns = time.time_ns() if at is None else round(at * 1e9)
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def plan(self) -> Iterator[tuple[FlightRow, int]]:
        """The same pairs without sleeping."""
        start = math.nan
        for row in self._rows:
            if start != start:
                start = row.time + self._start
            if row.time < start:
                continue
            if row.time >= start + self._duration:
                return
            yield row, self._at_ns + round((row.time - start) * 1e9 / self._speed)

    def __iter__(self) -> Iterator[tuple[FlightRow, int]]:
        for row, due_ns in self.plan():
            delay_ns = due_ns - time.time_ns()
            if delay_ns > 0 and self._stopped.wait(delay_ns / 1e9):
                return
            if self._stopped.is_set():
                return
            yield row, due_ns
