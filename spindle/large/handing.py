"""Large samples between nodes of one host: who has one hands over its descriptor, and all map the same memory.

The asker names what it wants. Who has it answers at once. Who is bringing it answers when that is over, and says every
second how far it is, so that a source that hangs is told from one that works. Who doesn't know of it waits for a moment
whether it will: in the order, everybody learns of a sample at about the same time.

Rules: only nodes of this host are given memory; those of another user, memory that is sealed. What comes is checked:
that nobody can change it, and its size.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from spindle.errors import SampleMissing, SpindleError, refusal
from spindle.large import memory
from spindle.proto import node_pb2 as pb
from spindle.transport.wire import close_all

if TYPE_CHECKING:
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers

TELL_S = 1.0  # between words on how far it is
WAITS_S = 60.0  # that one may wait for its turn, while others wait for it
UNKNOWN_S = 2.0  # that somebody waits for a node to hear of a sample
ASKED_MAX = 4096  # of one node, not answered yet


class Source(Protocol):
    """A sample that is here, or on its way: of the store, or a filling. `whole`: all of it is there, and sealed.
    `waits`: for its turn, so nothing of it can be there yet."""

    @property
    def size(self) -> int: ...

    @property
    def reached(self) -> int: ...

    @property
    def whole(self) -> bool: ...

    @property
    def waits(self) -> bool: ...

    @property
    def ended(self) -> str: ...

    def open(self) -> int: ...

    def open_sealed(self) -> int: ...


Find = Callable[[int], "Source | None"]


@dataclasses.dataclass(eq=False)
class _Asked:
    """Somebody's question that isn't answered yet."""

    peer: Peer
    number: int
    large_id: int
    size: int
    until: float  # of the loop's time: unless it is heard of by then


@dataclasses.dataclass(eq=False)
class _Asking:
    """A question of this node."""

    peer: Peer
    large_id: int
    size: int
    answer: asyncio.Future[int]
    reached: int = 0
    waits: bool = False  # it said so since the last look
    fd: int = -1  # what came


class Handing:
    """See the module's text. `find` tells what this node has of a sample, or is bringing."""

    def __init__(self, peers: Peers, find: Find, silence_s: float) -> None:
        self._peers, self._find, self._silence_s = peers, find, silence_s
        self._asked: list[_Asked] = []
        self._asking: dict[int, _Asking] = {}
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = ""

    # --- asking

    async def ask(self, peer: Peer, large_id: int, size: int, delivered: bool = False) -> int:
        """The memory of a sample, from a node of this host. `delivered`: see Bringing.bring(). Raises
        SampleMissing, SampleUnfit."""
        if self._stopped:
            raise SampleMissing(self._stopped)
        self._numbers += 1
        number = self._numbers
        asking = _Asking(peer, large_id, size, asyncio.get_running_loop().create_future())
        asking.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        self._asking[number] = asking
        try:
            message = pb.PeerMessage(large_ask=pb.LargeAsk(
                number=number, large_id=large_id, size=size, delivered=delivered))
            if not self._peers.send(peer.node_id, message, (), peer.incarnation):
                raise SampleMissing(f"node {peer.node_id} has gone")
            waits_until = asyncio.get_running_loop().time() + WAITS_S
            while not asking.answer.done():
                before, asking.waits = asking.reached, False
                await asyncio.wait({asking.answer}, timeout=self._silence_s)
                if asking.waits and asyncio.get_running_loop().time() < waits_until:
                    continue
                if not asking.answer.done() and asking.reached == before:
                    raise SampleMissing(f"node {peer.node_id} has come no further with it for {self._silence_s:g} s")
            fd = asking.answer.result()
            asking.fd = -1
            return fd
        finally:
            del self._asking[number]
            if not asking.answer.done():
                self._peers.send(peer.node_id, pb.PeerMessage(large_unwanted=pb.LargeUnwanted(number=number)), (),
                                 peer.incarnation)
            if asking.fd >= 0:  # it came when nobody waited any more
                close_all([asking.fd])

    def _answered(self, peer: Peer, number: int) -> _Asking | None:
        asking = self._asking.get(number)
        return asking if asking is not None and asking.peer is peer and not asking.answer.done() else None

    def heard_here(self, peer: Peer, here: pb.LargeHere, fds: Sequence[int]) -> None:
        """Takes over the descriptors."""
        asking = self._answered(peer, here.number)
        if asking is None:
            close_all(fds)  # it was given up
            return
        try:
            if len(fds) != 1:
                raise SampleMissing(f"node {peer.node_id} says that it hands it over, with {len(fds)} descriptors")
            memory.check(fds[0], asking.size)
        except SpindleError as error:
            close_all(fds)
            asking.answer.set_exception(type(error)(f"node {peer.node_id}: {error}"))
        else:
            asking.fd = fds[0]
            asking.answer.set_result(asking.fd)

    def heard_coming(self, peer: Peer, coming: pb.LargeComing) -> None:
        asking = self._answered(peer, coming.number)
        if asking is None:
            return
        asking.waits |= coming.waits
        if asking.reached < coming.reached <= asking.size:
            asking.reached = coming.reached

    def heard_lacking(self, peer: Peer, lacking: pb.LargeLacking) -> None:
        asking = self._answered(peer, lacking.number)
        if asking is not None:
            asking.answer.set_exception(refusal(f"node {peer.node_id} doesn't give it: {lacking.why}"))

    # --- answering

    def heard_ask(self, peer: Peer, ask: pb.LargeAsk) -> None:
        """A node wants a sample."""
        asked = _Asked(peer, ask.number, ask.large_id, ask.size, asyncio.get_running_loop().time() + UNKNOWN_S)
        if not peer.conn.peer.local:
            self._refuse(asked, "only nodes of its host are handed memory")
        elif sum(one.peer is peer for one in self._asked) >= ASKED_MAX:
            self._refuse(asked, f"{ASKED_MAX} questions wait already")
        elif ask.delivered and self._find(ask.large_id) is None:
            self._refuse(asked, "it has let go of it")
        elif not self._answer(asked):
            self._asked.append(asked)
            self._watch()

    def heard_unwanted(self, peer: Peer, unwanted: pb.LargeUnwanted) -> None:
        """It waits no more."""
        self._asked = [one for one in self._asked if one.peer is not peer or one.number != unwanted.number]

    def changed(self, large_id: int) -> None:
        """There may be more of this sample."""
        self._asked = [one for one in self._asked if one.large_id != large_id or not self._answer(one)]

    def failed(self, large_id: int, why: str) -> None:
        """This node could not bring it."""
        waiting = [one for one in self._asked if one.large_id == large_id]
        self._asked = [one for one in self._asked if one.large_id != large_id]
        for asked in waiting:
            self._refuse(asked, why)

    def _answer(self, asked: _Asked) -> bool:
        """False if there is no answer yet."""
        source = self._find(asked.large_id)
        if source is None:
            return False
        if source.size != asked.size:
            self._refuse(asked, f"the large sample {asked.large_id:#x} has {source.size} bytes there, not {asked.size}")
        elif source.ended:
            self._refuse(asked, source.ended)
        elif not source.whole:
            return False
        else:
            self._give(asked, source)
        return True

    def _give(self, asked: _Asked, source: Source) -> None:
        try:
            fd = source.open() if asked.peer.conn.peer.uid == os.geteuid() else source.open_sealed()
        except SpindleError as error:
            self._refuse(asked, str(error))
            return
        try:
            self._say(asked, pb.PeerMessage(large_here=pb.LargeHere(number=asked.number)), [fd])
        finally:
            close_all([fd])

    def _refuse(self, asked: _Asked, why: str) -> None:
        self._say(asked, pb.PeerMessage(large_lacking=pb.LargeLacking(number=asked.number, why=why)))

    def _say(self, asked: _Asked, message: pb.PeerMessage, fds: Sequence[int] = ()) -> None:
        self._peers.send(asked.peer.node_id, message, fds, asked.peer.incarnation)

    def _watch(self) -> None:
        if self._timer is None and self._asked:
            self._timer = asyncio.get_running_loop().call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        """Says how far those are that somebody waits for."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for asked in tuple(self._asked):
            source = self._find(asked.large_id)
            if source is not None:
                asked.until = now + UNKNOWN_S
                self._say(asked, pb.PeerMessage(large_coming=pb.LargeComing(
                    number=asked.number, reached=source.reached, waits=source.waits)))
            elif asked.until <= now:
                self._asked.remove(asked)
                self._refuse(asked, "it hasn't heard of it")
        self._watch()

    # --- ending

    def gone(self, peer: Peer) -> None:
        """That life of a node has gone."""
        self._asked = [one for one in self._asked if one.peer is not peer]
        for asking in tuple(self._asking.values()):
            if asking.peer is peer and not asking.answer.done():
                asking.answer.set_exception(SampleMissing(f"node {peer.node_id} has gone"))

    def stop(self, why: str) -> None:
        """Nobody is answered any more. Idempotent."""
        self._stopped = why
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for asking in tuple(self._asking.values()):
            if not asking.answer.done():
                asking.answer.set_exception(SampleMissing(why))

