"""The own row of a node, watched: every store of the machine is seen by the checker, and can be the last one.

Why here: between two stores of a row the other nodes can do anything, and the process can end. Reads go straight to the
production's `Epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.membership.table import Area
    from spindle_core.epoch import Epoch


class Interrupted(Exception):
    """The process ended in the middle of the machine's work."""


class WatchedTable:
    """A Table (`spindle.membership.table`) of one life and epoch: `before_store` is called before anything changes,
    `stored` after a column was stored, `wrote` before an area is written."""

    def __init__(self, epoch: Epoch, before_store: Callable[[], None], stored: Callable[[str, int], None],
                 wrote: Callable[[str, bytes], None]) -> None:
        self.epoch = epoch
        self._before_store, self._stored, self._wrote = before_store, stored, wrote
        self.get = epoch.get
        self.read_area = epoch.read_area
        self.my_rank: int = epoch.my_rank
        self.n_rows: int = epoch.n_rows

    def set(self, column: str, value: int) -> None:
        self._before_store()
        self.epoch.set(column, value)
        self._stored(column, value)

    def write_area(self, area: Area, data: bytes) -> None:
        self._before_store()
        self._wrote(area, data)
        self.epoch.write_area(area, data)

    def frozen_counts(self, rank: int, topic_id: int) -> Sequence[int]:
        counts: Sequence[int] = self.epoch.frozen_counts(rank, topic_id)
        return counts

    def frozen_topics(self, rank: int) -> Sequence[int]:
        topics: Sequence[int] = self.epoch.frozen_topics(rank)
        return topics

    def push(self) -> None:
        self._before_store()
        self.epoch.push()
