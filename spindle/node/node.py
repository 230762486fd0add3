"""The node: one member of the group, from its first look for the others to its leave.

Why one asyncio object: membership, peers, topics and applications change rarely and must see each other's changes in
order; the messages themselves never come through here, they go from inboxes to logs on the engine's predicate thread.

Rules:
- Everything here runs on one event loop; only journals call in from threads, through call_soon_threadsafe.
- A node stops in one of two ways: `stop()` leaves the group in order; `fail()` ends at once with an error that it tells
  to the peers, to the applications (event GONE) and to whoever waits in `wait_stopped()` or `run()`. Members that die
  are no reason to stop, as long as a majority remains.
- Before a node says Farewell, its engine and its machine have stopped: nodes that hear it rely on that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spindle.errors import (
    JournalError,
    NodeStopped,
    SpindleError,
    WireError,
    shortage,
)
from spindle.group.endpoints import Endpoint
from spindle.group.events import ENDPOINT_ADDED, GONE, TOPIC_ADDED, TOPIC_REMOVED, VIEW, Event, ViewInfo
from spindle.group.position import Position
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.group.view import SHM, Member, View, different
from spindle.joining.bootstrap import (
    fabrics_of,
    host_mark,
    listen,
    lowest_free_id,
    newcomer_lock,
    prepare_directory,
    scan,
    socket_path,
)
from spindle.joining.calling_back import CallingBack
from spindle.joining.entering import Entry
from spindle.large.service import KINDS as LARGE_KINDS
from spindle.large.service import NodeLarge, is_for_large
from spindle.logs import about_failure
from spindle.membership import messages as m
from spindle.membership.codec import message_from_wire, message_to_wire
from spindle.membership.machine import Phase
from spindle.node.changes import Changes
from spindle.node.hold_ups import HoldUps
from spindle.node.operating import Operating
from spindle.node.status import figures_of, status_of
from spindle.node.telling import KINDS as TELLING_KINDS
from spindle.node.telling import Telling
from spindle.pool.service import KINDS as LINK_KINDS
from spindle.pool.service import NodeLinks, is_for_links
from spindle.proto import node_pb2 as pb
from spindle.proto import opening_pb2
from spindle.relay.claims import KINDS as RELAY_KINDS
from spindle.relay.claims import RelayClaims
from spindle.restart.questions import KINDS
from spindle.topics.announcements import Announcements
from spindle.topics.journals import Halts
from spindle.topics.ports import ReaderPort, WriterPort
from spindle.topics.table import TopicTable, check_start_index
from spindle.topics.types import KINDS as TYPE_KINDS
from spindle.transport.peers import Peer, Peers
from spindle.transport.reception import Reception, refuse
from spindle.transport.wire import Connection, close_all

if TYPE_CHECKING:
    import socket

    from spindle.config.settings import NodeConfig
    from spindle.group.leases import Lease
    from spindle.security.access import Credentials
    from spindle.topics.larges import LargeSamples
    from spindle.transport.network import DataHello, Network
    from spindle_core.counters import Counters
    from spindle_core.engine import Engine

ApplicationHandler = Callable[["Connection", opening_pb2.Opening, "Credentials"], None]

FLUSH_TIMEOUT_S = 2.0  # a leaving node's wait for what its writers have committed
GIVE_TIMEOUT_S = 10.0  # ... and for histories that it keeps for others
LOG = logging.getLogger("spindle.node")


class Node:
    """A node of a domain. `config.node_id` 0 takes the lowest free id. See the module's text.

    After `start()`: node_id, engine, counters. Raises from `start()`: NodeIdTaken, AccessDenied, ProtocolMismatch,
    JoinFailed, ConfigError; each says what to do.
    """

    engine: Engine
    counters: Counters

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.node_id = config.node_id
        self._changes: Changes
        self._view: View | None = None  # installed
        self._entry: Entry | None = None  # how it got into the group
        self._peers = Peers(config, self._on_message, self._on_peer, self._on_gone, self._on_ended, self.fail)
        self._calling_back = CallingBack(self._peers, self._heard, self._spawn)
        self.status_told: Callable[[], dict[str, Any]] = self.status  # to other nodes, with what is attached here
        self.telling = Telling(self._peers, self._told, self._spawn)
        self._announcements = Announcements(self._peers.broadcast, self._peers.send, self._tell)
        self._reception: Reception | None = None
        self._network: Network | None = None
        self._serving = False  # enough of the contacts have been members
        self._application_handler: ApplicationHandler | None = None
        self._listeners: list[Callable[[Event], None]] = []
        self.relays: RelayClaims  # of external clients
        self.links: NodeLinks
        self.large: NodeLarge  # samples
        self._changed = asyncio.Event()  # of anything that start() or stop() wait for
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started = self._closed = False
        self._stopping = False
        self._error: SpindleError | None = None
        self._ended: asyncio.Future[None] | None = None
        self._started_s = time.monotonic()
        self.operating = Operating(self._running, lambda: self._changes, self._peers)

    # --- life

    async def start(self) -> None:
        """Finds the group and joins it, or forms it. The node is a member when this returns."""
        from spindle_core.counters import Counters
        from spindle_core.engine import Engine, Switches

        config = self.config
        deadline = time.monotonic() + config.join_timeout_s
        self._ended = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        prepare_directory(config)
        try:
            await self._bind_network(deadline)
            async with contextlib.AsyncExitStack() as lock:
                await lock.enter_async_context(newcomer_lock(config.domain_dir, config.join_timeout_s))
                found = scan(config)
                try:
                    self.node_id = config.node_id or lowest_free_id(found, set())
                    path = socket_path(config, self.node_id)
                    name = config.name or f"{os.uname().nodename}:{os.getpid()}"
                    me = Member(self.node_id, time.time_ns(), str(path), os.getpid(), os.geteuid(), name[:64],
                                self._view_floor(), host_mark(config),
                                self._network.endpoint if self._network is not None else "", *fabrics_of(config))
                    self.counters = Counters.create()
                    self.engine = Engine(
                        self.node_id, incarnation=me.incarnation, counters=self.counters,
                        busy_poll_us=config.busy_poll_us, nice=config.nice,
                        realtime=config.realtime_priority,
                        switches=Switches(config.batch_send, config.batch_receive, config.batch_delivery,
                                          config.null_sends, config.post_after_unlock, config.skip_idle))
                    self._peers.me = me
                    self.relays = RelayClaims(self.node_id, self._peers.send, self.engine,
                                            lambda name: self._changes.topics.local.get(name))
                    self._changes = Changes(
                        self.engine, config, me, self._peers, on_installed=self._on_installed,
                        on_revised=self._on_revised, on_left=self._changed.set, fail=self.fail,
                        on_journal_failure=self._journal_failed)
                    halts = Halts(self.node_id, self.announce_endpoint, self.withdraw_endpoint)
                    self._hold_ups = HoldUps(self.node_id, self._changes, self.endpoints, halts)
                    self._changes.topics.on_halt = halts.heard
                    self.links = NodeLinks(config, me, self._peers, self._network, self._changes.member_of,
                                           self._spawn)
                    self.large = NodeLarge(config.domain_id, me, self._peers, self._network, self._changes.member_of,
                                           self._spawn, 2 * config.large_capacity, config.is_for_its_user_alone,
                                           rdma_to=self.links.rdma_to)
                    self._changes.topics.larges.service = self.large
                    self._started = True  # also if the next line can't be carried out: there is something to stop
                    self.engine.start()
                    self._entry = Entry(config, self._peers, self._changes, self._network, self._changed,
                                        self._listen, self._check_failed, self.fail, self._spawn, lock.aclose)
                    await self._entry.enter(found, deadline)
                    await self._entry.until_serving(deadline)
                    self._serving = True
                    self._hold_ups.start()
                finally:
                    for one in found:
                        one.close()
        except BaseException as error:
            short = None if isinstance(error, SpindleError) else shortage(error, "the start of a node")
            reason = short or (
                error if isinstance(error, SpindleError) else NodeStopped("the start of the node was given up"))
            await self._close(reason)
            if short is not None:
                raise short from error
            raise

    async def _bind_network(self, deadline: float) -> None:
        """Takes the port for other hosts, if this node is to be reached by any."""
        if self.config.listen is None and self.config.fabric in ("auto", SHM):
            return
        from spindle.transport.network import Network

        network = Network(self.config, self._greet, self._token_for, self._take_stream)
        network.bind()
        self._network = self._peers.network = network
        await network.locate(max(0.0, deadline - time.monotonic()))

    def _token_for(self, hello: DataHello) -> bytes | None:
        """What the opener of a data connection has to know; None: nobody is expected."""
        if is_for_large(hello):
            return self.large.token_for(hello) if self._started else None
        if is_for_links(hello):
            return self.links.token_for(hello) if self._started else None
        return self._changes.next.token_for(hello)

    def _take_stream(self, hello: DataHello, fd: int) -> None:
        if is_for_large(hello):
            self.large.take_stream(hello, fd)
        elif is_for_links(hello):
            self.links.neighbours.take_stream(hello, fd)
        else:
            self._changes.next.take_stream(hello, fd)

    def _greet(self, conn: Connection) -> None:
        """A control connection from another host."""
        if self._reception is None:
            conn.close()
        else:
            self._reception.greet(conn)

    def _view_floor(self) -> int:
        if self.config.journal_dir is None:
            return 0
        from spindle.restart.ledger import view_floor

        return view_floor(self.config.journal_dir, self.node_id)

    def _listen(self) -> None:
        if self._reception is None:
            self._reception = Reception(self.config, listen(self.config, self.node_id), self._admit)
            if self._network is not None:
                self._network.serve()

    async def stop(self) -> None:
        """Leaves the group in order and closes everything. Idempotent; after a failure it only closes."""
        if not self._started:
            return
        if self._error is None and not self._closed and not self._stopping and self._view is not None:
            self._stopping = True
            await self._changes.topics.flush(FLUSH_TIMEOUT_S)
            await self._changes.topics.questions.giving.all_given(GIVE_TIMEOUT_S)
            self._changes.machine.leave()
            self._changes.drive()
        while self._view is not None and self._changes.machine.phase is not Phase.GONE and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        await self._close(self._error)

    async def abandon(self, error: SpindleError) -> None:
        """Ends everything at once, without leaving the group. Idempotent."""
        await self._close(error)

    async def run(self) -> None:
        """start(), then wait_stopped()."""
        await self.start()
        await self.wait_stopped()

    async def wait_stopped(self) -> None:
        """Returns when the node has left; raises the error that it failed with."""
        if self._ended is None:
            raise NodeStopped("the node was never started")
        await asyncio.shield(self._ended)

    def fail(self, error: SpindleError) -> None:
        """Stops serving at once because of `error`. The first one counts."""
        if self._error is not None or self._closed:
            return
        LOG.error("node %d stops: %s", self.node_id, error, extra=about_failure(error, node=self.node_id))
        self._error = error
        self._changed.set()
        self._changes.stop()
        self._changes.topics.stop(NodeStopped(str(error)))
        # In the background: fail() is called from callbacks, and the peers should be told before the sockets close.
        self._spawn(self._close(error))

    def _check_failed(self) -> None:
        if self._error is not None:
            raise self._error

    async def _close(self, error: SpindleError | None) -> None:
        """Ends everything; `error` is why, None after a clean leave. Idempotent."""
        if self._closed:
            if self._ended is not None and not self._ended.done():
                await asyncio.wait({self._ended})
            return
        self._closed = True
        self._error = self._error or error
        stopped = NodeStopped(f"node {self.node_id} has stopped" + (f": {error}" if error else ""))
        if self._reception is not None:
            self._reception.close()
        if self._network is not None:
            self._network.close()
        self._peers.refusing = stopped
        if self._started:
            self.relays.stop(stopped)
            self.telling.stop(stopped)
            self._hold_ups.stop()
            self.links.stop(stopped)
            self.large.stop(stopped)
            self._changes.topics.stop(stopped)
            self._changes.stop()
            self.engine.stop(disconnect=False)
        # Peers hear that this node has ended before they see its connections close: a member that has certainly ended
        # doesn't count against their majority, one that is only suspected does.
        try:
            await self._peers.close(error)
        finally:
            if self._started:
                self.engine.disconnect()
                self._changes.next.disconnect()
        if self._network is not None:
            await self._network.ended()
        if self._started:
            await self._changes.topics.close(left=error is None)
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if self._view is not None:
            self._tell(Event(GONE, text=str(stopped)))
        if self._ended is not None and not self._ended.done():
            if error is not None:
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)
        self._changed.set()

    def _journal_failed(self, error: Exception) -> None:
        self.fail(error if isinstance(error, SpindleError) else JournalError(str(error)))

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- for applications and their attachment

    @property
    def large_samples(self) -> LargeSamples:
        """Those of its topics."""
        return self._changes.topics.larges

    def reserve_descriptors(self) -> None:
        """From now on applications get no descriptors that the next view may need."""
        self._changes.next.reserve.want(len(self.view().node_ids))

    def check_descriptors(self, what: str) -> None:
        """Raises NoResources unless an application may have some."""
        self._changes.next.reserve.check(what)

    def set_application_handler(self, handler: ApplicationHandler) -> None:
        """`handler` takes over connections of applications and edges, with their Opening and credentials."""
        self._application_handler = handler

    def adopt(self, sock: socket.socket) -> None:
        """Serves a connected socket as if it had come through the listening one. Raises NodeStopped, OSError."""
        if self._reception is None or self._closed:
            raise NodeStopped(f"node {self.node_id} does not run")
        self._reception.adopt(sock)

    def add_listener(self, callback: Callable[[Event], None]) -> None:
        """Calls `callback(event)` on the loop for every view, topic and endpoint that comes or goes, and at the end."""
        self._listeners.append(callback)

    async def declare_topic(self, spec: TopicSpec) -> TopicInfo:
        """Agrees with the group on the topic. Raises TopicMismatch, TopicLimit, NodeStopped."""
        return await self._running().declare(spec)

    async def hears_of(self, name: str, anew: bool = False) -> None:
        """If the topic is not known here, or `anew`, waits for the view change that is under way, if any: it may bring
        the topic. Raises NodeStopped, GroupSilent."""
        await self._running().known(name, anew)

    async def delete_topic(self, name: str, renews: bool = False) -> None:
        """Deletes a topic that is open on no node; another topic may then get its number. With `renews`: see
        TopicTable.delete. Raises TopicUnknown, TopicInUse, NodeStopped."""
        await self._running().delete(name, renews)

    async def open_writer(self, topic: str, *, slots: int = 0, relayed: int = 0, within: bool = False,
                          farewell: int = 0, lease: Lease | None = None, type_: bytes = b"") -> WriterPort:
        """A writer: its inbox, sent from since the view that is installed when this returns. `slots` 0: chosen;
        `relayed`, `farewell`, `lease`: see WriterPort; `within`: the application is in this process; `type_`: of its
        samples, which every member of the topic knows by then.

        Raises TopicUnknown, TopicLimit, GroupSilent, JournalError, NodeStopped, ConfigError.
        """
        return await self._running().open_writer(topic, slots, relayed, within, farewell, lease, type_=type_)

    async def open_reader(self, topic: str, *, keep_all: bool, from_history: bool, start_index: int = -1,
                          after: Sequence[Position] = (), within: bool = False) -> ReaderPort:
        """A reader: its cursor in the topic's delivery log. `after`: positions where it was before, here or on
        other nodes, one for each group; it goes on from there. `within`: the application is in this process.

        Raises like open_writer, and ConfigError.
        """
        check_start_index(start_index)
        return await self._running().open_reader(topic, keep_all, from_history, start_index, after, within)

    async def close_writer(self, port: WriterPort) -> None:
        """Ends a writer after what it had committed. Idempotent."""
        await self._changes.topics.close_writer(port)

    async def close_reader(self, port: ReaderPort) -> None:
        """Ends a reader. Idempotent."""
        self._changes.topics.close_reader(port)

    def has_lapsed(self, port: WriterPort) -> bool:
        """True if the writer has given no sign of life for its lease, and readers were told so."""
        return self._changes.topics.leases.has_lapsed(port)

    def announce_endpoint(self, endpoint: Endpoint) -> None:
        """Tells the group of it; replaces what was announced under the same guid."""
        self._announcements.announce(endpoint)

    def withdraw_endpoint(self, guid: bytes) -> None:
        """Tells the group that it has gone."""
        self._announcements.withdraw(guid)

    def endpoints(self, topic: str = "", everything: bool = False) -> list[Endpoint]:
        """All announced readers and writers of the group, or those of one topic; `everything`: topics and participants,
        too."""
        return self._announcements.list(topic, everything)

    def endpoints_of(self, owner: bytes) -> Iterable[Endpoint]:
        """All that belongs to one participant, itself included."""
        return self._announcements.of_owner(owner)

    def types(self, topic: str) -> tuple[bytes, ...]:
        """What is known of the types of a topic's samples: of those that it keeps here, and of those that may be
        written. Nothing of a topic that this node is no member of."""
        table = self._running()
        local = table.local.get(topic)
        return table.types.kept(local) if local is not None and local.member else ()

    def topics(self, awaited: bool = False) -> list[TopicInfo]:
        """All topics of the group; with `awaited` also those whose definition is awaited."""
        known = [topic.info for topic in self._view.topics] if self._view is not None else []
        return [one for one in known if awaited or not one.awaits_definition]

    def topic(self, name: str, awaited: bool = False) -> TopicInfo | None:
        """One of them; None if it isn't declared."""
        known = self._view.topic(name) if self._view is not None else None
        return known.info if known is not None and (awaited or known.is_declared) else None

    def view(self) -> ViewInfo:
        """The installed view. Raises NodeStopped before the node is a member."""
        if self._view is None:
            raise NodeStopped(f"node {self.node_id} is not a member yet")
        view = self._view
        return ViewInfo(view.view_id, view.node_ids, view.node_ids.index(self.node_id), view.group_id)

    def status(self) -> dict[str, Any]:
        """What there is to know, fit for JSON: node_id, domain_id, name, uptime_s, phase, awaiting, view_id, group_id,
        members, topics (with the local log's and journal's figures, and the stability numbers of all members)."""
        return status_of(self.config, self._changes, self._started_s)

    def figures(self) -> dict[str, Any]:
        """Of the status, what changes all the time: counters, processor time, and the numbers of each topic that this
        node is a member of."""
        return figures_of(self._changes, self._started_s)

    def _told(self, figures: bool) -> dict[str, Any]:
        if not self._started or self._closed:
            return {"node_id": self.node_id}
        return self.figures() if figures else self.status_told()

    def _running(self) -> TopicTable:
        if not self._started or self._closed or self._error is not None:
            raise NodeStopped(f"node {self.node_id} does not run" + (f": {self._error}" if self._error else ""))
        return self._changes.topics

    def _tell(self, event: Event) -> None:
        if event.kind == ENDPOINT_ADDED and event.endpoint is not None and not event.endpoint.is_writer:
            self._changes.topics.leases.repeat(event.endpoint.topic)
        for callback in list(self._listeners):
            callback(event)

    # --- peers

    def _admit(self, conn: Connection, opening: opening_pb2.Opening) -> None:
        """An introduced connection, from the reception."""
        if opening.role == opening_pb2.PEER:
            self._peers.accept(conn, opening)
        elif opening.role == opening_pb2.CONTACT:
            self._peers.answer_contact(conn, opening)
        elif not self._serving:
            refuse(conn, NodeStopped(f"node {self.node_id} does not serve yet: it looks for its group"))
        elif self._application_handler is not None:
            self._application_handler(conn, opening, conn.peer)
        else:
            conn.close()

    def _on_peer(self, peer: Peer) -> None:
        self._announcements.introduce(peer.node_id)
        if self._started:
            self._changes.topics.types.introduce(peer.node_id)
        if self._view is not None:
            if self._view.rank_of(peer.node_id) is None:
                self._peers.send(peer.node_id, message_to_wire(m.CurrentView(self._view)))
        if self._started:
            self._changes.peer_added(peer)

    def _on_message(self, peer: Peer, message: pb.PeerMessage, fds: list[int]) -> None:
        kind = message.WhichOneof("body")
        if self._closed or self._error is not None:
            close_all(fds)
        elif kind == "row_offer":
            self._changes.next.take_offer(peer.node_id, message.row_offer, fds)
            self._changes.drive()
        elif kind == "endpoint_added":
            self._announcements.heard(peer.node_id, message.endpoint_added)
        elif kind == "endpoint_removed":
            self._announcements.heard_gone(peer.node_id, message.endpoint_removed.guid)
        elif kind == "leave_asked":
            self.operating.hear(self.node_id, message.leave_asked.by)
        elif kind in LINK_KINDS:
            self.links.heard(peer, kind, message, fds)
        elif kind in LARGE_KINDS:
            self.large.heard(peer, kind, message, fds)
        elif kind in TYPE_KINDS:
            self._changes.topics.types.take((peer.node_id, peer.incarnation), message)
        elif kind in TELLING_KINDS:
            self.telling.take(peer.node_id, message)
        elif kind in RELAY_KINDS:
            self.relays.take(peer.node_id, message)
        elif kind in KINDS:
            self._changes.topics.questions.take(peer.node_id, message)
        else:
            told = message_from_wire(message)
            if isinstance(told, m.CurrentView):
                assert self._entry is not None
                self._spawn(self._entry.meet(peer, told))
                return
            if isinstance(told, m.JoinRequest) and told.member.life != (peer.node_id, peer.incarnation):
                # Nobody would notice the end of that life: a connection tells only of the life that opened it.
                raise WireError(f"{peer} asks to join as node {told.member.node_id}, or as another of its lives")
            if isinstance(told, m.JoinRequest):
                self._calling_back.take(peer, told, self._changes.machine.is_leader)
            elif told is not None:
                self._changes.heard(peer.node_id, told)

    def _heard(self, node_id: int, message: m.Message) -> None:
        if not self._closed and self._error is None:
            self._changes.heard(node_id, message)

    def _on_gone(self, peer: Peer) -> None:
        self._announcements.drop_node(peer.node_id)
        self.telling.gone(peer.node_id)
        if self._started:
            self._changes.topics.types.gone()
        self._changed.set()
        if self._started:
            self.links.gone(peer)
            self.large.gone(peer)
        if self._started and not self._closed and not peer.cut:
            self._changes.peer_gone(self._known_member(peer), left=peer.left, why=peer.why, ended=peer.ended)

    def _on_ended(self, peer: Peer) -> None:
        if self._started and not self._closed:
            self._changes.peer_ended(peer.node_id, peer.incarnation)

    def _known_member(self, peer: Peer) -> Member:
        for member in self._changes.members_of(peer.node_id):
            if member.incarnation == peer.incarnation:
                return member
        return Member(peer.node_id, peer.incarnation, "", peer.conn.peer.pid, peer.conn.peer.uid)

    def _on_installed(self, view: View, before: View | None) -> None:
        self._view = view
        self._peers.view = view
        if not self._serving:
            self._peers.standing = opening_pb2.OpeningReply.MEMBER
        self._changed.set()
        self.relays.installed(view)
        self._changes.topics.larges.installed(view)
        self._tell(Event(VIEW, view=self.view()))
        self._on_revised(view, before)

    def _on_revised(self, view: View, before: View | None) -> None:
        self._view = view
        changed = view.topics if before is None else different(view.topics, before.topics)
        earlier = {} if before is None else {
            topic.born_as: topic for topic in different(before.topics, view.topics)}
        for topic in changed:
            if earlier.pop(topic.born_as, None) is None and topic.is_declared:
                self._tell(Event(TOPIC_ADDED, topic=topic.info))
        for topic in earlier.values():
            if topic.is_declared:
                self._tell(Event(TOPIC_REMOVED, topic=topic.info))
