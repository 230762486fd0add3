"""Plays the recorded flight in time, faster if asked to.

Rules: a row is due at `at + (its time - start) / speed` on the wall clock. Two publishers that are told the same
`--at`, `--start` and `--speed` so stamp the same row with the same time, whatever delays either; they stamp with the
time due, as a sensor stamps with the time of measurement. A late publisher catches up; it never drops a row.
"""

from __future__ import annotations

import itertools
import math
import select
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TextIO

from flight_data import FlightRow


class Replay:
    """Iterates over (row, due time in ns of the wall clock), sleeping until each is due.

    start, duration: seconds of the flight from its first row; rows outside are left out. at: wall-clock time (Unix,
    s) at which `start` is played, default now; or a file whose next line says it, which the iteration waits for.
    `stop()` ends the iteration at once; it is safe in a signal handler.
    """

    def __init__(
        self,
        rows: Iterable[FlightRow],
        *,
        speed: float = 1.0,
        start: float = 0.0,
        duration: float = math.inf,
        at: float | TextIO | None = None,
    ) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed must be a positive number, not {speed}")
        if start < 0 or duration <= 0:
            raise ValueError(f"start must not be negative and duration positive, not {start} and {duration}")
        self._rows = rows
        self._speed, self._start, self._duration = speed, start, duration
        self._told_by = None if at is None or isinstance(at, float) else at
        self._at_ns = round(at * 1e9) if isinstance(at, float) else time.time_ns()
        self._stopped = threading.Event()
        self._piece: Iterator[tuple[FlightRow, int]] = self._rows_with_offsets()

    def stop(self) -> None:
        self._stopped.set()

    def prepare(self) -> None:
        """Reads as far as the first row that it plays: of a full recording that takes seconds."""
        first = next(self._piece, None)
        self._piece = itertools.chain([] if first is None else [first], self._piece)

    def plan(self) -> Iterator[tuple[FlightRow, int]]:
        """The same pairs without sleeping."""
        return ((row, self._at_ns + offset_ns) for row, offset_ns in self._piece)

    def _rows_with_offsets(self) -> Iterator[tuple[FlightRow, int]]:
        start = math.nan
        for row in self._rows:
            if start != start:
                start = row.time + self._start
            if row.time < start:
                continue
            if row.time >= start + self._duration:
                return
            yield row, round((row.time - start) * 1e9 / self._speed)

    def _await_moment(self) -> None:
        """Raises ValueError if no moment comes, or what comes is none."""
        while self._told_by is not None and not self._stopped.is_set():
            if select.select([self._told_by], [], [], 0.1)[0]:
                line = self._told_by.readline()
                try:
                    self._at_ns = round(float(line) * 1e9)
                except ValueError:
                    raise ValueError(f"a line with a Unix time must say when to begin, not {line!r}") from None
                self._told_by = None

    def __iter__(self) -> Iterator[tuple[FlightRow, int]]:
        self.prepare()
        self._await_moment()
        for row, due_ns in self.plan():
            delay_ns = due_ns - time.time_ns()
            if delay_ns > 0 and self._stopped.wait(delay_ns / 1e9):
                return
            if self._stopped.is_set():
                return
            yield row, due_ns
