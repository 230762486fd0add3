"""Goal: the checks of a run know what they are to know.

Method: a world that consists of what is asked of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import spindle.restart.disk
from spindle.journal.live import JournalFile
from spindle.journal.recovery import Recovery
from spindle_lab.whole.world import World, note_syncs
from tests.spindle.journal.fakes import SPEC, MemoryFiles
from tests.spindle.journal.scripted import DIRECTORY, batches, head_after


def test_what_an_earlier_life_has_synced_is_on_the_disk_of_a_later_one() -> None:
    world = SimpleNamespace(checks=SimpleNamespace(synced={}), system=SimpleNamespace(current=SimpleNamespace(pid=1)))
    files, synced = MemoryFiles(), world.checks.synced
    with note_syncs(cast(World, world)):
        file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
        first, second = batches([1, 1], 30)
        file.append(first)
        file.sync()
        assert synced == {(1, SPEC.name): file.last}
        there = file.last
        world.system.current.pid = 2
        spindle.restart.disk.recover(files, DIRECTORY, SPEC.name, 1)
        assert synced[2, SPEC.name] == there
        file.append(second)
        assert synced[2, SPEC.name] == there
        file.sync()
        assert synced[2, SPEC.name] == file.last > there
        spindle.restart.disk.recover(files, DIRECTORY, SPEC.name, 1)
        assert synced[2, SPEC.name] == file.last
