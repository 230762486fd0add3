"""A replica as a state machine: entries of the order go in, entries to write and results come out. No thread, no clock,
no topic: what drives it (`dds.replicated.driver`, or the simulator) reads and writes.

How an object begins: a replica writes JOIN when it begins to read. When that comes back, it has read all that the topic
has kept. If nothing of that says that there is an object, it writes GENESIS. The first GENESIS of the order begins the
object, in the state that the class says, at everybody who reads it, also at those who read it later.

How a replica gets the state: by that GENESIS and all commands behind it, or by a snapshot and all commands behind that.
One that finds neither in what it reads writes WANT. Then the first of the live replicas writes SNAPSHOT; the state as
it is where this comes back is the snapshot, and goes out in pieces. Whoever has no state keeps all entries behind a
SNAPSHOT until its pieces are complete: so there is no gap and nothing twice. If the donor goes (GONE), whoever is the
first then begins another one.

How a logged object is lost whole: all nodes died before its beginning was on disk, and its replicas live on. What they
say of it until they hear of that is no evidence. So who knows that it has read all that the topic ever had (the topic
keeps twice as much, and all who speak of an object have come in it, or say that they have no state) goes by that: the
first GENESIS in it began the object, and if there is none, it writes one.

One class at a time: what is live together has one signature. Whoever says that it is live with another one is not.
When it reads that, it looks who is there: if nobody is of those that are live in the order (they were killed all at
once, and who was left to say that?), it says that they are gone, and again that it is live; otherwise it stops. So a
later version of a class goes on with the state when no replica of the earlier one is there.

Rules: whatever an entry does depends on the order alone. A command is carried out once, though it may be in the order
twice: each replica numbers its own. A replica that isn't live writes nothing that others could take for the object's.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Protocol

from dds.replicated.agreed import CHECKS_MAX, Agreed, Check
from dds.replicated.messages import ID_BYTES, NONE, Entry, Kind

SPAN_MAX = 4  # in units of `snapshot_every`: how much may come after a snapshot while there is no other one
BACKLOG_MAX = 256 << 20  # bytes of entries that are kept for a snapshot that isn't complete
ALL_MAX = 16 << 20  # bytes of entries that are kept until it is known whether that is all that there ever was
ENTRY_BYTES = 192  # of an entry beside its name and body, and of its record in a log, at most
COMMANDS_BETWEEN_MAX = 1024  # between two tries to make a snapshot of a state of which none could be made
CANDIDATES_MAX = 64  # snapshots that are followed at a time
ANOTHER_CLASS = ("another class, or another version of this one: its commands or its state differ. End all replicas of "
                 "the one first, or give the other another name")
EVIDENCE = (Kind.COMMAND, Kind.LIVE, Kind.SNAPSHOT, Kind.PIECE, Kind.CHECK)  # that there is an object


class Unrestorable(Exception):
    """The object refuses a state that other replicas have; the text says how."""


class Target(Protocol):
    """The object, see `dds.replicated.object`.

    signature  differs where the class does: its name, its commands, its state
    """

    signature: bytes

    def begin(self) -> None:
        """Into the state in which an object begins."""

    def carry_out(self, name: str, body: bytes, context: Context) -> Result:
        """A command. Raises nothing that the command raises: that belongs to the result."""

    def tell_gone(self, replica: bytes, context: Context) -> None:
        """A replica is there no more."""

    def snapshot(self) -> bytes | None:
        """Equal states have equal bytes; None: none can be made of this one."""

    def restore(self, state: bytes) -> None:
        """ValueError for what snapshot() doesn't make, Unrestorable if the object can't do it."""

    def digest(self) -> bytes:
        """Of the state."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What a command may go by beside its arguments, alike at every replica.

    index      number of the command in the order, from 1
    timestamp  agreed time, UTC ns: when it was written by its sender's clock, but never before the one before it
    sender     id of the replica that it comes from
    seed       of random numbers
    """

    index: int
    timestamp: int
    sender: bytes
    seed: bytes


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command has returned, or raised."""

    value: Any = None
    error: BaseException | None = None


class Phase(enum.Enum):
    """How far a replica is."""

    READING = "reads what the topic has kept"
    WAITING = "waits for a snapshot"
    ENTERING = "has the state"
    LIVE = "is live"
    STOPPED = "has stopped"


@dataclasses.dataclass
class Effects:
    """What follows from an entry.

    send      entries to write
    results   of commands of this replica, by number
    snapshot  to give in pieces: its number and bytes
    """

    send: list[Entry] = dataclasses.field(default_factory=list)
    results: list[tuple[int, Result]] = dataclasses.field(default_factory=list)
    snapshot: tuple[int, bytes] | None = None


@dataclasses.dataclass
class _Candidate:
    """A snapshot that isn't complete: where its place is in the backlog, of which class it is, and its pieces."""

    begin: int
    signature: bytes
    pieces: list[bytes] = dataclasses.field(default_factory=list)


class Machine:
    """One replica.

    me              its id
    check_every     commands after which all replicas compare their states; 0 = never
    snapshot_every  bytes of entries after which the topic gets another snapshot; 0 = only if somebody needs one
    """

    def __init__(self, me: bytes, target: Target, check_every: int, snapshot_every: int) -> None:
        self.me = me
        self.phase = Phase.READING
        self.why_stopped = ""
        self.strangers = 0  # entries about another object of the same name
        self.agreed: Agreed | None = None
        self._target = target
        self._check_every = check_every
        self._snapshot_every = snapshot_every
        self._joins = 0
        self._read = False  # our JOIN has come back: we have had all that was kept
        self._evidence = False  # something that we have read says that there is an object, which began before that
        self._exists = False  # ... or had said so, when we last lost our place: we don't begin another one
        # All that we have read, and its bytes; None: more than half of what the topic keeps, or than ALL_MAX, or no
        # more needed. Only of a logged object: of others we don't know how much their topic keeps.
        self._all: list[tuple[Entry, int, int]] | None = [] if snapshot_every else None
        self._all_bytes = 0
        self._has_all = False  # we have read all that the topic ever had
        self._number = 0  # of our last command
        self._backlog: list[tuple[Entry, int, int]] = []
        self._backlog_bytes = 0
        self._candidates: dict[tuple[bytes, int], _Candidate] = {}
        self._snapshots = 0
        self._begins_snapshot = False  # our SNAPSHOT is on its way
        self._unmade: int | None = None  # no snapshot could be made: it is tried again behind this command
        self._commands_between = 1  # such tries: twice as many each time
        self._buried: set[bytes] = set()  # whose GONE is on its way
        self._refused = False  # those that are live in the order are of another class: are they there?
        self._effects = Effects()

    # --- what the program and the world say

    def join(self) -> Entry:
        """The first entry to write."""
        self._joins += 1
        return self._entry(Kind.JOIN, number=self._joins)

    def command(self, name: str, body: bytes) -> Entry:
        """A command to write; commands must be written in the order in which they are made."""
        self._number += 1
        return self._entry(Kind.COMMAND, number=self._number, name=name, body=body)

    def stamped(self, command: Entry) -> Entry:
        """A command of ours, made again for the object as it is now."""
        return dataclasses.replace(command, lineage=self._lineage)

    @property
    def must_look(self) -> bool:
        """True: it waits for present(), with those that are there now."""
        return self._refused

    def present(self, replicas: set[bytes]) -> list[Entry]:
        """These replicas are there: what to write about those that should be and are not."""
        if self.agreed is None or not (self.phase is Phase.LIVE or self._refused):
            return []
        if self._refused and not replicas.isdisjoint(self.agreed.live):
            self._stop(f"what is live under this name is of {ANOTHER_CLASS}")
            return [self._entry(Kind.GONE, body=self.me)]
        gone = [one for one in (*self.agreed.live, *self.agreed.wants)
                if one not in replicas and one not in self._buried and one != self.me]
        self._buried.update(gone)
        write = [self._entry(Kind.GONE, body=one) for one in gone]
        if self._refused:
            self._refused = False
            write.append(self._entry(Kind.LIVE, body=self._target.signature))
        return write

    def leave(self) -> Entry:
        """What to write last."""
        self._stop(self.why_stopped)
        return self._entry(Kind.GONE, body=self.me)

    def reattached(self) -> list[Entry]:
        """Its node went away, and entries of it may be lost: what to write before its commands are written again.

        Nobody can rely on what it had begun: to the others it goes, and comes back.
        """
        self._buried.clear()
        self._begins_snapshot = self._refused = False
        return [self._entry(Kind.GONE, body=self.me), self.join()]

    def lose_place(self) -> list[Entry]:
        """Entries may be missing: the state can't be trusted any more. What to write to get one.

        From now on come all that the topic has kept, and what follows: the object's beginning may be in that, and then
        nobody else is needed.
        """
        self._exists = self._exists or self._evidence or self.agreed is not None
        self._forget_state(evidence=False)
        self._read = self._has_all = False
        self._all, self._all_bytes = [] if self._snapshot_every else None, 0
        return self.reattached()

    def _forget_state(self, evidence: bool) -> None:
        self.agreed = None
        self._evidence = evidence
        self.phase = Phase.READING
        self._forget_backlog()
        self._begins_snapshot = False
        self._refused = False
        self._buried.clear()

    @property
    def must_wait(self) -> bool:
        """True: a snapshot must be complete before more commands are written, that the last one isn't forgotten by the
        topic before there is another one."""
        agreed = self.agreed
        return bool(self._snapshot_every) and agreed is not None and (
            agreed.total - agreed.kept_from >= SPAN_MAX * self._snapshot_every)

    # --- the order

    def deliver(self, entry: Entry, timestamp: int, size: int) -> Effects:
        """The next entry of the order; `timestamp` of its sample (UTC ns), `size` in bytes."""
        self._effects = effects = Effects()
        if self.phase is Phase.STOPPED or not _is_sound(entry):
            return effects
        self._note(entry, timestamp, size)
        if self.agreed is not None:
            self._carry_out(entry, timestamp, size)
        if self.agreed is None:
            self._look_for_state(entry, timestamp, size)
        joined = entry.origin == self.me and entry.kind == Kind.JOIN and entry.number == self._joins
        found = False
        if joined and not self._read:
            self._read = True
            self._look_at_all()
        elif self.phase is Phase.WAITING and entry.kind in (Kind.JOIN, Kind.WANT, Kind.GENESIS):
            found = self._look_at_all()
        # What we wanted to begin isn't begun if somebody has spoken of an object before that came.
        vain = entry.origin == self.me and entry.kind == Kind.GENESIS and self._read and self.phase is Phase.READING
        if (joined or vain or found) and self.agreed is None:
            self._ask()
        if self.agreed is not None and self._read and (
                self.phase in (Phase.READING, Phase.WAITING) or (joined and self.phase is Phase.ENTERING)):
            self.phase = Phase.ENTERING
            self._all = None
            self._send(Kind.LIVE, body=self._target.signature)
        return effects

    def _note(self, entry: Entry, timestamp: int, size: int) -> None:
        if self._all is not None:
            self._all.append((entry, timestamp, size))
            self._all_bytes += size + ENTRY_BYTES
            if self._all_bytes > min(SPAN_MAX * self._snapshot_every, ALL_MAX):
                self._all = None

    def _look_at_all(self) -> bool:
        """Our JOIN has come back, or what somebody else says of himself. True: we go by what we have read."""
        if self._all is None or not self._is_whole(self._all):
            return False
        everything, self._all = self._all, None
        self._has_all = True
        if self.agreed is not None:
            return False
        self._evidence = self._exists = False
        self._forget_backlog()
        for one in everything:
            if self.agreed is None:
                self._look_for_state(*one)
            elif self.phase is not Phase.STOPPED:
                self._carry_out(*one)
        return True

    def _is_whole(self, entries: list[tuple[Entry, int, int]]) -> bool:
        """All who speak of an object came first in these entries, or have said since that they have no state. Otherwise
        the topic has forgotten something: journals may have kept less than they should, and who has the state lives."""
        came, speak = {self.me}, set()
        for entry, _, _ in entries:
            if entry.kind == Kind.JOIN and entry.number == 1:
                came.add(entry.origin)
            elif entry.kind in (Kind.WANT, Kind.GENESIS):
                speak.discard(entry.origin)
            elif entry.kind in EVIDENCE:
                speak.add(entry.origin)
        return speak <= came

    def _ask(self) -> None:
        if self._evidence or self._exists:
            self.phase = Phase.WAITING
            self._send(Kind.WANT)
        else:
            self._send(Kind.GENESIS)

    # --- without a state

    def _look_for_state(self, entry: Entry, timestamp: int, size: int) -> None:
        if entry.kind == Kind.GENESIS and not self._evidence:
            self._target.begin()
            self.agreed = Agreed(lineage=entry.origin)
            self._forget_backlog()
            return
        if entry.kind in EVIDENCE and not self._has_all:
            self._evidence = True
        if self._candidates:
            self._backlog.append((entry, timestamp, size))
            self._backlog_bytes += size + 256
            if self._backlog_bytes > BACKLOG_MAX:
                self._stop(f"more than {BACKLOG_MAX} bytes of entries came while a snapshot was on its way, the most "
                           "that a replica keeps")
                return
        if entry.kind == Kind.SNAPSHOT and len(self._candidates) < CANDIDATES_MAX:
            self._candidates[entry.origin, entry.number] = _Candidate(len(self._backlog), entry.body)
        elif entry.kind == Kind.PIECE:
            self._take_piece(entry)
        elif entry.kind == Kind.GONE:
            for key in [one for one in self._candidates if one[0] == entry.body]:
                del self._candidates[key]
            if not self._candidates:
                self._forget_backlog()

    def _take_piece(self, entry: Entry) -> None:
        candidate = self._candidates.get((entry.origin, entry.number))
        if candidate is None or entry.part != len(candidate.pieces):
            return
        candidate.pieces.append(entry.body)
        if len(candidate.pieces) < entry.parts:
            return
        try:
            agreed, state = Agreed.decode(b"".join(candidate.pieces))
            self._target.restore(state)
        except ValueError:
            del self._candidates[entry.origin, entry.number]  # nonsense, it seems; another one may come
            if candidate.signature != self._target.signature:
                self._stop(f"the state of this object is of {ANOTHER_CLASS}")
            return
        except Unrestorable as error:
            self._stop(str(error))
            return
        rest = self._backlog[candidate.begin:]
        self._forget_backlog()
        self.agreed = agreed
        for one in rest:
            if self.agreed is None or self.phase is Phase.STOPPED:
                return
            self._carry_out(*one)

    def _forget_backlog(self) -> None:
        self._backlog = []
        self._backlog_bytes = 0
        self._candidates = {}

    # --- with one

    def _carry_out(self, entry: Entry, timestamp: int, size: int) -> None:
        agreed = self.agreed
        assert agreed is not None
        agreed.total += size + ENTRY_BYTES
        if entry.kind in (Kind.JOIN, Kind.GENESIS):
            return
        if entry.lineage != agreed.lineage and entry.kind not in (Kind.WANT, Kind.GONE):
            self.strangers += 1
            if self.phase is Phase.READING and not self._has_all and (
                    entry.kind in (Kind.COMMAND, Kind.LIVE, Kind.SNAPSHOT)):
                # The topic had forgotten how the object began, and somebody began another one.
                self._forget_state(evidence=True)
            return
        if entry.kind == Kind.COMMAND:
            self._command(agreed, entry, timestamp)
        elif entry.kind == Kind.LIVE:
            self._live(agreed, entry.origin, entry.body)
        elif entry.kind == Kind.WANT:
            if entry.origin not in agreed.wants and entry.origin not in agreed.live:
                agreed.wants.append(entry.origin)
        elif entry.kind == Kind.SNAPSHOT:
            self._snapshot(agreed, entry)
        elif entry.kind == Kind.PIECE:
            if entry.part == entry.parts - 1:
                agreed.note_complete(entry.origin, entry.number)
        elif entry.kind == Kind.GONE:
            self._gone(agreed, entry.body, timestamp)
        elif entry.kind == Kind.CHECK:
            self._compare(agreed, entry)
        self._do_duties(agreed)

    def _command(self, agreed: Agreed, entry: Entry, timestamp: int) -> None:
        if not agreed.is_new(entry.origin, entry.number):
            return
        agreed.note_done(entry.origin, entry.number)
        agreed.index += 1
        agreed.timestamp = max(agreed.timestamp, timestamp)
        result = self._target.carry_out(entry.name, entry.body, self._context(agreed, entry.origin))
        if entry.origin == self.me:
            self._effects.results.append((entry.number, result))
        if self._check_every and agreed.index % self._check_every == 0 and agreed.live:  # else nobody would answer it
            agreed.checks = [*agreed.checks, Check(agreed.index, list(agreed.live))][-CHECKS_MAX:]
            if self.me in agreed.live:
                self._send(Kind.CHECK, number=agreed.index, body=self._target.digest())

    def _context(self, agreed: Agreed, sender: bytes) -> Context:
        return Context(agreed.index, agreed.timestamp, sender, agreed.lineage + agreed.index.to_bytes(8, "big"))

    def _live(self, agreed: Agreed, origin: bytes, signature: bytes) -> None:
        if not agreed.live:
            agreed.signature = signature
        elif signature != agreed.signature:
            self._refused = self._refused or (origin == self.me and self.phase is Phase.ENTERING)
            return
        if origin not in agreed.live:
            agreed.live.append(origin)
        if origin in agreed.wants:
            agreed.wants.remove(origin)
        self._buried.discard(origin)
        if origin == self.me and self.phase is Phase.ENTERING:
            self.phase = Phase.LIVE

    def _snapshot(self, agreed: Agreed, entry: Entry) -> None:
        if entry.origin == self.me:
            self._begins_snapshot = False
        if entry.origin not in agreed.live:
            return  # it was taken for gone meanwhile
        earlier = agreed.serving.pop(entry.origin, (0, [], 0))[1]
        agreed.serving[entry.origin] = entry.number, [*earlier, *agreed.wants], agreed.total
        agreed.wants = []
        if entry.origin == self.me:
            state = self._target.snapshot()
            if state is None:
                self._unmade = agreed.index + self._commands_between
                self._commands_between = min(2 * self._commands_between, COMMANDS_BETWEEN_MAX)
            else:
                self._commands_between = 1
                self._effects.snapshot = entry.number, agreed.encode(state)

    def _gone(self, agreed: Agreed, replica: bytes, timestamp: int) -> None:
        self._buried.discard(replica)
        if replica in agreed.wants:
            agreed.wants.remove(replica)
        for _, served, _ in agreed.serving.values():
            if replica in served:
                served.remove(replica)
        if replica not in agreed.live:
            return
        agreed.live.remove(replica)
        agreed.timestamp = max(agreed.timestamp, timestamp)
        served = agreed.serving.pop(replica, (0, [], 0))[1]
        agreed.wants += [one for one in served if one not in agreed.wants]
        for check in agreed.checks:
            if replica in check.expected:
                check.expected.remove(replica)
        self._judge(agreed)
        self._target.tell_gone(replica, self._context(agreed, replica))
        if replica == self.me and self.phase is Phase.LIVE:
            self.phase = Phase.ENTERING  # somebody took us for gone: our node was, or the news was late
            self._send(Kind.LIVE, body=self._target.signature)

    def _do_duties(self, agreed: Agreed) -> None:
        """What the first of the live replicas does for all."""
        if self.phase is not Phase.LIVE or not agreed.live or agreed.live[0] != self.me or self._begins_snapshot:
            return
        too_long = self._snapshot_every and agreed.total - agreed.completed >= self._snapshot_every
        served = agreed.serving.get(self.me, (0, [], 0))[1]
        again = self._unmade is not None and agreed.index >= self._unmade and (served or too_long)
        if again or ((agreed.wants or too_long) and self.me not in agreed.serving):
            self._begins_snapshot = True
            self._unmade = None
            self._snapshots += 1
            self._send(Kind.SNAPSHOT, number=self._snapshots, body=self._target.signature)

    def _compare(self, agreed: Agreed, entry: Entry) -> None:
        for check in agreed.checks:
            if check.index == entry.number and entry.origin in check.expected and (
                    entry.origin not in dict(check.said)):
                check.said.append((entry.origin, entry.body))
        self._judge(agreed)

    def _judge(self, agreed: Agreed) -> None:
        left = []
        for check in agreed.checks:
            verdict = check.verdict()
            if verdict is None:
                left.append(check)
                continue
            mine = dict(check.said).get(self.me)
            if mine is not None and mine != verdict:
                self._send(Kind.GONE, body=self.me)
                self._stop(f"after command {check.index} its state differs from that of the others: a command goes by "
                           "something that isn't the same everywhere (a clock, a random number, the order of a set), "
                           "or the state was changed without a command")
        agreed.checks = left

    # --- inside

    def _stop(self, why: str) -> None:
        self.phase = Phase.STOPPED
        self.why_stopped = why
        self._refused = False

    @property
    def _lineage(self) -> bytes:
        return NONE if self.agreed is None else self.agreed.lineage

    def _entry(self, kind: Kind, **more: Any) -> Entry:
        return Entry(kind, self.me, self._lineage, **more)

    def _send(self, kind: Kind, **more: Any) -> None:
        self._effects.send.append(self._entry(kind, **more))

    def pieces(self, number: int, snapshot: bytes, size: int) -> list[Entry]:
        """A snapshot as entries with bodies of `size` bytes at most."""
        parts = max(1, -(-len(snapshot) // size))
        return [self._entry(Kind.PIECE, number=number, part=k, parts=parts, body=snapshot[k * size : (k + 1) * size])
                for k in range(parts)]


def _is_sound(entry: Entry) -> bool:
    """False for what no replica writes: anybody who may write to the topic may have written it."""
    if entry.kind == Kind.GONE:
        return len(entry.body) == ID_BYTES
    if entry.kind == Kind.PIECE:
        return 0 <= entry.part < entry.parts
    return Kind.JOIN <= entry.kind <= Kind.CHECK and entry.number >= 0


__all__ = ["Context", "Effects", "Machine", "Phase", "Result", "Target"]
