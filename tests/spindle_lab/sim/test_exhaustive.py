"""Goal: every run there is of the smallest groups holds every promise, and a mistake would be found.

Method: the smallest cases whole, the first states of the others, and a planted mistake in the trim. All
cases whole are `spindle sim --exhaustive`, which takes a while.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from spindle.membership import rules
from spindle.membership.trim import least_frozen
from spindle_lab.sim import exhaustive
from spindle_lab.sim.cli import sim
from spindle_lab.sim.exhaustive import CASES, Case, Explorer, begin
from spindle_lab.sim.states import world_state

SMALL = CASES[:3]  # two nodes, nothing changes or one of them crashes


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_two_nodes_in_every_order(case):
    """All states; in each end those that run are in a view and have everything."""
    result = Explorer(case).run()
    assert not result.broken and result.complete
    assert result.states > 100 and result.ends > 1 and (result.views > 1) is bool(case.fault)


def test_the_same_beginning_is_the_same_state():
    """A state holds no address, time or counter: two worlds that begin alike are in the same."""
    worlds = [begin(CASES[0]) for _ in range(2)]
    assert world_state(worlds[0]) == world_state(worlds[1])
    for world in worlds:
        world.close()


@pytest.mark.parametrize("case", CASES[3:], ids=lambda case: case.name)
def test_the_first_states_of_each_case(case):
    """Each case runs, and breaks nothing, as far as a fraction of a second goes."""
    result = Explorer(case, 40).run()
    assert not result.broken


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_wrong_trim_is_found(nodes, monkeypatch):
    """A leader that trims to one less than the least frozen count is caught: a message was delivered, and is lost."""
    monkeypatch.setattr(rules, "least_frozen", _one_less)
    result = Explorer(Case("wrong trim", "crash", nodes - 1, (0,), nodes), 2000).run()
    assert result.broken.startswith("T2") and result.events


def test_the_command_says_states_and_runs(monkeypatch):
    """One case by way of the command, cut short and whole."""
    monkeypatch.setattr(exhaustive, "CASES", CASES[:1])
    for arguments, words in (["--states", "20"], "not all followed"), ([], "153 states in 223 runs"):
        done = CliRunner().invoke(sim, ["--exhaustive", "--jobs", "1", *arguments], standalone_mode=False)
        assert done.return_value == 0 and words in done.output and "1 cases" in done.output


def _one_less(view, table, live):
    return {topic_id: tuple(max(0, count - 1) for count in counts)
            for topic_id, counts in least_frozen(view, table, live).items()}
