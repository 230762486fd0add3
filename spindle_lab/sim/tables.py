"""The own row of a node, watched: every store of the machine is seen by the checker, and can be the last one.

Why here: between two stores of a row the other nodes can do anything, and the process can end. Reads go straight to the
production's `Epoch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.membership.table import Area
    from spindle_core.epoch import Epoch
    from spindle_lab.sim.node import Life


class Interrupted(Exception):
    """The process ended in the middle of the machine's work."""


class WatchedTable:
    """A Table (`spindle.membership.table`) of one life and epoch."""

    def __init__(self, epoch: Epoch, life: Life) -> None:
        self.epoch, self.life = epoch, life
        self.get = epoch.get
        self.read_area = epoch.read_area
        self.my_rank: int = epoch.my_rank
        self.n_rows: int = epoch.n_rows

    def set(self, column: str, value: int) -> None:
        self.life.world.before_store(self.life)
        self.epoch.set(column, value)
        self.life.world.check.stored(self.life, column, value)

    def write_area(self, area: Area, data: bytes) -> None:
        self.life.world.before_store(self.life)
        self.life.world.check.wrote(self.life, area, data)
        self.epoch.write_area(area, data)

    def frozen_counts(self, rank: int, topic_id: int) -> Sequence[int]:
        counts: Sequence[int] = self.epoch.frozen_counts(rank, topic_id)
        return counts

    def frozen_topics(self, rank: int) -> Sequence[int]:
        topics: Sequence[int] = self.epoch.frozen_topics(rank)
        return topics

    def push(self) -> None:
        self.life.world.before_store(self.life)
        self.epoch.push()
