"""Goal: requests get a part of the loop's time and no more, each in its turn, and nothing is forgotten.

Method: tasks that work for a given time, with a clock of their own; beside them a task that counts the loop's rounds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from spindle.applications import turns as module
from spindle.applications.turns import TURN_S, WOKEN_AT_ONCE, Turns


class Clock:
    """Stands still unless somebody works."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    yield made


async def work(turns: Turns, clock: Clock, for_s: float) -> None:
    await turns.wait()
    with turns.working():
        clock.now += for_s


def test_a_round_has_a_turn_of_work_and_one_piece_more(clock: Clock) -> None:
    """Goal: however many ask at once, the loop comes round. Method: 100 pieces of half a turn; whoever else is on the
    loop notes how much was done from one of its rounds to the next: parts of two turns."""

    async def body() -> None:
        turns = Turns()
        tasks = [asyncio.ensure_future(work(turns, clock, TURN_S / 2)) for _ in range(100)]
        await asyncio.sleep(0)
        seen = [clock.now]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            seen.append(clock.now)
        done = [after - before for before, after in itertools.pairwise(seen)]
        assert max(done) < 2 * TURN_S and clock.now == pytest.approx(50 * TURN_S)
        assert turns.rounds >= 30

    asyncio.run(body())


def test_first_come_first_served(clock: Clock) -> None:
    """Goal: who waits longest is next, also if he was woken and the turn was over. Method: pieces that each fill a
    turn, so that all but one of those who are woken go back."""

    async def body() -> None:
        turns, order = Turns(), list[int]()

        async def numbered(k: int) -> None:
            await turns.wait()
            with turns.working():
                clock.now += 2 * TURN_S
                order.append(k)

        await asyncio.gather(*(numbered(k) for k in range(3 * WOKEN_AT_ONCE)))
        assert order == list(range(3 * WOKEN_AT_ONCE))

    asyncio.run(body())


def test_who_gives_up_holds_up_nobody(clock: Clock) -> None:
    """Goal: cancelled waiters are passed over. Method: of 40 that wait every second one is cancelled."""

    async def body() -> None:
        turns = Turns()
        tasks = [asyncio.ensure_future(work(turns, clock, TURN_S)) for _ in range(40)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks[1::2]), 10)
        await work(turns, clock, TURN_S)

    asyncio.run(body())


def test_without_work_nobody_waits(clock: Clock) -> None:
    async def body() -> None:
        turns = Turns()
        for _ in range(1000):
            await work(turns, clock, 0.0)
        assert turns.rounds == 0

    asyncio.run(body())
