"""O1 to O6: what must hold of a replicated object (`dds.replicated`) in a run. The programs that hold it: `replicas`.

    O1  replicas that have the state have the same at the same place of the order, and it is the one that a replica had
        which carried out every entry: so whoever got a snapshot has neither a gap in it nor anything twice
    O2  a command is carried out once; its caller is told what it came to there, or that nobody can say whether it was
    O3  what a caller was told lasts as long as the object does: until no replica and no node that has it is left
    O4  a logged object has, after the death of all, every command that was known to be on disk everywhere
    O5  in the end all replicas have the state, know of each other and of nobody else, and nothing is under way
    O6  a replica says of another that it has gone only if that has, or its node, or that came from another one lately

What of a logged topic was in journals that the others went on without (`.forked`), or that no node had which began
the topic anew, is not promised, see docs/reliability.md.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import TYPE_CHECKING

from dds.replicated.machine import Phase, Result
from dds.replicated.object import Object, command
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.node.node import Node
    from spindle_lab.whole.replicas import Held, Replicating
    from spindle_lab.whole.world import World

TOPIC = "object"
SIZE_MAX = 2000
HISTORY_BYTES = 1 << 16
Place = tuple[int, int, int]  # group, view, sequence


class Roll(Object):
    """All commands, in their order. One in seven raises.

    chain  over all that a command may go by, and over the replicas that have gone
    """

    marks: list[int]
    chain: int = 0

    def __init__(self) -> None:
        self.marks = []

    @command
    def mark(self, what: int, filling: bytes) -> int:
        """How many there are by now."""
        order = self.order
        self.marks.append(what)
        self._link(what, len(filling), order.index, order.timestamp, order.sender, order.random.getrandbits(32))
        if what % 7 == 0:
            raise ValueError(str(what))
        return len(self.marks)

    def replica_gone(self, replica: bytes) -> None:
        """Alike everywhere, too."""
        self._link(replica, self.order.index, self.order.timestamp)

    def _link(self, *what: object) -> None:
        self.chain = zlib.crc32(repr(what).encode(), self.chain)


@dataclasses.dataclass
class Told:
    """What the caller of a command was told: what it came to, of which object, and of a topic of which group."""

    result: Result
    lineage: bytes


@dataclasses.dataclass(frozen=True)
class Port:
    """One end of a replica, as others see it."""

    held: Held
    guid: bytes
    is_writer: bool
    topic: str = TOPIC

    @property
    def open(self) -> bool:
        """It is there."""
        return self.held.open and self.guid in self.held.guids

    @property
    def program(self) -> Replicating:
        """Whose it is."""
        return self.held.program


class Objects:
    """The object of a run, and everybody who has or had a replica of it."""

    def __init__(self, world: World) -> None:
        rng = world.system.random
        self.world = world
        level = rng.choice((Level.VOLATILE, Level.LOGGED))
        self.logged = level is Level.LOGGED
        self.spec = TopicSpec(TOPIC, level=level, size_max=SIZE_MAX, window=rng.choice((1, 2, 8)),
                              history_bytes=HISTORY_BYTES)
        # Of a topic in memory, the beginning shall be forgotten in many runs: then there is no way but by a snapshot.
        self.filling_max = rng.choice((0, 400) if self.logged else (0, 1500, 1500))
        self.check_every = rng.choice((0, 5))
        self.programs: list[Replicating] = []
        self.ports: list[Port] = []
        self.commands = 0  # their numbers are 1 to this
        self.told: dict[int, Told] = {}
        self.safe: dict[int, int] = {}  # commands that were known to be on disk everywhere -> group, in whose order
        self.states: dict[Place, bytes] = {}
        self.groups: set[int] = set()  # whose orders had entries
        self.losses = 0  # how often nobody had the state any more
        self.is_lost = False  # ... and who has a replica of it closes that
        self.donor_dies_at = -1  # who gives the next snapshot is killed when it has written so many pieces

    # --- while it runs

    def next_command(self) -> int:
        """A number that no other one has."""
        self.commands += 1
        return self.commands

    def came(self, held: Held, place: Place) -> None:
        """O1, when a replica has followed the entry at this place."""
        machine = held.conduct.machine
        held.place = place
        self.groups.add(place[0])
        if machine.why_stopped:
            raise Violation("O1", f"{held} stops: {machine.why_stopped}")
        if machine.agreed is None or machine.phase not in (Phase.ENTERING, Phase.LIVE):
            return
        state = held.carrier.snapshot()
        assert state is not None
        mine = machine.agreed.encode(state)
        found = self.states.setdefault(place, mine)
        if found != mine:
            raise Violation("O1", f"{held} has, after the entry at {place}, another state than others had there")

    def settled(self, held: Held, what: int, result: Result) -> None:
        """O2: the caller of a command is told."""
        machine, roll = held.conduct.machine, held.roll
        assert machine.agreed is not None
        if what in self.told:
            raise Violation("O2", f"{held} is told twice what command {what} came to")
        self.told[what] = Told(result, machine.agreed.lineage)
        place = result.value if result.error is None else len(roll.marks)
        if roll.marks[place - 1 : place] != [what] or (result.error is not None) != (what % 7 == 0):
            raise Violation("O2", f"{held} is told {result} of command {what}, and has {roll.marks[place - 1 : place]} "
                                  "there")

    def look_for_loss(self, held: Held) -> None:
        """One waits for a state: if nobody has it, all that is left of the object must be closed."""
        if not self.is_lost and not any(one.has_state for one in self.held()):
            self.is_lost = True
            self.losses += 1
            self.world.met("a replicated object is lost")
            self.world.note(f"nobody has the state of {TOPIC!r} any more")
            if self.logged and not self._forked():
                raise Violation("O4", f"{held} waits for a snapshot, and nobody has the state of the object, though it "
                                      "is on disk")

    def buried(self, held: Held, replica: bytes) -> None:
        """O6: one says of another that it has gone."""
        for one in self.held():
            if one.me == replica and one.is_there(self.world.system.now_ns) and self._together(held, one):
                raise Violation("O6", f"{held} says that {one} has gone, which is there, at a node of the same view")

    def _together(self, first: Held, second: Held) -> bool:
        """Their nodes are in one view, and connected: the end of a connection is the end of its node for the other."""
        one, other = self._node_of(first), self._node_of(second)
        if one is None or other is None or one._view is None or other._view is None:
            return False
        return (one._view.group_id, one._view.view_id) == (other._view.group_id, other._view.view_id) and (
            one is other or (other.node_id in one._peers.lives() and one.node_id in other._peers.lives()))

    def _node_of(self, held: Held) -> Node | None:
        session = held.program.session
        return None if session is None or session.gone else next(
            (slot.attachments.node for slot in self.world.nodes
             if slot.node_id == session.node_id and slot.serving and slot.attachments is not None), None)

    def closed(self) -> None:
        """A replica has been closed."""
        if self.is_lost and not self.held():
            self.is_lost = False

    def held(self) -> list[Held]:
        """All replicas that there are."""
        return [one.held for one in self.programs if one.held is not None and one.process.alive]

    def _lived(self) -> set[int]:
        """The groups to whose orders the topic's belongs."""
        nodes = [slot.attachments.node for slot in self.world.nodes if slot.attachments is not None and slot.serving]
        tables = [node._changes.topics.local.get(TOPIC) for node in nodes]
        return {life.group_id for local in tables if local is not None and local.member for life in local.lives}

    def _forked(self) -> bool:
        return any(self.world.base.glob(f"*/journal-*/**/*{TOPIC}*.forked*"))

    # --- at the end

    def unsettled(self) -> str:
        """O5: what is still under way, if anything."""
        expected = [one for one in self.programs if not one.ended]
        for program in expected:
            if program.held is None or program.held.unsettled():
                what = "has no replica" if program.held is None else program.held.unsettled()
                return f"{program.process} {what}"
        if len({program.held.place for program in expected if program.held is not None}) > 1:
            return "not all replicas have followed the last entry"
        ids = {program.held.me for program in expected if program.held is not None}
        for program in expected:
            agreed = program.held.conduct.machine.agreed if program.held is not None else None
            if agreed is None or set(agreed.live) != ids or agreed.wants or agreed.serving or agreed.checks:
                return f"{program.process} has {agreed} of the replicas {sorted(ids)}"
        return ""

    def end(self) -> None:
        """O2 to O4, when everybody has everything."""
        held = self.held()
        if not held:
            return
        machine, marks = held[0].conduct.machine, held[0].roll.marks
        assert machine.agreed is not None
        if len(set(marks)) < len(marks):
            twice = sorted(one for one in set(marks) if marks.count(one) > 1)
            raise Violation("O2", f"the commands {twice[:5]} ({len(twice)} in all) were carried out twice")
        there, forked = set(marks), self.logged and self._forked()
        whole = not (self.logged and self.world.faulty)  # else what was not on disk may be lost with all nodes
        if whole and not forked:
            told = {what for what, one in self.told.items() if one.lineage == machine.agreed.lineage}
            if lost := sorted(told - there):
                raise Violation("O3", f"the commands {lost[:5]} ({len(lost)} in all) were carried out, and the object "
                                      "has them no more")
        lived = self._lived()
        if not forked and (lost := sorted(what for what, group_id in self.safe.items()
                                          if what not in there and group_id in lived)):
            raise Violation("O4", f"the commands {lost[:5]} ({len(lost)} in all) were on disk everywhere, and the "
                                  "object has them no more")
        if self.logged and len(self.groups) > 1 and self.safe and not forked:
            self.world.met("a logged object has outlived all nodes")
        if marks:
            self.world.met("all replicas have all commands in the end")


__all__ = ["HISTORY_BYTES", "TOPIC", "Objects", "Place", "Port", "Roll", "Told"]
