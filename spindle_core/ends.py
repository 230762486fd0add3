"""Descriptors that change hands: ends of doorbells that leave the process, and descriptors that nobody owns yet. For
the rules of doorbells see events.pxd."""

from __future__ import annotations

import os
import select
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from spindle_core.engine import Engine

    class Holder(Protocol):
        """Who has descriptors that nobody owns yet."""

        fds: list[int]


EVENT_END = 1 << 30  # that of events.pxd


class Loose:
    """Descriptors that nobody owns yet: what was not taken is closed with the context, and with this object.

    A signal's handler may raise where a Python function begins, and behind a call of one in C. So who takes some hands
    them to their owner before either comes.
    """

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._fds = list(fds)

    @classmethod
    def copies(cls, *fds: int) -> Loose:
        """Copies of all of them. Raises OSError, and leaves nothing open then."""
        return cls._made(os.dup, fds)

    @classmethod
    def events(cls, count: int) -> Loose:
        """So many new eventfds that don't block. Raises OSError, and leaves nothing open then."""
        return cls._made(lambda _: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), range(count))

    @classmethod
    def _made(cls, make: Callable[[int], int], each: Iterable[int]) -> Loose:
        made = cls()
        try:
            for one in each:
                made._fds.append(make(one))
        except OSError:
            made.close()
            raise
        return made

    def all(self) -> list[int]:
        """Those that are left, which stay here."""
        return list(self._fds)

    def take(self, at: int = 0) -> int:
        """The first that is left, or that `at` this place; the caller's from now on."""
        fd = self._fds[at]
        del self._fds[at]  # what pop() returned would be lost if a signal's handler raised behind it
        return fd

    def take_all(self) -> list[int]:
        """Those that are left, in their order; the caller's from now on."""
        fds, self._fds = self._fds, []
        return fds

    def take_over(self, holder: Holder) -> None:
        """Those of somebody else, instead of what is here, which must be none."""
        self._fds, holder.fds = holder.fds, []

    def add(self, *fds: int) -> None:
        """Some more."""
        self._fds += fds

    def keep(self, *fds: int) -> None:
        """These have an owner now."""
        for fd in fds:
            self._fds.remove(fd)

    def close(self) -> None:
        """Those that are left. Idempotent."""
        fds = self._fds
        while fds:
            fd = fds[-1]
            del fds[-1]
            os.close(fd)

    def __enter__(self) -> Loose:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fds", None):  # none where who made it was interrupted
            self.close()


def make_ends(within: bool = False) -> tuple[int, int]:
    """Descriptors of (the end that rings, the end that is rung). Raises OSError.

    Each is an open file of its own, a socket. Nothing can be sent the other way: the ringing end would hold it,
    descriptors included, until it is closed. `within`: nobody else has either of them, so they are one eventfd.
    """
    if within:
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            return event, os.dup(event)
        except OSError:
            os.close(event)
            raise
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # the least: a few rings that nobody has looked at
        ours.shutdown(socket.SHUT_RD)
    except OSError:
        ours.close()
        theirs.close()
        raise
    return ours.detach(), theirs.detach()


def make_pair() -> tuple[int, int]:
    """Two ends that ring each other, for two programs: who holds one hears of the other one's end. Raises OSError.

    What is sent besides a ring stays with who waits for it: a node has neither of them for long.
    """
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        for one in (first, second):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # the least, as of make_ends
    except OSError:
        first.close()
        second.close()
        raise
    return first.detach(), second.detach()


def end_of(fd: int) -> int:
    """The number of an end that was handed over, for `end_wait` and the like: it says which kind it is."""
    return fd if fd < 0 or stat.S_ISSOCK(os.fstat(fd).st_mode) else fd | EVENT_END


class ApplicationBell:
    """The bell by which one application rings its node. `fd` is handed over; afterwards the node has no copy of it, so
    the node never closes the last one. Raises OSError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._heard = heard_by(self.fd)
        except OSError:
            self.hand_over()
            raise
        try:
            engine.hear(self._heard)
        except OSError:
            os.close(self._heard)
            self.hand_over()
            raise

    def hand_over(self) -> None:
        """The application has it. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Stops listening to that application, whoever still has the descriptor. Idempotent."""
        self.hand_over()
        if self._heard >= 0:
            self._engine.unhear(self._heard)
            os.close(self._heard)
            self._heard = -1


class Ringer:
    """The bell by which this node rings another node of its host: it writes to `fd`, and hands over `heard`.

    together: other eventfds of this node, by which it rings several at once; -1: none. Raises OSError.
    """

    def __init__(self, *together: int) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self.heard = heard_by(self.fd, *together)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Closes both; copies that were handed over stay open. To be called once."""
        os.close(self.fd)
        os.close(self.heard)


def heard_by(*fds: int) -> int:
    """An epoll that becomes readable once for each ring of one of these eventfds (-1: none). Its holder can't touch
    them. OSError."""
    made = select.epoll()
    try:
        for fd in fds:
            if fd >= 0:
                made.register(fd, select.EPOLLIN | select.EPOLLET)
        return os.dup(made.fileno())
    finally:
        made.close()
