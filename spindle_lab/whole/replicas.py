"""Programs that hold a replica of an object: the production code decides (`dds.replicated.conduct`), and the program
reads and writes for it over a session of its node, in place of the threads that a Replica has.

What a Replica's callers write (commands, and what is written again at the next node) and what its other thread writes
(all else) are two queues here, too, and the seed says which of them goes on.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from dds.codecs.types import codec_for
from dds.replicated.conduct import NEWS_S, Conduct
from dds.replicated.machine import Phase
from dds.replicated.messages import Entry, Kind
from dds.replicated.object import Carrier, interface_of
from dds.rpc.messages import Announcement
from dds.rpc.peers import at_both_ends
from spindle.errors import SpindleError
from spindle.group.position import elsewhere
from spindle_core.errors import WriteTimeout
from spindle_lab.whole.objects import HISTORY_BYTES, Objects, Place, Port, Roll
from spindle_lab.whole.programs import Program

if TYPE_CHECKING:
    from spindle.client.session import ReaderHandle, WriterHandle
    from spindle.group.position import Position
    from spindle_lab.whole.world import World

PIECE_BYTES = 256
IN_FLIGHT_MAX = 8
LONELY_NS = 500_000_000
ROLE = "replica"
ENTRIES = codec_for(Entry)
MARK = interface_of(Roll).operations["mark"]


class Held:
    """One replica, at whatever nodes it lives."""

    def __init__(self, program: Replicating) -> None:
        objects = program.objects
        self.program = program
        self.carrier = Carrier(Roll, Roll)
        self.conduct: Conduct[int] = Conduct(
            program.rng.randbytes(16), self.carrier, objects.check_every, HISTORY_BYTES // 8 if objects.logged else 0,
            PIECE_BYTES)
        self.me = self.conduct.machine.me
        self.said = Announcement(ROLE, self.me).encode()
        self.callers: deque[Entry] = deque()
        self.others: deque[Entry] = deque(self.conduct.join())
        self.whose: dict[int, int] = {}  # number of a command in flight -> which it is
        self.written_at: dict[int, int] = {}  # command -> how many messages its writer had written then
        self.unsafe: list[int] = []  # commands that were carried out, and perhaps are not on disk everywhere
        self.reader: ReaderHandle | None = None
        self.writer: WriterHandle | None = None
        self.open = False
        self.guids: set[bytes] = set()  # of its ends at its present node
        self.places: dict[int, Position] = {}  # as a reader of DDS remembers them
        self.after: Position | None = None
        self.readable = True  # all that its dead node had delivered was read
        self.hears_twice = False  # that its node has gone: a writer and the pump of a Replica may both say so
        self.place: Place | None = None  # of the last entry that it has followed
        self.group_id = 0  # in whose order its node is
        self.waits_since = self.there_since = 0
        self.news_due_ns = 0  # until then replicas that count in the order may not be known to be there; 0: all are

    @property
    def roll(self) -> Roll:
        """The object."""
        assert isinstance(self.carrier.object, Roll)
        return self.carrier.object

    @property
    def has_state(self) -> bool:
        """It has, or may have by what it is reading."""
        return self.conduct.machine.agreed is not None or self.conduct.machine.phase is Phase.READING

    def is_there(self, now_ns: int) -> bool:
        """Others must know by now that it is, if their node is in its node's view: it has not come from another one
        lately."""
        return self.open and len(self.guids) == 2 and (
            self.after is None or now_ns - self.there_since > int(NEWS_S * 1e9))

    def unsettled(self) -> str:
        """What is under way, if anything."""
        machine = self.conduct.machine
        if machine.phase is not Phase.LIVE or self.reader is None:
            return machine.phase.value
        if self.callers or self.others or self.conduct.in_flight or self.reader.log.pending:
            return (f"has {len(self.callers)} and {len(self.others)} entries to write, {self.conduct.in_flight} "
                    f"commands in flight, {self.reader.log.pending} entries to read")
        return "does not know yet what is on disk" if self.unsafe else ""

    def __str__(self) -> str:
        return f"the replica {self.me[:3].hex()} at {self.program.process}"


class Replicating(Program):
    """An application with a replica, which goes on with it at the next node, or gives it up and makes another one."""

    def __init__(self, world: World, number: int, host: str) -> None:
        assert world.objects is not None
        self.objects: Objects = world.objects
        self.held: Held | None = None
        self.objects.programs.append(self)
        super().__init__(world, number, host, "r")

    # --- its session

    def _attached(self) -> None:
        self.doing = "attaching"
        self.session = self._attach()
        while self._goes_on() and not self.world.over:
            if self.objects.is_lost:
                self._close_replica()
                self.doing = "waiting until all that is left of the object is closed"
                time.sleep(0.003)
                continue
            self._open()
            self._act()
            if self._goes_on() and not self.world.over:
                self._close_replica()

    def _open(self) -> None:
        """A replica's ends at this node: of a new one, or of the one that it has."""
        session, held = self.session, self.held
        assert session is not None
        self.doing = "declaring the object's topic"
        session.declare_topic(self.objects.spec)
        if held is None:
            held = self.held = Held(self)
        held.open = True
        guids = self.rng.randbytes(16), self.rng.randbytes(16)
        self.doing = "opening the writer of a replica"
        writer = session.open_writer(self.objects.spec.name, endpoint=held.said, guid=guids[0])
        self._announced(held, guids[0], True)
        self.doing = "opening the reader of a replica"
        after = held.after
        if after is None:
            reader = session.open_reader(self.objects.spec.name, keep_all=True, from_history=True, endpoint=held.said,
                                         guid=guids[1])
        else:
            reader = session.open_reader(self.objects.spec.name, keep_all=True, from_history=True, after=after,
                                         earlier=[one for one in held.places.values()
                                                  if one.group_id != after.group_id],
                                         endpoint=held.said, guid=guids[1])
        self._announced(held, guids[1], False)
        goes_on = reader.continued and held.readable and not reader.rewound
        if after is not None and not goes_on:  # as a Replica, it reads anew
            self.doing = "opening the reader of a replica that has lost its place"
            held.guids.discard(guids[1])
            reader.close()
            guids = guids[0], self.rng.randbytes(16)
            reader = session.open_reader(self.objects.spec.name, keep_all=True, from_history=True, endpoint=held.said,
                                         guid=guids[1])
            self._announced(held, guids[1], False)
        held.reader, held.writer, held.group_id = reader, writer, reader.start.group_id
        held.there_since = self.world.system.now_ns
        if after is None:
            return
        held.callers.clear()
        held.written_at.clear()
        held.unsafe.clear()
        if goes_on:
            self.world.met("a replica goes on at the next node")
        else:
            self.world.met("a replica loses its place")
            entries, _ = held.conduct.lose_place()
            held.others += entries
        held.callers += held.conduct.write_again()
        held.hears_twice = self.rng.random() < 0.5

    def _announced(self, held: Held, guid: bytes, is_writer: bool) -> None:
        held.guids.add(guid)
        self.objects.ports.append(Port(held, guid, is_writer))

    def _forget(self) -> None:
        held, session = self.held, self.session
        if held is not None:
            held.open = False
            held.guids.clear()
            if held.conduct.machine.phase is Phase.STOPPED:
                self.held = None
            elif session is not None and session.gone and held.reader is not None and self.rng.random() < 0.7:
                self._leave_node(held, held.reader)
            elif held.reader is not None or held.after is None or (session is not None and not session.gone):
                self.held = None  # else it had not got to the next node yet, and still may
            self.objects.closed()
        super()._forget()

    def _leave_node(self, held: Held, reader: ReaderHandle) -> None:
        """Reads what its dead node had delivered, and remembers where that ends: as `dds.readers.link` does."""
        try:
            after, held.readable = reader.freeze(), True
            self._read(held, 1 << 30)
        except SpindleError:
            after, held.readable = reader.position, False
        earlier = elsewhere([*held.places.values(), *reader.passed(after)], after)
        held.places = {one.group_id: one for one in [*earlier, after]}
        held.after = after
        self._note_safe(held)
        held.reader = held.writer = None

    def _close_replica(self) -> None:
        """In order, as Replica.close() does."""
        held = self.held
        if held is None:
            return
        self.doing = "closing its replica"
        held.open = False
        held.guids.clear()
        try:
            for port in (held.reader, held.writer):
                if port is not None:
                    port.close()
        finally:
            self.held = None
            self.objects.closed()

    def died(self) -> None:
        """Its process was killed."""
        super().died()
        if self.held is not None:
            self.held.open = False
            self.held.guids.clear()
        self.objects.closed()

    # --- what it does

    def _act(self) -> None:
        """Until its session ends, the object is lost, it has closed its replica, or the run is over."""
        rng, held = self.rng, self.held
        assert held is not None
        leaves = False
        while not self.world.over and self._goes_on() and not self.objects.is_lost:
            self.doing = "holding a replica"
            self._read(held, rng.choice((1, 3, 1000)))
            if rng.random() < (0.3 if self.world.finishing else 0.1):
                self._look_around(held)
            if not self.world.finishing and not leaves:
                if rng.random() < 0.4:
                    self._command(held)
                if rng.random() < 0.004:
                    leaves = True
                    held.others += held.conduct.leave()
            if held.hears_twice and rng.random() < 0.5:
                held.hears_twice = False
                held.callers += held.conduct.write_again()
            self._write_some(held, rng.choice((0, 1, 4, 1000)))
            self._note_safe(held)
            if leaves and not held.others and not held.callers:
                return
            self._is_lonely(held)
            if self.world.settled and self.sees:
                self.doing = "looking at the group"
                self.sees = self._difference()
            time.sleep(0.03 if self.world.settled else rng.choice((0.0003, 0.001, 0.01)))
            self._slow_down()

    def _read(self, held: Held, most: int) -> None:
        reader = held.reader
        assert reader is not None
        for payload, info in reader.log.take_pairs(most):
            entry = ENTRIES.decode(payload)
            machine = held.conduct.machine
            had, serving = machine.agreed is not None, () if machine.agreed is None else (*machine.agreed.serving,)
            write, settled = held.conduct.came(entry, info.source_timestamp)
            held.others += write
            self._probe(entry, had, serving, machine.agreed is not None)
            at = reader._at(info.view_id, info.sequence)
            self.objects.came(held, (at.group_id, info.view_id, info.sequence))
            for what, result in settled:
                self.objects.settled(held, what, result)
                if self.objects.logged:
                    held.unsafe.append(what)

    def _probe(self, entry: Entry, had: bool, serving: tuple[bytes, ...], has: bool) -> None:
        if entry.kind == Kind.PIECE and has and not had:
            self.world.met("a replica gets a snapshot")
        elif entry.kind == Kind.GONE and entry.body in serving:
            self.world.met("who gives a snapshot is gone in its middle")

    def _command(self, held: Held) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            if held.conduct.in_flight < IN_FLIGHT_MAX:
                if held.conduct.holds_back:
                    self.world.met("a command waits for a snapshot" if held.conduct.has_state else
                                   "a command waits until its replica has the state")
                    return
                what = self.objects.next_command()
                filling = bytes(self.rng.choice((0, self.objects.filling_max)))
                held.callers.append(held.conduct.begin("mark", MARK.arguments.encode((what, filling)), what))
                held.whose[held.callers[-1].number] = what

    def _write_some(self, held: Held, most: int) -> None:
        for _ in range(most):
            queues = [one for one in (held.callers, held.others) if one]
            if not queues:
                return
            queue = self.rng.choice(queues)
            if not self._put(held, queue[0]):
                return
            self._wrote(held, queue.popleft())

    def _put(self, held: Held, entry: Entry) -> bool:  # type: ignore[override]
        assert held.writer is not None
        try:
            held.writer.inbox.write(ENTRIES.encode(entry), time.time_ns(), timeout_s=0.0)
        except WriteTimeout:
            return False
        return True

    def _wrote(self, held: Held, entry: Entry) -> None:
        assert held.writer is not None
        if entry.kind == Kind.COMMAND:
            held.written_at[held.whose[entry.number]] = held.writer.inbox.committed
        elif entry.kind == Kind.PIECE and 0 <= self.objects.donor_dies_at <= entry.part:
            self.objects.donor_dies_at = -1
            self.world.note(f"{self.process} dies while it gives a snapshot")
            self.world.system.after(0, self._dies)

    def _dies(self) -> None:
        self.world.system.kill(self.process)
        self.died()

    def _note_safe(self, held: Held) -> None:
        """O4: what is known to be on disk everywhere."""
        if held.unsafe and held.writer is not None:
            persisted = held.writer.inbox.persisted
            safe = {what for what in held.unsafe if held.written_at.get(what, 1 << 62) <= persisted}
            held.unsafe = [what for what in held.unsafe if what not in safe]
            self.objects.safe.update(dict.fromkeys(safe, held.group_id))

    def _look_around(self, held: Held) -> None:
        """Whose node or program has gone."""
        assert self.session is not None
        said: tuple[set[bytes], set[bytes]] = (set(), set())
        for one in self.session.endpoints():
            found = Announcement.decode(one.endpoint) if one.topic == self.objects.spec.name else None
            if found is not None and found.role == ROLE:
                said[one.is_writer].add(found.id)
        there, conduct, now_ns = at_both_ends(*said), held.conduct, self.world.system.now_ns
        if conduct.is_lacking(there):
            self._buries(held, conduct.look_around(there))
        if not conduct.awaits_news(there):
            held.news_due_ns = 0
        elif not held.news_due_ns:
            held.news_due_ns = now_ns + int(NEWS_S * 1e9)
        elif now_ns >= held.news_due_ns:
            held.news_due_ns = 0
            self.world.met("a replica is gone that nobody had been told of")
            self._buries(held, conduct.look_around(there, surely=True))

    def _buries(self, held: Held, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind == Kind.GONE and entry.body != held.me:
                self.objects.buried(held, entry.body)
        held.others += entries

    def _is_lonely(self, held: Held) -> None:
        now_ns = self.world.system.now_ns
        if held.conduct.machine.phase is not Phase.WAITING:
            held.waits_since = now_ns
        elif now_ns - held.waits_since > LONELY_NS:
            self.objects.look_for_loss(held)




__all__ = ["Held", "Replicating"]
