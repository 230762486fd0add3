"""Daemons, waves of programs, and the verdict.

Rules: a wave ends when all of its programs are gone; a program that is still there after a minute counts as hung, and
is killed. A program that is refused something says so, and that is no failure; an error that isn't Spindle's is one.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from spindle_lab.bench.app_run import Daemon, Daemons
from spindle_lab.soak.gauge import Growth, Note, growth
from spindle_lab.soak.program import FAILED, FATES, REFUSED, fork_program

WARM_S = 300.0
HUNG_S = 60.0
SETTLE_S = 10.0  # that a daemon may take at most to give back what programs had
EVERY_S = 1.0  # between two notes


@dataclass
class Soaked:
    """What came of it."""

    seconds: float = 0.0
    programs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    grown: dict[int, list[Growth]] = field(default_factory=dict)  # by node id

    @property
    def wrong(self) -> list[str]:
        """What must not be, in words."""
        found = [f"{self.ends[what]} programs {what}" for what in ("failed", "hung") if self.ends[what]]
        return found + [f"node {node_id}: {one}" for node_id, grown in sorted(self.grown.items())
                        for one in grown if one.too_much]


def soak(seconds: float, *, waves: int = 0, nodes: int = 2, warm_s: float = WARM_S, seed: int = 0,
         every_s: float = EVERY_S, say: Callable[[str], None] = print) -> Soaked:
    """Runs for at least so long, and so many waves. RuntimeError if a daemon ends; ValueError if too short to judge."""
    rng = random.Random(seed)
    result = Soaked()
    with tempfile.TemporaryDirectory(prefix="spindle-soak-") as name:
        directory = Path(name)
        settings = {"journal.dir": str(directory / "journal")}
        with Daemons(directory, nodes, settings) as daemons:
            notes: dict[int, list[Note]] = {daemon.node_id: [] for daemon in daemons.members}
            began = noted = said = time.monotonic()
            while time.monotonic() - began < seconds or waves > 0:
                wave(directory, nodes, rng, result)
                waves -= 1
                now = time.monotonic()
                if now - noted < every_s:
                    continue
                for daemon in daemons.members:
                    notes[daemon.node_id].append(settled(daemon, began))
                noted = time.monotonic()
                if noted - said > 60.0:
                    said = noted
                    say(f"{noted - began:.0f} s, {result.programs} programs; " + "; ".join(
                        f"node {node_id}: {found[-1].memory_bytes / 1e6:.1f} MB, {found[-1].descriptors} descriptors,"
                        f" {found[-1].mappings} mappings" for node_id, found in notes.items()))
            result.seconds = time.monotonic() - began
            result.grown = {node_id: growth(found, warm_s) for node_id, found in notes.items()}
    return result


def wave(directory: Path, nodes: int, rng: random.Random, result: Soaked) -> None:
    """Some programs at once, until all of them are gone."""
    running = {fork_program(directory, rng.randint(1, nodes), rng.getrandbits(32), rng.choice(FATES))
               for _ in range(rng.randint(1, 6))}
    result.programs += len(running)
    deadline = time.monotonic() + HUNG_S
    while running:
        for pid in list(running):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                running.discard(pid)
                result.ends[end_of(os.waitstatus_to_exitcode(status))] += 1
        if running and time.monotonic() > deadline:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            result.ends["hung"] += len(running)
            return
        time.sleep(0.002)


def end_of(code: int) -> str:
    """In a word. Only the program itself kills it here; the hung ones are counted apart."""
    return {0: "ended", FAILED: "failed", REFUSED: "were refused", -signal.SIGKILL: "were killed"}.get(code, "failed")


def settled(daemon: Daemon, began: float) -> Note:
    """What a daemon holds once it has let go of programs that are gone: its descriptors stayed the same for a while."""
    deadline, same = time.monotonic() + SETTLE_S, 0
    note = look(daemon, began)
    while same < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
        again = look(daemon, began)
        same = same + 1 if again.descriptors == note.descriptors else 0
        note = again
    return note


def look(daemon: Daemon, began: float) -> Note:
    if daemon.process.poll() is not None:
        raise RuntimeError(f"the daemon of node {daemon.node_id} has ended with code {daemon.process.returncode}")
    return Note.of(daemon.process.pid, time.monotonic() - began)
