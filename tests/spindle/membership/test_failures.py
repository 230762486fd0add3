"""Goal: members that crash, hang or are wrongly suspected never split the group nor stop the rest of it.

Method: as in test_machine.py, with faults at random points, on rows that are shared (one host: ends are certain) and on
rows whose pushes land late. After every run: one chain of views (M3 to M5), one trim per view and never beyond what a
survivor has (T1, T3), nobody stopped but for a reason, and the rest together and at rest.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.membership import messages as m
from spindle.membership.machine import Phase
from tests.spindle.membership.fake_group import FakeGroup, FakeNode, in_memory
from tests.spindle.membership.test_machine import assert_together, start


def everybody(group: FakeGroup) -> list[FakeNode]:
    return [*group.nodes.values(), *group.former]


def check(group: FakeGroup) -> None:
    """M1, M3, M5, T1, T3, and no defect: whoever stopped was cast out or in a minority."""
    agreed: dict[int, object] = {}
    trims: dict[int, object] = {}
    for node in everybody(group):
        ids = [view.view_id for view in node.views]
        assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True
        for view in node.views:
            assert view.rank_of(node.node_id) is not None
            assert agreed.setdefault(view.view_id, in_memory(view)) == in_memory(view)
        for view_id, trim in node.trims.items():
            assert trims.setdefault(view_id, trim) == trim
            for topic_id, counts in node.frozen[view_id].items():
                assert all(a <= b for a, b in zip(trim.get(topic_id, ()), counts, strict=False))
        assert node.failed is None or node.failed.kind in ("CastOut", "NoMajority"), node.failed


def busy(group: FakeGroup, count: int) -> None:
    """So many members, with a topic that all send in."""
    start(group, count)
    for node in group.nodes.values():
        node.machine.declare(TopicSpec("t", level=Level.VOLATILE))
        node.machine.take_role(m.Role("t", True, True))
        group.drive(node)
    group.run()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_survivors_of_a_crash_go_on(victim: int, shared: bool) -> None:
    group = FakeGroup(11, shared)
    busy(group, 3)
    group.crash(victim)
    group.run()
    check(group)
    assert_together(group)
    assert not any(node.failed for node in group.nodes.values())


def test_two_of_five_at_once() -> None:
    group = FakeGroup(12)
    busy(group, 5)
    group.crash(1)
    group.crash(4)
    group.run()
    check(group)
    assert_together(group)
    assert group.nodes[2].views[-1].node_ids == (2, 3, 5)


def test_the_last_one_goes_on_where_ends_are_certain() -> None:
    """Of four members two, then one more crash at once: on one host nobody can be elsewhere."""
    group = FakeGroup(13, shared=True)
    busy(group, 4)
    for victims in ((1, 3), (4,)):
        for victim in victims:
            group.crash(victim)
        group.run()
        check(group)
        assert_together(group)
    assert group.nodes[2].views[-1].node_ids == (2,)


def test_a_minority_stops_where_they_are_not() -> None:
    group = FakeGroup(14)
    busy(group, 4)
    group.crash(1)
    group.crash(3)
    group.run()
    check(group)
    for node_id in (2, 4):
        failed = group.nodes[node_id].failed
        assert failed is not None and failed.kind == "NoMajority" and "of 4 members" in failed.text


@pytest.mark.parametrize("shared", [True, False])
def test_a_hung_member_is_cast_out_and_says_so(shared: bool) -> None:
    group = FakeGroup(15, shared)
    busy(group, 3)
    group.nodes[1].paused = True
    group.suspect(2, 1)
    group.run()
    assert group.nodes[3].views[-1].node_ids == (2, 3)
    group.nodes[1].paused = False
    if not shared:  # in this group nothing lands any more at who is cut off: its connections say it
        group.nodes[1].machine.give_up()
    group.drive(group.nodes[1])
    group.run()
    check(group)
    failed = group.nodes[1].failed
    assert failed is not None and failed.kind in ("CastOut", "NoMajority")


def test_an_accused_majority_is_not_told_of_it() -> None:
    """Of two that accuse each other one stops. A member that suspects all others stops, and accuses nobody."""
    group = FakeGroup(16, shared=True)
    busy(group, 3)
    group.suspect(2, 1)
    group.run()
    assert [group.nodes[node_id].failed is not None for node_id in (1, 2)].count(True) == 1
    group = FakeGroup(16, shared=True)
    busy(group, 5)
    for other in (1, 3, 4):
        group.nodes[2].machine.suspect(other, "it is silent")
    assert group.nodes[2].machine.in_minority
    row = group.nodes[2].table
    assert row is not None and bin(row.get(row.my_rank, "suspected0")).count("1") <= 2


def test_a_restarted_member_waits_for_its_former_life_to_be_gone() -> None:
    group = FakeGroup(17)
    busy(group, 3)
    group.crash(2)
    group.start(2)
    group.run()
    check(group)
    assert group.nodes[1].views[-1].node_ids == (1, 3, 2)
    assert group.nodes[1].views[-1].members[2].life == group.nodes[2].life
    assert_together(group)


FAULTS = st.lists(
    st.tuples(st.sampled_from(["start", "leave", "crash", "pause", "resume", "suspect", "role", "idle"]),
              st.integers(1, 6), st.integers(0, 11), st.integers(1, 6)),
    min_size=1, max_size=12)


# Two members end during a change, and one of them had left in order without this node, which ends for that: the other
# one's end then finds nothing to take it out of.
@example(seed=27884, shared=True, members=5, faults=[
    ("start", 6, 11, 1), ("role", 2, 6, 1), ("start", 1, 1, 1), ("start", 1, 1, 1), ("pause", 6, 5, 1),
    ("start", 1, 11, 1), ("crash", 5, 3, 1), ("start", 1, 9, 1), ("leave", 1, 6, 1)])
@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), shared=st.booleans(), members=st.integers(2, 5), faults=FAULTS)
def test_any_mix_of_faults(seed: int, shared: bool, members: int, faults: list[tuple[str, int, int, int]]) -> None:
    """Whatever crashes, hangs, is suspected, joins and leaves, and in whatever order things land."""
    group = FakeGroup(seed, shared)
    busy(group, members)
    for kind, node_id, number, other in faults:
        node = group.nodes.get(node_id)
        inside = [one for one in group.nodes.values() if one.running and one.views and not one.machine.leaving]
        if kind == "start" and inside and (node is None or not node.running):
            group.start(node_id)
        elif node is None or not node.running:
            pass
        elif kind == "leave" and len(inside) > 1 and not node.paused:
            node.machine.leave()
            group.drive(node)
        elif kind == "crash" and len(inside) > 1:
            group.crash(node_id)
        elif kind == "pause":
            node.paused = True
        elif kind == "resume":
            node.paused = False
            group.drive(node)
        elif kind == "suspect" and other in group.nodes and other != node_id:
            group.suspect(node_id, other)
        elif kind == "role" and node.views and not node.paused:
            node.machine.take_role(m.Role("t", bool(number & 1), False))
            group.drive(node)
        for _ in range(number):
            group.happen()
        check(group)
    for node in list(group.nodes.values()):  # who hangs still is taken for dead by all others
        if node.paused and node.running:
            for one in group.nodes.values():
                group.suspect(one.node_id, node.node_id)
    group.run()
    for node in group.nodes.values():
        node.paused = False
        group.drive(node)
    group.run()
    check(group)
    running = [node for node in group.nodes.values() if node.running and node.views]
    for node in running:
        assert node.machine.phase is Phase.STABLE, (node.node_id, node.machine.phase, node.machine.awaiting())
        assert node.views[-1] == running[0].views[-1]
        assert set(node.views[-1].node_ids) == {one.node_id for one in running}


def declaring(seed: int) -> FakeGroup:
    """Three members at rest, and a declaration that the leader has just been asked for."""
    group = FakeGroup(seed)
    busy(group, 3)
    group.declare(1, TopicSpec("more"))
    group.drive(group.nodes[1])
    return group


@pytest.mark.parametrize("seed", range(12))
def test_a_revision_that_one_survivor_has_taken_is_taken_by_all(seed: int) -> None:
    """The leader dies when one of the others has taken a revision of the view, and one hasn't: who leads next finds
    that, and nothing of it is lost, or had otherwise by two."""
    group = declaring(seed)

    def taken() -> list[int]:
        return [node_id for node_id in (2, 3) if group.nodes[node_id].views[-1].topic("more") is not None]

    while not taken():
        assert group.happen()
    one = taken()
    group.crash(1)
    group.declare(2, TopicSpec("another"))
    group.drive(group.nodes[2])
    group.run()
    check(group)
    assert len(one) == 1 and taken() == [2, 3]
    assert group.nodes[2].views[-1] == group.nodes[3].views[-1]
    assert [topic.spec.name for topic in group.nodes[2].views[-1].topics] == ["t", "more", "another"]


@pytest.mark.parametrize("seed", range(12))
def test_a_revision_that_only_the_leader_has_taken_is_taken_by_all_when_it_dies(seed: int) -> None:
    """Its programs may have been told that the topic is there."""
    group = declaring(seed)

    def taken() -> list[int]:
        return [node_id for node_id, node in group.nodes.items() if node.views[-1].topic("more") is not None]

    while not taken():
        assert group.happen()
    assert taken() == [1]
    group.crash(1)
    group.declare(2, TopicSpec("another"))
    group.drive(group.nodes[2])
    group.run()
    check(group)
    assert [topic.spec.name for topic in group.nodes[2].views[-1].topics] == ["t", "more", "another"]


def test_a_revision_in_whose_place_its_leader_proposed_another_view_is_taken_by_none() -> None:
    """A member dies before it has acknowledged a revision, so the leader proposes a view without it instead, and dies,
    too. Of the survivors one has acknowledged that view, the one that leads next only the revision."""
    met = 0
    for seed in range(60):
        group = FakeGroup(seed)
        busy(group, 5)
        group.declare(1, TopicSpec("more"))
        group.drive(group.nodes[1])
        group.crash(5)
        second, others = group.nodes[2], (group.nodes[3], group.nodes[4])

        def overtaken(node: FakeNode, second: FakeNode = second) -> bool:
            view = node.machine.next_view
            return view is not None and view.view_id > second.views[-1].view_id and node.views[-1].revision == 0

        def stands(second: FakeNode = second, others: tuple[FakeNode, ...] = others) -> bool:
            mine = second.machine.next_view
            return mine is not None and mine.revises(second.views[-1]) and any(map(overtaken, others))

        while not stands() and group.happen():
            pass
        if not stands():
            continue
        met += 1
        group.crash(1)
        group.declare(2, TopicSpec("another"))
        group.drive(second)
        group.run()
        check(group)
        assert second.views[-1] == others[0].views[-1] == others[1].views[-1]
        assert {topic.spec.name for topic in second.views[-1].topics} >= {"t", "another"}
    assert met > 5


@pytest.mark.parametrize("seed", range(12))
def test_a_revision_that_one_survivor_has_not_acknowledged_is_taken_by_none_or_all(seed: int) -> None:
    """The next leader has acknowledged it before the last one died, the other survivor has not: nobody took it."""
    group = declaring(seed)
    second, third = group.nodes[2], group.nodes[3]
    while second.machine.phase is not Phase.ACKNOWLEDGED and third.machine.phase is not Phase.ACKNOWLEDGED:
        assert group.happen()
    group.crash(1)
    group.declare(3, TopicSpec("another"))
    group.drive(third)
    group.run()
    check(group)
    assert second.views[-1] == third.views[-1]
    assert {topic.spec.name for topic in second.views[-1].topics} >= {"t", "another"}


def test_a_declaration_moves_nothing_and_its_memory_stays() -> None:
    """Topics that nobody has a part in come in revisions: no epoch is made, and nobody stops sending for it."""
    group = FakeGroup(3)
    busy(group, 3)
    before = group.nodes[1].views[-1].view_id
    tables = [node.table for node in group.nodes.values()]
    for node_id in (1, 2, 3):
        group.declare(node_id, TopicSpec(f"more-{node_id}"))
        group.drive(group.nodes[node_id])
        group.run()
    assert [node.views[-1].view_id for node in group.nodes.values()] == [before] * 3 and group.revisions >= 9
    assert [node.table for node in group.nodes.values()] == tables
    assert all(table is not None and table.get(table.my_rank, "wedged") == 0 for table in tables)
    assert all(len(node.views[-1].topics) == 4 for node in group.nodes.values())
