"""Data connections between nodes of different hosts, for large samples: who reads opens one to who gives, asks for a
token over their control connection first, and proves that it knows it (`spindle.transport.network`). One connection
carries all samples from one node to another; it is given up when it isn't needed for a while. Where the RDMA devices of
both reach each other, it carries only what is said of the bytes: see blocks.py.

Why connections of their own, not the pool of links: those bring small answers in microseconds, one after the other on
one thread, and the bytes of a large sample would stand before them.

Rules: a token is for one connection, and the newest of a node holds. Threads touch only their own end of a connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.errors import NoResources, SampleMissing, SpindleError
from spindle.large.giver import Giver
from spindle.large.pieces import BALLOT
from spindle.large.reader import Reader
from spindle.proto import node_pb2 as pb
from spindle.transport.network import DataHello

if TYPE_CHECKING:
    from spindle.group.view import Member
    from spindle.large.blocks import MakeWay
    from spindle.large.handing import Find
    from spindle.transport.network import Network
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers

TOKEN_BYTES = 32
REACH_TIMEOUT_S = 5.0
LOG = logging.getLogger("spindle.large")


class Ways:
    """See the module's text. `find` tells what this node has of a sample, on any thread; `member_of` who a
    node is, while it is a member; `rdma_to` how to make this node's end of a way over RDMA to that one, None where no
    such way is. On the event loop, but for changed()."""

    def __init__(self, domain_id: int, me: Member, peers: Peers, network: Network,
                 member_of: Callable[[int], Member | None], find: Find,
                 rdma_to: Callable[[int], MakeWay | None]) -> None:
        self._domain_id, self._me, self._peers = domain_id, me, peers
        self._network, self._member_of, self._find, self._rdma_to = network, member_of, find, rdma_to
        self._read = [0, 0]  # bytes, by connections that are over: of samples, and of these over RDMA
        self._readers: dict[Peer, Reader] = {}
        self._opening: dict[Peer, asyncio.Task[Reader]] = {}
        self._answers: dict[int, tuple[Peer, asyncio.Future[bytes]]] = {}  # tokens that are asked for, by number
        self._numbers = 0
        self._tokens: dict[int, tuple[Peer, bytes]] = {}  # that were given, by node id
        self._givers: dict[Peer, Giver] = {}
        self._stopped = ""

    # --- reading

    async def reader(self, peer: Peer) -> Reader:
        """A connection that reads from this node. Raises SampleMissing, NoResources."""
        known = self._readers.get(peer)
        if known is not None and known.lasts():
            return known
        opening = self._opening.get(peer)
        if opening is None:
            opening = self._opening[peer] = asyncio.ensure_future(self._open(peer))
            opening.add_done_callback(lambda done: (self._opening.pop(peer), done.cancelled() or done.exception()))
        await asyncio.wait({opening})
        if opening.cancelled():
            raise SampleMissing(self._stopped or f"node {peer.node_id} has gone")
        return opening.result()

    async def _open(self, peer: Peer) -> Reader:
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = peer, answer
        try:
            self._peers.send(peer.node_id, pb.PeerMessage(large_reach=pb.LargeReach(number=number)), (),
                             peer.incarnation)
            await asyncio.wait({answer}, timeout=REACH_TIMEOUT_S)
            if not answer.done():
                raise SampleMissing(f"node {peer.node_id} has not answered for {REACH_TIMEOUT_S:g} s")
            token = answer.result()
        finally:
            del self._answers[number]
        if len(token) != TOKEN_BYTES:
            raise SampleMissing(f"node {peer.node_id} accepts no data connection")
        hello = DataHello(self._domain_id, self._me.node_id, self._me.incarnation, peer.node_id, 0, 0, BALLOT)
        try:
            member = self._member_of(peer.node_id)
            endpoint = "" if member is None else member.endpoint
            fd = await self._network.data(endpoint, hello, peer.incarnation, token, REACH_TIMEOUT_S)
        except NoResources:
            raise
        except SpindleError as error:
            raise SampleMissing(str(error)) from error
        before = self._readers.get(peer)
        reader = self._readers[peer] = Reader(fd, peer.node_id, self._rdma_to(peer.node_id))
        if before is not None:
            self._count(before)
        return reader

    def _count(self, reader: Reader) -> None:
        self._read[0] += reader.received
        self._read[1] += reader.landed

    @property
    def bytes_read(self) -> tuple[int, int]:
        """Of samples, from other hosts so far: over TCP, over RDMA."""
        readers = self._readers.values()
        landed = self._read[1] + sum(reader.landed for reader in readers)
        return self._read[0] + sum(reader.received for reader in readers) - landed, landed

    def heard_token(self, peer: Peer, message: pb.LargeToken) -> None:
        """The answer of a node."""
        asked, answer = self._answers.get(message.number, (None, None))
        if asked is peer and answer is not None and not answer.done():
            answer.set_result(message.token)

    # --- giving

    def heard_reach(self, peer: Peer, reach: pb.LargeReach) -> None:
        """A node wants to open a connection."""
        token = b"" if self._stopped else secrets.token_bytes(TOKEN_BYTES)
        self._tokens[peer.node_id] = peer, token
        self._peers.send(peer.node_id, pb.PeerMessage(large_token=pb.LargeToken(number=reach.number, token=token)), (),
                         peer.incarnation)

    def token_for(self, hello: DataHello) -> bytes | None:
        """The token that the opener of this connection was sent; None: nobody is expected."""
        peer, token = self._tokens.get(hello.node_id, (None, b""))
        if peer is None or peer.incarnation != hello.incarnation or hello.to_node_id != self._me.node_id:
            return None
        return token or None

    def take_stream(self, hello: DataHello, fd: int) -> None:
        """Such a connection is there, and who opened it has proven to know the token; takes over the descriptor."""
        peer, _ = self._tokens.get(hello.node_id, (None, b""))
        if peer is None or self.token_for(hello) is None:
            os.close(fd)
            return
        del self._tokens[hello.node_id]  # for one connection
        before = self._givers.pop(peer, None)
        if before is not None:
            before.close()
        try:
            self._givers[peer] = Giver(fd, peer.node_id, self._find, self._rdma_to(peer.node_id))
        except NoResources as error:  # the other end sees it closed, and asks the next source
            LOG.warning("%s", error)

    def changed(self, large_id: int) -> None:
        """On any thread: there may be more of this sample, or it has gone."""
        for giver in tuple(self._givers.values()):
            giver.changed(large_id)

    # --- ending

    def gone(self, peer: Peer) -> None:
        """That life of a node has gone."""
        why = f"node {peer.node_id} has gone"
        if self._tokens.get(peer.node_id, (None, b""))[0] is peer:
            del self._tokens[peer.node_id]
        if peer in self._opening:
            self._opening[peer].cancel()
        for giver in [giver for one, giver in self._givers.items() if one is peer]:
            del self._givers[peer]
            giver.close()
        for reader in [reader for one, reader in self._readers.items() if one is peer]:
            del self._readers[peer]
            reader.close(why)
            self._count(reader)

    def stop(self, why: str) -> None:
        """All connections are over. Idempotent; blocks for a moment."""
        self._stopped = why
        for peer in dict.fromkeys([*self._opening, *self._givers, *self._readers]):
            self.gone(peer)
