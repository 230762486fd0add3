"""How pools of two nodes get connected: by what their nodes tell each other over their control connection.

Each side offers what the other one needs of it: on one host the descriptors of its pages (`shm`), between hosts a token
for a data connection (`tcp`). The node with the lower id begins an attempt, which has a number, with its offer; the
other one answers with its own; who has both connects, between hosts by a data connection that the first one opens. The
node with the higher id asks for an attempt where it needs one.

Where both have RDMA, their offers say where their ends of a connection over it are (`rdma`), and that becomes the one
that links share; the data connection is for atomics then, which a device's would not be with the processor's. The
answering node connects its end before it answers and the first one before it opens the data connection, so that either
can use it once that is there. Where this fails, they do without: the next attempt has no such addresses.

An attempt ends when it fails, when its connection does, or when nothing comes of it in time; who notices tells the
other. Since one of them alone counts attempts, and what each says comes in order, the newest one holds: an offer of an
earlier one is passed over. So a connection can always be made anew.

Nothing is offered before a program of one of them needs it: a group whose programs use no links has no pools.

Rules: on one host the pool opens memory that somebody wants to reach itself, where the kernel lets it (beside.py);
else its descriptor is asked for by key, and the owner hands over what is registered under that, as sealed as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spindle.errors import ConnectionEnded, SpindleError, WireError, shortage
from spindle.pool.dedicated import Dedicated
from spindle.pool.lives import life_of, node_of
from spindle.pool.settling import Settling
from spindle.proto import node_pb2 as pb
from spindle.transport.wire import close_all
from spindle_core.ends import Loose, Ringer
from spindle_core.fabric.regions.shm import ShmPart
from spindle_core.memory import Mapping

if TYPE_CHECKING:
    from spindle.pool.pooling import Pooling
    from spindle.transport.network import DataHello, Network
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers

REACH_TIMEOUT_S = 5.0  # until a node has answered an offer
GRANT_BYTES = 32
TOKEN_BYTES = 32
SHARED = 0  # the number of a data connection that all links share; those of single ones have higher ones
SHM_FDS = 4  # keys, memory for messages, doorbell's page, epoll of its ring; with the directory 5
LOG = logging.getLogger("spindle.links")


class _Neighbour:
    """One attempt to be connected with one life of a node. `ready` is done once it is connected, or fails with why
    not."""

    def __init__(self, peer: Peer, ready: asyncio.Future[int] | None = None) -> None:
        self.peer = peer
        self.life = life_of(peer.node_id, peer.incarnation)
        self.ready = ready or _future()
        self.attempt = 0  # 0: the other one was asked to begin
        self.token = b""  # that the other end proves to know
        self.post: Mapping | None = None
        self.ringer: Ringer | None = None
        self.heard = -1  # its ring; of this node from the moment that it is connected
        self.theirs: pb.LinkOffer | None = None
        self.offered = False  # the other one has been told what this node offers
        self.rdma = False  # this node has prepared its end
        self.fds: list[int] = []
        self.asked: dict[int, list[asyncio.Future[None]]] = {}  # keys of memory that is to be mapped here

    def end(self, error: SpindleError, but_ready: bool = False) -> None:
        """Whoever waits is told; with `but_ready` who waits until it is connected goes on waiting."""
        if not self.ready.done() and not but_ready:
            self.ready.set_exception(error)
        for waiting in self.asked.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        if self.ringer is not None:
            self.ringer.close()
            self.ringer = None


def _future() -> asyncio.Future[Any]:
    """One that may end with an error that nobody asks for."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda future: future.cancelled() or future.exception())
    return future


class Neighbours:
    """Connections of a node's pool. `pooling()` gives the pool, made at the first call; `endpoint_of(node_id)` where a
    node of another host listens, "" if nowhere; `has_rdma(node_id)` whether its device and that of this node reach each
    other."""

    def __init__(self, node_id: int, domain_id: int, peers: Peers, pooling: Callable[[], Pooling],
                 endpoint_of: Callable[[int], str], spawn: Callable[..., object],
                 has_rdma: Callable[[int], bool] = lambda _: False) -> None:
        self._node_id, self._domain_id = node_id, domain_id
        self._peers, self.pooling, self._endpoint_of, self.spawn = peers, pooling, endpoint_of, spawn
        self._has_rdma = has_rdma
        self._without_rdma: set[int] = set()  # lives to which it could not be had
        self.incarnation = 0
        self.dedicated, self.settling = Dedicated(self), Settling(self)
        self.network: Network | None = None
        self._known: dict[int, _Neighbour] = {}  # by node id
        self._attempts: dict[int, tuple[Peer, int]] = {}  # by node id: the last one with this life of it

    # --- reaching

    async def reach(self, node_id: int) -> int:
        """The life of a node whose pool is connected, once it is. Raises ConnectionEnded, NoResources."""
        if node_id == self._node_id:
            return self.pooling().life
        peer = self._peers.connected.get(node_id)
        if peer is None:
            raise ConnectionEnded(f"there is no node {node_id} in the group of node {self._node_id}")
        known = self._known.get(node_id)
        if known is None or known.peer is not peer:
            known = self._begin(peer)
        ready = known.ready
        done, _ = await asyncio.wait({ready}, timeout=REACH_TIMEOUT_S)
        if not done:
            error = ConnectionEnded(f"node {node_id} has not answered within {REACH_TIMEOUT_S:g} s that it has links")
            if (now := self._known.get(node_id)) is not None and now.ready is ready:
                self._over(now, error)
            raise error
        return ready.result()

    def _last(self, peer: Peer) -> int:
        known, attempt = self._attempts.get(peer.node_id, (None, 0))
        return attempt if known is peer else 0

    def _begin(self, peer: Peer, ready: asyncio.Future[int] | None = None) -> _Neighbour:
        """Another attempt, or the wish for one. `ready`: who waits for the last one waits for this one."""
        if (before := self._known.get(peer.node_id)) is not None:
            self._forget(before, ConnectionEnded(f"node {peer.node_id} has been started anew"), ready is not None)
        known = self._known[peer.node_id] = _Neighbour(peer, ready)
        if self._node_id < peer.node_id:
            self._offer(known, self._last(peer) + 1)
        else:
            self.say(peer, pb.PeerMessage(link_over=pb.LinkOver(attempt=self._last(peer), begin=True)))
        return known

    def connected_to(self, life: int) -> tuple[Peer, bool]:
        """The node of this life, whose pool is connected, and whether over RDMA. Raises ConnectionEnded."""
        known = self._known.get(node_of(life))
        if known is None or known.life != life or known.theirs is None or not known.ready.done() or (
                known.peer.conn.peer.local):
            raise ConnectionEnded(f"the pool of node {node_of(life)} is not connected")
        return known.peer, known.rdma and bool(known.theirs.rdma_address)

    def say(self, peer: Peer, message: pb.PeerMessage, fds: Sequence[int] = ()) -> None:
        self._peers.send(peer.node_id, message, fds, peer.incarnation)

    def _offer(self, known: _Neighbour, attempt: int) -> None:
        peer = known.peer
        known.attempt = attempt
        self._attempts[peer.node_id] = peer, attempt
        try:
            pooling = self.pooling()
            offer = pb.LinkOffer(directory=pooling.grant, attempt=attempt)
            fds: list[int] = []
            if peer.conn.peer.local:
                known.post, known.ringer = ShmPart.make_post(), Ringer()
                fds = [pooling.shm.keys.fd, known.post.fd, pooling.shm.bell.fd, known.ringer.heard,
                       pooling.exports.directory.memory.fd]
            else:
                known.token = offer.token = secrets.token_bytes(TOKEN_BYTES)
        except (OSError, SpindleError) as error:
            self._not_connected(known, shortage(error, f"links to node {peer.node_id}") or error)
            return
        theirs = b"" if known.theirs is None else known.theirs.rdma_address
        answers = known.theirs is not None
        if peer.conn.peer.local or known.life in self._without_rdma or not self._has_rdma(peer.node_id) or (
                answers and not theirs):
            known.offered = True
            self.say(peer, pb.PeerMessage(link_offer=offer), fds)
        else:
            self.spawn(self._offer_rdma(known, offer, theirs))

    async def _offer_rdma(self, known: _Neighbour, offer: pb.LinkOffer, theirs: bytes) -> None:
        """The same with this node's end of a connection over RDMA, which is connected already where the other one's
        address is known."""
        try:
            pooling = self.pooling()
            offer.rdma_address = await pooling.do(lambda: pooling.prepare_rdma(known, theirs))
            known.rdma = bool(offer.rdma_address)
        except (OSError, ValueError, SpindleError) as error:
            await self._do_without_rdma(known, error)
        if self._known.get(known.peer.node_id) is known:
            known.offered = True
            self.say(known.peer, pb.PeerMessage(link_offer=offer))
        else:
            self.spawn(self._disconnect(known))

    async def _do_without_rdma(self, known: _Neighbour, error: Exception) -> None:
        self._without_rdma.add(known.life)
        LOG.warning("links to node %d go over TCP alone, since there is no connection over RDMA: %s",
                    known.peer.node_id, str(error))
        with contextlib.suppress(SpindleError):  # the pool has stopped
            pooling = self.pooling()
            await pooling.do(lambda: pooling.drop_rdma(known))

    # --- hearing

    def heard_offer(self, peer: Peer, offer: pb.LinkOffer, fds: Sequence[int]) -> None:
        """Takes over the descriptors. Raises WireError for an offer that makes no sense."""
        local = peer.conn.peer.local
        if len(offer.directory) != GRANT_BYTES or not offer.attempt or (
                len(fds) != (SHM_FDS + 1 if local else 0)) or (not local and len(offer.token) != TOKEN_BYTES):
            close_all(fds)
            raise WireError(f"{peer} makes an offer for links that makes no sense")
        known = self._known.get(peer.node_id)
        begins = self._node_id < peer.node_id
        if begins and (known is None or known.peer is not peer or known.attempt != offer.attempt
                       or known.theirs is not None or not known.offered):
            close_all(fds)  # an answer to an attempt that is over
            return
        if not begins:
            fresh = _Neighbour(peer, None if known is None or known.ready.done() else known.ready)
            if known is not None:
                self._forget(known, ConnectionEnded(f"node {peer.node_id} has begun anew"), not known.ready.done())
            known = self._known[peer.node_id] = fresh
            known.theirs = offer
            self._offer(known, offer.attempt)
            if self._known.get(peer.node_id) is not known:
                close_all(fds)
                return
        assert known is not None
        known.theirs, known.fds = offer, list(fds)
        if local:
            self.spawn(self._connect_shm(known))
        elif begins:
            self.spawn(self._open_tcp(known))

    def heard_over(self, peer: Peer, over: pb.LinkOver) -> None:
        """An attempt has come to nothing at the other node, or its connection is over there."""
        known = self._known.get(peer.node_id)
        if known is not None and known.peer is peer and known.attempt == over.attempt != 0:
            self._forget(known, ConnectionEnded(f"node {peer.node_id} has ended its links to this node"))
            known = None
        if over.begin and self._node_id < peer.node_id and (known is None or known.peer is not peer):
            self._begin(peer)

    async def _connect_shm(self, known: _Neighbour) -> None:
        if self._known.get(known.peer.node_id) is not known:  # over before it has begun; its descriptors are closed
            return
        pooling = self.pooling()
        try:
            with Loose(known.fds) as fds:
                known.fds = []
                keys, theirs = Mapping.attach(fds.take()), Mapping.attach(fds.take())
                bell, known.heard = Mapping.attach(fds.take()), fds.take()
                directory = Mapping.attach(fds.take())
            if known.post is None or known.ringer is None or known.theirs is None:
                raise ConnectionEnded("nothing was offered")
            post, grant = known.post, known.theirs.directory
            with Loose.copies(known.ringer.fd) as ring:
                pooling.driver.hear(known.heard)

                def connect() -> None:
                    peer = pooling.shm.connect(post, keys, theirs, bell, ring.take())
                    pooling.connected(known, known.life, peer, grant, directory, known.peer.conn.peer.pid)

                await pooling.do(connect)
            self._is_ready(known)
        except (OSError, ValueError, SpindleError) as error:
            self._not_connected(known, error)

    async def _open_tcp(self, known: _Neighbour) -> None:
        peer = known.peer
        try:
            if known.theirs is None:
                raise ConnectionEnded("nothing was offered")
            if known.theirs.rdma_address and known.rdma and not (
                    await self._connect_rdma(known, known.theirs.rdma_address)):
                return
            fd = await self.open_stream(peer, SHARED, known.theirs.token, REACH_TIMEOUT_S)
            await self._connect_tcp(known, fd)
        except (OSError, ValueError, SpindleError) as error:
            self._not_connected(known, error)

    async def open_stream(self, peer: Peer, number: int, token: bytes, timeout_s: float) -> int:
        """A data connection to that node; its number says which. Raises SpindleError."""
        from spindle.transport.network import DataHello

        if self.network is None:
            raise ConnectionEnded(f"node {self._node_id} has no [network] listen")
        if not (endpoint := self._endpoint_of(peer.node_id)):
            raise ConnectionEnded(f"node {self._node_id} knows no address of node {peer.node_id} yet")
        hello = DataHello(self._domain_id, self._node_id, self.incarnation, peer.node_id, 0, 0, number)
        return await self.network.data(endpoint, hello, peer.incarnation, token, timeout_s)

    async def _connect_rdma(self, known: _Neighbour, theirs: bytes) -> bool:
        """Whether the two ends over RDMA are connected; if not, another attempt has begun, without."""
        pooling = self.pooling()
        try:
            await pooling.do(lambda: pooling.connect_rdma(known, theirs))
        except (OSError, ValueError) as error:
            await self._do_without_rdma(known, error)
            if self._known.get(known.peer.node_id) is known:
                self._begin(known.peer, known.ready)
            return False
        return True

    def token_for(self, hello: DataHello) -> bytes | None:
        """The token that the opener of a data connection for links was sent; None: nobody is expected."""
        if hello.ballot != SHARED:
            return self.dedicated.token_for(hello) if hello.to_node_id == self._node_id else None
        known = self._known.get(hello.node_id)
        if known is None or known.peer.incarnation != hello.incarnation or known.theirs is None or (
                hello.to_node_id != self._node_id or known.ready.done()):
            return None
        return known.token or None

    def take_stream(self, hello: DataHello, fd: int) -> None:
        """Such a connection is there, and who opened it has proven to know the token; takes over the descriptor."""
        if hello.ballot != SHARED:
            self.dedicated.take_stream(hello, fd)
            return
        known = self._known.get(hello.node_id)
        if known is None or self.token_for(hello) is None:
            os.close(fd)
            return
        known.token = b""  # for one connection

        async def connect() -> None:
            try:
                await self._connect_tcp(known, fd)
            except (OSError, ValueError, SpindleError) as error:
                self._not_connected(known, error)

        self.spawn(connect())

    async def _connect_tcp(self, known: _Neighbour, fd: int) -> None:
        """Takes over the descriptor, also where the pool stops before it has it."""
        with Loose([fd]) as loose:
            pooling = self.pooling()
            assert known.theirs is not None
            grant = known.theirs.directory
            if not known.theirs.rdma_address:
                await pooling.do(lambda: pooling.drop_rdma(known))
            await pooling.do(lambda: pooling.connected(
                known, known.life, pooling.tcp.connect(loose.take()), grant, None))
        self._is_ready(known)

    def _is_ready(self, known: _Neighbour) -> None:
        if self._known.get(known.peer.node_id) is not known:  # it has gone meanwhile
            self.spawn(self._disconnect(known))
        elif not known.ready.done():
            known.ready.set_result(known.life)

    def _not_connected(self, known: _Neighbour, error: Exception) -> None:
        # Its text: who keeps the record would keep open what the error's frames have.
        LOG.warning("no links to node %d: %s", known.peer.node_id, str(error))
        self._over(known, error if isinstance(error, SpindleError) else ConnectionEnded(
            f"no links to node {known.peer.node_id}: {error}"))

    def _over(self, known: _Neighbour, error: SpindleError) -> None:
        """This attempt is over; who needs links to that node next begins another one."""
        if self._known.get(known.peer.node_id) is known:
            self._forget(known, error)
            if known.attempt:
                self.say(known.peer, pb.PeerMessage(link_over=pb.LinkOver(attempt=known.attempt)))
        else:
            self.spawn(self._disconnect(known))

    # --- memory of this host

    async def _have_mapped(self, life: int, key: int) -> None:
        """Maps memory of a node of this host. Raises ConnectionEnded, NoResources."""
        known = self._known.get(node_of(life))
        if known is None or known.life != life:
            raise ConnectionEnded(f"node {node_of(life)} has gone")
        future: asyncio.Future[None] = _future()
        waiting = known.asked.setdefault(key, [])
        waiting.append(future)
        if len(waiting) == 1:
            self.say(known.peer, pb.PeerMessage(link_map=pb.LinkMap(key=key)))
        done, _ = await asyncio.wait({future}, timeout=REACH_TIMEOUT_S)
        if not done:
            if known.asked.get(key) is waiting:  # who wants it next asks anew
                del known.asked[key]
            raise ConnectionEnded(f"node {node_of(life)} has not handed over a region within {REACH_TIMEOUT_S:g} s")
        future.result()

    def lacking(self, life: int, key: int) -> None:
        """The pool would read memory of a node of this host that isn't mapped yet."""
        async def have() -> None:
            try:
                await self._have_mapped(life, key)
            except SpindleError as error:
                LOG.warning("a region of node %d can't be used: %s", node_of(life), str(error))
                pooling = self.pooling()
                with contextlib.suppress(SpindleError):
                    await pooling.do(lambda: pooling.not_mapped(life, key))

        known = self._known.get(node_of(life))
        if known is None or key not in known.asked:
            self.spawn(have())

    def heard_map(self, peer: Peer, asked: pb.LinkMap) -> None:
        """A node of this host wants to map a region of this one."""
        self.spawn(self._hand_over(peer, asked.key))

    async def _hand_over(self, peer: Peer, key: int) -> None:
        known = self._known.get(peer.node_id)
        memory = None
        if known is not None and known.peer is peer and known.theirs is not None and peer.conn.peer.local:
            pooling = self.pooling()
            with contextlib.suppress(SpindleError):
                memory = await pooling.do(lambda: pooling.regions.memory_of(key))
        self.say(peer, pb.PeerMessage(link_mapped=pb.LinkMapped(key=key)), [] if memory is None else [memory.fd])

    def heard_mapped(self, peer: Peer, mapped: pb.LinkMapped, fds: Sequence[int]) -> None:
        """The answer; takes over the descriptor."""
        from spindle.pool.beside import attach_as_sealed  # a node whose programs use no links needs none of it

        known = self._known.get(peer.node_id)
        waiting = [] if known is None else known.asked.pop(mapped.key, [])
        error: SpindleError | None = None
        memory = None
        with Loose(fds) as loose:
            if len(fds) != 1 or known is None:
                error = ConnectionEnded(f"node {peer.node_id} has no such region any more")
            else:
                try:
                    memory = attach_as_sealed(loose.take())
                except (OSError, ValueError) as problem:
                    error = shortage(problem, "a region of another node") or ConnectionEnded(
                        f"node {peer.node_id} has handed over what is no region: {problem}")
        if memory is not None and known is not None:
            self.spawn(self._keep(known, mapped.key, memory, waiting))
            return
        for future in waiting:
            if not future.done() and error is not None:
                future.set_exception(error)

    async def _keep(self, known: _Neighbour, key: int, memory: Mapping, waiting: list[asyncio.Future[None]]) -> None:
        pooling = self.pooling()
        with contextlib.suppress(SpindleError):
            await pooling.do(lambda: pooling.mapped(known.life, key, memory))
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # --- ending

    def gone(self, peer: Peer) -> None:
        """That life of a node has gone, or was cast out."""
        if self._last(peer):
            del self._attempts[peer.node_id]
        self._without_rdma.discard(life_of(peer.node_id, peer.incarnation))
        known = self._known.get(peer.node_id)
        if known is not None and known.peer is peer:
            self._forget(known, ConnectionEnded(f"node {peer.node_id} has gone"))

    def end(self, life: int, error: ConnectionEnded) -> None:
        """That connection is over: who needs it next begins anew."""
        known = self._known.get(node_of(life))
        if known is not None and known.life == life:
            LOG.warning("the links to node %d are ended: %s", known.peer.node_id, error)
            self._over(known, error)

    def lost(self, known: object, why: str) -> None:
        """A connection has ended by itself; the next who needs it begins anew."""
        assert isinstance(known, _Neighbour)
        if self._known.get(known.peer.node_id) is known:
            LOG.warning("the links to node %d have ended: %s", known.peer.node_id, why)
            self._over(known, ConnectionEnded(why))

    def _forget(self, known: _Neighbour, error: SpindleError, but_ready: bool = False) -> None:
        self._known.pop(known.peer.node_id, None)
        self.dedicated.gone(known.life)
        self.settling.gone(known.life)
        known.end(error, but_ready)
        self.spawn(self._disconnect(known))

    async def _disconnect(self, known: _Neighbour) -> None:
        with contextlib.suppress(SpindleError, OSError, ValueError):  # the pool has stopped, or didn't hear it yet
            pooling = self.pooling()
            await pooling.do(lambda: pooling.disconnect(known))
            if known.heard >= 0:
                pooling.driver.unhear(known.heard)
        if known.heard >= 0:
            os.close(known.heard)
            known.heard = -1

    def close(self, error: SpindleError) -> None:
        """The node ends; the pool has stopped."""
        for known in list(self._known.values()):
            self.settling.gone(known.life)
            known.end(error)
            if known.heard >= 0:
                os.close(known.heard)
                known.heard = -1
        self._known.clear()
