"""What the aircraft is doing, put together from samples of both topics; for the display and for the alerts.

Why: a sample has only the figures that were heard in its interval; the rest is NaN. Whoever shows or judges them
needs the last figure heard, and must know when it has become too old to be believed.

Rules: time is the flight's own (`flight_time`, seconds), so what counts as old doesn't depend on how fast a flight is
replayed, and two programs that are fed the same samples in the same order hold the same state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

HOLD_S = 15.0
"""A figure older than this is stale: not judged, and shown as missing. The slowest comes every 5 to 10 s."""


class FlightState:
    """The last figure heard of each name, with its age."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.hold_s = hold_s
        self.flight_time = math.nan
        """Newest time of any sample, Unix seconds of the recording; NaN before the first."""
        self._numbers: dict[str, tuple[float, float]] = {}  # name -> (value, flight time it was heard)
        self._texts: dict[str, str] = {}

    def apply(self, values: Mapping[str, float | str], flight_time: float) -> None:
        """Takes over a sample's figures. NaN and empty texts mean "not heard" and change nothing."""
        if flight_time != flight_time:
            return  # nobody knows how old they are
        if not self.flight_time >= flight_time:
            self.flight_time = flight_time
        for name, value in values.items():
            if isinstance(value, str):
                if value:
                    self._texts[name] = value
            elif value == value:
                self._numbers[name] = (value, flight_time)

    def get(self, name: str) -> float | None:
        """The last figure heard, or None if there is none or it is stale."""
        entry = self._numbers.get(name)
        if entry is None or abs(self.flight_time - entry[1]) > self.hold_s:
            return None
        return entry[0]

    def heard_at(self, name: str) -> float | None:
        """Flight time at which the figure was heard, however long ago."""
        entry = self._numbers.get(name)
        return entry[1] if entry else None

    def text(self, name: str) -> str:
        """The last text heard, empty if none."""
        return self._texts.get(name, "")
