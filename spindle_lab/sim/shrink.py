"""A failing run with everything left out that its failure doesn't need.

Any part of a run is a run, so events are dropped in halves, quarters and so on down to single ones, for as long as the
same property still fails. What the time without faults needs is not dropped: it follows by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spindle_lab.sim import events as e
from spindle_lab.sim.run import Outcome, run_events, run_seed
from spindle_lab.sim.schedule import Schedule
from spindle_lab.sim.trace import Tracer

SECONDS_MAX = 60.0


def shrink(seed: int, fabric: str, seconds: float = SECONDS_MAX) -> tuple[list[e.Event], Callable[[Tracer], Outcome]]:
    """The events that are left, and how to run them again. Not smaller at all if the failure was of the time without
    faults and needs every event."""
    first = run_seed(seed, fabric)
    setup, deadline = Schedule(seed, fabric).setup, time.monotonic() + seconds

    def fails(events: list[e.Event]) -> bool:
        return run_events(setup, events, seed).broken == first.broken

    events = first.events
    if not fails(events):
        raise RuntimeError(f"seed {seed} doesn't fail again from its events")
    size = max(1, len(events) // 2)
    while time.monotonic() < deadline:
        place, dropped = len(events), False
        while place > 0 and time.monotonic() < deadline:
            begin = max(0, place - size)
            rest = events[:begin] + events[place:]
            if fails(rest):
                events, dropped = rest, True
            place = begin
        if size == 1 and not dropped:
            break
        size = max(1, size // 2) if not dropped or size > 1 else 1

    def replay(tracer: Tracer) -> Outcome:
        return run_events(setup, events, seed, tracer.watch, tracer.listen)

    return events, replay
