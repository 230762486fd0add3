"""What applications do in a run: they attach to a node of their host as every program does, and use the client's API.

A program does one thing after the other, drawn from the seed: it opens, writes, takes, closes, looks around, and goes
to another node when its own has gone. What it was told is compared by `checks`.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dds.messages.packets import Sets as Packets
from spindle.client.attaching import attach
from spindle.errors import SpindleError, TopicInUse, TopicUnknown
from spindle.group.leases import Lease
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.restart.pieces import ENTRY_SIZE
from spindle_core.errors import WriteTimeout
from spindle_lab.whole.checks import Deleted
from spindle_lab.whole.sets import CHANNELS, MARK, SIZE_MIN, messages
from spindle_lab.whole.shortage import SHORT
from spindle_lab.whole.tables import key_of, with_author
from spindle_lab.whole.tags import FAREWELL, LAPSE, REVIVAL, tag_of
from spindle_lab.whole.times import SPANS_MS, with_span
from spindle_lab.whole.violation import Violation
from spindle_lab.whole.watching import Watching, difference

if TYPE_CHECKING:
    from spindle.client.session import ReaderHandle, Session, WriterHandle
    from spindle.group.view import View
    from spindle_lab.whole.said import Said
    from spindle_lab.whole.system import Process
    from spindle_lab.whole.world import World

# Errors that a program may be given while nodes come and go.
PASSING = ("NodeStopped", "NoDaemon", "ConnectionEnded", "NodeGone", "CastOut", "NoMajority")
# ... and these only where members hang or don't reach each other: nobody waits long for one that has died.
WAITING = ("GroupSilent", "TimeoutError")


class Reading:
    """One reader's life, as the checks see it."""

    is_writer = False

    def __init__(self, program: Program, handle: ReaderHandle, keep_all: bool, guid: bytes = b"") -> None:
        self.program, self.handle, self.keep_all, self.guid = program, handle, keep_all, guid
        self.topic = handle.topic.spec.name
        self.group_id = handle.start.group_id
        self.start = handle.start.place
        level = handle.topic.spec.level
        self.ordered, self.logged = level is not Level.UNORDERED, level is Level.LOGGED
        self.taken: list[tuple[int, int]] = []
        self.floor = (-1, -1)  # nothing up to there may come
        self.last_of: dict[bytes, int] = {}  # number of each writer's last message
        self.came_of: dict[bytes, int] = {}  # the same of those without a hole before them
        self.names: dict[tuple[int, int, int], bytes] = {}  # writer, as messages have it -> the name of the last one
        self.ended: set[bytes] = set()  # writers that are said to have ended
        # In a topic with keys: behind which place of the order its live messages begin, what came before that, and
        # whether all of that has come. `compact`: messages may be missing because others of their keys came later.
        self.behind: tuple[int, int] | None = handle.log.behind
        self.table: list[Said] = []
        self.table_seen = False
        self.compact = bool(handle.topic.spec.effects) and program.outside
        self.departed: set[tuple[int, int]] = set()  # view, and a node that was said to have gone with it
        self.lapsed: set[bytes] = set()  # writers that are said to give no sign of life
        self.until_ns = 0  # UTC ns: what it has taken, and counts for a time only, does so until then at most
        self.sets = Packets(program.rng.choice(CHANNELS), MARK)
        self.begun: dict[bytes, tuple[int, int]] = {}  # writer -> number of a set, messages of it that have come
        self.got: set[tuple[bytes, int]] = set()  # sets, by writer and number
        self.open = True
        self.opened_ns = program.world.system.now_ns
        self.lazy = 0.0  # seconds between two looks
        self.from_history, self.keeps_history = False, level.keeps_history
        self.asked_ns = self.opened_ns
        self.entered, self.capacity = program.world.log_of(program.session, self.topic)
        node = program.world.node_of(program.session)
        self.opened_in = None if node is None or node._view is None else (node.node_id, node._view)

    def left_behind(self, view: View | None) -> bool:
        """True if its node did not know yet, when it was opened, that the group has gone on to this view without it."""
        if view is None or self.opened_in is None:
            return False
        node_id, known = self.opened_in
        return known.view_id < view.view_id and view.rank_of(node_id) is None

    def lost(self) -> int:
        """Messages that it was overtaken by."""
        return int(self.handle.log.lost)

    def close(self) -> None:
        """It takes no more."""
        self.handle.close()

    def __str__(self) -> str:
        return f"the reader of {self.topic!r} at {self.program.process}"


class Writing:
    """One writer's life."""

    is_writer = True

    def __init__(self, program: Program, handle: WriterHandle, name: str, guid: bytes = b"") -> None:
        self.program, self.handle, self.name, self.guid = program, handle, name, guid
        self.topic = handle.topic.spec.name
        self.size_max = handle.topic.spec.size_max
        self.count = 0
        self.sets = 0
        self.open = True
        self.node = program.world.process_of(program.session)
        self.opened_ns = program.world.system.now_ns
        self.group_id = program.session.group_id if program.session is not None else 0
        self.certain = True  # all that was written must be delivered, as far as its node lives
        self.lease_ns = 0  # it gives signs of life at least so often, or is said not to
        self.signs = [self.opened_ns]  # when, UTC ns
        self._shown: list[int] = []  # of each message, how many signs there were when it was written
        self.owed = 0  # ... of a node that was told to leave: what had been written by then

    def shows(self, message: bool) -> None:
        """It has given a sign of life, with or without a message."""
        if message:
            self._shown.append(len(self.signs))
        self.signs.append(self.program.world.system.now_ns)

    def shown_ns(self, number: int) -> int:
        """When its message with this number, from 0, showed that it lived; before the first: since it was opened."""
        return self.signs[self._shown[number]] if 0 <= number < len(self._shown) else self.signs[0]

    def due(self) -> int:
        """How many of its messages must be delivered in the end."""
        if not self.certain or not self.node.alive or self.node.result not in (None, "left"):
            return 0
        return self.count if self.node.result is None else self.owed

    def close(self) -> None:
        """It writes no more."""
        self.handle.close()

    def waiting(self) -> int:
        """Messages that are not delivered everywhere yet."""
        return int(self.handle.inbox.committed - self.handle.inbox.acknowledged)

    def __str__(self) -> str:
        return f"the writer {self.name!r} of {self.topic!r} at {self.program.process}"


class Program:
    """One application. `doing` says what it waits for, for whoever finds that it waits for ever."""

    outside = False  # on a host without a node

    def __init__(self, world: World, number: int, host: str, kind: str = "a", uid: int | None = None,
                 process: Process | None = None) -> None:
        self.world, self.number, self.host = world, number, host
        self.process: Process = process or world.system.process(
            f"{kind}{number}", host, world.uid if uid is None else uid)
        self.rng = world.system.random
        self.session: Session | None = None
        self.readings: list[Reading] = []
        self.writings: list[Writing] = []
        self.doing = "starting"
        self.errors: dict[str, int] = {}
        self.serial = 0
        self.watching: Watching | None = None
        self.left_behind = False  # its node does not know yet that its group has gone on without it
        self.regrouped = False  # what it declared last is unknown, since it is in another group by now
        self.sees = "it has not looked yet"  # what it is told in the end that isn't so; empty: nothing
        self.process.spawn(self._main)

    def _main(self) -> None:
        while not self.world.over:
            try:
                self._attached()
            except (SpindleError, TimeoutError, OSError) as error:
                self._failed(error)
            finally:
                self._forget()
            if not self.world.over:
                self.doing = "waiting to attach again"
                time.sleep(0.02)
        self.process.result = "done"

    def _failed(self, error: Exception) -> None:
        kind = type(error).__name__
        self.errors[kind] = self.errors.get(kind, 0) + 1
        self.world.note(f"{self.process}: {kind}: {error}")
        if not self._may_be_told(kind, str(error)):
            raise Violation("E1", f"{self.process} is told {kind} while {self.doing}: {error}")

    def _may_be_told(self, kind: str, text: str) -> bool:
        return kind in PASSING or (kind in WAITING and self.world.silent) or (
            kind == "JournalError" and self.world.disks_failed) or (
            kind == "TopicUnknown" and self._may_be_unknown()) or (
            self.world.renewals.may_be_told(kind, text) or self._may_lack(text))

    def _may_be_unknown(self) -> bool:
        """A topic may have gone between being declared and opened; `_topic` looks closer."""
        return self.regrouped or self.left_behind or any(one.begun for one in self.world.checks.deletions.values())

    def _may_lack(self, text: str) -> bool:
        return self._short() and any(word in text for word in SHORT)

    def _short(self) -> bool:
        """Something may have run out here or at the node."""
        if self.session is None:  # whom it was about to attach to
            return bool(self.world.short)
        return self.process in self.world.short or self.world.process_of(self.session) in self.world.short

    def died(self) -> None:
        """Its process was killed: what it had committed at its node is sent still, or not."""
        for reading in self.readings:
            reading.open = False
        for writing in self.writings:
            writing.open = writing.certain = False

    def _forget(self) -> None:
        for reading in self.readings:
            reading.open = False
        for writing in self.writings:
            writing.open = False
        self.readings.clear()
        self.writings.clear()
        session, self.session, self.watching = self.session, None, None
        if session is not None:
            self.doing = "detaching"
            session.close()

    def _attach(self) -> Session:
        session = attach(runtime_dir=self.world.runtime_dir(self.host), node_id=self._node(), timeout_s=5.0,
                         name=str(self.process))
        if self.rng.random() < 0.3:
            self.doing = "beginning to watch"
            self.watching = Watching(session)
        return session

    @property
    def ended(self) -> bool:
        """It does nothing any more."""
        return self.process.result is not None or not self.process.alive

    def _attached(self) -> None:
        self.doing = "attaching"
        self.session = self._attach()
        self._act()

    def _goes_on(self) -> bool:
        assert self.session is not None
        return not self.session.gone

    def _act(self) -> None:
        """One thing after the other until its session ends, or the run is over."""
        actions: tuple[Callable[[], None], ...] = (
            (self._write,) * 9 + (self._write_set,) * 2 + (self._take,) * 10 + (self._open_reader,) * 3) + (
            self._open_writer,) * 3 + (
            self._open_together, self._open_what_comes, self._go_away, self._give_sign_of_life,
            self._give_sign_of_life, self._close, self._look, self._delete, self._rest, self._rest)
        if self.world.setup.renewing:
            actions += (self._redefine,) * 2
        while not self.world.finishing and self._goes_on():
            self.rng.choice(actions)()
            self.make_way()
            self._slow_down()
        if self.world.finishing and self._goes_on():
            self._settle()
        while not self.world.over and self._goes_on():
            self.doing = "settling"
            self._take_all()
            if self.world.settled and self.sees:
                self.doing = "looking at the group"
                self.sees = self._difference()
            time.sleep(0.03 if self.world.settled else 0.01)

    def _slow_down(self) -> None:
        """The group mends itself while programs go on, but less of them is enough then."""
        if self.world.mending:
            time.sleep(self.rng.choice((0.0, 0.004, 0.02)))

    def _difference(self) -> str:
        """What it sees of the group that isn't so."""
        assert self.session is not None
        return difference(self.world, self.session, self.watching, outside=self.outside)

    def _settle(self) -> None:
        """From now on nobody writes."""

    def _node(self) -> int | None:
        here = [one.node_id for one in self.world.nodes if one.host == self.host and one.serving]
        return self.rng.choice(here) if here else None

    # --- what it does

    def _spec(self) -> TopicSpec:
        """One of the topics, and often one that somebody has opened last: who is alone in a topic shows little."""
        checks = self.world.checks
        last: list[Reading | Writing] = [*checks.readings[-4:], *checks.writings[-4:]]
        if last and self.rng.random() < 0.75 and (one := self.rng.choice(last)).open:
            if not self.world.renewals.is_closing(one.topic):
                return one.handle.topic.spec
        return self.rng.choice([one for one in self.world.specs if not self.world.renewals.is_closing(one.name)]
                               or self.world.specs)

    def _guid(self) -> bytes:
        """Under which it is announced, if it is."""
        return self.rng.randbytes(16) if self.rng.random() < 0.5 else b""

    def _open_reader(self) -> None:
        if len(self.readings) >= (40 if self.world.setup.crowded else 4):
            return
        spec, keep_all = self._spec(), self.rng.random() < 0.8
        self._open_reader_of(spec, keep_all)

    @contextlib.contextmanager
    def _topic(self, spec: TopicSpec) -> Iterator[None]:
        """Declares a topic, unless somebody has declared it at any node. Opening it in the block must find it."""
        session, known, deleted = self.session, self.world.checks.declared, self.world.checks.deletions[spec.name]
        assert session is not None
        before, group_id = deleted.begun, session.group_id
        node = self.world.node_of(session)
        knew = node is not None and node._changes.machine.in_minority  # that others may have gone on
        stays = deleted.ended == before
        if not stays or known.get((group_id, spec.name)) != before:
            self.doing = f"declaring {spec.name!r}"
            session.declare_topic(spec)
            if stays and session.group_id == group_id and known.get((group_id, spec.name)) != before:
                known[group_id, spec.name] = before
                node = self.world.node_of(session)
                if node is not None and node._view is not None:
                    self.world.checks.declared_in[group_id, spec.name] = node._view
                self.world.checks.declarations.append(spec)
        else:
            self.world.met("a topic is opened that somebody else has declared")
        try:
            yield
        except TopicUnknown as error:
            self.left_behind = not knew and self._is_left_behind(spec.name)
            if stays and deleted.begun == before and session.group_id == group_id and not self.left_behind:
                raise Violation("E1", f"{self.process} doesn't find a topic that is there: {error}") from error
            self.regrouped = session.group_id != group_id  # its session went on at a node of another group meanwhile
            raise

    def _is_left_behind(self, topic: str) -> bool:
        """The group declared it in a view without the node of this program, which has yet to hear that it is cast
        out."""
        assert self.session is not None
        node, view = self.world.node_of(self.session), self.world.checks.declared_in.get((self.session.group_id, topic))
        if node is None or view is None or node._view is None:
            return False
        behind = node._view.view_id < view.view_id and view.rank_of(node.node_id) is None
        if behind:
            self.world.met("a topic is unknown where its group has gone on without the node")
        return behind

    def _open_reader_of(self, spec: TopicSpec, keep_all: bool, from_history: bool | None = None) -> None:
        assert self.session is not None
        if from_history is None:
            from_history = self.rng.random() < 0.5
        with self._topic(spec):
            self.doing = f"opening a reader of {spec.name!r}"
            guid, asked_ns = self._guid(), self.world.system.now_ns
            handle = self.session.open_reader(spec.name, keep_all=keep_all, from_history=from_history, guid=guid)
        reading = self._reading(handle, keep_all, guid)
        reading.from_history, reading.asked_ns = from_history, asked_ns
        reading.lazy = self.rng.choice((0.0, 0.0, 0.0, 0.05))

    def _reading(self, handle: ReaderHandle, keep_all: bool, guid: bytes) -> Reading:
        reading = Reading(self, handle, keep_all, guid)
        self.readings.append(reading)
        self.world.checks.readings.append(reading)
        return reading

    def _open_writer(self) -> None:
        if len(self.writings) < (30 if self.world.setup.crowded else 3):
            self._open_writer_of(self._spec())

    def _open_writer_of(self, spec: TopicSpec) -> None:
        assert self.session is not None
        self.serial += 1
        name, guid = f"{self.process}.{self.serial}", self._guid()
        lease = Lease(self.rng.choice((10, 50, 400)) * 1_000_000, LAPSE, REVIVAL) if self.rng.random() < 0.3 else None
        with self._topic(spec):
            self.doing = f"opening a writer of {spec.name!r}"
            asked_ns = self.world.system.now_ns
            handle = self.session.open_writer(
                spec.name, guid=guid, farewell=self.rng.choice((0, FAREWELL)), lease=lease,
                type_=self.world.checks.types.of_writer(name))
        writing = self._writing(handle, name, guid)
        if lease is not None:
            writing.lease_ns, writing.signs = lease.duration_ns, [asked_ns]
        self.writings.append(writing)
        self.world.checks.writings.append(writing)

    def _writing(self, handle: WriterHandle, name: str, guid: bytes) -> Writing:
        return Writing(self, handle, name, guid)

    def _delete(self) -> None:
        """A topic that nobody has open goes; its name and number may be another one's then."""
        assert self.session is not None
        spec = self._spec()
        self.doing = f"deleting {spec.name!r}"
        deletions = self.world.checks.deletions[spec.name]
        deletions.begun += 1
        begun_ns = self.world.system.now_ns
        try:
            self.session.delete_topic(spec.name)
        except (TopicUnknown, TopicInUse):
            deletions.ended += 1
            return
        deletions.ended += 1
        if spec.level is Level.LOGGED:
            self.world.met("giving up what a topic is is taken back")
            return
        node = self.world.node_of(self.session)
        self.world.checks.deleted[spec.name] = Deleted(
            begun_ns, self.world.system.now_ns, node._view if node is not None else None)
        self.world.met("a topic is deleted")

    def _redefine(self) -> None:
        self.world.renewals.ask(self, (self._open_writer_of, lambda spec: self._open_reader_of(spec, keep_all=True)))

    def make_way(self) -> None:
        """Closes what somebody is about to give up."""
        there: list[Reading | Writing] = [*self.readings, *self.writings]
        for one in there:
            if self.world.renewals.is_closing(one.topic):
                self._close_one(one)

    def _open_what_comes(self) -> None:
        """Opens a topic as soon as somebody has declared it, perhaps at another node."""
        declarations = self.world.checks.declarations
        before = len(declarations)
        for _ in range(30):
            if len(declarations) > before:
                self._open_reader_of(declarations[-1], keep_all=True)
                return
            time.sleep(0.0003)

    def _open_together(self) -> None:
        """Several at once, each on a thread of its own."""
        many = self.rng.choice((10, 30) if self.world.setup.crowded else (2, 4))
        how = [self.rng.choice((self._open_reader, self._open_writer)) for _ in range(many)]
        threads = [threading.Thread(target=self._or_fail, args=(one,)) for one in how]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _go_away(self) -> None:
        """It detaches while it opens something; what it wrote is still sent."""
        assert self.session is not None
        if self.rng.random() < 0.6:
            return
        thread = threading.Thread(target=self._or_fail, args=(self.rng.choice((self._open_reader, self._open_writer)),))
        thread.start()
        time.sleep(self.rng.choice((0.0, 0.001, 0.004)))
        self._detach()
        thread.join()

    def _detach(self) -> None:
        assert self.session is not None
        self.session.close()

    def _or_fail(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (SpindleError, TimeoutError, OSError) as error:
            self._failed(error)

    def _write(self) -> None:
        if not self.writings:
            return
        writing = self.rng.choice(self.writings)
        self.doing = f"writing to {writing.topic!r}"
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            text = f"{writing.name}:{writing.count} ".encode()
            room = writing.size_max - len(text)
            size = self.rng.choice((0, 0, self.rng.randrange(room + 1), room))
            if self._writes_large(writing):
                size = room + self.rng.choice((1, 3000, 200_000))
            data = text + b"." * size
            if writing.handle.topic.spec.timing:
                data = with_span(data, self.rng.choice(SPANS_MS))
            if self.world.setup.grouped and writing.handle.topic.spec.effects and not self.outside:
                data = with_author(data, self.rng)
            if not self._put(writing, data):
                return
            writing.count += 1

    def _writes_large(self, writing: Writing) -> bool:
        """The next sample is one that doesn't fit a slot."""
        return (self.world.setup.large and writing.size_max >= ENTRY_SIZE
                and self.rng.random() < 0.3)

    def _write_set(self) -> None:
        """Samples that belong together; if there is no room for all of them, it begins with something else."""
        large = [one for one in self.writings if one.size_max >= SIZE_MIN]
        if not large:
            return
        writing = self.rng.choice(large)
        self.doing = f"writing a set to {writing.topic!r}"
        writing.sets += 1
        packets = messages(self.rng, writing, writing.sets)
        self.world.checks.sets.writes(writing, writing.sets, packets)
        for packet in packets:
            if not self._put(writing, f"{writing.name}:{writing.count} =".encode() + packet):
                return
            writing.count += 1
            chance = self.rng.random()
            if chance < 0.1:
                time.sleep(0.003)
            elif chance < 0.2:
                self.writings.remove(writing)
                writing.open = False
                writing.close()
                return

    def _give_sign_of_life(self) -> None:
        leased = [one for one in self.writings if one.lease_ns]
        for writing in leased:
            self.doing = f"giving a sign of life of {writing}"
            writing.handle.give_sign_of_life()
            writing.shows(message=False)
            time.sleep(writing.lease_ns / 1e9 * self.rng.choice((0.1, 0.5, 2.0)) / len(leased))

    def _put(self, writing: Writing, data: bytes) -> bool:
        self.world.checks.times.writes(writing.topic, data, self.world.setup.grouped)
        for _ in range(50):
            try:
                key = key_of(data) if writing.handle.topic.spec.effects else 0
                writing.handle.inbox.write(data, time.time_ns(), 0.0, tag_of(data), key)
                self.world.checks.written_ns[writing.topic, data] = self.world.system.now_ns
                writing.shows(message=True)
                return True
            except WriteTimeout:
                self._take_all()
                time.sleep(0.002)
        return False  # a slow reader somewhere: it goes on with something else

    def _take(self) -> None:
        if self.readings:
            reading = self.rng.choice(self.readings)
            self._take_from(reading, self.rng.choice((1, 10, 1000)))
            if self.rng.random() < 0.1:
                self._wait_at(reading)
        time.sleep(0.0005)

    def _wait_at(self, reading: Reading) -> None:
        """Sleeps as every reader does until there is something: then it must be rung."""
        log = reading.handle.log
        if log.arm():
            return
        poll = select.poll()
        poll.register(log.fileno(), select.POLLIN)
        if poll.poll(self.rng.choice((1, 30, 300))):
            log.clear()
        elif log.pending:
            raise Violation("L1", f"{reading} sleeps and isn't rung, and {log.pending} messages are there")
        elif reading.handle.session.gone:
            raise Violation("L1", f"{reading} sleeps and isn't told that its node is gone")

    def _take_all(self) -> None:
        for reading in self.readings:
            self._take_from(reading, 1000)

    def _take_from(self, reading: Reading, n: int, hurry: bool = False) -> None:
        if reading.lazy and not hurry and not self.world.finishing and self.rng.random() < 0.8:
            return
        for payload, info in reading.handle.log.take_pairs(n):
            self.world.checks.took(reading, bytes(payload), info)

    def _close(self) -> None:
        if self.readings and self.rng.random() < 0.5:
            self._close_one(self.readings[self.rng.randrange(len(self.readings))])
        elif self.writings:
            self._close_one(self.writings[self.rng.randrange(len(self.writings))])

    def _close_one(self, one: Reading | Writing) -> None:
        if isinstance(one, Reading):
            self.readings.remove(one)
        else:
            self.writings.remove(one)
        one.open = False
        self.doing = f"closing {one}"
        one.close()

    def _look(self) -> None:
        assert self.session is not None
        self.doing = "looking around"
        self.rng.choice((self.session.topics, self.session.view, self.session.status, self.session.endpoints))()

    def _rest(self) -> None:
        time.sleep(self.rng.choice((0.001, 0.005, 0.02)))
