"""Goal: each rule of membership by itself: what it lets through, and what it holds back.

Method: one table in plain memory with rows made by hand; machines of a fake group that are stopped at the moment in
question. Whole runs, in which the rules work together, are in test_failures.py and in the simulator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.group.topics import TopicSpec
from spindle.group.view import NODES_MAX, Member, Topic, View
from spindle.membership import messages as m
from spindle.membership.codec import encode_proposal
from spindle.membership.machine import Machine, Phase
from spindle.membership.participants import Participants
from spindle.membership.plan import Wishes, plan_next
from spindle.membership.trim import fits, least_frozen
from tests.spindle.membership.fake_group import FakeGroup, FakeNode, FakeTable

Frozen = dict[int, tuple[int, ...]]


def table_of(rows: int, my_rank: int, suspects: dict[int, set[int]] | None = None) -> FakeTable:
    """A table in which the rows of `suspects` say whom they suspect."""
    view = View(1, 1, tuple(Member(rank + 1, 100 + rank, "") for rank in range(rows)))
    table = FakeTable(FakeGroup(1), view, my_rank + 1)
    for rank, ranks in (suspects or {}).items():
        table.seen[rank][0]["suspected0"] = sum(1 << one for one in ranks)
    return table


def participants(rows: int, my_rank: int, suspects: dict[int, set[int]] | None = None, *,
                 mine: Iterable[int] = (), ended: Iterable[int] = ()) -> Participants:
    """As one member sees it that suspects `mine`, of whom `ended` have certainly ended."""
    found = Participants(table_of(rows, my_rank, suspects))
    for rank in mine:
        found.suspect(rank)
    for rank in ended:
        found.end(rank)
    return found


# --- participants


@pytest.mark.parametrize(("rows", "mine", "ended", "goes_on"), [
    (2, {1}, set(), False), (3, {1}, set(), True), (4, {2, 3}, set(), False), (5, {3, 4}, set(), True),
    (5, {2, 3, 4}, set(), False), (2, {1}, {1}, True), (4, {2, 3}, {3}, True), (4, {1, 2, 3}, {3}, False),
    (4, {1, 2, 3}, {2, 3}, False), (4, {1, 2, 3}, {1, 2, 3}, True),
])
def test_a_majority_of_those_that_have_not_ended(rows: int, mine: set[int], ended: set[int], goes_on: bool) -> None:
    assert participants(rows, 0, mine=mine, ended=ended).has_majority() is goes_on


def test_an_ended_member_that_had_accused_us_counts_in_full() -> None:
    """Somebody may have gone on with it and without us, so our majority can't rest on its end."""
    assert participants(2, 0, mine={1}, ended={1}).has_majority()
    assert not participants(2, 0, {1: {0}}, mine={1}, ended={1}).has_majority()
    assert participants(4, 0, mine={2, 3}, ended={3}).has_majority()
    assert not participants(4, 0, {3: {1}}, mine={2, 3}, ended={3}).has_majority()
    assert participants(4, 0, {3: {2}}, mine={2, 3}, ended={3}).has_majority(), "it accused one that is dead anyway"


def test_what_costs_the_majority_is_told_to_nobody() -> None:
    found = participants(3, 0, mine={1})
    table = found._table
    assert table.get(0, "suspected0") == 0b010
    found.suspect(2)
    assert table.get(0, "suspected0") == 0b010 and not found.has_majority()
    found.end(1)
    found.end(2)
    assert table.get(0, "suspected0") == 0b110 and found.has_majority()


def test_a_suspect_is_not_live_whatever_its_row_says() -> None:
    found = participants(4, 1, {0: {2}}, mine={0})
    assert found.live == [1, 2, 3] and found.leader == 1
    assert found.absorb() == [], "a suspect's suspicions are not taken over"
    assert found.suspect(0) is False


def test_suspicions_of_the_living_are_taken_over() -> None:
    found = participants(4, 0, {1: {3}})
    assert found.absorb() == [3] and found.live == [0, 1, 2]
    assert found._table.get(0, "suspected0") == 0b1000
    assert found.absorb() == []


def test_of_two_that_accuse_each_other_one_is_believed() -> None:
    found = participants(5, 4, {1: {2}, 2: {1}})
    assert found.absorb() == [2] and found.live == [0, 1, 3, 4]


def test_who_is_suspected_by_a_living_member_learns_it() -> None:
    assert participants(3, 2).accuser() is None
    assert participants(3, 2, {0: {2}}).accuser() == 0
    assert participants(3, 2, {0: {2}}, mine={0}).accuser() is None, "a suspect accuses nobody"


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(2, 5), st.data())
def test_all_is_heard_when_there_is_neither_an_accuser_nor_news(rows: int, data: st.DataObject) -> None:
    ranks = st.sets(st.integers(0, rows - 1))
    me = data.draw(st.integers(0, rows - 1))
    accused = {rank: data.draw(ranks) - {rank} for rank in range(rows) if rank != me}
    found = participants(rows, me, accused, mine=data.draw(ranks) - {me})
    for rank in data.draw(ranks) - {me}:
        found.depart(rank)
    heard_all = found.heard_all()
    assert heard_all is (found.accuser() is None and not found.absorb())
    assert found.heard_all() is (found.accuser() is None), "what was absorbed is heard"


def test_the_barrier_waits_for_every_living_row() -> None:
    """A leader acts when all that it leads have turned away from all before it; who left in order doesn't count."""
    assert participants(4, 0).barrier_passed()
    for known in ({1: {0}}, {1: {0}, 2: {0}}, {2: {0}, 3: {0}}):
        found = participants(4, 1, known, mine={0})
        assert found.barrier_passed() is ({2, 3} <= set(known)), known
        assert set(found.behind_barrier()) == {2, 3} - set(known)
    assert participants(4, 1, {2: {0}, 3: {0}}, mine={0}).barrier_passed()
    two = participants(5, 2, {3: {0, 1}, 4: {1}}, mine={0, 1})
    assert not two.barrier_passed() and two.behind_barrier() == [4]
    left = participants(4, 1)
    left.depart(0)
    assert left.barrier_passed()


# --- the trim

TOPIC = Topic(TopicSpec("t", window=4, size_max=8), 7, (1, 2, 3), (2, 3))


def frozen_table(my_rank: int, *frozen: Frozen) -> tuple[View, FakeTable]:
    table = table_of(3, my_rank)
    for rank, counts in enumerate(frozen):
        table.seen[rank][2].update(counts)
    return dataclasses.replace(table.view, topics=(TOPIC,)), table


def test_a_trim_is_the_least_that_the_living_have_frozen() -> None:
    view, table = frozen_table(0, {7: (5, 1)}, {7: (3, 9)}, {7: (0, 0)})
    assert least_frozen(view, table, [0, 1]) == {7: (3, 1)}
    assert least_frozen(view, table, [0, 1, 2]) == {}, "what keeps nothing is not named"
    assert least_frozen(view, table, [1]) == {7: (3, 9)}


@pytest.mark.parametrize(("view_id", "trims", "fitting"), [
    (1, {7: (5, 1)}, True), (1, {7: (0, 0)}, True), (1, {7: (6, 1)}, False), (1, {7: (5, 2)}, False),
    (2, {7: (5, 1)}, False), (1, {}, True), (1, {8: (5, 1)}, False), (1, {7: (5,)}, False), (1, {7: (5, 1, 0)}, False),
])
def test_a_trim_fits_who_has_all_of_it(view_id: int, trims: Frozen, fitting: bool) -> None:
    view, table = frozen_table(0, {7: (5, 1)})
    assert fits(view, table, 1, view_id, trims) is fitting


# --- one machine at one moment


def group_at(phase: Phase, members: int = 3) -> tuple[FakeGroup, FakeNode]:
    """A group in a view change that a joiner asked for, stopped when the member of rank 1 is in `phase`."""
    for seed in range(200):
        group = FakeGroup(seed)
        for node_id in range(1, members + 1):
            group.start(node_id)
            group.run()
        group.start(members + 1)
        node = group.nodes[2]
        while group.happen():
            if node.machine.phase is phase:
                return group, node
    raise AssertionError(f"no run comes by {phase}")


def test_memory_of_a_proposal_given_up_is_not_taken_for_the_present_one_s() -> None:
    _, node = group_at(Phase.PREPARING)
    node.machine.prepared(node.machine.ballot - 1)
    node.machine.prepared(node.machine.ballot + NODES_MAX)
    assert node.machine.phase is Phase.PREPARING
    node.machine.prepared(node.machine.ballot)
    assert node.machine.phase is Phase.PREPARED


def test_a_joiner_begins_at_the_word_for_its_own_admission() -> None:
    joiner = Machine(Member(9, 5, ""))
    before = View(1, 3, (Member(1, 4, ""),))
    after = View(1, 4, (*before.members, joiner.me))
    joiner.receive(1, m.CurrentView(before))
    joiner.receive(1, m.Admission(after, NODES_MAX + 1, base=3, joiners=1))
    assert joiner.phase is Phase.ADMITTED
    joiner.receive(1, m.Installed(1, 4, 1))
    assert joiner.phase is Phase.ADMITTED, "that was said of an earlier proposal"
    joiner.receive(1, m.Installed(2, 4, NODES_MAX + 1))
    assert joiner.phase is Phase.ADMITTED, "that was said in another group"
    joiner.receive(1, m.Installed(1, 4, NODES_MAX + 1))
    assert joiner.phase is Phase.INSTALLING


def test_no_revision_takes_the_place_of_a_view_with_a_joiner() -> None:
    """A joiner learns by another view that its own doesn't come. It may live: its connection is gone."""
    group, _ = group_at(Phase.ACKNOWLEDGED)
    leader, joiner = group.nodes[1].machine, group.nodes[4].machine
    assert leader.view is not None and leader.next_view is not None and joiner.me in leader.next_view.members
    leader.declare(TopicSpec("t"))
    leader.peer_gone(joiner.me, ended=False)
    leader.step()
    assert leader.next_view.members == leader.view.members and leader.next_view.topic("t")
    assert leader.next_view.state == (leader.view.view_id + 1, 0)


def test_who_died_while_the_decision_stood_is_not_live_in_the_view_that_it_made() -> None:
    joiner = Machine(Member(9, 5, ""))
    before = View(1, 3, (Member(1, 4, ""), Member(2, 4, "")))
    after = View(1, 4, (*before.members, joiner.me))
    joiner.receive(1, m.CurrentView(before))
    joiner.receive(1, m.Admission(after, NODES_MAX + 1, base=3, joiners=1))
    joiner.peer_gone(before.members[1], ended=True)
    joiner.receive(1, m.Installed(1, 4, NODES_MAX + 1))
    joiner.installed(FakeTable(FakeGroup(1), after, 9))
    assert joiner.live_ranks() == [0, 2]


def test_the_end_of_an_earlier_life_is_not_the_end_of_this_one() -> None:
    group = FakeGroup(1)
    for node_id in (1, 2, 3):
        group.start(node_id)
        group.run()
    machine = group.nodes[1].machine
    machine.peer_gone(dataclasses.replace(group.nodes[3].machine.me, incarnation=1), ended=True)
    assert machine.live_ranks() == [0, 1, 2]
    machine.peer_gone(group.nodes[3].machine.me, ended=True)
    assert machine.live_ranks() == [0, 1]


def test_a_life_joins_when_the_one_before_it_is_out_of_the_view() -> None:
    view = View(1, 5, (Member(1, 10, ""), Member(2, 11, "")))
    again = Wishes(joins={2: Member(2, 99, "")})
    without = plan_next(view, again, frozenset({2})).view
    assert without is not None and without.node_ids == (1,)
    assert plan_next(view, again, frozenset()).view is None
    then = plan_next(without, again, frozenset()).view
    assert then is not None and then.members[1].incarnation == 99


def test_only_who_was_asked_may_refuse() -> None:
    """A stranger's rejection stops neither a member nor a joiner."""
    group = FakeGroup(1)
    for node_id in (1, 2):
        group.start(node_id)
        group.run()
    member = group.nodes[1].machine
    request = member.declare(TopicSpec("t"))
    for number in (0, request):
        member.receive(8, m.Rejection(number, "NodeIdTaken", "go away"))
    assert member.phase is not Phase.GONE and request in member._own
    joiner = Machine(Member(9, 5, ""))
    joiner.receive(1, m.CurrentView(View(1, 3, (Member(1, 4, ""),))))
    joiner.receive(8, m.Rejection(0, "NodeIdTaken", "go away"))
    assert joiner.phase is Phase.OUTSIDE
    joiner.receive(1, m.Rejection(0, "NodeIdTaken", "go away"))
    assert joiner.phase is Phase.GONE


def test_a_leader_s_word_is_obeyed_by_who_does_not_learn_at_that_moment_that_it_is_suspected() -> None:
    """Between the two looks at the rows, one for suspicions and one for the leader's word, another's suspicion of the
    leader lands. Whoever obeyed now would do so behind the back of the next leader."""
    for phase, column in ((Phase.PREPARED, "wedged"), (Phase.WEDGED, "trimmed")):
        group, node = group_at(phase)
        table = node.table
        assert table is not None
        leader = group.nodes[1].table
        assert leader is not None
        while not leader.get(0, column) and group.happen():
            if node.machine.phase is not phase:
                break
        if node.machine.phase is not phase or not leader.get(0, column):
            continue
        table.seen[0] = leader.seen[0]
        looked = table.get

        def landing(rank: int, name: str, looked=looked, table=table, column=column) -> int:  # type: ignore[no-untyped-def]
            value = looked(rank, name)
            if (rank, name) == (0, column):
                table.seen[2][0]["suspected0"] = 0b001
            return value

        table.get = landing  # type: ignore[method-assign]
        node.machine.step()
        assert node.machine.phase is phase, f"obeyed the leader's {column}"
        assert node.machine.leader_rank == 1


def member_of_two() -> tuple[Machine, FakeTable, View]:
    """A member of rank 1, at rest in a view of two, and its table, in which rank 0 is the leader."""
    members = (Member(1, 4, ""), Member(9, 5, ""))
    view, machine = View(1, 4, members), Machine(members[1])
    machine.view, machine.next_view = dataclasses.replace(view, view_id=3), view
    table = FakeTable(FakeGroup(1), view, 9)
    machine.installed(table)
    return machine, table, view


def revised(view: View, *names: str) -> View:
    topics = tuple(Topic(TopicSpec(name, window=4, size_max=8), n + 1) for n, name in enumerate(names))
    return dataclasses.replace(view, topics=topics, revision=len(names))


def test_a_proposal_is_acknowledged_with_its_own_ballot_only() -> None:
    """An area is there before the column that speaks of it: with the column of the one before, it isn't whole."""
    machine, table, view = member_of_two()
    leader = table.seen[0]
    leader[1]["proposal"] = encode_proposal(revised(view, "t"), view, NODES_MAX + 1)
    leader[0]["proposed"] = 1
    machine.step()
    assert machine.phase is Phase.STABLE and table.get(1, "acked") == 0
    leader[0]["proposed"] = NODES_MAX + 1
    machine.step()
    assert machine.phase is Phase.ACKNOWLEDGED and table.get(1, "acked") == NODES_MAX + 1


def test_a_revision_is_taken_before_the_ballot_that_follows_it() -> None:
    """Between two looks at the leader's row, it is committed and the next one is proposed."""
    machine, table, view = member_of_two()
    leader, one, two = table.seen[0], revised(view, "t"), revised(view, "t", "u")
    leader[1]["proposal"], leader[0]["proposed"] = encode_proposal(one, view, 1), 1
    machine.step()
    assert machine.phase is Phase.ACKNOWLEDGED and machine.next_view == one
    looked = table.get

    def landing(rank: int, name: str) -> int:
        value = looked(rank, name)
        if (rank, name) == (0, "committed") and not value:
            leader[0]["committed"] = 1
            leader[1]["proposal"], leader[0]["proposed"] = encode_proposal(two, one, NODES_MAX + 1), NODES_MAX + 1
        return value

    table.get = landing  # type: ignore[method-assign]
    machine.step()
    assert machine.take_actions() == [m.Revise(one)] and machine.view == one
    machine.step()
    assert machine.phase is Phase.ACKNOWLEDGED and machine.next_view == two and table.get(1, "committed") == 1


def test_a_wish_that_was_refused_does_not_come_true_later() -> None:
    """It is told again with every view, and one that is on its way when it is refused comes when it could be had."""
    group = FakeGroup(1)

    def settle() -> None:
        for node in [*group.nodes.values()] * 3:  # a node that leads alone acts when it is looked at
            group.drive(node)
            group.run()

    for node_id in (1, 2):
        group.start(node_id)
        group.run()
    leader, other = group.nodes[1], group.nodes[2]
    leader.machine.declare(TopicSpec("t"))
    settle()
    leader.machine.take_role(m.Role("t", True, True))
    settle()
    topic = other.views[-1].topic("t")
    assert topic is not None
    wish = m.Deletion("t", topic.born)
    request_id = other.machine.delete(wish)
    settle()
    assert [one.kind for one in other.rejected] == ["TopicInUse"]
    leader.machine.take_role(m.Role("t", False, False))
    settle()
    group.post(2, 1, m.TopicRequest(request_id, topic.born[0], wish))
    settle()
    assert other.views[-1].topic("t") is not None
    assert [one.kind for one in other.rejected] == ["TopicInUse"] * 2
    other.machine.delete(wish)
    settle()
    assert other.views[-1].topic("t") is None
