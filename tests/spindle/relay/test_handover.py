"""Turning to the next node: whatever crashes, lags or stops, no message of an external writer comes twice or is lost.

Method: schedules of the model (`tests.spindle.relay.model`), and single steps.
"""

from __future__ import annotations

import pytest

from spindle.relay.handover import Answer, Ask, Done, Handover
from tests.spindle.relay.model import CLIENT, WRITER, World
from tests.spindle.relay.model_logged import LoggedWorld


@pytest.mark.parametrize("block", range(10))
def test_once_and_in_order_on_every_schedule(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        world = World(seed, 2 + seed % 4)
        world.client.turn_to(1)
        for _ in range(600):
            world.step()
        world.finish()


@pytest.mark.parametrize("block", range(10))
def test_a_logged_topic_outlives_all_its_nodes_once_and_in_order(block: int) -> None:
    """Goal: P1 and exactly once for external writers, also where the topic is taken up from journals again."""
    for seed in range(block * 40, block * 40 + 40):
        world = LoggedWorld(seed, 2 + seed % 4)
        world.client.turn_to(1)
        for _ in range(900):
            world.step()
        world.finish()


def test_an_earlier_turn_is_refused_wherever_a_later_one_is_known() -> None:
    """Goal: whoever was stopped in the middle can't go on where somebody else serves by now."""
    later, earlier = Handover(1), Handover(2)
    for one in (later, earlier):
        one.installed(9, 1, [1, 2])
    assert later.begin(CLIENT, 6, "now") == [] and later.begin(CLIENT, 5, "late") is None
    number, (ask,) = earlier.claim(CLIENT, 5, WRITER)[0], [
        one for one in earlier.claim(CLIENT, 5, WRITER)[1] if isinstance(one, Ask)]
    (answer,) = later.asked(2, ask.query)
    assert isinstance(answer, Answer) and answer.refusal
    assert isinstance(number, int)
    (done,) = earlier.answered(1, answer.query.number, answer.view_id, 0, answer.refusal)
    assert isinstance(done, Done) and done.refusal
    assert earlier.answered(1, answer.query.number, 1, 9) == []  # once


def test_who_lags_behind_the_view_answers_when_it_has_caught_up() -> None:
    """Goal: what a dead node's view has left to all counts, also where it isn't delivered yet."""
    lagging, asker = Handover(3), Handover(2)
    lagging.installed(9, 1, [1, 2, 3])
    asker.installed(9, 2, [2, 3])
    (ask,) = (one for one in asker.claim(CLIENT, 2, WRITER)[1] if isinstance(one, Ask))
    assert lagging.asked(2, ask.query) == []
    assert lagging.installed(9, 2, [2, 3]) == [Answer(2, ask.query, 2)]


def test_who_is_ahead_of_the_view_is_asked_again() -> None:
    """Goal: an answer from a later view decides nothing, as the asker may not have delivered yet what that says."""
    ahead, asker = Handover(3), Handover(2)
    ahead.installed(9, 2, [2, 3])
    asker.installed(9, 1, [2, 3])
    _, (ask, own) = asker.claim(CLIENT, 2, WRITER)
    assert isinstance(ask, Ask) and isinstance(own, Answer)
    assert asker.answered(2, own.query.number, own.view_id, 6) == []
    (answer,) = ahead.asked(2, ask.query)
    assert isinstance(answer, Answer) and asker.answered(3, ask.query.number, answer.view_id, 7) == []
    again = [one for one in asker.installed(9, 2, [2, 3]) if isinstance(one, Ask)]
    assert [one.node_id for one in again] == [3] and again[0].query.view_id == 2


def test_who_asked_in_a_group_that_has_ended_is_forgotten() -> None:
    """Goal: no question stays for ever (seed 203168). Method: the asker stops before this node is in its group, and
    both meet again in a new one."""
    asker, newcomer = Handover(1), Handover(2)
    asker.installed(9, 2, [1, 2])
    (ask,) = (one for one in asker.claim(CLIENT, 2, WRITER)[1] if isinstance(one, Ask))
    assert newcomer.asked(1, ask.query) == [] and newcomer._pending
    assert newcomer.installed(10, 1, [1, 2]) == [] and not newcomer._pending


def test_a_logged_topic_is_asked_about_twice() -> None:
    """Goal: what counts is the asker's own journal, after everybody's disk. Method: the answers one by one."""
    asker = Handover(1)
    asker.installed(9, 4, [1, 2])
    claim, (ask, own) = asker.claim(CLIENT, 2, WRITER, "topic", logged=True)
    assert isinstance(ask, Ask) and isinstance(own, Answer) and not ask.query.on_disk
    assert asker.answered(1, own.query.number, 4, 8) == []
    ask, own = asker.answered(2, ask.query.number, 4, 9)  # of a member that may have delivered what is lost since
    assert isinstance(ask, Ask) and isinstance(own, Answer) and ask.query.on_disk and own.query.on_disk
    assert asker.answered(1, own.query.number, 4, 5) == []
    assert asker.answered(2, ask.query.number, 4, 9) == [Done(claim, 5)]
