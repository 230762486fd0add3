"""Goal: a group's settings are versions that change in order, in whatever moment a newer one comes (S51); they never go
back, and all members go by the same.

Method: machines in plain memory, in a random order of events; newcomers bring settings along.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.errors import ConfigError
from spindle.group.settings import UNSAID, Settings
from spindle.group.topics import TopicSpec
from spindle.membership.machine import Phase
from spindle.membership.plan import Wishes, plan_next
from tests.spindle.membership.fake_group import FakeGroup
from tests.spindle.membership.test_machine import assert_together, check_properties
from tests.spindle.membership.test_plan import NOBODY, view_of


def version(number: int, contacts: tuple[str, ...] = ("a:1",)) -> Settings:
    return Settings(number, 1.0 + number, contacts, "majority")


def agreed(group: FakeGroup) -> Settings:
    found = {node.views[-1].settings for node in group.nodes.values() if node.running and node.views}
    assert len(found) == 1
    return found.pop()


def test_who_forms_the_group_gives_it_its_settings_and_who_is_newer_others() -> None:
    group = FakeGroup(1)
    for node_id, brought, then in ((1, 3, 3), (2, 2, 3), (3, 3, 3), (4, 7, 7), (5, 1, 7)):
        group.start(node_id, version(brought, (f"host-{node_id}:1",)))
        group.run()
        assert agreed(group).version == then
    assert agreed(group) == version(7, ("host-4:1",))
    assert_together(group)
    check_properties(group)


def test_a_proposal_that_is_given_up_leaves_the_settings_as_they_are() -> None:
    """The newcomer of a view dies before it is prepared: a view like the present one takes its place."""
    group = FakeGroup(2)
    for node_id in (1, 2):
        group.start(node_id, version(4))
        group.run()
    group.start(3, version(4))
    while group.nodes[1].machine.phase is not Phase.PREPARING:
        assert group.happen()
    group.crash(3)
    group.run()
    assert agreed(group) == version(4) and group.nodes[1].views[-1].node_ids == (1, 2)
    assert_together(group)


def test_of_two_that_are_equally_new_the_group_s_own_counts() -> None:
    wishes = Wishes()
    wishes.propose(version(2, ("b:1",)))
    wishes.propose(version(2, ("c:1",)))
    assert wishes.settings.contacts == ("b:1",)
    plan = plan_next(view_of(1, 2), wishes, NOBODY)
    assert plan.view is not None and plan.view.settings.contacts == ("b:1",)
    later = Wishes()
    later.propose(version(2, ("c:1",)))
    assert plan_next(plan.view, later, NOBODY).view is None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), shared=st.booleans(), steps=st.integers(0, 60),
       crash=st.sampled_from([0, 1, 1, 3]))
def test_settings_that_come_in_the_middle_of_a_change_are_there_in_the_end(
        seed: int, shared: bool, steps: int, crash: int) -> None:
    """S51: topics are declared and a node joins with newer settings; the leader, or another one, may die at any point.
    In the end all have the same, and the newest of whoever is a member."""
    group = FakeGroup(seed, shared=shared)
    for node_id in (1, 2, 3):
        group.start(node_id, version(1))
        group.run()
    group.declare(2, TopicSpec("t"))
    group.drive(group.nodes[2])
    for _ in range(steps % 17):
        group.happen()
    group.start(4, version(5))
    group.start(5, version(9))
    for _ in range(steps):
        group.happen()
    if crash:
        group.crash(crash)
    group.run()
    assert_together(group)
    check_properties(group)
    inside = [node for node in group.nodes.values() if node.running and node.views]
    assert agreed(group).version == max(node.machine.settings.version for node in inside)
    for node in group.nodes.values():
        numbers = [view.settings.version for view in node.views]
        assert numbers == sorted(numbers)
        assert node.machine.phase in (Phase.STABLE, Phase.GONE) or not node.running


@pytest.mark.parametrize("values", [
    {"version": -1}, {"version": 1 << 40, "suspect_timeout_s": 1.0}, {"version": 1, "suspect_timeout_s": 0.0},
    {"version": 1, "suspect_timeout_s": float("nan")},
    {"version": 1, "suspect_timeout_s": 1.0, "contacts": ("a:1",) * 1025},
])
def test_impossible_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Settings(**values)  # type: ignore[arg-type]


def test_differences_are_for_people() -> None:
    assert UNSAID.differences(UNSAID) == ""
    text = version(2, ("a:1", "b:2")).differences(version(1, ("a:1",)))
    assert text == "[membership] suspect_timeout_s = 3, not 2; [network] contacts = a:1, b:2, not a:1"
