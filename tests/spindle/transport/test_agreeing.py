"""Goal: two nodes are kept apart only by what could make two groups of one site, or what they could not read."""

from __future__ import annotations

import itertools

import pytest

from spindle.transport.agreeing import difference_between, told


def looks(*contacts: str, form: str = "majority", encrypt: str = "false") -> dict[str, str]:
    return {"[network] contacts": ", ".join(contacts) or "none", "[network] form": form, "[network] encrypt": encrypt}


@pytest.mark.parametrize(("ours", "theirs", "word"), [
    (looks("a", "b"), looks("a", "b"), ""),
    (looks("a", "b"), looks("a", "b", "c"), ""),  # one host is added
    (looks("a", "b", "c"), looks("b", "c"), ""),  # one is taken away
    (looks("a", "b"), looks("a", "c"), "one host at a time"),  # one is another
    (looks("a", "b"), looks("a", "b", "c", "d"), "one host at a time"),
    (looks(), looks("a"), "one host at a time"),  # who has none forms a group alone
    (looks("a"), looks("a", form="alone"), "form = majority, the other node alone"),
    (looks("a"), looks("a", encrypt="true"), "encrypt = false, the other node true"),
    (looks("a"), {}, "encrypt = false, the other node unknown"),
    (told(looks("a", "b"), looks=False), looks("c", "d"), ""),  # a member lets anybody learn the group's
    (looks("c", "d"), told(looks("a", "b"), looks=False), ""),
    (told(looks("a"), looks=False), looks("a", encrypt="true"), "encrypt"),
])
def test_what_keeps_two_nodes_apart(ours: dict[str, str], theirs: dict[str, str], word: str) -> None:
    found = difference_between(ours, theirs)
    assert word in found and bool(word) == bool(found)
    if theirs:
        assert bool(difference_between(theirs, ours)) == bool(word)


@pytest.mark.parametrize("count", range(1, 8))
def test_lists_that_may_meet_have_no_majorities_without_a_common_host(count: int) -> None:
    """Method: all pairs of majorities, of a list and of one with a host more."""
    hosts = [f"h{number}" for number in range(count + 1)]
    fewer, more = hosts[:count], hosts
    assert not difference_between(looks(*fewer), looks(*more))
    for one in itertools.combinations(fewer, count // 2 + 1):
        for other in itertools.combinations(more, (count + 1) // 2 + 1):
            assert set(one) & set(other)
