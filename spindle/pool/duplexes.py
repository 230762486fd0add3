"""Duplexes between programs of one host: who asks for one is given it by the node of who listens (spindle_core.links.
duplex).

A program asks its own node, which has checked that it may send to that port; that asks the node of who listens, which
makes the memory and hands one side of it back, and the other side to its own program when that comes for it. Nodes of
one host are of one user, so they trust each other with this.

Runs on the node's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from spindle.errors import SpindleError, WireError
from spindle.pool.lives import life_of
from spindle.proto import node_pb2 as pb
from spindle.transport.wire import close_all
from spindle_core.ends import Loose

if TYPE_CHECKING:
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers

FDS = 2  # memory and socket
ASK_TIMEOUT_S = 0.25  # whoever waits so long goes through the pools meanwhile
ASKED_MAX = 256  # at a time, of all nodes
LOG = logging.getLogger("spindle.links")
Offer = Callable[[int, int], Awaitable[Loose]]


class Duplexes:
    """See the module's text. `spawn(coroutine)` runs it as a task of the node."""

    def __init__(self, node_id: int, peers: Peers, spawn: Callable[..., object]) -> None:
        self._node_id, self._peers, self._spawn = node_id, peers, spawn
        self.incarnation = 0
        self._listeners: dict[int, Offer] = {}
        self._asked: dict[int, tuple[Peer, asyncio.Future[Loose | None]]] = {}
        self._number = 0

    # --- who listens here

    def listen(self, port: int, offer: Offer) -> None:
        """`await offer(life, link)` makes one for that link of that life of a node: the descriptors of the asker's
        side, none where it takes no more. It raises SpindleError."""
        self._listeners[port] = offer

    def listens_no_more(self, port: int) -> None:
        """Idempotent."""
        self._listeners.pop(port, None)

    # --- who asks

    def is_elsewhere(self, node_id: int) -> bool:
        """That node is none of this host."""
        peer = self._peers.connected.get(node_id)
        return node_id != self._node_id and peer is not None and not peer.conn.peer.local

    async def open(self, node_id: int, port: int, link: int) -> Loose:
        """The asker's side of one between a link of this node and who listens there; no descriptors where there is none
        to be had. Raises SpindleError."""
        if node_id == self._node_id:
            offer = self._listeners.get(port)
            return Loose() if offer is None else await offer(life_of(self._node_id, self.incarnation), link)
        peer = self._peers.connected.get(node_id)
        if peer is None or not peer.conn.peer.local or len(self._asked) >= ASKED_MAX:
            return Loose()
        self._number += 1
        number = self._number
        future: asyncio.Future[Loose | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = peer, future
        self._peers.send(peer.node_id, pb.PeerMessage(link_duplex=pb.LinkDuplex(number=number, port=port, link=link)),
                         (), peer.incarnation)
        try:
            await asyncio.wait({future}, timeout=ASK_TIMEOUT_S)
        except BaseException:  # nobody wants it any more
            if future.done() and (made := future.result()) is not None:
                made.close()
            raise
        finally:
            self._asked.pop(number, None)
        return (future.result() if future.done() else None) or Loose()

    # --- what nodes say

    def heard_asked(self, peer: Peer, asked: pb.LinkDuplex) -> None:
        """A node of this host asks for one."""
        self._spawn(self._answer(peer, asked))

    async def _answer(self, peer: Peer, asked: pb.LinkDuplex) -> None:
        offer = self._listeners.get(asked.port) if peer.conn.peer.local else None
        made = Loose()
        if offer is not None:
            try:
                made = await offer(life_of(peer.node_id, peer.incarnation), asked.link)
            except SpindleError as error:
                LOG.warning("no duplex for node %d to port %d: %s", peer.node_id, asked.port, error)
        with made:
            self._peers.send(peer.node_id, pb.PeerMessage(link_duplex_made=pb.LinkDuplexMade(number=asked.number)),
                             made.all(), peer.incarnation)

    def heard_made(self, peer: Peer, made: pb.LinkDuplexMade, fds: Sequence[int]) -> None:
        """The answer; takes over the descriptors. Raises WireError for one that makes no sense."""
        asked = self._asked.pop(made.number, None)
        if len(fds) not in (0, FDS) or (asked is not None and asked[0] is not peer):
            close_all(fds)
            raise WireError(f"{peer} answers what makes no sense about a duplex")
        if asked is None or asked[1].done():  # it came too late
            close_all(fds)
            return
        asked[1].set_result(Loose(fds))

    def gone(self, peer: Peer) -> None:
        """That life of a node has gone: who waits for its answer goes on."""
        for number, (asked, future) in list(self._asked.items()):
            if asked is peer:
                del self._asked[number]
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """The node ends."""
        for _, future in self._asked.values():
            if not future.done():
                future.set_result(None)
        self._asked.clear()
        self._listeners.clear()
