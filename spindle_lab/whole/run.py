"""One seed from its beginning to its verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import logging
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable

import spindle
from spindle_lab.whole.bounds import watched
from spindle_lab.whole.disk import in_place_of_files
from spindle_lab.whole.knobs import turned
from spindle_lab.whole.patches import forget, patched
from spindle_lab.whole.renewals import noted
from spindle_lab.whole.system import System
from spindle_lab.whole.violation import Violation
from spindle_lab.whole.world import Setup, World, note_syncs

NOT_RUN = ("spindle.cli", "spindle.demo", "spindle.rdma")


@dataclasses.dataclass
class Outcome:
    """What a run was and came to."""

    seed: int
    steps: int = 0
    deliveries: int = 0
    virtual_s: float = 0.0
    hash: int = 0
    broken: str = ""
    text: str = ""
    errors: dict[str, int] = dataclasses.field(default_factory=dict)  # that programs were told
    ends: dict[str, int] = dataclasses.field(default_factory=dict)  # of nodes
    faults: dict[str, int] = dataclasses.field(default_factory=dict)
    paths: dict[str, int] = dataclasses.field(default_factory=dict)  # what is rare, and how often it happened

    @property
    def failed(self) -> bool:
        return bool(self.broken)


def import_all() -> None:
    """All modules of a node and its clients: a run that imported one of them first would be another run."""
    for module in pkgutil.walk_packages(spindle.__path__, "spindle."):
        if not module.name.endswith("__main__") and not module.name.startswith(NOT_RUN):
            importlib.import_module(module.name)


def run_seed(seed: int, trace: Callable[[str], None] | None = None, setup: Setup | None = None,
             reraise: bool = False) -> Outcome:
    """The whole run of a seed."""
    outcome = Outcome(seed)
    logger = logging.getLogger("spindle")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    was_enabled = gc.isenabled()
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # what is torn down in its middle complains
    warnings.simplefilter("ignore", RuntimeWarning)  # "never awaited"
    gc.disable()  # when it runs would depend on what ran before
    filled, before = _fill_holes()
    system = System(seed)
    try:
        killed = _play(system, outcome, trace, setup, reraise)
        system.forget()
        forget()
        for _ in range(3):
            if not gc.collect():  # what ends may let go of more
                break
        system.close()
        let_go()
        left = {fd: what for fd, what in _descriptors().items() if before.get(fd) != what}
        if left and not outcome.broken and not killed:
            outcome.broken = "R9"
            outcome.text = f"{len(left)} descriptors are open that nobody has any more: {sorted(left.values())[:5]}"
        put_aside(map(int, left))  # those of killed processes, which the kernel would have closed
    finally:
        for fd in filled:
            os.close(fd)
        sys.unraisablehook = hook
        logger.setLevel(level)
        if was_enabled:
            gc.enable()
    return outcome


def _fill_holes() -> tuple[list[int], dict[str, str]]:
    """Takes all descriptor numbers that are free between others; returns them, and what is open then. What is opened
    after that has the same order of numbers in every process; and by their order the kernel tells what is readable."""
    there = _descriptors()
    _aside[:] = [fd for fd in _aside if there.get(str(fd)) == os.devnull]  # others are given up
    filled = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    highest = max(map(int, there))
    while filled[-1] < highest:
        filled.append(os.dup(filled[0]))
    return filled, there | {str(fd): os.devnull for fd in filled}


_aside: list[int] = []


def put_aside(fds: Iterable[int]) -> None:
    """Closes what these descriptors were, and keeps their numbers taken for a while: an object of the run may live on
    in a traceback that somebody keeps, and close its number once more when it goes, whoever has that by then."""
    with open(os.devnull, "rb") as nothing:
        for fd in fds:
            os.dup2(nothing.fileno(), fd, inheritable=False)
            _aside.append(fd)


def let_go() -> None:
    """Gives up the numbers that were put aside after the run before, unless their owners have done so."""
    for fd in _aside:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == os.devnull:
                os.close(fd)
    _aside.clear()


def _play(system: System, outcome: Outcome, trace: Callable[[str], None] | None, setup: Setup | None, reraise: bool
          ) -> bool:
    """From the beginning to the end of the world. True if processes were killed in it."""
    with patched(system):
        drawn = Setup.drawn(system.seed, system.random)
        world = World(system, setup or drawn, trace)
        if trace is not None:
            trace(str(world.setup))
            trace(", ".join(f"{one.name} {one.level.name.lower()}" for one in world.all_specs))
        try:
            with (note_syncs(world), noted(world), in_place_of_files(system, world.disks), turned(system) as small,
                  watched(system)):
                if trace is not None and small:
                    trace(", ".join(small))
                world.run()
        except Violation as violation:
            outcome.broken, outcome.text = violation.name, violation.text
            if reraise:
                raise
        finally:
            for program in world.programs:
                for kind, count in program.errors.items():
                    outcome.errors[kind] = outcome.errors.get(kind, 0) + count
            for slot in world.nodes:
                for end in slot.ends:
                    outcome.ends[end] = outcome.ends.get(end, 0) + 1
            outcome.faults, outcome.paths = dict(world.faults), dict(world.paths)
            outcome.steps, outcome.deliveries = system.steps, world.checks.deliveries
            outcome.virtual_s, outcome.hash = system.now_ns / 1e9, system.hash
            killed = any(not process.alive for process in system.processes)
            system.end()
            world.close()
        return killed


def _descriptors() -> dict[str, str]:
    """What this process has open, by descriptor."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found
