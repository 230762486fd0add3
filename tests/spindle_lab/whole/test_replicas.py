"""Goal: replicas of an object on whole nodes come through what seeds meet once in many thousands.

Method: the run is made so that it happens: disks are slow, and all nodes are killed at a chosen place of the order.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import pytest

from dds.replicated.machine import Phase
from spindle.group.levels import Level
from spindle_lab.whole.faults import Faults
from spindle_lab.whole.objects import Objects
from spindle_lab.whole.run import run_seed
from spindle_lab.whole.world import MS, Setup, World

if TYPE_CHECKING:
    from spindle_lab.whole.objects import Place
    from spindle_lab.whole.replicas import Held


class Lost(Objects):
    """A logged object whose nodes are killed as soon as it lives: of what its topic has, hardly anything is on disk."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.logged = True
        self.spec = dataclasses.replace(self.spec, level=Level.LOGGED, window=8)
        self.killed = False
        for disk in world.disks.values():
            disk.sync_ns = (20 * MS, 30 * MS)

    def came(self, held: Held, place: Place) -> None:
        super().came(held, place)
        if held.conduct.machine.phase is Phase.LIVE and not self.killed:
            self.killed = True
            faults = Faults(self.world)
            self.world.system.after(0, faults.kill_all_nodes)
            for slot in self.world.nodes:
                self.world.system.after(100 * MS, functools.partial(faults._again, slot))


def test_an_object_of_which_nothing_was_on_disk_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes die when no more than the coming of a replica is on disk; the replicas live on, and have entries of the
    lost object to write."""
    monkeypatch.setattr("spindle_lab.whole.world.Objects", Lost)
    lost = 0
    for seed in range(12):
        setup = Setup(hosts=1, nodes=1 + seed % 2, programs=0, topics=1, pace=3000, faults=0, slow_lines=False,
                      small_buffers=False, short_writes=False, replicas=1 + seed % 3)
        outcome = run_seed(seed, setup=setup)
        assert not outcome.failed, f"{seed}: {outcome.text}"
        assert outcome.paths["all replicas have all commands in the end"]
        lost += "a replica loses its place" in outcome.paths  # or it was given up with its node, as programs may
    assert lost > 6
