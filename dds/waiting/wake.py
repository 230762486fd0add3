"""Waking threads and event loops that wait for several things at once.

Why: a reader has one descriptor that its node rings once after it was armed. Several waiters may want that ring (an
iterator, a wait set, the listener thread, an event loop), and whoever empties the descriptor takes it from the others.

Rules: every waiter has a `Waker` of its own and waits for it and for the reader's descriptor. Who finds the reader's
descriptor readable empties it and rings all other waiters of that reader (`Hub.woken`). Who is woken looks at the data
again, arms, looks once more, and only then waits.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterable

from dds.exceptions import translate
from spindle.errors import SpindleError, start_thread

HARDLY_MEANT_NS = 1000  # no wait can be so short that one below this is of use
_exiting = False


def exit_begins() -> None:
    """The program ends: from now on park() holds threads that would only fail."""
    global _exiting
    _exiting = True


def park() -> None:
    """Called before a call fails because its entity is closed or its node gone: at the end of the program a daemon
    thread waits here instead, and ends with the process: its traceback would help nobody."""
    if _exiting and threading.current_thread().daemon:
        threading.Event().wait()


def start(thread: threading.Thread, what: str) -> None:
    """Start it; `what` needs it. Raises DDSException (OUT_OF_RESOURCES) where no more may run."""
    try:
        start_thread(thread, what)
    except SpindleError as error:
        raise translate(error) from error


class Waker:
    """An eventfd. `ring()` from any thread; readable until `clear()`. Closed when forgotten.

    Raises DDSException (OUT_OF_RESOURCES) where the process may have no more descriptors.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self) -> None:
        try:
            self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            raise translate(error, "a wait") from error

    def ring(self) -> None:
        if self.fd >= 0:
            os.write(self.fd, _ONE)

    def clear(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1  # none, if making it was interrupted
        if fd >= 0:
            os.close(fd)


_ONE = (1).to_bytes(8, "little")  # eventfd takes host order; any value other than 0 does


class Hub:
    """The wakers of all who wait for one reader."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer may run while we hold it
        self._waiters: tuple[weakref.ref[Waker], ...] = ()
        self._spare: list[Waker] = []

    def join(self, waker: Waker) -> None:
        with self._lock:
            self._waiters = (*(one for one in self._waiters if one() is not None), weakref.ref(waker))

    def leave(self, waker: Waker) -> None:
        """Undo one join."""
        with self._lock:
            left = [one for one in self._waiters if one() is not None]
            for i, one in enumerate(left):
                if one() is waker:
                    del left[i]
                    break
            self._waiters = tuple(left)

    def enter(self) -> Waker:
        """A waker that has joined, for a wait on this reader alone. Give it back to `exit`."""
        with self._lock:
            waker = self._spare.pop() if self._spare else Waker()
            self._waiters += (weakref.ref(waker),)
        return waker

    def exit(self, waker: Waker) -> None:
        # Not cleared: that would cost every wait a call; a ring that is still in it costs the next one a look in vain.
        self.leave(waker)
        self._spare.append(waker)

    def woken(self, by: Waker | None = None) -> None:
        """Ring everybody but `by`: the descriptor was emptied, or something else changed."""
        for one in self._waiters:
            waker = one()
            if waker is not None and waker is not by:
                waker.ring()


def wait_readable(fds: Iterable[int], timeout_s: float | None) -> set[int]:
    """The descriptors of `fds` that are readable, waiting until one is or `timeout_s` is over (None = for ever)."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    # Rounded up: a poll that returns too early would make its caller spin through the last millisecond.
    timeout_ms = None if timeout_s is None else 0 if timeout_s <= 0 else min(int(timeout_s * 1000) + 1, 0x7FFFFFFF)
    return {fd for fd, _ in poller.poll(timeout_ms)}


def time_text(timeout_ns: int) -> str:
    """A timeout in words. One that is hardly meant says in what it counts."""
    if 0 < timeout_ns < HARDLY_MEANT_NS:
        return f"{timeout_ns} ns (times are in nanoseconds, as dds.duration(seconds=1) makes them)"
    return span_text(timeout_ns)


def span_text(ns: int) -> str:
    """A time that has passed, for people: 0 s (also of less), 71 us, 0.25 s, 12 s."""
    if ns <= 0:
        return "0 s"
    if ns < 1_000_000:
        return f"{ns / 1e3:.3g} us" if ns >= 1000 else f"{ns} ns"
    return f"{ns / 1e9:.3g} s" if ns < 100 * 10**9 else f"{ns / 1e9:.0f} s"


def check_timeout(timeout_ns: int | None, name: str = "a timeout") -> None:
    """TypeError for what is no whole number or None; a UserWarning for 1 to 999 ns, since these were hardly meant in
    nanoseconds."""
    if timeout_ns is not None and not hasattr(timeout_ns, "__index__"):
        raise TypeError(f"{name} is a whole number of nanoseconds, not {timeout_ns!r}: "
                        "dds.duration(seconds=...) makes one of seconds")
    if timeout_ns is not None and 0 < timeout_ns < HARDLY_MEANT_NS:
        _warn_of(timeout_ns, name)


def check_positive(timeout_ns: int, name: str) -> int:
    """The same, and TypeError for None, ValueError below 1. Returns it."""
    check_timeout(0 if timeout_ns is None else timeout_ns, name)
    if timeout_ns is None:
        raise TypeError(f"{name} must be a time in ns, not None; dds.duration(infinite=True) never ends")
    if timeout_ns <= 0:
        raise ValueError(f"{name} must be positive, not {timeout_ns!r}")
    return timeout_ns


class Deadline:
    """A point in time `timeout_ns` from now; None and dds_infinity never come, and less than 0 is as 0. TypeError and
    UserWarning as check_timeout()."""

    __slots__ = ("_end",)

    def __init__(self, timeout_ns: int | None) -> None:
        if timeout_ns.__class__ is not int or timeout_ns < HARDLY_MEANT_NS:
            check_timeout(timeout_ns)
        self._end = None if timeout_ns is None or timeout_ns >= 1 << 62 else time.monotonic() + timeout_ns / 1e9

    @classmethod
    def in_ns(cls, left_ns: int) -> Deadline:
        """So many ns from now that were computed, which may be few and are meant. TypeError as check_timeout()."""
        few = left_ns.__class__ is int and 0 < left_ns < HARDLY_MEANT_NS
        return cls(HARDLY_MEANT_NS if few else left_ns)

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        """In so many seconds; negative = never."""
        made = cls(None)
        made._end = None if timeout_s < 0 else time.monotonic() + timeout_s
        return made

    def wait_s(self) -> float:
        """Seconds left as the core takes them: negative if there is no end."""
        return -1.0 if self._end is None else max(0.0, self._end - time.monotonic())

    def left_s(self) -> float | None:
        """Seconds left, never negative; None if there is no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _warn_of(timeout_ns: int, name: str) -> None:
    """Of a timeout that was meant in another unit, at the line of the program that gives it."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("dds.") and frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(f"{name} of {timeout_ns} is {timeout_ns} ns: times are in nanoseconds, "
                  f"dds.duration(seconds={timeout_ns}) makes them of seconds", stacklevel=depth)
