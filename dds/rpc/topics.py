"""The two topics of a service, and what a client or server opens on them.

Topics <service>_Request and <service>_Reply, as DDS-RPC names them. They are atomic, or logged for the requests of an
ordered service that is to survive the death of all nodes.

Readers of plain services keep the last samples only, so many that nothing is skipped: a program that hangs is overtaken
in the end, and notices; it doesn't hold up the others. Servers of ordered services keep all: none may miss a call.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from dds.entity import Entity, Participant, enabled
from dds.pub import DataWriter, Publisher
from dds.qos import Policy, Qos
from dds.rpc.messages import Announcement, Reply, Request
from dds.sub import DataReader, Subscriber
from dds.topic import Topic

T = TypeVar("T")

EVERYTHING = 1 << 30  # more samples than any log has room for
SERVICE_NAME_MAX = 200  # bytes


@dataclasses.dataclass(frozen=True)
class ServiceTopics:
    """The topics of one service in one participant.

    ordered   every server carries out every call
    logged    ... and those of before, when it starts
    """

    requests: Topic[Request]
    replies: Topic[Reply]
    ordered: bool

    @classmethod
    def open(cls, participant: Participant, service: str, ordered: bool, logged: bool, size_max: int) -> ServiceTopics:
        """Raises DDSException as making a Topic does, also if the group has the service with another order."""
        if not service or len(service.encode()) > SERVICE_NAME_MAX:
            raise ValueError(f"the name of a service has 1 to {SERVICE_NAME_MAX} bytes, not {service!r}")
        durable = Policy.Durability.Persistent if logged else Policy.Durability.Volatile
        request_qos = Qos(Policy.Reliability.Reliable(_LONG), durable)
        reply_qos = Qos(Policy.Reliability.Reliable(_LONG), Policy.Durability.Volatile)
        return cls(enabled(Topic(participant, f"{service}_Request", Request, request_qos, size_max=size_max)),
                   enabled(Topic(participant, f"{service}_Reply", Reply, reply_qos, size_max=size_max)), ordered)

    def writer_of_replies(self, server: Announcement, blocking_ns: int) -> DataWriter[Reply]:
        return _writer(self.replies, _writer_qos(server, blocking_ns))

    def reader_of_requests(self, server: Announcement) -> DataReader[Request]:
        qos = _KEEPS_ALL if self.ordered else _HOLDS_NOBODY_UP
        return _reader(self.requests, qos + Qos(Policy.Userdata(server.encode())))

    def writer_of_requests(self, client: Announcement, blocking_ns: int) -> DataWriter[Request]:
        return _writer(self.requests, _writer_qos(client, blocking_ns))

    def reader_of_replies(self, client: Announcement) -> DataReader[Reply]:
        return _reader(self.replies, _HOLDS_NOBODY_UP + Qos(Policy.Userdata(client.encode())))


_LONG = 10_000_000_000
_KEEPS_ALL = Qos(Policy.History.KeepAll)
_HOLDS_NOBODY_UP = Qos(Policy.History.KeepLast(EVERYTHING))


def _writer_qos(announcement: Announcement, blocking_ns: int) -> Qos:
    return Qos(Policy.Reliability.Reliable(blocking_ns), Policy.Userdata(announcement.encode()))


def _writer(topic: Topic[T], qos: Qos) -> DataWriter[T]:
    return DataWriter(enabled(Publisher(topic.participant)), topic, qos)


def _reader(topic: Topic[T], qos: Qos) -> DataReader[T]:
    reader = DataReader(enabled(Subscriber(topic.participant)), topic, qos)
    reader.read_own_writes = False  # whoever reads here is woken for each
    return reader


def close_ends(*ends: Entity) -> None:
    """Close readers and writers with their subscribers and publishers; whatever is closed already stays so."""
    for one in ends:
        one.close()
        if one._parent is not None:
            one._parent.close()


__all__ = ["ServiceTopics", "close_ends"]
