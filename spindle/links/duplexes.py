"""A program's duplexes: the shortest way of messages between two programs of one host (spindle_core.links.duplex).

A link gets one to a port to which it has sent a few messages: who sends one alone needs none. Where there is none to be
had, messages go through the pools of the nodes, as between hosts, and it asks again some time later.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from spindle.errors import SpindleError

if TYPE_CHECKING:
    from spindle.client.session import Session
    from spindle_core.links.duplex import Duplex

FIRST = 4  # messages to a port before a link asks for a duplex
LATER = 8  # times as many as so far before it asks again
ASK_S = 1.0  # for its node's answer, at most
# How long who waits for an answer looks for it before it sleeps, and who has got a message for the next one. Being
# woken costs about as much. Where there is one processor the other one needs it.
SPIN_S = 20e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0


class Duplexes:
    """Those of one end of a link, by port."""

    def __init__(self, session: Session, link: int) -> None:
        self._session, self._link = session, link
        self._open: dict[int, Duplex] = {}
        self._sent: dict[int, tuple[int, int]] = {}  # messages so far, and at how many it asks
        self._elsewhere = False  # the other end is on another host

    def to(self, port: int, timeout_s: float) -> Duplex | None:
        """The way for the next message to that port; None: through the pools."""
        duplex = self._open.get(port)
        if duplex is not None:
            if not duplex.over:
                return duplex
            self.drop(port)
        if self._elsewhere:
            return None
        sent, ask_at = self._sent.get(port, (0, FIRST))
        sent += 1
        self._sent[port] = sent, max(ask_at, sent * LATER) if sent >= ask_at else ask_at
        if sent < ask_at:
            return None
        with contextlib.suppress(SpindleError, TimeoutError, OSError):
            if (duplex := self._ask(port, timeout_s)) is not None:
                self._open[port] = duplex
        return duplex

    def _ask(self, port: int, timeout_s: float) -> Duplex | None:
        from spindle.client.session import taken
        from spindle.proto import attach_pb2 as pb
        from spindle_core.links.duplex import Duplex
        from spindle_core.memory import Mapping

        reply, frame = self._session._channel.request(
            min(timeout_s, ASK_S), open_duplex=pb.OpenDuplex(link=self._link, port=port))
        self._elsewhere = reply.duplex.elsewhere
        if not frame.fds:
            return None
        with taken(frame, 2) as fds:
            duplex = Duplex(Mapping.attach(fds.take(), writable=True), fds.take(), 0)
        self._session._channel.add_port(self._key(port), duplex)  # who waits for an answer hears of the node's end
        return duplex

    def _key(self, port: int) -> int:
        return -(1 << 96 | self._link << 16 | port)  # none that a link has, or anything else

    def drop(self, port: int) -> None:
        """It is over, or needed no more."""
        duplex = self._open.pop(port, None)
        if duplex is not None:
            self._session._channel.remove_port(self._key(port))
            duplex.close()
            self._sent.pop(port, None)

    def close(self) -> None:
        """Idempotent."""
        for port in list(self._open):
            self.drop(port)


def take_duplex(session: Session, link: int, over: int) -> tuple[int, int, Duplex] | None:
    """Of who listens, by a link that is bound to a port: one that somebody has asked for, with the life of that one's
    node and the number of its link. `over`: so many that it had have ended. None where none waits. Raises SpindleError.
    """
    from spindle.client.session import taken
    from spindle.proto import attach_pb2 as pb
    from spindle_core.links.duplex import Duplex
    from spindle_core.memory import Mapping

    reply, frame = session._channel.request(take_duplex=pb.TakeDuplex(link=link, over=over))
    if not reply.duplex_taken.life:
        frame.close_fds()
        return None
    with taken(frame, 2) as fds:
        return reply.duplex_taken.life, reply.duplex_taken.link, Duplex(
            Mapping.attach(fds.take(), writable=True), fds.take(), 1)
