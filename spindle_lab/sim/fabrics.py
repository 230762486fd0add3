"""How the rows of a run reach the other nodes.

Shared: every node maps the others' rows, as nodes of one host do. A store is visible at once; what can be late is the
other's next look.

Copied: every node has copies of the others' rows, as between hosts. What a node pushes waits on its way, and arrives
line by line when the run says so: late, in part, or never.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from spindle.group.layout import subgroups_of
from spindle_core.fabric.sim import SimFabric, SimNetwork

if TYPE_CHECKING:
    from spindle.group.view import View
    from spindle_core.epoch import Epoch
    from spindle_lab.sim.contracts import Life, World


class Rows(Protocol):
    """What a world needs of its fabric."""

    certain: bool  # a process that ends is seen to have ended: all nodes are on one host

    def new_epoch(self, life: Life, view: View, ballot: int) -> Epoch: ...

    def attach(self, life: Life, epoch: Epoch, rank: int, other: Life, row: Epoch) -> None: ...

    def flush(self, life: Life) -> None:
        """A life that stops in order waits until the others have what it has pushed."""

    def ended(self, life: Life, rest: bool) -> None:
        """The life's process has ended. `rest`: what it has pushed before arrives nevertheless."""

    def pushes(self, life: Life) -> int:
        """How often the node has pushed; a heartbeat is none."""

    def clog(self, life: Life, other: Life, clogged: bool) -> bool:
        """What the one writes doesn't reach the other from now on, or again."""

    def pending(self) -> list[tuple[int, int]]:
        """Pairs of life numbers between which something is on its way."""

    def land(self, source: int, target: int, lines: int) -> int:
        """So many lines on the way between two lives arrive; returns how many there were."""

    def land_all(self) -> int:
        """Everything arrives that is not held up."""

    def rung(self, life: Life) -> bool:
        """True if somebody has rung this life since this was asked last, in another way than by its eventfd."""


class SharedRows:
    """One host."""

    certain = True

    def new_epoch(self, life: Life, view: View, ballot: int) -> Epoch:
        rank = view.rank_of(life.node_id)
        return life.engine.new_epoch(view.view_id, rank, view.node_ids, subgroups_of(view))

    def attach(self, life: Life, epoch: Epoch, rank: int, other: Life, row: Epoch) -> None:
        epoch.attach_peer(rank, os.dup(row.row.fd), os.dup(other.engine.bell.fd), os.dup(other.engine.bell_fd))

    def flush(self, life: Life) -> None:
        pass

    def ended(self, life: Life, rest: bool) -> None:
        pass

    def pushes(self, life: Life) -> int:
        return int(life.engine.counters.snapshot()["pushes"])

    def clog(self, life: Life, other: Life, clogged: bool) -> bool:
        return False

    def pending(self) -> list[tuple[int, int]]:
        return []

    def land(self, source: int, target: int, lines: int) -> int:
        return 0

    def land_all(self) -> int:
        return 0

    def rung(self, life: Life) -> bool:
        return False


class CopiedRows:
    """Many hosts. Lives are named by their numbers in the network: a node that comes back is another one."""

    certain = False

    def __init__(self, world: World, **modes: int) -> None:
        self._world = world
        self.network = SimNetwork(copies=True, **modes)

    def new_epoch(self, life: Life, view: View, ballot: int) -> Epoch:
        rank = view.rank_of(life.node_id)
        numbers = [self._world.life_of(member).number for member in view.members]
        fabric = SimFabric(self.network, view.view_id, rank, numbers)
        return life.engine.new_epoch(view.view_id, rank, view.node_ids, subgroups_of(view), fabric)

    def attach(self, life: Life, epoch: Epoch, rank: int, other: Life, row: Epoch) -> None:
        epoch.attach_local(rank, row)

    def flush(self, life: Life) -> None:
        for other in self._world.lives:
            if other is not life:
                self.network.release(life.number, other.number)
                self.network.land(life.number, other.number, 1 << 40)

    def ended(self, life: Life, rest: bool) -> None:
        for other in self._world.lives:
            if other is not life:
                self.network.drop(other.number, life.number)
                if not rest:
                    self.network.drop(life.number, other.number)

    def pushes(self, life: Life) -> int:
        return int(life.engine.counters.snapshot()["pushes"])

    def clog(self, life: Life, other: Life, clogged: bool) -> bool:
        (self.network.hold if clogged else self.network.release)(life.number, other.number)
        return True

    def pending(self) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = self.network.pairs_with_pending()
        return pairs

    def land(self, source: int, target: int, lines: int) -> int:
        return int(self.network.land(source, target, abs(lines), ahead=lines < 0))

    def land_all(self) -> int:
        return int(self.network.land_all())

    def rung(self, life: Life) -> bool:
        rung = bool(self.network.rung(life.number))
        self.network.clear_rung(life.number)
        return rung
