"""What happens next: a seed's own mix of traffic and faults. The time without faults after it is in `settle`.

Why a mix of its own for each seed: with everything possible all the time every run would be the same chaos, and what
needs quiet before the fault (a full window, a long silence, three views in a row) would never happen. So each seed
leaves out some kinds of events, and has more of others.

Rules: the generator is the only source of chance. It looks at the world to choose sensibly, never changes it.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle_core.engine import Switches
from spindle_lab.sim import events as e
from spindle_lab.sim.setup import Setup

if TYPE_CHECKING:
    from spindle_lab.sim.node import Life
    from spindle_lab.sim.world import World

NODES_MAX = 7
BUDGETS = (300, 600, 1000, 1600)
WORK = {e.STEP: 30.0, e.SLEEP: 6.0, e.CTL: 14.0, e.RECV: 12.0, e.TURN: 8.0, e.LOOK: 4.0, e.TICK: 3.0, e.SPLIT: 1.5}
TRAFFIC = {e.WRITE: 16.0, e.DIRECT: 4.0, e.HOLD: 1.5, e.SILENCE: 0.4, e.CLAIM: 2.0, e.READ: 3.0, e.SLOW: 0.4,
           e.ROLE: 0.8, e.PERSIST: 2.0}
CHANGES = {e.START: 1.2, e.LEAVE: 0.4, e.SCAN: 1.5, e.RESUME: 1.5}
FAULTS = {e.CRASH: 0.5, e.CRASH_IN: 0.5, e.PAUSE: 0.4, e.ACCUSE: 0.15, e.CLOCK: 0.2, e.OVERDUE: 0.3,
          e.CUT_LINK: 0.05}
CLOGS = {e.CLOG: 0.3, e.UNCLOG: 1.5}
PARTS = {e.PART: 0.2}
LAND_WEIGHT = 40.0  # copied rows: what was written moves only when it is told to


class Schedule:
    """The generator of one seed: its setup, its start, then one event after the other."""

    def __init__(self, seed: int, fabric: str = "") -> None:
        self.random = random.Random(seed)
        self.setup = self._setup(fabric)
        self.nodes = self._pick((1, 2, 3, 3, 3, 4, 4, 5))
        self.calm_start = self._chance(0.8)
        self.budget = self._pick(BUDGETS)
        self.pool = min(NODES_MAX, self.nodes + self._pick((0, 1, 2)))
        weights = {kind: weight * 2 ** self.random.uniform(-1.5, 1.5) for kind, weight in WORK.items()}
        weights |= self._some(TRAFFIC, 0.75) | self._some(CHANGES, 1.0) | self._some(FAULTS, 0.45)
        if self._chance(0.15):  # no faults at all: what is promised then is more
            weights = {kind: weight for kind, weight in weights.items() if kind not in e.FAULTS}
        if self.setup.fabric == "copied":
            weights |= CLOGS if self._chance(0.5) else {}
            weights |= PARTS if weights.keys() & e.FAULTS and self._chance(0.5) else {}
            weights[e.LAND] = LAND_WEIGHT * 2 ** self.random.uniform(-2, 1)
        self._kinds = list(weights)
        self._sums = list(itertools.accumulate(weights.values()))
        self._sizes = self._pick(((-1,), (0, 8), (0, 8, 17, -1), (8,)))
        self._tick_ns = self._pick((2_000_000, 5_000_000, 20_000_000))
        self._arguments: dict[str, Callable[[World, Life], tuple[Any, ...]]] = {
            e.CTL: lambda world, life: (self._below(3) + 1,),
            e.RECV: lambda world, life: (self._below(8),),
            e.SPLIT: self._split_arguments,
            e.WRITE: lambda world, life: (self._topic(), self._below(6) + 1, self._pick(self._sizes)),
            e.DIRECT: lambda world, life: (self._topic(), self._pick(self._sizes)),
            e.HOLD: lambda world, life: (self._topic(), self._pick(self._sizes)),
            e.SILENCE: lambda world, life: (self._topic(), self._pick((1, 2, 7, 100, 400))),
            e.CLAIM: lambda world, life: (self._topic(), self._pick((0, 0, 0, 1, 1, 1, 2, 3))),
            e.READ: lambda world, life: (self._topic(), self._below(8) + 1),
            e.SLOW: lambda world, life: (self._topic(), self._below(2)),
            e.ROLE: lambda world, life: (self._topic(), self._below(3)),
            e.PERSIST: lambda world, life: (self._topic(),),
            e.CRASH: lambda world, life: (self._below(4) > 0,),
            e.CRASH_IN: lambda world, life: (self._below(8), self._below(4) > 0),
            e.ACCUSE: lambda world, life: (self._node(),),
            e.CLOCK: lambda world, life: (self._pick((-10**9, -10**7, 10**7, 10**9, 3 * 10**9)),),
            e.CUT_LINK: lambda world, life: (self._node(),),
            e.CLOG: lambda world, life: (self._node(),),
            e.UNCLOG: lambda world, life: (self._node(),),
        }

    # --- chances

    def _chance(self, p: float) -> bool:
        return self.random.random() < p

    def _below(self, n: int) -> int:
        return int(self.random.random() * n)

    def _pick(self, among: Any) -> Any:
        return among[int(self.random.random() * len(among))]

    def _some(self, weights: dict[str, float], p: float) -> dict[str, float]:
        return {kind: weight * 2 ** self.random.uniform(-1.5, 1.5) for kind, weight in weights.items()
                if self._chance(p)}

    def _topic(self) -> int:
        return self._below(len(self.setup.topics))

    def _node(self) -> int:
        return self._below(self.pool) + 1

    def _setup(self, fabric: str) -> Setup:
        topics = tuple(
            TopicSpec(f"t{number}", level=self._pick((Level.ATOMIC, Level.ATOMIC, Level.LOGGED, Level.UNORDERED)),
                      size_max=self._pick((8, 24, 64, 300)), window=self._pick((1, 2, 3, 8, 16)))
            for number in range(self._pick((1, 1, 2, 2, 3))))
        switches = Switches()
        if self._chance(0.15):
            switches = Switches(*[self._chance(0.5) for _ in range(3)], True, self._chance(0.5))
        return Setup(topics, fabric=self._fabric(fabric),
                     late=self._chance(0.7), fences=self._chance(0.5),
                     inbox_slots=self._pick((1, 2, 4, 16)), switches=switches, small_logs=self._chance(0.5),
                     joins=self._chance(0.6), ahead=self._chance(0.7), range_cost=self._pick((0, 40, 200, 1 << 40)),
                     push_bytes=self._pick((1, 100, 400, 1 << 40)))

    def _fabric(self, wanted: str) -> str:
        chosen = "shared" if self._chance(0.5) else "copied"
        return wanted or chosen

    # --- the phases

    def begin(self) -> Iterator[e.Event]:
        """The first nodes and their topics: in order in most seeds, all at once in the others."""
        for node in range(1, self.nodes + 1):
            yield (e.START, node)
            if self.calm_start:
                for _ in range(6):
                    for other in range(1, node + 1):
                        yield (e.TURN, other)
                        yield (e.LAND, 0, 0, 0)
            for topic in range(len(self.setup.topics)):
                yield (e.ROLE, node, topic, self._pick((2, 2, 2, 1, 0)))
        if self.calm_start:
            for _ in range(8):
                for node in range(1, self.nodes + 1):
                    yield (e.TURN, node)
                    yield (e.LAND, 0, 0, 0)

    def next(self, world: World) -> e.Event:
        """One event of the time with faults."""
        kind = self._kinds[bisect(self._sums, self.random.random() * self._sums[-1])]
        if kind == e.TICK:
            return (kind, self._below(self._tick_ns))
        if kind == e.START:
            return (kind, self._node())
        if kind == e.PART:
            return (kind, self._pick((0, self._below(1 << self.pool) << 1)))
        if kind == e.LAND:
            pairs = world.fabric.pending()
            lines = self._pick((1, 1, 2, 5, 1000, 1000, -1, -2, -1000))
            return (kind, *(self._pick(pairs) if pairs else (0, 0)), lines)
        lives = world.running()
        if not lives:
            return (e.START, self._node())
        life = lives[int(self.random.random() * len(lives))]
        if kind in (e.CTL, e.SPLIT, e.CRASH_IN) and not life.busy:
            life = next((one for one in lives if one.busy), life)
        elif kind == e.RECV and not life.incoming():
            life = next((one for one in lives if one.incoming()), life)
        arguments = self._arguments.get(kind)
        return (kind, life.node_id, *(arguments(world, life) if arguments is not None else ()))

    def _split_arguments(self, world: World, life: Life) -> tuple[Any, ...]:
        events = []
        for _ in range(self._below(5) + 1):
            kind = self._pick((e.STEP, e.STEP, e.CTL, e.TURN, e.RECV, e.CRASH))
            argument = {e.CTL: (3,), e.RECV: (self._below(8),), e.CRASH: (1,)}.get(kind, ())
            if kind != e.CRASH or self._chance(0.1):
                events.append((kind, self._node(), *argument))
        return self._below(8), tuple(events)
