"""Many seeds on many processors, and what they came to."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator

from spindle_lab.sim.run import Outcome, run_seed

CHUNK = 20  # seeds that a process is given at once


@dataclasses.dataclass
class Summary:
    """Sums over the runs of a batch."""

    seeds: int = 0
    steps: int = 0
    views: int = 0
    deliveries: int = 0
    hash: int = 0
    seconds: float = 0.0
    probes: dict[str, int] = dataclasses.field(default_factory=dict)
    failed: list[Outcome] = dataclasses.field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.views += outcome.views
        self.deliveries += outcome.deliveries
        self.hash ^= outcome.hash
        for probe, count in outcome.probes.items():
            self.probes[probe] = self.probes.get(probe, 0) + count
        if outcome.failed:
            self.failed.append(outcome)


def run_seeds(seeds: Iterable[int], jobs: int, fabric: str = "", failures_max: int = 10,
              on_outcome: Callable[[Summary, Outcome], None] | None = None) -> Summary:
    """Runs them all, or until so many have failed. `on_outcome` hears of each."""
    summary, began = Summary(), time.monotonic()
    for outcome in _outcomes(seeds, jobs, fabric):
        summary.add(outcome)
        if on_outcome is not None:
            on_outcome(summary, outcome)
        if len(summary.failed) >= failures_max:
            break
    summary.seconds = time.monotonic() - began
    summary.failed.sort(key=lambda one: one.seed)
    return summary


def _outcomes(seeds: Iterable[int], jobs: int, fabric: str) -> Iterator[Outcome]:
    work = ((seed, fabric) for seed in seeds)
    if jobs == 1:
        yield from map(_run, work)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=50) as pool:
        yield from pool.imap_unordered(_run, work, CHUNK)
        # Leaving the block ends what is still under way.


def _run(work: tuple[int, str]) -> Outcome:
    outcome = run_seed(*work)
    outcome.events = outcome.events[:0]  # they can be made again, and may be many
    return outcome
