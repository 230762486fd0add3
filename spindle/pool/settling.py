"""When nobody has anything on the way any more to a region that has ended: before its key ends at a device, each node
that reaches this one over RDMA says that all has completed that it had posted.

Why: a device refuses what comes for a key that has ended, and that breaks the connection which all links between the
two nodes share. Leases keep nodes from posting too late, but what was posted in time may wait for long behind other
requests. (Over TCP the owner's pool answers for a key that has ended, so nobody else is hurt.)

A node that doesn't say so within PATIENCE_S loses its connection, and may begin anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from spindle.errors import ConnectionEnded, SpindleError
from spindle.pool.lives import life_of
from spindle.proto import node_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from spindle.pool.pooling import Pooling
    from spindle.transport.peer import Peer

PATIENCE_S = 60.0  # what a pool has on the way to one peer (regions.pxd) takes less, unless the network is broken


class Around(Protocol):
    """What this needs of the connections that all links share (neighbours.py)."""

    def pooling(self) -> Pooling:
        """The node's pool. Raises NodeStopped, NoResources."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        """Has the node carry it out."""

    def connected_to(self, life: int) -> tuple[Peer, bool]:
        """The node of this life, whose pool is connected, and whether over RDMA. Raises ConnectionEnded."""

    def say(self, peer: Peer, message: pb.PeerMessage) -> None:
        """Over the control connection."""

    def end(self, life: int, error: ConnectionEnded) -> None:
        """That connection is over."""


class Settling:
    """Of one node's pool. On the event loop."""

    def __init__(self, neighbours: Around) -> None:
        self._neighbours = neighbours
        self._number = 0
        self._answers: dict[tuple[int, int], asyncio.Future[None]] = {}  # by life and number

    def wanted(self, lives: Iterable[int], then: Callable[[], None]) -> None:
        """Has the pool do `then` once all of these nodes have said so, or are not connected any more."""
        self._neighbours.spawn(self._settle(list(lives), then))

    async def _settle(self, lives: list[int], then: Callable[[], None]) -> None:
        await asyncio.gather(*map(self._ask, lives))
        with contextlib.suppress(SpindleError):  # the pool has stopped
            await self._neighbours.pooling().do(then)

    async def _ask(self, life: int) -> None:
        self._number += 1
        number = self._number
        answer = self._answers[life, number] = asyncio.get_running_loop().create_future()
        try:
            peer, _ = self._neighbours.connected_to(life)
            self._neighbours.say(peer, pb.PeerMessage(link_settle=pb.LinkSettle(number=number)))
            await asyncio.wait({answer}, timeout=PATIENCE_S)
            if not answer.done():
                self._neighbours.end(life, ConnectionEnded(
                    f"node {peer.node_id} still uses a region that ended {PATIENCE_S:g} s ago"))
        except ConnectionEnded:
            pass
        finally:
            del self._answers[life, number]

    def heard(self, peer: Peer, message: pb.LinkSettle) -> None:
        """A node asks, or answers."""
        life = life_of(peer.node_id, peer.incarnation)
        if message.settled:
            answer = self._answers.get((life, message.number))
            if answer is not None and not answer.done():
                answer.set_result(None)
        else:
            self._neighbours.spawn(self._answer(peer, life, message.number))

    async def _answer(self, peer: Peer, life: int, number: int) -> None:
        with contextlib.suppress(SpindleError):
            pooling = self._neighbours.pooling()
            await pooling.ask(lambda answer: pooling.settle(life, lambda: answer(None, "")))
            self._neighbours.say(peer, pb.PeerMessage(link_settle=pb.LinkSettle(number=number, settled=True)))

    def gone(self, life: int) -> None:
        """It is not connected any more."""
        for (of, _), answer in self._answers.items():
            if of == life and not answer.done():
                answer.set_result(None)
