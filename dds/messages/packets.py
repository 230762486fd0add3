"""Packets: messages that hold several samples. Coherent sets travel in them, and all that an order group has.

A set counts at one place of the order: where its last packet is. Most sets are one packet, so no crash can tear them.
A larger one is sent as packets that follow each other in its writer's order; each says which set it is of, its place in
it, and how many there are. A reader keeps what it has of a set aside until the last packet comes, and forgets it if
that can't come any more: the writer has ended, or its node has, or something else comes from it first. It sees all of
that in the order, so all readers that were there from a set's beginning get it at the same place or not at all. Who has
not been there from the beginning doesn't get it.

A packet that is larger than its topic's slots is a large message, whose bytes go beside the order like any other's. A
set in which a sample fits no slot, or of more than SET_BYTES_MAX, is one packet, and can't be torn.

Each sample in a packet has its own tag and source timestamp, and says which topic of its order group it is of (its
*channel*), and which writer has written it: those of one publisher share one way into the group, see
`dds.writers.carrier`.

Rules: what is kept aside is bounded, SET_BYTES_MAX for each writer and ASIDE_MAX for all: beyond it the set that began
first is given up. So is what is remembered of the writers that a carrier speaks for: CARRIED_MAX of each carrier,
ALL_CARRIED_MAX of all; those that were heard last stay. Both follow from the messages since a set's first, or a
writer's last, so all readers that have got these decide alike. Nothing here knows a clock. What a packet says is
believed as little as any payload: ValueError for what no writer sends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Protocol

from dds.internal import publication_handle
from dds.messages.inline_qos import lifespan_of
from dds.messages.operations import (
    ANNOUNCES_QOS,
    DEPARTS,
    DISPOSES,
    FAREWELL,
    LAPSES,
    PACKET,
    UNREGISTERS,
    WRITES,
    end_tag,
    single_tag,
)

# Of a set's samples together, in several packets; less than a delivery log holds (8 MiB unless configured).
SET_BYTES_MAX = 4 << 20
SET_SAMPLES_MAX = 1 << 16
ASIDE_MAX = 256 << 20  # bytes of all sets that are not complete, at one reader
SAMPLE_COSTS = 256  # of these, beside its payload: about what a reader needs for it
CARRIED_MAX = 1024  # writers of one topic that one carrier speaks for
ALL_CARRIED_MAX = 1 << 17  # writers of one topic that all carriers speak for
# When the last lifespan in it is over, UTC ns (0: never); number of the set, place of the packet in it, packets of it.
HEADER = struct.Struct("<qQII")
EXPIRY_MAX = (1 << 63) - 1
Payload = Any  # bytes; of a large message a memoryview, of memory that stays as it is
MEMBER = struct.Struct("<IBBIqQQ")  # bytes, tag, flags, mark, source timestamp, channel, writer; the payload follows
AUTHOR = struct.Struct("<Q")  # what a packet with a SINGLE tag ends with, for nodes: see author()
ROOM_PLAIN = HEADER.size + MEMBER.size  # bytes that a packet of one sample takes beside it
ROOM = ROOM_PLAIN + AUTHOR.size  # the same, wherever it goes
DEPTH_MAX = 0xFFFF  # that a SINGLE can say
AUTODISPOSES = 1  # flag: the end of the sample's writer disposes of what it has written
RELAYED = 1 << 62  # in the publication handle of a writer on a host without a node


class Info(Protocol):
    """What the log says of a message; of all samples of a packet the same."""

    @property
    def sender(self) -> int: ...
    @property
    def writer(self) -> int: ...
    @property
    def relay(self) -> int: ...
    @property
    def reception_timestamp(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def view_id(self) -> int: ...
    @property
    def index(self) -> int: ...


class Message(Info, Protocol):
    """The same, with what its writer says of it."""

    @property
    def tag(self) -> int: ...
    @property
    def source_timestamp(self) -> int: ...


class Member:
    """A sample out of a packet, or another thing that a writer has said; with what is known of it as of a message.

    handle  publication handle of its writer
    place   in its set, from 0
    """

    __slots__ = ("flags", "handle", "index", "payload", "place", "reception_timestamp", "relay", "sender", "sequence",
                 "source_timestamp", "tag", "view_id", "writer")

    def __init__(self, payload: Payload, tag: int, flags: int, source_timestamp: int, handle: int, place: int) -> None:
        self.payload = payload
        self.tag = tag
        self.flags = flags
        self.source_timestamp = source_timestamp
        self.handle = handle
        self.place = place
        self.writer = handle & 0xFFFF
        self.relay = (handle & ~RELAYED) >> 16 if handle & RELAYED else 0

    def counts_at(self, info: Info) -> None:
        """Its place in the order is that of this message."""
        self.sender = info.sender
        self.reception_timestamp = info.reception_timestamp
        self.sequence = info.sequence
        self.view_id = info.view_id
        self.index = info.index


def carrier_of(info: Info) -> int:
    """The publication handle of the writer of a message."""
    return publication_handle(info.sender, info.writer, info.relay)


# --- making packets


def member(data: bytes, tag: int, flags: int, mark: int, source_ns: int, channel: int, writer: int) -> bytes:
    """A sample as packets have it. `writer` 0: the writer of the packet itself."""
    return MEMBER.pack(len(data), tag, flags, mark, source_ns, channel, writer) + data


def cut(number: int, members: list[bytes], size_max: int, largest: int = 0) -> list[bytes]:
    """The packets of a set, of at most `size_max` bytes; or one of at most `largest` (0: as size_max), if a member is
    larger than a packet, or all are more than SET_BYTES_MAX. ValueError for what fits in none."""
    room, room_max = size_max - HEADER.size, max(size_max, largest) - HEADER.size
    total = sum(map(len, members))
    if total <= room_max and (total > SET_BYTES_MAX or max(map(len, members), default=0) > room):
        room = room_max
    bodies: list[list[bytes]] = []
    left = 0
    for one in members:
        if len(one) > room_max:
            raise ValueError(f"a sample of {len(one) - MEMBER.size} bytes doesn't fit into a message of "
                             f"{room_max + HEADER.size} bytes, of which {ROOM_PLAIN} say what it is")
        if len(one) > left:
            bodies.append([])
            left = room
        bodies[-1].append(one)
        left -= len(one)
    return [HEADER.pack(max(map(_expiry, body), default=0), number, place, len(bodies)) + b"".join(body)
            for place, body in enumerate(bodies)]


def single(number: int, one: bytes, depth: int, size_max: int, largest: int = 0) -> tuple[bytes, int]:
    """A packet that holds one thing, with what nodes must know of it that keep the last samples of each instance, and
    its tag. They keep `depth` of its instance (0: as many as of any). Raises as cut()."""
    [data] = cut(number, [one], size_max - AUTHOR.size, max(size_max, largest) - AUTHOR.size)
    _, tag, flags, _, _, _, writer = MEMBER.unpack_from(one)
    return data + AUTHOR.pack(_author(writer, depth)), single_tag(tag, bool(flags & AUTODISPOSES))


def can_be_single(tag: int) -> bool:
    """False for a sample that also ends its instance. When that is forgotten, so is the sample; a set that came before
    may be left, and nobody would learn that part of it has ended."""
    return not (tag & WRITES and tag & (DISPOSES | UNREGISTERS))


def _author(writer: int, depth: int) -> int:
    """What nodes read of a writer with this handle (0: that of the packet): its number on its host, or the one that it
    has without a node; and how many of its instance are kept."""
    return (writer & RELAYED - 1 if writer & RELAYED else writer & 0xFFFF) | min(depth, DEPTH_MAX) << 48


def opened(tag: int, payload: Payload) -> Payload:
    """A packet as all have it, of one with this tag. ValueError if that says to nodes what isn't in it."""
    if tag == PACKET:
        return payload
    body = payload[:-AUTHOR.size]
    _, _, count = header(body)
    (of_one, _), *more = _pieces(body)
    _, does, flags, _, _, _, writer = of_one
    [author] = AUTHOR.unpack(payload[-AUTHOR.size:])
    if (more or count != 1 or not can_be_single(does) or tag != single_tag(does, bool(flags & AUTODISPOSES))
            or author != _author(writer, author >> 48)):
        raise ValueError(f"a packet says with tag {tag} and author {author:#x} what isn't in it")
    return body


def _expiry(one: bytes) -> int:
    """When the lifespan of a member is over, UTC ns; 0: never."""
    _, tag, _, _, source_ns, _, _ = MEMBER.unpack_from(one)
    span = lifespan_of(one) if tag & ANNOUNCES_QOS else 0
    return min(source_ns + span, EXPIRY_MAX) if span else 0


# --- reading them


def set_number(payload: Payload) -> int:
    """Of the set that a packet is of. ValueError for what is no packet."""
    return header(payload)[0]


def is_of_set(payload: Payload) -> bool:
    """True if a packet has more than one sample, or is one of several; False for nonsense, too."""
    try:
        return header(payload)[2] > 1 or sum(1 for _ in _pieces(payload)) > 1
    except ValueError:
        return False


def _pieces(payload: Payload) -> Iterator[tuple[tuple[int, int, int, int, int, int, int], Payload]]:
    """MEMBER of each sample of a packet, and its payload. ValueError for nonsense."""
    at = HEADER.size
    while at < len(payload):
        if len(payload) - at < MEMBER.size:
            raise ValueError(f"a packet ends with {len(payload) - at} bytes that are no sample")
        piece = MEMBER.unpack_from(payload, at)
        at += MEMBER.size
        if piece[0] > len(payload) - at:
            raise ValueError(f"a packet has {len(payload) - at} bytes of a sample of {piece[0]}")
        yield piece, payload[at:at + piece[0]]
        at += piece[0]


def header(payload: Payload) -> tuple[int, int, int]:
    """Number of the set that a packet is of, its place in it, and how many packets the set has. ValueError for what is
    no packet."""
    if len(payload) < HEADER.size:
        raise ValueError(f"a packet of {len(payload)} bytes has no room for its header")
    _, number, place, count = HEADER.unpack_from(payload)
    if place >= count:
        raise ValueError(f"packet {place} of a set that has {count}")
    return number, place, count


def members(payload: Payload, carrier: int, place: int = 0) -> Iterator[tuple[int, int, Member]]:
    """What a packet of the writer with the handle `carrier` holds: (channel, mark, member) each, the first with this
    place in its set. ValueError for what no writer sends."""
    for (_, tag, flags, mark, source_ns, channel, writer), data in _pieces(payload):
        if tag & (LAPSES | DEPARTS):  # PACKET and TIME have the first of these, too
            raise ValueError(f"a packet has a message with tag {tag}, which stands for itself or is a node's word")
        if writer and not _may_carry(carrier, writer):
            raise ValueError(f"a packet of writer {carrier:#x} has a sample of writer {writer:#x}, which is elsewhere")
        yield channel, mark, Member(data, tag, flags, source_ns, writer or carrier, place)
        place += 1


def _may_carry(carrier: int, writer: int) -> bool:
    """A writer speaks for others of its node only; one without a node for others without one. In order groups alone:
    see Sets."""
    if carrier & RELAYED:
        return writer & RELAYED != 0 and writer < RELAYED << 1
    return writer >> 16 == carrier >> 16


class _Torn(Exception):
    """A packet doesn't go on with the set that is open, or is too much for a set."""


class _Open:
    """A set of which not all packets have come."""

    __slots__ = ("bytes", "count", "following", "members", "number", "samples")

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.count = count
        self.following = 0  # place of the packet that comes next
        self.bytes = 0  # that have come
        self.samples = 0
        self.members: list[Member] = []  # for this reader

    @property
    def cost(self) -> int:
        """What counts for ASIDE_MAX, the same at all readers."""
        return self.bytes + SAMPLE_COSTS * (self.samples + 1)


class Sets:
    """The sets of one reader of one topic.

    channel, mark  of the reader's topic in its order group: samples of others are not for it. 0 outside of groups,
                   where a writer speaks for itself alone
    dropped        counts the sets of which not all has come, and none will; crowded_out those of them that others took
                   the room of
    """

    def __init__(self, channel: int = 0, mark: int = 0) -> None:
        self.channel = channel
        self.mark = mark
        self.dropped = self.crowded_out = 0
        self._open: dict[int, _Open] = {}  # by their writers' publication handles, in the order of their beginnings
        self._aside = 0  # what they cost
        self._carried: dict[int, dict[int, int]] = {}  # carrier -> writer -> tag of its end; heard last stands last
        self._all_carried = 0

    def take(self, carrier: int, payload: Payload, info: Info) -> list[Member]:
        """A packet has come from the writer with the handle `carrier`: the samples that count with it, in their order.

        Raises ValueError for what no writer sends.
        """
        number, place, count = header(payload)
        if count == 1:
            self._drop(carrier)
            found = [one for one, is_own in self._members(carrier, payload, 0) if is_own]
        else:
            complete = self._complete(carrier, payload, number, place, count)
            if complete is None:
                return []
            found = complete
        for one in found:
            one.counts_at(info)
        self._note_writers(carrier, found)
        return found

    def _complete(self, carrier: int, payload: Payload, number: int, place: int, count: int) -> list[Member] | None:
        """A packet of a larger set has come: its samples if it is the last, and none before it is missing."""
        current = self._open.get(carrier)
        if current is not None and current.number == number and place < current.following:
            return None  # a writer without a node sends again what it doesn't know to have come
        if place == 0:
            self._drop(carrier)
            current = self._open[carrier] = _Open(number, count)
            self._aside += current.cost
        if current is None or current.number != number:
            return None  # we were not there when it began, or have given it up
        before = current.cost
        try:
            if (current.following, current.count) != (place, count):
                raise _Torn
            try:
                for one, is_own in self._members(carrier, payload, current.samples):
                    current.samples += 1
                    current.bytes += len(one.payload)
                    if is_own:
                        current.members.append(one)
            finally:
                self._aside += current.cost - before
            if current.bytes > SET_BYTES_MAX or current.samples > SET_SAMPLES_MAX:
                raise _Torn
        except _Torn:
            self._drop(carrier)
            return None
        except ValueError:
            self._drop(carrier)
            raise
        current.following += 1
        if current.following < count:
            while self._aside > ASIDE_MAX:
                self._drop(next(iter(self._open)))
                self.crowded_out += 1
            return None
        self._forget(carrier)
        return current.members

    def _members(self, carrier: int, payload: Payload, first: int) -> Iterator[tuple[Member, bool]]:
        for channel, mark, one in members(payload, carrier, first):
            if not self.channel and one.handle != carrier:
                raise ValueError(f"a packet of writer {carrier:#x} speaks for writer {one.handle:#x}, and this topic "
                                 "is in no order group")
            yield one, self.is_own(channel, mark)

    def is_own(self, channel: int, mark: int) -> bool:
        """True if what a packet has of this channel, with this mark, is of the reader's topic."""
        return channel == self.channel and mark == self.mark

    def _note_writers(self, carrier: int, found: list[Member]) -> None:
        for one in found:
            if one.handle == carrier:
                continue
            carried = self._carried.pop(carrier, {})
            if carried.pop(one.handle, None) is not None:
                self._all_carried -= 1
            if not one.tag & FAREWELL:
                carried[one.handle] = FAREWELL | end_tag(bool(one.flags & AUTODISPOSES))
                self._all_carried += 1
            if carried:
                self._carried[carrier] = carried

    def surplus(self) -> tuple[int, int] | None:
        """A writer that is forgotten, because its carrier, or all together, speak for too many: it counts as ended.
        Its handle, and with which tag it ends; None if there is none. Call it after take() until there is none."""
        last = next(reversed(self._carried), None)
        if last is None:
            return None
        if len(self._carried[last]) > CARRIED_MAX:
            return self._forget_carried(last)
        return self._forget_carried(next(iter(self._carried))) if self._all_carried > ALL_CARRIED_MAX else None

    def _forget_carried(self, carrier: int) -> tuple[int, int]:
        """The one of this carrier's that was heard first."""
        carried = self._carried[carrier]
        writer = next(iter(carried))
        tag = carried.pop(writer)
        self._all_carried -= 1
        if not carried:
            del self._carried[carrier]
        return writer, tag

    def _forget(self, carrier: int) -> bool:
        """The set that this writer has begun is open no more; False if there was none."""
        known = self._open.pop(carrier, None)
        if known is not None:
            self._aside -= known.cost
        return known is not None

    def _drop(self, carrier: int) -> None:
        self.dropped += self._forget(carrier)

    def interrupted(self, carrier: int) -> None:
        """Something else has come from this writer: of a set that it had begun nothing more comes."""
        if self._open:
            self._drop(carrier)

    def ended(self, carrier: int) -> dict[int, int]:
        """This writer has ended: whom else it has spoken for, who have all ended, too; and with which tag."""
        self._drop(carrier)
        return self._end_of(carrier)

    def _end_of(self, carrier: int) -> dict[int, int]:
        carried = self._carried.pop(carrier, {})
        self._all_carried -= len(carried)
        return carried

    def departed(self, node_id: int) -> None:
        """A node has gone with all its writers."""
        for carrier in [one for one in self._open if one >> 16 == node_id]:
            self._drop(carrier)
        for carrier in [one for one in self._carried if one >> 16 == node_id]:
            self._end_of(carrier)

    @property
    def kept_aside(self) -> int:
        """Bytes of the samples of sets that are not complete, those for other readers included."""
        return sum(one.bytes for one in self._open.values())

    @property
    def writers_carried(self) -> int:
        """Whom all carriers speak for, as far as it is remembered."""
        return self._all_carried


__all__ = ["ASIDE_MAX", "CARRIED_MAX", "DEPTH_MAX", "ROOM", "ROOM_PLAIN", "SET_BYTES_MAX", "SET_SAMPLES_MAX", "Member",
           "Sets", "can_be_single", "carrier_of", "cut", "is_of_set", "member", "members", "opened", "set_number",
           "single"]
