"""Where programs take messages and calls.

A message comes through the pools of the nodes, or straight from a program of the same host that talks much (a duplex).
What a program sends comes in the order sent, also where it changes from the one to the other.

Rules: one thread at a time receives, and one answers; others wait for their turn. Who is interrupted in the middle, as
by a signal's handler that raises, loses no message.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, LinkError, give_way
from spindle.links.duplexes import SPIN_S, Offered, port_key
from spindle.links.link import HEAD, MESSAGE_MAX, TIMEOUT_S
from spindle.pool.lives import node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from spindle.client.session import Session
    from spindle.links.ends import LinkEnd
    from spindle.links.link import Link
    from spindle_core.links.duplex import Duplex, Listening

LINKS_FOR_ANSWERS_MAX = 64  # of a port, to nodes from which messages came
AT_ONCE_MAX = 64  # messages of one duplex, before those of others
AGAIN_S = 0.02  # before it looks once more whether its node has answered
DEAF_S = 0.02  # for an answer to one who has not taken the one before: others wait for theirs
DEAF_MAX = 1024  # of those that are remembered


@dataclass(frozen=True)
class Message:
    """What came to a port: from whom, and whether it waits for an answer (`Port.answer`)."""

    data: bytes
    node_id: int
    sender: int  # link of the sender, at its node
    call: int  # 0: it is no call
    life: int


@dataclass(frozen=True)
class StraightMessage(Message):
    """One that came past the nodes."""

    duplex: Duplex = field(repr=False, compare=False)


class Port:
    """Where messages for one port of the own node come; `Links.listen()` makes it."""

    def __init__(self, session: Session, end: LinkEnd, port: int, open_link: Callable[[int], Link]) -> None:
        """`end` is bound to it; `open_link(node_id)` makes a link for answers."""
        self._session, self._end, self.port, self._open_link = session, end, port, open_link
        self._receiving, self._answers = threading.RLock(), threading.RLock()  # of whoever does so
        # What has come, as LinkUser.messages() and Duplex.take_into() say it; what came straight is behind the rest.
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._straight: list[tuple[Any, ...]] = []
        self._answering: OrderedDict[int, Link] = OrderedDict()  # by life of the node
        self._listening: Listening | None = None  # once somebody has asked for a duplex
        self._callers: dict[Duplex, tuple[int, int]] = {}  # life of their node, and their link
        self._offered = Offered(session, end.id)
        self._spin_s = 0.0  # before the next sleep
        self._deaf: OrderedDict[Duplex | tuple[int, int], None] = OrderedDict()  # have not taken the last answer

    def receive(self, timeout_s: float = TIMEOUT_S) -> Message | None:
        """The next message, or None after so long. Raises LinkError, NodeStopped."""
        self._end.check_forked()
        until_s = time.monotonic() + timeout_s
        came: tuple[Any, ...] = ()
        try:
            with self._receiving:
                while (message := self._next()) is None:
                    if not self._wait(until_s):
                        return None
                came = self._waiting[0]
                del self._waiting[0]
        except BaseException:
            if came:
                self._waiting.appendleft(came)
            raise
        return message

    def _next(self) -> Message | None:
        """The first of those that wait, which stays there. What has no head is none: by that a caller asks whether
        anybody listens here still."""
        while self._waiting:
            life, sender, data, *straight = self._waiting[0]
            if straight:
                return StraightMessage(data, node_of(life), sender, straight[0], life, straight[1])
            if len(data) >= HEAD.size:
                return Message(data[HEAD.size :], node_of(life), sender, HEAD.unpack_from(data)[0], life)
            del self._waiting[0]
        return None

    def _wait(self, until_s: float) -> bool:
        """Takes what has come, or waits for it; False: the time is over. Raises LinkError, NodeStopped."""
        self._end.check()
        self._take()
        if not self._waiting:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            if self._offered.waits:
                left_s = min(left_s, AGAIN_S)
            if self._listening is None:
                self._end.user.wait(left_s)
            else:
                self._listening.wait(left_s, self._spin_s)
                self._spin_s = 0.0
        return True

    def _take(self) -> None:
        """What has come. What a sender put into the box before it went through a duplex is found after that: so the
        duplexes are looked at first, and what was in the box comes first."""
        if self._end.user.duplexes:
            self._offered.told()
        if self._offered.waits:
            self._take_duplexes()
        self._take_straight()
        self._end.user.messages(self._waiting)
        self._waiting += self._straight  # no signal's handler runs between these two: they call nothing
        del self._straight[:]

    def _take_straight(self) -> None:
        for duplex, caller in list(self._callers.items()):
            if duplex.take_into(self._straight, caller, AT_ONCE_MAX) < AT_ONCE_MAX and duplex.over:
                self._end_duplex(duplex)
        if self._straight:
            self._spin_s = SPIN_S

    def _take_duplexes(self) -> None:
        from spindle_core.links.duplex import Listening

        while (made := self._offered.take()) is not None:
            life, sender, duplex = made
            try:
                if self._listening is None:
                    self._listening = Listening(self._end.user)
                    self._session._channel.add_port(port_key(self._end.id, 0), self._listening)
                self._listening.add(duplex)
            except (OSError, ValueError):  # no descriptor is left; or the node has lost count
                duplex.close()
                self._offered.ended()
                return
            self._callers[duplex] = life, sender

    def _end_duplex(self, duplex: Duplex) -> None:
        assert self._listening is not None
        del self._callers[duplex]
        self._deaf.pop(duplex, None)
        self._listening.remove(duplex)
        self._offered.ended()
        self._take_duplexes()

    def answer(self, message: Message, data: bytes, timeout_s: float = TIMEOUT_S) -> None:
        """To whoever has called. Raises ConfigError where the message is no call; LinkError where the caller has gone,
        TimeoutError where it takes nothing: then it is hardly waited for until it takes an answer again."""
        if not message.call:
            raise ConfigError("this message is no call: nobody waits for an answer to it")
        self._end.check_forked()
        with self._answers:
            self._answer(message, data, timeout_s)

    def _answer(self, message: Message, data: bytes, timeout_s: float) -> None:
        caller = message.duplex if isinstance(message, StraightMessage) else (message.life, message.sender)
        patience_s = min(timeout_s, DEAF_S) if caller in self._deaf else timeout_s
        try:
            if isinstance(message, StraightMessage):
                taken = self._answer_straight(message.duplex, message.call, data, patience_s)
            else:
                taken = self._answer_through_pools(message, data, patience_s)
        except LinkError:
            self._deaf.pop(caller, None)
            raise
        if taken:
            self._deaf.pop(caller, None)
            return
        self._deaf[caller] = None
        if len(self._deaf) > DEAF_MAX:
            self._deaf.popitem(last=False)
        raise TimeoutError(f"whoever has called takes nothing, and {patience_s:g} s are over")

    def _answer_through_pools(self, message: Message, data: bytes, timeout_s: float) -> bool:
        """Whether it was taken in time. Where not, its link is given up with it: the next answers to programs of that
        node would wait behind it."""
        link = self._answering.get(message.life)
        if link is not None and link.user.broken:
            self._answering.pop(message.life).close()
            link = None
        if link is None:
            link = self._answering[message.life] = self._open_link(message.node_id)
            if len(self._answering) > LINKS_FOR_ANSWERS_MAX:
                self._answering.popitem(last=False)[1].close()
        self._answering.move_to_end(message.life)
        link.timeout_s = timeout_s
        try:
            link.send(data, to=message.sender, call=message.call)
        except TimeoutError as error:
            give_way(error)
            self._answering.pop(message.life).close()
            return False
        return True

    def _answer_straight(self, duplex: Duplex, call: int, data: bytes, timeout_s: float) -> bool:
        """Whether it was taken in time."""
        if len(data) > MESSAGE_MAX:
            raise ConfigError(f"an answer of {len(data)} bytes: {MESSAGE_MAX} are the limit")
        until_s = time.monotonic() + timeout_s  # who waits for room itself takes its answers meanwhile
        while not duplex.put(call, data):
            self._end.check()
            if duplex.over:
                raise LinkError("whoever has called has gone", "cut")
            if (left_s := until_s - time.monotonic()) <= 0:
                return False
            duplex.wait(left_s, 0.0, len(data), messages=False)
        return True

    def close(self) -> None:
        """Nobody listens there any more. Who receives or answers on another thread raises LinkError. Idempotent."""
        if self._session._channel.ended:  # in a child of the program another thread has its turn for ever
            self._close()
            return
        self._end.stop()
        if self._listening is not None:
            self._listening.mark_gone()
        for link in tuple(self._answering.values()):
            link.close()
        with self._receiving, self._answers:
            self._close()

    def _close(self) -> None:
        self._callers.clear()
        self._offered.close()
        if self._listening is not None:
            self._session._channel.remove_port(port_key(self._end.id, 0))
            self._listening.close()
        while self._answering:
            self._answering.popitem()[1].close()
        self._end.close()

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
