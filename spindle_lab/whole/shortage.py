"""Descriptors and memory that run out for one process: the kernel's own limits, while one of its threads runs.

To the kernel all processes of a run are one. So before a turn of a process that is short, `holding` takes every free
descriptor number below the highest used one, and sets the limit so far above that one as the process may still open.
After the turn it counts what is left, and gives the numbers back. Whatever opens something in between fails as it does
in production: calls of C, and descriptors that come with a message, too.

What is the simulation's own is opened with `plenty()`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from os import dup  # the kernel's: nothing here belongs to a process of the run
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle_lab.whole.system import System

SHORT = ("descriptors", "memory", "Too many open files")  # words of the errors when something runs out


class Shortage:
    """What one process can still have: `descriptors` more (None: any number), and `mappings` more of shared memory."""

    def __init__(self, system: System, descriptors: int | None, mappings: int | None) -> None:
        self._system = system
        self.descriptors, self.mappings = descriptors, mappings
        self._limit = -1  # while it holds

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """A turn of the process."""
        if self.descriptors is None:
            yield
            return
        nothing = self._system.nothing
        highest = max(_open_descriptors())
        taken = []
        while (fd := dup(nothing)) < highest:  # each has the lowest number that is free
            taken.append(fd)
        os.close(fd)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = fd + self.descriptors
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._limit, before[1]))
            yield
        finally:
            left = _free(nothing)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            self._limit = -1
            self.descriptors = left
            for fd in taken:
                os.close(fd)

    @contextlib.contextmanager
    def plenty(self) -> Iterator[None]:
        """While in it, its limit doesn't count."""
        if self._limit < 0:
            yield
            return
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def map(self) -> None:
        """One more mapping. Raises OSError where there is none left."""
        if self.mappings is not None:
            if not self.mappings:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            self.mappings -= 1

    def open(self) -> None:
        """One more descriptor, which is none of the kernel's. Raises OSError where there is none left."""
        if self._limit >= 0:
            os.close(dup(self._system.nothing))


def _open_descriptors() -> set[int]:
    """The numbers of all that this process has open."""
    found = {int(one) for one in os.listdir("/proc/self/fd")}
    own = dup(0)  # gets the number that the listing had for itself: it was the lowest free one, and is again
    os.close(own)
    return found - {own}


def _free(nothing: int) -> int:
    """How many more can be opened now."""
    made: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            made.append(dup(nothing))
    for fd in made:
        os.close(fd)
    return len(made)
