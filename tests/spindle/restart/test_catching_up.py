"""Goal: whatever interrupts a node that takes up its journal, nothing of the journal's end is left out of the log.

Method: the production class with a log and a journal that are lists; it is cancelled at every place, and begun again.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from spindle.restart import catching_up
from spindle.restart.catching_up import CatchingUp

PARTS = 5


class Local:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.full = 0

    async def journal(self) -> None:
        await asyncio.sleep(0)

    def append_history(self, messages: list[Any]) -> None:
        self.log += messages
        self.full = 3

    @property
    def history_waiting(self) -> int:
        """There is no room for a few looks."""
        self.full = max(0, self.full - 1)
        return catching_up.WAITING_MAX + 1 if self.full else 0


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_who_is_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(catching_up, "plain", lambda message: message)
    monkeypatch.setattr(catching_up, "TAIL_AT_ONCE", 3)
    monkeypatch.setattr(catching_up, "ROOM_POLL_S", 0)

    async def scenario() -> list[Any]:
        one = CatchingUp.__new__(CatchingUp)
        one.local, one.progress = Local(), 0  # type: ignore[assignment]
        one._tail, one._reading = iter(range(3 * PARTS)), None  # type: ignore[assignment]
        for attempt in itertools.count(1):
            task = asyncio.ensure_future(one._append_tail())
            for _ in range(attempt * turns):
                await asyncio.sleep(0)
            if task.done() or attempt > 10:
                break
            task.cancel()
            await asyncio.wait([task])
        await one._append_tail() if task.done() else await task
        return one.local.log  # type: ignore[attr-defined, no-any-return]

    assert asyncio.run(scenario()) == list(range(3 * PARTS))
