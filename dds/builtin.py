"""What is known of endpoints. Builtin topics are not part of Spindle: a program asks instead of subscribing.

DataWriter.get_matched_subscription_data() and DataReader.get_matched_publication_data() give a `DcpsEndpoint`;
`participant.session` (topics(), endpoints(), view(), status()) tells about the rest of the group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from dds.qos import Qos

if TYPE_CHECKING:
    import uuid

    from cyclonedds_idl._typesupport.DDS.XTypes import TypeIdentifier

    from dds.announced import AnnouncedType
    from dds.matching import Remote
    from dds.topic import Topic


@dataclasses.dataclass
class DcpsEndpoint:
    """A reader or writer somewhere in the group.

    key, participant_key  its own guid and its participant's, as uuid.UUID
    topic_name, type_name, qos
    type_id    the XTypes TypeIdentifier of an IDL type; None for others, and for ends that say nothing of it
    node_id, app_name, pid  where it lives: node, application and process (0 = not visible)
    """

    key: uuid.UUID
    participant_key: uuid.UUID
    topic_name: str
    type_name: str
    qos: Qos
    type_id: TypeIdentifier | None = None
    node_id: int = 0
    app_name: str = ""
    pid: int = 0


def endpoint_of(remotes: Iterable[Remote], handle: int, topic: Topic[Any]) -> DcpsEndpoint | None:
    """The endpoint with `handle` among `remotes`, or None."""
    import uuid

    for one in list(remotes):
        if one.handle == handle:
            guid = one.guid.ljust(16, b"\0")
            return DcpsEndpoint(
                key=uuid.UUID(bytes=guid), participant_key=uuid.UUID(bytes=guid[:12] + b"\0\0\0\0"),
                topic_name=topic.name, type_name=one.type.name or topic.typename, qos=one.qos,
                type_id=type_id_of(one.type), node_id=one.endpoint.node_id, app_name=one.endpoint.app_name,
                pid=one.endpoint.pid)
    return None


def type_id_of(announced: AnnouncedType) -> TypeIdentifier | None:
    """The TypeIdentifier of an announced type, as cls.__idl__.get_type_id() gives it; None if it is no IDL type."""
    from dds.idl.typeobjects import identifier_of

    if announced.kind != "idl":
        return None
    try:
        return identifier_of(announced.identifier)
    except ValueError:
        return None


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"dds.builtin has no {name!r}: Spindle has no builtin topics. Ask participant.session "
                         "(topics(), endpoints(), view(), status()), or for a matched endpoint's data")


__all__ = ["DcpsEndpoint"]
