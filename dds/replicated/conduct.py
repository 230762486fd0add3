"""A replica but for its threads: the machine, the commands in flight, and what is to be written, and when.

`dds.replicated.driver` drives it with threads over a topic of DDS, the simulator with its own scheduling over nodes.

Rules: whoever calls it holds one lock around each call, and writes what it is given in that order. The commands that
begin() makes are written in that order, too; what the other calls return may be written before them or behind them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dds.replicated.machine import ENTRY_BYTES, Machine, Phase, Result, Target
from dds.replicated.messages import Entry

T = TypeVar("T")

NEWS_S = 1.0  # so long after it counts in the order that a replica is there may be unknown


class Conduct(Generic[T]):
    """One replica. T: what its driver keeps with each command, to tell its result to.

    me, target, check_every, snapshot_every  see Machine
    piece_bytes  of a snapshot, in one entry

    Why commands are held back: a logged object lives on what its topic keeps, `history_bytes`, of which snapshot_every
    is an eighth. So a whole snapshot must be in that at any time. One is taken when an eighth has come since the last
    one was complete. Whoever sees half of it come since the last one was taken writes no command before the next one
    is complete; what is on its way by then, of all replicas together, is held to a sixteenth. The rest is for that
    snapshot, and for those that donors have begun and died.
    Without the state, too: a snapshot that a command is in already says nothing of its result, and one that is written
    without a lineage is carried out by nobody.

    Why who was never seen has not gone: that a replica is live comes in the order, and that it is there by another way,
    which may be the slower one. Who has been there and is no more has gone. Of who has not been there yet that is said
    only if it is so for NEWS_S, and the node says so then; it may have ended before anybody heard of it.
    """

    def __init__(self, me: bytes, target: Target, check_every: int, snapshot_every: int, piece_bytes: int) -> None:
        self.machine = Machine(me, target, check_every, snapshot_every)
        self.snapshot_bytes = 0  # of the last one that this replica has given
        self._piece_bytes = piece_bytes
        self._flight_bytes = snapshot_every // 2  # of all replicas
        self._in_flight: dict[int, tuple[Entry, T]] = {}
        self._bytes = 0  # of them
        self._seen: set[bytes] = set()  # replicas that were there, of those that count

    @property
    def in_flight(self) -> int:
        """Commands whose result isn't known."""
        return len(self._in_flight)

    @property
    def has_state(self) -> bool:
        """False: it does not have the state of the object, or may yet find that it has another object's."""
        return self.machine.phase in (Phase.ENTERING, Phase.LIVE)

    @property
    def holds_back(self) -> bool:
        """True: no command may begin now. It changes with what comes."""
        agreed = self.machine.agreed
        if agreed is None or not self.has_state:
            return True
        if not self._flight_bytes:
            return False
        mine = self._flight_bytes // max(1, len(agreed.live))
        return self.machine.must_wait or (self._bytes >= mine and bool(self._in_flight))

    def join(self) -> list[Entry]:
        """What to write first."""
        return [self.machine.join()]

    def begin(self, name: str, body: bytes, whom: T) -> Entry:
        """A command to write; its result is told to `whom`."""
        entry = self.machine.command(name, body)
        self._in_flight[entry.number] = entry, whom
        self._bytes += _size(entry)
        return entry

    def withdraw(self, entry: Entry) -> None:
        """A command was not written, and never will be."""
        self._settle(entry.number)

    def _settle(self, number: int) -> T | None:
        entry, whom = self._in_flight.pop(number, (None, None))
        if entry is not None:
            self._bytes -= _size(entry)
        return whom

    def came(self, entry: Entry, timestamp: int) -> tuple[list[Entry], list[tuple[T, Result]]]:
        """The next entry of the order; `timestamp` of its sample, UTC ns. What to write, and the results of commands,
        each once."""
        effects = self.machine.deliver(entry, timestamp, len(entry.body) + len(entry.name))
        write = effects.send
        if effects.snapshot is not None:
            number, snapshot = effects.snapshot
            self.snapshot_bytes = len(snapshot)
            write = [*write, *self.machine.pieces(number, snapshot, self._piece_bytes)]
        found = ((self._settle(number), result) for number, result in effects.results)
        return write, [(whom, result) for whom, result in found if whom is not None]

    def _lacking(self, there: set[bytes]) -> set[bytes]:
        """Replicas that count in the order and are not among these."""
        agreed = self.machine.agreed
        if agreed is None:
            return set()
        counted = {*agreed.live, *agreed.wants}
        self._seen &= counted
        self._seen |= there & counted
        return counted - there

    def is_lacking(self, there: set[bytes]) -> bool:
        """True if a replica has gone that counts in the order: it was there, and isn't among these; or if it depends on
        who is there whether this one may be live: see `must_look`."""
        lacking = self._lacking(there)
        return self.must_look or (self.machine.phase is Phase.LIVE and not self._seen.isdisjoint(lacking))

    def awaits_news(self, there: set[bytes]) -> bool:
        """True if a replica counts in the order that has never been there: if that lasts for NEWS_S, look_around with
        those that are there by what its node knows, `surely`."""
        return self.machine.phase is Phase.LIVE and not self._lacking(there) <= self._seen

    @property
    def must_look(self) -> bool:
        """True: replicas of another class are live in the order. Call look_around with those that are there now, by
        what its node knows, not by what has been heard of that."""
        return self.machine.must_look

    def look_around(self, there: set[bytes], surely: bool = False) -> list[Entry]:
        """These replicas are there by now: what to write of those that are not. surely: also of those that have never
        been there."""
        lacking = self._lacking(there)
        return self.machine.present(there if surely or self.must_look else there | (lacking - self._seen))

    def write_again(self) -> list[Entry]:
        """Its node has gone, and with it perhaps entries that it had written: what to write at the next one. All that
        is in flight is, in its order; what had come before is told by its number."""
        return [*self.machine.reattached(), *(self.machine.stamped(one) for one, _ in self._in_flight.values())]

    def lose_place(self) -> tuple[list[Entry], list[T]]:
        """Entries may be missing here: what to write to get the state anew. Of the commands in flight, which are
        returned, nobody can say whether they were carried out.

        Call it with a reader that has just been opened, and begins with all that the topic has kept.
        """
        return self.machine.lose_place(), self.give_up()

    def give_up(self) -> list[T]:
        """Those who wait for results, which won't come any more."""
        given_up = [whom for _, whom in self._in_flight.values()]
        self._in_flight, self._bytes = {}, 0
        return given_up

    def leave(self) -> list[Entry]:
        """What to write last."""
        return [self.machine.leave()]


def _size(entry: Entry) -> int:
    return len(entry.body) + len(entry.name) + ENTRY_BYTES


__all__ = ["NEWS_S", "Conduct"]
