"""Exhaustive simulation: the smallest groups in every order of their steps.

The whole of it is `spindle sim --exhaustive`; here only what takes seconds, and that it would find something.
"""

from __future__ import annotations

import pytest

from spindle.membership import rules
from spindle.membership.trim import least_frozen
from spindle.sim.exhaustive import CASES, Case, Explorer, begin
from spindle.sim.states import world_state


def test_two_messages_in_every_order():
    """Without faults: all states, and in each end everybody has delivered both messages."""
    result = Explorer(Case("one message each way", nodes=2)).run()
    assert not result.broken and result.complete
    assert result.states > 50 and result.ends > 0


def test_the_same_beginning_is_the_same_state():
    """A state holds no address, time or counter: two worlds that begin alike are in the same."""
    worlds = [begin(CASES[0]) for _ in range(2)]
    assert world_state(worlds[0]) == world_state(worlds[1])
    for world in worlds:
        world.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_states_of_each_case(case):
    """Each case runs, and breaks nothing, as far as a second or two go."""
    result = Explorer(case, 60).run()
    assert not result.broken


def test_a_wrong_trim_is_found(monkeypatch):
    """A leader that trims to one less than the least frozen count is caught: a message was delivered, and is lost."""
    monkeypatch.setattr(rules, "least_frozen", _one_less)
    assert Explorer(Case("wrong trim", "crash", 2, (0,)), 20_000).run().broken


def _one_less(view, table, live):
    return {topic_id: tuple(max(0, count - 1) for count in counts)
            for topic_id, counts in least_frozen(view, table, live).items()}
