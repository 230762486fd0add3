"""The clock beside the membership machine: looks in time at who hangs, and says so.

Why apart from the changes: the machine reads no clock, and carrying out its actions needs none. What follows from a
look are the rules of `spindle.membership.watch`; here is one timer that runs a few dozen times a second and touches a
few words of memory, and what people are told in the log and the status.

Rules:
- A heartbeat is a store into the own row; to members on other hosts it is posted, which wakes nothing but their
  predicate threads. So a group on one host that is idle stays idle.
- Every look also steps the machine: that is how a node that was stopped learns that others went on without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.logs import MEMBER_SILENT, about
from spindle.membership.detector import LOST
from spindle.membership.watch import Watch

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.membership.machine import Machine
    from spindle_core.epoch import Epoch

NS = 1_000_000_000
LOG = logging.getLogger("spindle.node")


class Liveness:
    """Made with the machine; `installed()` starts it, and every further view restarts it. `drive` steps the machine and
    carries out its actions."""

    def __init__(self, config: NodeConfig, machine: Machine, drive: Callable[[], None]) -> None:
        self._machine, self._drive = machine, drive
        self._watch = Watch(machine, int(config.suspect_timeout_s * NS))
        self._epoch: Epoch | None = None
        self._timer: asyncio.TimerHandle | None = None

    def installed(self, epoch: Epoch, timeout_s: float = 0.0) -> None:
        """A view is installed; `timeout_s`: its suspect_timeout_s, 0 for what it was."""
        self._epoch = epoch
        self._watch.installed(epoch, time.monotonic_ns(), int(timeout_s * NS))
        if self._timer is None:
            self._look()

    def stop(self) -> None:
        """No more looks. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._epoch = None

    def silent_s(self, rank: int) -> float:
        """For how long the member of this rank has given no sign of life."""
        return self._watch.silent_ns(rank) / NS

    def _look(self) -> None:
        watch = self._watch
        before = set(watch.waited_for)
        watch.look(time.monotonic_ns())
        if watch.stalled:
            LOG.warning("this node was stopped, or had no processor, for a time: it accuses nobody meanwhile")
        if watch.waited_for.keys() - before:
            self._say_waiting(watch.waited_for)
        self._drive()
        if self._epoch is not None:
            self._timer = asyncio.get_running_loop().call_later(watch.wait_ns() / NS, self._look)

    def _say_waiting(self, waited_for: dict[int, int]) -> None:
        who = ", ".join(str(waited_for[rank]) for rank in sorted(waited_for))
        longest_s = max(map(self.silent_s, waited_for))
        hint = "let it go on (kill -CONT), or end it (kill -9)"
        if not all(map(self._machine.is_near, waited_for.values())):
            hint = f"no longer than {LOST * self._watch.timeout_ns / NS:g} s in all, as it may be cut off itself"
        LOG.warning("no sign of life from node %s for %.2f s; too few would remain to go on without, so this node "
                    "waits: %s", who, longest_s, hint, extra=about(MEMBER_SILENT, members=who))
