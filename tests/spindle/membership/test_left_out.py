"""Goal: a view that can't be prepared, because two that live and talk can't exchange memory, holds up nobody for ever
(S39); who is left out follows from a rule, is told so, and everybody else goes on.

Method: the rule alone on small groups, then machines in plain memory with walls between some of them, in a random order
of events. Properties M1 to M5 are checked on what everybody installed.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.group.topics import TopicSpec
from spindle.group.view import Member, View
from spindle.membership import messages as m
from spindle.membership.left_out import left_out
from spindle.membership.machine import Phase
from tests.spindle.membership.fake_group import FakeGroup
from tests.spindle.membership.test_machine import assert_together, check_properties, start


def view_of(*node_ids: int) -> View:
    return View(7, 3, tuple(Member(node_id, 1, "") for node_id in node_ids))


def chosen(n: int, pairs: list[tuple[int, int]], joiners: tuple[int, ...] = ()) -> set[int]:
    """Who goes of nodes 1 to n (by rank) if those of each pair lack each other."""
    lacks: dict[int, dict[int, str]] = {}
    for one, other in pairs:
        lacks.setdefault(one, {})[other] = lacks.setdefault(other, {})[one] = "refused"
    unprepared = set(itertools.chain(*pairs))
    return set(left_out(view_of(*range(1, n + 1)), joiners, unprepared, lacks))


@pytest.mark.parametrize(("n", "pairs", "joiners", "gone"), [
    (2, [(2, 1)], (), {2}),  # among equals the higher rank
    (2, [(1, 2), (2, 1)], (), {2}),
    (3, [(1, 2), (1, 3)], (), {1}),  # who lacks all others, be it the leader
    (5, [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)], (), {1, 2}),  # the smaller side
    (5, [(4, 1), (4, 2), (4, 3), (5, 1), (5, 2), (5, 3)], (), {4, 5}),
    (3, [(1, 3)], (3,), {3}),
    (4, [(4, 1), (4, 2), (4, 3)], (4,), {4}),
    (3, [(2, 1), (2, 3)], (3,), {2, 3}),  # what a member lacks of another one isn't mended by a newcomer that goes
    (4, [(3, 1), (2, 4)], (3, 4), {3, 4}),
    (4, [(4, 3)], (3, 4), {4}),  # of two newcomers one
], ids=str)
def test_who_is_left_out(n: int, pairs: list[tuple[int, int]], joiners: tuple[int, ...], gone: set[int]) -> None:
    assert chosen(n, pairs, joiners) == gone


def test_a_newcomer_that_says_nothing_is_left_out_and_a_member_is_not() -> None:
    """Whether a member hangs is for its heartbeat to tell."""
    assert set(left_out(view_of(1, 2, 3), {3}, {2, 3}, {})) == {3}


def test_who_is_ready_and_says_that_it_lacks_others_is_not_believed() -> None:
    assert left_out(view_of(1, 2, 3), (), {1}, {3: {1: "x", 2: "x"}}) == {}
    assert left_out(view_of(1, 2, 3), (), {1, 3}, {3: {9: "x"}, 8: {1: "x"}}) == {}


@given(st.integers(2, 7), st.data())
def test_whoever_stays_lacks_nobody_and_no_member_goes_for_a_newcomer(n: int, data: st.DataObject) -> None:
    ranks = st.integers(1, n)
    pairs = data.draw(st.lists(st.tuples(ranks, ranks).filter(lambda pair: pair[0] != pair[1]), max_size=12))
    joiners = tuple(range(data.draw(st.integers(2, n + 1)), n + 1))
    gone = chosen(n, pairs, joiners)
    assert all({one, other} & gone for one, other in pairs)
    of_members = [pair for pair in pairs if not set(pair) & set(joiners)]
    assert {one for one in gone if one not in joiners} <= set(itertools.chain(*of_members))


# ---- machines


def change(group: FakeGroup, node_id: int, name: str = "t") -> None:
    """A change that needs memory."""
    group.declare(node_id, TopicSpec(name))
    group.nodes[node_id].machine.take_role(m.Role(name, True, False))
    group.drive(group.nodes[node_id])
    group.run()


@pytest.mark.parametrize(("wall", "stops"), [({2, 3}, 3), ({1, 3}, 3), ({1, 2}, 2)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_of_two_members_that_cannot_exchange_memory_one_stops(wall: set[int], stops: int, shared: bool) -> None:
    group = FakeGroup(11, shared=shared)
    start(group, 3)
    group.walls.add(frozenset(wall))
    change(group, 1)
    failed = group.nodes[stops].failed
    assert failed is not None and failed.kind == "CastOut" and "a wall" in failed.text and "left out" in failed.text
    assert_together(group)
    running = [node for node in group.nodes.values() if node.running]
    assert len(running) == 2 and all(node.views[-1].topic("t") for node in running)
    check_properties(group)


@pytest.mark.parametrize("silent", [1, 2])
def test_it_is_enough_if_one_of_two_says_that_it_lacks_the_other(silent: int) -> None:
    """A member may have mapped, or reached, another one that can't do the same."""
    group = FakeGroup(16)
    start(group, 3)
    group.walls.add(frozenset((1, 2)))
    group.nodes[silent].machine.lacks = lambda *_: None  # type: ignore[method-assign]
    change(group, 3)
    assert group.nodes[1].views[-1].node_ids == (1, 3) and group.nodes[2].failed is not None


def test_a_leader_that_reaches_nobody_stops_and_the_others_go_on() -> None:
    group = FakeGroup(12)
    start(group, 3)
    group.walls |= {frozenset((1, 2)), frozenset((1, 3))}
    change(group, 2)
    assert group.nodes[1].failed is not None
    assert_together(group)
    assert group.nodes[2].views[-1].node_ids == (2, 3) and group.nodes[3].views[-1].topic("t")


def test_a_newcomer_that_reaches_not_all_is_told_whom() -> None:
    group = FakeGroup(13)
    start(group, 3)
    group.walls.add(frozenset((2, 4)))
    group.start(4)
    group.run()
    failed = group.nodes[4].failed
    assert failed is not None and failed.kind == "JoinFailed" and "node 4 lacks node 2: a wall" in failed.text
    assert_together(group)
    change(group, 3)
    assert all(group.nodes[node_id].views[-1].topic("t") for node_id in (1, 2, 3))


def test_a_member_that_is_told_to_stop_and_does_not_is_suspected() -> None:
    group = FakeGroup(14)
    start(group, 3)
    group.walls.add(frozenset((2, 3)))
    group.nodes[3].machine._told_to_stop = lambda *_: None  # type: ignore[method-assign]
    change(group, 1)
    assert group.nodes[1].views[-1].node_ids == (1, 2) and group.nodes[1].views[-1].topic("t")
    assert group.nodes[3].failed is not None  # it has seen that it is suspected


def test_only_the_leader_may_tell_a_member_to_stop_and_only_in_time() -> None:
    group = FakeGroup(15)
    start(group, 3)
    machine = group.nodes[3].machine
    for sender, ballot in ((2, machine.ballot), (1, 999), (1, 0)):
        machine.receive(sender, m.LeftOut(4, ballot, "go away"))
    group.run()
    assert machine.phase is Phase.STABLE
    group.walls.add(frozenset((1, 2)))
    group.nodes[1].machine.declare(TopicSpec("t"))
    group.nodes[1].machine.take_role(m.Role("t", True, False))
    group.drive(group.nodes[1])
    while machine.phase is not Phase.PREPARING:
        assert group.happen()
    machine.receive(2, m.LeftOut(4, machine.ballot, "go away"))
    assert machine.phase is Phase.PREPARING
    machine.receive(1, m.LeftOut(4, machine.ballot, "go away"))
    assert machine.phase is Phase.GONE


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), shared=st.booleans(), n=st.integers(2, 5), data=st.data())
def test_with_any_walls_the_group_comes_to_rest(seed: int, shared: bool, n: int, data: st.DataObject) -> None:
    """Walls between any, while nodes join and one may crash: whoever runs in the end is in one view, and at least one
    does if nobody crashed."""
    group = FakeGroup(seed, shared=shared)
    start(group, n)
    ids = st.integers(1, n + 2)
    for pair in data.draw(st.lists(st.sets(ids, min_size=2, max_size=2), max_size=4)):
        group.walls.add(frozenset(pair))
    for node_id in range(n + 1, n + 1 + data.draw(st.integers(0, 2))):
        group.start(node_id)
    group.declare(data.draw(st.integers(1, n)), TopicSpec("t"))
    for node in list(group.nodes.values()):
        group.drive(node)
    for _ in range(data.draw(st.integers(0, 30))):
        group.happen()
    crashes = data.draw(st.booleans())
    if crashes:
        group.crash(data.draw(st.integers(1, n)))
    group.run()
    members = [node for node in group.nodes.values() if node.running and node.views]
    assert crashes or members
    if members:  # else a newcomer waits for somebody to answer, as long as it is told to
        assert_together(group)
    check_properties(group)
