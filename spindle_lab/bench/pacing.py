"""Sleeping precisely, without spinning.

Why: Linux lets a sleeper oversleep by its timer slack, 50 us by default, which would be in every paced measurement.
"""

from __future__ import annotations

import ctypes
import time

PR_SET_TIMERSLACK = 29


def precise_timers() -> None:
    """Sets the timer slack of the calling thread and of those it starts to a nanosecond. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_TIMERSLACK)")


def sleep_ns(ns: int) -> None:
    """At least so long; not at all for 0."""
    if ns > 0:
        time.sleep(ns / 1e9)


def sleep_until_ns(due_ns: int) -> None:
    """Until CLOCK_MONOTONIC shows due_ns."""
    sleep_ns(due_ns - time.monotonic_ns())
