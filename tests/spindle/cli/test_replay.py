"""Goal: a replay that is to begin after some time begins then, whatever is done to the host's clock meanwhile.

Method: the clock is set back in the first wait; other waits take no time.
"""

import time
from types import SimpleNamespace

import pytest

from spindle.cli import replay


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_does_not_move_what_begins_after_some_time(
        monkeypatch: pytest.MonkeyPatch, set_by_s: float) -> None:
    waits: list[float] = []
    clocks = SimpleNamespace(sleep=waits.append, monotonic=lambda: 50.0 + sum(waits),
                             time=lambda: 1e9 + sum(waits) + (set_by_s if waits else 0.0))
    monkeypatch.setattr(replay, "time", clocks)
    replay.wait_until(3.0, SimpleNamespace(stopping=False))
    assert sum(waits) == 3.0


def test_a_moment_is_one_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clocks = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic, time=lambda: 1000.0 + sum(waits))
    monkeypatch.setattr(replay, "time", clocks)
    replay.wait_until(1_002_000_000_000, SimpleNamespace(stopping=False))
    assert sum(waits) == 2.0
