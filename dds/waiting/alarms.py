"""The thread of a participant on which things happen because time passes: deadlines, leases, delays.

Rules: what is called here is short and takes no callbacks of the program: those run on the listeners' thread. The
thread starts with the first that asks for it and holds nobody alive; it sleeps until the next moment that anybody
has named. It takes no more than a share of a core, however much is due: what is missed is counted later then.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from dds.waiting.wake import start
from spindle.locks import Condition

NEVER = float("inf")
PAUSE = 4  # at least so many times as long as its last look took this thread


class Timed(Protocol):
    """What has something to do at times."""

    def _on_time(self) -> float | None:
        """Do what is due. Returns in how many seconds there is something again; None: after a call of look()."""


class Alarms:
    """The thread; `name` is for people who look at threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = Condition()  # reentrant: a finalizer may run while we hold it
        self._timed: dict[int, weakref.ref[Timed]] = {}
        self._at: dict[int, float] = {}  # by the same key: when to look at it, on the monotonic clock
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, timed: Timed) -> None:
        """Ask it at once, and from then on when it says. Twice is once. DDSException where no more threads may run."""
        self.look(timed)

    def look(self, timed: Timed) -> None:
        """It may have something to do earlier than it has said."""
        with self._changed:
            if self._stopping:
                return
            self._timed[id(timed)] = weakref.ref(timed)
            self._at[id(timed)] = 0.0
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread, "what happens because time passes")
                self._thread = thread
            self._changed.notify()

    def stop(self) -> None:
        """Nobody is asked any more; waits for a call that runs, unless called from it. Idempotent."""
        with self._changed:
            self._stopping = True
            self._timed.clear()
            self._at.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def _run(self) -> None:
        while due := self._wait():
            for key in due:
                self._ask(key)

    def _wait(self) -> list[int]:
        """Whom to ask, at the next moment that somebody named; nobody at the end."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                if due := [key for key, at in self._at.items() if at <= now]:
                    return due
                nearest = min(self._at.values(), default=NEVER)
                self._changed.wait(None if nearest == NEVER else nearest - now)
            return []

    def _ask(self, key: int) -> None:
        with self._changed:
            found = self._timed.get(key)
            timed = None if found is None else found()
            if timed is None:
                self._timed.pop(key, None)
                self._at.pop(key, None)
                return
            self._at[key] = NEVER  # a look() from here on counts
        began_s = time.thread_time()
        try:
            again_s = timed._on_time()
        except Exception:  # nothing may end this thread
            logging.getLogger("dds").exception("what was due for %r failed", timed)
            again_s = None
        if again_s is not None:
            again_s = max(again_s, PAUSE * (time.thread_time() - began_s))
            with self._changed:
                if key in self._at:
                    self._at[key] = min(self._at[key], time.monotonic() + again_s)


__all__ = ["Alarms", "Timed"]
