"""Many seeds on many processors, and what they came to."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Iterable, Iterator

from spindle_lab.sim.run import Outcome, run_seed
from spindle_lab.sim.sums import Sums

CHUNK = 20  # seeds that a process is given at once


@dataclasses.dataclass
class Summary(Sums[Outcome]):
    """Sums over the runs of a batch."""

    steps: int = 0
    views: int = 0
    deliveries: int = 0
    probes: dict[str, int] = dataclasses.field(default_factory=dict)


def run_seeds(seeds: Iterable[int], jobs: int, fabric: str = "", failures_max: int = 10,
              on_outcome: Callable[[Summary, Outcome], None] | None = None) -> Summary:
    """Runs them all, or until so many have failed. `on_outcome` hears of each."""
    summary, heard = Summary(), on_outcome or (lambda _, __: None)
    summary.take(_outcomes(seeds, jobs, fabric), failures_max, lambda outcome: heard(summary, outcome))
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
