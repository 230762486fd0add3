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


def test_a_joiner_and_a_member_that_lose_each_other_meet_again() -> None:
    """Setup: two members, a third is admitted. Script: the connection between the joiner and the member that doesn't
    lead breaks after the joiner has offered its row, which is lost with it. Expect: they connect again and the view
    comes. (Connections were made once for each proposal, and the leader had heard that the joiner was ready.)"""
    run = Script(2)
    run.start(3)
    run.until(lambda: run.life(3).next_view is not None)
    assert run.do(e.CUT_LINK, 3, 2)
    run.until(lambda: run.is_member(3))
    run.finish([1, 2, 3])
