"""The clock beside the machine, with a machine and an epoch that are made up: who is accused, who is waited for, when a
node gives up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest

from spindle.config.settings import NodeConfig
from spindle.membership.detector import BEATS_PER_TIMEOUT
from spindle.membership.watch import HANGING
from spindle.node.liveness import Liveness


class MadeUp:
    """Machine and epoch in one: three members, of which we are rank 0."""

    my_rank = 0
    node_ids = (10, 11, 12)

    def __init__(self, may: bool) -> None:
        self.may, self.in_minority, self.far = may, False, False
        self.beats = {0: 0, 1: 0, 2: 0}
        self.suspected: list[int] = []
        self.gave_up = False
        self.lost: list[int] = []
        self.steps = 0

    def live_ranks(self) -> list[int]:
        return [rank for rank, node_id in enumerate(self.node_ids) if node_id not in self.suspected]

    def is_near(self, node_id: int) -> bool:
        return not self.far

    def to_suspect(self, late: set[int]) -> set[int]:
        return late if self.may else set()

    def suspect(self, node_id: int, why: str) -> None:
        assert "no sign of life" in why
        self.suspected.append(node_id)

    def give_up(self, silent: Collection[int] = ()) -> None:
        self.gave_up, self.lost = True, list(silent)

    def get(self, rank: int, column: str) -> int:
        assert column == "heartbeat"
        return self.beats[rank]

    def vouch(self, between_ns: int, beats_max: int) -> None:
        assert between_ns * BEATS_PER_TIMEOUT == 100_000_000 and beats_max == HANGING * BEATS_PER_TIMEOUT
        self.beats[0] += 1

    def step(self) -> None:
        self.steps += 1
        self.beats[1] += 1  # rank 1 is lively


def with_liveness(may: bool, test: Callable[[MadeUp, Liveness], Awaitable[None]]) -> None:
    async def body() -> None:
        made_up: Any = MadeUp(may)
        liveness = Liveness(NodeConfig(suspect_timeout_s=0.1), made_up, made_up.step)
        liveness.installed(made_up)
        await asyncio.wait_for(test(made_up, liveness), 10)
        liveness.stop()
        looks = made_up.steps
        await asyncio.sleep(0.03)
        assert made_up.steps == looks, "it looks after its end"

    asyncio.run(body())


def said(caplog: pytest.LogCaptureFixture, *words: str) -> int:
    """How often the log has these words. After a stall, of this test, everything is said anew."""
    return len([one for one in caplog.messages if all(word in one for word in words)])


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_who_is_silent_is_accused_and_nobody_else() -> None:
    """Goal: a hanging member is suspected, the lively one isn't. Method: rank 2 never beats."""

    async def test(made_up: MadeUp, liveness: Liveness) -> None:
        await until(lambda: made_up.suspected)
        assert made_up.suspected == [12] and made_up.beats[0] > 10
        steps = made_up.steps
        await until(lambda: made_up.steps > steps + 30)  # longer than the timeout: no word about it again
        assert made_up.suspected == [12] and liveness.silent_s(1) < 0.1

    with_liveness(True, test)


def test_without_a_majority_to_remain_it_waits_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: nobody is accused if too few would remain; people can see for whom the node waits. Method: the machine says
    no; look at the log and the figure for the status."""

    async def test(made_up: MadeUp, liveness: Liveness) -> None:
        await until(lambda: liveness.silent_s(2) > 0.3)
        assert not made_up.suspected

    with caplog.at_level(logging.WARNING, "spindle.node"):
        with_liveness(False, test)
    assert 1 <= said(caplog, "node 12", "waits") <= 1 + said(caplog, "was stopped")


def test_who_is_cut_off_waits_as_long_again_and_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a node that hears nobody of a majority elsewhere doesn't wait for ever; nor stop while links may come back.
    Method: rank 2 is on another host; silent for longer than the timeout, then heard of again, then silent for good."""

    async def test(made_up: MadeUp, liveness: Liveness) -> None:
        made_up.far = True
        await until(lambda: liveness.silent_s(2) > 0.12)
        made_up.beats[2] += 1
        await until(lambda: liveness.silent_s(2) > 0.12)
        assert not made_up.suspected and not made_up.gave_up
        await until(lambda: made_up.gave_up)
        assert not made_up.suspected and made_up.lost == [12]

    with caplog.at_level(logging.WARNING, "spindle.node"):
        with_liveness(False, test)
    assert 2 <= said(caplog, "node 12", "cut off itself") <= 2 + said(caplog, "was stopped")


def test_a_minority_gives_up_after_the_timeout_unless_it_ends() -> None:
    """Goal: a node without a majority stops, but not if it finds in time that it has one. Method: in a minority for a
    moment, then for good."""

    async def test(made_up: MadeUp, liveness: Liveness) -> None:
        made_up.in_minority = True
        steps = made_up.steps
        await until(lambda: made_up.steps > steps + 3)
        made_up.in_minority = False
        await until(lambda: made_up.steps > steps + 40)
        assert not made_up.gave_up
        made_up.in_minority = True
        await until(lambda: made_up.gave_up)

    with_liveness(False, test)
