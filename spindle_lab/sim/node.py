"""One life of a node in a run: the production engine, machine and watch, driven step by step.

It carries out what the machine asks for, when the world says so. Its steps are those between which a real node can be
interrupted: one action of the machine, one thing from a link, one pass over the predicates. How nodes find each other,
how memory travels between them and what topics keep is no part of it; that is simulated with the whole node.

Rules: a life reads its mail only when its machine has nothing left to do, as a node does. Once it has ended nothing of
it runs, but its row stays mapped by the others.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from spindle.errors import SpindleError, error_to_wire
from spindle.group.view import Member, View
from spindle.membership import messages as m
from spindle.membership.machine import Machine, Phase
from spindle.membership.preparation import Preparation
from spindle.membership.watch import Watch
from spindle_core.engine import Engine, Switches
from spindle_lab.sim import contracts, links
from spindle_lab.sim.apps import Reader, Writer
from spindle_lab.sim.links import CAST_OUT, END, MESSAGE, Item, Link
from spindle_lab.sim.tables import WatchedTable

if TYPE_CHECKING:
    from spindle_core.epoch import Epoch
    from spindle_lab.sim.check import Checker
    from spindle_lab.sim.fabrics import Rows
    from spindle_lab.sim.setup import Setup

NS = 1_000_000_000
PREPARE_TIMEOUT_S, LACKS_WAIT_S = 0.4, 0.05  # shorter than a real node's, as a run is short


class World(contracts.World, Protocol):
    """What a life needs of its world."""

    setup: Setup
    check: Checker
    current: dict[int, Life]

    @property
    def fabric(self) -> Rows:
        """Of this run."""

    def life_of(self, member: Member) -> Life:
        """Whose it is."""

    def reaches(self, life: Life, other: Life) -> bool:
        """No partition is between the two."""

    def note(self, text: str) -> None:
        """A line for people."""

    def before_store(self, life: Life) -> None:
        """Its machine is about to store into its row."""

    def ended(self, life: Life, certain: bool, why: str = "") -> None:
        """Its process has ended."""


class Life:
    """See the module. `number` counts all lives of a run; node ids come again."""

    def __init__(self, world: World, number: int, node_id: int, switches: Switches) -> None:
        self.world, self.number, self.node_id = world, number, node_id
        host = b"" if world.fabric.certain else bytes([node_id])
        self.me = Member(node_id, 1000 + number, f"node-{node_id}", 10_000 + number, host=host)
        self.engine = Engine(node_id, incarnation=self.me.incarnation, switches=switches)
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
        self.links: list[Link[Life]] = []
        self.peers: dict[int, Link[Life]] = {}  # by node id: who was met
        self.cast_out: set[int] = set()  # numbers of lives that it doesn't let in again
        # the next epoch
        self.next_view: View | None = None
        self.next_ballot = 0
        self.next_epoch: Epoch | None = None
        self.missing: set[int] = set()
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

        Here it may sleep at any moment. `spindle_core.idling` lets it sleep only after passes that found nothing, but
        nobody can say how long those take.
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
        """Its next pass says so in the page."""
        self.asleep = False

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
            if self.missing:
                self._attach_rows()
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
            link = self.peers.get(action.node_id)
            if link is not None and action.incarnation in (0, link.other(self).me.incarnation):
                link.send(self, (MESSAGE, action.message))
            elif isinstance(action.message, m.JoinRequest):
                self.machine.unreachable(action.node_id)
        elif isinstance(action, m.Gather):
            world.hit("gather")
            self.machine.gathered()
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
        elif isinstance(action, m.Revise):
            world.hit("revise")
            self.view = action.view
            world.check.revised(self)
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
        link = self.peers.get(action.node_id)
        member = self.view.member(action.node_id) if self.view is not None else None
        if member is not None:
            self.cast_out.add(self.world.life_of(member).number)
        if link is not None and member == link.other(self).me:
            link.end(self, False, CAST_OUT, action.why)
            del self.peers[action.node_id]

    def _deliver_to_trim(self, trims: dict[int, tuple[int, ...]]) -> None:
        assert self.view is not None
        self.wake()
        self.world.check.trimmed(self, trims)
        undelivered = self.engine.deliver_trims(trims)
        for topic in self.view.topics:
            if self.node_id not in topic.members:
                continue
            reader = self.readers[topic.topic_id]
            if topic.topic_id in undelivered:
                self.world.hit("trim met a full log")
                rest = self.engine.take_undelivered(topic.topic_id, trims.get(topic.topic_id, ()))
                owed = [
                    (payload, sender, sequence, source_ns, writer_id, self.view.view_id)
                    for payload, sender, sequence, source_ns, writer_id, *_ in rest]
                self.take_of(topic.topic_id, reader)
                self.world.check.owed(self, topic.topic_id, owed)
                reader.backlog += owed
            if reader.backlog:
                self.engine.hold_delivery(topic.topic_id, receipt=topic.topic_id in undelivered)
            self.take_of(topic.topic_id, reader)

    def _install(self, view: View) -> None:
        assert self.next_epoch is not None and self.next_view is not None and self.next_view.view_id == view.view_id
        world, before, epoch = self.world, self.view, self.next_epoch
        self.next_view, self.next_epoch = None, None
        for topic in view.topics:
            if self.node_id in topic.fresh and topic.topic_id not in self.readers:
                self.readers[topic.topic_id] = Reader(
                    self, topic.topic_id, topic.spec.name in self.slow, world.setup.small_logs)
        if before is not None:
            world.check.leaving_view(self)
        unsent = self.engine.install(epoch)
        self.wake()
        self.epoch, self.view = epoch, view
        self.table = WatchedTable(
            epoch, lambda: world.before_store(self), lambda column, value: world.check.stored(self, column, value),
            lambda area, data: world.check.wrote(self, area, data))
        world.check.installed(self, before, unsent)
        self.machine.installed(self.table)
        for topic in view.topics:
            if self.node_id not in topic.members and topic.topic_id in self.readers:
                self._forget(topic.topic_id)
        for topic_id in [one for one in self.readers if all(topic.topic_id != one for topic in view.topics)]:
            self._forget(topic_id)
        for link in list(self.peers.values()):
            if view.member(link.other(self).node_id) != link.other(self).me:
                link.send(self, (MESSAGE, m.CurrentView(view)))
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

    # --- the next epoch

    def _prepare(self, view: View, ballot: int) -> None:
        self.next_view = self.next_epoch = None
        self.missing = set()
        if view.rank_of(self.node_id) is None:
            self.machine.prepared(ballot)
            return
        self.next_epoch = self.world.fabric.new_epoch(self, view, ballot)
        self.next_view, self.next_ballot = view, ballot
        self.missing = set(view.node_ids) - {self.node_id}
        for node_id in sorted(self.missing - self.peers.keys()):
            self.reach(node_id)
        for link in self.links:
            link.other(self).dirty = True  # it may have waited for this row
        self._attach_rows()

    def _attach_rows(self) -> None:
        """Takes what is there by now of the rows of the next view; with all of them this node is prepared."""
        view, epoch = self.next_view, self.next_epoch
        if view is None or epoch is None:
            return
        for node_id in sorted(self.missing & self.peers.keys()):
            life = self.peers[node_id].other(self)
            if (life.next_view, life.next_ballot) != (view, self.next_ballot) or view.member(node_id) != life.me:
                continue
            if life.next_epoch is not None and self.world.reaches(self, life):
                self.world.fabric.attach(self, epoch, view.node_ids.index(node_id), life, life.next_epoch)
                self.missing.discard(node_id)
        if not self.missing:
            self.machine.prepared(self.next_ballot)

    # --- what others say

    def reach(self, node_id: int) -> bool:
        """Meets the present life of a node; False if nobody is there, or they have met."""
        life = self.world.current.get(node_id)
        if life is None or not life.running:
            return False
        link = next((one for one in self.links if one.other(self) is life), None)
        if link is None:
            link = Link(self, life)
            self.links.append(link)
            life.links.append(link)
        return link.meet()

    def _met(self, link: Link[Life]) -> None:
        life = link.other(self)
        if life.number in self.cast_out:
            link.end(self, False, CAST_OUT, "it was cast out before")
            return
        for old in self.links:
            before = old.other(self)
            while before.node_id == life.node_id and before.number < life.number and old.queue_of(self):
                self._take(old, old.queue_of(self).popleft())  # of an earlier life: its end comes first
        self.peers[life.node_id] = link
        self.machine.connected(*life.me.life)
        if self.view is not None and self.view.member(life.node_id) != life.me:
            link.send(self, (MESSAGE, m.CurrentView(self.view)))

    def incoming(self) -> list[Link[Life]]:
        """The links that hold something for this node."""
        return [link for link in self.links if link.queue_of(self) and self.world.reaches(self, link.other(self))]

    def receive(self, link: Link[Life]) -> None:
        """Takes the first thing from a link, after the machine has finished what it had begun."""
        self.settle()
        if not self.end:
            self._take(link, link.queue_of(self).popleft())

    def _take(self, link: Link[Life], item: Item) -> None:
        kind, life = item[0], link.other(self)
        self.dirty = True
        if kind == links.ENDED:
            member = self.machine.view.member(life.node_id) if self.machine.view is not None else None
            if member == life.me:
                self.machine.ended(life.node_id)
        elif kind == links.MET and link.talks(self):
            self._met(link)
        elif kind == MESSAGE and link.talks(self):
            self.machine.receive(life.node_id, item[1])
        elif kind == END:
            if link.talks(self):
                self._lost(link, *item[1:])
            if self.next_view is not None and self.next_view.member(life.node_id) == life.me != self._fellow(life):
                self.reach(life.node_id)  # between a joiner and a member it is no end yet

    def _fellow(self, life: Life) -> Member | None:
        """The life as a member of the installed view; None if it is none."""
        return life.me if self.view is not None and self.view.member(life.node_id) == life.me else None

    def _lost(self, link: Link[Life], left: bool, kind: str, why: str, ended: bool) -> None:
        """The other end of a link has ended, or the link has."""
        life = link.other(self)
        link.end(self)
        met = self.peers.get(life.node_id) is link
        if met:
            del self.peers[life.node_id]
        if met or self._fellow(life):
            self.machine.peer_gone(life.me, left, why, ended)
        if kind == CAST_OUT and self._fellow(life):
            self.fail("CastOut", f"{life} has told so: {why}")

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
        """Notes what the watch has just done, and whether it was right: that only the run knows."""
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
            link = self.peers.get(joiner.node_id)
            if link is not None and link.other(self).me == joiner:
                self._lost(link, False, "", "", False)
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
        self.stop(how, kind, True, text)

    def stop(self, how: str, kind: str, certain: bool, text: str = "") -> None:
        """The process has ended; `certain`: the others see at once that it has, not only that the link has."""
        self.end, self.end_kind = how, kind
        self.actions, self.dirty = deque(), False
        self.world.ended(self, certain, text)

    def state(self) -> Any:
        """For the trace: phase, view and what it waits for."""
        if self.end:
            return f"{self.end} {self.end_kind}".strip()
        view = self.view.view_id if self.view is not None else "-"
        flags = ("z" if self.asleep else "") + ("P" if self.paused else "")
        return f"{self.machine.phase.value} v{view}{' ' + flags if flags else ''}"
