"""Types that are found and built at run time: what programs in the group announce, as Python classes.

    datatype, others = get_types_for_typeid(participant, endpoint.type_id, duration(seconds=1))
    reader = DataReader(participant, Topic(participant, endpoint.topic_name, datatype))

IDL types become dataclasses derived from IdlStruct or IdlUnion, and are the same to everybody as the originals: their
identifiers are equal. NumPy records become dtypes, protobuf messages message classes (`get_types_for_topic`).

Rules: what another program announces is checked before a class is made of it (`dds.idl.typeobjects`,
`dds.messages.announced`). The same description gives the same class each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from dds.entity import Participant
from dds.exceptions import DDSException, DDSTimeout
from dds.idl.typeobjects import classes_of, identifier_bytes
from dds.messages import announced
from dds.messages.announced import AnnouncedType, dtype_of, message_class_of
from dds.messages.order_groups import channel_in
from dds.waiting.wake import Deadline, span_text
from spindle.errors import SpindleError
from spindle.locks import Condition

if TYPE_CHECKING:
    from cyclonedds_idl._typesupport.DDS.XTypes import TypeIdentifier

    from spindle.client import Event, Session
    from spindle.group.endpoints import Endpoint
    from spindle.group.schemas import MessageSchema


@dataclasses.dataclass(frozen=True)
class TopicType:
    """A type that readers and writers of a topic have.

    name       in the group
    data_type  for Topic(...): an IDL class, numpy.dtype or protobuf message class; None if it can't be had here
    keys       for Topic(..., keys=)
    reason     why it can't be had; empty otherwise
    announced  as it was announced
    endpoints  how many readers and writers have it; 0: it is of what the topic keeps, and its writers have gone
    """

    name: str
    data_type: Any
    keys: tuple[str, ...]
    reason: str
    announced: AnnouncedType
    endpoints: int

    @property
    def schema(self) -> MessageSchema:
        """How other tools are to decode the payloads, in the terms of MCAP and Foxglove. Raises ValueError if that
        can't be said."""
        from dds.codecs.schemas import schema_of

        if self.data_type is None:
            raise ValueError(f"{self.name}: {self.reason}")
        return schema_of(self.data_type)


def get_types_for_typeid(participant: Participant, type_id: TypeIdentifier, timeout: int
                         ) -> tuple[type[Any], dict[str, Any]]:
    """The class for a type identifier, and by name all struct, union, enum, bit mask and alias types in it.

    Waits up to `timeout` ns until a reader or writer of the group announces the type, or the participant's node keeps
    samples of it in a topic that it is a member of, whose writers may have gone. Raises DDSTimeout if neither comes,
    DDSException if the announced description is none, or was too large to be announced, TypeError for another type_id.
    """
    if not isinstance(participant, Participant):
        raise TypeError(f"a DomainParticipant is asked, not {participant!r}")
    identifier = identifier_bytes(type_id)
    deadline = Deadline(timeout)
    news = _News.of(participant.session)
    left_out = 0
    while True:
        seen = news.count
        with participant._runtime.asking("looking for a type"):
            endpoints = participant.session.endpoints("")
            kept = [said for info in participant.session.topics()
                    if info.spec.level.keeps_history and participant.session.node_id in info.members
                    for said in participant.session.types(info.spec.name)]
        for one in [*_announced(endpoints), *(announced.decode(said)[1] for said in kept)]:
            if one.identifier == identifier and one.kind == "idl":
                left_out = one.left_out
                if one.description:
                    return _classes(one)
        if not news.wait(seen, deadline.left_s()):
            break
    if left_out:
        raise DDSException(DDSException.DDS_RETCODE_OUT_OF_RESOURCES, _too_large(left_out))
    raise DDSTimeout(f"no reader or writer in the group announced the type {identifier.hex()} within "
                     f"{span_text(timeout or 0)}")


async def async_get_types_for_typeid(participant: Participant, type_id: TypeIdentifier, timeout: int
                                     ) -> tuple[type[Any], dict[str, Any]]:
    """As get_types_for_typeid(), while the event loop goes on."""
    import asyncio

    return await asyncio.to_thread(get_types_for_typeid, participant, type_id, timeout)


def get_types_for_topic(participant: Participant, topic_name: str) -> list[TopicType]:
    """The types that readers and writers of a topic have now, that of most of them first; behind these, types of what
    the topic keeps, whose writers have gone, the newest first. [] if nobody says any.

    If nobody has the topic open who says its type, and it keeps history, the participant's node becomes a member of it
    for a moment, to look what that is of.
    """
    with participant._runtime.asking(f"asking for the types of topic {topic_name!r}"):
        return types_of(participant.session, topic_name, look_inside=True)


def types_of(session: Session, topic_name: str, within: str = "", look_inside: bool = False) -> list[TopicType]:
    """As get_types_for_topic(), for a session of one's own. `within`: a topic in the order group `topic_name`.
    `look_inside`: the node may become a member of the topic for it."""
    counts: dict[tuple[str, bytes], list[AnnouncedType]] = {}
    gone: dict[tuple[str, bytes], AnnouncedType] = {}
    endpoints = session.endpoints(topic_name)
    if within:
        channels = [channel_in(one.endpoint) for one in endpoints]
        endpoints = [one for one, channel in zip(endpoints, channels, strict=True)
                     if channel is not None and channel.topic == within]
    for one in _announced(endpoints):
        counts.setdefault((one.kind, one.identifier), []).append(one)
    for one in reversed(list(_kept(session, topic_name, within, look_inside and not counts))):
        counts.setdefault((one.kind, one.identifier), [])
        gone.setdefault((one.kind, one.identifier), one)
    found = []
    for key, same in sorted(counts.items(), key=lambda one: len(one[1]), reverse=True):
        best = max([*same, *([gone[key]] if key in gone else [])], key=lambda one: len(one.description))
        data_type, reason = None, ""
        try:
            data_type = data_type_of(best)
        except ValueError as error:
            reason = str(error)
        found.append(TopicType(best.name, data_type, best.keys, reason, best, len(same)))
    return found


def _kept(session: Session, topic: str, within: str, look_inside: bool) -> Iterator[AnnouncedType]:
    """Types of what the topic keeps at the session's node."""
    for one in _said_inside(session, topic, look_inside):
        channel = channel_in(one)
        type_ = announced.decode(one)[1]
        if type_.kind and (channel.topic if channel is not None else "") == within:
            yield type_


def _said_inside(session: Session, topic: str, look_inside: bool) -> tuple[bytes, ...]:
    said = session.types(topic)
    if not said and look_inside and any(
            one.spec.name == topic and one.spec.level.keeps_history for one in session.topics()):
        with contextlib.suppress(SpindleError), session.open_reader(
                topic, keep_all=False, from_history=False) as reader:
            said = tuple(reader.types)
    return said


def topics_kept(session: Session, order: str, look_inside: bool = False) -> set[str]:
    """The topics in the order group `order` of which samples are kept, whether somebody has them open or not.
    `look_inside`: the node may become a member of the group for it."""
    return {channel.topic for one in _said_inside(session, order, look_inside)
            if (channel := channel_in(one)) is not None}


def data_type_of(one: AnnouncedType) -> Any:
    """What a Topic is made with for an announced type. Raises ValueError."""
    if not one.description:
        raise ValueError(_too_large(one.left_out))
    if one.kind == "idl":
        return classes_of(one.identifier, one.description)[0]
    if one.kind == "numpy":
        return dtype_of(one)
    if one.kind == "protobuf":
        return message_class_of(one)
    raise ValueError(f"a type of the unknown kind {one.kind!r}")


def _classes(one: AnnouncedType) -> tuple[type[Any], dict[str, Any]]:
    try:
        return classes_of(one.identifier, one.description)
    except ValueError as error:
        raise DDSException(DDSException.DDS_RETCODE_ERROR, f"the type was announced, but {error}") from error


class _News:
    """Counts what a session tells of endpoints, for whoever waits for one."""

    _all: ClassVar[weakref.WeakKeyDictionary[Session, _News]] = weakref.WeakKeyDictionary()
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.count = 0
        self._changed = Condition()

    @classmethod
    def of(cls, session: Session) -> _News:
        with cls._lock:
            news = cls._all.get(session)
            if news is None:
                news = cls._all[session] = cls()
                session.add_listener(news._heard)
            return news

    def _heard(self, event: Event) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout_s: float | None) -> bool:
        """True once there is more than the first `seen`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count != seen, timeout_s)


def _too_large(left_out: int) -> str:
    return (f"its description, {left_out} bytes, was too large to be announced: an announcement has room for 4096 "
            "bytes, Qos included. Make the type available to this program as a class")


def _announced(endpoints: list[Endpoint]) -> Iterator[AnnouncedType]:
    for one in endpoints:
        type_ = announced.decode(one.endpoint)[1]
        if type_.kind:
            yield type_


__all__ = ["TopicType", "async_get_types_for_typeid", "get_types_for_topic", "get_types_for_typeid", "types_of"]
