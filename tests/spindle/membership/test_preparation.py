"""Goal: a view that takes too long to prepare: everybody says what it lacks, then the leader leaves somebody out.

Method: a made-up machine that notes what it is told, and times that are given.
"""

from __future__ import annotations

from typing import Any

from spindle.membership.preparation import LACKS_WAIT_S, PREPARE_TIMEOUT_S, Preparation


class MadeUp:
    def __init__(self) -> None:
        self.ballot = 5
        self.told: list[Any] = []
        self.missing = {3: "nothing has come"}
        machine: Any = self
        self.preparation = Preparation(machine, lambda ballot: self.missing if ballot == self.ballot else {})

    def lacks(self, ballot: int, lacks: Any) -> None:
        self.told.append((ballot, dict(lacks)))

    def leave_out(self, ballot: int, again: bool) -> list[Any]:
        self.told.append((ballot, again))
        return ["joiner"]


def test_first_what_is_lacking_then_who_is_left_out_and_so_again() -> None:
    group = MadeUp()
    preparation = group.preparation
    assert preparation.due_s is None
    preparation.begins(5, 100.0)
    assert preparation.due_s == 100.0 + PREPARE_TIMEOUT_S
    assert preparation.look(110.0) == ({3: "nothing has come"}, [])
    assert preparation.due_s == 110.0 + LACKS_WAIT_S
    assert preparation.look(112.0) == ({}, ["joiner"])
    assert preparation.due_s == 112.0 + PREPARE_TIMEOUT_S
    preparation.look(120.0)
    preparation.look(121.0)
    assert group.told == [(5, group.missing), (5, False), (5, group.missing), (5, True)]


def test_the_view_has_come_meanwhile() -> None:
    group = MadeUp()
    group.preparation.begins(5, 100.0)
    group.missing = {}
    assert group.preparation.look(105.0) == ({}, []) and not group.told, "nothing is lacking, so nobody is told"
    group.ballot = 0
    group.preparation.look(106.0)
    assert group.preparation.due_s is None


def test_another_ballot_begins_anew() -> None:
    group = MadeUp()
    group.preparation.begins(5, 100.0)
    group.preparation.look(105.0)
    group.ballot = 6
    group.preparation.begins(6, 105.5)
    assert group.preparation.due_s == 105.5 + PREPARE_TIMEOUT_S
    group.preparation.look(111.0)
    group.preparation.look(112.0)
    assert group.told == [(5, group.missing), (6, group.missing), (6, False)]
