"""Descriptors for the next view, which nobody else gets.

Why held open and not counted: what runs out may be the process's limit or the whole system's files, and only what is
open is ours. They are given back in the moment in which the next view's memory is made, and taken again afterwards.
"""

from __future__ import annotations

import os

from spindle.errors import NoResources

BASE = 16  # own row, what fabrics wait at, connections that come
PER_MEMBER = 10  # its row, bell page and ring, ours for it, data connection, and copies on their way


class Reserve:
    """Holds nothing until `want()` is called."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._wanted = 0
        self._in_use = False  # a view is being prepared with them

    def want(self, members: int) -> None:
        """From now on holds enough for a view with one member more than `members`."""
        self._wanted = BASE + PER_MEMBER * (members + 1)
        self._in_use = False
        self.refill()

    @property
    def wanted(self) -> int:
        """Descriptors to be held; 0: this node reserves none."""
        return self._wanted

    def refill(self) -> bool:
        """True if all wanted descriptors are held; or, while a view is being prepared with them, could be."""
        try:
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return False
        finally:
            self._close_beyond(0 if self._in_use else self._wanted)
        return True

    def _close_beyond(self, count: int) -> None:
        while len(self._held) > count:
            os.close(self._held.pop())

    def release(self) -> None:
        """Gives the descriptors back: a view is being prepared."""
        self._in_use = self._wanted > 0
        self._close_beyond(0)

    def check(self, what: str) -> None:
        """For an application's wish: raises NoResources if the next view would have too few descriptors."""
        if not self.refill():
            raise NoResources(f"{what} needs descriptors, and this node has left no more than the next view needs "
                              "(ulimit -n; LimitNOFILE= of its service; fs.file-max): close readers and writers, or "
                              "detach applications")

    def close(self) -> None:
        """For good. Idempotent."""
        self.release()
        self._wanted = 0
