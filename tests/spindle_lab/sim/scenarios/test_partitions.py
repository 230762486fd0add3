"""Goal: hosts that don't reach each other never become two groups, and none waits for ever.

Method: copied rows, as between hosts; what a node pushes is held, so that all the others have of it is silence. What
goes over control connections is held by not letting the node have its turn.
"""

from __future__ import annotations

import itertools

from spindle_lab.sim import events as e
from tests.spindle_lab.sim.scenarios.script import Script

TIMEOUT_MS = 100  # of the simulated detector


def separate(run: Script, *sides: tuple[int, ...]) -> None:
    for here, there in itertools.permutations(sides, 2):
        for node in here:
            run.hold(node, *there)


def alone(run: Script, ms: int, *nodes: int) -> None:
    """Time passes, for these nodes only."""
    run.pass_time(ms, *nodes)


def test_a_node_that_is_cut_off_stops_though_its_connections_stay() -> None:
    """Setup: three hosts. Script: node 3 gets nothing any more, nor does anybody get anything of it. Expect: it neither
    goes on nor waits for ever, but stops for want of a majority; the two others go on. (Silent members without whom no
    majority remained were waited for until TCP gave their connections up.)"""
    run = Script(3, fabric="copied")
    separate(run, (1, 2), (3,))
    third = run.life(3)
    alone(run, 3 * TIMEOUT_MS, 3)
    assert third.end_kind == "NoMajority"
    run.pass_time(3 * TIMEOUT_MS, 1, 2)
    run.until(lambda: run.view(1).node_ids == run.view(2).node_ids == (1, 2))
    run.finish([1, 2])


def test_a_break_shorter_than_twice_the_timeout_costs_nobody_its_life() -> None:
    """Setup: three hosts. Script: all are alone for longer than the timeout, then the links are back. Expect: nobody
    has stopped or been accused, the view is the same."""
    run = Script(3, fabric="copied")
    separate(run, (1,), (2,), (3,))
    before = run.view(1)
    run.pass_time(3 * TIMEOUT_MS // 2)
    assert run.world.probes["may not suspect"]
    for source, target in itertools.permutations((1, 2, 3), 2):
        run.release(source, target)
    run.pass_time(3 * TIMEOUT_MS)
    assert run.view(1) == run.view(2) == run.view(3) == before
    run.finish([1, 2, 3])


def test_of_two_hosts_both_stop() -> None:
    """Setup: two hosts, and the link between them breaks. Expect: neither goes on, as either might."""
    run = Script(2, fabric="copied")
    separate(run, (1,), (2,))
    lives = [run.life(1), run.life(2)]
    for _ in range(3 * TIMEOUT_MS // 5):
        run.do(e.TICK, 5_000_000)
        for node in (1, 2):
            run.do(e.LOOK, node)  # and takes nothing of what the other says
    assert [life.end_kind for life in lives] == ["NoMajority"] * 2


def test_of_two_nodes_on_one_host_neither_stops() -> None:
    """Setup: two nodes that map each other's rows. Script: one is stopped for long. Expect: it is waited for."""
    run = Script(2)
    assert run.do(e.PAUSE, 2)
    alone(run, 5 * TIMEOUT_MS, 1)
    assert run.do(e.RESUME, 2)
    run.pass_time(TIMEOUT_MS)
    assert run.view(1).node_ids == (1, 2)
    run.finish([1, 2])


def test_who_is_not_heard_is_told_and_stops() -> None:
    """Setup: three hosts; the leader hears both others, and isn't heard. Expect: they go on without it, and it stops,
    as it reads that it is accused."""
    run = Script(3, fabric="copied")
    run.hold(1, 2, 3)
    first = run.life(1)
    run.pass_time(3 * TIMEOUT_MS)
    run.until(lambda: run.view(2).node_ids == run.view(3).node_ids == (2, 3), 2, 3)
    assert first.end_kind in ("CastOut", "NoMajority")
    run.finish([2, 3])


def test_who_hears_nobody_stops_and_the_others_go_on() -> None:
    """Setup: three hosts; node 2 hears nobody, and is heard by all. Script: time passes. Expect: the others accuse
    nobody, so all waits, but not for ever: node 2 gives up, says so, and they go on."""
    run = Script(3, fabric="copied")
    second = run.life(2)
    for node in (1, 3):
        run.hold(node, 2)
    run.pass_time(3 * TIMEOUT_MS)
    assert second.end_kind == "NoMajority"
    run.until(lambda: run.view(1).node_ids == run.view(3).node_ids == (1, 3), 1, 3)
    run.finish([1, 3])


def test_two_ends_of_a_chain_accuse_each_other_and_one_group_remains() -> None:
    """Setup: three hosts; 1 and 3 don't reach each other, 2 reaches both. Each end has a majority with the middle.
    Expect: the middle believes one of them, and the other one stops."""
    run = Script(3, fabric="copied")
    run.hold(1, 3)
    run.hold(3, 1)
    lives = [run.life(node) for node in (1, 2, 3)]
    run.pass_time(3 * TIMEOUT_MS)
    assert [life.end_kind for life in lives if life.end] == ["CastOut"]
    run.finish([life.node_id for life in lives if not life.end])


def test_a_ring_of_five_leaves_one_group_at_most() -> None:
    """Setup: five hosts, each of which reaches its two neighbours only: everybody sees a majority, nobody the same one.
    Expect: whoever is left at the end is of one group; then all come together again."""
    run = Script(5, fabric="copied")
    for one, other in itertools.permutations(range(5), 2):
        if (one - other) % 5 not in (1, 4):
            run.hold(one + 1, other + 1)
    lives = [run.life(node) for node in range(1, 6)]
    run.pass_time(8 * TIMEOUT_MS)
    assert len([life for life in lives if life.end]) >= 2
    assert len({life.view for life in lives if not life.end}) <= 1
    run.finish()


def test_a_partition_in_the_middle_of_a_view_change() -> None:
    """Setup: three hosts, one of which gives up its part in a topic. Script: at many points of the view change the
    leader is cut off. Expect: it stops, the others go on, and nothing is lost."""
    for moment in range(1, 40, 3):
        run = Script(3, fabric="copied", topics=2)
        run.write(2, 3)
        assert run.do(e.ROLE, 3, 1, 0)
        for _ in range(moment):
            for node in (3, 1, 2):
                run.do(e.CTL, node, 1)
                run.do(e.STEP, node)
                run.do(e.LAND, 0, 0, 1)
        separate(run, (1,), (2, 3))
        first = run.life(1)
        alone(run, 3 * TIMEOUT_MS, 1)
        assert first.end_kind == "NoMajority", moment
        run.pass_time(3 * TIMEOUT_MS, 2, 3)
        run.until(lambda run=run: run.view(2).node_ids == run.view(3).node_ids == (2, 3), 2, 3)  # type: ignore[misc]
        run.finish([2, 3])
