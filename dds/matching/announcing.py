"""What is announced of an entity, and what is understood of others' announcements.

Why the Qos travels: nodes know endpoints only as opaque bytes. Every reader, writer, topic and participant announces
its Qos there; each participant compares what is offered with what is requested for its own endpoints
(`dds.policy.policies`), so both ends come to the same result without asking each other.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING

from dds.internal import publication_handle
from dds.messages import announced
from dds.messages.order_groups import Channel, channel_in
from dds.policy.policies import DEFAULT
from dds.qos import Qos
from spindle.group.endpoints import ENDPOINT_BYTES_MAX, PARTICIPANT

if TYPE_CHECKING:
    from dds.codecs.types import Codec
    from dds.messages.announced import AnnouncedType
    from spindle.client import Endpoint

_DEFAULTS = DEFAULT.asdict()


def handle_of(guid: bytes) -> int:
    """A number for the entity with this guid, positive and below 2**63."""
    return int.from_bytes(guid[-8:], "big") & (1 << 63) - 1 or 1


def encode_qos(qos: Qos, type_name: str = "", revision: int = 0, channel: Channel | None = None,
               codec: Codec | None = None) -> bytes:
    """What is announced of an entity: its policies, without those that are as in DEFAULT; the type of its samples; how
    often it has changed what it says; in an order group, its topic; what others need to know of its type."""
    said: dict[str, object] = {
        "qos": {scope: one for scope, one in qos.asdict().items() if scope not in _DEFAULTS or one != _DEFAULTS[scope]}}
    if type_name:
        said["type"] = type_name
    if revision:
        said["revision"] = revision
    if channel is not None:
        said.update(channel.announced())
    if codec is not None:
        return announced.encode(said, codec, ENDPOINT_BYTES_MAX)
    return json.dumps(said, separators=(",", ":")).encode()


def encode_type(codec: Codec, channel: Channel | None = None) -> bytes:
    """What nodes keep with the samples of a writer, for those who read them when it has gone: an announcement without
    Qos, so it has room for larger types. Empty for types that say nothing (bytes)."""
    from spindle.group.types import TYPE_BYTES_MAX  # only writers of topics that keep history need it

    if not announced.type_of(codec).kind:
        return b""
    return announced.encode({"qos": {}, **({} if channel is None else channel.announced())}, codec, TYPE_BYTES_MAX,
                            with_schema=True)


def decode_type(said: bytes, channel: Channel | None = None) -> AnnouncedType | None:
    """A type that is kept in the topic, of samples of this channel; None if it is of another one's."""
    return announced.decode(said)[1] if channel_in(said) == channel else None


def _also_said(said: bytes) -> tuple[str, int]:
    """The name of its type, and the revision."""
    try:
        whole = json.loads(said)
        type_name, revision = whole.get("type", ""), whole.get("revision", 0)
        return (type_name, revision) if isinstance(type_name, str) and isinstance(revision, int) else ("", 0)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return "", 0


class Remote:
    """An endpoint, topic or participant somewhere in the group, perhaps our own.

    revision  how often it has changed what it says
    channel   its topic, in an order group
    type      of its samples, as far as it says
    """

    __slots__ = ("channel", "endpoint", "guid", "handle", "is_writer", "qos", "revision", "type", "type_name")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.guid = endpoint.guid
        self.is_writer = endpoint.is_writer
        if endpoint.is_writer:
            self.handle = publication_handle(endpoint.node_id, endpoint.writer_id, endpoint.relay)
        else:
            self.handle = handle_of(endpoint.guid)
        self.channel = channel_in(endpoint.endpoint)
        said, self.type = announced.decode(endpoint.endpoint)
        self.type_name, self.revision = _also_said(endpoint.endpoint)
        self.qos = said if endpoint.kind == PARTICIPANT else DEFAULT + said


    @property
    def topic_name(self) -> str:
        return self.endpoint.topic if self.channel is None else self.channel.topic


def topic_key(remote: Remote) -> bytes:
    """16 bytes for a topic with this name, type and Qos: programs that have it alike have one topic, as builtin readers
    see it."""
    said = json.dumps([remote.topic_name, remote.type_name, remote.qos.asdict()], sort_keys=True)
    return blake2b(said.encode(), digest_size=16).digest()


__all__ = ["Remote", "decode_type", "encode_qos", "encode_type", "handle_of", "topic_key"]
