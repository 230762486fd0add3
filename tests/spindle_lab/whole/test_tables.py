"""Goal: what the simulator demands of the tables of keys is what nodes promise, whoever comes, goes and comes back.

Method: real logs at nodes that are nothing but names, looked at one after the other as after passes of their engines.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spindle_lab.whole.tables import Tables
from spindle_lab.whole.violation import Violation
from tests.spindle_core.test_lasts import VIEW, said
from tests.spindle_core.test_lasts_over import log_of, message, spec_of


class Member:
    """Topic "t" at a node."""

    def __init__(self, name: str, entered: int) -> None:
        self.spec = spec_of()
        self.lives, self.busy = (), False
        self.node = SimpleNamespace(
            _view=SimpleNamespace(group_id=1), _error=None,
            _changes=SimpleNamespace(topics=SimpleNamespace(local={self.spec.name: self})))
        self.engine: Any = SimpleNamespace(node=self.node, process=name)
        self.enter(entered)

    def enter(self, view_id: int, *, anew: bool = True) -> None:
        self.log, self._entered, self.began_anew, self.member = log_of(self.spec), view_id, anew, True

    @property
    def whole(self) -> bool:
        return self.member

    def leave(self) -> None:
        self.member = False
        self.log = None


class Group:
    def __init__(self, *members: Member) -> None:
        self.members = members
        world: Any = SimpleNamespace(met=lambda what: None, nodes=[
            SimpleNamespace(serving=True, process=one.engine.process, attachments=SimpleNamespace(node=one.node))
            for one in members])
        self.tables = Tables(world)
        self.place = 0

    def say(self, key: int) -> None:
        """A message that all members have."""
        for one in self.members:
            if one.log is not None:
                one.log.append(*message(said(self.place, key)))
        self.place += 1

    def look(self) -> None:
        for one in self.members:
            self.tables.look(one.engine)


def test_members_that_have_all_left_and_come_back_together_begin_anew() -> None:
    """Each of them was looked at as a member of the topic that was there before, and none has anything of it."""
    one, other = Member("n1", 1), Member("n2", 1)
    group = Group(one, other)
    group.look()
    group.say(1)
    group.look()
    for member in group.members:
        member.leave()
        member.enter(VIEW)
    group.look()
    group.say(2)
    group.look()
    assert other.log.table_figures()["messages"] == 1


def test_a_member_that_lacks_what_others_have_is_found() -> None:
    one, other = Member("n1", 1), Member("n2", 1)
    group = Group(one, other)
    group.look()
    group.say(1)
    group.look()
    other.leave()
    other.enter(VIEW, anew=False)
    group.say(2)
    with pytest.raises(Violation, match="H3: n2 keeps"):
        group.look()
