"""All nodes of a run: applies one event after the other. See `spindle_lab.sim.events` for what can happen.

Rules: nothing here is random, and nothing looks at a clock. The same events in the same setup give the same run; `hash`
is a number over everything that was seen on the way, to tell two runs apart.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.errors import SpindleError
from spindle.group.topics import TopicSpec
from spindle.membership import messages as m
from spindle.membership.machine import Phase
from spindle_core.errors import CoreError
from spindle_lab.sim import contracts
from spindle_lab.sim import events as e
from spindle_lab.sim.apps import Reader, Writer
from spindle_lab.sim.check import Checker, Violation
from spindle_lab.sim.fabrics import CopiedRows, Rows, SharedRows
from spindle_lab.sim.links import CRASHED, END, ENDED, ENDED_ORDERLY
from spindle_lab.sim.node import Life
from spindle_lab.sim.setup import Setup
from spindle_lab.sim.tables import Interrupted

if TYPE_CHECKING:
    from spindle.group.view import Member

HASH_MASK = (1 << 64) - 1
WRITERS_MAX = 2  # of a topic on a node


class World:
    """See the module. `listener` gets a line for people about everything worth one; None: nobody listens."""

    def __init__(self, setup: Setup, listener: Callable[[str], None] | None = None) -> None:
        self.setup = setup
        self.fabric: Rows = _rows(setup.fabric, self)
        self.lives: list[Life] = []
        self.current: dict[int, Life] = {}  # by node id
        self.now_ns = 1_000_000_000
        self.steps = 0
        self.causes = 0  # accusations of nodes that were running
        self.side = 0  # nodes (bits) that a partition separates from the others; 0: there is none
        self.hash = 0
        self.probes: dict[str, int] = {}
        self.check = Checker(self)
        self._listener = listener
        self._members: dict[Member, Life] = {}
        self._fuse: tuple[Life, int, tuple[e.Event, ...] | None] | None = None
        self._inside: Life | None = None  # whose machine is in the middle of its work
        self._writer_uids = 0

    # --- what the parts tell

    def life_of(self, member: Member) -> Life:
        return self._members[member]

    def certain(self, life: contracts.Life) -> bool:
        """Everybody can see that this process has ended."""
        return self.fabric.certain and not life.running

    def hit(self, probe: str) -> None:
        self.probes[probe] = self.probes.get(probe, 0) + 1

    def mix(self, a: int, b: int) -> None:
        self.hash = (self.hash * 0x9E3779B97F4A7C15 ^ a * 0x100000001B3 ^ b) & HASH_MASK

    def note(self, text: str) -> None:
        if self._listener is not None:
            self._listener(text)

    def running(self) -> list[Life]:
        return [life for life in self.current.values() if not life.end]

    def before_store(self, life: Life) -> None:
        """A machine is about to store into its row: here other nodes may act first, or its process may end."""
        if self._fuse is None or self._fuse[0] is not life:
            return
        _, k, events = self._fuse
        if k > 0:
            self._fuse = (life, k - 1, events)
            return
        self._fuse = None
        if events is None:
            raise Interrupted
        inside, self._inside = self._inside, life
        for event in events:
            if event[0] not in (e.SPLIT, e.CRASH_IN) and (event[1] != life.node_id or event[0] == e.STEP):
                self.apply(event)
        self._inside = inside

    def ended(self, life: Life, certain: bool, why: str = "") -> None:
        """The process of a life has ended: what it sent before still arrives."""
        self.fabric.ended(life, rest=not certain or life.end != CRASHED)
        certain = (certain and self.fabric.certain) or life.end != CRASHED
        for link in life.links:
            other = link.other(life)
            link.end(life, life.end == ENDED_ORDERLY, life.end_kind, why, certain)
            if self.fabric.certain and other.running and not (certain and link.talks(other)):
                link.queue_of(other).append((ENDED,))
        self.mix(life.number, len(life.end))

    def close(self) -> None:
        """Gives all memory back at once: a run makes hundreds of mappings, in cycles of objects."""
        for life in self.lives:
            life.__dict__.clear()
        self.__dict__.clear()

    # --- events

    def apply(self, event: e.Event) -> bool:
        """Makes it happen; False if it was impossible. Raises Violation."""
        kind = event[0]
        if kind == e.TICK:
            self.now_ns += event[1]
            self.steps += 1
            return True
        if kind == e.LAND:
            return self._land(*event[1:])
        if kind == e.PART:
            return self._part(event[1])
        if kind == e.START:
            return self._start(event[1])
        life = self.current.get(event[1])
        if life is None or life.end:
            return False
        if life.paused and kind not in (e.RESUME, e.CRASH, e.CLOG, e.UNCLOG, e.CLOCK):
            return False
        try:
            done = bool(HANDLERS[kind](self, life, *event[2:]))
        except Interrupted:
            self.hit("ended in the middle of a row's change")
            self._crash(life, True)
            done = True
        except SpindleError as error:
            life.fail_by(error)
            done = True
        except Violation:
            raise
        except Exception as error:
            raise Violation("E1", f"{life} in {event}: {type(error).__name__}: {error}\n"
                                  f"{traceback.format_exc()}") from error
        if done:
            self.steps += 1
            self.mix(KIND_NUMBERS[kind], life.number)
            if not life.end:
                self.check.rows.check_monotone(life)
                self.check.acknowledged(life)
        return done

    def _start(self, node_id: int) -> bool:
        old = self.current.get(node_id)
        if old is not None and old.running:
            return False
        life = Life(self, len(self.lives), node_id, self.setup.switches)
        life.next_look_ns = self.now_ns
        self.lives.append(life)
        self.current[node_id] = life
        if self.side:
            self._separate(life)
        self._members[life.me] = life
        self.steps += 1
        self.note(f"{life} starts")
        self._scan(life)
        return True

    def _scan(self, life: Life) -> bool:
        """Meets all that are there; forms the group if nobody is a member or becomes one (the domain's lock sees to
        that)."""
        if life.machine.phase is not Phase.OUTSIDE or life.view is not None or life.actions:
            return False
        others = [other for other in self.running() if other is not life]
        if any(other.machine.phase is not Phase.OUTSIDE for other in others):
            return any([life.reach(other.node_id) for other in others])
        self.hit("formed a group")
        life.machine.form(7700 + life.number)
        life.dirty = True
        return True

    def _step(self, life: Life) -> bool:
        return life.step() > 0

    def _sleep(self, life: Life) -> bool:
        return life.sleep()

    def _control(self, life: Life, n: int) -> bool:
        return life is not self._inside and life.control(n) > 0

    def _split(self, life: Life, k: int, events: tuple[e.Event, ...]) -> bool:
        if self._inside is not None or not life.busy:
            return False
        self._fuse = (life, k, events)
        try:
            life.control(20)
            if self._fuse is None:
                self.hit("overtaken in the middle of a row's change")
        finally:
            self._fuse = None
        return True

    def _receive(self, life: Life, n: int) -> bool:
        if life is self._inside:
            return False
        incoming = life.incoming()
        if not incoming:
            return False
        life.receive(incoming[n % len(incoming)])
        return True

    def _turn(self, life: Life) -> bool:
        if life is self._inside:
            return False
        done = life.busy
        life.settle()
        for _ in range(200):
            incoming = life.incoming()
            if not incoming or life.end:
                break
            done = True
            life.receive(incoming[0])
            life.settle()
        if not life.end:
            done = self._tend(life) or done
            done = life.step() > 0 or done
            life.settle()
        return done

    def _look(self, life: Life) -> bool:
        if life is self._inside or self.now_ns < life.next_look_ns:
            return False
        life.look()
        return True

    # --- applications

    def _spec(self, topic: int) -> TopicSpec:
        return self.setup.topics[topic % len(self.setup.topics)]

    def _writer(self, life: Life, topic: int, n: int = 0) -> Writer | None:
        """Writer number n of a topic at this node, opened if it may be."""
        name = self._spec(topic).name
        if life.view is None or life.wanted.get(name) != 2 or life.machine.leaving:
            return None
        known = life.view.topic(name)
        if known is None or life.node_id not in known.senders:
            return None
        writers = life.writers.setdefault(known.topic_id, [])
        if n >= len(writers) and len(writers) < WRITERS_MAX:
            life.writer_numbers += 1
            writers.append(self._open(life, known.topic_id, life.writer_numbers))
        return writers[n % len(writers)]

    def _open(self, life: Life, topic_id: int, number: int) -> Writer:
        assert life.view is not None
        spec = next(topic.spec for topic in life.view.topics if topic.topic_id == topic_id)
        self._writer_uids += 1
        writer = Writer(self._writer_uids, life, topic_id, number, spec.size_max, self.setup.inbox_slots)
        self.check.opened(writer)
        return writer

    def _write(self, life: Life, topic: int, n: int, size: int) -> bool:
        writer = self._writer(life, topic, n & 1)
        if writer is None:
            return False
        if not self._spec(topic).level.ordered:
            size = max(size, 8)
        written = 0
        while written < n and writer.write(size):
            written += 1
        return written > 0

    def _direct_writer(self, life: Life, topic: int) -> Writer | None:
        """The writer into the node's own ring, opened if it may be."""
        if self._writer(life, topic) is None:
            return None
        known = life.view.topic(self._spec(topic).name) if life.view is not None else None
        assert known is not None
        if known.topic_id not in life.direct:
            life.direct[known.topic_id] = self._open(life, known.topic_id, 0)
        return life.direct[known.topic_id]

    def _direct(self, life: Life, topic: int, size: int) -> bool:
        writer = self._direct_writer(life, topic)
        return writer is not None and writer.write_direct(size if self._spec(topic).level.ordered else max(size, 8))

    def _hold(self, life: Life, topic: int, size: int) -> bool:
        if self._fill(life, topic):
            return True
        writer = self._direct_writer(life, topic)
        return writer is not None and writer.hold(size if self._spec(topic).level.ordered else max(size, 8))

    def _fill(self, life: Life, topic: int) -> bool:
        """Whatever slot of the node's ring is open in the topic is filled now."""
        known = life.view.topic(self._spec(topic).name) if life.view is not None else None
        writer = life.direct.get(known.topic_id) if known is not None else None
        if writer is None or writer.held is None:
            return False
        if not writer.fill():
            self.hit("slot still open at the end of its view")
        return True

    def _silence(self, life: Life, topic: int, rounds: int) -> bool:
        writer = self._writer(life, topic)
        if writer is None or not self._spec(topic).level.ordered:
            return False
        try:
            life.engine.declare_silence(writer.topic_id, rounds)
        except CoreError:
            return False
        self.hit("silence declared")
        return True

    def _claim(self, life: Life, topic: int, how: int) -> bool:
        writer = self._writer(life, topic)
        if writer is None or not writer.claim(how, 8 + topic):
            return False
        if how == 3:
            self.hit("application died with a claim")
        return True

    def _reader(self, life: Life, topic: int) -> tuple[int, Reader] | None:
        known = life.view.topic(self._spec(topic).name) if life.view is not None else None
        reader = life.readers.get(known.topic_id) if known is not None else None
        return (known.topic_id, reader) if known is not None and reader is not None else None

    def _read(self, life: Life, topic: int, n: int) -> bool:
        found = self._reader(life, topic)
        if found is None or not found[1].read(n):
            return False
        life.take_of(*found)
        return True

    def _slow(self, life: Life, topic: int, slow: int) -> bool:
        name = self._spec(topic).name
        if slow:
            life.slow.add(name)
        else:
            life.slow.discard(name)
        found = self._reader(life, topic)
        if found is None or not found[1].set_slow(bool(slow)):
            return False
        life.take_of(*found)
        return True

    def _role(self, life: Life, topic: int, role: int) -> bool:
        spec = self._spec(topic)
        if life.wanted.get(spec.name, 0) == role or life.machine.leaving or life is self._inside:
            return False
        if life.view is not None and spec.name in life.wished:
            last = life.wished[spec.name]
            if not life.view.has_role(life.node_id, spec.name, last > 0, last > 1):
                return False  # the next wish waits until this one is fulfilled
        if life.wanted.get(spec.name, 0) == 0 and (life.view is None or life.view.topic(spec.name) is None):
            life.machine.declare(spec)
        life.wanted[spec.name] = role
        known = life.view.topic(spec.name) if life.view is not None else None
        if known is not None and role < 2:
            for writer in life.writers.get(known.topic_id, ()):
                writer.claim(2, 0)
                writer.closing = True
            self._fill(life, topic)
        if role == 2 or known is None or not self._draining(life, known.topic_id):
            self._wish(life, spec.name, role)
        life.dirty = True
        return True

    def _wish(self, life: Life, name: str, role: int) -> None:
        life.wished[name] = role
        life.machine.take_role(m.Role(name, role > 0, role > 1))
        life.dirty = True

    def _draining(self, life: Life, topic_id: int) -> bool:
        """A writer of the topic has something on the way: the node stays a sender."""
        direct = life.direct.get(topic_id)
        return bool(life.writers.get(topic_id)) or (direct is not None and direct.next < len(direct.sent))

    def _tend(self, life: Life) -> bool:
        """Closes writers that are done, and gives up the roles that go with them."""
        done = False
        if life.view is None or life.machine.leaving:
            return False
        for topic in life.view.topics:
            writers = life.writers.get(topic.topic_id, [])
            for writer in [one for one in writers if one.closing and one.drained]:
                writer.close()
                writers.remove(writer)
                done = True
            role = life.wanted.get(topic.spec.name, 0)
            if role < 2 and life.node_id in topic.senders and not self._draining(life, topic.topic_id):
                if life.wished.get(topic.spec.name) != role:
                    self._wish(life, topic.spec.name, role)
                    done = True
        return done

    def _persist(self, life: Life, topic: int) -> bool:
        found = self._reader(life, topic)
        if found is None:
            return False
        life.engine.set_durable(found[0], found[1].log.delivered)
        return True

    # --- members and faults

    def _leave(self, life: Life) -> bool:
        if life.machine.leaving or life.view is None or life is self._inside:
            return False
        self.hit("leave")
        life.machine.leave()
        life.dirty = True
        return True

    def _crash(self, life: Life, certain: int) -> bool:
        if life is self._inside:
            return False
        self.hit(f"crash while {life.machine.phase.value}")
        if life.machine.is_leader:
            self.hit(f"leader's crash while {life.machine.phase.value}")
        self.note(f"{life} crashes")
        life.drain()
        life.stop(CRASHED, "", bool(certain))
        return True

    def _crash_in(self, life: Life, k: int, certain: int) -> bool:
        if self._inside is not None or not life.busy:
            return False
        self._fuse = (life, k, None)
        try:
            life.control(20)
        finally:
            self._fuse = None
        return True

    def _pause(self, life: Life) -> bool:
        if life is self._inside:
            return False
        self.hit("pause")
        life.paused = True
        return True

    def _resume(self, life: Life) -> bool:
        if not life.paused:
            return False
        life.paused = False
        return True

    def _accuse(self, life: Life, other: int) -> bool:
        if life is self._inside or life.view is None or other == life.node_id or life.view.rank_of(other) is None:
            return False
        life.settle()
        if not life.end:
            life.suspect(other, "the run says so")
        return True

    def _clock(self, life: Life, ns: int) -> bool:
        life.clock_skew_ns += ns
        return True

    def _overdue(self, life: Life) -> bool:
        return life is not self._inside and life.overdue()

    def _cut_link(self, life: Life, other: int) -> bool:
        link = life.peers.get(other)
        if link is None or life is self._inside or link.other(life) is self._inside:
            return False
        self.hit("connection broke")
        self.causes += 1
        for end in (life, link.other(life)):
            link.queue_of(end).append((END, False, "", "the connection broke", False))
        return True

    def _clog(self, life: Life, other: int) -> bool:
        there = self.current.get(other)
        return there is not None and there is not life and self.fabric.clog(life, there, True)

    def _unclog(self, life: Life, other: int) -> bool:
        there = self.current.get(other)
        return there is not None and there is not life and self.fabric.clog(life, there, False)

    def _part(self, side: int) -> bool:
        """A partition takes the place of the one before."""
        if self.fabric.certain or side == self.side:
            return False
        self.hit("partition")
        self.side = side
        for life in self.lives:
            self._separate(life)
            life.dirty = True
        self.steps += 1
        self.mix(side, len(self.lives))
        return True

    def reaches(self, life: Life, other: Life) -> bool:
        """True unless a partition is between the two."""
        return not ((self.side >> life.node_id ^ self.side >> other.node_id) & 1)

    def _separate(self, life: Life) -> None:
        """Holds what is on its way between this life and the others, or lets it go, as the partition has it."""
        for other in self.lives:
            if other is not life:
                self.fabric.clog(life, other, not self.reaches(life, other))
                self.fabric.clog(other, life, not self.reaches(life, other))

    def _land(self, source: int, target: int, lines: int) -> bool:
        if lines:
            landed = self.fabric.land(source, target, lines)
        else:
            landed = self.fabric.land_all()
        if not landed:
            return False
        self.steps += 1
        self.mix(landed, source * 100 + target)
        return True


def _rows(name: str, world: World) -> Rows:
    if name == "shared":
        return SharedRows()
    if name == "copied":
        setup = world.setup
        return CopiedRows(
            world, late=setup.late, fences=setup.fences, joins=setup.joins, ahead=setup.ahead,
            range_cost=setup.range_cost, push_bytes=setup.push_bytes,
        )  # fmt: skip
    raise ValueError(f"fabric {name!r}: shared or copied")


HANDLERS: dict[str, Callable[..., bool]] = {
    e.STEP: World._step, e.SLEEP: World._sleep, e.CTL: World._control, e.SPLIT: World._split, e.RECV: World._receive,
    e.TURN: World._turn, e.LOOK: World._look, e.WRITE: World._write, e.DIRECT: World._direct, e.HOLD: World._hold,
    e.FILL: World._fill, e.SILENCE: World._silence, e.CLAIM: World._claim, e.READ: World._read, e.SLOW: World._slow,
    e.ROLE: World._role,
    e.PERSIST: World._persist, e.LEAVE: World._leave, e.SCAN: World._scan, e.CRASH: World._crash,
    e.CRASH_IN: World._crash_in, e.PAUSE: World._pause, e.RESUME: World._resume, e.ACCUSE: World._accuse,
    e.CLOCK: World._clock, e.OVERDUE: World._overdue, e.CUT_LINK: World._cut_link,
    e.CLOG: World._clog, e.UNCLOG: World._unclog,
}
KIND_NUMBERS = {kind: number for number, kind in enumerate(sorted(HANDLERS))}
