"""Small helpers that DDS programs use everywhere: durations, timestamps, a look at an entity.

Rules: every duration and timestamp is an int of nanoseconds; timestamps count from the Unix epoch, UTC.
"""

from __future__ import annotations

from time import time_ns

from dds.internal import dds_infinity


def isgoodentity(v: object) -> bool:
    """True if `v` is an open entity. Never raises."""
    from dds.core import Entity

    return isinstance(v, Entity) and v._open


def duration(*, weeks: float = 0, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
             milliseconds: float = 0, microseconds: float = 0, nanoseconds: int = 0, infinite: bool = False) -> int:
    """The sum of the given parts in nanoseconds; `infinite=True` gives the duration that never ends.

    >>> duration(seconds=1, milliseconds=500)
    1500000000
    """
    if infinite:
        return dds_infinity
    hours += (weeks * 7 + days) * 24
    seconds += (hours * 60 + minutes) * 60
    return int(nanoseconds + (microseconds + (milliseconds + seconds * 1000) * 1000) * 1000)


class timestamp:
    """Timestamps as DDS has them."""

    @staticmethod
    def now() -> int:
        """The present time in nanoseconds since the Unix epoch."""
        return time_ns()


__all__ = ["duration", "isgoodentity", "timestamp"]
