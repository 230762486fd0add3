"""A program's duplexes: the shortest way of messages between two programs of one host (spindle_core.links.duplex).

A link gets one to a port to which it has sent a few messages: who sends one alone needs none. Where there is none to be
had, messages go through the pools of the nodes, as between hosts, and it asks again some time later.

Nobody waits long for a node here: what it has not answered soon is looked at with a later message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spindle.errors import SpindleError, give_way

if TYPE_CHECKING:
    from spindle.client.channel import Call
    from spindle.client.session import Session
    from spindle_core.links.duplex import Duplex

FIRST = 4  # messages to a port before a link asks for a duplex
LATER = 8  # times as many as so far before it asks again
ASK_S = 0.5  # for its node's answer, at most; the node has another one to ask
ASK_SHARE = 0.25  # ... of the time that a message has
TAKE_S = 0.25  # the same of who listens, which others wait for
ROOM = 4  # descriptors that must be left before two are asked for: what comes without room ends the session
# How long who waits for an answer looks for it before it sleeps, and who has got a message for the next one. Being
# woken costs 2 us on a core that is awake, but up to 50 us on one that sleeps: who looks for less is always too early
# then, both ends sleep, and never look again. Where there is one processor the other one needs it.
SPIN_S = 60e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0


def has_room() -> bool:
    """This program can open some more descriptors."""
    from spindle_core.ends import Loose

    try:
        Loose.events(ROOM).close()
    except OSError:
        return False
    return True


class Duplexes:
    """Those of one end of a link, by port."""

    def __init__(self, session: Session, link: int) -> None:
        self._session, self._link = session, link
        self._open: dict[int, Duplex] = {}
        self._sent: dict[int, tuple[int, int]] = {}  # messages so far, and at how many it asks
        self._asked: tuple[int, Call] | None = None  # for which port, and what the node has yet to answer
        self._over = 0  # that have ended, which the node has yet to hear
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
        try:
            if self._asked is None and sent >= ask_at and has_room():
                self._ask(port, min(timeout_s * ASK_SHARE, ASK_S))
            if self._asked is not None and self._asked[1].answered.is_set():
                self._take_answer()
        except (SpindleError, TimeoutError, OSError, ValueError) as error:
            give_way(error)
        return self._open.get(port)

    def _ask(self, port: int, timeout_s: float) -> None:
        from spindle.proto import attach_pb2 as pb

        over, self._over = self._over, 0
        call = self._session._channel.begin(open_duplex=pb.OpenDuplex(link=self._link, port=port, over=over))
        self._asked = port, call
        call.answered.wait(timeout_s)

    def _take_answer(self) -> None:
        """What the node has answered. ValueError: its other side has been spoiled already."""
        from spindle.client.session import taken
        from spindle_core.links.duplex import Duplex
        from spindle_core.memory import Mapping

        assert self._asked is not None
        (port, call), self._asked = self._asked, None
        reply, frame = self._session._channel.answer_to(call)
        self._elsewhere = reply.duplex.elsewhere
        if not frame.fds:
            return
        self._over += 1  # unless it is kept
        with taken(frame, 2) as fds:
            duplex = Duplex(Mapping.attach(fds.take(), writable=True), fds.take(), 0)
        self._over -= 1
        self._open[port] = duplex
        self._session._channel.add_port(self._key(port), duplex)  # who waits for an answer hears of the node's end

    def _key(self, port: int) -> int:
        return port_key(self._link, port)

    def drop(self, port: int) -> None:
        """It is over, or needed no more."""
        duplex = self._open.pop(port, None)
        if duplex is not None:
            self._session._channel.remove_port(self._key(port))
            duplex.close()
            self._over += 1
            self._sent.pop(port, None)

    def mark_gone(self) -> None:
        """Who waits with one of them on another thread wakes up."""
        for duplex in tuple(self._open.values()):
            duplex.mark_gone()

    def close(self) -> None:
        """Idempotent."""
        if self._asked is not None:
            self._session._channel.give_up(self._asked[1])
            self._asked = None
        for port in list(self._open):
            self.drop(port)


def port_key(link: int, port: int) -> int:
    """The number of a duplex among what hears of the end of its session; port 0: of all those of who listens."""
    return -(1 << 96 | link << 16 | port)  # none that a link has, or anything else


class Offered:
    """Those that others have asked for, of who listens, by a link that is bound to a port."""

    def __init__(self, session: Session, link: int) -> None:
        self._session, self._link = session, link
        self._asked: Call | None = None
        self._over = 0  # that have ended, which the node has yet to hear
        self.waits = False  # there may be one, or the node has yet to hear of one that is over

    def told(self) -> None:
        """There is another one."""
        self.waits = True

    def ended(self) -> None:
        """One of them is over."""
        self._over += 1
        self.waits = True

    def take(self) -> tuple[int, int, Duplex] | None:
        """One of them, with the life of the node of who has asked for it, and the number of its link. None where there
        is none, or where the node has not answered yet, or no descriptor is left: then it still `waits`. Raises
        SpindleError."""
        from spindle.proto import attach_pb2 as pb

        while self.waits:
            if self._asked is None:
                if not has_room():
                    return None
                over, self._over = self._over, 0
                self._asked = self._session._channel.begin(take_duplex=pb.TakeDuplex(link=self._link, over=over))
                self._asked.answered.wait(TAKE_S)
            if not self._asked.answered.is_set():
                return None
            call, self._asked = self._asked, None
            if (found := self._taken(call)) is not None:
                return found
        return None

    def _taken(self, call: Call) -> tuple[int, int, Duplex] | None:
        from spindle.client.session import taken
        from spindle_core.links.duplex import Duplex
        from spindle_core.memory import Mapping

        reply, frame = self._session._channel.answer_to(call)
        if not reply.duplex_taken.life:
            frame.close_fds()
            self.waits = self._over > 0
            return None
        try:
            with taken(frame, 2) as fds:
                return reply.duplex_taken.life, reply.duplex_taken.link, Duplex(
                    Mapping.attach(fds.take(), writable=True), fds.take(), 1)
        except (OSError, ValueError):  # no memory is left; or whoever has asked for it has spoiled it
            self._over += 1
            return None

    def close(self) -> None:
        """Idempotent."""
        if self._asked is not None:
            self._session._channel.give_up(self._asked)
            self._asked = None
        self.waits = False
