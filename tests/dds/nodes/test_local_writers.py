"""Goal: what a program may spend on waiting for its own writes is bounded where they don't come, and not used up by a
busy machine where they do."""

from __future__ import annotations

import time

import pytest

from dds.nodes.local_writers import MOMENT_S, Budget


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def test_what_was_waited_for_in_vain_is_spent_and_time_brings_it_back(clock: Clock) -> None:
    budget = Budget(0.02, 0.005)
    assert budget.spend(0.015) == 0.015
    assert budget.left_s() == pytest.approx(0.005)
    budget.spend(0.01)
    assert budget.left_s() < 0
    clock.now += 2.0
    assert budget.left_s() == pytest.approx(0.005)
    clock.now += 100.0
    assert budget.left_s() == 0.02


def test_a_wait_that_brings_all_costs_a_moment_however_long_it_took(clock: Clock) -> None:
    budget = Budget(0.02, 0.005)
    for _ in range(50):
        budget.spend_a_moment(budget.spend(0.003))
    assert budget.left_s() == pytest.approx(0.02 - 50 * MOMENT_S)
    budget.spend_a_moment(budget.spend(0.00005))  # less than that costs what it took
    assert budget.left_s() == pytest.approx(0.02 - 50 * MOMENT_S - 0.00005)
