"""Many seeds on many processors, and what they came to; one seed made smaller."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from spindle_lab.whole.run import Outcome, import_all, run_seed
from spindle_lab.whole.system import System
from spindle_lab.whole.world import Setup

CHUNK = 4  # seeds that a process is given at once


@dataclasses.dataclass
class Summary:
    """Sums over the runs of a batch."""

    seeds: int = 0
    steps: int = 0
    deliveries: int = 0
    virtual_s: float = 0.0
    hash: int = 0
    seconds: float = 0.0
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    ends: dict[str, int] = dataclasses.field(default_factory=dict)
    faults: dict[str, int] = dataclasses.field(default_factory=dict)
    paths: dict[str, int] = dataclasses.field(default_factory=dict)
    failed: list[Outcome] = dataclasses.field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.seeds += 1
        self.steps += outcome.steps
        self.deliveries += outcome.deliveries
        self.virtual_s += outcome.virtual_s
        self.hash ^= outcome.hash
        for sums, counts in ((self.errors, outcome.errors), (self.ends, outcome.ends), (self.faults, outcome.faults),
                             (self.paths, outcome.paths)):
            for name, count in counts.items():
                sums[name] = sums.get(name, 0) + count
        if outcome.failed:
            self.failed.append(outcome)


def run_seeds(seeds: Iterable[int], jobs: int, failures_max: int = 10,
              on_outcome: Callable[[Summary, Outcome], None] | None = None) -> Summary:
    """Runs them all, or until so many have failed. `on_outcome` hears of each."""
    summary, began = Summary(), time.monotonic()
    for outcome in _outcomes(seeds, jobs):
        summary.add(outcome)
        if on_outcome is not None:
            on_outcome(summary, outcome)
        if len(summary.failed) >= failures_max:
            break
    summary.seconds = time.monotonic() - began
    summary.failed.sort(key=lambda one: one.seed)
    return summary


def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    import_all()
    gc.collect()
    gc.freeze()  # what is older than all runs ends with none: it is not looked through after each
    try:
        yield from _run(seeds, jobs)
    finally:
        gc.unfreeze()


def _run(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, _quiet, maxtasksperchild=25) as pool:
        yield from pool.imap_unordered(run_seed, seeds, CHUNK)
        # Leaving the block ends what is still under way.


def _quiet() -> None:
    """What is torn down in the middle of a run complains at the very end."""
    sys.unraisablehook = lambda _: None


def shrunk(seed: int, seconds: float = 60.0) -> Setup:
    """The smallest setup that breaks the same promise under this seed, as far as the time allows."""
    broken = run_seed(seed).broken
    setup = Setup.drawn(System(seed))
    end_s = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(setup):
            if time.monotonic() > end_s:
                return setup
            if run_seed(seed, setup=smaller).broken == broken:
                setup, changed = smaller, True
                break
    return setup


def _smaller(setup: Setup) -> Iterator[Setup]:
    for name, least in (("nodes", setup.hosts), ("programs", 1), ("topics", 1), ("faults", 0)):
        now = getattr(setup, name)
        for value in sorted({least, now // 2, now - 1}):
            if least <= value < now:
                yield dataclasses.replace(setup, **{name: value})
    if setup.duration_ms > 20:
        yield dataclasses.replace(setup, duration_ms=setup.duration_ms // 2)
    for name in ("slow_lines", "small_buffers", "short_writes"):
        if getattr(setup, name):
            yield dataclasses.replace(setup, **{name: False})


def processors() -> int:
    """How many runs at once make sense."""
    return len(os.sched_getaffinity(0))
