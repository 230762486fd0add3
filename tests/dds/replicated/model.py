"""An order without nodes: replicas' machines that read one list of entries, each at its own pace, while replicas come,
die in the middle of what they write, lose their node or their place, and begin anew.

What the order guarantees is all that is guaranteed here: what one replica writes comes in that order, or its rest is
lost with the replica; everybody reads the same.
"""

from __future__ import annotations

import random

from dds.replicated.conduct import Conduct
from dds.replicated.machine import Phase
from dds.replicated.messages import Entry, Kind
from dds.replicated.object import Carrier, Object, command

PIECE = 40  # bytes: a snapshot has several


class Tape(Object):
    """Whatever comes, in the order in which it came."""

    marks: list[tuple[int, str, int]]
    gone: list[bytes]

    def __init__(self) -> None:
        self.marks = []
        self.gone = []

    @command
    def mark(self, text: str) -> int:
        self.marks.append((self.order.index, text, self.order.random.randrange(1 << 30)))
        if len(self.marks) % 7 == 0:
            raise ValueError(text)
        return len(self.marks)

    def replica_gone(self, replica: bytes) -> None:
        self.gone.append(replica)


class LaterTape(Tape):
    """A later version of it."""

    @command
    def wipe(self) -> None:
        self.marks.clear()


LaterTape.__name__ = "Tape"


class Reader:
    """One replica: where it stands in the order, and what it has written that isn't in the order yet."""

    def __init__(self, world: World, number: int, kind: type[Tape] = Tape) -> None:
        self.world = world
        self.carrier = Carrier(kind, kind)
        self.conduct: Conduct[str] = Conduct(
            number.to_bytes(16, "big"), self.carrier, world.check_every, world.snapshot_every, world.piece)
        self.machine = self.conduct.machine
        self.at = world.kept_from
        self.outbox: list[Entry] = self.conduct.join()
        self.results: dict[str, object] = {}
        self.alive = True
        self.clock = number * 1000

    def command(self, text: str) -> None:
        self.outbox.append(self.conduct.begin("mark", self.world.mark.arguments.encode((text,)), text))

    def read(self, most: int) -> None:
        while most and self.at < len(self.world.order):
            entry, timestamp = self.world.order[self.at]
            self.at += 1
            most -= 1
            write, settled = self.conduct.came(entry, timestamp)
            self.outbox += write
            for text, result in settled:
                assert text not in self.results, "a command was carried out twice"
                self.results[text] = result.value if result.error is None else str(result.error)
            self.world.compare(self)

    def write(self, most: int) -> None:
        for _ in range(min(most, len(self.outbox))):
            self.clock += 1
            self.world.order.append((self.outbox.pop(0), self.clock))

    def look_around(self) -> None:
        self.outbox += self.conduct.look_around(
            {one.machine.me for one in self.world.readers if one.alive}, surely=True)

    def lose_node(self) -> None:
        """Some of what it wrote is lost; what is pending is written again, also what had come."""
        self.outbox = self.conduct.write_again()

    def lose_place(self) -> None:
        self.outbox += self.conduct.lose_place()[0]
        self.at = self.world.kept_from
        self.results.clear()  # what it was told of may be carried out no more, or again, by another object


class World:
    """The order and all replicas. keeps: entries that a newcomer finds at least; None = all."""

    def __init__(self, seed: int, check_every: int = 5, snapshot_every: int = 0, keeps: int | None = None,
                 piece: int = PIECE) -> None:
        self.random = random.Random(seed)
        self.check_every = check_every
        self.snapshot_every = snapshot_every
        self.keeps = keeps
        self.piece = piece
        self.order: list[tuple[Entry, int]] = []
        self.readers: list[Reader] = []
        self.states: dict[int, tuple[bytes, bytes]] = {}  # by place of the order: what all must have there
        self.count = 0
        from dds.replicated.object import interface_of

        self.mark = interface_of(Tape).operations["mark"]

    @property
    def kept_from(self) -> int:
        return 0 if self.keeps is None else max(0, len(self.order) - self.keeps)

    @property
    def alive(self) -> list[Reader]:
        return [one for one in self.readers if one.alive]

    def come(self, kind: type[Tape] = Tape) -> Reader:
        one = Reader(self, len(self.readers) + 1, kind)
        self.readers.append(one)
        return one

    def compare(self, reader: Reader) -> None:
        """Wherever two replicas have a state at the same place of the order, it is the same one."""
        machine = reader.machine
        if machine.agreed is None or machine.phase is Phase.STOPPED:
            return
        first = next(entry.origin for entry, _ in self.order if entry.kind == Kind.GENESIS)
        if machine.phase is Phase.READING and machine.agreed.lineage != first:
            return  # what began the object is not kept any more; the next entry about it says so
        mine = (machine.agreed.encode(b""), reader.carrier.snapshot())
        found = self.states.setdefault(reader.at, mine)
        assert found == mine, f"two states after entry {reader.at}"

    def lose_all_nodes(self, on_disk: int) -> None:
        """So many entries were on disk, with which the order goes on. Whoever is alive hears of that in its time."""
        del self.order[on_disk:]
        self.states = {at: state for at, state in self.states.items() if at <= on_disk}

    def settle(self) -> None:
        """Everybody reads and writes until nothing happens any more."""
        for _ in range(200):
            before = len(self.order), [one.at for one in self.alive]
            for one in self.alive:
                one.look_around()
                one.write(1 << 30)
                one.read(1 << 30)
            if (len(self.order), [one.at for one in self.alive]) == before:
                return
        raise AssertionError("it never comes to rest")

    def commands(self) -> list[str]:
        """The texts of all commands that are in the order, each once, in the order."""
        found: dict[str, None] = {}
        for entry, _ in self.order:
            if entry.kind == Kind.COMMAND:
                found.setdefault(self.mark.arguments.decode(entry.body)[0])
        return list(found)
