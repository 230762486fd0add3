"""Plays runs in a pool of processes, and keeps what they show: a run that is there already is not played again.

A run is kept under the hash of all that its figures depend on: its spec, the cost tables, and the compiled modules of
the model and of the core that it drives. So a changed core plays everything again, and what was interrupted goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

from spindle_lab.paper.runs import Run, counts_of, parameters_of, simulate, work_of

STATE_DIR = Path("build/paper")
NO_PART = {"flights", "loads", "pauses", "probes"}  # of the modules here
FORMAT = 1  # of figures_of(): raised where it changes

# What is compiled of the core and has a part in what a run shows; of the model that is all but what measures or flies
# writes alone.
MODULES = (
    "spindle_core.bindings", "spindle_core.counters", "spindle_core.engine", "spindle_core.epoch",
    "spindle_core.geometry", "spindle_core.hot_path",
)


@cache
def digest() -> str:
    """Of the compiled modules."""
    whole = hashlib.sha256()
    compiled = {path.name.partition(".")[0] for path in Path(__file__).parent.glob("*.so")}
    model = [f"spindle_lab.paper.{name}" for name in compiled - NO_PART]
    for name in (*MODULES, *sorted(model)):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"{name} is not built: make ext")
        whole.update(Path(spec.origin).read_bytes())
    return whole.hexdigest()


def hash_of(run: Run) -> str:
    text = json.dumps([FORMAT, run.spec(), counts_of(run), work_of(run), repr(parameters_of(run)), digest()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def effort_of(run: Run) -> float:
    """About how long it takes, in no unit: long ones go first, so that none runs alone at the end."""
    per_message = 20.0 if run.one_by_one else 1.0
    return run.members * run.sending * run.active * sum(counts_of(run)) * per_message * (1 + run.topics / 10)


class Store:
    """What runs have shown, a JSON file each."""

    def __init__(self, directory: Path = STATE_DIR) -> None:
        self.directory = directory

    def get(self, run: Run) -> dict[str, Any] | None:
        try:
            kept = json.loads((self.directory / f"{hash_of(run)}.json").read_text())
        except (OSError, ValueError):
            return None  # not there, or not whole: it is played again
        figures: dict[str, Any] = kept["figures"]
        return figures

    def put(self, run: Run, figures: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{hash_of(run)}.json"
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"run": run.spec(), "figures": figures}))
        os.replace(partial, path)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def play(
    runs: Iterable[Run],
    store: Store,
    jobs: int = 0,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
) -> dict[Run, dict[str, Any]]:
    """The figures of all of these runs. on_run(run, played, to be played) after each that was not there.

    jobs: processes; 0: as many as processors, 1: none besides this one.
    """
    wanted = list(dict.fromkeys(runs))
    figures: dict[Run, dict[str, Any]] = {}
    missing = []
    for run in wanted:
        kept = store.get(run)
        if kept is None:
            missing.append(run)
        else:
            figures[run] = kept
    missing.sort(key=effort_of, reverse=True)

    def keep(run: Run, shown: dict[str, Any]) -> None:
        figures[run] = shown
        store.put(run, shown)
        on_run(run, len(figures) - len(wanted) + len(missing), len(missing))

    jobs = min(jobs or len(os.sched_getaffinity(0)), len(missing))
    if jobs <= 1:
        for run in missing:
            keep(run, simulate(run))
        return figures
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _leave_interrupts_to_the_parent) as pool:
        waiting = {pool.submit(simulate, run): run for run in missing}
        try:
            for future in as_completed(waiting):
                keep(waiting[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return figures
