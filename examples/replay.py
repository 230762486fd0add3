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

SPEED_MIN, SPEED_MAX = 1e-4, 1e9
AT_MAX = float(1 << 32)  # in the year 2106: so each time due is one that a sample can have
WAIT_MAX_S = 3600.0  # at a time: what is due years later is more than a wait may take


class Replay:
    """Iterates over (row, due time in ns of the wall clock), sleeping until each is due.

    start, duration: seconds of the flight from its first row; rows outside are left out. at: wall-clock time (Unix,
    s) at which `start` is played, default now; or a file whose next line says it, which the iteration waits for.
    `stop()` ends the iteration at once; it is safe in a signal handler. Raises ValueError for what can't be; so does
    the iteration if no row is left to be played.
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
        if not SPEED_MIN <= speed <= SPEED_MAX:
            raise ValueError(f"speed must be a positive number, {SPEED_MIN:g} to {SPEED_MAX:g}, not {speed}")
        if not (0 <= start < math.inf and duration > 0):
            raise ValueError(f"start must not be negative and duration positive, not {start} and {duration}")
        self._rows = rows
        self._speed, self._start, self._duration = speed, start, duration
        self._told_by = None if at is None or isinstance(at, float) else at
        self._at_ns = nanoseconds(at) if isinstance(at, float) else time.time_ns()
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
        start = last = math.nan
        played, why = 0, ""
        for row in self._rows:
            if start != start:
                start = row.time + self._start
            if row.time >= start + self._duration:
                why = f"nothing was heard within {self._duration:g} s"
                break
            last = row.time
            if row.time >= start:
                played += 1
                yield row, round((row.time - start) * 1e9 / self._speed)
        if not played:
            end = "is empty" if start != start else f"ends in its second {last - start + self._start:.10g}"
            why = why or f"the recording {end}"
            raise ValueError(f"there is nothing to play from second {self._start:.10g} on: {why}")

    def _await_moment(self) -> None:
        """Raises ValueError if no moment comes, or what comes is none."""
        while self._told_by is not None and not self._stopped.is_set():
            if select.select([self._told_by], [], [], 0.1)[0]:
                line = self._told_by.readline()
                try:
                    self._at_ns = nanoseconds(float(line))
                except ValueError:
                    raise ValueError(f"a line with a Unix time must say when to begin, not {line!r}") from None
                self._told_by = None

    def __iter__(self) -> Iterator[tuple[FlightRow, int]]:
        self.prepare()
        self._await_moment()
        for row, due_ns in self.plan():
            while (delay_ns := due_ns - time.time_ns()) > 0:
                if self._stopped.wait(min(delay_ns / 1e9, WAIT_MAX_S)):
                    return
            if self._stopped.is_set():
                return
            yield row, due_ns


def nanoseconds(unix_time_s: float) -> int:
    """ValueError for what is no time at which a replay could begin."""
    if not 0 <= unix_time_s <= AT_MAX:
        raise ValueError(f"a replay begins at a Unix time of 0 to {AT_MAX:.0f} s, not at {unix_time_s}")
    return round(unix_time_s * 1e9)
