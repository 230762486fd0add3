"""Samples of the builtin topics (`dds.builtin`): what is known of participants, topics, readers and writers.

Imported when it is needed: it brings `uuid` along.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dds.internal import SampleInfo
from dds.matching.announcing import Remote, topic_key
from dds.messages.operations import handle_of
from dds.qos import Qos

if TYPE_CHECKING:
    from cyclonedds_idl._typesupport.DDS.XTypes import TypeIdentifier

    from dds.messages.announced import AnnouncedType


class _Sample:
    """What the samples have in common: those that a builtin reader gives have this beside their fields."""

    sample_info: SampleInfo


@dataclasses.dataclass
class DcpsParticipant(_Sample):
    """A participant somewhere in the group.

    key  its guid
    qos  what it announces: user data, name and properties
    node_id, app_name, pid  where it lives: node, application and process (0 = not visible)
    """

    key: uuid.UUID
    qos: Qos
    node_id: int = 0
    app_name: str = ""
    pid: int = 0


@dataclasses.dataclass
class DcpsTopic(_Sample):
    """A topic, as at least one program has it. `key` is the same for all that have it with this type and Qos."""

    key: uuid.UUID
    topic_name: str
    type_name: str
    qos: Qos
    type_id: TypeIdentifier | None = None


@dataclasses.dataclass
class DcpsEndpoint(_Sample):
    """A reader or writer somewhere in the group.

    key, participant_key         its own guid and its participant's
    participant_instance_handle  of its participant, as sample_info.instance_handle of a DcpsParticipant
    topic_name, type_name, qos
    type_id                      the XTypes TypeIdentifier of an IDL type; None for others
    node_id, app_name, pid       where it lives: node, application and process (0 = not visible)
    """

    key: uuid.UUID
    participant_key: uuid.UUID
    participant_instance_handle: int
    topic_name: str
    type_name: str
    qos: Qos
    type_id: TypeIdentifier | None = None
    node_id: int = 0
    app_name: str = ""
    pid: int = 0


def participant_of(remote: Remote) -> DcpsParticipant:
    endpoint = remote.endpoint
    return DcpsParticipant(_uuid(remote.guid), remote.qos, endpoint.node_id, endpoint.app_name, endpoint.pid)


def topic_of(remote: Remote) -> DcpsTopic:
    return DcpsTopic(_uuid(topic_key(remote)), remote.topic_name, remote.type_name, remote.qos, type_id_of(remote.type))


def endpoint_of(remote: Remote) -> DcpsEndpoint:
    endpoint = remote.endpoint
    participant = _uuid(endpoint.owner)
    return DcpsEndpoint(
        key=_uuid(remote.guid), participant_key=participant, participant_instance_handle=handle_of(participant),
        topic_name=remote.topic_name, type_name=remote.type_name, qos=remote.qos, node_id=endpoint.node_id,
        app_name=endpoint.app_name, pid=endpoint.pid, type_id=type_id_of(remote.type))


def type_id_of(announced: AnnouncedType) -> TypeIdentifier | None:
    """The TypeIdentifier of an announced type, as cls.__idl__.get_type_id() gives it; None if it is no IDL type."""
    from dds.idl.typeobjects import identifier_of

    if announced.kind != "idl":
        return None
    try:
        return identifier_of(announced.identifier)
    except ValueError:
        return None


def with_handle(remotes: Iterable[Remote], handle: int) -> DcpsEndpoint | None:
    """The endpoint with `handle` among `remotes`, or None."""
    return next((endpoint_of(one) for one in list(remotes) if one.handle == handle), None)


def _uuid(guid: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=guid.ljust(16, b"\0"))


NOWHERE = uuid.UUID(int=0)  # the participant of an endpoint of which only the key is known

__all__ = ["DcpsEndpoint", "DcpsParticipant", "DcpsTopic"]
