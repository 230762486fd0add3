"""Goal: what random runs have found once stays found. Method: each failure as a short script, with what was wrong."""

from __future__ import annotations

from spindle.membership import messages as m
from spindle_lab.sim import events as e
from tests.spindle_lab.sim.scenarios.script import Script


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


def test_who_asks_a_node_that_is_in_another_group_by_now_is_told_of_it() -> None:
    """Setup: node 1 alone; node 3 is admitted and loses its connection to node 1, which installs the view with it.
    Node 6 learns of that view. Script: node 1 dies; node 3, whom nobody lets in any more, forms a group of its own and
    tells node 6; only then node 6 learns of the death, and asks the only member left of the first view, node 3, under
    that view's number. Expect: node 3 tells it of its own group again, and lets it in. (It kept the request for when
    its group would have come to that number.)"""
    run = Script(1)
    run.start(3)

    def is_ready() -> bool:
        waiting = [part for link in run.life(1).links for item in link.queue_of(run.life(1)) for part in item]
        return any(isinstance(part, m.Prepared) for part in waiting)

    run.until(is_ready)
    assert run.do(e.CUT_LINK, 3, 1)
    run.until(lambda: run.view(1).rank_of(3) is not None, 1)
    run.start(6)
    run.until(lambda: (lambda told: told is not None and told.rank_of(3) is not None)(run.life(6).machine.view))
    run.crash(1)
    while not run.is_member(3):
        run.do(e.SCAN, 3)
        run.turns(1, 3)
    while run.receive(6, 3):
        run.do(e.CTL, 6, 1)
    assert run.life(6).machine.view.rank_of(1) is not None  # that node 1 has died it doesn't know yet
    run.finish([3, 6])
