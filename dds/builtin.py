"""Builtin topics: who is in the group, with which topics, readers and writers. DDS 1.4, 2.2.5.

    reader = BuiltinDataReader(participant, BuiltinTopicDcpsPublication)
    for writer in reader.take_iter(timeout=duration(seconds=1)):
        print(writer.topic_name, writer.qos)

Whatever there is in the group is an instance, which its `key` names: a sample when it is new to this reader, or says
something else than before (a Qos has changed), and its end, NOT_ALIVE_DISPOSED, when it has gone: closed, or with its
program or node. What a reader hears of is what the access rules of the group let its program see
(docs/configuration.md).

DataWriter.get_matched_subscription_data() and DataReader.get_matched_publication_data() give a `DcpsEndpoint`, too.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from dds.builtin_types import (
    NOWHERE,
    DcpsEndpoint,
    DcpsParticipant,
    DcpsTopic,
    endpoint_of,
    participant_of,
    topic_of,
)
from dds.entity import Participant, check_listener
from dds.exceptions import DDSException
from dds.listener import Listener
from dds.matching.announcing import encode_qos
from dds.matching.directory import PARTICIPANTS, READERS, TOPICS, WRITERS, Directory
from dds.matching.notices import NoticeLog
from dds.policy import policies
from dds.qos import DataReaderQos, Policy, Qos
from dds.readers.source import LogSource
from dds.sub import DataReader, Subscriber
from dds.topic import Topic
from dds.waiting import reaper
from dds.waiting.wake import Hub
from spindle.group.position import Position

if TYPE_CHECKING:
    from dds.codecs.types import KeyBytes
    from dds.matching.matching import Runtime
    from dds.readers.source import Log
    from spindle.client import Session

OWN_QOS = Qos(Policy.Reliability.Reliable(policies.BLOCKING_TIME_DEFAULT), Policy.Durability.TransientLocal,
              Policy.History.KeepLast(1))  # DDS 1.4, 2.2.5


class BuiltinTopic(Topic[Any]):
    """One of the four topics of this module. It belongs to no participant, and nobody writes to it."""

    is_builtin = True

    def __init__(self, name: str, data_type: type[Any], about: str) -> None:
        self._name = name
        self._own_qos = Qos()
        self.data_type = data_type
        self.about = about
        self._codec = _Samples(data_type)
        self._filter = None

    def __repr__(self) -> str:
        return f"<dds.builtin.BuiltinTopic {self._name}>"


class _Samples:
    """How samples of a builtin topic are made of what was announced (a Remote); in place of a Codec."""

    kind = "object"
    size_max: int | None = None
    encode_key = None

    def __init__(self, data_type: type[Any]) -> None:
        self.data_type = data_type
        self.type_name = data_type.__name__
        self.type_hash = b""
        self.key_of: Callable[[Any], Any] | None = operator.attrgetter("key")
        self.key_places: KeyBytes | None = None

    def key_sample(self, key: Any) -> Any:
        if self.data_type is DcpsParticipant:
            return DcpsParticipant(key, Qos())
        return DcpsTopic(key, "", "", Qos()) if self.data_type is DcpsTopic else DcpsEndpoint(
            key, NOWHERE, 0, "", "", Qos())

    def for_reader(self, seek: Callable[[], object] | None = None) -> _Samples:
        return self

    def encode(self, sample: Any) -> Any:
        raise TypeError("nobody writes to a builtin topic")

    def decode(self, remote: Any) -> Any:
        if self.data_type is DcpsParticipant:
            return participant_of(remote)
        return topic_of(remote) if self.data_type is DcpsTopic else endpoint_of(remote)

    decode_lasting = decode


BuiltinTopicDcpsParticipant = BuiltinTopic("DCPSParticipant", DcpsParticipant, PARTICIPANTS)
"""The participants of the group; samples are DcpsParticipant."""

BuiltinTopicDcpsTopic = BuiltinTopic("DCPSTopic", DcpsTopic, TOPICS)
"""The topics, as programs have made them: an instance for each name, type and Qos. Samples are DcpsTopic."""

BuiltinTopicDcpsPublication = BuiltinTopic("DCPSPublication", DcpsEndpoint, WRITERS)
"""The writers; samples are DcpsEndpoint."""

BuiltinTopicDcpsSubscription = BuiltinTopic("DCPSSubscription", DcpsEndpoint, READERS)
"""The readers; samples are DcpsEndpoint. A builtin reader is seen by those of its own participant only."""


class _Notices:
    """The news of a builtin reader as a log that outlives nodes."""

    start = Position(0, 0, 0)
    ends = ()
    continued = True

    def __init__(self, runtime: Runtime, log: NoticeLog) -> None:
        self._runtime = runtime
        self._notices = log
        self.log = cast("Log", log)  # of what takes messages, take_pairs() is all that is called

    @property
    def session(self) -> Session:
        return self._runtime.session

    def close(self) -> None:
        self._notices.close()


class BuiltinDataReader(DataReader[Any]):
    """Reads a builtin topic. Made, it has what there is in the group.

    subscriber_or_participant  where it belongs; in a participant it gets a subscriber of its own
    builtin_topic              one of the four of this module
    qos                        of a reader; what it doesn't say is reliable, transient-local, and the last sample
    Raises TypeError for wrong arguments, DDSException for a Qos that can't be honoured.
    """

    _has_factory = False  # enabled at once, like all that is builtin (DDS 1.4, 2.2.5)

    def __init__(self, subscriber_or_participant: Subscriber | Participant, builtin_topic: BuiltinTopic,
                 qos: Qos | None = None, listener: Listener | None = None) -> None:
        if not isinstance(subscriber_or_participant, (Subscriber, Participant)):
            raise TypeError("a BuiltinDataReader is made in a Subscriber or DomainParticipant, "
                            f"not in {subscriber_or_participant!r}")
        if not isinstance(builtin_topic, BuiltinTopic):
            raise TypeError(f"builtin_topic must be one of dds.builtin, not {builtin_topic!r}")
        own = policies.check("DataReader", qos, DataReaderQos)
        check_listener(listener)
        given = isinstance(subscriber_or_participant, Subscriber)
        subscriber = (subscriber_or_participant if isinstance(subscriber_or_participant, Subscriber)
                      else Subscriber(subscriber_or_participant))
        self._description = builtin_topic
        try:
            self._begin_builtin(subscriber, builtin_topic, own, listener, given)
        except BaseException:
            self._open = False
            if not given:
                subscriber.close()
            raise

    def _begin_builtin(self, subscriber: Subscriber, topic: BuiltinTopic, own: Qos, listener: Listener | None,
                       grouped: bool) -> None:
        self._lay_out(topic, grouped)
        self._enter(subscriber, own, listener)
        runtime = self._runtime
        self._go_by(policies.DEFAULT + OWN_QOS + own)
        log = NoticeLog(functools.partial(_is_over, runtime))
        source = LogSource(_Notices(runtime, log), weakref.ref(self), self._hub, runtime.attachment, topic.name)
        self._read_from(source, topic.name, None, None)
        self.read_own_writes = False
        self._closer = functools.partial(_close, self._ref, self._hub, log, runtime, runtime.directory)
        reaper.flush()  # what was forgotten has gone
        with runtime.asking(f"reading {topic.name}"):
            runtime.directory.subscribe(
                topic.about, log, self._ref, topic.name, encode_qos(self._qos, topic.typename))
        runtime.add_reader(self)
        self._is_made = True

    def _choose_way(self) -> None:
        self._fast = False  # its log has no memory that the core could take samples from

    def get_matched_publications(self) -> list[int]:
        """None: what is read here is no writer's."""
        self._check_open()
        return []

    matched_pub = property(get_matched_publications)

    def take_batch(self, N: int = 1024) -> Any:
        raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION, f"{self!r} has no batches; use take()")


def _is_over(runtime: Runtime) -> bool:
    return runtime.session.gone and not runtime.attachment.hopeful


def _close(ref: int, hub: Hub, log: NoticeLog, runtime: Runtime, directory: Directory) -> None:
    runtime.dispatcher.unwatch(ref, hub)
    directory.unsubscribe(log, ref)
    log.close()
    hub.woken()


__all__ = ["BuiltinDataReader", "BuiltinTopicDcpsParticipant", "BuiltinTopicDcpsPublication",
           "BuiltinTopicDcpsSubscription", "BuiltinTopicDcpsTopic", "DcpsEndpoint", "DcpsParticipant", "DcpsTopic"]
