"""Goal: the two questions about journals are answered as their module says, one rule at a time.
Method: hand-made lives, standings and answers."""

from __future__ import annotations

import dataclasses

import pytest

from spindle.restart.chain import (
    LIVES_MAX,
    NOTHING,
    Decision,
    Holders,
    Life,
    Missing,
    Order,
    Standing,
    Successor,
    Summary,
    agreed_end,
    begin_life,
    decide,
    is_outdated,
    place_in,
    supersedes,
)
from spindle.restart.codec import summary_from_wire, summary_to_wire

FIRST = Life("a.0", 0)
SECOND = Life("b.6", 6, (5, 80))
OTHER = Life("c.6", 6, (5, 80))
THIRD = Life("d.8", 8, (6, 50))
THREE = Holders(2, (1, 2, 3))


def whole(holders: Holders, end: tuple[int, int], lives: tuple[Life, ...] = (FIRST,),
          successor: Successor | None = None) -> Summary:
    return Summary(Standing(lives, holders, True, successor, end[0]), (0, 0), end, 10)


@pytest.mark.parametrize(
    ("lives", "end", "others", "others_end", "agreed"),
    [
        ((FIRST,), (5, 70), (FIRST,), (5, 90), (5, 70)),  # one goes on where the other ends
        ((FIRST,), (5, 100), (FIRST, SECOND), (7, 3), (5, 80)),  # a fork: beyond (5, 80) it is the old life's alone
        ((FIRST,), (5, 60), (FIRST, SECOND), (7, 3), (5, 60)),
        ((FIRST, SECOND), (6, 9), (FIRST, SECOND), (7, 3), (6, 9)),
        ((FIRST, SECOND), (6, 9), (FIRST, OTHER), (7, 3), (5, 80)),
        ((SECOND,), (6, 9), (OTHER,), (7, 3), NOTHING),  # nothing in common
        ((), NOTHING, (FIRST,), (5, 70), NOTHING),
        ((SECOND,), (6, 9), (FIRST, SECOND), (7, 3), (6, 9)),  # one has forgotten the oldest life
        ((SECOND, THIRD), (9, 1), (FIRST, SECOND), (7, 3), (6, 50)),
        ((THIRD,), (9, 1), (FIRST, SECOND), (7, 3), NOTHING),  # and here all that the other one knows
    ],
)
def test_what_two_journals_share(lives, end, others, others_end, agreed) -> None:  # type: ignore[no-untyped-def]
    assert agreed_end(lives, end, others, others_end) == agreed == agreed_end(others, others_end, lives, end)


@pytest.mark.parametrize(
    ("group_id", "place", "goes_on"),
    [
        (0xA, (5, 70), (5, 70)),
        (0xA, (5, 81), (5, 81)),  # behind the last one that was kept
        (0xA, (5, 90), (5, 81)),  # it has had what nobody kept: what came instead is new to it
        (0xA, (8, 3), (5, 81)),  # also when its views went on while the disks stood still
        (0xB, (7, 3), (7, 3)),
        (0xB, (2, 1), (2, 1)),  # it had got this far in what group b had from group a
        (0xC, (2, 1), None),
    ],
)
def test_where_a_reader_goes_on(group_id: int, place: Order, goes_on: Order | None) -> None:
    assert place_in((FIRST, SECOND), group_id, place) == goes_on


def test_a_topic_that_died_twice_in_one_group() -> None:
    again = Life("a.9", 9, (5, 80))
    assert place_in((FIRST, again), 0xA, (7, 5)) == (5, 81)
    assert place_in((FIRST, again), 0xA, (9, 5)) == (9, 5)


def test_lives_without_a_message_are_left_out() -> None:
    assert begin_life((FIRST, SECOND), (5, 80), "d.9", 9) == (FIRST, Life("d.9", 9, (5, 80)))
    assert begin_life((FIRST, SECOND), (6, 0), "d.9", 9) == (FIRST, SECOND, Life("d.9", 9, (6, 0)))


@pytest.mark.slow
def test_a_topic_that_is_opened_again_and_again_keeps_a_bounded_list_of_lives() -> None:
    """Goal: what is kept, sent and compared stays bounded; of whoever was away for a while it is known what both have,
    and who was away for longer begins anew.

    Method: a thousand lives with a message each, and journals that end in each of them.
    """
    lives: tuple[Life, ...] = ()
    journals = []
    for view_id in range(1000):
        lives = begin_life(lives, (view_id - 1, 5) if view_id else NOTHING, f"a.{view_id}", view_id)
        journals.append(lives)
    assert max(map(len, journals)) == LIVES_MAX == len(lives)
    for view_id, away in enumerate(journals):
        agreed = agreed_end(lives, (999, 5), away, (view_id, 7))
        assert agreed == ((view_id, 5) if view_id > 999 - LIVES_MAX else NOTHING)


def test_a_longer_journal_of_another_life_is_no_source() -> None:
    """What it has beyond the fork nobody else ever had."""
    away = Summary(Standing((FIRST, OTHER), None, False, Successor(THREE), 8), (0, 0), (8, 1), 10)
    ours = {1: whole(THREE, (7, 3), (FIRST, SECOND)), 2: whole(THREE, (7, 2), (FIRST, SECOND)), 3: Summary()}
    decision = decide({**ours, 4: away}, "d.9", 9)
    assert isinstance(decision, Decision) and (decision.source, decision.end) == (1, (7, 3))


def test_who_has_forgotten_more_lives_than_others_has_the_same_journal() -> None:
    """The one that goes furthest is the source, whether its list is shorter or not."""
    answers = {1: whole(THREE, (7, 3), (FIRST, SECOND)), 2: whole(THREE, (7, 9), (SECOND,)), 3: Summary()}
    decision = decide(answers, "d.9", 9, "any")
    assert isinstance(decision, Decision)
    assert (decision.source, decision.end) == (2, (7, 9)) and decision.lives[-1] == Life("d.9", 9, (7, 9))


def test_nobody_has_it_so_it_begins() -> None:
    assert decide({1: Summary(), 2: Summary(problem="no directory")}, "a.0", 0) == Decision(None, NOTHING, (FIRST,), ())


def test_the_longest_journal_of_a_majority() -> None:
    answers = {1: whole(THREE, (5, 70)), 3: whole(THREE, (5, 90)), 4: Summary()}
    found = decide(answers, "b.6", 6)
    assert found == Decision(3, (5, 90), (FIRST, Life("b.6", 6, (5, 90))), (1, 3))
    alone = decide({1: whole(THREE, (5, 70)), 4: Summary()}, "b.6", 6)
    assert isinstance(alone, Missing) and alone.nodes == (2, 3) and alone.reason == (
        "a majority of the nodes that held it last (nodes 1, 2, 3 since view 2); nodes 2, 3 are missing: start them "
        'again, or set [journal] restart = "any" to go on without')
    assert isinstance(decide({1: whole(THREE, (5, 70)), 4: Summary()}, "b.6", 6, "any"), Decision)
    assert isinstance(decide(answers, "b.6", 6, "all"), Missing)
    half = Holders(2, (1, 2))
    assert isinstance(decide({1: whole(half, (5, 70))}, "b.6", 6), Missing)


def test_newer_holders_count_whoever_knows_of_them() -> None:
    newer = Holders(4, (3,))
    answers = {1: whole(THREE, (5, 70)), 2: whole(THREE, (5, 70), successor=Successor(newer))}
    found = decide(answers, "b.6", 6)
    assert isinstance(found, Missing) and found.nodes == (3,)
    # A node that never held the topic may know it, too.
    knows = Summary(Standing(successor=Successor(newer)))
    assert isinstance(decide({1: whole(THREE, (5, 70)), 2: whole(THREE, (5, 70)), 4: knows}, "b.6", 6), Missing)


def test_who_looked_on_knew_of_some_of_the_holders_only() -> None:
    """Node 5 alone was whole when view 15 began, others became so later. Its own word counts, and theirs: else all
    waited for node 5 to be the only holder, which it never was (found by the test of random faults)."""
    all_of_them, some = Holders(15, (3, 5, 1, 2)), Successor(Holders(15, (5,)))
    looked_on = {1: whole(THREE, (5, 70), successor=some), 2: whole(THREE, (5, 60), successor=some)}
    held = {3: whole(all_of_them, (5, 80)), 5: whole(all_of_them, (5, 90))}
    found = decide(looked_on | held, "b.16", 16)
    assert isinstance(found, Decision) and (found.source, found.end) == (5, (5, 90))
    waits = decide(looked_on | {5: held[5]}, "b.16", 16)  # node 3 may have gone on without it
    assert isinstance(waits, Missing) and waits.nodes == (3,)
    assert isinstance(decide(looked_on, "b.16", 16), Missing)


def test_holders_that_never_began_are_not_waited_for() -> None:
    """Node 4 restarted the topic and died before all who had to know of it did."""
    told = Successor(Holders(6, (4,)), required=(1, 2, 4))
    answers = {1: whole(THREE, (5, 70), successor=told), 2: whole(THREE, (5, 70))}
    assert isinstance(decide(answers, "b.7", 7), Decision)
    answers[2] = whole(THREE, (5, 70), successor=told)
    assert isinstance(decide(answers, "b.7", 7), Missing)


def test_who_only_knows_of_holders_waits_for_them_unless_told_otherwise() -> None:
    heard = Summary(Standing(successor=Successor(Holders(4, (1, 2, 3)))))
    waits = decide({4: heard}, "b.9", 9)
    assert isinstance(waits, Missing) and waits.nodes == (1, 2, 3)
    begins = decide({4: heard}, "b.9", 9, "any")
    assert isinstance(begins, Decision) and begins.source is None


def test_holders_of_whom_one_never_was_whole_acknowledged_nothing() -> None:
    told = Successor(Holders(6, (2, 4)), required=(1, 2, 4))
    answers = {one: whole(THREE, (5, 70), successor=told) for one in (1, 2)}
    assert isinstance(decide(answers, "b.7", 7), Decision)


def test_a_cut_journal_counts_for_no_majority() -> None:
    cut = Summary(Standing((FIRST,), THREE, whole=False, seen_view=5), (0, 0), (5, 60), 9)
    assert isinstance(decide({1: whole(THREE, (5, 70)), 2: cut}, "b.6", 6), Missing)
    found = decide({1: whole(THREE, (5, 70)), 2: cut, 3: whole(THREE, (5, 50))}, "b.6", 6)
    assert isinstance(found, Decision) and found.source == 1
    # All that there are: more can't come.
    assert isinstance(decide({1: cut, 2: whole(THREE, (5, 70)), 3: cut}, "b.6", 6), Decision)


def test_a_damaged_journal_is_named_and_not_counted() -> None:
    damaged = Summary(Standing((FIRST,), THREE, True), problem="it is damaged")
    found = decide({1: damaged, 2: whole(THREE, (5, 70))}, "b.6", 6)
    assert isinstance(found, Missing)
    assert "node 1: it is damaged" in found.reason and "node 3 is missing" in found.reason


def test_a_view_that_is_too_low_is_refused() -> None:
    found = decide({one: whole(THREE, (5, 70)) for one in (1, 2)}, "b.5", 5)
    assert isinstance(found, Missing) and found.reason == (
        "view 6 of the group, as its journals go up to view 5 and the group is at view 5 only; start the nodes that "
        "have them again")


def test_a_topic_that_was_declared_anew_begins_with_nothing() -> None:
    """Also where the newest journal is of a group that went on elsewhere meanwhile, to later views. But what began in
    this group after the declaration goes on."""
    old = Standing((Life("ff.2", 2), Life("a.5", 5, (4, 9))), Holders(5, (1, 2)), whole=True, seen_view=5)
    answers = {one: Summary(old, (2, 0), (5, 3), 7) for one in (1, 2)}
    chosen = decide(answers, "a.9", 9, renewed_since=7)
    assert chosen == Decision(None, NOTHING, (Life("a.9", 9),), (1, 2), renews=True)
    elsewhere = Standing((Life("bb.8", 8),), Holders(8, (3,)), whole=True, seen_view=8)
    chosen = decide({**answers, 3: Summary(elsewhere, (8, 0), (8, 3), 4)}, "a.10", 10, renewed_since=7)
    assert isinstance(chosen, Decision) and (chosen.source, chosen.renews) == (None, True)
    begun = Standing((Life("a.9", 9),), Holders(9, (1, 2)), whole=True, seen_view=9)
    chosen = decide({one: Summary(begun, (9, 0), (9, 3), 4) for one in (1, 2)}, "a.11", 11, renewed_since=7)
    assert isinstance(chosen, Decision) and (chosen.source, chosen.end, chosen.renews) == (1, (9, 3), False)


def test_nobody_declares_anew_what_a_majority_of_its_holders_may_bring_back() -> None:
    old = Standing((Life("a.5", 5),), Holders(5, (1, 2, 3)), whole=True, seen_view=5)
    chosen = decide({1: Summary(old, (5, 0), (5, 3), 4), 4: Summary()}, "a.9", 9, renewed_since=7)
    assert isinstance(chosen, Missing) and chosen.nodes == (2, 3)


def test_what_is_given_up_need_not_be_readable() -> None:
    """Who held the topic is in the standings. But of what has begun since then, damage is damage."""
    old = Standing((Life("a.5", 5),), Holders(5, (1, 2)), whole=True, seen_view=5)
    answers = {one: Summary(old, problem="damaged") for one in (1, 2)}
    assert isinstance(decide(answers, "a.9", 9), Missing)
    chosen = decide(answers, "a.9", 9, renewed_since=7)
    assert isinstance(chosen, Decision) and (chosen.voters, chosen.renews) == ((1, 2), True)
    assert isinstance(decide({one: Summary(problem="no disk") for one in (1, 2)} | answers, "a.9", 9, renewed_since=7),
                      Decision)
    begun = Standing((Life("a.8", 8),), Holders(8, (1, 2)), whole=True, seen_view=8)
    broken = {one: Summary(begun, problem="damaged") for one in (1, 2)}
    assert isinstance(decide(broken, "a.9", 9, renewed_since=7), Missing)


def test_nobody_declares_anew_what_is_ahead_of_the_group() -> None:
    """Its messages would be newer than the beginning, and count again."""
    old = Standing((Life("a.5", 5),), Holders(5, (1,)), whole=True, seen_view=5)
    chosen = decide({1: Summary(old, (5, 0), (9, 3), 4)}, "a.9", 9, renewed_since=7)
    assert isinstance(chosen, Missing) and "up to view 9" in chosen.reason


def test_what_has_begun_since_it_was_declared_anew_goes_on_whatever_went_on_elsewhere() -> None:
    """A node that went on alone with the old messages, as `restart = "any"` lets it, has seen later views."""
    begun = Standing((Life("a.9", 9),), Holders(9, (1, 2)), whole=True, seen_view=9)
    elsewhere = Standing((Life("bb.5", 5), Life("bb.30", 30, (5, 3))), Holders(30, (3,)), whole=True, seen_view=30)
    answers = {1: Summary(begun, (9, 0), (9, 3), 4), 2: Summary(begun, (9, 0), (9, 5), 6),
               3: Summary(elsewhere, (5, 0), (30, 3), 8)}
    chosen = decide(answers, "a.31", 31, "any", renewed_since=7)
    assert isinstance(chosen, Decision) and (chosen.source, chosen.end, chosen.renews) == (2, (9, 5), False)


def test_whoever_takes_over_a_new_beginning_is_a_majority_without_the_one_that_made_it() -> None:
    """Node 1 began anew, and died before 2 and 3, which put aside what they had, were whole."""
    old, new = Standing((Life("a.5", 5),), Holders(5, (1, 2, 3)), whole=True, seen_view=5), (Life("a.9", 9),)
    told = Standing(old.lives, old.holders, True, Successor(Holders(9, (1, 2, 3)), (1, 2, 3)), 5)
    assert supersedes(new, (5, 0), told) and not supersedes(new, (5, 0), old)
    assert not supersedes((*new, Life("a.12", 12, (9, 3))), (5, 0), told)  # others may have acknowledged something
    assert not supersedes(new, (9, 0), told) and not supersedes((Life("a.9", 9, (5, 1)),), (5, 0), told)
    taken = Standing(new, told.holders, True, told.successor, 5)
    for answers in ({2: Summary(taken), 3: Summary(taken)}, {2: Summary(taken), 3: Summary(told, (5, 0), (5, 9), 9)}):
        for since in (7, None):
            chosen = decide(answers, "a.11", 11, renewed_since=since)
            assert isinstance(chosen, Decision)
            assert (chosen.source, chosen.end, chosen.lives) == (None, NOTHING, (Life("a.11", 11),))


def test_what_was_given_up_in_a_group_that_is_no_more_stays_given_up() -> None:
    """All had written down that the topic begins anew, then all died; who had begun, if anybody, is away. It may have
    told a program that the topic is open."""
    begins = Successor(Holders(9, (1, 2, 3)), (1, 2, 3, 4), renews=True)
    old = Standing((Life("a.5", 5),), Holders(5, (1, 2, 3)), whole=True, seen_view=5)
    told, never = dataclasses.replace(old, successor=begins), Summary(Standing(successor=begins))
    answers = {2: Summary(told, (5, 0), (5, 3), 4), 3: Summary(told, (5, 0), (5, 4), 5), 4: never}
    assert decide(answers, "b.10", 10) == Decision(None, NOTHING, (Life("b.10", 10),), (2, 3), renews=True)
    chosen = decide({**answers, 4: Summary()}, "b.10", 10)  # it had to know, and doesn't: nobody has begun
    assert isinstance(chosen, Decision) and (chosen.source, chosen.renews) == (3, False)
    # With whoever has begun, that goes on.
    begun = Standing((Life("a.9", 9),), Holders(9, (1, 2, 3)), whole=True, seen_view=9)
    chosen = decide({**answers, 1: Summary(begun, (9, 0), (9, 2), 3)}, "b.10", 10)
    assert isinstance(chosen, Decision) and (chosen.source, chosen.end, chosen.renews) == (1, (9, 2), False)


def test_what_a_node_says_of_its_journal_comes_over_the_wire_whole() -> None:
    standing = Standing((FIRST, SECOND), THREE, True, Successor(Holders(9, (1, 2)), (1, 2, 3), renews=True), 7)
    summary = Summary(standing, (5, 0), (7, 3), 12, "damaged", True, ("type", b"hash"))
    assert summary_from_wire(summary_to_wire(summary, "t", 9)) == summary
    assert summary_from_wire(summary_to_wire(Summary(), "t", 9)) == Summary()


def test_any_goes_on_with_nothing_if_nobody_here_has_anything() -> None:
    """All of them had put aside what they had, and who had the rest doesn't come back."""
    cut = Summary(Standing((Life("a.9", 9),), Holders(5, (1, 2, 3)), False, Successor(Holders(9, (1, 2, 3))), 5))
    assert isinstance(decide({2: cut, 3: cut}, "a.11", 11), Missing)
    chosen = decide({2: cut, 3: cut, 4: Summary()}, "a.11", 11, "any")
    assert isinstance(chosen, Decision) and (chosen.source, chosen.voters) == (None, (2, 3))
    heard = Summary(Standing(successor=Successor(Holders(9, (1, 2, 3)))))
    assert isinstance(decide({4: heard, 5: Summary(Standing((FIRST,)))}, "a.11", 11, "any"), Missing)


def test_what_is_older_than_a_new_beginning() -> None:
    assert is_outdated((Life("a.9", 9),), (5, 0))
    assert not is_outdated((Life("a.9", 9),), (9, 0)) and not is_outdated((Life("a.9", 9),), NOTHING)
    assert not is_outdated((), (5, 0))
    # The lives before it are forgotten, not void.
    assert not is_outdated((Life("a.9", 9, (8, 3)), Life("a.12", 12, (9, 9))), (5, 0))
