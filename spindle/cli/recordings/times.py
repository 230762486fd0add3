"""When the messages of a recording were delivered, by a clock that nobody sets.

Why: nodes say it by the wall clock of their host. Where that is set in the middle of a recording, messages of one topic
would come before those of another that were there first, and be played at other intervals than they were delivered at.
Times of a recording go on from those at its beginning.

Rules: sans clock. A node's time is taken for the latest that isn't in the future, by any of the settings that the wall
clock has had since: what is read was delivered a short while ago. Until the clock is set, times are the node's.
"""

from __future__ import annotations

import collections

STEP_NS = 100_000_000  # by which the wall clock differs from how it went, where it was set
SETTINGS_MAX = 16  # that are remembered


class Timeline:
    """wall_ns: the wall clock, UTC; steady_ns: one that nobody sets, and that counts while the machine is suspended."""

    def __init__(self, wall_ns: int, steady_ns: int) -> None:
        self._first = wall_ns - steady_ns
        self._settings = collections.deque([self._first], maxlen=SETTINGS_MAX)
        self._now = steady_ns

    def look(self, wall_ns: int, steady_ns: int) -> None:
        """It is so late now; before at() of messages that have been read."""
        self._now = steady_ns
        setting = wall_ns - steady_ns
        if abs(setting - self._settings[-1]) > STEP_NS:
            self._settings.append(setting)

    def at(self, wall_ns: int) -> int:
        """When what a node has delivered at `wall_ns` was delivered, UTC ns as the clock went at the beginning."""
        if len(self._settings) == 1:
            return wall_ns
        possible = [steady for setting in self._settings if (steady := wall_ns - setting) <= self._now + STEP_NS]
        return self._first + max(possible, default=self._now)


__all__ = ["Timeline"]
