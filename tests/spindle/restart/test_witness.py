"""Goal: a node knows who holds a logged topic that it has no part in, whatever became of those, so that nobody begins
the topic anew while somebody has what was acknowledged as persisted.

Method: views are installed and answers are given by hand; what is noted, and what the node says then, is compared.
"""

from __future__ import annotations

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.group.view import Member, Topic, View
from spindle.restart.chain import Holders, Standing, Successor, Summary
from spindle.restart.witness import Witness

ME = 9


class Told:
    """A witness, whom it asked, and what it noted."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.noted: list[Successor] = []
        self.one = Witness(ME, lambda node_id, _, view_id: self.asked.append((view_id, node_id)),
                           lambda _, successor: self.noted.append(successor))

    def installs(self, view_id: int, nodes: tuple[int, ...], members: tuple[int, ...], fresh: tuple[int, ...] = (),
                 level: Level = Level.LOGGED) -> None:
        topic = Topic(TopicSpec("t", level=level), 1, members, (), fresh)
        view = View(1, view_id, tuple(Member(node_id, node_id, "") for node_id in (*nodes, ME)), (topic,))
        self.one.view_changed(view)

    def hears(self, view_id: int, node_id: int, *, serving: bool, standing: Standing | None = None) -> None:
        self.one.heard("t", node_id, view_id, Summary(standing or Standing(), serving=serving))

    def says(self) -> Successor | None:
        return self.one.completed("t", Summary()).standing.successor


def test_members_that_are_whole_are_noted_once_all_have_answered() -> None:
    told = Told()
    told.installs(1, (1, 2, 3), (1, 2, 3), fresh=(3,))
    assert told.asked == [(1, 1), (1, 2), (1, 3)]
    told.hears(1, 1, serving=True)
    told.hears(1, 3, serving=False)
    assert not told.noted
    told.hears(1, 2, serving=True)
    assert told.noted == [Successor(Holders(1, (1, 2)))] and told.says() == told.noted[0]
    told.installs(2, (1, 2, 3), (1, 2, 3))  # one of them was not whole
    assert told.asked[3:] == [(2, 1), (2, 2), (2, 3)]
    for node_id in (1, 2, 3):
        told.hears(2, node_id, serving=True)
    told.installs(3, (1, 2, 3), (1, 2, 3))
    assert len(told.asked) == 6 and told.noted[1:] == [Successor(Holders(2, (1, 2, 3)))]


def test_an_answer_for_another_view_or_of_somebody_else_counts_for_nothing() -> None:
    told = Told()
    told.installs(1, (1, 2), (1,))
    told.hears(0, 1, serving=True)
    told.hears(1, 2, serving=True)
    assert not told.noted
    told.installs(2, (1,), (1,), level=Level.VOLATILE)
    told.one.heard("another", 1, 2, Summary(serving=True))
    assert not told.noted


def test_who_was_there_before_and_vanishes_without_a_word_may_have_been_whole() -> None:
    told = Told()
    told.installs(4, (1, 2, 3), (1, 2, 3), fresh=(2,))
    told.hears(4, 3, serving=True)
    told.installs(5, (), ())
    assert told.noted == [Successor(Holders(4, (1, 3)))] and told.says() == told.noted[0]


def test_it_also_may_if_it_vanishes_after_another_view() -> None:
    told = Told()
    told.installs(4, (1, 2), (1,))
    told.installs(5, (1, 2), (1, 2), fresh=(2,))
    told.installs(6, (2,), (2,))
    assert told.noted == [Successor(Holders(5, (1,)))]


def test_who_has_become_a_member_since_holds_nothing_that_this_node_was_not_told_of() -> None:
    """All nodes of the view write down who restarts a topic, before it is whole."""
    told = Told()
    told.installs(4, (1, 2), (), level=Level.LOGGED)
    told.installs(5, (1, 2), (1,), fresh=(1,))
    told.installs(6, (1, 2), (1, 2), fresh=(2,))
    told.installs(7, (2,), (2,))
    assert not told.noted


def test_who_is_no_member_any_more_has_a_journal_all_the_same() -> None:
    told = Told()
    told.installs(4, (1, 2), (1,))
    told.hears(4, 1, serving=False, standing=Standing((), Holders(3, (1,)), whole=True, seen_view=3))
    assert told.noted == [Successor(Holders(3, (1,)))]


def test_who_joins_asks_everybody_about_a_topic_without_members() -> None:
    told = Told()
    told.installs(4, (1, 2), ())
    assert told.asked == [(4, 1), (4, 2)]
    told.hears(4, 1, serving=False)
    later = Successor(Holders(3, (2,)), required=(1, 2))
    told.hears(4, 2, serving=False, standing=Standing((), Holders(2, (1, 2)), True, later))
    assert told.noted == [later]
    told.installs(5, (1, 2), ())
    assert len(told.asked) == 2


def test_nothing_older_takes_the_place_of_what_is_known() -> None:
    told = Told()
    told.installs(4, (1,), (1,))
    told.hears(4, 1, serving=True)
    newer = Standing((), Holders(6, (2,)), True)
    assert told.one.completed("t", Summary(newer)).standing == newer
    older = Standing((), Holders(2, (2,)), True)
    assert told.one.completed("t", Summary(older)).standing.successor == Successor(Holders(4, (1,)))
    first = told.noted[0]
    assert told.one.wanted("t", first)
    told.installs(5, (1, 2), (1, 2))
    for node_id in (1, 2):
        told.hears(5, node_id, serving=True)
    assert not told.one.wanted("t", first) and told.one.wanted("t", told.noted[1])
