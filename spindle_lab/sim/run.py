"""One seed from its beginning to its verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spindle_lab.sim import events as e
from spindle_lab.sim.check import Violation
from spindle_lab.sim.schedule import Schedule
from spindle_lab.sim.settle import settle
from spindle_lab.sim.setup import Setup
from spindle_lab.sim.world import World


@dataclasses.dataclass
class Outcome:
    """What a run was and came to. `events` only of a run that failed, up to where it did."""

    seed: int
    steps: int = 0
    views: int = 0
    deliveries: int = 0
    hash: int = 0
    broken: str = ""
    text: str = ""
    probes: dict[str, int] = dataclasses.field(default_factory=dict)
    events: list[e.Event] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.broken)


Watch = Callable[[World, e.Event], None]


def run_seed(seed: int, fabric: str = "", watch: Watch | None = None, listener: Callable[[str], None] | None = None,
             until: int = 0) -> Outcome:
    """The whole run of a seed. `watch` is called after each event; `until`: stops after so many steps."""
    schedule = Schedule(seed, fabric)
    world = World(schedule.setup, listener)
    events: list[e.Event] = []

    def happen(event: e.Event) -> bool:
        events.append(event)
        done = world.apply(event)
        if watch is not None and done:
            watch(world, event)
        return not until or world.steps < until

    def story() -> None:
        for event in schedule.begin():
            if not happen(event):
                return
        for _ in range(schedule.budget):
            if not happen(schedule.next(world)):
                return
        if watch is not None:
            _watched(world, watch)
        settle(world, seed)

    return _verdict(seed, world, events, story)


def run_events(setup: Setup, events: Sequence[e.Event], seed: int, watch: Watch | None = None,
               listener: Callable[[str], None] | None = None, settles: bool = True) -> Outcome:
    """A run of given events, and the time after them."""
    world = World(setup, listener)

    def story() -> None:
        for event in events:
            if world.apply(event) and watch is not None:
                watch(world, event)
        if settles:
            if watch is not None:
                _watched(world, watch)
            settle(world, seed)

    return _verdict(seed, world, list(events), story)


def _watched(world: World, watch: Watch) -> None:
    apply = world.apply

    def applied(event: e.Event) -> bool:
        done = apply(event)
        if done:
            watch(world, event)
        return done

    world.apply = applied  # type: ignore[method-assign]


def _verdict(seed: int, world: World, events: list[e.Event], story: Callable[[], None]) -> Outcome:
    outcome = Outcome(seed)
    try:
        story()
    except Violation as violation:
        outcome.broken, outcome.text, outcome.events = violation.name, violation.text, events
    outcome.steps, outcome.views, outcome.deliveries = world.steps, world.check.installs, world.check.deliveries
    outcome.hash, outcome.probes = world.hash, world.probes
    world.close()
    return outcome
