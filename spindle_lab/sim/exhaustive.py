"""Every run there is of the smallest groups: all interleavings of the production code's steps, with one fault anywhere.

Two or three nodes are in a view, messages wait in writers' inboxes, maybe one of the nodes has asked to leave, and one
fault happens, at any moment: a member or the leader crashes (between two steps or between two stores into its row), or
is stopped, accused and goes on. At each state every node may make a pass over its predicates, carry out one action of
its machine, or take one message from one connection. A state that was met before is not followed again
(`spindle_lab.sim.states`). The checker looks after every step; where nothing more can happen everything that was
promised must have.

Why runs are repeated from their beginning instead of undone: the production code can't be undone. A run goes on from
each new state by one of its moves, the others are kept for later.

Rules: no chance, no clock. That a member's detector reports another member, which takes time in reality, is a move as
well, possible as soon as that one is stopped.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterable, Iterator
from typing import Any

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.group.view import Topic, View
from spindle.membership import messages as m
from spindle.membership.machine import Phase
from spindle_core.fabric.sim import SimNetwork
from spindle_lab.sim import contracts
from spindle_lab.sim import events as e
from spindle_lab.sim.apps import Reader
from spindle_lab.sim.check import Sequence, Violation
from spindle_lab.sim.fabrics import CopiedRows
from spindle_lab.sim.node import Life
from spindle_lab.sim.setup import Setup
from spindle_lab.sim.states import epoch_key, world_state
from spindle_lab.sim.world import World

# Nobody can tell when these actions happen: whatever else is possible before one of them is possible after it, too. So
# they happen at once, except at a node that may crash between two of them.
LOCAL = (m.Send, m.Cut, m.Prepare, m.DeliverToTrim, m.Install, m.Left)
STORES_MAX = 4  # a crash in the middle of the machine's work comes before one of so many stores
GROUP_ID, FIRST_VIEW = 7700, 1


@dataclasses.dataclass(frozen=True)
class Case:
    """One small group and its fault. Rank 0 is the leader; `writes`: the ranks that write, a message for each entry."""

    name: str
    fault: str = ""  # "crash", "crash_in" (between stores), "pause" or none
    victim: int = 0
    writes: tuple[int, ...] = (0, 1)
    nodes: int = 3
    window: int = 1
    level: Level = Level.ATOMIC
    leaver: int = -1  # asks to leave in the beginning


CASES = (
    Case("two nodes, two messages", nodes=2),
    Case("two nodes, the leader crashes", "crash", 0, nodes=2),
    Case("two nodes, a member crashes", "crash", 1, nodes=2),
    Case("two nodes, one leaves, the leader crashes", "crash", 0, (1,), 2, leaver=1),
    Case("two nodes, one leaves, the leader crashes between two stores", "crash_in", 0, (1,), 2, leaver=1),
    Case("two nodes, one leaves and crashes between two stores", "crash_in", 1, (0,), 2, leaver=1),
    Case("two messages"),
    Case("one message, the leader crashes", "crash", 0, (1,)),
    Case("one message, a member crashes", "crash", 2, (0,)),
    Case("two messages, the leader crashes", "crash", 0),
    Case("two messages, a sender crashes", "crash", 1),
    Case("two messages, a silent member crashes", "crash", 2),
    Case("one leaves, the leader crashes between two stores", "crash_in", 0, (1,), leaver=2),
    Case("one message, a member is stopped and goes on", "pause", 2, (0,)),
    Case("one message, the leader is stopped and goes on", "pause", 0, (1,)),
)


class LocalRows(CopiedRows):
    """One host, within one address space and without descriptors: rows are shared, doorbells are the network's."""

    certain = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.network = SimNetwork(copies=False)

    def ended(self, life: contracts.Life, rest: bool) -> None:
        pass


@dataclasses.dataclass
class Result:
    """What a case came to. `complete`: no state was left out."""

    case: Case
    states: int = 0
    moves: int = 0
    ends: int = 0
    runs: int = 0
    depth: int = 0
    views: int = 0  # most that one run has installed
    complete: bool = True
    broken: str = ""
    events: tuple[e.Event, ...] = ()


Edge = tuple[Any, e.Event] | None  # the edge before, and the move from there


def begin(case: Case) -> World:
    """The group in its first view, its messages in the inboxes."""
    spec = TopicSpec("t0", level=case.level, size_max=8, window=case.window)
    world = World(Setup((spec,)))
    world.fabric = LocalRows(world)
    for number in range(case.nodes):
        life = Life(world, number, number + 1, world.setup.switches)
        world.lives.append(life)
        world.current[life.node_id] = life
        world._members[life.me] = life
    for life in world.lives:
        for other in world.lives[: life.number]:
            life.reach(other.node_id)
    while any([world.apply((e.RECV, life.node_id, 0)) for life in world.lives]):
        pass
    ids = tuple(life.node_id for life in world.lives)
    view = View(GROUP_ID, FIRST_VIEW, tuple(life.me for life in world.lives), (Topic(spec, 1, ids, ids),))
    world.check.views[GROUP_ID, FIRST_VIEW] = view
    world.check.chain[GROUP_ID] = [view]
    world.check.sequences[GROUP_ID, FIRST_VIEW, 1] = Sequence(view, view.topics[0])
    for life in world.lives:
        life.machine.view, life.machine.phase = View(GROUP_ID, FIRST_VIEW - 1), Phase.INSTALLING
        life.machine._decide(view, 1)
        life.next_view, life.next_ballot, life.next_epoch = view, 1, world.fabric.new_epoch(life, view, 1)
    for life in world.lives:
        for rank, other in enumerate(world.lives):
            if other is not life:
                assert life.next_epoch is not None and other.next_epoch is not None
                world.fabric.attach(life, life.next_epoch, rank, other, other.next_epoch)
    for life in world.lives:
        life.readers[1] = Reader(life, 1, False, False)
        life.wanted["t0"] = life.wished["t0"] = 2
        life._install(view)
        life.settle()
    for rank in case.writes:
        world.apply((e.WRITE, rank + 1, 0, 1, 8))
    if case.leaver >= 0:
        world.apply((e.LEAVE, case.leaver + 1))
    return world


class Explorer:
    """All states of one case."""

    def __init__(self, case: Case, states_max: int = 0) -> None:
        self.case = case
        self.result = Result(case)
        self._states_max = states_max
        self._seen: set[int] = set()
        self._idle: dict[int, bool] = {}  # by state of an epoch: a pass over it does nothing
        self._open: list[Edge] = [None]
        self._resumed = False  # in the present run

    def run(self) -> Result:
        """Follows every state once; stops at the first broken promise, or after `states_max` states."""
        result = self.result
        while self._open and not result.broken:
            if self._states_max and len(self._seen) >= self._states_max:
                result.complete = False
                break
            self._follow(self._open.pop())
            result.states = len(self._seen)
        return result

    def _follow(self, edge: Edge) -> None:
        """One run: to where the edge leads, and on through new states until there is none."""
        events: list[e.Event] = []
        at = edge
        while at is not None:
            events.append(at[1])
            at = at[0]
        events.reverse()
        world = begin(self.case)
        self.result.runs += 1
        try:
            self._resumed = False
            for event in events:
                self._apply(world, event)
            state = world_state(world, self._resumed)
            while state not in self._seen:
                self._seen.add(state)
                moved = self._move(world, state, edge)
                if moved is None:
                    break
                state, edge = moved
                events.append(edge[1])  # type: ignore[index]
        except Violation as error:
            self.result.broken = str(error)
            self.result.events = tuple(events)
        self.result.depth = max(self.result.depth, len(events))
        self.result.views = max(self.result.views, len(world.check.chain.get(GROUP_ID, ())))
        world.close()

    def _move(self, world: World, state: int, edge: Edge) -> tuple[int, Edge] | None:
        """Makes the first move that changes anything; those behind it are kept. None: this is an end."""
        moves = self._moves(world)
        for place, event in enumerate(moves):
            key = epoch_key(world.current[event[1]]) if event[0] == e.STEP else 0
            if event[0] == e.RESUME:
                self._end(world)
            try:
                self._apply(world, event)
            except Violation as error:
                raise Violation(error.name, f"{error.text}, in {event}") from error
            self.result.moves += 1
            after = world_state(world, self._resumed)
            if key:
                self._idle[key] = after == state
            if after != state:
                self._open += [(edge, later) for later in moves[place + 1:]]
                return after, (edge, event)
        self._end(world)
        return None

    def _apply(self, world: World, event: e.Event) -> None:
        world.apply(event)
        self._resumed = self._resumed or event[0] == e.RESUME

    def _moves(self, world: World) -> list[e.Event]:
        """Everything that can happen next."""
        case = self.case
        victim = world.lives[case.victim]
        unspent = bool(case.fault) and not victim.end and not victim.paused and not self._resumed
        moves: list[e.Event] = []
        for life in world.lives:
            if not life.works:
                continue
            if life.actions and isinstance(life.actions[0], LOCAL) and not (unspent and life is victim):
                return [(e.CTL, life.node_id, 1)]
            if life.busy:
                if case.fault == "crash_in" and unspent and life is victim:
                    moves += [(e.CRASH_IN, life.node_id, k, 1) for k in range(STORES_MAX)]
                moves.append((e.CTL, life.node_id, 1))
            else:
                moves += [(e.RECV, life.node_id, k) for k in range(len(life.incoming()))]
            if life.epoch is not None and not self._idle.get(epoch_key(life), False):
                moves.append((e.STEP, life.node_id))
            if victim.paused and not life.busy and _may_accuse(life, victim):
                moves.append((e.ACCUSE, life.node_id, victim.node_id))
        if unspent and case.fault == "crash":
            moves.append((e.CRASH, victim.node_id, 1))
        if unspent and case.fault == "pause":
            moves.append((e.PAUSE, victim.node_id))
        if victim.paused:
            moves.append((e.RESUME, victim.node_id))
        return moves

    def _end(self, world: World) -> None:
        """Where nothing more can happen, except that a stopped node goes on: the nodes that run must be in a view, with
        everything delivered."""
        self.result.ends += 1
        core = [life for life in world.running() if not life.paused]
        if not core:
            return  # all have left or ended
        for life in core:
            if life.machine.phase is not Phase.STABLE or life.machine.in_minority:
                world.check.violated("L1", f"nothing more happens, and {life} is {life.state()}, awaiting "
                                           f"{life.machine.awaiting()!r}")
        world.check.settled(core)


def _may_accuse(life: Life, victim: Life) -> bool:
    """The detector would report it, and the machine would agree."""
    rank = life.view.rank_of(victim.node_id) if life.view is not None else None
    if rank is None or life.view is None or life.view.members[rank] != victim.me:
        return False
    return rank in life.machine.live_ranks() and life.machine.may_suspect({victim.node_id})


def explore(work: tuple[Case, int]) -> Result:
    """One case, in a process of its own."""
    return Explorer(*work).run()


def explore_all(cases: Iterable[Case], states_max: int, jobs: int) -> Iterator[Result]:
    """Cases on several processors, as they come to their end."""
    work = [(case, states_max) for case in cases]
    if jobs == 1:
        yield from map(explore, work)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(explore, work)
