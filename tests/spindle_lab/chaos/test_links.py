"""Goal: every fault of the links does something, is mended by itself, and excuses those that it may end.

Method: hosts, stage and schedule that only note what they are told; no namespaces, no time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from spindle_lab.chaos.faults import CERTAIN_ENDS, LINKS, NAMES, ONE_HOST
from spindle_lab.chaos.hosts import Direction
from spindle_lab.chaos.lines import Line
from spindle_lab.chaos.links import EXCUSED, LINK_FAULTS
from spindle_lab.chaos.round import DEATHS_OF_A_MAJORITY, MAJORITY, Plan


class Noted:
    """Hosts, stage, schedule and faults in one."""

    suspect_timeout_s = 1.0

    def __init__(self, seed: int, hosts: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = list(range(1, hosts + 1))
        self.hosts = self.stage = self.schedule = self
        self.daemons = dict.fromkeys(self.numbers)
        self.excused: set[int] = set()
        self.cuts: Counter[Direction] = Counter()
        self.cut_in_all = 0
        self.unplugged: set[int] = set()
        self.lines: dict[Direction, Line] = {}
        self.killed: list[int] = []
        self.returning: list[int] = []
        self._later: list[tuple[float, Callable[[], None]]] = []

    def cut(self, directions: Iterable[Direction]) -> None:
        directions = list(directions)
        assert directions and all(one != other and {one, other} <= set(self.numbers) for one, other in directions)
        self.cuts.update(directions)
        self.cut_in_all += len(directions)

    def mend(self, directions: Iterable[Direction]) -> None:
        self.cuts.subtract(directions)

    def unplug(self, host: int) -> None:
        self.unplugged.add(host)

    def plug(self, host: int) -> None:
        self.unplugged.remove(host)

    def set_line(self, directions: Iterable[Direction], line: Line) -> None:
        directions = list(directions)
        assert directions and line != Line() and str(line) != str(Line())
        assert all(one != other and {one, other} <= set(self.numbers) for one, other in directions)
        self.lines.update(dict.fromkeys(directions, line))

    def clear_line(self, directions: Iterable[Direction]) -> None:
        for one in directions:
            del self.lines[one]

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        self._later.append((delay_s, what))

    def run(self) -> None:
        for _, what in sorted(self._later, key=lambda one: one[0]):
            what()

    def host_of(self, node: int) -> int:
        return node

    def kill(self, node: int) -> None:
        self.killed.append(node)

    def come_back(self, node: int, delay_s: float) -> None:
        self.returning.append(node)

    def excuse(self, *codes: int) -> None:
        assert codes == EXCUSED


@pytest.mark.parametrize("name", [one[0] for one in LINK_FAULTS])
@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_every_fault_does_something_and_is_mended(name: str, hosts: int) -> None:
    strike: Any = next(one for one in LINK_FAULTS if one[0] == name)[2]
    did_something = False
    for seed in range(40):
        noted = Noted(seed, hosts)
        said = strike(noted)
        if name == "partition as a ring" and hosts < 3:  # there is none
            assert not said
            return
        assert said
        did_now = bool(noted.cuts or noted.unplugged or noted.lines)
        noted.run()
        assert not +noted.cuts and not -noted.cuts and not noted.unplugged and not noted.lines
        assert noted.killed == noted.returning
        did_something = did_something or did_now or noted.cut_in_all > 0
        if noted.cut_in_all or noted.killed:
            assert noted.excused == set(EXCUSED)
    assert did_something


def test_a_plan_leaves_out_after_what_less_is_promised() -> None:
    every = [*NAMES, *(one.name for one in LINKS)]
    seen = set()
    for seed in range(200):
        plan = Plan.of(seed, 1.0, hosts=3)
        possible = set(plan.possible(every))
        assert not possible & set(ONE_HOST) and {one.name for one in LINKS} <= possible and plan.nodes >= 3
        form = next(one.partition("=")[2] for one in plan.settings if one.startswith("network.form="))
        assert form == "all" or (plan.nodes == 3 and not possible & set(CERTAIN_ENDS))
        restart = f"journal.restart={MAJORITY}" in plan.settings
        assert not (restart and possible & set(DEATHS_OF_A_MAJORITY))
        seen.add((form, restart, plan.nodes > 3))
        assert not {one.name for one in LINKS} & set(Plan.of(seed, 1.0).possible(every))
    assert len(seen) == 6
