"""A condition, a latch and a `with` with a time limit that a signal can't leave locked.

Why not those of `threading`: they enter and leave their lock in Python. An exception that a signal handler raises there
(KeyboardInterrupt, say, or what a program's alarm raises) comes when the lock is taken and nobody knows to give it
back. Whoever else needs it then waits for ever, be that the thread that brings all answers to the program.

Rule: where a program's threads wait for something that a thread of ours brings, they wait with these. Plain locks and
RLocks need nothing: `with` enters and leaves them in one step.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from spindle_core.slices import Taking

if TYPE_CHECKING:

    class _Lock:
        """What an RLock has, and Condition uses."""

        def _release_save(self) -> tuple[int, int]: ...
        def _acquire_restore(self, state: tuple[int, int]) -> None: ...
        def _is_owned(self) -> bool: ...
        def _at_fork_reinit(self) -> None: ...
else:
    _Lock = type(threading.RLock())


class Condition(_Lock, threading.Condition):
    """As threading.Condition with a lock of its own, which is an RLock. It is this lock: a threading.Condition made
    with it shares that."""

    def __init__(self) -> None:
        self._waiters: deque[threading.Lock] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """As that of threading.Condition; the lock is owned again when this ends, however it does."""
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = threading.Lock()
        waiter.acquire()
        state, notified = (1, threading.get_ident()), False
        try:
            self._waiters.append(waiter)
            try:
                state = self._release_save()  # interrupted right behind the release, it was held once
                notified = waiter.acquire(True, -1 if timeout is None else max(0.0, timeout))
            finally:
                self._acquire_restore(state)
        finally:
            if not notified and waiter in self._waiters:
                self._waiters.remove(waiter)
        return notified

    def begin_anew(self) -> None:
        """In the child after fork(), where who held the lock is not."""
        self._at_fork_reinit()
        self._waiters.clear()


L = TypeVar("L")


def free_after_fork(lock: L) -> L:
    """A lock of the whole process that nobody holds in a child after fork(): the thread that did stayed in the parent.
    What it guards must make sense at any time."""
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


class Latch(threading.Event):
    """As threading.Event, whose name in this house is taken by what nodes tell."""

    def __init__(self) -> None:
        self._cond = Condition()
        self._flag = False


__all__ = ["Condition", "Latch", "Taking", "free_after_fork"]
