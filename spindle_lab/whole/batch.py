"""Many seeds on many processors, and what they came to; one seed made smaller."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from spindle_lab.sim.sums import Sums
from spindle_lab.whole.run import Outcome, import_all, run_seed
from spindle_lab.whole.world import Setup

CHUNK = 4  # seeds that a process is given at once


@dataclasses.dataclass
class Summary(Sums[Outcome]):
    """Sums over the runs of a batch."""

    steps: int = 0
    deliveries: int = 0
    virtual_s: float = 0.0
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    ends: dict[str, int] = dataclasses.field(default_factory=dict)
    faults: dict[str, int] = dataclasses.field(default_factory=dict)
    paths: dict[str, int] = dataclasses.field(default_factory=dict)


def run_seeds(seeds: Iterable[int], jobs: int, failures_max: int = 10,
              on_outcome: Callable[[Summary, Outcome], None] | None = None) -> Summary:
    """Runs them all, or until so many have failed. `on_outcome` hears of each."""
    summary, heard = Summary(), on_outcome or (lambda _, __: None)
    summary.take(_outcomes(seeds, jobs), failures_max, lambda outcome: heard(summary, outcome))
    return summary


def having(what: str, first: int = 0) -> Iterator[int]:
    """Seeds from `first` on whose runs have programs of this kind, or newer settings: a field of `Setup`."""
    for seed in itertools.count(first):
        if getattr(Setup.drawn(seed, random.Random(seed)), what):
            yield seed


def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    import_all()
    gc.collect()
    gc.freeze()  # objects older than all runs stay alive: the collector need not look through them after each run
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
    """Silences what was torn down in the middle of a run, which would complain when this process ends."""
    sys.unraisablehook = lambda _: None


def shrunk(seed: int, seconds: float = 60.0) -> Setup:
    """The smallest setup that breaks the same promise under this seed, as far as the time allows."""
    broken = run_seed(seed).broken
    setup = Setup.drawn(seed, random.Random(seed))
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
    for name, least in (("nodes", setup.hosts), ("programs", 1), ("replicas", min(setup.replicas, 1)),
                        ("links", min(setup.links, 1)), ("topics", 1), ("faults", 0)):
        now = getattr(setup, name)
        for value in sorted({least, now // 2, now - 1}):
            if least <= value < now:
                yield dataclasses.replace(setup, **{name: value})
    if setup.pace > 20:
        yield dataclasses.replace(setup, pace=setup.pace // 2)
    for name in ("slow_lines", "small_buffers", "short_writes"):
        if getattr(setup, name):
            yield dataclasses.replace(setup, **{name: False})


def processors() -> int:
    """How many runs at once make sense."""
    return len(os.sched_getaffinity(0))
