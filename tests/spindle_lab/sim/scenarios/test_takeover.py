"""Goal: a leader that dies in the middle of a change costs nothing but time, whatever of it has reached whom.

Method: scenarios S01 to S05, S25, S26, S29 and S30, each a script over copied rows, where what a node pushes to another
can be held up. Node 1 leads. Every promise is checked after every event; a scenario adds what is particular about it.
"""

from __future__ import annotations

from spindle.group.levels import Level
from spindle.group.view import NODES_MAX
from spindle.membership.machine import Phase
from spindle_lab.sim import events as e
from tests.spindle_lab.sim.scenarios.script import Script


def proposer(ballot: int) -> int:
    """Rank of the member that made a ballot."""
    return (ballot - 1) % NODES_MAX


def test_s01_a_new_leader_waits_until_all_suspect_the_old_one() -> None:
    """Setup: four members, node 1 has proposed and two have acknowledged. Script: it dies, node 2 suspects it, what
    nodes 3 and 4 push to node 2 is held. Expect: node 2 proposes nothing before their suspicions are there."""
    run = Script(4, fabric="copied")
    run.do(e.ROLE, 1, 0, 1)
    run.until(lambda: run.column(2, "acked") > 0 and run.column(3, "acked") > 0)
    run.hold(3, 2)
    run.hold(4, 2)
    run.crash(1)
    before = run.column(2, "proposed")
    run.turns(20)
    assert run.life(2).machine.is_leader and run.column(2, "suspected0") == 1
    assert run.column(3, "suspected0") == run.column(4, "suspected0") == 1, "the others know as well"
    assert run.column(2, "proposed") == before
    run.release(3, 2)
    run.turns(20)
    assert run.column(2, "proposed") == before, "one of two is not all"
    run.release(4, 2)
    run.until(lambda: run.view(2).rank_of(1) is None)
    run.finish([2, 3, 4])


def test_s02_the_joiners_of_a_proposal_that_only_one_other_has_are_kept() -> None:
    """Setup: node 5 asks to join; node 1's proposal reaches node 3 only. Script: node 1 dies. Expect: node 2, which has
    never seen it, takes the joiner over after the barrier."""
    run = Script(4, fabric="copied")
    run.hold(1, 2)
    run.hold(1, 4)
    run.start(5)
    run.until(lambda: run.column(3, "acked") > 0)
    assert run.column(2, "acked") == run.column(4, "acked") == 0
    assert run.do(e.CRASH, 1, 1), "and what was held is lost"
    run.until(lambda: run.is_member(5))
    assert proposer(run.life(2).machine.ballot or 2) == 1
    first = run.views()[-1] if run.views()[-1].rank_of(5) is not None else run.view(5)
    assert first.rank_of(5) is not None
    run.finish([2, 3, 4, 5])


def test_s03_a_decision_that_stands_and_the_removal_of_its_leader_are_two_views() -> None:
    """Setup: node 1 leads a change of roles to the point where somebody else has wedged. Script: it dies. Expect: the
    next view is the decided one, with node 1 in it; the one after it is without node 1."""
    run = Script(3, fabric="copied")
    number = run.view(1).view_id
    run.do(e.ROLE, 3, 0, 1)
    run.until_phase(2, Phase.WEDGED)
    run.crash(1)
    run.until(lambda: run.view(2).rank_of(1) is None)
    after = [view for view in run.views() if view.view_id > number]
    assert [view.rank_of(1) is None for view in after[:2]] == [False, True]
    assert 3 not in after[0].topics[0].senders
    run.finish([2, 3])


def test_s04_a_trim_that_one_survivor_has_echoed_is_adopted() -> None:
    """Setup: node 2 writes; its messages reach node 3 and not node 1, so that the trim of node 1 keeps none of them.
    The trim reaches node 3, which echoes it, and not node 2. Script: node 1 dies. Expect: node 2 takes this trim over,
    though the least of those who are left would keep the messages; they are sent again in the next view."""
    run = Script(3, fabric="copied")
    run.do(e.ROLE, 3, 0, 1)
    run.until(lambda: min(run.column(node, "prepared") for node in (1, 2, 3)) > 0)
    assert run.column(1, "wedged") == 0
    run.push(2, 3)
    run.hold(1, 2, 3)
    run.until(lambda: run.column(1, "wedged") > 0, 1)
    run.write(2, 3)
    run.turns(2, 2, 3)
    run.release(1, 2, 3)
    run.push(1)
    run.until(lambda: run.column(2, "wedged") > 0 and run.column(3, "wedged") > 0, 2, 3)
    run.hold(1, 2)
    run.until(lambda: run.column(3, "trim_echoed") > 0, 1, 3)
    key = (run.view(3).group_id, run.view(3).view_id)
    assert run.column(2, "trim_echoed") == 0
    epoch = run.life(2).epoch
    assert epoch is not None and min(max(epoch.frozen_counts(rank, 1)) for rank in (1, 2)) == 3
    assert run.do(e.CRASH, 1, 1)
    run.until(lambda: run.view(2).rank_of(1) is None)
    assert run.world.check.trims[key] == {}, "nothing is kept"
    run.finish([2, 3])


def test_s04_a_trim_that_was_never_echoed_may_be_another_one() -> None:
    """As before, but the trim reached nobody: the next leader computes its own. Expect: one trim for all survivors."""
    run = Script(3, fabric="copied")
    run.write(2, 3)
    run.do(e.ROLE, 3, 0, 1)
    run.until_phase(2, Phase.WEDGED)
    run.hold(1, 2, 3)
    run.until(lambda: run.column(1, "trimmed") > 0)
    assert run.column(2, "trim_echoed") == run.column(3, "trim_echoed") == 0
    assert run.do(e.CRASH, 1, 1)
    run.until(lambda: run.view(2).rank_of(1) is None)
    run.finish([2, 3])


def test_s05_nobody_acts_on_a_trim_that_only_the_leader_knows() -> None:
    """Setup: a logged topic; the leader has written the trim and nobody else has seen it. Script: all die at once.
    Expect: not even the leader has delivered by it, so that no journal can hold what the others' journals lack. (What
    journals do after that: tests/spindle/restart.)"""
    run = Script(3, fabric="copied", level=Level.LOGGED)
    run.hold(2, 1)
    run.write(1, 3)
    run.turns(3)
    run.do(e.ROLE, 3, 0, 1)
    run.release(2, 1)
    run.until_phase(2, Phase.WEDGED)
    run.hold(1, 2, 3)
    before = len(run.delivered(1))
    number = run.view(1).view_id
    run.until(lambda: run.column(1, "trimmed") > 0)
    run.turns(10)
    assert run.view(1).view_id == number and len(run.delivered(1)) == before
    assert not run.world.check.trims.get((run.view(1).group_id, number))
    run.crash(1, 2, 3)
    run.finish()


def test_s25_a_leader_that_dies_after_the_wedge_leaves_no_one_waiting() -> None:
    """Setup: all have wedged, no trim is written. Script: the leader dies. Expect: the next one trims; whoever waited
    for the leader's word looks at the new leader, since who leads is looked up at every step and never remembered."""
    run = Script(3)
    run.write(1, 2)
    run.do(e.ROLE, 3, 0, 1)
    run.until(lambda: run.column(1, "wedged") > 0)
    run.until(lambda: run.column(2, "wedged") > 0 and run.column(3, "wedged") > 0, 2, 3)
    assert run.column(1, "trimmed") == 0
    run.crash(1)
    run.until(lambda: run.view(2).rank_of(1) is None)
    run.finish([2, 3])


def test_s26_two_leaders_with_two_trims_do_not_diverge() -> None:
    """Setup: five members; what node 3 has written reaches all but node 1, so that the trims of node 1 and of those
    after it would differ. Script: node 1's trim is echoed by node 4 only, node 1 dies; node 2 takes over, its trim is
    seen by nobody, and it dies as well. Expect: T1, one trim; members compare the bytes that all have echoed, not a
    flag."""
    run = Script(5, fabric="copied")
    run.do(e.ROLE, 5, 0, 1)
    run.until(lambda: min(run.column(node, "prepared") for node in range(1, 6)) > 0)
    assert run.column(1, "wedged") == 0
    run.push(2, 3, 4, 5)
    run.hold(1, 2, 3, 4, 5)
    run.until(lambda: run.column(1, "wedged") > 0, 1)
    run.write(3, 3)
    run.turns(2, 2, 3, 4, 5)
    run.release(1, 2, 3, 4, 5)
    run.push(1)
    run.until(lambda: min(run.column(node, "wedged") for node in range(2, 6)) > 0, 2, 3, 4, 5)
    run.push(2, 3, 4, 5)
    run.hold(1, 2, 3, 5)
    run.until(lambda: run.column(4, "trim_echoed") > 0, 1, 4)
    assert run.column(3, "trim_echoed") == 0
    epoch = run.life(4).epoch
    assert epoch is not None and min(max(epoch.frozen_counts(rank, 1)) for rank in (2, 3, 4)) == 3
    key = (run.view(4).group_id, run.view(4).view_id)
    assert run.do(e.CRASH, 1, 1)
    run.hold(2, 3, 5)
    run.until(lambda: run.column(2, "trimmed") > 0)
    assert proposer(run.column(2, "trimmed")) == 1
    assert run.do(e.CRASH, 2, 1)
    run.until(lambda: run.view(3).rank_of(2) is None)
    assert run.world.check.trims[key] == {}, "nothing is kept"
    run.finish([3, 4, 5])


def test_s29_a_leader_that_published_its_trim_and_died_before_acting_on_it() -> None:
    """Setup: node 1 has written the trim, the others have echoed it. Script: it dies before it delivers by it. Expect:
    the others go on with this trim: it needs nothing of node 1 any more."""
    run = Script(3)
    run.write(2, 2)
    run.do(e.ROLE, 3, 0, 1)
    run.until(lambda: run.column(1, "trimmed") > 0)
    run.until(lambda: run.column(2, "trim_echoed") > 0 and run.column(3, "trim_echoed") > 0, 2, 3)
    number = run.view(1).view_id
    run.crash(1)
    run.until(lambda: run.view(2).rank_of(1) is None)
    assert run.world.check.trims[run.view(2).group_id, number]
    run.finish([2, 3])


def test_s30_a_proposal_that_tears_was_acknowledged_by_nobody() -> None:
    """Setup: node 1's proposal is on its way to both others. Script: one line of it arrives, then node 1 dies and the
    rest is lost. Expect: nobody has acknowledged it, so it may be ignored; a later leader's proposal takes its
    place."""
    run = Script(3, fabric="copied")
    run.hold(1, 2, 3)
    run.do(e.ROLE, 1, 0, 1)
    run.until(lambda: run.column(1, "acked") > 0)
    run.push(1)
    for node in (2, 3):
        run.release(1, node)
        assert run.land(1, node, 1)
        run.do(e.TURN, node)
        assert run.column(node, "acked") == 0
    assert run.do(e.CRASH, 1, 1)
    run.until(lambda: run.view(2).rank_of(1) is None)
    run.finish([2, 3])
