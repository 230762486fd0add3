"""Goal: what random runs have found once stays found. Method: each failure as a short script, with what was wrong."""

from __future__ import annotations

from spindle.sim import events as e
from tests.spindle.sim.scenarios.script import Script


def test_a_first_message_that_meets_a_full_window_is_rung_for() -> None:
    """Setup: node 2's window is full of what it has claimed in place and of a declared silence, and its inbox has never
    been served. Script: everybody goes to sleep as soon as there is nothing to do; node 1 is the last to deliver.
    Expect: the inbox is emptied when slots come free. (It had said that it waits for slots only while a message of the
    inbox was on its way.)"""
    run = Script(2, window=2)
    assert run.do(e.DIRECT, 2, 0, 8)
    assert run.do(e.SILENCE, 2, 0, 1)
    run.write(1, 2)
    run.write(2, 2)
    for _ in range(20):
        for node in (2, 1):
            run.do(e.TURN, node)
            run.do(e.SLEEP, node)
    assert set(run.sent(2)) <= set(run.delivered(2))
    assert run.delivered(1) == run.delivered(2)
