"""One life of a node in a run: the driver around the production engine, machine and detector.

What `spindle.node.changes`, `epochs` and `peers` do with a loop, sockets and descriptors is done here at the world's
word,
in steps as small as a real node can be interrupted in: one action of the machine, one thing from a connection, one pass
over the predicates.

Rules: a life reads its mail only when its machine has nothing left to do, as a node does. Once it has ended nothing of
it runs, but its row stays mapped by the others.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

from spindle.errors import SpindleError, error_to_wire
from spindle.group.view import Member, View
from spindle.membership import messages as m
from spindle.membership.machine import Machine, Phase
from spindle.membership.preparation import Preparation
from spindle.membership.watch import Watch
from spindle_core.engine import Engine, Switches
from spindle_lab.sim import links
from spindle_lab.sim.apps import Reader, Writer
from spindle_lab.sim.links import CAST_OUT, END, FAREWELL, MESSAGE, OFFER, Conn, Item
from spindle_lab.sim.tables import WatchedTable

if TYPE_CHECKING:
    from spindle_core.epoch import Epoch
    from spindle_lab.sim.world import World

NS = 1_000_000_000
BELL_ASLEEP = slice(12, 16)  # of the bell page (layout.h)
PREPARE_TIMEOUT_S, LACKS_WAIT_S = 0.4, 0.05  # shorter than a real node's, as a run is short


class Life:
    """See the module. `number` counts all lives of a run; node ids come again."""

    def __init__(self, world: World, number: int, node_id: int, switches: Switches) -> None:
        self.world, self.number, self.node_id = world, number, node_id
        host = b"" if world.fabric.certain else bytes([node_id])
        self.me = Member(node_id, 1000 + number, f"node-{node_id}", 10_000 + number, host=host)
        self.engine = Engine(node_id, incarnation=self.me.incarnation, switches=switches)
        self.bell = memoryview(self.engine.bell)
        self.machine = Machine(self.me)
        self.watch = Watch(self.machine, world.setup.suspect_timeout_ns)
        self.preparation = Preparation(self.machine, self._lacks, PREPARE_TIMEOUT_S, LACKS_WAIT_S)
        self.view: View | None = None
        self.epoch: Epoch | None = None
        self.table: WatchedTable | None = None
        self.actions: deque[m.Action] = deque()
        self.dirty = True  # the machine has to look
        self.asleep = False
        self.sleeps_until_ns = 0  # its heartbeat is due then
        self.paused = False
        self.end = ""  # why it has ended, empty while it runs
        self.end_kind = ""
        self.clock_skew_ns = 0
        self.next_look_ns = 0
        self.conns: list[Conn] = []
        self.peers: dict[int, Conn] = {}
        self.cast_out: set[int] = set()  # numbers of lives that it doesn't let in again
        self.meeting: tuple[int, View, set[int]] | None = None  # told by, view, node ids that it connects to
        # the next epoch
        self.next_view: View | None = None
        self.next_ballot = 0
        self.next_epoch: Epoch | None = None
        self.missing: set[int] = set()
        self.offered: set[int] = set()
        self.offers: dict[tuple[int, int, int], dict[int, tuple[Life, Epoch]]] = {}
        # applications
        self.readers: dict[int, Reader] = {}  # by topic id
        self.writers: dict[int, list[Writer]] = {}
        self.direct: dict[int, Writer] = {}
        self.wanted: dict[str, int] = {}  # role by topic name: 0 out, 1 member, 2 sender
        self.wished: dict[str, int] = {}  # role by topic name that the machine was told last
        self.slow: set[str] = set()
        self.writer_numbers = 0

    def __str__(self) -> str:
        return f"n{self.node_id}" if self.me.incarnation < 2000 else f"n{self.node_id}'{self.number}"

    @property
    def running(self) -> bool:
        return not self.end

    @property
    def works(self) -> bool:
        return not self.end and not self.paused

    @property
    def now_ns(self) -> int:
        """The node's clock, as it is set: at least 1, for 0 would be the system's."""
        return max(1, self.world.now_ns + self.clock_skew_ns)

    # --- the predicate thread

    def step(self) -> int:
        """One pass, as the predicate thread does it. A node that sleeps goes on only if it was rung."""
        if self.asleep and not self.woken():
            return 0
        return self._pass()

    def _pass(self, falls_asleep: bool = False) -> int:
        done = int(self.engine.step_once(self.now_ns, falls_asleep=falls_asleep))
        if done:
            try:
                os.eventfd_read(self.engine.control_fd)
                self.dirty = True
            except BlockingIOError:
                pass
            self.take()
        return done

    def sleep(self) -> bool:
        """Announces sleep and looks once more, as the predicate thread does before it blocks; True if it sleeps.

        That it may do so at any moment is more than `spindle_core.idling` lets it: there only passes that find nothing
        come before, and how long they take is nobody's to say.
        """
        if self.asleep:
            return False
        self.world.fabric.rung(self)
        self.asleep = True
        longest_ms = self.engine.sleep_ms_max
        self.sleeps_until_ns = self.world.now_ns + 1_000_000 * longest_ms if longest_ms >= 0 else 1 << 63
        if self._pass(falls_asleep=True):
            self.wake()
        return self.asleep

    def woken(self) -> bool:
        """Wakes up if somebody has rung, or its heartbeat is due."""
        rung = self.world.fabric.rung(self) or self.world.now_ns >= self.sleeps_until_ns
        try:
            os.eventfd_read(self.engine.bell_fd)
            rung = True
        except BlockingIOError:
            pass
        if rung:
            self.wake()
        return rung

    def wake(self) -> None:
        if self.asleep:
            self.asleep = False
            self.bell[BELL_ASLEEP] = b"\0\0\0\0"

    def take(self) -> None:
        """Everything that was delivered goes to the checker."""
        for topic_id, reader in self.readers.items():
            self.take_of(topic_id, reader)

    def take_of(self, topic_id: int, reader: Reader) -> None:
        """What is there; what waits for room in the log follows, and then delivery goes on."""
        while True:
            pairs = reader.seen.take_pairs(1 << 30)
            if pairs:
                self.world.check.delivered(self, topic_id, pairs)
            if not reader.backlog:
                return
            before = len(reader.backlog)
            if reader.pump():
                self.engine.release_delivery(topic_id)
            if len(reader.backlog) == before:
                return

    def drain(self) -> None:
        """What was delivered is delivered, even at a node that has ended."""
        for topic_id, reader in self.readers.items():
            pairs = reader.seen.take_pairs(1 << 30)
            if pairs:
                self.world.check.delivered(self, topic_id, pairs)

    # --- the control thread

    @property
    def busy(self) -> bool:
        return bool(self.actions) or self.dirty

    def control(self, n: int) -> int:
        """Up to n actions; returns how many were carried out, looks of the machine included."""
        done = 0
        while done < n and not self.end and (self.actions or self.dirty):
            done += 1
            if self.actions:
                self._carry_out(self.actions.popleft())
                self.dirty = True
                continue
            self.dirty = False
            self.machine.step()
            self.actions.extend(self.machine.take_actions())
        return done

    def settle(self) -> None:
        """Everything that the machine wants now."""
        for _ in range(10_000):
            if self.end or not self.control(100):
                return
        self.world.check.violated("L1", f"{self}: the machine never comes to rest")

    def _carry_out(self, action: m.Action) -> None:
        world = self.world
        if isinstance(action, m.Send):
            if isinstance(action.message, m.LeftOut):
                world.hit("told a member to stop")
                world.causes += 1
            conn = self.peers.get(action.node_id)
            if conn is not None and action.incarnation in (0, conn.other(self).me.incarnation):
                conn.send(self, (MESSAGE, action.message))
            elif isinstance(action.message, m.JoinRequest):
                self.machine.unreachable(action.node_id)
        elif isinstance(action, m.Prepare):
            world.hit("prepare")
            self.preparation.begins(action.ballot, world.now_ns / NS)
            self._prepare(action.view, action.ballot)
        elif isinstance(action, m.Wedge):
            self.wake()
            self.engine.wedge(action.ballot, open_claim_timeout_s=0.0)
            self.take()
            world.check.wedged(self, action.ballot)
        elif isinstance(action, m.Cut):
            self._cut(action)
        elif isinstance(action, m.DeliverToTrim):
            self._deliver_to_trim(action.trims)
        elif isinstance(action, m.Install):
            self._install(action.view)
        elif isinstance(action, m.Left):
            self.finish(links.ENDED_ORDERLY, "")
        elif isinstance(action, m.Rejected):
            world.hit(f"rejected {action.kind}")
            if action.request_id == 0:
                self.fail(action.kind, action.text)
        elif isinstance(action, m.Failed):
            self.fail(action.kind, action.text)

    def _cut(self, action: m.Cut) -> None:
        self.world.hit("cut")
        self.engine.cut(action.rank)
        conn = self.peers.get(action.node_id)
        member = self.view.member(action.node_id) if self.view is not None else None
        if member is not None:
            self.cast_out.add(self.world.life_of(member).number)
        if conn is not None and member == conn.other(self).me:
            conn.send(self, (FAREWELL, False, CAST_OUT, action.why))
            conn.close(self, False)
            del self.peers[action.node_id]

    def _deliver_to_trim(self, trims: dict[int, tuple[int, ...]]) -> None:
        assert self.view is not None
        self.wake()
        self.world.check.trimmed(self, trims)
        for topic in self.view.topics:
            if self.node_id not in topic.members or topic.topic_id not in trims:
                continue
            reader, trim = self.readers[topic.topic_id], trims[topic.topic_id]
            if not self.engine.deliver_to_trim(topic.topic_id, trim):
                self.world.hit("trim met a full log")
                rest = self.engine.take_undelivered(topic.topic_id, trim)
                owed = [
                    (payload, sender, sequence, source_ns, writer_id, self.view.view_id)
                    for payload, sender, sequence, source_ns, writer_id, _ in rest]
                self.take_of(topic.topic_id, reader)
                self.world.check.owed(self, topic.topic_id, owed)
                reader.backlog += owed
            if reader.backlog:
                self.engine.hold_delivery(topic.topic_id)
            self.take_of(topic.topic_id, reader)

    def _install(self, view: View) -> None:
        assert self.next_epoch is not None and self.next_view is not None and self.next_view.view_id == view.view_id
        world, before, epoch = self.world, self.view, self.next_epoch
        self.next_view, self.next_epoch = None, None
        self.offers = {key: one for key, one in self.offers.items() if key[1] > view.view_id}
        for topic in view.topics:
            if self.node_id in topic.fresh and topic.topic_id not in self.readers:
                self.readers[topic.topic_id] = Reader(
                    self, topic.topic_id, topic.spec.name in self.slow, world.setup.small_logs)
        if before is not None:
            world.check.leaving_view(self)
        unsent = self.engine.install(epoch)
        self.wake()
        self.epoch, self.view = epoch, view
        self.table = WatchedTable(epoch, self)
        world.check.installed(self, before, unsent)
        self.machine.installed(self.table)
        for topic in view.topics:
            if self.node_id not in topic.members and topic.topic_id in self.readers:
                self._forget(topic.topic_id)
        for topic_id in [one for one in self.readers if all(topic.topic_id != one for topic in view.topics)]:
            self._forget(topic_id)
        for conn in list(self.peers.values()):
            if view.member(conn.other(self).node_id) != conn.other(self).me:
                conn.send(self, (MESSAGE, m.CurrentView(view)))
        for member in view.members:
            if member != self.me and member.node_id not in self.peers:
                life = world.life_of(member)
                self.machine.peer_gone(member, ended=world.certain(life))
        self.watch.installed(epoch, world.now_ns)
        world.note(f"{self} installs view {view.view_id}: {' '.join(map(str, view.node_ids))}")

    def _forget(self, topic_id: int) -> None:
        reader = self.readers[topic_id]
        self.take_of(topic_id, reader)
        self.engine.forget_topic(topic_id)
        del self.readers[topic_id]
        self.writers.pop(topic_id, None)
        self.direct.pop(topic_id, None)

    # --- the next epoch (see spindle.node.epochs)

    def _prepare(self, view: View, ballot: int) -> None:
        self.next_view, self.next_epoch = None, None
        self.missing, self.offered = set(), set()
        rank = view.rank_of(self.node_id)
        if rank is None:
            self.machine.prepared(ballot)
            return
        self.next_epoch = self.world.fabric.new_epoch(self, view, ballot)
        self.next_view, self.next_ballot = view, ballot
        self.missing = set(view.node_ids) - {self.node_id}
        for node_id in sorted(self.missing):
            if node_id in self.peers:
                self._offer(node_id)
            else:
                self._connect(view, node_id)
        for life, epoch in self.offers.pop((view.group_id, view.view_id, ballot), {}).values():
            self._attach(life, epoch)
        self._look_prepared()

    def _offer(self, node_id: int) -> None:
        if self.next_epoch is None or self.next_view is None or node_id in self.offered:
            return
        conn = self.peers[node_id]
        if self.next_view.member(node_id) != conn.other(self).me:
            return
        self.offered.add(node_id)
        key = self.next_view.group_id, self.next_view.view_id, self.next_ballot
        conn.send(self, (OFFER, key, self.next_epoch))

    def _take_offer(self, life: Life, key: tuple[int, int, int], epoch: Epoch) -> None:
        if self.next_view is not None and key == (self.next_view.group_id, self.next_view.view_id, self.next_ballot):
            self._attach(life, epoch)
            self._look_prepared()
        elif self.view is None or key[1] > self.view.view_id:
            self.offers.setdefault(key, {})[life.node_id] = (life, epoch)

    def _attach(self, life: Life, epoch: Epoch) -> None:
        assert self.next_view is not None and self.next_epoch is not None
        rank = self.next_view.rank_of(life.node_id)
        if rank is None or life.node_id not in self.missing or self.next_view.members[rank] != life.me:
            return
        self.world.fabric.attach(self, self.next_epoch, rank, life, epoch)
        self.missing.discard(life.node_id)

    def _look_prepared(self) -> None:
        if self.next_epoch is not None and not self.missing:
            self.machine.prepared(self.next_ballot)
            self.dirty = True

    # --- connections

    def reach(self, node_id: int) -> bool:
        """Begins to connect to the present life of a node; False if nobody listens there."""
        life = self.world.current.get(node_id)
        if life is None or not life.running:
            return False
        if node_id not in self.peers and not any(
                conn.other(self) is life and conn.reads(self) and conn.reads(life) for conn in self.conns):
            conn = Conn(self, life)
            self.conns.append(conn)
            life.conns.append(conn)
            conn.send(self, (links.HELLO,))
        return True

    def _met(self, conn: Conn) -> None:
        """The handshake is done at this end."""
        life = conn.other(self)
        old = self.peers.get(life.node_id)
        if old is not None and old is not conn:
            self._flush(old)
        conn.set_open(self, True)
        self.peers[life.node_id] = conn
        self.machine.connected(*life.me.life)
        self.dirty = True
        if self.next_view is not None and life.node_id in self.next_view.node_ids:
            self._offer(life.node_id)

    def _connect(self, view: View, node_id: int) -> None:
        mine, other = view.rank_of(self.node_id), view.rank_of(node_id)
        if mine is not None and other is not None and other < mine:
            self.reach(node_id)

    def _tell_view(self, conn: Conn) -> None:
        life = conn.other(self)
        if self.view is not None and self.view.member(life.node_id) != life.me:
            conn.send(self, (MESSAGE, m.CurrentView(self.view)))

    def _flush(self, conn: Conn) -> None:
        """An old connection of a node that has connected anew: its end comes first."""
        queue = conn.queue_of(self)
        while queue and conn.reads(self):
            self._take(conn, queue.popleft())
        if conn.reads(self):
            conn.close(self, False)
            self._gone(conn, False)

    def incoming(self) -> list[Conn]:
        """The connections that hold something for this node."""
        return [conn for conn in self.conns if conn.queue_of(self) and self.world.reaches(self, conn.other(self))]

    def receive(self, conn: Conn) -> None:
        """The first thing from a connection. The machine finishes what it has begun before."""
        self.settle()
        if not self.end:
            self._take(conn, conn.queue_of(self).popleft())

    def _take(self, conn: Conn, item: Item) -> None:
        kind, life = item[0], conn.other(self)
        if kind == links.ENDED:
            member = self.machine.view.member(life.node_id) if self.machine.view is not None else None
            if member == life.me:
                self.machine.ended(life.node_id)
                self.dirty = True
        elif not conn.reads(self):
            pass
        elif kind == links.HELLO and life.number in self.cast_out:
            conn.send(self, (FAREWELL, False, CAST_OUT, "it was cast out before"))
            conn.close(self, False)
        elif kind == links.HELLO:
            self._met(conn)
            conn.send(self, (links.WELCOME,))
            self._tell_view(conn)
        elif kind == links.WELCOME:
            self._met(conn)
            self._tell_view(conn)
            self._meet_on()
        elif kind == MESSAGE:
            if isinstance(item[1], m.CurrentView):
                self._meet(life.node_id, item[1].view)
            else:
                self.machine.receive(life.node_id, item[1])
        elif kind == OFFER:
            self._take_offer(life, item[1], item[2])
        elif kind == FAREWELL:
            if item[2] == CAST_OUT:
                conn.close(self, False)
                self._gone(conn, False)
                if self.view is not None and self.view.member(life.node_id) == life.me:
                    self.fail("CastOut", f"{life} has told so: {item[3]}")
            elif conn.a is self:
                conn.farewell_to_a = item
            else:
                conn.farewell_to_b = item
        elif kind == END:
            conn.close(self, False)
            self._gone(conn, item[1])
        self.dirty = True

    def _gone(self, conn: Conn, ended: bool) -> None:
        life = conn.other(self)
        was_open = self.peers.get(life.node_id) is conn
        if was_open:
            del self.peers[life.node_id]
            self.offered.discard(life.node_id)
            if self.next_view is not None and (self.view is None or self.view.member(life.node_id) != life.me):
                self._connect(self.next_view, life.node_id)  # between a joiner and a member it is no end yet
        farewell = conn.farewell_to_a if conn.a is self else conn.farewell_to_b
        left = farewell is not None and bool(farewell[1])
        why = farewell[3] if farewell is not None else ""
        if was_open or (self.view is not None and self.view.member(life.node_id) == life.me):
            self.machine.peer_gone(life.me, left, why, ended)
        if self.meeting is not None and life.node_id in self.meeting[2]:
            self.meeting = None  # a newer view will tell

    def _meet(self, told_by: int, view: View) -> None:
        """A newcomer connects to all members of the view that it was told, before it asks to join."""
        if self.view is not None:
            return
        waiting = set()
        for member in view.members:
            if member.node_id != self.node_id and member.node_id not in self.peers:
                if not self.reach(member.node_id):
                    self.meeting = None
                    return
                waiting.add(member.node_id)
        self.meeting = (told_by, view, waiting)
        self._meet_on()

    def _meet_on(self) -> None:
        if self.meeting is None:
            return
        told_by, view, waiting = self.meeting
        waiting -= set(self.peers)
        if not waiting:
            self.meeting = None
            self.machine.receive(told_by, m.CurrentView(view))

    # --- time

    def look(self) -> None:
        """What the timers of a node do."""
        self.settle()
        if self.end:
            return
        now_ns = self.world.now_ns
        if self.epoch is not None and self.machine.phase is not Phase.INSTALLING:
            before, alone = set(self.machine.live_ranks()), self.machine.in_minority
            self.watch.look(now_ns)
            self._note_watch(before, alone)
        if self.preparation.due_s is not None and now_ns / NS >= self.preparation.due_s:
            self.overdue()
        self.next_look_ns = now_ns + self.watch.wait_ns()
        self.settle()

    def _note_watch(self, before: set[int], alone: bool) -> None:
        """What the run knows of what the watch has made of it."""
        world, machine = self.world, self.machine
        self.dirty = True
        if self.watch.waited_for:
            world.hit("may not suspect")
        if machine.phase is Phase.GONE:
            world.causes += 1
            world.hit("gave up in a minority" if alone else "cut off")
            return
        for rank in before - set(machine.live_ranks()):
            assert self.view is not None
            self._falsely(world.life_of(self.view.members[rank]))

    def _falsely(self, life: Life) -> None:
        if life.running:
            self.world.causes += 1
            self.world.hit("false suspicion")

    def suspect(self, node_id: int, why: str) -> None:
        member = self.view.member(node_id) if self.view is not None else None
        if member is not None:
            self._falsely(self.world.life_of(member))
            self.machine.suspect(node_id, why)
            self.dirty = True

    def _lacks(self, ballot: int) -> dict[int, str]:
        if self.next_view is None or ballot != self.next_ballot:
            return {}
        return {node_id: "its row has not come" for node_id in sorted(self.missing)}

    def overdue(self) -> bool:
        """The view that is being prepared takes too long; False if none is."""
        if self.preparation.due_s is None:
            return False
        before = set(self.machine.live_ranks())
        lacks, joiners = self.preparation.look(self.world.now_ns / NS)
        if lacks:
            self.world.hit("said what it lacks")
        if self.machine.phase is Phase.GONE or before != set(self.machine.live_ranks()):
            self.world.hit("left out a member")
            self.world.causes += 1
        for joiner in joiners:
            self.world.hit("left out a joiner")
            conn = self.peers.get(joiner.node_id)
            if conn is not None and conn.other(self).me == joiner:
                conn.close(self, False)
                self._gone(conn, False)
        self.dirty = True
        return True

    # --- the end

    def fail(self, kind: str, text: str) -> None:
        if self.end:
            return
        self.world.check.failed(self, kind, text)
        self.finish(links.ENDED_FAILED, kind, text)

    def fail_by(self, error: SpindleError) -> None:
        self.fail(*error_to_wire(error))

    def finish(self, how: str, kind: str, text: str = "") -> None:
        """The node stops by itself: first everything in it, then it says so."""
        self.world.note(f"{self} {how} {kind} {text}")
        self.drain()
        if how == links.ENDED_ORDERLY and self.view is not None:
            self.world.check.leaving_view(self)
        self.engine.stop()
        self.drain()
        self.world.fabric.flush(self)
        for conn in self.conns:
            if conn.is_open(self):
                conn.send(self, (FAREWELL, how == links.ENDED_ORDERLY, kind, text))
        self.stop(how, kind, True)

    def stop(self, how: str, kind: str, certain: bool) -> None:
        """The process has ended; `certain`: the others see at once that it has, not only that the connection has."""
        self.end, self.end_kind = how, kind
        self.actions, self.dirty = deque(), False
        self.world.ended(self, certain)

    def state(self) -> Any:
        """For the trace: phase, view and what it waits for."""
        if self.end:
            return f"{self.end} {self.end_kind}".strip()
        view = self.view.view_id if self.view is not None else "-"
        flags = ("z" if self.asleep else "") + ("P" if self.paused else "")
        return f"{self.machine.phase.value} v{view}{' ' + flags if flags else ''}"
