"""The end of a run: the faults stop, and everything that was promised must happen within a bounded number of rounds.

Some seeds stop a minority of the nodes for ever first: the core that remains must find a view of its own. Nodes that
have nothing to do sleep, and go on only when they are rung, so that a lost ring is a failure here and not a delay.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from spindle.membership.machine import Phase
from spindle_lab.sim import events as e

if TYPE_CHECKING:
    from spindle_lab.sim.node import Life
    from spindle_lab.sim.world import World

ROUNDS_MAX = 3000
TICK_NS = 6_000_000  # a little more than the detector's interval
BUSY_ROUNDS = 20  # after which time goes on although something always happens, such as attempts to connect
QUIET_ROUNDS = 2  # in which nothing happened: then all is said
SILENT_ROUNDS = 3
APART_ROUNDS = 60


def settle(world: World, seed: int) -> None:
    """Raises Violation if the run doesn't end as it must."""
    rng = random.Random(seed)
    if world.side:
        _live_apart(world, rng)
    _heal(world)
    if not world.running():
        world.apply((e.START, 1))
    frozen = _freeze(world, rng)
    rounds = quiet = 0
    while rounds < ROUNDS_MAX:
        rounds += 1
        if frozen and world.causes:  # a running node was accused after all: now no majority is promised any more
            frozen = False
            for life in world.running():
                world.apply((e.RESUME, life.node_id))
        settled = _is_settled(world, _core(world))
        active = _round(world, _core(world), rng)
        if not settled and (not active or rounds % BUSY_ROUNDS == 0):
            _time_passes(world, _core(world))
        quiet = 0 if active or not settled else quiet + 1
        if quiet == QUIET_ROUNDS:
            break
    core = _core(world)
    if not core:
        world.hit("nobody was left")
        return
    world.hit("settled without some" if frozen else "settled")
    if rounds == ROUNDS_MAX:
        waits = "; ".join(f"{life} {life.state()} awaits {life.machine.awaiting()!r}" for life in core)
        world.check.violated("L1", f"not settled after {rounds} rounds: {waits}")
    world.check.settled(core)
    _silence(world, core, rng)


def _core(world: World) -> list[Life]:
    return [life for life in world.running() if not life.paused]


def _live_apart(world: World, rng: random.Random) -> None:
    """A partition that is there at the end lasts long enough for one side to go on and the other to stop."""
    for _ in range(APART_ROUNDS):
        _round(world, _core(world), rng)
        _time_passes(world, _core(world))


def _heal(world: World) -> None:
    """No fault stays, every writer has something to say once more, and every reader reads."""
    world.apply((e.PART, 0))
    for life in world.running():
        world.apply((e.RESUME, life.node_id))
        for other in world.running():
            world.apply((e.UNCLOG, life.node_id, other.node_id))
        for topic in range(len(world.setup.topics)):
            world.apply((e.SLOW, life.node_id, topic, 0))
            world.apply((e.CLAIM, life.node_id, topic, 2))
            world.apply((e.FILL, life.node_id, topic))
            world.apply((e.WRITE, life.node_id, topic, 2, 8))


def _freeze(world: World, rng: random.Random) -> bool:
    """Stops some nodes for ever, if a majority of every view concerned remains and nobody was accused falsely."""
    if world.causes or rng.random() < 0.5:
        return False
    lives = world.running()
    rng.shuffle(lives)
    frozen: set[int] = set()
    for life in lives:
        if rng.random() < 0.4 and _majority_without(world, {*frozen, life.number}):
            frozen.add(life.number)
    for life in lives:
        if life.number in frozen:
            world.apply((e.PAUSE, life.node_id))
    return bool(frozen)


def _majority_without(world: World, frozen: set[int]) -> bool:
    for life in world.running():
        for view in (life.view, life.machine.next_view):
            if view is None:
                continue
            staying = [
                one for one in map(world.life_of, view.members)
                if one.running and one.number not in frozen and not one.machine.leaving]
            if 2 * len(staying) <= len(view.members):
                return False
    return True


def _round(world: World, core: list[Life], rng: random.Random) -> bool:
    """Everybody's turn, in any order; True if anything happened that more may follow from."""
    active = world.apply((e.LAND, 0, 0, 0))
    rng.shuffle(core)
    for life in core:
        active = world.apply((e.TURN, life.node_id)) or active
        if life.running and not life.busy:
            if not life.asleep and not world.apply((e.SLEEP, life.node_id)):
                active = True
        if life.running and life.machine.phase is Phase.OUTSIDE:
            world.apply((e.SCAN, life.node_id))
    return active


def _time_passes(world: World, core: list[Life]) -> None:
    world.apply((e.TICK, TICK_NS))
    for life in core:
        world.apply((e.LOOK, life.node_id))


def _is_settled(world: World, core: list[Life]) -> bool:
    if not core:
        return True
    view = core[0].view
    if view is None or set(view.members) != {life.me for life in core}:
        return False
    return all(
        life.view == view and life.machine.phase is Phase.STABLE and not life.busy and not life.incoming()
        and not life.machine.leaving and not life.machine.in_minority for life in core)


def _silence(world: World, core: list[Life], rng: random.Random) -> None:
    """N2: when nothing is written any more, nothing is pushed any more."""
    before = [world.fabric.pushes(life) for life in core]
    for _ in range(SILENT_ROUNDS):
        _round(world, list(core), rng)
    after = [world.fabric.pushes(life) for life in core]
    world.check.require(before == after, "N2", f"pushes went on when all was said: {before}, {after}")
