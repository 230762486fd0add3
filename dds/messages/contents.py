"""What is in messages, for tools that look at topics and not at instances: recorders, bridges, viewers.

A reader of the DDS API knows one topic, its instances and which writer owns them. A tool wants all that is said in a
node's topic, in its order: samples as their writers encoded them, ends of instances and of writers, each with its place
in the order, also out of packets (coherent sets, order groups).

Rules: a set counts where its last packet is; one that never becomes whole is left out. What a message says is believed
as little as by any reader: nonsense is counted and left out. What is kept aside for sets is bounded; beyond it the
set that began first is given up.
"""

from __future__ import annotations

import dataclasses

from dds.messages import packets
from dds.messages.inline_qos import NOTHING, InlineQos, split
from dds.messages.operations import (
    ANNOUNCES_QOS,
    DEPARTS,
    DISPOSES,
    FAREWELL,
    LAPSES,
    MISSES_DEADLINE,
    REVIVES,
    TIME,
    UNREGISTERS,
    WRITES,
    is_packet,
)

# What was said.
SAMPLE = "sample"
DISPOSED = "disposed"  # of an instance; the payload is a sample with its key
UNREGISTERED = "unregistered"  # by its writer; likewise
CLOSED = "closed"  # a writer has ended, and has unregistered all that it had; it has no payload
CLOSED_DISPOSED = "closed and disposed"  # the same, and has disposed of it
GONE = "gone"  # a node has ended, with all its writers
ENDS = (CLOSED, CLOSED_DISPOSED, GONE)

_BITS = DISPOSES | UNREGISTERS | WRITES | FAREWELL | DEPARTS | ANNOUNCES_QOS


@dataclasses.dataclass(frozen=True)
class Said:
    """One thing that a writer, or a node, has said.

    kind       SAMPLE and so on
    payload    of samples what their codec made of them; of DISPOSED and UNREGISTERED a sample with the key
    writer     publication handle; of GONE a node's, whose writers have it in their upper bits
    channel    number of the topic in its order group; 0 outside of groups
    mark       of its type in its order group
    source_ns  when it was written, UTC, as its writer says; 0: it doesn't
    inline     what the writer's Qos says to readers
    in_set     of a coherent set: all that came with it from the same message are that set
    """

    kind: str
    payload: bytes
    writer: int
    channel: int
    mark: int
    source_ns: int
    inline: InlineQos
    in_set: bool = False


class Contents:
    """Of the messages of one node's topic, in their order. refused: how many were nonsense."""

    def __init__(self) -> None:
        self.refused = 0
        self._open: dict[int, _Set] = {}  # by carrier, in the order of their beginnings
        self._aside = 0

    def take(self, payload: packets.Payload, info: packets.Message) -> list[Said]:
        """What the next message says. (Of a set that isn't complete yet, nothing.)"""
        payload = bytes(payload)  # no copy unless it is a large one
        tag, carrier = info.tag, packets.carrier_of(info)
        if tag == 0:
            return [Said(SAMPLE, payload, carrier, 0, 0, info.source_timestamp, NOTHING)]
        try:
            if is_packet(tag):
                return self._packet(bytes(packets.opened(tag, payload)), carrier)
            return _said(payload, tag, carrier, 0, 0, info.source_timestamp)
        except ValueError:
            self.refused += 1
            return []

    def _packet(self, payload: bytes, carrier: int) -> list[Said]:
        number, place, count = packets.header(payload)
        members = list(packets.members(payload, carrier))
        in_set = count > 1 or len(members) > 1
        found = [dataclasses.replace(one, in_set=in_set) if in_set else one for channel, mark, member in members
                 for one in _said(bytes(member.payload), member.tag, member.handle, channel, mark,
                                  member.source_timestamp)]
        if count == 1:
            return found
        current = self._open.get(carrier)
        if current is not None and current.number == number and place < current.following:
            return []  # sent again
        if place == 0:
            self._forget(carrier)
            current = self._open[carrier] = _Set(number)
        if current is None or (current.number, current.following) != (number, place):
            self._forget(carrier)
            return []  # we were not there when it began
        current.following += 1
        current.said += found
        current.size += len(payload)
        self._aside += len(payload)
        if current.following == count:
            self._forget(carrier)
            return current.said
        while self._aside > packets.ASIDE_MAX:
            self._forget(next(iter(self._open)))
        return []

    def _forget(self, carrier: int) -> None:
        gone = self._open.pop(carrier, None)
        if gone is not None:
            self._aside -= gone.size


class _Set:
    def __init__(self, number: int) -> None:
        self.number, self.following, self.size = number, 0, 0
        self.said: list[Said] = []


def _said(payload: bytes, tag: int, writer: int, channel: int, mark: int, source_ns: int) -> list[Said]:
    """What a message with this tag says; several things of one that writes and disposes. ValueError for nonsense."""
    inline = NOTHING
    if tag in (TIME, REVIVES) or tag & LAPSES or tag & MISSES_DEADLINE:
        return []  # about time, which a replay has anew
    if tag & ~_BITS:
        raise ValueError(f"a message with the unknown tag {tag}")
    if tag & DEPARTS:
        return [Said(GONE, b"", writer, channel, mark, source_ns, NOTHING)]
    if tag & FAREWELL:
        return [Said(CLOSED_DISPOSED if tag & DISPOSES else CLOSED, b"", writer, channel, mark, source_ns, NOTHING)]
    if tag & ANNOUNCES_QOS:
        payload, inline = split(payload)
    found = []
    if tag & WRITES or not tag & (DISPOSES | UNREGISTERS):
        found.append(Said(SAMPLE, payload, writer, channel, mark, source_ns, inline))
    if tag & DISPOSES:
        found.append(Said(DISPOSED, payload, writer, channel, mark, source_ns, inline))
    if tag & UNREGISTERS:
        found.append(Said(UNREGISTERED, payload, writer, channel, mark, source_ns, inline))
    return found


def node_of(writer: int) -> int:
    """The node of a publication handle."""
    return writer >> 16 & 0xFFFF


__all__ = ["CLOSED", "CLOSED_DISPOSED", "DISPOSED", "ENDS", "GONE", "SAMPLE", "UNREGISTERED", "Contents", "Said",
           "node_of"]
