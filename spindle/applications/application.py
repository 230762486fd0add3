"""The node's side of one application: what it asks, what it has opened, and what happens when it goes.

Why a state machine per connection and nothing shared: an application is foreign code. Whatever it sends, stops sending
or dies of must end in its own connection; the node, the group and the other applications don't notice.

Rules:
- It is admitted already (`spindle.applications.attachment`): Welcome goes out and requests are served.
- Requests of one application run at the same time, at most REQUESTS_AT_ONCE; reading pauses meanwhile. Those of all
  take turns, so that nobody's keep the node from what the group needs (both: `spindle.applications.turns`).
- What an application opened is closed when its connection ends, at once, whatever it was doing. A request that is still
  running then finishes and what it opened is closed after it: nothing is cancelled half way into a view change.
- An application never waits in the node's memory: answers that it doesn't read are bounded, then it is cut off.
- The last word of the node is a Refusal with number 0 that says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Union

from google.protobuf.message import DecodeError

from spindle.applications.larges import ApplicationLarges
from spindle.applications.links import ApplicationLinks
from spindle.applications.notices import Notices
from spindle.applications.open_ports import OpenPort, OpenPorts
from spindle.applications.operators import Operators
from spindle.applications.quotas import Quotas
from spindle.applications.turns import Room, Turns
from spindle.errors import (
    AccessDenied,
    ConfigError,
    ConnectionEnded,
    ProtocolMismatch,
    SpindleError,
    TopicInUse,
    TopicMismatch,
    TopicUnknown,
    WireError,
    error_to_wire,
    shortage,
)
from spindle.group.codec import (
    endpoint_to_wire,
    lease_from_wire,
    position_from_wire,
    position_to_wire,
    spec_from_wire,
    topic_to_wire,
    view_to_wire,
)
from spindle.group.endpoints import Endpoint
from spindle.group.levels import Level
from spindle.group.topics import TAG_MAX, WINDOW_MAX, TopicInfo, TopicSpec, choose_inbox_slots, is_given_up, ring_bytes
from spindle.group.types import check_type
from spindle.proto import attach_pb2 as pb
from spindle.relay.figures import RelayFigures
from spindle.security.access import PeerCredentials, Permissions
from spindle.transport.wire import Connection, Frame, Limits, close_all

if TYPE_CHECKING:
    from spindle.logs import Sparing
    from spindle.node.node import Node
    from spindle_core.ends import ApplicationBell

REQUESTS_AT_ONCE = 16  # of one application; more wait in its socket
DECLARED_MAX = 4096  # definitions of an application that are kept; a group has fewer topics
POSITIONS_MAX = 1024  # from which a reader goes on: one a life of the topic
QUEUE_BYTES_MAX = 8 << 20  # answers and events waiting for one application
INBOX_BYTES_MAX = 256 << 20  # of one writer
LOG = logging.getLogger("spindle.attachment")

Answer = Union[None, "tuple[pb.Reply, list[int]]"]  # None: the connection ended meanwhile


class Registry(Protocol):
    """All applications of the node, see `spindle.applications.attachment`."""

    node: Node
    embedded: bool
    apps: dict[int, Application]
    relayed: RelayFigures
    turns: Turns
    quotas: Quotas
    announced: dict[bytes, tuple[OpenPorts, int]]
    denials: Sparing

    @property
    def stopping(self) -> bool:
        """True once the node is about to end."""

    def is_notice(self, guid: bytes) -> bool:
        """True if an application of this node has announced a topic or participant with it."""

    def holder_of(self, guid: bytes) -> Permissions | None:
        """The permissions of the application that has announced it; None if none of this node has."""

    def status_for(self, viewer: Permissions) -> dict[str, Any]:
        """The node's status and what is attached to it, as far as this viewer may see it, fit for JSON."""

    async def group_status_for(self, viewer: Permissions, figures: bool) -> dict[str, Any]:
        """The same of all nodes of the group; `figures`: of their numbers alone."""


class Application(Operators):
    """One attached application. `serve()` runs as long as it is attached.

    external  it is on a host without a node, see `spindle.relay`
    """

    external = False

    def __init__(self, all_apps: Registry, number: int, conn: Connection, name: str, permissions: Permissions
    ) -> None:
        self._all = all_apps
        self._node = all_apps.node
        self._conn = conn
        self.number = number
        self.name = name[:128] if name.isprintable() else "?"
        self.permissions = permissions
        self._within = isinstance(permissions.peer, PeerCredentials) and permissions.peer.pid == os.getpid()  # embedded
        self.quota = all_apps.quotas.of(permissions.peer)
        self.notices = Notices(self._node, str(self), self.name, permissions, all_apps.holder_of)
        self.watching = False
        self._declared: dict[str, TopicSpec] = {}  # what it wants its topics to be
        self._ended = False
        self._ports = OpenPorts(all_apps, str(self), permissions, self.quota, self._close_port)
        self._room = Room(REQUESTS_AT_ONCE)
        self._larges = ApplicationLarges(
            self._node, self._ports, self.quota, self._room,
            permissions.peer.uid if isinstance(permissions.peer, PeerCredentials) else None)
        self._links = ApplicationLinks(self._node.links, permissions, self.quota, self._within, self.send)
        self._tasks: set[asyncio.Task[None]] = set()
        config = self._node.config
        conn.label = str(self)
        conn.set_limits(Limits(
            frame_bytes_max=config.frame_max, fds_max=0, frame_time_s=config.handshake_timeout_s,
            queue_bytes_max=QUEUE_BYTES_MAX, frames_waiting_max=REQUESTS_AT_ONCE))
        conn.last_word = last_word
        conn.watch_end(self._on_end)
        self._bell: ApplicationBell | None = None  # by which it rings the node

    def __str__(self) -> str:
        return f"application {self.number} {self.name!r} of {self.permissions.peer}"

    def status(self) -> dict[str, Any]:
        peer = self.permissions.peer
        return {
            "name": self.name, "pid": peer.pid, "uid": peer.uid,
            "writers": sorted(port.topic for port in self._ports if port.writer is not None),
            "readers": sorted(port.topic for port in self._ports if port.reader is not None),
        }

    # --- the life of the connection

    async def serve(self) -> None:
        """Serve requests until the connection ends; then close what is open."""
        LOG.info("%s attached", self)
        why = "detached"
        try:
            with self._watch_process():
                self._bell = self._make_bell()
                self._welcome()
                while True:
                    frame = await self._conn.receive()
                    await self._room.acquire()
                    await self._all.turns.wait()
                    if self._ended:
                        break
                    with self._all.turns.working():
                        self._begin(frame)
        except SpindleError as error:
            self.end(error)
            if not isinstance(error, ConnectionEnded):
                why = f"cut off: {error}"
        finally:
            self._ended = self._ports.ended = True
            self._conn.close()
            self._all.apps.pop(self.number, None)
            if self.quota is not None:
                self.quota.applications -= 1
            LOG.info("%s %s", self, why)
            await self._close_everything()
            if self._bell is not None:
                self._bell.close()

    def _make_bell(self) -> ApplicationBell | None:
        """Raises SpindleError."""
        from spindle_core.ends import ApplicationBell

        self._node.check_descriptors("an application")
        try:
            return ApplicationBell(self._node.engine)
        except OSError as error:
            raise shortage(error, "another application") or SpindleError(
                f"node {self._node.node_id} can't serve another application: {error.strerror}") from error

    def _welcome(self) -> None:
        config, node = self._node.config, self._node
        self.send(pb.NodeFrame(welcome=pb.Welcome(
            node_id=node.node_id, domain_id=config.domain_id, pid=os.getpid(), embedded=self._all.embedded,
            view=view_to_wire(node.view()))).SerializeToString(),
            [node.counters.mapping.fd, node.engine.bell.fd, *([self._bell.fd] if self._bell is not None else [])])
        if self._bell is not None:
            self._bell.hand_over()

    @contextlib.contextmanager
    def _watch_process(self) -> Iterator[None]:
        """End the connection when the process dies, even if a child that it forked holds the socket open."""
        peer, loop = self.permissions.peer, asyncio.get_running_loop()
        try:
            if peer.pid in (0, os.getpid()):
                raise ProcessLookupError
            pid_fd = os.pidfd_open(peer.pid)
        except OSError:  # gone already, or invisible from here: the end of the connection has to do
            yield
            return
        try:
            loop.add_reader(pid_fd, self._conn.close)
            yield
        finally:
            loop.remove_reader(pid_fd)
            os.close(pid_fd)

    def _on_end(self, _: SpindleError | None) -> None:
        self._ended = self._ports.ended = True
        self._room.release()  # serve() may wait for room while every running request waits for the group

    def end(self, reason: SpindleError) -> None:
        """Say why and close the connection; serve() does the rest."""
        if not self._conn.closed:
            self.send(last_word(reason))
            self._conn.close()

    def send(self, body: bytes, fds: list[int] | None = None) -> None:
        """Queue a frame. If the application doesn't read, or is gone, its connection ends and serve() notices."""
        with contextlib.suppress(WireError):
            self._conn.send(body, fds or ())

    async def _close_everything(self) -> None:
        """Ports first: a dead writer's claim must not hold anything. Then those of requests that are still running."""
        self.notices.end()
        self._larges.end()
        await self._links.end()
        await self._ports.close_all()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _close_port(self, port: OpenPort) -> None:
        self._larges.port_closed(port.number)
        await self._ports.close(port)

    # --- requests

    def _begin(self, frame: Frame) -> None:
        try:
            request = pb.Request.FromString(frame.body)
        except DecodeError as error:
            raise WireError(f"a request can't be read: {error}") from None
        self._start(request)

    def _start(self, request: pb.Request) -> None:
        if request.number == 0:
            raise WireError("a request has number 0, which stands for the whole connection")
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: pb.Request) -> None:
        try:
            name = _HANDLERS.get(request.WhichOneof("body") or "")
            if name is None:
                raise ProtocolMismatch(f"node {self._node.node_id} does not know this request: use the same release of "
                                       "Spindle for node and application")
            await self._all.turns.wait()
            with self._all.turns.working():
                answer: Answer = await attrgetter(name)(self)(request)
            if answer is not None:
                reply, fds = answer
                reply.number = request.number
                try:
                    self.send(pb.NodeFrame(reply=reply).SerializeToString(), fds)
                except SpindleError:  # no descriptors for what waits to be sent: nobody has this port
                    await self._ports.take_back(_opened(reply))
                    raise
                self._hand_over(reply)
        except (SpindleError, ValueError, OSError) as error:
            if isinstance(error, AccessDenied):
                what = str(error).replace(str(self.permissions.peer), "")  # which process it was doesn't matter
                self._all.denials.warn((self.name, what), "%s is refused: %s", self, error)
            kind, text = error_to_wire(error)
            self.send(pb.NodeFrame(
                refusal=pb.Refusal(number=request.number, kind=kind, text=text)).SerializeToString())
        except Exception as error:  # a bug of ours, or something ran out: this application is told, the node goes on
            short = shortage(error, "the request of a program")
            if short is None:
                LOG.exception("%s: request %s failed", self, request.WhichOneof("body"))
            kind, text = error_to_wire(short or error)
            self.send(pb.NodeFrame(
                refusal=pb.Refusal(number=request.number, kind=kind, text=text)).SerializeToString())
        finally:
            self._room.release()

    def _hand_over(self, reply: pb.Reply) -> None:
        """From here on the other side of a port belongs to the application alone, see `events.pxd`."""
        port = self._ports.find(_opened(reply))
        if port is not None and port.writer is not None:
            port.writer.inbox.hand_over()
        elif port is not None and port.reader is not None:
            port.reader.cursor.hand_over()
            port.reader.cursor.give_table_away()

    async def _declare_topic(self, request: pb.Request) -> Answer:
        spec = spec_from_wire(request.declare_topic.spec)
        self.permissions.check_declare(spec.name)
        topic = await self._declare(spec)
        self._declared[spec.name] = spec
        if len(self._declared) > DECLARED_MAX:  # those that were deleted since
            self._declared = {name: one for name, one in self._declared.items() if self._node.topic(name) is not None}
        return pb.Reply(topic=topic_to_wire(topic)), []

    async def _declare(self, wanted: TopicSpec) -> TopicInfo:
        """The agreed topic; what `wanted` leaves open is taken from the group, or else from our configuration."""
        for attempt in (1, 2):
            known = self._node.topic(wanted.name)
            if known is not None:
                try:
                    known.spec.check_same(wanted)
                except TopicMismatch:
                    if attempt == 2 or not await self._given_up(known):
                        raise
                else:
                    return known
            config = self._node.config
            spec = wanted.with_window(config.default_size_max, config.default_window, config.log_capacity)
            try:
                if self.quota is None:
                    return await self._node.declare_topic(spec)
                await self.quota.change()
                with self.quota.declaring(spec, [one.spec.name for one in self._node.topics()]):
                    return await self._node.declare_topic(spec)
            except TopicMismatch:
                if attempt == 2:
                    raise  # else somebody was faster: what `wanted` leaves open may be as they declared it
        raise AssertionError("not reached")

    async def _given_up(self, topic: TopicInfo) -> bool:
        """Deletes a topic that no node has a reader or writer of and that has nothing on disk, so that whoever may
        declare it can do so anew. False if it is in use."""
        if topic.spec.level is Level.LOGGED:  # this node may be about to hear that it was given up, or declared anew
            await self._node.hears_of(topic.spec.name, anew=True)
            now = self._node.topic(topic.spec.name)
            return now is None or now.spec != topic.spec
        if topic.members:
            return False
        try:
            if self.quota is not None:
                await self.quota.change()
            await self._node.delete_topic(topic.spec.name)
        except TopicUnknown:
            pass  # by somebody else, just now
        except TopicInUse:
            return False
        LOG.info("%s declares topic %r anew, which nobody had open", self, topic.spec.name)
        return True

    async def _delete_topic(self, request: pb.Request) -> Answer:
        wanted = request.delete_topic
        known = self._node.topic(wanted.topic)
        if wanted.renews or (known is not None and known.spec.level is Level.LOGGED):
            self.permissions.check_publish(wanted.topic)  # it decides about what others have written
        else:
            self.permissions.check_declare(wanted.topic)
        if self.quota is not None:
            await self.quota.change()
        await self._node.delete_topic(wanted.topic, wanted.renews)
        self._declared.pop(wanted.topic, None)
        if wanted.renews:
            LOG.warning("%s has given up what the logged topic %r is: the next declaration says it", self, wanted.topic)
        return pb.Reply(done=pb.Done()), []

    async def _open_writer(self, request: pb.Request) -> Answer:
        wanted = request.open_writer
        self.permissions.check_publish(wanted.topic)
        endpoint = self._endpoint_of(wanted, is_writer=True)
        spec = (await self._known(wanted.topic)).spec
        if wanted.slots > WINDOW_MAX or ring_bytes(wanted.slots, spec.size_max) > INBOX_BYTES_MAX:
            raise ConfigError(f"a writer of topic {spec.name!r} with {wanted.slots} slots of {spec.size_max} bytes is "
                              f"over the limit of {WINDOW_MAX} slots and {INBOX_BYTES_MAX >> 20} MiB")
        _check_farewell(wanted.farewell)
        lease = lease_from_wire(wanted.lease) if wanted.HasField("lease") else None
        if wanted.type:
            check_type(wanted.topic, wanted.type)
        slots = wanted.slots or self._node.config.inbox_slots or choose_inbox_slots(spec.size_max)
        inbox_bytes = ring_bytes(slots, spec.size_max)
        async with self._ports.room(inbox_bytes) as counted:
            port = await self._node.open_writer(
                wanted.topic, slots=wanted.slots, relayed=self._identity(wanted), within=self._within,
                farewell=wanted.farewell, lease=lease, type_=wanted.type)
            await self._check_still(wanted.topic, self._node.close_writer, port)
            number = await self._ports.add(
                counted(OpenPort(wanted.topic, writer=port, inbox_bytes=inbox_bytes)), endpoint)
        if number is None:
            return None
        inbox = port.inbox
        reply = pb.Reply(writer=pb.WriterOpened(
            port=number, topic=topic_to_wire(self._topic(wanted.topic)), writer_id=inbox.writer_id))
        return reply, [inbox.ring.fd, inbox.progress.fd, inbox.their_fd]

    def _identity(self, wanted: pb.OpenWriter) -> int:
        """The identity of a relayed writer, see `spindle.relay`; writers on this host have none, 0."""
        return 0

    async def _open_reader(self, request: pb.Request) -> Answer:
        wanted = request.open_reader
        self.permissions.check_subscribe(wanted.topic)
        endpoint = self._endpoint_of(wanted, is_writer=False)
        await self._known(wanted.topic)
        if len(wanted.after) > POSITIONS_MAX:
            raise ConfigError(f"a reader that goes on from {len(wanted.after)} positions: the limit is {POSITIONS_MAX}")
        if wanted.start_index < -1:
            raise ConfigError(f"start index {wanted.start_index} must be an index, or -1 for none")
        async with self._ports.room() as counted:
            port = await self._node.open_reader(
                wanted.topic, keep_all=wanted.keep_all, from_history=wanted.from_history,
                start_index=wanted.start_index,
                after=[position_from_wire(one) for one in wanted.after], within=self._within)
            await self._check_still(wanted.topic, self._node.close_reader, port)
            number = await self._ports.add(counted(OpenPort(wanted.topic, reader=port)), endpoint)
        if number is None:
            return None
        reply = pb.Reply(reader=pb.ReaderOpened(
            port=number, topic=topic_to_wire(self._topic(wanted.topic)), start=position_to_wire(port.start),
            continued=port.continued, ends=map(position_to_wire, port.ends), table=port.cursor.table is not None,
            said_ns=port.said_ns, types=port.types))
        fds = [port.log_mapping.fd, port.cursor.mapping.fd, port.cursor.their_fd]
        return reply, fds if port.cursor.table is None else [*fds, port.cursor.table.fd]

    async def _close_requested(self, request: pb.Request) -> Answer:
        await self._ports.close_number(request.close_port.port)
        return pb.Reply(done=pb.Done()), []

    async def _announce_notice(self, request: pb.Request) -> Answer:
        self.notices.announce(request.announce)
        return pb.Reply(done=pb.Done()), []

    async def _withdraw_notice(self, request: pb.Request) -> Answer:
        self.notices.withdraw(request.withdraw.guid)
        return pb.Reply(done=pb.Done()), []

    async def _change_port(self, request: pb.Request) -> Answer:
        wanted = request.change_port
        port = self._ports.get(wanted.port)
        _check_farewell(wanted.farewell)
        self._ports.change(port, wanted.endpoint, wanted.farewell)
        return pb.Reply(done=pb.Done()), []

    async def _watch(self, request: pb.Request) -> Answer:
        self.watching = True
        return pb.Reply(done=pb.Done()), []

    async def _list_endpoints(self, request: pb.Request) -> Answer:
        wanted = request.list_endpoints
        seen = [endpoint_to_wire(one) for one in self.notices.listed(wanted.topic, wanted.everything)]
        return pb.Reply(endpoints=pb.EndpointList(endpoints=seen)), []

    async def _list_topics(self, request: pb.Request) -> Answer:
        wanted = request.list_topics.topic
        if wanted and self.permissions.may_see(wanted):
            await self._node.hears_of(wanted)
        seen = [topic_to_wire(one) for one in self._node.topics(request.list_topics.awaited)
                if self.permissions.may_see(one.spec.name) and wanted in ("", one.spec.name)]
        return pb.Reply(topics=pb.TopicList(topics=seen)), []

    async def _list_types(self, request: pb.Request) -> Answer:
        name = request.list_types.topic
        return pb.Reply(types=pb.TypeList(
            types=self._node.types(name) if self.permissions.may_see(name) else ())), []

    async def _get_view(self, request: pb.Request) -> Answer:
        return pb.Reply(view=view_to_wire(self._node.view())), []

    async def _get_status(self, request: pb.Request) -> Answer:
        if request.get_status.group:
            status = await self._all.group_status_for(self.permissions, request.get_status.figures)
        else:
            status = self._own_status()
        return pb.Reply(status=pb.Status(json=json.dumps(status))), []

    def _own_status(self) -> dict[str, Any]:
        return self._all.status_for(self.permissions)

    # --- large samples

    async def _make_large(self, request: pb.Request) -> Answer:
        return await self._larges.make(request.make_large)

    async def _hand_over_large(self, request: pb.Request) -> Answer:
        return self._larges.hand_over(request.hand_over_large)

    async def _drop_large(self, request: pb.Request) -> Answer:
        return self._larges.drop(request.drop_large)

    async def _open_large(self, request: pb.Request) -> Answer:
        reply, fds = self._larges.open(request.open_large, request.number)
        try:
            self.send(pb.NodeFrame(reply=reply).SerializeToString(), fds)
        finally:
            close_all(fds)
        return None

    # --- checks

    async def _known(self, name: str) -> TopicInfo:
        """The topic, also if it was declared at another node just now. Raises TopicUnknown, and TopicMismatch if
        somebody has declared it anew since this program has, while nobody had it open."""
        await self._node.hears_of(name)
        topic = self._topic(name)
        if name in self._declared:
            topic.spec.check_same(self._declared[name])
        return topic

    async def _check_still(self, name: str, close: Callable[[Any], Awaitable[None]], port: Any) -> None:
        """As _known, of a port that is open by now: it may have been declared anew meanwhile, and can't be any more."""
        try:
            if name in self._declared:
                self._topic(name).spec.check_same(self._declared[name])
        except TopicMismatch:
            await close(port)
            raise

    def _topic(self, name: str) -> TopicInfo:
        topic = self._node.topic(name, awaited=True)
        if topic is not None and topic.awaits_definition:
            raise is_given_up(name)
        if topic is not None:
            return topic
        raise TopicUnknown(f"topic {name!r} was not declared in domain {self._node.config.domain_id}: declare it first")

    def _endpoint_of(self, wanted: pb.OpenWriter | pb.OpenReader, *, is_writer: bool) -> Endpoint | None:
        if not wanted.guid:
            return None
        return Endpoint(
            guid=wanted.guid, node_id=self._node.node_id, is_writer=is_writer, topic=wanted.topic,
            endpoint=wanted.endpoint, app_name=self.name, pid=self.permissions.peer.pid)


def _check_farewell(tag: int) -> None:
    if tag > TAG_MAX:
        raise ConfigError(f"a writer's farewell can't have the tag {tag}; {TAG_MAX} is the largest")


def last_word(error: SpindleError) -> bytes:
    """A NodeFrame that says why the connection is closed."""
    kind, text = error_to_wire(error)
    return pb.NodeFrame(refusal=pb.Refusal(number=0, kind=kind, text=text)).SerializeToString()


def _opened(reply: pb.Reply) -> int:
    """The number of the port that a reply says was opened; 0 if none was."""
    kind = reply.WhichOneof("body")
    return reply.writer.port if kind == "writer" else reply.reader.port if kind == "reader" else 0


_HANDLERS = {  # by the body of the request: methods of Application, or of what it has
    "declare_topic": "_declare_topic",
    "delete_topic": "_delete_topic",
    "open_writer": "_open_writer",
    "open_reader": "_open_reader",
    "close_port": "_close_requested",
    "announce": "_announce_notice",
    "withdraw": "_withdraw_notice",
    "change_port": "_change_port",
    "watch": "_watch",
    "list_endpoints": "_list_endpoints",
    "list_topics": "_list_topics",
    "list_types": "_list_types",
    "get_view": "_get_view",
    "get_status": "_get_status",
    "make_large": "_make_large",
    "hand_over_large": "_hand_over_large",
    "drop_large": "_drop_large",
    "open_large": "_open_large",
    "open_link": "_links.asked_to_open",
    "close_link": "_links.asked_to_close",
    "offer_region": "_links.asked_to_offer",
    "end_region": "_links.asked_to_end",
    "open_duplex": "_links.asked_for_duplex",
    "take_duplex": "_links.asked_to_take",
    "list_happenings": "_list_happenings",
    "cast_out": "_cast_out",
    "leave_group": "_leave_group",
}
