"""Goal: whatever crashes when, a restart loses nothing that was acknowledged as persisted, all go on with one sequence,
in a rising order; and when all nodes are back and nothing fails any more, the topic goes on.
Method: hypothesis drives the model of a group (model.py) through random faults; the checks are in the model. What a
restart must not do before somebody else has done his part is also shown step by step."""

from __future__ import annotations

import dataclasses
import random
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spindle.restart import chain
from spindle.restart.chain import NOTHING, Holders, Life, Standing, Successor, Summary
from spindle.restart.restorer import Ask, Fill, Record, Restorer, Settle, Step
from tests.spindle.restart.model import World

HELD = Standing((Life("c.0", 0),), Holders(0, (1, 2, 3)), whole=True, seen_view=4)


def step(world: World, faults: bool) -> None:
    rng, nodes = world.rng, world.nodes
    down = [one for one in nodes if not nodes[one].up]
    running = list(world.ranks)
    outside = [one for one in running if not nodes[one].member]
    members = list(world.members)
    what = rng.random()
    if what < 0.25:
        world.deliver()
    elif what < 0.5 and members:
        world.fill(rng.choice(members))
    elif what < 0.62:
        for _ in range(rng.randint(1, 3)):
            world.write()
    elif what < 0.75 and members:
        world.sync(rng.choice(members), rng.randint(1, 5))
    elif what < 0.85 and down:
        one = rng.choice(down)
        nodes[one].up = True
        world.change([*running, one])
    elif what < 0.92 and outside:
        world.change(running, joining=set(rng.sample(outside, rng.randint(1, len(outside)))))
    elif faults and what < 0.94 and running:
        world.crash({rng.choice(running)})
    elif faults and what < 0.95 and members:
        world.change(running, leaving={rng.choice(members)})
    elif faults and what < 0.955 and running:
        world.crash(set(running))
    elif faults and what < 0.965 and running:
        if members:
            world.change(running, leaving=set(members))
        world.declare_anew()


def bring_back(world: World) -> None:
    for one, node in world.nodes.items():
        if not node.up:
            node.up = True
            world.change([*world.ranks, one])
    outside = {one for one in world.ranks if not world.nodes[one].member}
    if outside:
        world.change(list(world.ranks), joining=outside)
    for _ in range(4000):
        if all(node.whole for node in world.nodes.values()):
            return
        world.deliver()
        for one in world.members:
            world.fill(one)
    raise AssertionError({one: (node.standing, node.whole, node.restorer and node.restorer.awaiting())
                          for one, node in world.nodes.items()})


@pytest.mark.parametrize("mode", ["majority", "all", "any"])
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 1 << 48), count=st.integers(1, 5), steps=st.integers(20, 400),
       lives_max=st.sampled_from((2, 3, chain.LIVES_MAX)))
@example(seed=336795984, count=5, steps=45, lives_max=chain.LIVES_MAX)
def test_nothing_acknowledged_is_lost_and_nothing_given_up_comes_back(
        mode: str, seed: int, count: int, steps: int, lives_max: int) -> None:
    world = World(count, random.Random(seed), mode)
    with patch.object(chain, "LIVES_MAX", lives_max):
        bring_back(world)  # every node knows that the topic exists: none begins it anew on its own
        for _ in range(steps):
            step(world, faults=True)
        bring_back(world)
        contents = [node.content for node in world.nodes.values()]
        assert all(content == contents[0] for content in contents)
        for _ in range(50):
            world.write()
            world.sync(world.rng.choice(world.members), 5)


def restarting() -> Restorer:
    """Node 1 of 1, 2, 3, which held the topic; 4 never did. All four are asked."""
    restorer = Restorer(1)
    restorer.begin("g", 9, (1, 2, 3, 4), (1, 2, 3))
    assert restorer.take_actions() == [Ask(node_id, 9) for node_id in (1, 2, 3, 4)]
    return restorer


def test_nobody_goes_on_before_all_have_written_down_who_does() -> None:
    """The end of the longest journal is taken over; then everybody who can keep a journal writes down the new holders,
    whether it is a member or not, and only after the last of them does the topic go on."""
    restorer = restarting()
    for node_id, end in ((1, (4, 5)), (2, (4, 7)), (3, (4, 6))):
        restorer.heard(node_id, 9, Summary(HELD, (0, 0), end, 3))
    restorer.heard(4, 9, Summary())
    fill, = restorer.take_actions()
    assert isinstance(fill, Fill) and (fill.decision.source, fill.decision.end) == (2, (4, 7))
    restorer.filled(9)
    records = restorer.take_actions()
    assert [(one.node_id, one.successor.holders) for one in records if isinstance(one, Record)] == [
        (node_id, Holders(9, (1, 2, 3))) for node_id in (2, 3, 4)]
    assert all(isinstance(one, Record) and set(one.successor.required) == {1, 2, 3, 4} for one in records)
    for node_id in (2, 4):
        restorer.recorded(node_id, 9)
        assert restorer.step is Step.RECORDING and not restorer.take_actions()
    restorer.recorded(3, 8)  # of an earlier view
    assert restorer.step is Step.RECORDING and not restorer.take_actions()
    restorer.recorded(3, 9)
    settle, = restorer.take_actions()
    assert isinstance(settle, Settle) and settle.standing.holders == Holders(9, (1, 2, 3)) and settle.standing.whole


def test_answers_to_questions_of_an_earlier_view_are_ignored() -> None:
    """What a node said before the view changed may not be so any more: it may have died, and come back with less."""
    restorer = restarting()
    restorer.begin("g", 10, (1, 2, 3), (1, 2, 3))
    restorer.take_actions()
    restorer.heard(1, 10, Summary(HELD, (0, 0), (4, 5), 3))
    restorer.heard(3, 10, Summary(HELD, NOTHING, NOTHING, problem="damaged"))
    restorer.heard(2, 9, Summary(HELD, (0, 0), (4, 7), 3))
    assert restorer.step is Step.ASKING and not restorer.take_actions()
    restorer.heard(2, 10, Summary(HELD, NOTHING, NOTHING, problem="gone"))
    assert restorer.step is Step.WAITING and not restorer.take_actions()


def test_what_is_given_up_counts_until_all_know_that_it_is() -> None:
    """A topic that was declared anew: what is on disk stays until the new holders are written down everywhere. Else, if
    all died then, too few would have what a majority has acknowledged."""
    restorer = Restorer(1)
    restorer.begin("a", 9, (1, 2), (1, 2), renewed_since=7)
    restorer.take_actions()
    for node_id in (1, 2):
        restorer.heard(node_id, 9, Summary(dataclasses.replace(HELD, holders=Holders(0, (1, 2))), (0, 0), (4, 5), 3))
    record, = restorer.take_actions()
    assert isinstance(record, Record) and record.successor == Successor(
        Holders(9, (1, 2)), (1, 2), renews=True)
    restorer.recorded(2, 9)
    settle, = restorer.take_actions()
    assert settle == Settle(Standing((Life("a.9", 9),), Holders(9, (1, 2)), whole=True, seen_view=9), renews=True)
