"""Goal: a reader that goes on stands where it stood, whichever groups took up the journals in between. Method: lives of
a topic, and places in them; a reader that moves from group to group by what each tells it."""

from __future__ import annotations

import pytest

from spindle.group.position import Position, farthest, places
from spindle.restart.chain import Life, place_in
from spindle.topics.placing import ends_of

A, B, C, D = 0xA, 0xB, 0xC, 0xD  # groups
LIVES = (Life("a.3", 3), Life("b.9", 9, (7, 20)), Life("c.15", 15, (13, 10)))
ENDS = (Position(A, 7, 21), Position(B, 13, 11))


def test_where_lives_end() -> None:
    assert ends_of(LIVES) == ENDS
    assert ends_of(LIVES[:1]) == ends_of(()) == ()
    assert ends_of((Life("a.3", 3), Life("b.9", 9))) == (), "nothing was ever in the first"


@pytest.mark.parametrize(("place", "been"), [
    ((15, 4), [*ENDS, Position(C, 15, 4)]),
    ((13, 11), [*ENDS, Position(C, 13, 11)]),
    ((13, 10), [ENDS[0], Position(B, 13, 10)]),
    ((7, 20), [Position(A, 7, 20)]),
    ((0, 0), [Position(A, 0, 0)]),
])
def test_where_a_reader_has_been(place: tuple[int, int], been: list[Position]) -> None:
    assert places(ENDS, C, place) == been
    assert places((), C, place) == [Position(C, *place)]


def test_a_group_in_between_that_wrote_nothing() -> None:
    """The reader went on in group C, which began after (13, 10), got the end of B's messages there, and one of C's own
    that no disk kept; then group D goes on from the same journals and has never heard of C. (Found by chaos: it got the
    end of B's messages twice.)"""
    been = {one.group_id: one for one in places(ENDS, C, (15, 1))}
    lives = (*LIVES[:2], Life("d.40", 40, (13, 10)))
    known = [place for one in been.values() if (place := place_in(lives, one.group_id, one.place)) is not None]
    assert max(known) == (13, 11)


def test_a_group_that_had_the_topic_twice() -> None:
    """A handle tells where the first life of a group ended; the reader had been in its second one. (Found by chaos.)"""
    had = [Position(A, 7, 21), Position(B, 157, 1)]
    assert farthest([*had, Position(A, 7, 21), Position(B, 102, 4)]) == had
    assert farthest([Position(B, 102, 4), *had]) == [Position(B, 157, 1), Position(A, 7, 21)]
