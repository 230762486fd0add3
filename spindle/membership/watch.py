"""What a node does for its machine by the clock: it permits its own heartbeats, accuses hanging members, gives up.

Why apart from the machine: the machine reads no clock, and carrying out its actions needs none. What needs one is here
and in `preparation`; times are given, so the node and the simulator drive the same rules.

Rules:
- The predicate thread makes the heartbeats, so that a control loop busy with many requests doesn't make this node look
  dead. But a node whose control loop hangs holds up every view change. So each look permits heartbeats for HANGING
  times the timeout only; without another look they stop then.
- A member that hangs on this host may go on at any moment, so it is accused only if a majority remains without it and
  all others that hang. Otherwise this node waits for it.
- A silent member on another host may hang, may have lost its power, or may be on the other side of a broken link and
  have gone on without this node. If its loss would cost the majority, this node waits for it, too, but only for one
  timeout more: a link that is back by then has cost nothing. Then this node gives up.
- A node that has lost its majority waits for one timeout: missing members may turn out to have ended for certain. Then
  it gives up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from spindle.membership.detector import Detector

if TYPE_CHECKING:
    from spindle.membership.machine import Machine

HANGING = 3  # times the timeout without a look: the control loop is not just busy


class Hearts(Protocol):
    """What a watch needs of an epoch."""

    @property
    def my_rank(self) -> int:
        """Rank of the own row."""

    @property
    def node_ids(self) -> Sequence[int]:
        """By rank."""

    def get(self, rank: int, column: str) -> int:
        """A column of anybody's row."""

    def vouch(self, between_ns: int, beats_max: int) -> None:
        """The own row may have up to `beats_max` heartbeats from now on, one every `between_ns`."""


class Watch:
    """The watch of one machine, over one epoch after the other. The driver calls `look()` every `wait_ns()`, and steps
    the machine after it."""

    def __init__(self, machine: Machine, timeout_ns: int) -> None:
        self._machine = machine
        self._detector = Detector(timeout_ns)
        self._hearts: Hearts | None = None
        self._minority_ns: int | None = None  # when this node lost its majority
        self.waited_for: dict[int, int] = {}  # node ids, by rank, that hang and can't be accused

    def installed(self, hearts: Hearts, now_ns: int, timeout_ns: int = 0) -> None:
        """A view is installed; `timeout_ns`: from now on another timeout, 0: as before."""
        if timeout_ns:
            self._detector.set_timeout(timeout_ns)
        self._hearts = hearts
        self.waited_for = {}
        self._minority_ns = None
        self._vouch(hearts)
        self._detector.restart(now_ns)

    @property
    def timeout_ns(self) -> int:
        """For so long a member may be silent."""
        return self._detector.timeout_ns

    @property
    def stalled(self) -> bool:
        """The last look came so late that it accused nobody: this node was stopped, or had no processor."""
        return self._detector.stalled

    def silent_ns(self, rank: int) -> int:
        """For how long the member of this rank has given no sign of life."""
        return self._detector.silent_ns(rank)

    def wait_ns(self) -> int:
        """Until the next look."""
        return self._detector.wait_ns()

    def look(self, now_ns: int) -> None:
        """One look at all hearts, and what follows from it. `now_ns`: of any clock that does not jump."""
        hearts, machine = self._hearts, self._machine
        assert hearts is not None
        self._vouch(hearts)
        others = [rank for rank in machine.live_ranks() if rank != hearts.my_rank]
        late = self._detector.late(now_ns, {rank: hearts.get(rank, "heartbeat") for rank in others})
        self.waited_for = self._accuse({rank: hearts.node_ids[rank] for rank in late}) if late else {}
        self._give_up_in_time(now_ns)

    def _vouch(self, hearts: Hearts) -> None:
        between_ns = self._detector.interval_ns
        hearts.vouch(between_ns, HANGING * self._detector.timeout_ns // between_ns)

    def _accuse(self, late: dict[int, int]) -> dict[int, int]:
        """Suspects those of these members (node ids by rank) that the machine's rules allow; returns the others."""
        machine = self._machine
        accused = machine.to_suspect(set(late.values()))
        for rank, node_id in sorted(late.items()):
            if node_id in accused:
                machine.suspect(node_id, f"it has given no sign of life for {self.silent_ns(rank) / 1e9:.2f} s")
        lost = [late[rank] for rank in sorted(self._detector.lost() & set(late)) if not machine.is_near(late[rank])]
        if lost:
            machine.give_up(lost)
        return {rank: node_id for rank, node_id in late.items() if node_id not in accused}

    def _give_up_in_time(self, now_ns: int) -> None:
        if not self._machine.in_minority or self._detector.stalled:
            self._minority_ns = None
        elif self._minority_ns is None:
            self._minority_ns = now_ns
        elif now_ns - self._minority_ns >= self._detector.timeout_ns:
            self._machine.give_up()
