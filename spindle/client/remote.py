"""attach_remote(): a session with a node on another host, for applications on hosts that have none.

Why it looks like any other session: readers take from logs and writers put into inboxes in this process's memory, so
all that is built on sessions works; a connection to a node, and to the next one when that is gone, moves what is there.

What it promises: `docs/protocol.md`, "External clients". In short: each message of a writer is in the topic's order
once, in the order of writing, whatever nodes die, as long as a member of the topic survives (or, if it is logged,
its journals); readers go on where they stood.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spindle.client.channel import whole_or_closed
from spindle.client.nodes import NodeAddresses, nodes_wanted
from spindle.client.remote_channel import RemoteChannel
from spindle.client.remote_ports import RemoteReader, RemoteWriter
from spindle.client.session import ReaderHandle, Session, WriterHandle, _end, told_what_ran_out
from spindle.errors import ConfigError
from spindle.group.endpoints import RELAY_SHIFT
from spindle.group.leases import Lease
from spindle.group.position import Position
from spindle.group.topics import TopicInfo, TopicSpec

if TYPE_CHECKING:
    from spindle_core.counters import Counters


def attach_remote(nodes: Sequence[str] | str | NodeAddresses | None = None, domain_id: int = 0, *, name: str = "",
                  timeout_s: float = 5.0, patience_s: float | None = 0.0,
                  certificate: str | os.PathLike[str] | None = None, key: str | os.PathLike[str] | None = None,
                  authority: str | os.PathLike[str] | None = None, secret: str | os.PathLike[str] | None = None,
                  plain: bool | None = None) -> Session:
    """A session with the first of these nodes, in their order, that serves; later with others.

    nodes: "host:port", ...; None = as environment or client file say, see `spindle.client.nodes`; so are the keys.
    timeout_s: for the first node to answer.
    patience_s: how long nodes are looked for when the present one has gone and none of the others serves; None = as
        long as it takes, 0 = each is tried once. Until then calls wait.
    Raises NoDaemon, AccessDenied, ProtocolMismatch, ConfigError, TimeoutError.
    """
    if isinstance(nodes, NodeAddresses):
        wanted: NodeAddresses | None = nodes
    else:
        wanted = nodes_wanted(nodes, certificate=certificate, key=key, authority=authority, secret=secret, plain=plain)
    if wanted is None:
        raise ConfigError("no node is named: give nodes, or $SPINDLE_NODES")
    name = name or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    channel = RemoteChannel(wanted, domain_id, name[:128], patience_s)
    channel.start(timeout_s)
    return RemoteSession(channel, name)


class RemoteSession(Session):
    """An attachment to a node of another host; see `Session`. `node_id` and `group_id` are the present node's."""

    _channel: RemoteChannel  # type: ignore[assignment]

    def __init__(self, channel: RemoteChannel, name: str) -> None:
        self._channel = channel
        self.domain_id = channel.domain_id
        self.embedded = False
        self.name = name
        self._watching = False
        self._declared: dict[str, TopicSpec] = {}  # by name, as agreed
        self._wanted: dict[str, TopicSpec] = {}  # the same, as this program has said it
        self._finalizer = weakref.finalize(self, _end, channel, None)  # type: ignore[arg-type]

    @property
    def node_id(self) -> int:  # type: ignore[override]
        return self._channel.node_id

    @property
    def node_pid(self) -> int:  # type: ignore[override]
        """Of the node, on its own host."""
        return self._channel.node_pid

    @property
    def group_id(self) -> int:  # type: ignore[override]
        return self._channel.group_id

    @property
    def address(self) -> str:
        """host:port of the present node."""
        return self._channel.address

    @property
    def beside_node(self) -> bool:
        return False

    @property
    def awaits(self) -> str:
        """As Session.awaits."""
        return self._channel.awaits

    def open_writer(self, topic: str, *, slots: int = 0, endpoint: bytes = b"", guid: bytes = b"",
                    keep_unacknowledged: bool = False, farewell: int = 0, lease: Lease | None = None,
                    type_: bytes = b"") -> WriterHandle:
        """As Session.open_writer. Slots are always kept until their messages are delivered everywhere."""
        with whole_or_closed(), told_what_ran_out(f"a writer of topic {topic!r}"):
            writer = RemoteWriter(self._channel.bell, self._topic(topic), slots, endpoint, guid, farewell, lease,
                                  type_, self._channel._changed)
            self._channel.open_writer(writer)
            return RemoteWriterHandle(self, writer)

    def open_reader(self, topic: str, *, keep_all: bool, from_history: bool, start_index: int = -1,
                    after: Position | None = None, earlier: Iterable[Position] = (), endpoint: bytes = b"",
                    guid: bytes = b"") -> ReaderHandle:
        """As Session.open_reader."""
        from spindle.group.codec import position_to_wire
        from spindle.proto import attach_pb2 as pb

        with whole_or_closed(), told_what_ran_out(f"a reader of topic {topic!r}"):
            reader = RemoteReader(self._channel.bell, self._topic(topic), keep_all, endpoint, guid)
            info = self._channel.open_reader(reader, pb.OpenReader(
                topic=topic, keep_all=keep_all, from_history=from_history, start_index=start_index, endpoint=endpoint,
                guid=guid, after=map(position_to_wire, [] if after is None else [after, *earlier])))
            return RemoteReaderHandle(self, reader, info)

    def announce(self, guid: bytes, kind: int, topic: str = "", endpoint: bytes = b"") -> None:
        """As Session.announce."""
        from spindle.proto import attach_pb2 as pb

        self._channel.notices.announce(pb.Announce(guid=guid, kind=kind, topic=topic, endpoint=endpoint))

    def withdraw(self, guid: bytes) -> None:
        """As Session.withdraw."""
        self._channel.notices.withdraw(guid)

    def present_guid(self, guid: bytes) -> bytes:
        """As Session.present_guid."""
        return self._channel.notices.present(guid)

    def _topic(self, name: str) -> TopicInfo:
        from spindle.errors import TopicUnknown

        for one in self._list_topics(name):
            if one.spec.name == name:  # an older node doesn't look at the name and lists all
                if name in self._wanted:  # somebody may have declared it anew
                    one.spec.check_same(self._wanted[name])
                return one
        if name in self._declared:  # another group, that of a restart
            return self.declare_topic(self._declared[name])
        raise TopicUnknown(f"topic {name!r} was not declared in domain {self.domain_id}: declare it first")

    def counters(self) -> Counters:
        """The node's counters; each snapshot() asks it."""
        return RemoteCounters(self)

    def __repr__(self) -> str:
        state = "ended" if self.gone else "remote"
        return (f"<Session of {self.name!r} with node {self.node_id} at {self.address}, domain {self.domain_id}, "
                f"{state}>")


class RemoteCounters:
    """What can be had of a node's counters over a network."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    def snapshot(self) -> dict[str, int]:
        """As Counters.snapshot."""
        found: dict[str, int] = self._session.status()["counters"]
        return found


class RemoteWriterHandle(WriterHandle):
    """A writer of a RemoteSession."""

    def __init__(self, session: RemoteSession, writer: RemoteWriter) -> None:
        self.session = session
        self.inbox = writer.inbox
        self.closed = False
        self._writer = writer
        self._channel = session._channel

    @property
    def port(self) -> int:  # type: ignore[override]
        return self._writer.port

    @property
    def topic(self) -> TopicInfo:  # type: ignore[override]
        """The agreed topic when the present node opened it."""
        return self._writer.topic

    @property
    def writer_id(self) -> int:  # type: ignore[override]
        """At the present node."""
        return self._writer.writer_id

    @property
    def relay(self) -> int:  # type: ignore[override]
        return self._writer.identity >> RELAY_SHIFT

    def give_sign_of_life(self) -> None:
        """As WriterHandle.give_sign_of_life; travels to the present node, if there is one."""
        self.inbox.give_sign_of_life()
        self._channel.bell.ring()

    def change(self, endpoint: bytes, farewell: int) -> None:
        """As WriterHandle.change."""
        self._channel.notices.change_writer(self._writer, endpoint, farewell)

    def close(self) -> None:
        """As WriterHandle.close; waits a moment until what was committed is delivered everywhere."""
        if not self.closed:
            self.closed = True
            self.inbox.close()
            self._channel.close_writer(self._writer)


class RemoteReaderHandle(ReaderHandle):
    """A reader of a RemoteSession."""

    def __init__(self, session: RemoteSession, reader: RemoteReader, topic: TopicInfo) -> None:
        assert reader.reader is not None
        self.session = session
        self.topic = topic
        self.log = reader.reader
        self.closed = False
        self._reader = reader
        self._channel = session._channel

    @property
    def port(self) -> int:  # type: ignore[override]
        return self._reader.port

    @property
    def start(self) -> Position:  # type: ignore[override]
        return self._reader.start

    @property
    def continued(self) -> bool:  # type: ignore[override]
        """Nothing is missing before what the present node brings."""
        return self._reader.continued

    @property
    def gap_count(self) -> int:  # type: ignore[override]
        """How often something may be missing since it was opened."""
        return self._reader.gap_count

    @property
    def rewind_count(self) -> int:  # type: ignore[override]
        """How often it has had messages that the next node's order doesn't have."""
        return self._reader.rewind_count

    @property
    def ends(self) -> tuple[Position, ...]:  # type: ignore[override]
        return self._reader.ends

    @property
    def types(self) -> tuple[bytes, ...]:  # type: ignore[override]
        """As the present node has said when the reader was opened there."""
        return self._reader.types

    def change(self, endpoint: bytes) -> None:
        """As ReaderHandle.change."""
        self._channel.notices.change_reader(self._reader, endpoint)

    def close(self) -> None:
        """As ReaderHandle.close."""
        if not self.closed:
            self.closed = True
            self.log.close()
            self._channel.close_reader(self._reader)


__all__ = ["RemoteSession", "attach_remote"]
