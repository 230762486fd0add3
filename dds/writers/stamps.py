"""Source timestamps of writers whose samples come in the order of these: DestinationOrder, DDS 1.4, 2.2.3.17.

A sample from the far future would keep all others of its instance out until then, at every reader. So a writer with
that policy refuses it, by the clock of its host. Readers refuse nothing for that: each would go by a clock of its own,
and they would differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dds.exceptions import DDSException

AHEAD_MAX_NS = 30_000_000_000  # hosts' clocks may differ by as much


def check(timestamp: int | None) -> None:
    """DDSException (BAD_PARAMETER) for a source timestamp, UTC ns, that is too far in the future."""
    if timestamp is not None and timestamp > time.time_ns() + AHEAD_MAX_NS:
        raise DDSException(
            DDSException.DDS_RETCODE_BAD_PARAMETER,
            f"source timestamp {timestamp} is {(timestamp - time.time_ns()) / 1e9:.1f} s in the future: with "
            f"DestinationOrder.BySourceTimestamp {AHEAD_MAX_NS // 10**9} s are the most, as it would keep out all that "
            "is written until then; set the clock, or give a timestamp that has passed")


def checked(write: Callable[..., None]) -> Callable[..., None]:
    """A writer's write(sample, timestamp=None), after check()."""
    def checked_write(sample: Any, timestamp: int | None = None) -> None:
        check(timestamp)
        write(sample, timestamp)

    return checked_write


__all__ = ["AHEAD_MAX_NS", "check", "checked"]
