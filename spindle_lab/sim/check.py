"""Every promise about membership and delivery, checked after every event; the names are those of docs/reliability.md.

Why one order for all: whoever delivers a message of a view and topic first writes it into the canonical sequence, and
everybody else must find it there at the same place. So agreement, order, gaps and duplicates are one comparison for
each delivery, whatever the number of nodes.

Membership
    M1 M2 M3   a node installs only views that it is in, first the one that let it in, then each next one
    M4         consecutive views: a majority of the older (without those that have ended) goes on
    M5         the same view id means the same view
    M6         a life that was left out never comes back
    M7         a revision of a view is the same for all that take part, and changes nothing that memory depends on
Delivery
    D1 D5      each writer's messages are what it wrote, in its order
    D2 D6 D9   one sequence for all, in the order of rounds; who goes on together has delivered the same
    D3 D4      only of senders of the topic, and in the view that it was sent in
    D7         nothing of a sender is left out
    D8         nobody, not even one that then ended, has delivered what those who go on have not
    D10        what a writer that lives has committed is delivered in the end, to itself too
    D11        before the trim: only what every member has received
    A1         what a writer was told to be delivered everywhere, is
Trim
    T1 T3 T4 T5  one trim, of what all survivors have, acted on when all have echoed it, never changed
    T2         never below what anybody has delivered
Rows
    R1         columns only grow
Ends
    E1         nobody stops of a defect, and nobody is cast out or left without a majority if nobody was accused falsely
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from spindle.membership.machine import Phase
from spindle_lab.sim.links import CRASHED, ENDED_FAILED, ENDED_ORDERLY
from spindle_lab.sim.rows import RowWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spindle.group.view import Member, Topic, View
    from spindle_lab.sim.apps import Writer
    from spindle_lab.sim.contracts import Life, World

Key = tuple[int, int, int]  # group id, view id, topic id


class Violation(Exception):
    """A promise was broken: `name` is the property."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class Sequence:
    """What was delivered in one view of one topic, by anybody."""

    def __init__(self, view: View, topic: Topic) -> None:
        self.entries: list[tuple[int, int, int, bytes]] = []  # sequence, sender, writer number, payload
        self.places: dict[int, int] = {}  # by life number: how many of them it has delivered
        self.view_id = view.view_id
        self.final = -1  # how many there are at last: known when the first one goes on
        self.ranks = {node_id: rank for rank, node_id in enumerate(topic.senders)}
        self.senders = {node_id: view.member(node_id) for node_id in topic.senders}
        self.ordered = topic.spec.level.ordered
        self.trim: tuple[int, ...] | None = None


def moving(view: View) -> View:
    """The part of a view that is the same for all that install it. (A node that died may have had another revision.)"""
    return dataclasses.replace(view, revision=0, topics=tuple(topic for topic in view.topics if topic.members))


def _same_view(one: Life, other: Life) -> bool:
    return one.view is not None and other.view is not None and (
        (one.view.group_id, one.view.view_id) == (other.view.group_id, other.view.view_id))


class Checker:
    """Knows what every node may do next."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.views: dict[tuple[int, int], View] = {}
        self.chain: dict[int, list[View]] = {}  # by group id, in the order of their first installation
        self.sequences: dict[Key, Sequence] = {}
        self.trims: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        self.left_out: set[Member] = set()
        self.installs = 0
        self.deliveries = 0
        self.writers: dict[tuple[Member, int, int], Writer] = {}  # by member, topic id, writer number
        self.unordered: dict[tuple[int, int, int], int] = {}  # by life number, topic id, writer uid: messages seen
        self.rows = RowWatch(world, self.violated)

    def violated(self, name: str, text: str) -> None:
        raise Violation(name, text)

    def require(self, holds: bool, name: str, text: str) -> None:
        if not holds:
            raise Violation(name, text)

    # --- views

    def installed(self, life: Life, before: View | None, unsent: dict[int, int]) -> None:
        view = life.view
        assert view is not None
        self.installs += 1
        for topic_id, count in unsent.items():
            self.violated("D10", f"{life} can't send {count} messages of open writers of topic {topic_id} again")
        key = (view.group_id, view.view_id)
        self.require(view.member(life.node_id) == life.me, "M1", f"{life} installs view {view.view_id} without itself")
        known = self.views.get(key)
        if known is None:
            self.views[key] = view
            self.chain.setdefault(view.group_id, []).append(view)
        chain = self.chain[view.group_id]
        same = known is None or moving(known) == moving(view)
        place = next(n for n, one in enumerate(chain) if one.view_id == view.view_id) if same else len(chain)
        if before is None:
            self.require(place == 0 or life.me not in chain[place - 1].members, "M2",
                         f"{life} begins with view {view.view_id}, but was in the one before")
        else:
            self.require(place > 0 and moving(chain[place - 1]) == moving(before), "M3",
                         f"{life} installs view {view.view_id} after {before.view_id}")
        if known is None:
            self._check_chain(life, view, chain)
            for topic in view.topics:
                self.sequences[view.group_id, view.view_id, topic.topic_id] = Sequence(view, topic)
        else:
            self.require(same, "M5", f"{life} has another view {view.view_id}: {view} instead of {known}")
        for topic in view.topics:
            if life.node_id in topic.members:
                sequence = self.sequences[view.group_id, view.view_id, topic.topic_id]
                sequence.places.setdefault(life.number, 0)
                life.readers[topic.topic_id].begin_view()
        self.rows.begin(life)
        self.world.mix(view.view_id, life.number)

    def revised(self, life: Life) -> None:
        """M7: all live members that have this number of revisions of the view have the same view."""
        view, epoch = life.view, life.epoch
        assert view is not None and epoch is not None
        self.require(moving(view) == moving(self.views[view.group_id, view.view_id]), "M7",
                     f"{life} has a revision of view {view.view_id} in which something in memory is another")
        for rank in life.machine.live_ranks():
            other = self.world.life_of(view.members[rank])
            if other.running and other.view is not None and other.view.state == view.state:
                self.require(other.view == view, "M7", f"{life} and {other} have view {view.view_id} otherwise in its "
                             f"revision {view.revision}")
        self.world.mix(view.revision, life.number)

    def _check_chain(self, life: Life, view: View, chain: list[View]) -> None:
        """M4 and M6, when the first node installs a view."""
        for member in view.members:
            self.require(member not in self.left_out, "M6", f"{member} comes back in view {view.view_id}")
        if len(chain) == 1:
            self.require(len(view.members) == 1, "M4", f"view {view.view_id} follows none")
            for other in self.world.lives:
                self.require(other is life or not other.running or other.view is None, "M4",
                             f"{life} forms a group beside {other}")
            return
        old = chain[-2]
        self.require(view.view_id > old.view_id, "M3", f"view {view.view_id} follows view {old.view_id}")
        gone = [member for member in old.members if member not in view.members]
        self.left_out.update(gone)
        ended = orderly = 0
        for member in gone:
            other = self.world.life_of(member)
            consents = other.running or other.machine.phase in (Phase.ECHOED, Phase.GONE)
            if other.end == ENDED_ORDERLY or (other.machine.leaving and consents):
                orderly += 1  # it took part until the end
            elif self.world.certain(other) or other.end == ENDED_FAILED:
                ended += 1
        took_part = len(old.members) - len(gone) + orderly
        self.require(2 * took_part > len(old.members) - ended, "M4",
                     f"{life} installs view {view.view_id} with {took_part} of {len(old.members)} members, {ended} of "
                     "the others ended")

    # --- the end of a view

    def wedged(self, life: Life, ballot: int) -> None:
        self.world.mix(ballot, life.number)

    def stored(self, life: Life, column: str, value: int) -> None:
        """The machine has raised a column of its row."""
        self.world.mix(value, life.number)

    def wrote(self, life: Life, area: str, data: bytes) -> None:
        """T5: the machine is about to replace an area of its row."""
        if area == "trim" and life.epoch is not None:
            echoed = life.epoch.get(life.epoch.my_rank, "trim_echoed")
            self.require(not echoed or life.epoch.read_area(life.epoch.my_rank, "trim") == data, "T5",
                         f"{life} changes the trim that it has echoed")

    def trimmed(self, life: Life, trims: dict[int, tuple[int, ...]]) -> None:
        """A node acts on a trim: T1 to T4."""
        view, epoch = life.view, life.epoch
        assert view is not None and epoch is not None
        key = (view.group_id, view.view_id)
        known = self.trims.setdefault(key, trims)
        self.require(known == trims, "T1", f"{life} trims view {view.view_id} to {trims}, others to {known}")
        mine = epoch.read_area(epoch.my_rank, "trim")
        suspects = epoch.get(epoch.my_rank, "suspected0")
        for rank, member in enumerate(view.members):
            other = self.world.life_of(member)
            if suspects >> rank & 1 or not other.running or other.epoch is None:
                continue
            if other.view is not None and other.view.view_id == view.view_id:
                own = other.epoch
                self.require(own.get(own.my_rank, "trim_echoed") > 0 and own.read_area(own.my_rank, "trim") == mine,
                             "T4", f"{life} acts on a trim of view {view.view_id} that {other} has not echoed")
        for topic in view.topics:
            trim = trims.get(topic.topic_id)
            if trim is None:
                continue
            sequence = self.sequences[view.group_id, view.view_id, topic.topic_id]
            sequence.trim = trim
            if life.node_id in topic.members:
                frozen = epoch.frozen_counts(epoch.my_rank, topic.topic_id)
                self.require(all(kept <= got for kept, got in zip(trim, frozen, strict=True)), "T3",
                             f"{life} trims topic {topic.topic_id} to {trim} and has {frozen}")
            if sequence.ordered and sequence.entries and life.node_id in topic.members:
                last = sequence.entries[-1][0]
                index, rank = divmod(last, len(trim))
                self.require(trim[rank] > index, "T2",
                             f"the trim {trim} of topic {topic.topic_id} in view {view.view_id} lacks sequence {last}, "
                             "which somebody has delivered")

    def leaving_view(self, life: Life) -> None:
        """A node is about to install the next view: D8 and D9."""
        view = life.view
        assert view is not None
        for topic in view.topics:
            if life.node_id not in topic.members or not topic.spec.level.ordered:
                continue
            sequence = self.sequences[view.group_id, view.view_id, topic.topic_id]
            place = 0
            reader = life.readers.get(topic.topic_id)
            if reader is not None:
                place = reader.delivered  # some of it may not be read yet
            if sequence.final < 0:
                sequence.final = place
                self.require(len(sequence.entries) <= place, "D8",
                             f"{life} goes on from view {view.view_id} with {place} messages of topic "
                             f"{topic.topic_id}, but somebody has delivered {len(sequence.entries)}")
            self.require(sequence.final == place, "D9",
                         f"{life} goes on from view {view.view_id} with {place} messages of topic {topic.topic_id}, "
                         f"others with {sequence.final}")

    # --- messages

    def opened(self, writer: Writer) -> None:
        self.writers[writer.life.me, writer.topic_id, writer.number] = writer

    def delivered(self, life: Life, topic_id: int, pairs: list[Any]) -> None:
        """A node has delivered these, in this order."""
        view = life.view
        assert view is not None
        for payload, info in pairs:
            self._one(life, topic_id, info.view_id, info.sequence, info.sender, info.writer, payload)
        sequence = self.sequences.get((view.group_id, view.view_id, topic_id))
        if sequence is not None and sequence.ordered and sequence.trim is None and pairs[-1][1].view_id == view.view_id:
            self.rows.check_stable(life, topic_id, pairs[-1][1].sequence)

    def _one(self, life: Life, topic_id: int, view_id: int, number: int, sender: int, writer: int,
             payload: bytes) -> None:
        assert life.view is not None
        self.deliveries += 1
        sequence = self.sequences.get((life.view.group_id, view_id, topic_id))
        if sequence is None or life.number not in sequence.places:
            raise Violation("D4", f"{life} delivers in view {view_id}, topic {topic_id}, of which it is no member")
        if not sequence.ordered:
            self._one_unordered(life, sequence, topic_id, sender, writer, payload)
            return
        place = sequence.places[life.number]
        sequence.places[life.number] = place + 1
        self._at(life, sequence, topic_id, place, (number, sender, writer, payload))

    def owed(self, life: Life, topic_id: int, rest: list[Any]) -> None:
        """The end of a view, which a node is to deliver when its log has room. Its places in the order are taken now,
        since members that came later may deliver what follows."""
        assert life.view is not None
        sequence = self.sequences[life.view.group_id, life.view.view_id, topic_id]
        if sequence.ordered:
            for place, (payload, sender, number, _, writer, _) in enumerate(rest, sequence.places[life.number]):
                self._at(life, sequence, topic_id, place, (number, sender, writer, payload))

    def _at(self, life: Life, sequence: Sequence, topic_id: int, place: int,
            entry: tuple[int, int, int, bytes]) -> None:
        """A node delivers an entry at this place of an ordered topic: the same as the others, or it is the first."""
        number, sender, view_id = entry[0], entry[1], sequence.view_id
        if place < len(sequence.entries):
            if sequence.entries[place] != entry:
                raise Violation("D6", f"{life} delivers {_show(entry)} in view {view_id}, topic {topic_id}, at place "
                                      f"{place}, others {_show(sequence.entries[place])}")
            return
        self.require(sequence.final < 0 or place < sequence.final, "D8",
                     f"{life} delivers {_show(entry)} in view {view_id}, topic {topic_id}, whose end was place "
                     f"{sequence.final}")
        member = sequence.senders.get(sender)
        if member is None:
            raise Violation("D3", f"{life} delivers {_show(entry)}: no sender of topic {topic_id} in view {view_id}")
        if number % len(sequence.ranks) != sequence.ranks[sender] or (
                sequence.entries and number <= sequence.entries[-1][0]):
            raise Violation("D6", f"{life} delivers {_show(entry)} after {_show(sequence.entries[-1])}")
        self._of_writer(life, sequence, member, topic_id, entry)
        sequence.entries.append(entry)
        self.world.mix(number, sender)

    def _of_writer(self, life: Life, sequence: Sequence, member: Member, topic_id: int,
                   entry: tuple[int, int, int, bytes]) -> None:
        """D1, D2, D5, D7: this must be the next message of its writer."""
        by = self.writers.get((member, topic_id, entry[2]))
        if by is None:
            raise Violation("D1", f"{life} delivers {_show(entry)}: that writer doesn't exist")
        if by.next >= len(by.sent):
            raise Violation("D2", f"{life} delivers {_show(entry)}: all {by.next} of that writer were delivered before")
        if by.sent[by.next] != entry[3]:
            name = "D2" if entry[3] in by.sent[: by.next] else "D7" if entry[3] in by.sent[by.next:] else "D1"
            raise Violation(name, f"{life} delivers {_show(entry)}: message {by.next} of that writer is "
                                  f"{_show((0, 0, 0, by.sent[by.next]))}")
        by.next += 1
        by.where.append((sequence, len(sequence.entries)))

    def _one_unordered(self, life: Life, sequence: Sequence, topic_id: int, sender: int, writer: int,
                       payload: bytes) -> None:
        """Unordered: of each writer its messages in its order, each once; those of a view's end may be missing."""
        member = sequence.senders.get(sender)
        by = self.writers.get((member, topic_id, writer)) if member is not None else None
        if by is None:
            raise Violation("D3", f"{life} delivers an unordered message of {sender}/{writer}: no such writer")
        seen = self.unordered.get((life.number, topic_id, by.uid), 0)
        while seen < len(by.sent) and by.sent[seen] != payload:
            seen += 1
        if seen == len(by.sent):
            raise Violation("D5", f"{life} delivers {payload[:12].hex()} of {sender}/{writer}: not there or too late")
        self.unordered[life.number, topic_id, by.uid] = seen + 1

    def acknowledged(self, life: Life) -> None:
        """A1: what a node's writers were told is delivered everywhere, all members of its view have delivered."""
        if life.view is None:
            return
        for topic_id, writers in life.writers.items():
            for writer in writers:
                if writer.inbox is None or writer.inbox.acknowledged == writer.told:
                    continue
                key = (life.view.group_id, life.view.view_id, topic_id)
                sequence = self.sequences.get(key)
                if sequence is None or not sequence.ordered or self._check_told(life, sequence, writer):
                    writer.told = writer.inbox.acknowledged

    def _check_told(self, life: Life, sequence: Sequence, writer: Writer) -> bool:
        """False if it can't be said yet, because the end of a view waits for room in a log."""
        assert writer.inbox is not None
        told = writer.inbox.acknowledged
        there = [one for one in map(self.world.lives.__getitem__, sequence.places) if writer.topic_id in one.readers]
        if any(one.readers[writer.topic_id].backlog for one in there):
            return False
        if told > writer.next:
            raise Violation("A1", f"{life}: {told} messages of writer {writer.number} in topic {writer.topic_id}"
                                  f" are acknowledged, {writer.next} were delivered by anybody")
        where, place = writer.where[told - 1]
        if where is not sequence:
            return True  # of an earlier view: who goes on from that has all of it (D9)
        for other in there:
            if _same_view(other, life) and other.readers[writer.topic_id].delivered <= place:
                raise Violation("A1", f"{life}: message {told - 1} of writer {writer.number} in topic "
                                      f"{writer.topic_id} is acknowledged, but {other} has not delivered it")
        return True

    # --- the end

    def failed(self, life: Life, kind: str, text: str) -> None:
        self.world.hit(f"failed {kind}")
        self.world.mix(life.number, len(kind))
        lost = not self.world.fabric.certain and any(one.end == CRASHED for one in self.world.lives)
        if kind == "CastOut" or (kind == "NoMajority" and not lost):
            self.require(self.world.causes > 0, "E1", f"{life} stops though nobody was accused: {kind}: {text}")
        elif kind not in ("NoMajority", "NodeIdTaken", "JoinFailed"):
            self.violated("E1", f"{life} stops of a defect: {kind}: {text}")

    def settled(self, running: Iterable[Life]) -> None:
        """The end of a run: everything that must have happened in the end."""
        core = list(running)
        views = {life.view for life in core}
        self.require(len(views) == 1, "L2", f"not one view: {[str(life) + ' ' + life.state() for life in core]}")
        view = core[0].view
        assert view is not None
        self.require(set(view.members) == {life.me for life in core}, "L2",
                     f"view {view.view_id} has {[str(one) for one in view.members]}, running are "
                     f"{[str(life) for life in core]}")
        for topic in view.topics:
            if not topic.members:
                continue
            sequence = self.sequences[view.group_id, view.view_id, topic.topic_id]
            for life in core:
                if life.node_id in topic.members and sequence.ordered:
                    self.require(sequence.places[life.number] == len(sequence.entries), "D9",
                                 f"{life} has delivered {sequence.places[life.number]} of {len(sequence.entries)} "
                                 f"messages of topic {topic.topic_id}")
        for life in core:
            for topic_id, writers in life.writers.items():
                sequence = self.sequences[view.group_id, view.view_id, topic_id]
                for writer in [*writers, *([life.direct[topic_id]] if topic_id in life.direct else [])]:
                    if sequence.ordered:
                        self.require(writer.next == len(writer.sent), "D10",
                                     f"{life}: {writer.next} of {len(writer.sent)} messages of writer {writer.number} "
                                     f"in topic {topic_id} were delivered")
                    if writer.inbox is not None:
                        self.require(writer.drained, "D10",
                                     f"{life}: {writer.inbox.acknowledged} of {writer.inbox.committed} messages of "
                                     f"writer {writer.number} in topic {topic_id} were acknowledged")


def _show(entry: tuple[int, int, int, bytes]) -> str:
    number, sender, writer, payload = entry
    return f"<{number} of {sender}/{writer}: {len(payload)} bytes {payload[:8].hex()}>"
