"""What messages say of instances: the bits of their tags, and handles.

How an end travels: as a message in the topic's order. Its tag says what it does, its payload is a sample with the key.
The end of a writer (closed, or its program has ended in any way) is a message without payload, which its node sends
behind the writer's last one. The end of a node is one without payload and without a writer, which all members find at
the end of the view. So all readers that get the same messages go through the same states (`dds.readers.instances`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

# Bits of a message's tag; 0 = a sample.
DISPOSES = 1
UNREGISTERS = 2
WRITES = 4  # its payload is a sample to be read, too
FAREWELL = 8  # is about all instances that its writer is registered with, and has no payload
DEPARTS = 16  # the same of all writers of its node; believed only of a message that no writer can have written
ANNOUNCES_QOS = 32  # what its writer's Qos says to readers stands behind the payload, see dds.messages.inline_qos
LAPSES = 64  # its writer has given no sign of life in time; has no payload, and its node has sent it
MISSES_DEADLINE = 128  # its writer has not written in time; the payload is a sample with the key

REVIVES = LAPSES | DISPOSES  # its writer lives again, and has nothing to say
PACKET = LAPSES | WRITES  # holds samples, each with a tag of its own: see dds.messages.packets
# A packet that holds one thing, where nodes keep the last samples of each instance: it has the key of that, and its tag
# also says what that does: DISPOSES, UNREGISTERS, FAREWELL, and the next two.
SINGLE = PACKET | MISSES_DEADLINE
BINDS = DEPARTS  # with SINGLE: when its writer ends, that disposes of what it has written
NO_SAMPLE = ANNOUNCES_QOS  # with SINGLE
TIME = LAPSES | FAREWELL  # "it is now": a node says so in its own name, when a lifespan is over; has no payload
DEPARTURE = UNREGISTERS | DEPARTS  # what was alive has no writers; its node couldn't dispose of anything any more

# Its writer is registered with an instance, of which nodes keep no sample of it: later ones have taken its place, or
# the instance is another one's (exclusive ownership). That is what late joiners get of it; the payload is what the
# writer has sent.
REGISTERS = MISSES_DEADLINE | DISPOSES

KEYLESS_HANDLE = 1


def farewell_tag(autodispose: bool) -> int:
    """Of the message that follows the last one of a writer."""
    return FAREWELL | end_tag(autodispose)


def end_tag(autodispose: bool) -> int:
    """Of a message that unregisters an instance, as WriterDataLifecycle says."""
    return UNREGISTERS | DISPOSES if autodispose else UNREGISTERS


def single_tag(tag: int, binds: bool) -> int:
    """Of a packet that holds one thing with this tag."""
    is_sample = not tag or tag & WRITES
    return (SINGLE | tag & (DISPOSES | UNREGISTERS | FAREWELL) | (BINDS if binds else 0)
            | (0 if is_sample else NO_SAMPLE))


def is_packet(tag: int) -> bool:
    """True if a message with this tag holds others, see dds.messages.packets."""
    return tag == PACKET or tag & SINGLE == SINGLE


def _effect(tag: int) -> int:
    """What a message with this tag does to its key at a node that keeps the last samples of each: as Intake has it."""
    from spindle.group.topics import (
        EFFECT_ALONE,
        EFFECT_BOUND,
        EFFECT_CARRIED,
        EFFECT_ENDS,
        EFFECT_LEAVES,
        EFFECT_OF_NODE,
        EFFECT_OF_WRITER,
        EFFECT_SAMPLE,
    )

    does = (EFFECT_LEAVES if tag & UNREGISTERS else 0) | (EFFECT_ENDS if tag & DISPOSES else 0)
    if tag & SINGLE == SINGLE:
        of = EFFECT_OF_WRITER if tag & FAREWELL else 0 if tag & NO_SAMPLE else EFFECT_SAMPLE
        return does | of | EFFECT_CARRIED | (EFFECT_BOUND if tag & BINDS else 0)
    if tag & DEPARTS:
        return does | EFFECT_OF_NODE
    if tag == PACKET:
        return EFFECT_SAMPLE | EFFECT_ALONE
    if tag == TIME:
        return 0
    if tag & LAPSES:
        return EFFECT_OF_WRITER if tag == REVIVES else EFFECT_LEAVES | EFFECT_OF_WRITER
    if not tag or tag & WRITES:
        return does | EFFECT_SAMPLE
    if tag & FAREWELL:
        return does | EFFECT_OF_WRITER
    return 0 if tag & MISSES_DEADLINE else does


def effects(carriers: bool = True) -> bytes:
    """Of each tag, for TopicSpec. `carriers`: writers may speak for others, in packets with SINGLE tags."""
    return bytes(_effect(tag) if carriers or tag & SINGLE != SINGLE else 0 for tag in range(256))


def _rank(tag: int) -> int:
    """Where a message with this tag has its writer's strength, or what it does to the ownership of its instance."""
    from dds.messages.inline_qos import STRENGTH_PLACE
    from spindle.group.topics import RANK_PRESENT, RANK_PRESENT_RANKED, RANK_YIELDS

    said, ranked = tag & ~ANNOUNCES_QOS, tag & ANNOUNCES_QOS
    if said == REGISTERS:
        return RANK_PRESENT_RANKED if ranked else RANK_PRESENT
    if said == MISSES_DEADLINE:
        return RANK_YIELDS
    return STRENGTH_PLACE if ranked and not tag & (LAPSES | FAREWELL | DEPARTS | MISSES_DEADLINE) else 0


def ranks() -> bytes:
    """Of each tag, for the TopicSpec of a topic with exclusive ownership: nodes keep what the owners of instances have
    said, and of other writers that they are there. (Strengths in packets they don't know.)"""
    return bytes(map(_rank, range(256)))


def presences() -> bytes:
    """Of each tag, for the TopicSpec of a topic with shared ownership: nodes keep of each writer of an instance that it
    is there, if none of its samples is kept. (Of those in packets they don't.)"""
    from spindle.group.topics import RANK_COUNTS, RANK_COUNTS_RANKED, RANK_PRESENT, RANK_PRESENT_RANKED

    found = bytearray(RANK_COUNTS_RANKED if tag & ANNOUNCES_QOS else RANK_COUNTS for tag in range(256))
    found[REGISTERS], found[REGISTERS | ANNOUNCES_QOS] = RANK_PRESENT, RANK_PRESENT_RANKED
    return bytes(found)


def _timing(tag: int) -> int:
    """What a message with this tag says of time: the lifespan of a sample is the last of its inline Qos, when those in
    a packet are over comes first in that."""
    from spindle.group.topics import TIMING_FOR, TIMING_NONE, TIMING_UNTIL, TIMING_WORD

    if tag == TIME:
        return TIMING_WORD
    if is_packet(tag):
        return TIMING_UNTIL
    is_sample = tag == ANNOUNCES_QOS or tag & WRITES
    return TIMING_FOR if tag & ANNOUNCES_QOS and is_sample and not tag & LAPSES else TIMING_NONE


def timing(by_source: bool) -> bytes:
    """Of each tag, for TopicSpec. `by_source`: the last sample of an instance is the one that was written last, as its
    source says, so nodes refuse source timestamps from the far future."""
    from spindle.group.topics import TIMING_STAMPED

    stamped = TIMING_STAMPED if by_source else 0
    return bytes(_timing(tag) + (stamped if tag != TIME else 0) for tag in range(256))


def handle_of(key: Any) -> int:
    """The handle of the instance with this key: the same at every reader and writer, in every program."""
    digest = blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return max(KEYLESS_HANDLE + 1, int.from_bytes(digest, "little") >> 1)


def operation(tag: int) -> str:
    """The method of a writer that sends messages with this tag."""
    if tag & UNREGISTERS:
        return "unregister_instance"
    if tag & DISPOSES:
        return "write_dispose" if tag & WRITES else "dispose"
    return "write"


class Peak:
    """The most instances that the tables of a reader or writer have had since they were made: dictionaries keep their
    room when what they had has gone."""

    __slots__ = ("_most",)

    FROM = 1024  # fewer are not worth it

    def __init__(self) -> None:
        self._most = self.FROM

    def has(self, count: int) -> None:
        """There are so many now."""
        if count > self._most:
            self._most = count

    def has_left(self, count: int) -> bool:
        """So many are left. True if the tables are to be made anew, with these."""
        if count * 4 >= self._most:
            return False
        self._most = max(self.FROM, count)
        return True


__all__ = [
    "ANNOUNCES_QOS", "DEPARTS", "DEPARTURE", "DISPOSES", "FAREWELL", "KEYLESS_HANDLE", "LAPSES", "MISSES_DEADLINE",
    "PACKET", "Peak", "REGISTERS", "REVIVES", "SINGLE", "TIME", "UNREGISTERS", "WRITES", "effects", "end_tag",
    "farewell_tag", "handle_of", "is_packet", "operation", "ranks", "single_tag", "timing"]
