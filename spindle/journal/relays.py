"""For each writer on a host without a node: the source timestamp of its last message that a journal has had.

Why in the journal: when all nodes of a topic were down, nobody else knows how far such a writer has got
(`spindle.relay.handover`). Each file's head says what the files before it have had, so that the last file is enough,
and files that are deleted, or that this node never had, don't matter.

Rules: a file's head names at most RELAYED_MAX writers, and memory holds at most twice as many: the journal forgets
those that have been silent for longest, by their own clocks. A message without a timestamp, which a node has said in
such a writer's name, says nothing of how far it has got.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spindle.journal.format import MESSAGE, RECORD, WRITER_MASK, CommitLayout, parse_channel, timestamp_of

RELAYED_MAX = 8192  # writers
WRITER_SHIFT = 16  # a channel's writer is one of those if its number has anything above so many bits...
IDENTITY_SHIFT = 15  # ...and its identity is what is above, followed by so many of the lower bits

Relayed = Mapping[int, int]  # identity -> source timestamp, UTC ns


def identity_of(writer: int) -> int:
    """The identity of a channel's writer; 0: it is none of these."""
    above = (writer & WRITER_MASK) >> WRITER_SHIFT
    return above << IDENTITY_SHIFT | writer & ((1 << IDENTITY_SHIFT) - 1) if above else 0


class Relays:
    """What is known up to some place in one file, whose head says `known`. `last` only grows, but for what is
    forgotten."""

    def __init__(self, known: Iterable[tuple[int, int]] = ()) -> None:
        self.last: dict[int, int] = dict(known)
        self._channels: dict[int, int] = {}  # of these writers: channel id -> identity

    def note(self, identity: int, source_ns: int) -> None:
        """A message of this writer is in the journal."""
        if source_ns > self.last.get(identity, 0):
            self.last[identity] = source_ns
            if len(self.last) > 2 * RELAYED_MAX:
                self.last = newest(self.last)

    def learn(self, known: Relayed) -> None:
        """Takes in what another node's journal has had."""
        for identity, source_ns in known.items():
            self.note(identity, source_ns)

    def add(self, layout: CommitLayout, body: bytes, before: int | None = None) -> None:
        """The file's next commit, whose CRC was checked; only what is before a sequence number if that is given. Raises
        Damage if a channel is malformed."""
        for record in layout.channel_records:
            channel, _, writer = parse_channel(record, layout.offset)
            if identity := identity_of(writer):
                self._channels[channel] = identity
        if self._channels.keys().isdisjoint(layout.counts):
            return
        offset, base = sum(map(len, layout.channel_records)), layout.record.sequence
        while offset + MESSAGE.size <= len(body):
            _, length, channel, low, log_time, published = MESSAGE.unpack_from(body, offset)
            if before is not None and base + ((low - base) & 0xFFFFFFFF) >= before:
                return
            if channel in self._channels:
                self.note(self._channels[channel], timestamp_of(log_time, published))
            offset += RECORD.size + length


def newest(last: Relayed) -> dict[int, int]:
    """The RELAYED_MAX writers to remember: those heard of last."""
    return dict(sorted(last.items(), key=lambda one: one[1])[-RELAYED_MAX:])
