"""Order groups: several topics in one order.

An order group is one topic of the node's; each DDS topic in it is a *channel* of that. So there is one sequence for all
of them, one level, one window and one size of slots, and the node's access rules are asked about the group's name.
The node knows nothing of channels: each message says which topics its samples are of (`dds.messages.packets`),
endpoints say in their announcement of which topic they are.

Rules: the first declaration of a group decides its level and sizes, as that of a topic does. A group is ordered, so it
is atomic at least. Samples of another type than the reader's don't reach it: a type is recognised by its mark.
Types that may change have one mark together, and settle the rest among themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from hashlib import blake2b
from typing import TYPE_CHECKING

from dds.exceptions import DDSException
from dds.messages import inline_qos, packets
from spindle.group.topics import EVOLVES, KIND_BYTES, SIZE_MAX_DEFAULT, SLOT_OF_TYPE_MAX

if TYPE_CHECKING:
    from dds.codecs.types import Codec
    from spindle.client import Endpoint, Session
    from spindle.group.topics import TopicInfo, TopicSpec

TYPE_NAME = "order group"  # of the node's topic
ROOM = packets.ROOM + inline_qos.ROOM  # bytes of a message beside the largest sample


@dataclasses.dataclass(frozen=True)
class Channel:
    """A topic in an order group: what its endpoints announce, and what its samples carry.

    type_name, type_hash  what all its types have in common: of those that may change, a kind and no name
    number  of the topic in its group, in samples
    mark    of its type, in samples
    """

    topic: str
    type_name: str
    type_hash: bytes

    @functools.cached_property
    def number(self) -> int:
        return int.from_bytes(blake2b(self.topic.encode(), digest_size=8).digest(), "little") or 1

    @functools.cached_property
    def mark(self) -> int:
        of = self.type_name.encode() + b"\0" + self.type_hash
        return int.from_bytes(blake2b(of, digest_size=4).digest(), "little")

    def announced(self) -> dict[str, str]:
        """As endpoints announce it."""
        return {"topic": self.topic, "type": self.type_name, "hash": self.type_hash.hex()}


def channel_of(name: str, codec: Codec) -> Channel:
    kind = codec.type_hash[:KIND_BYTES]
    return Channel(name, "", kind) if kind.startswith(EVOLVES) else Channel(name, codec.type_name, codec.type_hash)


def channel_in(announced: bytes) -> Channel | None:
    """The one that an endpoint announces with these bytes; None for endpoints outside of groups, and for nonsense."""
    try:
        said = json.loads(announced)
        if "topic" not in said:
            return None
        channel = Channel(str(said["topic"]), str(said["type"]), bytes.fromhex(said["hash"]))
        _ = channel.number, channel.mark  # UnicodeEncodeError for half a surrogate pair, which JSON can say
        return channel
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def is_group(spec: TopicSpec) -> bool:
    """True if the node's topic is an order group."""
    return spec.type_name == TYPE_NAME


def size_max_of(wanted: int, largest: int) -> int:
    """size_max of a group that is declared by a topic which wants this one, or has a type whose largest sample has so
    many bytes (0 = unknown); 0 = the node's default: a small type doesn't make a group small."""
    size_max = wanted + ROOM if wanted else largest + ROOM
    return size_max if wanted or SIZE_MAX_DEFAULT < size_max <= SLOT_OF_TYPE_MAX else 0


def check_alone(name: str, order: str, session: Session, known: list[TopicInfo]) -> None:
    """Raise DDSException (INCONSISTENT_POLICY) if a topic of this name is known to be in another order, or in none."""
    if order and any(one.spec.name == name and not is_group(one.spec) for one in known):
        raise DDSException(
            DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
            f"topic {name!r} exists outside of order group {order!r}: say order={order!r} in all programs, or in none. "
            f"If none has it open any more, `spindle topics {name} --delete` ends that")
    elsewhere = group_of(name, session, [one for one in known if one.spec.name != order])
    if elsewhere is not None:
        raise DDSException(
            DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
            f"topic {name!r} is in order group {elsewhere[0]!r}: say order={elsewhere[0]!r} in all programs")


def group_of(name: str, session: Session, known: list[TopicInfo]) -> tuple[str, Endpoint] | None:
    """The order group in which somebody has this topic open, and who; None if nobody has."""
    for one in known:
        if is_group(one.spec):
            for endpoint in session.endpoints(one.spec.name):
                channel = channel_in(endpoint.endpoint)
                if channel is not None and channel.topic == name:
                    return one.spec.name, endpoint
    return None


__all__ = ["ROOM", "TYPE_NAME", "Channel", "channel_in", "channel_of", "check_alone", "group_of", "is_group",
           "size_max_of"]
