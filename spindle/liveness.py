"""The clock beside the membership machine: heartbeats, members that hang, and how long a minority waits.

Why apart from the changes: the machine reads no clock, and carrying out its actions needs none. What does is here, in
one timer that runs a few dozen times a second and touches a few words of memory.

Rules:
- A heartbeat is a store into the own row; to members on other hosts it is posted, which wakes nothing but their
  predicate threads. So a group on one host that is idle stays idle.
- A member that hangs on this host may go on at any moment, so it is accused only if a majority remains without it and
  all others that hang. Otherwise this node waits with it, and says so: in the log, and in the status.
- A node without a majority waits for as long as a hanging member would be given: whoever is missing may turn out to
  have ended for certain. Then it gives up.
- Every look also steps the machine: a node that was stopped learns so that others have gone on without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.logs import MEMBER_SILENT, about
from spindle.membership.detector import Detector

if TYPE_CHECKING:
    from spindle.config import NodeConfig
    from spindle.membership.machine import Machine
    from spindle_core.epoch import Epoch

NS = 1_000_000_000
LOG = logging.getLogger("spindle.node")


class Liveness:
    """Made with the machine; `installed()` starts it, and every further view restarts it. `drive` steps the machine and
    carries out its actions."""

    def __init__(self, config: NodeConfig, machine: Machine, drive: Callable[[], None]) -> None:
        self._machine, self._drive = machine, drive
        self._timeout_ns = int(config.suspect_timeout_s * NS)
        self._detector = Detector(self._timeout_ns)
        self._epoch: Epoch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._minority_ns: int | None = None  # since when
        self._waited_for: set[int] = set()  # ranks that hang and can't be accused

    def installed(self, epoch: Epoch) -> None:
        """A view is installed."""
        self._epoch = epoch
        self._waited_for.clear()
        self._minority_ns = None
        self._detector.restart(time.monotonic_ns())
        if self._timer is None:
            self._look()

    def stop(self) -> None:
        """No more looks. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._epoch = None

    def silent_s(self, rank: int) -> float:
        """For how long the member of this rank has given no sign of life."""
        return self._detector.silent_ns(rank) / NS

    def _look(self) -> None:
        epoch, machine, now_ns = self._epoch, self._machine, time.monotonic_ns()
        assert epoch is not None
        epoch.beat(self._detector.beat())
        others = [rank for rank in machine.live_ranks() if rank != epoch.my_rank]
        late = set(self._detector.late(now_ns, {rank: epoch.get(rank, "heartbeat") for rank in others}))
        if self._detector.stalled:
            LOG.warning("this node was stopped, or had no processor, for a time: it accuses nobody meanwhile")
        if late:
            self._accuse(epoch, late)
        self._waited_for &= late
        self._give_up_in_time(now_ns)
        self._drive()
        if self._epoch is not None:
            self._timer = asyncio.get_running_loop().call_later(self._detector.wait_ns() / NS, self._look)

    def _accuse(self, epoch: Epoch, late: set[int]) -> None:
        node_ids = {rank: epoch.node_ids[rank] for rank in late}
        if self._machine.may_suspect(set(node_ids.values())):
            for rank, node_id in sorted(node_ids.items()):
                self._machine.suspect(node_id, f"it has given no sign of life for {self.silent_s(rank):.2f} s")
        elif late - self._waited_for:
            self._waited_for = set(late)
            who = ", ".join(str(node_id) for _, node_id in sorted(node_ids.items()))
            LOG.warning("no sign of life from node %s for %.2f s; too few would remain to go on without, so this node "
                        "waits: let it go on (kill -CONT), or end it (kill -9)", who,
                        max(self.silent_s(rank) for rank in late), extra=about(MEMBER_SILENT, members=who))

    def _give_up_in_time(self, now_ns: int) -> None:
        if not self._machine.in_minority or self._detector.stalled:
            self._minority_ns = None
        elif self._minority_ns is None:
            self._minority_ns = now_ns
        elif now_ns - self._minority_ns >= self._timeout_ns:
            self._machine.give_up()
