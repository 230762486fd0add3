"""The control connections of a node: one to every other node of the domain, over a Unix socket on this host and over
TCP (`spindle.transport.network`) to others.

Why beside the rows: what has to carry descriptors (the rows themselves), what is large (history), and what concerns
nodes without a row (joiners) can't go through columns. And the kernel tells at once when a process of this host is
gone.

Rules:
- A newcomer connects to those who are there; of two newcomers the one of higher rank connects. So there is one
  connection to a pair. It starts with Opening and OpeningReply; then PeerMessages go both ways.
- On this host the other end must run as our user or root, or as a user that [access] nodes names: a user who may only
  attach is an application, whatever it says that it is. On another host its certificate must be one of a node. Domain,
  protocol version and agreed settings must be ours. Whoever doesn't fit is told why.
- A node that ends says Farewell before it closes, and only when nothing of it acts any more. If a connection ends
  without Farewell, the node has died or lost touch. To tell which, this node waits a moment for the end of the other's
  process. Where it can't see that process (another pid namespace, a node in this process), it stays uncertain.
- Of one node id there is one life at a time: another incarnation is let in when the earlier one has said Farewell or
  its process has ended. A life that was cast out never comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from spindle import __version__
from spindle.errors import (
    AccessDenied,
    CastOut,
    ConfigError,
    ConnectionEnded,
    NodeIdTaken,
    NodeStopped,
    NoResources,
    ProtocolMismatch,
    SpindleError,
    WireError,
    error_from_wire,
    error_to_wire,
    shortage,
)
from spindle.proto import node_pb2 as pb
from spindle.proto import opening_pb2
from spindle.security.access import NetworkPeer
from spindle.transport.agreeing import difference_between, told
from spindle.transport.local import connect
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.peer import Peer, where
from spindle.transport.wire import Connection, Frame, Limits
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Member, View
    from spindle.transport.network import Network

FRAME_BYTES_MAX = 8 << 20  # a view of all topics has less than 1 MiB; messages travel in pieces
BULK_QUEUED_MAX = 256 << 10  # bytes that wait for a node when the next piece of something large is queued
FDS_MAX = 5  # an offer of links has most
CARRY_FDS = ("row_offer", "link_offer", "link_mapped", "link_duplex_made", "large_here")
# That a node may read nothing. A member that hangs is suspected within a minute, the most that suspect_timeout_s is.
# Who is none is suspected by nobody, and would be told of each view until its queue is full.
UNREAD_TIME_S = 120.0
LOG = logging.getLogger("spindle.node")
PROCESS_END_WAIT_S = 0.05  # between the end of a connection and that of its process: the kernel closes sockets first


class Peers:
    """All connected nodes by id. Events go to these callbacks, on the loop:

    on_message(peer, message, fds)  the callee takes over the descriptors
    on_added(peer)                  before its first message
    on_gone(peer)                   once; peer.farewell, peer.ended and peer.cut tell how
    on_ended(peer)                  after on_gone, if peer was cut or its end wasn't certain then: now it is certain
    on_short(error)                 this process lacks what a message of a peer needs: the node's own failure
    """

    def __init__(self, config: NodeConfig, on_message: Callable[[Peer, pb.PeerMessage, list[int]], None],
                 on_added: Callable[[Peer], None], on_gone: Callable[[Peer], None],
                 on_ended: Callable[[Peer], None], on_short: Callable[[SpindleError], None]) -> None:
        self._config = config
        self.domain_id = config.domain_id
        self._on_message, self._on_added = on_message, on_added
        self._on_gone, self._on_ended, self._on_short = on_gone, on_ended, on_short
        self.network: Network | None = None  # None: this host only
        self.standing = opening_pb2.OpeningReply.LOOKING  # what newcomers are told
        self.view: View | None = None  # the installed one
        # Of this version, see opening.proto.
        self.abilities: int = opening_pb2.KEEPS_TYPES | opening_pb2.GIVES_LARGE | opening_pb2.TELLS_STATUS
        self.me: Member | None = None  # once the node has its id
        self.refusing: SpindleError | None = None  # why newcomers are turned away, while the node stops
        self.connected: dict[int, Peer] = {}
        self._parting: dict[Peer, asyncio.TimerHandle] = {}  # connection ended, process not yet: on_gone is due
        self._watched: set[Peer] = set()  # with a pid_fd
        self._cast_out: set[tuple[int, int]] = set()  # node id and incarnation
        self._opening: dict[int, asyncio.Future[None]] = {}  # connections that are being made
        self._limits = Limits(frame_bytes_max=FRAME_BYTES_MAX, fds_max=FDS_MAX, frame_time_s=30.0,
                              unread_time_s=UNREAD_TIME_S)

    # --- opening

    def accept(self, conn: Connection, opening: opening_pb2.Opening) -> None:
        """Answers a node's Opening; refuses and closes if it doesn't fit."""
        error = self._unfit(conn, opening) or self._taken(opening)
        if error is not None and not isinstance(error, (ConnectionEnded, NodeStopped)):
            LOG.warning("refused node %d (%s): %s", opening.node_id, where(conn), error)
        with contextlib.suppress(WireError):
            conn.send(self._reply(error).SerializeToString())
            if error is None:
                self._add(Peer(opening.node_id, opening.incarnation, conn, looked=True, abilities=opening.abilities))
                return
        conn.close()

    def answer_contact(self, conn: Connection, opening: opening_pb2.Opening) -> None:
        """Tells a node that looks for the group what this one knows, and closes."""
        error = self._unfit(conn, opening)
        if error is not None and not isinstance(error, NodeStopped):
            LOG.warning("refused a node that looks for the group (%s): %s", where(conn), error)
        with contextlib.suppress(WireError):
            conn.send(self._reply(error).SerializeToString())
        conn.close()

    def _unfit(self, conn: Connection, opening: opening_pb2.Opening) -> SpindleError | None:
        """Why whoever opens this can't be of the same group."""
        assert self.me is not None
        try:  # first of all: whoever may not be a node is told nothing of the group
            self._check_user(conn, opening.node_id)
            self._check_host_user(conn)
        except AccessDenied as error:
            return error
        if opening.protocol != PROTOCOL:
            return ProtocolMismatch(f"node {self.me.node_id} (release {__version__}) speaks version {PROTOCOL} of the "
                                    f"node protocol, the other node (release {opening.release}) version "
                                    f"{opening.protocol}; run the same release on all nodes of a domain")
        if opening.domain_id != self._config.domain_id:
            return ProtocolMismatch(f"node {self.me.node_id} belongs to domain {self._config.domain_id}, the other one "
                                    f"to domain {opening.domain_id}; give both the same [node] domain, or the nodes of "
                                    "each domain ports and [network] contacts of their own")
        if difference := difference_between(self._settings, opening.settings):
            return ConfigError(f"node {self.me.node_id} has {difference}")
        return self.refusing

    @property
    def _settings(self) -> dict[str, str]:
        """What this node tells of its settings, and holds against those of others."""
        of = opening_pb2.OpeningReply
        return told(self._config.agreed_settings, looks=self.standing not in (of.MEMBER, of.SERVING))

    def _taken(self, opening: opening_pb2.Opening) -> SpindleError | None:
        """Why this life of a node can't be connected."""
        assert self.me is not None
        if (opening.node_id, opening.incarnation) in self._cast_out:
            return CastOut(f"node {self.me.node_id} goes on without this life of node {opening.node_id}; start it anew")
        self._make_way(opening.node_id)
        holder = f"pid {os.getpid()}"
        known = self.connected.get(opening.node_id)
        if known is not None and known.incarnation == opening.incarnation:
            return ConnectionEnded(f"{known} and node {self.me.node_id} are connected already")
        if known is not None:
            holder = where(known.conn) if known.conn.peer.local else f"the node at {self._address_of(known)}"
        elif opening.node_id != self.me.node_id:
            return None
        elif self.me.endpoint:
            holder += f" at {self.me.endpoint}"
        free = "" if self._config.contacts else ", or 0 for the lowest free one"  # where contacts are, each has its own
        return NodeIdTaken(f"node id {opening.node_id} is taken by {holder}; choose another [node] id{free}")

    def _address_of(self, peer: Peer) -> str:
        """Where a node on another host can be reached, for people; the other end of its connection, if it is no member:
        that has a port of its own."""
        member = self.view.member(peer.node_id) if self.view is not None else None
        known = member is not None and member.incarnation == peer.incarnation
        return member.endpoint if member is not None and known and member.endpoint else str(peer.conn.peer)

    def _make_way(self, node_id: int) -> None:
        """Reports the end of an earlier life of this node id at once, if it has ended."""
        former = self.connected.get(node_id)
        if former is not None and (former.farewell is not None or former.process_ended()):
            former.conn.finish()
            self._gone(former)
        elif former is not None and isinstance(former.conn.peer, NetworkPeer):
            self.send(node_id, pb.PeerMessage())  # of no kind, so the peer ignores it; but a host that has lost power
            # knows nothing of the connection, and resets it in answer: then the next attempt finds room
        for peer in [one for one in self._parting if one.node_id == node_id]:
            self._gone(peer)

    def _check_user(self, conn: Connection, node_id: int) -> None:
        """Raises AccessDenied if whoever is at the other end may not be this node."""
        if isinstance(conn.peer, NetworkPeer):
            if conn.peer.identity is not None:
                conn.peer.identity.check_node(node_id)
        elif not self._config.is_node_user(conn.peer.uid):
            raise AccessDenied(f"{conn.peer} can't be a node beside the node of user {os.geteuid()}; run all nodes of "
                               "a domain as one user, or name the user in [access] nodes")

    def _check_host_user(self, conn: Connection) -> None:
        """The same for a peer without keys that has connected over TCP from this host."""
        user = conn.peer.host_user if isinstance(conn.peer, NetworkPeer) else None
        if user is not None and not self._config.is_node_user(user):
            raise AccessDenied(f"user {user} of this host, at {conn.peer}, can't be a node beside the node of user "
                               f"{os.geteuid()}; name the user in [access] nodes, or set keys in [network]")

    def _reply(self, error: SpindleError | None) -> opening_pb2.OpeningReply:
        assert self.me is not None
        kind, text = ("", "") if error is None else error_to_wire(error)
        reply = opening_pb2.OpeningReply(
            magic=MAGIC, protocol=PROTOCOL, node_id=self.me.node_id, kind=kind, message=text, release=__version__,
            abilities=self.abilities)
        if not isinstance(error, AccessDenied):
            reply.incarnation, reply.standing = self.me.incarnation, self.standing
            reply.group_id = self.view.group_id if self.view is not None else 0
        return reply

    async def reach(self, member: Member, timeout_s: float) -> Peer:
        """The connection to a member, made if there is none. Raises SpindleError if the member isn't there."""
        assert self.me is not None
        me = self.me

        async def reached() -> Connection:
            if member.host != me.host:
                if self.network is None or not member.endpoint:
                    lacking = me if self.network is None else member
                    raise ConfigError(f"{member} runs on another host than node {me.node_id}, and node "
                                      f"{lacking.node_id} has no [network] listen")
                return await self.network.control(member.endpoint, timeout_s)
            try:
                return Connection(connect(member.address), label=f"node {member.node_id}", limits=self._limits)
            except OSError as error:
                raise shortage(error, f"a connection to {member}") or ConnectionEnded(
                    f"{member} cannot be reached at {member.address}: {error.strerror}") from error

        known = self.connected.get(member.node_id)
        if known is not None and known.incarnation != member.incarnation:
            self._make_way(member.node_id)
        peer = await self.open(member.node_id, reached, timeout_s)
        if peer.incarnation != member.incarnation:
            raise ConnectionEnded(f"{member} has been replaced by {peer}")
        return peer

    async def open(self, node_id: int, reached: Callable[[], Awaitable[Connection]], timeout_s: float) -> Peer:
        """The connection to the node; if there is none, introduces this node on the one that `reached()` makes.
        Raises what the other end refuses with, or a WireError."""
        while node_id in self._opening and node_id not in self.connected:
            await asyncio.wait({self._opening[node_id]})
        if node_id in self.connected:
            return self.connected[node_id]
        done = self._opening[node_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._introduce(await reached(), timeout_s)
        finally:
            del self._opening[node_id]
            done.set_result(None)

    async def ask(self, conn: Connection, role: opening_pb2.Role, timeout_s: float) -> opening_pb2.OpeningReply:
        """Says who this node is on a new connection; returns the answer. Raises what it refuses with, or a WireError;
        the connection is closed then."""
        assert self.me is not None
        try:
            conn.send(opening_pb2.Opening(
                magic=MAGIC, role=role, protocol=PROTOCOL, domain_id=self._config.domain_id,
                node_id=self.me.node_id, incarnation=self.me.incarnation, name=self.me.name,
                release=__version__, settings=self._settings, abilities=self.abilities).SerializeToString())
            frame = await conn.receive(timeout_s)
            frame.close_fds()
            try:
                reply = opening_pb2.OpeningReply.FromString(frame.body)
            except DecodeError as error:
                raise ProtocolMismatch(f"{conn.label} answered with something else than an OpeningReply") from error
            if reply.magic != MAGIC:
                raise ProtocolMismatch(f"{conn.label} answered with something else than an OpeningReply")
            if reply.kind:
                raise error_from_wire(reply.kind, reply.message)
            self._check_user(conn, reply.node_id)
            return reply
        except TimeoutError as error:
            conn.close()
            if isinstance(error, SpindleError):
                raise
            raise ConnectionEnded(f"{where(conn)} listens as a node but does not answer") from error
        except BaseException:
            conn.close()
            raise

    async def _introduce(self, conn: Connection, timeout_s: float) -> Peer:
        conn.set_limits(self._limits)
        reply = await self.ask(conn, opening_pb2.PEER, timeout_s)
        try:
            if self.refusing is not None:  # this node has stopped while it waited
                raise self.refusing
            self._make_way(reply.node_id)
            if reply.node_id in self.connected:
                raise NodeIdTaken(f"two nodes say that they are node {reply.node_id}; stop one of them")
        except BaseException:
            conn.close()
            raise
        standing, of = reply.standing, opening_pb2.OpeningReply
        peer = Peer(reply.node_id, reply.incarnation, conn, serves=standing == of.SERVING,
                    looked=standing not in (of.MEMBER, of.SERVING), abilities=reply.abilities)
        self._add(peer)
        return peer

    def _add(self, peer: Peer) -> None:
        peer.conn.label = str(peer)
        peer.conn.on_short = self._on_short  # what it sent is lost, by no fault of its own
        peer.conn.set_limits(self._limits)
        self.connected[peer.node_id] = peer
        self._on_added(peer)
        peer.conn.start(lambda frame: self._receive(peer, frame), lambda error: self._ended(peer, error))
        self._watch_process(peer)

    def _watch_process(self, peer: Peer) -> None:
        """Ends the connection with the process, even if a child that it forked holds the socket open; and tells, after
        the end of the connection, that the process has ended, too."""
        pid = peer.conn.peer.pid
        if pid in (0, os.getpid()):  # of another pid namespace, or a node in this process
            return
        loop = asyncio.get_running_loop()
        try:
            peer.pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            peer.ended = True
            loop.call_soon(peer.conn.finish)
        except OSError:  # not visible from here: the end of the connection has to do
            return
        else:
            self._watched.add(peer)
            loop.add_reader(peer.pid_fd, self._process_ended, peer)

    def _process_ended(self, peer: Peer) -> None:
        peer.ended = True
        self._unwatch(peer)
        if self.connected.get(peer.node_id) is peer:
            peer.conn.finish()  # takes what it had still sent; then _ended()
        elif peer in self._parting:
            self._gone(peer)
        else:
            self._on_ended(peer)

    def _unwatch(self, peer: Peer) -> None:
        self._watched.discard(peer)
        if peer.pid_fd >= 0:
            asyncio.get_running_loop().remove_reader(peer.pid_fd)
            os.close(peer.pid_fd)
            peer.pid_fd = -1

    # --- talking

    def _receive(self, peer: Peer, frame: Frame) -> None:
        try:
            message = pb.PeerMessage.FromString(frame.body)
        except DecodeError as error:
            frame.close_fds()
            raise WireError(f"{peer} sent something that is not a PeerMessage") from error
        if message.WhichOneof("body") == "farewell":
            peer.farewell = message.farewell
            frame.close_fds()
            return
        if peer.cut:  # what else it has to say counts no more
            frame.close_fds()
            return
        if message.WhichOneof("body") not in CARRY_FDS:
            frame.close_fds()
        self._on_message(peer, message, frame.take_fds())

    def send(self, node_id: int, message: pb.PeerMessage, fds: Sequence[int] = (), incarnation: int = 0) -> bool:
        """Queues a message; False if the node is not connected (any more), or not this life of it (0 = whichever)."""
        peer = self.connected.get(node_id)
        if peer is None or incarnation not in (0, peer.incarnation):
            return False
        try:
            peer.conn.send(message.SerializeToString(), fds)
        except NoResources as error:
            self._on_short(error)
            return False
        except SpindleError:  # its end is reported by on_gone
            return False
        return True

    async def send_in_turn(self, node_id: int, message: pb.PeerMessage) -> bool:
        """Queues a piece of something large when little waits for the node, one after the other; else like send. So
        large things are as fast as the node and the way to it are, and nothing else has to wait for long."""
        peer = self.connected.get(node_id)
        if peer is None:
            return False
        try:
            await peer.conn.drain(BULK_QUEUED_MAX)
            peer.conn.send(message.SerializeToString())
        except SpindleError:  # as in send
            return False
        return True

    def lives(self) -> dict[int, int]:
        """Incarnations of the connected nodes, by their ids."""
        return {node_id: peer.incarnation for node_id, peer in self.connected.items()}

    def keeps_types(self, node_id: int) -> bool:
        """False if the node is connected and of a version that doesn't."""
        peer = self.connected.get(node_id)
        return peer is None or bool(peer.abilities & opening_pb2.KEEPS_TYPES)

    def tells_status(self, node_id: int) -> bool:
        """True if the node is connected, and of a version that answers a StatusQuery."""
        peer = self.connected.get(node_id)
        return peer is not None and bool(peer.abilities & opening_pb2.TELLS_STATUS)

    def broadcast(self, message: pb.PeerMessage) -> None:
        """Queues a message to every connected node."""
        for node_id in list(self.connected):
            self.send(node_id, message)

    # --- ending

    def _ended(self, peer: Peer, error: SpindleError | None = None) -> None:
        """The connection has ended. Where `error` is more than that: this node has ended it because of what came."""
        if error is not None and not isinstance(error, ConnectionEnded):
            LOG.warning("the connection to %s ends: %s", peer, error)
        if self.connected.get(peer.node_id) is not peer:  # reported already
            return
        if peer.farewell is None and peer.pid_fd >= 0 and not peer.process_ended():
            del self.connected[peer.node_id]
            self._parting[peer] = asyncio.get_running_loop().call_later(PROCESS_END_WAIT_S, self._gone, peer)
        else:
            self._gone(peer)

    def _gone(self, peer: Peer) -> None:
        timer = self._parting.pop(peer, None)
        if timer is not None:
            timer.cancel()
        elif self.connected.get(peer.node_id) is peer:
            del self.connected[peer.node_id]
        else:
            return
        # Who says Farewell because it failed or left has stopped everything before; who casts us out goes on.
        peer.ended = peer.process_ended() or (peer.farewell is not None and not peer.farewell.cast_out)
        if peer.ended:
            self._unwatch(peer)
        self._on_gone(peer)

    def cast_out(self, node_id: int, incarnation: int, why: str) -> None:
        """This node goes on without that life of a node: tells it so if it is connected still, and never lets it in
        again."""
        self._cast_out.add((node_id, incarnation))
        peer = self.connected.get(node_id)
        if peer is None or peer.incarnation != incarnation:
            return
        del self.connected[node_id]
        peer.cut = True
        peer.conn.take_arrived()  # its Farewell may be there
        with contextlib.suppress(SpindleError):  # as far as it fits: it may have stopped reading long ago
            peer.conn.send(pb.PeerMessage(farewell=pb.Farewell(
                kind=CastOut.__name__, text=why, cast_out=True)).SerializeToString())
        peer.conn.close()
        self._on_gone(peer)
        # If its end is certain by now, that must be reported, though others suspected it first: it may be what keeps
        # this node's majority. If its end becomes certain later, _process_ended() reports it.
        if peer.process_ended() or (peer.farewell is not None and not peer.farewell.cast_out):
            peer.ended = True
            self._unwatch(peer)
            self._on_ended(peer)

    async def close(self, error: SpindleError | None = None, timeout_s: float = 1.0) -> None:
        """Says Farewell to all and closes; on_gone is not called for them. `error` is why, None: this node has left."""
        kind, text = ("", "") if error is None else error_to_wire(error)
        farewell = pb.PeerMessage(farewell=pb.Farewell(kind=kind, text=text)).SerializeToString()
        peers = list(self.connected.values())
        self.connected.clear()
        for timer in self._parting.values():
            timer.cancel()
        self._parting.clear()

        async def part(peer: Peer) -> None:
            with contextlib.suppress(SpindleError):
                peer.conn.send(farewell)
                await peer.conn.drain(0)

        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await within(timeout_s, asyncio.gather(*(part(peer) for peer in peers)))
        for peer in peers:
            peer.conn.close()
        for peer in list(self._watched):
            self._unwatch(peer)
