"""C1 to C4: coherent sets that programs write, cut into packets and put together again by the production code of DDS.

A message of a set is one of its writer's messages, "name:number ", then "=" and the packet. The samples in it say which
set they are of, their place there and how many it has; they are of two topics (channels), and a reader is of one.

    C1  what a reader gets of a set is all that the set has for its topic, in order, and once
    C2  a set counts at the same place of the order for all readers
    C3  a reader gets a set if it has taken all of its messages, and nothing of it else
    C4  when a writer has ended, or its node has gone, no reader keeps anything of it aside
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dds.messages import packets
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from random import Random

    from spindle_lab.whole.programs import Reading, Writing

CHANNELS = (1, 2)
MARK = 7
SIZE_MIN = 200  # size_max of topics that are large enough for packets

Set = tuple[bytes, int]  # the name of its writer, its number from 1


def messages(rng: Random, writing: Writing, number: int) -> list[bytes]:
    """The packets of a set, with room for "name:number =" in front of each."""
    count = rng.choice((1, 2, 5, 12))
    members = []
    for place in range(count):
        filling = bytes(rng.choice((0, 0, 30, writing.size_max // 3)))
        text = f"{writing.name}/{number}/{place}/{count}".encode() + filling
        members.append(packets.member(text, 0, 0, MARK, 5, rng.choice(CHANNELS), 0))
    prefix = len(f"{writing.name}:{writing.count + count} =")
    return packets.cut(number, members, writing.size_max - prefix)


class Sets:
    """The sets of a run."""

    def __init__(self) -> None:
        self._members: dict[Set, dict[int, list[bytes]]] = {}  # by channel
        self._counts_at: dict[tuple[int, str, Set], tuple[int, int]] = {}  # group, topic, set -> view, sequence

    def writes(self, writing: Writing, number: int, each: list[bytes]) -> None:
        """A program is about to write these; it may end in the middle."""
        mine = self._members[writing.name.encode(), number] = {channel: [] for channel in CHANNELS}
        for packet in each:
            for channel, _, member in packets.members(packet, 1):
                mine[channel].append(member.payload)

    def took(self, reading: Reading, name: bytes, payload: bytes, info: Any) -> None:
        """A reader has taken a message of a writer: of a set, or another one."""
        handle = packets.carrier_of(info)
        content = payload.partition(b" ")[2]
        if not content.startswith(b"="):
            reading.sets.interrupted(handle)
            reading.begun.pop(name, None)
            return
        _, number, place, count = packets.HEADER.unpack_from(content[1:])
        whole = self._is_whole(reading, name, number, place, count)
        found = [member.payload for member in reading.sets.take(handle, content[1:], info)]
        wanted = self._members[name, number][reading.sets.channel] if whole else []
        if found != wanted and not self._may_come_again(reading, name, number, found):
            raise Violation("C1" if found else "C3", f"{reading} gets {found[:3]} ({len(found)}) with message {place} "
                                                     f"of {count} of set {number} of {name!r}; {len(wanted)} are due")
        if not whole:
            return
        reading.got.add((name, number))
        reading.program.world.met("a reader gets a set of several messages" if count > 1 else "a reader gets a set")
        if reading.ordered:
            at = info.view_id, info.sequence
            known = self._counts_at.setdefault((reading.group_id, reading.topic, (name, number)), at)
            if known != at and name not in reading.program.world.checks.relayed and not reading.logged:
                raise Violation("C2", f"set {number} of {name!r} counts at {at} for {reading}, at {known} for others")

    def _is_whole(self, reading: Reading, name: bytes, number: int, place: int, count: int) -> bool:
        """True if the reader has taken all messages of the set with this one."""
        begun = reading.begun.get(name)
        if place == 0 and (begun is None or begun[0] != number):
            begun = number, 0
        if begun is None or begun[0] != number or place < begun[1]:
            return False
        if place > begun[1]:
            del reading.begun[name]
            return False
        reading.begun[name] = number, place + 1
        if place + 1 == count:
            del reading.begun[name]
            return True
        return False

    def _may_come_again(self, reading: Reading, name: bytes, number: int, found: list[bytes]) -> bool:
        """A writer without a node sends again what nobody who lives knows to have come."""
        return name in reading.program.world.checks.relayed and found in (
            [], self._members[name, number][reading.sets.channel])

    def ended(self, reading: Reading, name: bytes | None, info: Any) -> None:
        """A reader is told that a writer has ended."""
        kept = reading.sets.kept_aside
        reading.sets.ended(packets.carrier_of(info))
        self._forget(reading, [] if name is None else [name], kept)

    def departed(self, reading: Reading, names: list[bytes], info: Any) -> None:
        """A reader is told that a node has gone."""
        kept = reading.sets.kept_aside
        reading.sets.departed(info.sender)
        self._forget(reading, names, kept)

    def _forget(self, reading: Reading, names: list[bytes], kept: int) -> None:
        torn = [name for name in names if reading.begun.pop(name, None) is not None]
        if torn:
            reading.program.world.met("a reader gives up a set whose writer has gone")
            if reading.sets.kept_aside >= kept:
                raise Violation("C4", f"{reading} keeps a set of {torn[0]!r} aside, which has ended")


__all__ = ["CHANNELS", "MARK", "SIZE_MIN", "Sets", "messages"]
