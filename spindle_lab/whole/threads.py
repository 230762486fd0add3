"""Threads of which one at a time runs: each is a greenlet that gives the processor back when it has to wait.

Why greenlets: the code that waits (a client's request, a journal's thread) is the production code, with its calls in
the middle of its stack; and as only waiting gives the processor away, a run is the same every time.

Rules: a thread waits through `System.wait` only. What wakes it is a condition (`ready`), descriptors, or its deadline.
A lock is taken at once unless another thread holds it, which happens only if that thread waits while it holds the lock.
"""

from __future__ import annotations

import threading as real
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, greenlet

from spindle_lab.whole.turns import Waiter

if TYPE_CHECKING:
    from spindle_lab.whole.system import Process, System


class Thread(Waiter):
    """One thread of a process; `threading.Thread` as far as the production code uses it."""

    system: System

    def __init__(self, group: None = None, target: Callable[..., Any] | None = None, name: str | None = None,
                 args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, *,
                 daemon: bool | None = None) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self.ident: int | None = None
        self.process: Process = self.system.current
        self.greenlet: greenlet | None = None
        # What it waits for, while it does, beside what all waiters have.
        self.polled_fd = -1  # an epoll descriptor, readable when one of those that it waits for is
        self.polling: frozenset[int] = frozenset()  # the descriptors themselves
        self.hung_up: set[int] = set()  # those of them that were closed meanwhile
        self.finished = False
        self._ended: list[None] = []  # has one element once the thread has ended: join() waits for that

    def start(self) -> None:
        """Makes it runnable."""
        system = self.system
        self.ident = system.next_ident()
        self.greenlet = greenlet(self._main, parent=system.scheduler)
        self.process.threads.append(self)
        self.runnable = True

    def _main(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        except GreenletExit:
            pass
        except BaseException as error:
            self.process.thread_failed(self, error)
        finally:
            self.finished = True
            self._ended.append(None)
            self.runnable = False

    def is_alive(self) -> bool:
        """True from start() to its end."""
        return self.ident is not None and not self.finished

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end."""
        if not self.finished:
            self.system.wait(None, timeout, told=self._ended)

    def __repr__(self) -> str:
        return f"<{self.name} of {self.process}>"


class Lock:
    """`threading.Lock`, and with `reentrant` its RLock."""

    system: System
    reentrant = False

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As threading's."""
        me = self.system.thread or self
        if self._owner is None or (self.reentrant and self._owner is me):
            self._owner = me
            self._depth += 1
            return True
        if not blocking:
            return False
        if self.system.wait(lambda: self._owner is None, None if timeout < 0 else timeout):
            self._owner = me
            self._depth = 1
            return True
        return False

    def release(self) -> None:
        """As threading's."""
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def locked(self) -> bool:
        """As threading's."""
        return self._owner is not None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`."""

    reentrant = True


class Condition:
    """`threading.Condition`."""

    system: System

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiters: deque[list[None]] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """As threading's."""
        told: list[None] = []
        self._waiters.append(told)
        depth, owner = self._lock._depth, self._lock._owner
        self._lock._depth, self._lock._owner = 0, None
        try:
            return self.system.wait(None, timeout, told=told)
        finally:
            if not told:
                self._forget(told)
            if self._lock._owner is not None:
                self.system.wait(lambda: self._lock._owner is None, None)
            self._lock._depth, self._lock._owner = depth, owner

    def _forget(self, told: list[None]) -> None:
        self._waiters = deque(one for one in self._waiters if one is not told)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """As threading's."""
        end_ns = None if timeout is None else self.system.now_ns + int(timeout * 1e9)
        while not (result := predicate()):
            left = None if end_ns is None else (end_ns - self.system.now_ns) / 1e9
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """As threading's."""
        for _ in range(min(n, len(self._waiters))):
            self._waiters.popleft().append(None)

    def notify_all(self) -> None:
        """As threading's."""
        self.notify(len(self._waiters))


class Event:
    """`threading.Event`."""

    system: System

    def __init__(self) -> None:
        self._told: list[None] = []  # has one element while it is set

    def is_set(self) -> bool:
        """As threading's."""
        return bool(self._told)

    def set(self) -> None:
        """As threading's."""
        self._told[:] = [None]

    def clear(self) -> None:
        """As threading's."""
        self._told.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """As threading's."""
        return bool(self._told) or self.system.wait(None, timeout, told=self._told)


REAL_CURRENT_THREAD = real.current_thread
