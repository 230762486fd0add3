"""Goal: whatever crashes when, a restart loses nothing that was acknowledged as persisted, all go on with one sequence,
in a rising order; and when all nodes are back and nothing fails any more, the topic goes on.
Method: hypothesis drives the model of a group (model.py) through random faults; the checks are in the model."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spindle.restart.model import World


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
@given(seed=st.integers(0, 1 << 48), count=st.integers(1, 5), steps=st.integers(20, 400))
def test_nothing_acknowledged_is_lost(mode: str, seed: int, count: int, steps: int) -> None:
    world = World(count, random.Random(seed), mode)
    bring_back(world)  # every node knows that the topic exists: none begins it anew on its own
    for _ in range(steps):
        step(world, faults=True)
    bring_back(world)
    contents = [node.content for node in world.nodes.values()]
    assert all(content == contents[0] for content in contents)
    for _ in range(50):
        world.write()
        world.sync(world.rng.choice(world.members), 5)
