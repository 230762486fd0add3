"""The clock beside the membership machine: heartbeats, members that hang, and how long a minority waits.

Why apart from the changes: the machine reads no clock, and carrying out its actions needs none. What does is here, in
one timer that runs a few dozen times a second and touches a few words of memory.

Rules:
- A heartbeat is a store into the own row; to members on other hosts it is posted, which wakes nothing but their
  predicate threads. So a group on one host that is idle stays idle.
- The predicate thread makes it: what applications and strangers ask is worked off here, and many who ask much must not
  make this node look dead. But a node whose control loop hangs holds up every view change. So each look vouches for
  HANGING times the timeout; when that is over the heart stands still.
- A member that hangs on this host may go on at any moment, so it is accused only if a majority remains without it and
  all others that hang. Otherwise this node waits with it, and says so: in the log, and in the status.
- A silent member on another host may hang, may have lost its power, or may be on the other side of a broken link and
  have gone on without this node. So it is waited for, too, where its loss would cost the majority, but only for the
  timeout once more: a link that is back by then has cost nothing. Then this node gives up.
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
from spindle.membership.detector import LOST, Detector

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.membership.machine import Machine
    from spindle_core.epoch import Epoch

NS = 1_000_000_000
HANGING = 3  # times the timeout without a look: this loop is not just busy
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

    def installed(self, epoch: Epoch, timeout_s: float = 0.0) -> None:
        """A view is installed; `timeout_s`: its suspect_timeout_s, 0 for what it was."""
        if timeout_s:
            self._timeout_ns = int(timeout_s * NS)
            self._detector.set_timeout(self._timeout_ns)
        self._epoch = epoch
        self._waited_for.clear()
        self._minority_ns = None
        self._vouch(epoch)
        self._detector.restart(time.monotonic_ns())
        if self._timer is None:
            self._look()

    def _vouch(self, epoch: Epoch) -> None:
        between_ns = self._detector.interval_ns
        epoch.vouch(between_ns, HANGING * self._timeout_ns // between_ns)

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
        self._vouch(epoch)
        others = [rank for rank in machine.live_ranks() if rank != epoch.my_rank]
        late = set(self._detector.late(now_ns, {rank: epoch.get(rank, "heartbeat") for rank in others}))
        if self._detector.stalled:
            LOG.warning("this node was stopped, or had no processor, for a time: it accuses nobody meanwhile")
        if late:
            self._accuse(epoch, late)
        else:
            self._waited_for.clear()
        self._give_up_in_time(now_ns)
        self._drive()
        if self._epoch is not None:
            self._timer = asyncio.get_running_loop().call_later(self._detector.wait_ns() / NS, self._look)

    def _accuse(self, epoch: Epoch, late: set[int]) -> None:
        machine = self._machine
        node_ids = {rank: epoch.node_ids[rank] for rank in late}
        accused = machine.to_suspect(set(node_ids.values()))
        for rank, node_id in sorted(node_ids.items()):
            if node_id in accused:
                machine.suspect(node_id, f"it has given no sign of life for {self.silent_s(rank):.2f} s")
        lost = [node_ids[rank] for rank in self._detector.lost() & late if not machine.is_near(node_ids[rank])]
        if lost:
            machine.give_up(lost)
        waited_for = {rank for rank, node_id in node_ids.items() if node_id not in accused}
        if waited_for - self._waited_for:
            self._say_waiting(sorted(waited_for), node_ids)
        self._waited_for = waited_for

    def _say_waiting(self, ranks: list[int], node_ids: dict[int, int]) -> None:
        who = ", ".join(str(node_ids[rank]) for rank in ranks)
        hint = "let it go on (kill -CONT), or end it (kill -9)"
        if not all(self._machine.is_near(node_ids[rank]) for rank in ranks):
            hint = f"no longer than {LOST * self._timeout_ns / NS:g} s in all, as it may be cut off itself"
        LOG.warning("no sign of life from node %s for %.2f s; too few would remain to go on without, so this node "
                    "waits: %s", who, max(map(self.silent_s, ranks)), hint, extra=about(MEMBER_SILENT, members=who))

    def _give_up_in_time(self, now_ns: int) -> None:
        if not self._machine.in_minority or self._detector.stalled:
            self._minority_ns = None
        elif self._minority_ns is None:
            self._minority_ns = now_ns
        elif now_ns - self._minority_ns >= self._timeout_ns:
            self._machine.give_up()
