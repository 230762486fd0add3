"""Goal: who hangs is accused if a majority remains, else waited for; who is cut off or in a minority gives up in time.

Method: a watch over three made-up rows, of which ours is rank 0, in virtual time: one step is one look.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from spindle.membership.detector import BEATS_PER_TIMEOUT, LOST
from spindle.membership.watch import HANGING, Watch

TIMEOUT_NS = 100_000_000


class MadeUp:
    """Machine and hearts in one. Rank 1 is lively, rank 2 beats when it is told to."""

    my_rank, node_ids = 0, (10, 11, 12)

    def __init__(self) -> None:
        self.may, self.near, self.in_minority, self.gave_up = True, True, False, False
        self.beats, self.suspected, self.lost = [0, 0, 0], [], list[int]()
        self.now_ns = 1
        machine: Any = self
        self.watch = Watch(machine, TIMEOUT_NS)
        self.watch.installed(self, self.now_ns)

    def live_ranks(self) -> list[int]:
        return [rank for rank, node_id in enumerate(self.node_ids) if node_id not in self.suspected]

    def is_near(self, node_id: int) -> bool:
        return self.near

    def to_suspect(self, late: set[int]) -> set[int]:
        return late if self.may else set()

    def suspect(self, node_id: int, why: str) -> None:
        assert "no sign of life" in why
        self.suspected.append(node_id)

    def give_up(self, silent: Collection[int] = ()) -> None:
        self.gave_up, self.lost = True, list(silent)

    def get(self, rank: int, column: str) -> int:
        assert column == "heartbeat"
        return self.beats[rank]

    def vouch(self, between_ns: int, beats_max: int) -> None:
        assert between_ns * BEATS_PER_TIMEOUT == TIMEOUT_NS and beats_max == HANGING * BEATS_PER_TIMEOUT
        self.beats[0] += 1

    def go_on(self, timeouts: float) -> None:
        """So many timeouts pass, and each look is in time."""
        end_ns = self.now_ns + int(timeouts * TIMEOUT_NS)
        while self.now_ns < end_ns:
            self.now_ns += self.watch.wait_ns()
            self.beats[1] += 1
            self.watch.look(self.now_ns)


@pytest.fixture
def group() -> MadeUp:
    return MadeUp()


def test_who_is_silent_is_accused_and_nobody_else(group: MadeUp) -> None:
    group.go_on(0.9)
    assert not group.suspected and group.beats[0] > 10
    group.go_on(0.2)
    assert group.suspected == [12] and not group.watch.waited_for
    group.go_on(3)
    assert group.suspected == [12] and not group.gave_up


def test_without_a_majority_to_remain_it_waits(group: MadeUp) -> None:
    group.may = False
    group.go_on(5)
    assert not group.suspected and not group.gave_up and group.watch.waited_for == {2: 12}
    group.beats[2] += 1
    group.go_on(0.1)
    assert not group.watch.waited_for


def test_who_is_cut_off_waits_as_long_again_and_gives_up(group: MadeUp) -> None:
    group.may = group.near = False
    group.go_on(LOST - 0.2)
    group.beats[2] += 1
    group.go_on(LOST - 0.2)
    assert not group.gave_up
    group.go_on(0.4)
    assert group.gave_up and group.lost == [12] and not group.suspected


def test_a_minority_gives_up_after_the_timeout_unless_it_ends(group: MadeUp) -> None:
    group.beats[2] = -1
    group.in_minority = True
    group.go_on(0.5)
    group.in_minority = False
    group.go_on(0.1)
    group.in_minority = True
    group.go_on(0.9)
    assert not group.gave_up
    group.go_on(0.3)
    assert group.gave_up and not group.lost


def test_after_a_stall_of_its_own_it_accuses_nobody(group: MadeUp) -> None:
    group.in_minority = True
    group.go_on(0.8)
    group.now_ns += 50 * TIMEOUT_NS
    group.watch.look(group.now_ns)
    assert group.watch.stalled and not group.suspected and not group.gave_up
    group.go_on(0.8)
    assert not group.suspected and not group.gave_up


def test_another_timeout_counts_from_the_next_view(group: MadeUp) -> None:
    group.vouch = lambda between_ns, beats_max: None  # type: ignore[method-assign]
    group.watch.installed(group, group.now_ns, 4 * TIMEOUT_NS)
    group.go_on(3)
    assert not group.suspected
    group.go_on(2)
    assert group.suspected == [12]
