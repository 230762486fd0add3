"""Session: what an application holds of its node.

Rules: a session is thread safe; its writers and readers are for one thread at a time each. It ends with close(), when
it is forgotten, at the end of the program, or with its node; whatever still waits then wakes up with an error. Keep
the session as long as its writers and readers are used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spindle.client.channel import Channel, whole_or_closed
from spindle.client.larges import LargeOpener, LargeWriter
from spindle.errors import ProtocolMismatch, SpindleError, TopicUnknown, WireError, shortage
from spindle.group.endpoints import Endpoint
from spindle.group.events import Event, ViewInfo
from spindle.group.leases import Lease
from spindle.group.levels import Level
from spindle.group.position import Position, places
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.transport.frames import no_room

if TYPE_CHECKING:
    from spindle.group.holding import Holder
    from spindle.proto import attach_pb2 as pb
    from spindle.transport.wire import Frame
    from spindle_core.counters import Counters
    from spindle_core.ends import Loose
    from spindle_core.engine import Engine
    from spindle_core.inbox_writer import InboxWriter
    from spindle_core.memory import Mapping
    from spindle_core.reader import LogReader


@dataclasses.dataclass(frozen=True)
class Unacknowledged:
    """A message that was written, and that the node has not yet said to be delivered everywhere."""

    index: int  # of the writer's messages, from 0
    timestamp: int  # source timestamp, UTC ns
    payload: bytes | None  # None: its memory was used again, see `open_writer`
    tag: int = 0  # what it was written with


class WriterHandle:
    """A writer of one topic. `inbox` takes the messages; `topic` is the agreed topic when it was opened.

    writer_id: the writer's number on its node, as its messages carry it.
    relay: of a writer on a host without a node: with writer_id, which one it is, as its messages carry it; else 0.
    """

    relay = 0

    def __init__(self, session: Session, port: int, topic: TopicInfo, writer_id: int, inbox: InboxWriter) -> None:
        self.session = session
        self.port = port
        self.topic = topic
        self.writer_id = writer_id
        self.inbox = inbox
        self.closed = False
        session._channel.add_port(port, inbox)

    def close(self) -> None:
        """Give the writer back. What was committed is still sent; an open claim is dropped. Idempotent."""
        if not self.closed:
            self.closed = True
            self.inbox.close()
            self.session._close_port(self.port)

    def give_sign_of_life(self) -> None:
        """For a writer with a lease that has nothing to say."""
        self.inbox.give_sign_of_life()

    def change(self, endpoint: bytes, farewell: int) -> None:
        """Say anew what was said when it was opened. Raises ConfigError, NodeStopped."""
        self.session._change_port(self.port, endpoint, farewell)

    def unacknowledged(self) -> list[Unacknowledged]:
        """What is on its way, oldest first. After the death of the node these messages may be delivered or lost; only
        the other members' readers can tell."""
        return [Unacknowledged(*one) for one in self.inbox.unacknowledged()]

    def __enter__(self) -> WriterHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReaderHandle:
    """A reader of one topic. `log` gives the samples; `topic` is the agreed topic when it was opened.

    start      where in the topic's order it begins
    continued  of a reader that was opened with `after`: nothing is missing in between
    rewound    ... it has had messages that the order doesn't have any more: all nodes died that had them, and they were
               on no disk yet
    ends       where the orders of earlier groups end that the topic's journals outlived
    types      what writers have said of the types of samples that the topic keeps; `Session.types()` knows later ones
    gap_count  how often something may be missing since; only sessions with nodes of other hosts have such gaps
    rewind_count  the same of being rewound
    """

    gap_count = 0
    rewind_count = 0

    def __init__(self, session: Session, port: int, topic: TopicInfo, log: LogReader, start: Position, continued: bool,
                 ends: Sequence[Position] = (), types: Iterable[bytes] = ()) -> None:
        self.session = session
        self.port = port
        self.topic = topic
        self.log = log
        self.start = start
        self.continued = continued
        self.rewound = False
        self.ends = tuple(ends)
        self.types = tuple(types)
        self.closed = False
        session._channel.add_port(port, log)

    def change(self, endpoint: bytes) -> None:
        """Say anew what was said when it was opened. Raises ConfigError, NodeStopped."""
        self.session._change_port(self.port, endpoint, 0)

    def close(self) -> None:
        """Give the reader back; what it has not taken is lost to it. Idempotent."""
        if not self.closed:
            self.closed = True
            self.log.close()
            self.session._close_port(self.port)

    @property
    def position(self) -> Position:
        """Where it stands: behind the last message taken."""
        return self._at(self.log.next_view, self.log.next_sequence)

    def freeze(self) -> Position:
        """For a reader whose node is gone: what its log has by now can still be taken, nothing later. Returns the
        position behind all of it: where another session's reader goes on (`open_reader(after=...)`)."""
        return self._at(*self.log.freeze())

    def passed(self, position: Position) -> list[Position]:
        """How far in earlier groups a reader has been that stands at `position`; see `open_reader(earlier=...)`."""
        return places(self.ends, self.start.group_id, position.place)[:-1]

    def _at(self, view_id: int, sequence: int) -> Position:
        return places(self.ends, self.start.group_id, (view_id, sequence))[-1]

    def __enter__(self) -> ReaderHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


HOLDERS_TIMEOUT_S = 4.0  # half of it is more than a node waits for what members say of themselves that hang


class Session:
    """An attachment to one node, made by `attach()` or `embed()`.

    node_id, domain_id, node_pid   of the node
    embedded                       the node lives in an application's process, perhaps this one
    group_id                       of the group that the node is a member of
    name                           of this application, as listings show it
    """

    def __init__(self, channel: Channel, welcome: pb.Welcome, frame: Frame, name: str,
                 on_close: Callable[[], None] | None = None) -> None:
        """Takes the descriptors of `welcome` out of `frame`. `on_close` runs once, after the channel has ended."""
        from spindle_core.counters import Counters
        from spindle_core.memory import Mapping

        with taken(frame, 3) as fds:
            self._counters: Counters = Counters.attach(fds.take())
            self._bell: Mapping = Mapping.attach(fds.take())
            self._bell_fd = Descriptor(fds.take())
        self._channel = channel
        self.node_id: int = welcome.node_id
        self.domain_id: int = welcome.domain_id
        self.node_pid: int = welcome.pid
        self.embedded: bool = welcome.embedded
        self.group_id: int = welcome.view.group_id
        self.name = name
        self._declared: dict[str, TopicSpec] = {}  # by name, as agreed
        self._wanted: dict[str, TopicSpec] = {}  # the same, as this program has said it
        self._watching = False
        self._engine: Engine | None = None  # of a node in this process
        self.idle_links: Any = None  # what `spindle.links` keeps for the next ones; it ends with the session
        self._finalizer = weakref.finalize(self, _end, channel, on_close)  # also at the end of the program

    @property
    def beside_node(self) -> bool:
        """The node is on this host."""
        return True

    @property
    def awaits(self) -> str:
        """That no node serves, in words, while the next one is looked for; else empty."""
        return ""

    def is_within(self, engine: Engine) -> None:
        """The node of this session is in this process, and has this engine."""
        self._engine = engine

    # --- topics, writers, readers

    def declare_topic(self, spec: TopicSpec) -> TopicInfo:
        """The agreed topic of this name, created if there is none. What was declared here stays declared: whoever else
        deletes it, opening it creates it again. A logged one that somebody gives up (`redefine_topic`) has to be
        declared again: opening it raises TopicMismatch.

        Raises TopicMismatch if the group has it with another definition, TopicLimit, AccessDenied.
        """
        from spindle.group.codec import spec_to_wire, topic_from_wire
        from spindle.proto import attach_pb2 as pb

        reply = self._ask(declare_topic=pb.DeclareTopic(spec=spec_to_wire(spec)))
        info = topic_from_wire(reply.topic)
        self._declared[info.spec.name], self._wanted[info.spec.name] = info.spec, spec
        return info

    def delete_topic(self, name: str) -> None:
        """Deletes a topic that has no reader or writer on any node. Whoever may declare it may delete it.

        Raises TopicUnknown, TopicInUse (somebody has it open, or it is logged), AccessDenied, NodeStopped.
        """
        from spindle.proto import attach_pb2 as pb

        self._ask(delete_topic=pb.DeleteTopic(topic=name))
        self._forget(name)

    def redefine_topic(self, name: str) -> None:
        """Gives up what a logged topic is, while nobody has it open: whoever declares it next says what it is. When it
        is opened then, every node puts aside what it has of it, those that are away when they come back. Takes a
        majority of the nodes that held it last, as after a restart. Until it is declared, `delete_topic` takes it back.

        Raises TopicUnknown (nobody has declared it, and this node has no journal of it), TopicInUse, AccessDenied,
        NodeStopped.
        """
        from spindle.proto import attach_pb2 as pb

        self._ask(delete_topic=pb.DeleteTopic(topic=name, renews=True))
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._declared.pop(name, None)
        self._wanted.pop(name, None)

    def _open(self, topic: str, **request: Any) -> tuple[pb.Reply, Frame]:
        """The answer to a request that opens a port of a topic, which this program may have declared."""
        try:
            return self._channel.request(**request)
        except TopicUnknown:  # deleted after our declaration, or shortly before: the node may have heard of that late
            spec = self._declared.get(topic)
            if spec is None:
                raise
            self.declare_topic(spec)
            return self._channel.request(**request)

    def open_writer(self, topic: str, *, slots: int = 0, endpoint: bytes = b"", guid: bytes = b"",
                    keep_unacknowledged: bool = False, farewell: int = 0, lease: Lease | None = None,
                    type_: bytes = b"") -> WriterHandle:
        """A writer of a declared topic; returns when this node is one of the topic's senders.

        slots: messages that may wait between this writer and the node, 0 = the node's choice.
        guid, endpoint: if guid is given the writer is announced to the group with it, see `spindle.group.endpoints`.
        keep_unacknowledged: slots are used again only after their messages are delivered everywhere, so that
            `unacknowledged()` still has all of them if the node dies.
        farewell: unless 0, a message without payload and with this tag (1 to 255) follows the writer's last, in the
            order, when it is closed or its program ends in any way; not when its node dies.
        lease: what the node says when the writer gives no sign of life: a message, or
            `WriterHandle.give_sign_of_life()`.
        type_: of its samples, opaque to nodes, see `spindle.group.types`: where a topic keeps history, everybody who
            reads samples of it later is told this, too. Empty: nothing is said.
        Raises TopicUnknown, AccessDenied, TopicLimit, GroupSilent, NoResources, ConfigError.
        """
        from spindle.group.codec import lease_to_wire, topic_from_wire
        from spindle.proto import attach_pb2 as pb
        from spindle_core.inbox_writer import InboxWriter
        from spindle_core.memory import Mapping

        wanted = pb.OpenWriter(topic=topic, slots=slots, endpoint=endpoint, guid=guid, farewell=farewell,
                               lease=lease_to_wire(lease), type=type_)
        with whole_or_closed():
            reply, frame = self._open(topic, open_writer=wanted)
            with told_what_ran_out(f"a writer of topic {topic!r}"), taken(frame, 3) as fds:
                ring, progress = Mapping.attach(fds.take(), writable=True), Mapping.attach(fds.take())
                info = topic_from_wire(reply.writer.topic)
                stamped = info.spec.stamped
                fds.add(self._bell_fd.copy())
                space_fd, bell_fd = fds.take_all()
                inbox = InboxWriter(ring, progress, space_fd, self._bell, bell_fd, keep_unacknowledged, stamped)
            inbox.beside = LargeWriter(self._channel, reply.writer.port, inbox, keep_unacknowledged)
            if self._engine is not None:
                self._engine.publishes_by_itself(inbox)
            return WriterHandle(self, reply.writer.port, info, reply.writer.writer_id, inbox)

    def open_reader(self, topic: str, *, keep_all: bool, from_history: bool, start_index: int = -1,
                    after: Position | None = None, earlier: Iterable[Position] = (), endpoint: bytes = b"",
                    guid: bytes = b"") -> ReaderHandle:
        """A reader of a declared topic; returns when this node is one of the topic's members.

        keep_all: writers wait for this reader rather than overtake it.
        from_history: begin with what is retained (volatile and logged topics), else with the next message.
        start_index: begin with the message of this index in the delivery log; -1 = as from_history says.
        after: go on from the position of another reader, of this node or another; the result's `continued` is False
            unless it is certain that nothing is missing in between. What is still there comes, the oldest first.
        earlier: positions of the same reader in other groups; the node may know the order of one of them.
        Raises TopicUnknown, AccessDenied, TopicLimit, NoResources.
        """
        from spindle.group.codec import position_from_wire, position_to_wire, topic_from_wire
        from spindle.proto import attach_pb2 as pb
        from spindle_core.memory import Mapping
        from spindle_core.reader import LogReader

        places = [] if after is None else [after, *earlier]
        wanted = pb.OpenReader(
            topic=topic, keep_all=keep_all, from_history=from_history, start_index=start_index,
            after=map(position_to_wire, places), endpoint=endpoint, guid=guid)
        with whole_or_closed():
            reply, frame = self._open(topic, open_reader=wanted)
            start = position_from_wire(reply.reader.start)
            place = start.place
            info = topic_from_wire(reply.reader.topic)
            skips = after is not None and info.spec.level is not Level.UNORDERED
            count = 4 if reply.reader.table else 3
            with told_what_ran_out(f"a reader of topic {topic!r}"), taken(frame, count) as fds:
                mapping, cursor = Mapping.attach(fds.take()), Mapping.attach(fds.take(), writable=True)
                fds.add(self._bell_fd.copy())
                table = Mapping.attach(fds.take(at=1)) if reply.reader.table else None
                data_fd, bell_fd = fds.take_all()
                log = LogReader(mapping, cursor, data_fd, self._bell, bell_fd, place, skips, table)
            log.opener = LargeOpener(self._channel, reply.reader.port)
            if self._engine is not None:
                self._engine.attended_by(log)
            handle = ReaderHandle(self, reply.reader.port, info, log, start, reply.reader.continued,
                                  [position_from_wire(one) for one in reply.reader.ends], reply.reader.types)
            handle.rewound = skips and after is not None and place < after.place
            return handle

    def whole_or_closed(self) -> contextlib.AbstractContextManager[None]:
        """What the calling thread opens within it is closed again if it is left by an exception, whatever object was
        made of it by then; none may be used any more."""
        return whole_or_closed()

    # --- saying what there is

    def announce(self, guid: bytes, kind: int, topic: str = "", endpoint: bytes = b"") -> None:
        """Tell the group of a topic or participant, see `spindle.group.endpoints`, or anew of one of this session. It
        is known until withdraw(), or the end of the session.

        Raises ConfigError, AccessDenied (also for a guid that somebody else has announced), TopicLimit, NodeStopped.
        """
        from spindle.proto import attach_pb2 as pb

        self._ask(announce=pb.Announce(guid=guid, kind=kind, topic=topic, endpoint=endpoint))

    def withdraw(self, guid: bytes) -> None:
        """It has gone. Raises SpindleError for what this session hasn't announced."""
        from spindle.proto import attach_pb2 as pb

        self._ask(withdraw=pb.Withdraw(guid=guid))

    def present_guid(self, guid: bytes) -> bytes:
        """The guid under which the group has what was opened or announced here with `guid`: another one only if the
        session has turned to another node since."""
        return guid

    def _change_port(self, port: int, endpoint: bytes, farewell: int) -> None:
        from spindle.proto import attach_pb2 as pb

        self._ask(change_port=pb.ChangePort(port=port, endpoint=endpoint, farewell=farewell))

    # --- looking around

    def endpoints(self, topic: str = "", everything: bool = False) -> list[Endpoint]:
        """The announced readers and writers of `topic` in the whole group; of all topics if it is empty. `everything`:
        the announced topics and participants, too."""
        from spindle.group.codec import endpoint_from_wire
        from spindle.proto import attach_pb2 as pb

        reply = self._ask(list_endpoints=pb.ListEndpoints(topic=topic, everything=everything))
        return [endpoint_from_wire(one) for one in reply.endpoints.endpoints]

    def topics(self, *, awaited: bool = False) -> list[TopicInfo]:
        """The group's topics, those that the access list lets this application see. With `awaited`, those too whose
        definition is awaited (`redefine_topic`)."""
        return self._list_topics("", awaited)

    def _list_topics(self, name: str, awaited: bool = False) -> list[TopicInfo]:
        """All, or `name` alone, also if that was declared at another node just now."""
        from spindle.group.codec import topic_from_wire
        from spindle.proto import attach_pb2 as pb

        reply = self._ask(list_topics=pb.ListTopics(topic=name, awaited=awaited))
        return [topic_from_wire(one) for one in reply.topics.topics]

    def types(self, topic: str) -> tuple[bytes, ...]:
        """What writers have said of the types of their samples (`open_writer`): of what `topic` keeps at the node,
        whether they have gone or not, and of what may be written. A node knows none of topics that it is no member of,
        and one of an earlier version knows none at all."""
        from spindle.proto import attach_pb2 as pb

        try:
            reply = self._ask(list_types=pb.ListTypes(topic=topic))
        except ProtocolMismatch:
            return ()
        return tuple(reply.types.types)

    def view(self) -> ViewInfo:
        """The installed view."""
        from spindle.group.codec import view_from_wire
        from spindle.proto import attach_pb2 as pb

        return view_from_wire(self._ask(get_view=pb.GetView()).view)

    def counters(self) -> Counters:
        """The node's counters: a mapped page, read without asking the node."""
        return self._counters

    def status(self) -> dict[str, Any]:
        """The node's state, fit for JSON; see docs/operations.md for the keys."""
        from spindle.proto import attach_pb2 as pb

        found = json.loads(self._ask(get_status=pb.GetStatus()).status.json)
        assert isinstance(found, dict)
        return found

    def happenings(self, after: int = 0) -> list[dict[str, Any]]:
        """What has happened at a daemon behind the happening with this number, the oldest first: events and warnings of
        its log, each with number, time (UTC, s), level, event, text. None of a node that keeps none."""
        from spindle.proto import attach_pb2 as pb

        try:
            reply = self._ask(list_happenings=pb.ListHappenings(after=after))
        except ProtocolMismatch:
            return []  # an earlier release
        found = json.loads(reply.happenings.json)
        assert isinstance(found, list)
        return found

    def cast_out(self, node_id: int) -> None:
        """The group goes on without this member, as if it had failed. Raises AccessDenied, SpindleError."""
        from spindle.proto import attach_pb2 as pb

        self._ask(cast_out=pb.CastOut(node_id=node_id))

    def make_leave(self, node_id: int) -> None:
        """Has this member leave the group in order; its daemon ends then. Raises AccessDenied, SpindleError."""
        from spindle.proto import attach_pb2 as pb

        self._ask(leave_group=pb.LeaveGroup(node_id=node_id))

    def group_status(self, figures: bool = False) -> list[dict[str, Any]]:
        """What each member of the group says of itself, in the order of their ranks: as status(), with "counters" and
        "cpu_s". `figures`: of that only the numbers, for who asks again and again. One that doesn't answer within a
        second has its "node_id" and, in "error", why. Raises ProtocolMismatch if the node is of an earlier version."""
        from spindle.proto import attach_pb2 as pb

        reply = self._ask(get_status=pb.GetStatus(group=True, figures=figures))
        found = json.loads(reply.status.json).get("nodes")
        if not isinstance(found, list):
            raise ProtocolMismatch(f"node {self.node_id} is of an earlier version, which tells of itself alone")
        return found

    def held_up_by(self, topic: str, timeout_s: float = HOLDERS_TIMEOUT_S, few: bool = False) -> list[Holder]:
        """Whom writers of the topic wait for, the slowest first; nobody if nobody is far behind (`few`: at all). A node
        that is no member of the topic asks the others. Raises TimeoutError if the node doesn't answer in `timeout_s`,
        SpindleError."""
        from spindle.group.codec import endpoint_from_wire
        from spindle.group.holding import holders
        from spindle.proto import attach_pb2 as pb

        def told(group: bool) -> list[dict[str, Any]]:
            reply, frame = self._channel.request(
                timeout_s / 2, get_status=pb.GetStatus(group=group, figures=group))
            frame.close_fds()
            said = json.loads(reply.status.json)
            return [one for node in said.get("nodes", ()) or (said,) for one in node.get("topics", ())
                    if one.get("name") == topic and one.get("stability")]

        found = told(group=False) or told(group=True)
        reply, frame = self._channel.request(
            timeout_s / 2, list_endpoints=pb.ListEndpoints(topic=topic, everything=True))
        frame.close_fds()
        endpoints = [endpoint_from_wire(one) for one in reply.endpoints.endpoints]
        return holders(found[0], endpoints, few) if found else []

    def add_listener(self, callback: Callable[[Event], None]) -> None:
        """Call `callback(event)` for every event from now on, on a thread of the session's own, in order.

        The callback may use the session. One that is slow delays the others, and loses events after a while (MISSED).
        Ask for the present state after adding the listener: an event may repeat what that says, but nothing is missed.
        Raises NoResources.
        """
        from spindle.proto import attach_pb2 as pb

        self._channel.add_listener(callback)
        if not self._watching:
            self._watching = True
            self._ask(watch=pb.Watch())

    # --- ending

    @property
    def end_error(self) -> SpindleError | None:
        """Why the session ended: what the node said last, or that its connection ended. None while it works."""
        return self._channel.end_error

    @property
    def gone(self) -> bool:
        """True once the node has gone or the session is closed."""
        return self._channel.ended

    def close(self) -> None:
        """Give back all writers and readers and detach; an embedded node of this session leaves. Idempotent."""
        self._finalizer()
        self._engine = self.idle_links = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ended" if self.gone else "embedded" if self.embedded else "attached"
        return f"<Session of {self.name!r} with node {self.node_id}, domain {self.domain_id}, {state}>"

    def _ask(self, **body: object) -> pb.Reply:
        reply, frame = self._channel.request(**body)
        frame.close_fds()
        return reply

    def _close_port(self, port: int) -> None:
        from spindle.proto import attach_pb2 as pb

        if self._channel.remove_port(port) and not self._channel.ended:
            try:
                self._ask(close_port=pb.ClosePort(port=port))
            except SpindleError:
                if not self._channel.ended:  # a node that is gone has closed everything itself
                    raise


@contextlib.contextmanager
def told_what_ran_out(what: str) -> Iterator[None]:
    """Reports a shortage in this process as a node of the same host would report its own."""
    try:
        yield
    except (OSError, MemoryError) as error:
        short = None if isinstance(error, SpindleError) else shortage(error, what)
        if short is None:
            raise
        raise short from error


class Descriptor:
    """A descriptor that is closed when nobody holds this object any more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def copy(self) -> int:
        """A duplicate, which the caller owns. Raises OSError."""
        return os.dup(self._fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_fd"):  # else making it was interrupted
            close(self._fd)


def taken(frame: Frame, count: int) -> Loose:
    """The descriptors of an answer, so many as there must be. Raises WireError."""
    from spindle_core.ends import Loose

    if frame.lacks_fds:
        raise no_room("the node's answer came with descriptors")
    if len(frame.fds) != count:
        found = len(frame.fds)
        frame.close_fds()
        raise WireError(f"the node sent {found} descriptors where {count} belong")
    loose = Loose()
    loose.take_over(frame)
    return loose


def _end(channel: Channel, on_close: Callable[[], None] | None) -> None:
    channel.close()
    if on_close is not None:
        on_close()
