"""How long a view may take to prepare: one that can't be prepared must not hold up later ones.

A node that waits in vain for another's memory tells the leader, and the leader then decides who is left out. This
module decides when; `Machine.lacks` and `Machine.leave_out` say how. Times are given, as in `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.group.view import Member
    from spindle.membership.machine import Machine

PREPARE_TIMEOUT_S = 5.0  # to exchange memory with everybody; then each says what it lacks
LACKS_WAIT_S = 1.0  # for these reports to reach the leader; then it decides who is left out


class Preparation:
    """Of one ballot after the other. The driver calls `look()` at `due_s`, and steps the machine after it.

    lacks(ballot)           node ids that this node still waits for, with what it knows of why
    timeout_s, lacks_wait_s 0: PREPARE_TIMEOUT_S, LACKS_WAIT_S
    """

    def __init__(self, machine: Machine, lacks: Callable[[int], Mapping[int, str]], timeout_s: float = 0.0,
                 lacks_wait_s: float = 0.0) -> None:
        self._machine, self._lacks = machine, lacks
        self._timeout_s, self._lacks_wait_s = timeout_s, lacks_wait_s
        self._ballot = 0
        self._again = False  # members were told before that they are left out
        self._told = False  # what this node lacks was told: the next look decides
        self.due_s: float | None = None  # of the next look; None: there is none

    def begins(self, ballot: int, now_s: float) -> None:
        """The driver carries out the Prepare of this ballot. Takes the place of the one before."""
        self._ballot, self._again, self._told = ballot, False, False
        self.due_s = now_s + (self._timeout_s or PREPARE_TIMEOUT_S)

    def look(self, now_s: float) -> tuple[Mapping[int, str], list[Member]]:
        """Returns what this node lacks, if it tells the leader now, and the joiners that this node, as the leader, has
        left out now: the driver ends their connections."""
        ballot = self._ballot
        if not self._told:
            self._told, self.due_s = True, now_s + (self._lacks_wait_s or LACKS_WAIT_S)
            lacks = self._lacks(ballot)
            if lacks:
                self._machine.lacks(ballot, lacks)
            return lacks, []
        joiners = self._machine.leave_out(ballot, self._again)
        self._again, self._told = True, False
        again_s = now_s + (self._timeout_s or PREPARE_TIMEOUT_S)
        self.due_s = again_s if self._machine.ballot == ballot else None
        return {}, joiners
