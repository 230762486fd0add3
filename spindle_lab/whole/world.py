"""Hosts, nodes, applications and faults of one run.

A run has two phases. In the first, faults happen as the seed says. In the second there are none: nodes that had ended
are started again, and everything must come to rest. Everybody has the same, whatever was begun has ended, and all leave
in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import spindle.journal.live
import spindle.restart.disk
from spindle.config.settings import NodeConfig
from spindle.group.levels import Level
from spindle.group.topics import CLEANUP_NEVER, TopicSpec
from spindle.transport import frames
from spindle_lab.whole import histories, journals
from spindle_lab.whole.agreed import Agreed
from spindle_lab.whole.checks import Checks
from spindle_lab.whole.disk import Disk
from spindle_lab.whole.edges import EdgeSlot
from spindle_lab.whole.guarded import Guard, Guest, Stranger
from spindle_lab.whole.liars import Liar
from spindle_lab.whole.lines import Lines
from spindle_lab.whole.linking import Linking
from spindle_lab.whole.memories import Memories
from spindle_lab.whole.objects import Objects
from spindle_lab.whole.programs import Program
from spindle_lab.whole.remotes import OUTSIDE, RemoteProgram, known
from spindle_lab.whole.renewals import Renewals
from spindle_lab.whole.replicas import Replicating
from spindle_lab.whole.rest import is_left, kept_in_vain, left_in
from spindle_lab.whole.shortage import SHORT
from spindle_lab.whole.slots import EmbeddedSlot, NodeSlot
from spindle_lab.whole.sockets import SimSocket
from spindle_lab.whole.system import Process, System
from spindle_lab.whole.tables import EFFECTS, EFFECTS_GROUPED, PRESENCES, RANKS, Tables
from spindle_lab.whole.tags import DEPARTURE
from spindle_lab.whole.times import TIMING
from spindle_lab.whole.turns import Stuck
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.client.session import Session
    from spindle.node.node import Node
    from spindle_lab.whole.engines import SimEngine

MS = 1_000_000
PORT = 7400
IDLE_NS = 3_000 * MS  # longer than a predicate thread raises the heartbeat without a sign of its control thread
FIRST_PHASE_NS = 1_500 * MS  # at most, where steps are few: nobody has anything to do


@dataclasses.dataclass
class Setup:
    """What a run is like; everything else is drawn while it goes."""

    hosts: int
    nodes: int
    programs: int
    topics: int
    pace: int  # so many steps the first phase takes for each node and each program: see `turns`
    faults: int
    slow_lines: bool
    small_buffers: bool
    short_writes: bool
    remotes: int = 0  # of the programs, those on a host without a node
    far_ms: int = 0  # how far that is away, at most
    edge: bool = False  # that host has an edge
    liars: int = 0  # beside the programs
    newer: bool = False  # lives of nodes begin with several versions of the group's settings
    guarded: bool = False  # there are keys and rules, and those who would like to get around them
    resets: bool = False  # connections between nodes that live break, some or all of two hosts
    crowded: bool = False  # tens of topics, which programs open many of at once
    late: int = 0  # of the nodes, those that are started in the middle, at one time
    embedded: int = 0  # of the nodes, those that programs have in their own processes
    keyed: bool = False  # messages of some topics have keys, and nodes keep the last of each
    limits: int = 0  # not 0: these topics have limits, and keep what is over for a while, which are drawn from this
    grouped: bool = False  # in these topics writers say messages for others, and some messages are about several keys
    typed: bool = False  # writers say types of their samples
    large: bool = False  # programs write samples that don't fit their topics' slots
    replicas: int = 0  # programs that hold a replica of an object, beside the others
    links: int = 0  # programs that use links, beside the others
    renewing: bool = False  # programs give up what logged topics are
    unlike: bool = False  # each node's file names the contacts in another order
    suspect_timeout_s: float = 0.6

    @property
    def turns(self) -> int:
        """How many steps the first phase takes: by time it would be over before anything has happened where everything
        is slow, and runs where nothing is would cost ten times as much as others."""
        return self.pace * (self.nodes + self.programs + self.replicas + self.links)

    @classmethod
    def drawn(cls, seed: int, rng: random.Random) -> Setup:
        """One of the many: what the seed's own `rng` says first."""
        hosts = rng.choice((1, 1, 2, 3, 3))
        nodes = max(hosts, rng.choice((1, 2, 3, 3, 4, 5)))
        setup = cls(hosts=hosts, nodes=nodes, programs=rng.choice((1, 2, 3, 5)), topics=rng.choice((1, 2, 4, 8)),
                    pace=rng.choice((80, 160, 320)), faults=rng.choice((0, 1, 2, 4)),
                    slow_lines=rng.random() < 0.5, small_buffers=rng.random() < 0.3,
                    short_writes=rng.random() < 0.5)
        # What only some runs have is drawn apart, so that it changes nothing in the others.
        apart = random.Random(f"seldom {seed}")
        if apart.random() < 0.2:
            setup.remotes = min(setup.programs, apart.choice((1, 2)))
            setup.faults += apart.choice((1, 2, 3))
            setup.far_ms = apart.choice((0, 5, 30))
        if apart.random() < 0.12:
            setup.liars = apart.choice((1, 1, 2))
        setup.newer = apart.random() < 0.2
        setup.guarded = apart.random() < 0.1
        setup.resets = apart.random() < 0.2 and hosts > 1
        if apart.random() < 0.04:
            setup.crowded, setup.topics, setup.programs = True, apart.choice((12, 16, 24, 40)), apart.choice((5, 9))
            setup.late = apart.choice((0, 1, 3, 5))
            setup.nodes = min(8, setup.nodes + setup.late)
            setup.late = min(setup.late, setup.nodes - 1)
        if apart.random() < 0.12:
            setup.embedded = min(setup.nodes, apart.choice((1, 1, 2, 8)))
        setup.keyed = apart.random() < 0.3
        apart = random.Random(f"replicas {seed}")
        if apart.random() < 0.12 and not setup.guarded:
            setup.replicas = apart.choice((1, 2, 3, 5))
            setup.faults += apart.choice((1, 2, 4))
        apart = random.Random(f"limits {seed}")
        if setup.keyed and apart.random() < 0.6:
            setup.limits = apart.randrange(1, 1 << 32)
        setup.grouped = setup.keyed and random.Random(f"grouped {seed}").random() < 0.5
        setup.typed = random.Random(f"typed {seed}").random() < 0.25
        setup.edge = bool(setup.remotes) and not setup.guarded and random.Random(f"edge {seed}").random() < 0.4
        setup.large = random.Random(f"large {seed}").random() < 0.5
        apart = random.Random(f"links {seed}")
        if apart.random() < 0.12 and not setup.guarded:
            setup.links = apart.choice((1, 2, 3, 4))
            setup.faults += apart.choice((0, 1, 2, 4))
            setup.resets = setup.resets or (hosts > 1 and apart.random() < 0.5)
            setup.liars = setup.liars or int(apart.random() < 0.25)
        setup.renewing = random.Random(f"renewing {seed}").random() < 0.15 and not setup.guarded
        setup.unlike = random.Random(f"unlike {seed}").random() < 0.2 and hosts > 1
        return setup


class World:
    """See the module."""

    def __init__(self, system: System, setup: Setup, trace: Any = None) -> None:
        self.system, self.setup, self._trace = system, setup, trace
        self.checks = Checks()
        self.checks.known = functools.partial(known, self)
        self.tables = Tables(self)
        self.checks.on_taken = self.tables.took
        self.renewals = Renewals(self)
        if setup.typed:
            self.checks.types.begin(system.seed)
        self.uid = os.geteuid()
        self.base = Path(tempfile.mkdtemp(prefix="spindle-sim-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.lines = Lines(system)
        if setup.far_ms:
            self.lines.far_ns[OUTSIDE] = (MS // 10, setup.far_ms * MS)
        SimSocket.lines = self.lines
        SimSocket.small_buffers, SimSocket.short_writes = setup.small_buffers, setup.short_writes
        self.disks = {f"h{n + 1}": Disk(system) for n in range(setup.hosts)}
        system.on_kill = self._killed
        self.mending = False  # faults are over, and the nodes come together
        self.finishing = self.settled = self.over = False
        self._lacking: Callable[[], str] | None = None  # what had not come when somebody last looked
        self.disks_failed = False
        self.silent = False  # members have hung, or not reached each other
        self.faults: dict[str, int] = {}  # how often each kind has happened
        self.paths: dict[str, int] = {}  # how often what is rare has happened
        self.faulty = False  # something has happened that may cost somebody something
        self.short: set[Process] = set()  # who could not have all that it wanted to open
        hosts = [f"h{n + 1}" for n in range(setup.hosts)]
        self.nodes = [(EmbeddedSlot if n < setup.embedded else NodeSlot)(self, n + 1, hosts[n % len(hosts)])
                      for n in range(setup.nodes)]
        self.specs = [self._spec(n) for n in range(setup.topics)]
        self.objects = Objects(self) if setup.replicas else None
        self.memories = Memories(self) if setup.links else None
        self.programs: list[Program] = []
        self.liars: list[Liar] = []
        self.guard = Guard(self) if setup.guarded else None
        self.edge = EdgeSlot(self, OUTSIDE) if setup.edge else None
        self.agreed: Agreed | None = None
        system.on_pass, system.keep_back = self._on_pass, self.keep_back
        self._hosts = hosts

    @property
    def all_specs(self) -> list[TopicSpec]:
        """Those of the object, too, which only its own programs use."""
        return [*self.specs, self.objects.spec] if self.objects is not None else self.specs

    def _killed(self, process: Process) -> None:
        if process.host in self.disks:
            self.disks[process.host].killed(process)

    def met(self, path: str) -> None:
        """Something rare has happened."""
        self.paths[path] = self.paths.get(path, 0) + 1

    def note(self, text: str) -> None:
        """For whoever watches."""
        if self._trace is not None:
            self._trace(f"{self.system.now_ns / MS:10.3f} {text}")

    def _spec(self, number: int) -> TopicSpec:
        rng = self.system.random
        level = rng.choice((Level.ATOMIC, Level.ATOMIC, Level.VOLATILE, Level.LOGGED, Level.LOGGED, Level.UNORDERED))
        keyed = self.setup.keyed and level.keeps_history and rng.random() < 0.8
        timing = TIMING if number % 2 == 0 else b""
        spec = TopicSpec(f"t{number}", level=level, size_max=rng.choice((64, 200, 3000, 20_000)),
                         window=rng.choice((1, 2, 8)),
                         history_bytes=rng.choice((0, 8192, 1 << 18)) if level.keeps_history else 0,
                         departure=DEPARTURE if number % 3 else 0, history_depth=rng.choice((1, 1, 3)) if keyed else 0,
                         effects=(EFFECTS_GROUPED if self.setup.grouped else EFFECTS) if keyed else b"",
                         timing=timing, ranks=self._ranks(number) if keyed else b"")
        return self._limited(number, spec) if keyed and self.setup.limits else spec

    def _ranks(self, number: int) -> bytes:
        if number % 3 != 1 and not self.setup.grouped:
            return RANKS
        return PRESENCES if number % 2 else b""

    def _limited(self, number: int, spec: TopicSpec) -> TopicSpec:
        rng = random.Random(f"{self.setup.limits} {number}")
        delays_ms = (0, 1, 30, 300, 2000) if spec.timing else (0,)
        return dataclasses.replace(
            spec, history_depth=rng.choice((0, spec.history_depth)), samples_max=rng.choice((0, 0, 1, 3, 8)),
            keys_max=rng.choice((0, 0, 1, 2, 4)),
            cleanup_ns=rng.choice((*(one * MS for one in delays_ms), CLEANUP_NEVER)))

    def runtime_dir(self, host: str) -> Path:
        """Where the nodes of a host have their sockets."""
        return self.base / host

    def endpoint(self, node_id: int) -> str:
        """host:port of a node."""
        return f"{self.lines.address(self.nodes[node_id - 1].host)}:{PORT + node_id}"

    def config(self, slot: NodeSlot) -> NodeConfig:
        """As a configuration file would have it."""
        more: dict[str, Any] = {"suspect_timeout_s": self.setup.suspect_timeout_s}
        if self.setup.hosts > 1 or self.setup.remotes or self.guard is not None:
            endpoint = self.endpoint(slot.node_id)
            more.update(listen=endpoint, plain=True, advertise=endpoint)
        if self.setup.hosts > 1:
            firsts = {one.host: one for one in reversed(self.nodes)}
            contacts = [self.endpoint(firsts[host].node_id) for host in self._hosts]
            if self.setup.unlike:
                random.Random(f"contacts of {slot.node_id} in {self.system.seed}").shuffle(contacts)
            more["contacts"] = tuple(contacts)
        if self.guard is not None:
            more.update(self.guard.config(slot))
        if self.setup.newer:
            self.agreed = self.agreed or Agreed(self, more.get("contacts", ()))
            more.update(self.agreed.draw())
        return NodeConfig(
            node_id=slot.node_id, runtime_dir=self.runtime_dir(slot.host),
            log_capacity=1 << 16, log_hot=1 << 14, inbox_slots=4, default_window=4, default_size_max=256,
            journal_dir=self.base / slot.host / f"journal-{slot.node_id}", join_timeout_s=20.0, open_timeout_s=8.0,
            **more)

    def process_of(self, session: Session | None) -> Process:
        """That of the node of a session."""
        pid = session.node_pid if session is not None else 0
        found = self.system.by_pid(pid)
        assert found is not None
        return found

    def node_of(self, session: Session | None) -> Node | None:
        """The node of a session, if it serves or has served."""
        process = self.process_of(session)
        return next((slot.attachments.node for slot in self.nodes
                     if slot.process is process and slot.attachments is not None), None)

    def log_of(self, session: Session | None, topic: str) -> tuple[int, int]:
        """Of a topic at the node of a session: the view with which that became a member, and how much its log holds."""
        node = self.node_of(session)
        local = node._changes.topics.local.get(topic) if node is not None else None
        if local is None:
            return -1, 0
        return local._entered, local.log.capacity if local.log is not None else 0

    def keep_back(self, fd: int) -> int:
        """For how long a node doesn't see what has come on a descriptor, ns."""
        if not self.setup.slow_lines or self.finishing:
            return 0
        rng = self.system.random
        if frames.READ_BYTES < 100 and rng.random() < 0.98:  # what comes in small pieces is not late for each of them
            return 0
        return rng.choice((0, 0, 0, rng.randrange(2 * MS), rng.randrange(20 * MS)))

    def _on_pass(self, engine: SimEngine) -> None:
        self.checks.on_pass(engine)
        self.tables.look(engine)
        if self.agreed is not None and engine.node is not None:
            self.agreed.look(engine.node)

    # --- a run

    def run(self) -> None:
        """All of it. Raises Violation."""
        system, setup = self.system, self.setup
        first, late = self.nodes[:setup.nodes - setup.late], self.nodes[setup.nodes - setup.late:]
        for number, slot in enumerate(first):
            system.after(number * system.random.randrange(5 * MS), slot.start)
        if self.edge is not None:
            system.after(system.random.randrange(5 * MS), self.edge.start)
        from spindle_lab.whole.faults import Faults

        faults = Faults(self)
        if system.random.random() < 0.8:
            self._until(lambda: all(slot.serving for slot in first), 30_000, "all nodes serve", every=4)
            if system.random.random() < 0.04:  # it costs as much as five other runs
                idle_ns = system.now_ns + IDLE_NS
                self._until(lambda: system.now_ns >= idle_ns, 10_000, "an idle group stays together", every=8)
        for number in range(setup.programs):
            host = self._hosts[system.random.randrange(len(self._hosts))]
            system.after(system.random.randrange(30 * MS), functools.partial(self._begin_program, number, host))
        for number in range(setup.replicas):
            host = self._hosts[system.random.randrange(len(self._hosts))]
            system.after(system.random.randrange(30 * MS), functools.partial(self.begin_replica, number, host))
        for number in range(setup.links):
            host = self._hosts[system.random.randrange(len(self._hosts))]
            system.after(system.random.randrange(30 * MS), functools.partial(self.begin_linking, number, host))
        for number in range(setup.liars):
            host = self._hosts[system.random.randrange(len(self._hosts))]
            system.after(system.random.randrange(30 * MS), functools.partial(self._begin_liar, number, host))
        if self.guard is not None:
            for number in range(system.random.choice((1, 2))):
                host = self._hosts[system.random.randrange(len(self._hosts))]
                system.after(system.random.randrange(30 * MS), functools.partial(self._begin_guest, number, host))
            system.after(system.random.randrange(30 * MS), self._begin_strangers)
        rng, early = system.random, setup.turns // 3  # until then little is open that a fault could harm
        self._first_phase([(rng.randrange(rng.choice((0, early, early)), setup.turns), faults.happen)
                           for _ in range(setup.faults)]
                          + [(setup.turns // 2, functools.partial(self._begin_late, slot)) for slot in late])
        faults.end()
        self.mending = True
        for liar in self.liars:
            system.kill(liar.process)
        for slot in self.nodes:
            if not slot.running and slot.wanted:
                slot.start()
        if self.edge is not None:
            self.edge.start()
        self._until(self._together, 60_000, "all nodes serve in one group", every=4)
        self.mending, self.finishing = False, True
        self.note("from now on nobody writes")
        self._until(lambda: not self._unsettled(), 60_000, "everybody has everything", every=8)
        self.checks.gaps()
        self.tables.end(self.checks.readings)
        histories.look(self.checks)
        if self.objects is not None:
            self.objects.end()
        self.settled = True
        self._until(lambda: not self._unseen(), 10_000, "all programs see the group as it is", every=8)
        self.over = True
        self._until(self._programs_ended, 40_000, "all programs have ended", every=4)
        self._until(lambda: not any(is_left(slot.attachments) for slot in self.nodes
                                    if slot.attachments is not None and slot.serving),
                    10_000, "nothing is left of what programs had open", every=8)
        for one in self._daemons:
            if one.loop is not None and one.running:
                one.loop.complain()
        edge = self.edge
        if edge is not None:
            edge.leave()
            self._until(lambda: edge is None or not edge.running, 10_000, "the edge has ended")
        order = [slot for slot in self.nodes if slot.running]
        system.random.shuffle(order)
        for slot in order:
            slot.leave()
            if system.random.random() < 0.5:
                self._until(functools.partial(self._has_ended, slot), 30_000, f"node {slot.node_id} has left", every=4)
        self._until(lambda: not any(slot.running for slot in self.nodes), 30_000, "all nodes have left", every=4)
        self._until(lambda: not any(one.threads for one in system.processes if one.alive and one.result == "left"),
                    5_000, "the threads of who has left have ended")
        self._look_at_ends()
        journals.look(self)

    def _first_phase(self, events: list[tuple[int, Callable[[], None]]]) -> None:
        """So many steps, with what happens at which of them; less of them if nobody has anything to do. In most runs
        they count from the first message that somebody takes: until then a group forms and topics are opened, which
        takes as many, and faults would meet little else."""
        system = self.system
        if system.random.random() < 0.7:
            last, end_ns = system.steps + 3 * self.setup.turns, system.now_ns + FIRST_PHASE_NS
            system.at(end_ns, lambda: None)
            self._until(lambda: self.checks.deliveries > 0 or system.steps >= last or system.now_ns >= end_ns, 10_000,
                        "a message is taken")
        first, end_ns = system.steps, system.now_ns + FIRST_PHASE_NS
        system.at(end_ns, lambda: None)

        def over(turn: int) -> bool:
            return system.steps >= first + turn or system.now_ns >= end_ns

        for turn, happens in [*sorted(events, key=lambda one: one[0]), (self.setup.turns, lambda: None)]:
            self._until(functools.partial(over, turn), 10_000, "the first phase is over")
            happens()

    def _begin_late(self, slot: NodeSlot) -> None:
        if not slot.running and slot.host not in self.lines.powerless:
            slot.start()

    def _begin_liar(self, number: int, host: str) -> None:
        self.liars.append(Liar(self, number, host))

    def _begin_guest(self, number: int, host: str) -> None:
        self.programs.append(Guest(self, number, host))

    def begin_replica(self, number: int, host: str) -> None:
        """One more program with a replica of the object."""
        self.programs.append(Replicating(self, number, host))

    def begin_linking(self, number: int, host: str) -> None:
        """One more program that uses links."""
        self.programs.append(Linking(self, number, host))

    @property
    def linking(self) -> list[Linking]:
        """All programs that use links."""
        return [one for one in self.programs if isinstance(one, Linking)]

    def _begin_strangers(self) -> None:
        Stranger(self, 0)
        Stranger(self, 1, self.nodes[0].host)

    def _begin_program(self, number: int, host: str) -> None:
        self.programs.append(RemoteProgram(self, number) if number < self.setup.remotes
                             else Program(self, number, host))

    def _until(self, condition: Callable[[], bool], limit_ms: int, what: str, every: int = 1) -> None:
        """Goes on until it is so; what is much to ask is asked after every so many steps."""
        system = self.system
        end_ns = system.now_ns + limit_ms * MS
        try:
            while not system.run_until(condition, end_ns, every):
                if system.defective:
                    self._look_for_defects()
                    system.defective = False
                else:
                    raise Violation("L1", f"after {limit_ms / 1000:g} s it is not so that {what}: {self._why()}")
        except Stuck as error:
            raise Violation("L1", f"{error}, but it is not so that {what}: {self._why()}") from error

    def _look_for_defects(self) -> None:
        if self.system.broken is not None:
            raise self.system.broken
        for process in self.system.processes:
            if process.failures:
                thread, error = process.failures[0]
                if isinstance(error, Violation):
                    raise error
                raise Violation("E1", f"{thread} failed: {type(error).__name__}: {error}") from error
        for slot in self._daemons:
            if slot.loop is not None and slot.loop.complaints:
                complaint = slot.loop.complaints[0]
                raise Violation("E1", f"{slot.process}: {complaint.get('message')}: {complaint.get('exception')!r}")

    @property
    def _daemons(self) -> list[NodeSlot | EdgeSlot]:
        return [*self.nodes, *([self.edge] if self.edge is not None else [])]

    def _why(self) -> str:
        waits = [f"{one.process} is {one.doing}" for one in self.programs
                 if one.process.alive and not one.process.result]
        for slot in self.nodes:
            state = slot.process.result if slot.process is not None and slot.process.result else "not serving"
            if slot.serving:
                assert slot.attachments is not None
                node = slot.attachments.node
                state = f"{node._changes.machine.phase.value} {node._changes.machine.awaiting()}"
            waits.append(f"node {slot.node_id}: {state}")
        what = [self._unsettled(), self._unseen() if self.settled else "", self._left() if self.over else ""]
        return "; ".join(filter(None, [*what, *waits]))[:2000]

    def _together(self) -> bool:
        wanted = [slot for slot in self.nodes if slot.wanted]
        for slot in wanted:
            if not slot.running and not self.finishing:
                slot.start()  # what ended it is over
        if not all(slot.serving for slot in wanted):
            return False
        views = set()
        for slot in wanted:
            assert slot.attachments is not None
            view = slot.attachments.node._view
            if view is None or len(view.members) != len(wanted):
                return False
            views.add((view.group_id, view.view_id))
        return len(views) == 1

    def _unsettled(self) -> str:
        """What still has to come, if anything. What was lacking last is asked first: all of it is much to ask."""
        if self._lacking is not None and (text := self._lacking()):
            return text
        for lacking in (self.checks.settled, functools.partial(histories.lacking, self.checks), self.tables.lacking,
                        self._node_lacks, self._agreed_lacks, self._objects_lack, self._links_lack, self._kept_in_vain):
            if text := lacking():
                self._lacking = lacking
                return text
        self._lacking = None
        return ""

    def _node_lacks(self) -> str:
        return next((f"node {slot.node_id} does not serve" for slot in self.nodes
                     if slot.wanted and not slot.serving), "")

    def _agreed_lacks(self) -> str:
        return self.agreed.behind() if self.agreed is not None else ""

    def _objects_lack(self) -> str:
        return self.objects.unsettled() if self.objects is not None else ""

    def _links_lack(self) -> str:
        return self.memories.unsettled() if self.memories is not None else ""

    def _kept_in_vain(self) -> str:
        return kept_in_vain([slot.attachments for slot in self.nodes if slot.attachments is not None and slot.serving])

    def _unseen(self) -> str:
        return "; ".join(f"{one.process}: {one.sees}" for one in self.programs
                         if one.sees and one.process.alive and one.process.result is None)

    def _left(self) -> str:
        return "; ".join(what for slot in self.nodes if slot.attachments is not None and slot.serving
                         for what in left_in(slot.attachments))

    def _has_ended(self, slot: NodeSlot) -> bool:
        return not slot.running

    def _programs_ended(self) -> bool:
        return all(one.ended for one in self.programs)

    def check_ended(self, slot: NodeSlot) -> None:
        """A life of a node has ended by itself. Raises Violation if nothing that happened explains how."""
        process = slot.process
        if process is None or process.result == "left":
            pass
        elif process in self.short:
            if not self.faulty and not any(word in process.result for word in SHORT):
                raise Violation("E1", f"{process} ran short, and ends with something else: {process.result}")
        elif not self.faulty:
            raise Violation("E1", f"{process} ends though nothing failed: {process.result}")
        if self.finishing and not self.over and slot.wanted:
            self.system.after(MS, slot.start)  # it ended of something that had happened before

    def _look_at_ends(self) -> None:
        for process in self.system.processes:
            if not process.alive or process.result != "left":
                continue
            self.checks.process_ended(process)
            if process.sockets:
                left = [f"{one.path or one.here or one.serial}" for one in process.sockets.values()]
                raise Violation("R9", f"{process} has left with open sockets: {left}")

    def close(self) -> None:
        """The end, whatever it was."""
        self.lines.close()
        shutil.rmtree(self.base, ignore_errors=True)


@contextlib.contextmanager
def note_syncs(world: World) -> Iterator[None]:
    """Has the checks hear of what journals have on their disks: what they sync, and what was there before a life."""
    journal_file, synced = spindle.journal.live.JournalFile, world.checks.synced
    sync_file, recover = journal_file.sync, spindle.restart.disk.recover

    def sync(self: Any) -> None:
        sync_file(self)
        synced[world.system.current.pid, self.head.topic] = self.last

    def recovered(files: Any, directory: Path, topic: str, *more: Any) -> Any:
        found = recover(files, directory, topic, *more)
        synced.setdefault((world.system.current.pid, topic), (found.last_view, found.last_sequence))
        return found

    with patch.object(journal_file, "sync", sync), patch.object(spindle.restart.disk, "recover", recovered):
        yield
