"""Connections of their own for links that talk much, beside the one that all links between two nodes share (KRCore,
sections 4.2 and 4.3; spindle_core/links/dedication.py says who gets one, and when it is given up).

The node of such a link asks; the other one answers with what is needed to connect: over RDMA the address of its end,
which it has connected with the asking one's already, else a token for a data connection. Whoever gives one up, loses it
or can't make it says that it is over, since an end over RDMA that nobody uses would never notice.

Nobody waits for any of this: a link goes on by the shared connection until its own is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from spindle.errors import ConnectionEnded, SpindleError
from spindle.pool.lives import OwnConnection, life_of, node_of
from spindle.proto import node_pb2 as pb
from spindle_core.ends import Loose

if TYPE_CHECKING:
    from spindle.pool.pooling import Pooling
    from spindle.transport.network import DataHello
    from spindle.transport.peer import Peer

ANSWER_S = 5.0  # until the other node has answered, and its connection is there
AGAIN_S = 10.0  # after one could not be made, before another one is asked for from that node
GIVEN_MAX = 8  # to one node: as many as its own pool makes (dedication.py)
TOKEN_BYTES = 32
FIRST = 2  # number of the first one: in a data connection's hello 0 is the shared one, 1 of large samples
LOG = logging.getLogger("spindle.links")


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

    async def open_stream(self, peer: Peer, number: int, token: bytes, timeout_s: float) -> int:
        """A data connection to that node; its number says which. Raises SpindleError."""


class Dedicated:
    """Those of one node's pool. On the event loop."""

    def __init__(self, neighbours: Around) -> None:
        self._neighbours = neighbours
        self._number = FIRST
        self._answers: dict[int, asyncio.Future[pb.LinkMore]] = {}
        self._tokens: dict[tuple[int, int], tuple[int, bytes]] = {}  # by node id and number: its life, the token
        self._given: dict[int, set[int]] = {}  # by life: numbers

    # --- asking

    def wanted(self, life: int) -> None:
        """The pool wants one to that node."""
        self._neighbours.spawn(self._make(life))

    async def _make(self, life: int) -> None:
        number, self._number = self._number, self._number + 1
        whose = True, life, number
        pooling = self._neighbours.pooling()
        try:
            if await self._ask(pooling, whose):
                return
            why = "nobody needs it any more"
        except (OSError, ValueError, SpindleError) as error:
            why = str(error)
            with contextlib.suppress(SpindleError):
                await pooling.do(lambda: pooling.drop_rdma(whose))
            asyncio.get_running_loop().call_later(AGAIN_S, self._not_made, life)
        LOG.debug("no connection of its own for a link to node %d: %s", node_of(life), why)
        self.over(whose)

    def _not_made(self, life: int) -> None:
        async def tell() -> None:
            with contextlib.suppress(SpindleError):
                pooling = self._neighbours.pooling()
                await pooling.do(lambda: pooling.dedication.not_made(life))

        self._neighbours.spawn(tell())

    async def _ask(self, pooling: Pooling, whose: OwnConnection) -> bool:
        """Whether somebody has it now. Raises OSError, ValueError, SpindleError."""
        _, life, number = whose
        peer, over_rdma = self._neighbours.connected_to(life)
        ask = pb.LinkMore(number=number)
        if over_rdma:
            ask.rdma_address = await pooling.do(lambda: pooling.prepare_rdma(whose, b""))
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._neighbours.say(peer, pb.PeerMessage(link_more=ask))
            await asyncio.wait({answer}, timeout=ANSWER_S)
        finally:
            del self._answers[number]
        if not answer.done() or not (answer.result().rdma_address if over_rdma else answer.result().token):
            raise ConnectionEnded(f"node {peer.node_id} gives none")
        if over_rdma:
            await pooling.do(lambda: pooling.connect_rdma(whose, answer.result().rdma_address))
            return await pooling.do(lambda: pooling.add_more(whose))
        fd = await self._neighbours.open_stream(peer, number, answer.result().token, ANSWER_S)
        with Loose([fd]) as loose:
            return await pooling.do(lambda: pooling.add_more(whose, loose.take()))

    # --- hearing

    def heard(self, peer: Peer, message: pb.LinkMore) -> None:
        """What a node says of one of its connections, or of one of this node's."""
        life = life_of(peer.node_id, peer.incarnation)
        if message.step == pb.LinkMore.ANSWER:
            answer = self._answers.get(message.number)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif message.step == pb.LinkMore.OVER:
            self._drop((message.mine, life, message.number))
        else:
            self._neighbours.spawn(self._give(peer, (False, life, message.number), message.rdma_address))

    async def _give(self, peer: Peer, whose: OwnConnection, theirs: bytes) -> None:
        _, life, number = whose
        answer = pb.LinkMore(number=number, step=pb.LinkMore.ANSWER)
        given = self._given.setdefault(life, set())
        if number in given:
            return
        try:
            pooling = self._neighbours.pooling()
            _, over_rdma = self._neighbours.connected_to(life)
            if len(given) >= GIVEN_MAX or number < FIRST or over_rdma != bool(theirs):
                raise ConnectionEnded(f"node {peer.node_id} has {len(given)} connections of {GIVEN_MAX}")
            given.add(number)
            if over_rdma:
                answer.rdma_address = await pooling.do(lambda: pooling.prepare_rdma(whose, theirs))
                await pooling.do(lambda: pooling.add_more(whose))
            else:
                answer.token = secrets.token_bytes(TOKEN_BYTES)
                self._tokens[peer.node_id, number] = life, answer.token
                asyncio.get_running_loop().call_later(2 * ANSWER_S, self._tokens.pop, (peer.node_id, number), None)
        except (OSError, ValueError, SpindleError) as error:
            LOG.debug("no connection of its own for a link of node %d: %s", peer.node_id, error)
            if number in given:
                self._drop(whose)
        self._neighbours.say(peer, pb.PeerMessage(link_more=answer))

    def token_for(self, hello: DataHello) -> bytes | None:
        """Of the data connection with this number in place of a ballot."""
        life, token = self._tokens.get((hello.node_id, hello.ballot), (0, b""))
        return token if life == life_of(hello.node_id, hello.incarnation) else None

    def take_stream(self, hello: DataHello, fd: int) -> None:
        """Such a connection is there; takes over the descriptor."""
        life, _ = self._tokens.pop((hello.node_id, hello.ballot), (0, b""))
        if life != life_of(hello.node_id, hello.incarnation):
            os.close(fd)
            return
        whose = False, life, hello.ballot

        async def add() -> None:
            try:
                with Loose([fd]) as loose:
                    pooling = self._neighbours.pooling()
                    await pooling.do(lambda: pooling.add_more(whose, loose.take()))
            except (OSError, ValueError, SpindleError) as error:
                LOG.debug("no connection of its own for a link of node %d: %s", hello.node_id, error)
                self._drop(whose)
                self.over(whose)

        self._neighbours.spawn(add())

    # --- ending

    def _drop(self, whose: OwnConnection) -> None:
        mine, life, number = whose
        if not mine:
            self._given.get(life, set()).discard(number)
            self._tokens.pop((node_of(life), number), None)

        async def drop() -> None:
            with contextlib.suppress(SpindleError):
                pooling = self._neighbours.pooling()
                await pooling.do(lambda: pooling.drop_more(whose))

        self._neighbours.spawn(drop())

    def over(self, whose: OwnConnection) -> None:
        """The pool has it no more, or never had: the other node is told."""
        mine, life, number = whose
        if not mine:
            self._given.get(life, set()).discard(number)
        with contextlib.suppress(ConnectionEnded):
            peer, _ = self._neighbours.connected_to(life)
            message = pb.LinkMore(number=number, step=pb.LinkMore.OVER, mine=not mine)
            self._neighbours.say(peer, pb.PeerMessage(link_more=message))

    def gone(self, life: int) -> None:
        """Nothing goes on with that life of a node."""
        self._given.pop(life, None)
        for place in [place for place, (whose, _) in self._tokens.items() if whose == life]:
            del self._tokens[place]
