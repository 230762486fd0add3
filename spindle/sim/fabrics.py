"""How the rows of a run reach the other nodes.

Shared: every node maps the others' rows, as nodes of one host do. A store is visible at once; what can be late is the
other's next look. Copied: see `spindle.sim.copied`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from spindle.layout import subgroups_of

if TYPE_CHECKING:
    from spindle.sim.node import Life
    from spindle.view import View
    from spindle_core.epoch import Epoch


class Rows(Protocol):
    """What a world needs of its fabric."""

    certain: bool  # a process that ends is seen to have ended: all nodes are on one host

    def new_epoch(self, life: Life, view: View, ballot: int) -> Epoch: ...

    def attach(self, life: Life, epoch: Epoch, rank: int, other: Life, row: Epoch) -> None: ...

    def beat(self, epoch: Epoch, value: int) -> None: ...

    def ended(self, life: Life) -> None: ...

    def pushes(self, life: Life) -> int:
        """How much the node has pushed, heartbeats not counted."""

    def clog(self, life: Life, other: Life, clogged: bool) -> bool:
        """What the one writes doesn't reach the other from now on, or again."""

    def land(self, life: Life, other: Life, lines: int) -> bool:
        """So many lines of what the one has written reach the other; False if there were none."""


class SharedRows:
    """One host."""

    certain = True

    def new_epoch(self, life: Life, view: View, ballot: int) -> Epoch:
        rank = view.rank_of(life.node_id)
        return life.engine.new_epoch(view.view_id, rank, view.node_ids, subgroups_of(view))

    def attach(self, life: Life, epoch: Epoch, rank: int, other: Life, row: Epoch) -> None:
        epoch.attach_peer(rank, os.dup(row.row.fd), os.dup(other.engine.bell.fd), os.dup(other.engine.bell_fd))

    def beat(self, epoch: Epoch, value: int) -> None:
        epoch.set("heartbeat", value)

    def ended(self, life: Life) -> None:
        pass

    def pushes(self, life: Life) -> int:
        return int(life.engine.counters.snapshot()["pushes"])

    def clog(self, life: Life, other: Life, clogged: bool) -> bool:
        return False

    def land(self, life: Life, other: Life, lines: int) -> bool:
        return False
