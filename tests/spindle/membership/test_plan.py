"""Goal: from any wishes one next view that keeps the rules of ids, ranks and first declarers.

Method: wishes made by hand, and at random by hypothesis for the invariants.
"""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from spindle.group.levels import Level
from spindle.group.topics import TOPICS_MAX, TopicSpec
from spindle.group.view import Member, Renewal, Topic, View
from spindle.membership.codec import decode_proposal, encode_proposal
from spindle.membership.messages import Deletion, Role, TopicRequest
from spindle.membership.plan import Wishes, fulfilled, plan_next

NOBODY: frozenset[int] = frozenset()


def member(node_id: int) -> Member:
    return Member(node_id, 100 + node_id, f"/run/node-{node_id}.sock")


def view_of(*node_ids: int, topics: tuple[Topic, ...] = ()) -> View:
    return View(1, 5, tuple(member(node_id) for node_id in node_ids), topics)


def wishes_of(*wishes: tuple[int, TopicSpec | Role | Deletion], joins: tuple[int, ...] = ()) -> Wishes:
    made = Wishes(joins={node_id: member(node_id) for node_id in joins})
    for number, (node_id, wish) in enumerate(wishes, 1):
        made.add(node_id, TopicRequest(number, 5, wish))
    return made


def test_nothing_wished_nothing_planned() -> None:
    assert plan_next(view_of(1, 2), Wishes(), NOBODY).view is None


def test_who_stays_keeps_the_order_and_joiners_come_last() -> None:
    plan = plan_next(view_of(3, 1, 2), wishes_of(joins=(9, 4)), frozenset({1}))
    assert plan.view is not None and plan.view.node_ids == (3, 2, 4, 9) and plan.view.view_id == 6


def test_view_ids_pass_what_the_journals_of_a_joiner_know() -> None:
    """Else the order of a topic that it brings along would fall back. Those of members are behind already."""
    wise = dataclasses.replace(member(9), view_floor=40)
    plan = plan_next(view_of(1, 2), Wishes(joins={9: wise}), NOBODY)
    assert plan.view is not None and plan.view.view_id == 40
    plan = plan_next(plan.view, wishes_of(joins=(4,)), NOBODY)
    assert plan.view is not None and plan.view.view_id == 41


def test_role_before_its_declaration_is_fulfilled() -> None:
    plan = plan_next(view_of(1, 2), wishes_of((2, Role("t", True, True)), (1, TopicSpec("t"))), NOBODY)
    assert plan.view is not None and not plan.rejections
    assert plan.view.topics[0].senders == (2,) and plan.view.topics[0].fresh == (2,)


def test_who_is_fresh_is_so_for_one_view_and_what_stays_is_the_same_topic() -> None:
    """A donor gives its history once; and what stays as it is costs nothing at a view change."""
    topics = (Topic(TopicSpec("new"), 1, (1, 2), (), (2,)), Topic(TopicSpec("old"), 2, (1, 3), (1,)))
    plan = plan_next(view_of(1, 2, 3, topics=topics), wishes_of((3, Role("new", True, False))), NOBODY)
    assert plan.view is not None and [topic.fresh for topic in plan.view.topics] == [(3,), ()]
    plan = plan_next(plan.view, wishes_of((3, TopicSpec("t")), (2, Role("t", True, True))), NOBODY)
    assert plan.view is not None and [topic.fresh for topic in plan.view.topics] == [(), (), (2,)]
    assert plan.view.topics[1] is topics[1]
    without = plan_next(plan.view, Wishes(), frozenset({3}))
    assert without.view is not None and without.view.topics[1].members == (1,)


def test_what_nobody_has_a_part_in_is_a_revision_of_the_view() -> None:
    """Nothing in shared memory moves for a declaration: the view keeps its number, and every other topic is what it
    was, who is fresh in it included. With anything else that is wished it is the next view."""
    topics = (Topic(TopicSpec("new"), 1, (1, 2), (), (2,)),)
    before = view_of(1, 2, 3, topics=topics)
    plan = plan_next(before, wishes_of((3, TopicSpec("t"))), NOBODY)
    assert plan.view is not None and plan.view.revises(before) and not before.revises(plan.view)
    assert plan.view.state == (before.view_id, 1) and plan.view.topics[0] is topics[0]
    assert plan.view.topics[1].spec.name == "t" and plan.view.topics[1].topic_id == 2
    again = plan_next(plan.view, wishes_of((3, TopicSpec("u"))), NOBODY)
    assert again.view is not None and again.view.state == (before.view_id, 2)
    wished = (3, TopicSpec("u"))
    for more in (wishes_of(wished, (1, Role("t", True, False))), wishes_of(wished, joins=(4,))):
        moved = plan_next(plan.view, more, NOBODY)
        assert moved.view is not None and moved.view.state == (before.view_id + 1, 0)
        assert moved.view.topics[0].fresh == ()
    left = plan_next(plan.view, wishes_of((3, TopicSpec("u"))), frozenset({3}))
    assert left.view is not None and left.view.state == (before.view_id + 1, 0)


def test_refusal_does_not_stop_the_rest() -> None:
    wishes = wishes_of((1, TopicSpec("t", size_max=10)), (2, TopicSpec("t", size_max=20)), (2, TopicSpec("u")))
    plan = plan_next(view_of(1, 2), wishes, NOBODY)
    assert plan.view is not None and [topic.spec.name for topic in plan.view.topics] == ["t", "u"]
    assert [(node_id, rejection.kind) for node_id, rejection in plan.rejections] == [(2, "TopicMismatch")]


def test_leaver_goes_from_its_topics() -> None:
    topic = Topic(TopicSpec("t").with_window(), 1, (1, 2), (2,), ())
    plan = plan_next(view_of(1, 2, topics=(topic,)), Wishes(), frozenset({2}))
    assert plan.view is not None and plan.view.topics[0].members == (1,) and plan.view.topics[0].senders == ()


def test_later_wish_replaces_the_earlier_one() -> None:
    topic = Topic(TopicSpec("t").with_window(), 1)
    wishes = wishes_of((1, Role("t", True, True)), (1, Role("t", False, False)))
    assert plan_next(view_of(1, topics=(topic,)), wishes, NOBODY).view is None


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc"), st.integers(0, 4)), max_size=20),
       st.sets(st.integers(1, 4), max_size=3), st.sets(st.integers(5, 8), max_size=3))
def test_any_plan_is_a_valid_view(wanted: list[tuple[int, str, int]], leaving: set[int], joining: set[int]) -> None:
    """Whatever is wished, the view survives its encoding's checks and a second plan changes nothing."""
    wishes = wishes_of(*[
        (node_id, TopicSpec(name, level=Level.VOLATILE) if kind == 0 else Role(name, kind > 1, kind > 2))
        for node_id, name, kind in wanted], joins=tuple(joining))
    before = view_of(1, 2, 3, 4)
    plan = plan_next(before, wishes, frozenset(leaving))
    if plan.view is None:
        assert not leaving and not joining
        return
    assert decode_proposal(encode_proposal(plan.view, before, 9), before, 9) == plan.view
    for node_id, rejection in plan.rejections:
        wishes.topics = {key: one for key, one in wishes.topics.items()
                         if (key[0], one.request_id) != (node_id, rejection.request_id)}
    wishes.drop_fulfilled(plan.view)
    again = plan_next(plan.view, wishes, NOBODY)
    assert again.view is None and not again.rejections


# --- topics that are deleted, or declared anew


def test_a_topic_that_nobody_has_open_is_deleted_in_a_revision() -> None:
    topics = (Topic(TopicSpec("idle"), 1, born=(3, 1)), Topic(TopicSpec("used"), 2, (1,), (), (), (3, 1)),
              Topic(TopicSpec("kept", level=Level.LOGGED), 3, born=(3, 1)))
    before = view_of(1, 2, topics=topics)
    plan = plan_next(before, wishes_of((2, Deletion("idle", (3, 1)))), NOBODY)
    assert plan.view is not None and plan.view.revises(before) and not plan.rejections
    assert plan.view.topics == topics[1:]
    assert decode_proposal(encode_proposal(plan.view, before, 9), before, 9) == plan.view
    for name in ("used", "kept"):
        plan = plan_next(before, wishes_of((2, Deletion(name, (3, 1)))), NOBODY)
        assert plan.view is None and [one.kind for _, one in plan.rejections] == ["TopicInUse"]


def test_a_deletion_means_the_topic_that_was_there_and_no_later_one_of_its_name() -> None:
    """It may be told to a new leader when it has come true already, and somebody has declared the name anew."""
    later = view_of(1, 2, topics=(Topic(TopicSpec("t"), 1, born=(4, 0)),))
    wishes = wishes_of((2, Deletion("t", (3, 1))))
    assert plan_next(later, wishes, NOBODY).view is None
    wishes.drop_fulfilled(later)
    assert not wishes.topics


def test_who_opens_a_topic_keeps_it_from_being_deleted() -> None:
    before = view_of(1, 2, topics=(Topic(TopicSpec("t").with_window(), 1, born=(3, 1)),))
    plan = plan_next(before, wishes_of((1, Deletion("t", (3, 1))), (2, Role("t", True, False))), NOBODY)
    assert plan.view is not None and plan.view.topics[0].members == (2,)
    assert [(node_id, one.kind) for node_id, one in plan.rejections] == [(1, "TopicInUse")]


def test_numbers_come_back_when_all_have_been_used() -> None:
    """And never in the view in which their topic is deleted: each belongs to one topic in each of them."""
    view, seen = view_of(1), []
    for number in range(2 * TOPICS_MAX):
        plan = plan_next(view, wishes_of((1, TopicSpec(f"t{number}", window=1, size_max=1))), NOBODY)
        assert plan.view is not None and not plan.rejections
        topic = plan.view.topics[-1]
        seen.append(topic.topic_id)
        assert topic.born == view.state
        plan = plan_next(plan.view, wishes_of((1, Deletion(topic.spec.name, topic.born)), (
            1, TopicSpec(f"beside{number}", window=1, size_max=1))), NOBODY)
        assert plan.view is not None and plan.view.topics[-1].topic_id != topic.topic_id
        beside = plan.view.topics[-1]
        view = plan_next(plan.view, wishes_of((1, Deletion(beside.spec.name, beside.born))), NOBODY).view or plan.view
        assert not view.topics
    full = view_of(1, topics=tuple(
        Topic(TopicSpec(f"t{number}", window=1, size_max=1), number) for number in range(1, TOPICS_MAX + 1)))
    plan = plan_next(full, wishes_of((1, TopicSpec("more"))), NOBODY)
    assert plan.view is None and plan.rejections[0][1].kind == "TopicLimit"
    without = plan_next(full, wishes_of((1, Deletion("t6", (0, 0)))), NOBODY).view
    assert without is not None
    again = plan_next(without, wishes_of((1, TopicSpec("more", window=1, size_max=1))), NOBODY).view
    assert again is not None and again.topics[-1].topic_id == 6


def test_what_a_logged_topic_is_can_be_given_up_while_nobody_has_it_open() -> None:
    """The next declaration says it, whatever it is, and nobody opens it before."""
    logged = TopicSpec("log", "old", level=Level.LOGGED).with_window()
    plain = Topic(TopicSpec("t").with_window(), 1, (1,), born=(2, 0))
    before = view_of(1, 2, topics=(plain, Topic(logged, 2, born=(3, 1))))
    given_up = plan_next(before, wishes_of((2, Deletion("log", (3, 1), renews=True))), NOBODY).view
    assert given_up is not None and given_up.revises(before) and not given_up.declares("log")
    assert given_up.topics[1] == Topic(logged, 2, born=before.state, renewal=Renewal.AWAITED)
    assert decode_proposal(encode_proposal(given_up, before, 9), before, 9) == given_up
    refused = plan_next(given_up, wishes_of((1, Role("log", True, False))), NOBODY)
    assert refused.view is None and [one.kind for _, one in refused.rejections] == ["TopicUnknown"]
    wishes = wishes_of((1, TopicSpec("log", "new", level=Level.LOGGED)), (1, Role("log", True, True)))
    opened = plan_next(given_up, wishes, NOBODY).view
    assert opened is not None and not opened.revises(given_up)
    topic = opened.topic("log")
    assert topic is not None and (topic.spec.type_name, topic.senders) == ("new", (1,))
    assert topic.renewed_since == given_up.view_id < opened.view_id
    # That it was declared anew stays with it while others come and go, and until it is given up once more.
    closed = plan_next(opened, wishes_of((1, Role("log", False, False))), NOBODY).view
    assert closed is not None and closed.topic("log").renewed_since == given_up.view_id  # type: ignore[union-attr]
    again = plan_next(closed, wishes_of((2, Deletion("log", topic.born, renews=True))), NOBODY).view
    assert again is not None and again.topic("log").born == closed.state  # type: ignore[union-attr]


def test_giving_up_what_a_topic_is_can_be_taken_back_and_is_for_logged_ones() -> None:
    logged, plain = TopicSpec("log", level=Level.LOGGED).with_window(), TopicSpec("t").with_window()
    before = view_of(1, 2, topics=(Topic(plain, 1, born=(2, 0)), Topic(logged, 2, (1,), born=(3, 1))))
    for wish, why in ((Deletion("t", (2, 0), renews=True), "is not logged"),
                      (Deletion("log", (3, 1), renews=True), "node 1 has readers or writers"),
                      (Deletion("log", (3, 1)), "--redefine")):
        plan = plan_next(before, wishes_of((2, wish)), NOBODY)
        assert plan.view is None
        assert [(one.kind, why in one.text) for _, one in plan.rejections] == [("TopicInUse", True)]
    awaited = view_of(1, topics=(Topic(logged, 2, born=(3, 1), renewal=Renewal.AWAITED),))
    without = plan_next(awaited, wishes_of((1, Deletion("log", (3, 1)))), NOBODY).view
    assert without is not None and not without.topics


def test_of_a_topic_that_only_journals_know_of_the_same_can_be_said() -> None:
    view, wish = view_of(1, 2), Deletion("log", (0, 0), renews=True, undeclared=True)
    plan = plan_next(view, wishes_of((2, wish)), NOBODY)
    assert plan.view is not None and not plan.view.declares("log") and fulfilled(plan.view, 2, wish)
    declared = view_of(1, 2, topics=(Topic(TopicSpec("log").with_window(), 1, born=(5, 1)),))
    assert fulfilled(declared, 2, wish) and plan_next(declared, wishes_of((2, wish)), NOBODY).view is None


def test_to_give_up_a_topic_and_to_delete_it_are_two_wishes_of_a_node() -> None:
    """The first must not wait for an answer that only the second gets."""
    before = view_of(1, 2, topics=(Topic(TopicSpec("log", level=Level.LOGGED).with_window(), 2, born=(3, 1)),))
    wishes = wishes_of((2, Deletion("log", (3, 1), renews=True)), (2, Deletion("log", (3, 1))))
    assert len(wishes.topics) == 2
    for order in (wishes, wishes_of((2, Deletion("log", (3, 1))), (2, Deletion("log", (3, 1), renews=True)))):
        plan = plan_next(before, order, NOBODY)
        assert plan.view is not None and not plan.view.declares("log") and plan.view.topic("log") is not None
