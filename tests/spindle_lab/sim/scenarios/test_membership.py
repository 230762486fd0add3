"""Goal: members come, go, hang and come back in every unfortunate order, and the group neither stands still nor splits.

Method: scenarios S06, S07, S09 to S13, S20 to S24, S28 and S31 to S33, each a script. Every promise is checked after
every event; a scenario adds what is particular about it. Node 1 leads.
"""

from __future__ import annotations

import itertools

import pytest

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.membership.machine import Phase
from spindle_core.epoch import AREAS
from spindle_lab.sim import events as e
from tests.spindle_lab.sim.scenarios.script import Script

PHASES = [Phase.ACKNOWLEDGED, Phase.PREPARING, Phase.PREPARED, Phase.WEDGED, Phase.ECHOED, Phase.INSTALLING]


def change(run: Script, node: int, phase: Phase) -> None:
    """One that goes through this phase: what has to be committed is a revision here."""
    if phase is Phase.ACKNOWLEDGED:
        run.life(node).machine.declare(TopicSpec("more", window=4, size_max=8))
        run.life(node).dirty = True
    else:
        run.do(e.ROLE, node, 0, 1)


def test_s06_nobody_begins_with_a_part_of_a_batch() -> None:
    """Setup: three nodes ask to join at once. Script: the proposal with all of them reaches node 2 line by line, and at
    some time the columns that speak of it are there, too, which no fabric would do. Expect: node 2 acknowledges nothing
    before the end of the proposal is there, whatever the columns say; then all come in one view."""
    run = Script(2, fabric="copied", topics=3)
    number = run.view(1).view_id
    run.do(e.ROLE, 2, 0, 1)
    run.until_phase(1, Phase.PREPARING)
    for node in (3, 4, 5):
        run.start(node)
    run.until(lambda: len(run.life(1).machine._wishes.joins) == 3)
    run.until(lambda: run.view(1).view_id == run.view(2).view_id == number + 1)
    run.hold(1, 2)
    run.until(lambda: run.column(1, "acked") > 0, 1)
    run.push(1)
    run.release(1, 2)
    lines, area = 0, AREAS["proposal"][0]
    while run.column(2, "acked") == 0:
        run.life(2).dirty = True
        run.do(e.TURN, 2)
        assert run.column(2, "acked") == 0 or lines >= 2, "lines behind the first of the proposal"
        assert run.column(2, "acked") or run.land(1, 2, 1)
        lines += 1
        if run.seen(2, 1, "proposed") == 0 and any(run.row(2, 1)[area: area + 16]):
            run.row(2, 1)[64:192] = run.row(1, 1)[64:192]
            assert run.seen(2, 1, "proposed") > 0
            lines = 0
    run.until(lambda: run.is_member(5))
    assert run.view(5).node_ids == (1, 2, 3, 4, 5)
    run.finish([1, 2, 3, 4, 5])


@pytest.mark.parametrize("order", [(1, 2, 3, 4, 5, 6), (6, 2, 5, 1, 4, 3), (3, 1, 4, 6, 2, 5)])
def test_s07_all_start_at_once(order: tuple[int, ...]) -> None:
    """Setup: one node. Script: six more start at the same time, with topics that overlap in part, and work in any
    order. Expect: nobody waits for a change that nobody proposes; both topics run."""
    run = Script(1, topics=2)
    for node in order:
        if node != 1:
            run.start(node)
            run.do(e.ROLE, node, node % 2, 2)
    for node in order:
        run.turns(1, node)
    run.until(lambda: all(run.is_member(node) for node in order))
    run.quiet()
    for node in order:
        run.write(node, 1, topic=node % 2 if node != 1 else 0)
    run.finish(list(order))


@pytest.mark.parametrize("phase", PHASES)
def test_s09_a_failure_in_any_phase_ends_in_a_view(phase: Phase) -> None:
    """Setup: a change is under way and node 3 is in this phase of it; a keep-all reader at node 2 takes nothing.
    Script: node 3 dies; node 2 is not told so, it can only see it in node 1's row. Expect: the others have a view
    without it in a bounded number of steps: nothing that decides waits for a reader, a lock or a delivery."""
    run = Script(3, small_logs=True)
    run.do(e.SLOW, 2, 0, 1)
    for _ in range(20):
        run.do(e.WRITE, 1, 0, 4, 64)
        run.turns(2)
    change(run, 3, phase)
    run.until_phase(3, phase, 1, 3, 2)
    run.crash(3)
    before = run.world.steps
    while run.view(1).rank_of(3) is not None or run.view(2).rank_of(3) is not None:
        run.do(e.TURN, 1)
        run.receive(2, 1)
        run.do(e.STEP, 2)
        run.do(e.CTL, 2, 1)
        assert run.world.steps - before < 300
    run.finish([1, 2])


def test_s10_what_a_suspect_has_left_can_be_read_until_the_next_view() -> None:
    """Setup: node 3's messages are received everywhere and delivered nowhere. Script: it dies and is cut off. Expect:
    its row stays where it is until the view is installed: its messages are delivered by the trim."""
    run = Script(3)
    run.write(3, 2)
    run.do(e.STEP, 3)
    for node in (1, 2):
        run.do(e.STEP, node)
    run.crash(3)
    epoch = run.life(1).epoch
    assert epoch is not None
    run.until(lambda: run.world.probes.get("cut", 0) >= 2)
    assert epoch.get(2, "installed") > 0
    run.until(lambda: run.view(1).rank_of(3) is None)
    number = run.view(1).view_id
    view = next(view for view in run.views() if view.rank_of(3) is not None and view.view_id == number - 1)
    assert len(run.world.check.sequences[view.group_id, view.view_id, 1].entries) == 2
    run.finish([1, 2])


def test_s11_more_joiners_than_members() -> None:
    """Setup: one member. Script: six nodes ask to join at the same time. Expect: they all come in, the leader lives."""
    run = Script(1)
    for node in range(2, 8):
        run.start(node)
    run.until(lambda: all(run.is_member(node) for node in range(2, 8)))
    assert len(run.views()) <= 5, "those that wait together come in together"
    run.finish(list(range(1, 8)))


def test_s12_nobody_is_suspected_under_load_or_after_a_stall_of_ones_own() -> None:
    """Setup: three members, all writing as fast as they can. Script: node 4 joins meanwhile; then nodes 2 and 4 don't
    run for four timeouts, and node 2 wakes up first. Expect: nobody is suspected while all run; the other two are no
    majority, so they wait; and node 2 accuses nobody of what it has not seen itself."""
    run = Script(3)
    run.start(4)
    for _ in range(60):
        for node in (1, 2, 3):
            run.do(e.WRITE, node, 0, 4, 64)
        run.pass_time(5)
    assert run.is_member(4) and not run.world.causes
    run.do(e.TICK, 20_000_000)
    for node in (4, 2):  # their last heartbeats come at once: who looks in between may miss one of them longer
        run.do(e.STEP, node)
    for node in (4, 2, 1, 3):
        assert run.do(e.LOOK, node)
    run.pass_time(4 * run.world.setup.suspect_timeout_ns // 1_000_000, 1, 3)
    assert not run.world.causes and run.world.probes["may not suspect"]
    run.do(e.LOOK, 2)
    assert not run.world.causes, "it looked first, after a time in which it saw nobody's heart beat"
    run.do(e.LOOK, 4)
    for node in (4, 2):
        run.do(e.STEP, node)
    run.pass_time(50)
    assert not run.world.causes
    run.finish([1, 2, 3, 4])


@pytest.mark.parametrize(("nodes", "leavers"), [
    (2, (1,)), (2, (2,)), (5, (1, 2, 3)), (5, (2, 4, 5, 1)), (3, (3, 2, 1))])
def test_s13_leaving_in_order_is_no_failure(nodes: int, leavers: tuple[int, ...]) -> None:
    """Setup: two or more members. Script: one of two, or most of them at once, leave in order; the others read their
    mail before they look at rows, and so hear of the end before they go on themselves. Expect: nobody stops for want of
    a majority, nobody is suspected."""
    run, stored = Script(nodes), []
    run.world.check.stored = lambda life, column, value: stored.append(column)  # type: ignore[method-assign]
    for node in leavers:
        run.write(node, 2)
        run.do(e.LEAVE, node)
    for _ in range(200):
        for node in range(1, nodes + 1):
            while node not in leavers and run.do(e.RECV, node, 0):
                pass
            run.do(e.STEP, node)
            run.do(e.CTL, node, 1)
            while node in leavers and run.do(e.RECV, node, 0):
                pass
    assert all(run.life(node).end == "left" for node in leavers)
    stay = [node for node in range(1, nodes + 1) if node not in leavers]
    assert not run.world.causes and not run.world.probes.get("cut") and "suspected0" not in stored
    if stay:
        run.finish(stay)
    else:
        run.world.close()


def test_s13_who_has_left_is_waited_for_no_more_and_suspected_of_nothing() -> None:
    """Setup: three members, copied rows. Script: node 3 leaves; it has seen all echoes of the trim, and is gone before
    node 2's has reached node 1. Expect: node 1 counts it as one that left in order: it accuses nobody, keeps its
    majority and goes on when the echo is there."""
    run, stored = Script(3, fabric="copied"), []
    run.world.check.stored = lambda life, column, value: stored.append(column)  # type: ignore[method-assign]
    number = run.view(1).view_id
    assert run.do(e.LEAVE, 3)
    run.until(lambda: run.seen(1, 2, "wedged") > 0 and run.seen(1, 3, "wedged") > 0)
    run.hold(2, 1)
    run.until(lambda: run.life(3).end == "left")
    run.turns(5)
    assert run.view(1).view_id == number and run.phase(1) is Phase.ECHOED
    assert run.life(1).machine.live_ranks() == [0, 1] and not run.life(1).machine.in_minority
    run.release(2, 1)
    run.until(lambda: run.view(1).view_id > number)
    assert not run.world.probes.get("cut") and "suspected0" not in stored
    run.finish([1, 2])


def test_s20_a_joiner_that_dies_at_once_is_no_source() -> None:
    """Setup: a logged topic; node 3 is admitted. Script: it dies before and after it installs its first view. Expect:
    the view stands or is revised, and the next one is without it. (That a node which has not yet got the history never
    gives it: tests/spindle/restart.)"""
    for phase in (Phase.ADMITTED, Phase.INSTALLING):
        run = Script(2, level=Level.LOGGED)
        run.start(3)
        run.until_phase(3, phase)
        run.crash(3)
        run.until(lambda: run.view(1).rank_of(3) is None and run.phase(1) is Phase.STABLE)  # noqa: B023
        run.finish([1, 2])


def test_s21_nodes_that_start_while_all_others_die_are_not_lost() -> None:
    """Setup: a group of two; node 3 was told of it, and asks to join. Script: both members die, one starts again, finds
    no group and forms one. Expect: node 3 forgets the group that is no more, and joins the new one."""
    run = Script(2)
    run.start(3)
    run.until(lambda: run.life(3).machine.view is not None)
    run.crash(1, 2)
    run.start(1)
    run.until(lambda: run.is_member(1))
    run.finish([1, 3])


def test_s22_a_node_id_comes_back_while_its_earlier_life_is_a_member() -> None:
    """Setup: three members, and a change that stands already. Script: node 3 dies and starts again at once; then the
    new life dies, too, just when it is admitted, and a third one starts. Expect: lives are told apart by their
    incarnation: the first leaves the view before a later one comes in, and the group waits for no dead one."""
    run = Script(3)
    run.do(e.ROLE, 1, 0, 1)
    run.until(lambda: run.column(1, "wedged") > 0)
    run.crash(3)
    run.start(3)
    run.until_phase(3, Phase.ADMITTED)
    run.crash(3)
    run.start(3)
    run.until(lambda: run.is_member(3) and run.phase(1) is Phase.STABLE)
    lives = [member.incarnation for view in run.views() for member in view.members if member.node_id == 3]
    assert lives == sorted(lives) and len(set(lives)) >= 2
    for before, after in itertools.pairwise(run.views()):
        one, other = before.member(3), after.member(3)
        assert one is None or other is None or one == other, "a view without the first is between them"
    run.finish([1, 2, 3])


def test_s23_what_is_on_its_way_when_a_topic_is_given_up_is_settled_once() -> None:
    """Setup: node 3's writer has messages that nobody has acknowledged. Script: its application closes it; the node
    gives up its part in the topic. Expect: it stays a sender until all is acknowledged, then is none: each message was
    delivered and acknowledged once (A1, D2, D10)."""
    run = Script(3)
    run.write(3, 4)
    sent = run.sent(3)
    run.do(e.ROLE, 3, 0, 0)
    assert 3 in run.view(1).topics[0].senders
    run.until(lambda: 3 not in run.view(1).topics[0].members)
    delivered = [entry[3] for one in run.world.check.sequences.values() for entry in one.entries]
    assert delivered == sent
    run.finish([1, 2, 3])


def test_s24_a_node_that_is_told_that_it_failed_stops_cleanly() -> None:
    """Setup: three members. Script: node 1 suspects node 2, which works, and takes nothing from its connections.
    Expect: node 2 sees in node 1's row that it is suspected, and stops by itself with CastOut; the others go on, and it
    comes back as a new life."""
    run = Script(3)
    run.suspect(1, 2)
    for _ in range(20):
        run.do(e.STEP, 2)
        run.do(e.CTL, 2, 1)
    assert run.life(2).end_kind == "CastOut"
    run.until(lambda: run.view(1).rank_of(2) is None and run.phase(1) is Phase.STABLE)
    run.start(2)
    run.until(lambda: run.is_member(2))
    run.finish([1, 2, 3])


@pytest.mark.parametrize("phase", PHASES)
def test_s28_a_member_that_is_stopped_in_any_phase_is_left_out(phase: Phase) -> None:
    """Setup: a change is under way. Script: node 3 is stopped in this phase (SIGSTOP) and never goes on. Expect:
    suspicion works in the middle of a change; the others go on without it. Nothing that decides blocks on a peer."""
    run = Script(3)
    change(run, 1, phase)
    run.until_phase(3, phase, 1, 3, 2)
    run.do(e.PAUSE, 3)
    run.pass_time(300)
    assert run.view(1).node_ids == run.view(2).node_ids == (1, 2)
    run.do(e.RESUME, 3)
    run.finish([1, 2])


@pytest.mark.parametrize("fabric", ["shared", "copied"])
def test_s31_what_a_zombie_stores_lands_where_nobody_reads(fabric: str) -> None:
    """Setup: three members. Script: node 1 is stopped, the others go on without it; it wakes up, and before it reads
    that it was cast out it claims slots of its ring, publishes, acknowledges, and even proposes a view. Expect: all
    that is in the memory of its dead epoch; nothing of it is received, no count of the new view changes, and it stops
    with CastOut."""
    run = Script(3, fabric=fabric)
    run.write(1, 2)
    run.quiet()
    run.do(e.PAUSE, 1)
    run.pass_time(300)
    number = run.view(2).view_id
    assert run.view(2).node_ids == run.view(3).node_ids == (2, 3)
    before = [run.counts(node, name) for node in (2, 3) for name in ("published", "received", "delivered")]
    run.do(e.RESUME, 1)
    for _ in range(4):
        run.do(e.DIRECT, 1, 0, 8)
        run.do(e.STEP, 1)
        run.do(e.LAND, 0, 0, 0)
        run.turns(1, 2, 3)
    zombie = run.life(1).epoch
    assert zombie is not None and zombie.stability(1)["published"][0] == 6
    zombie.set("proposed", 99)
    zombie.push()
    run.do(e.STEP, 1)
    run.do(e.LAND, 0, 0, 0)
    run.turns(3, 2, 3)
    assert before == [run.counts(node, name) for node in (2, 3) for name in ("published", "received", "delivered")]
    assert run.view(2).view_id == number and run.phase(2) is Phase.STABLE
    run.until(lambda: bool(run.life(1).end))
    assert run.life(1).end_kind == "CastOut"
    run.finish([2, 3])


@pytest.mark.parametrize("fabric", ["shared", "copied"])
def test_s32_what_was_queued_while_a_node_was_stopped_enters_no_later_view(fabric: str) -> None:
    """Setup: node 1's application writes. Script: node 1 is stopped, its application goes on writing; the others go on
    without it; it wakes up and works with what it knows, then comes back as a new life. Expect: nothing of what was
    queued is delivered in any view; its new life's messages are."""
    run = Script(3, fabric=fabric)
    run.write(1, 2)
    run.turns(2)
    run.do(e.PAUSE, 1)
    inbox = next(iter(run.life(1).writers.values()))[0]
    for _ in range(3):
        inbox.write(8)
    late = set(inbox.sent[2:])
    assert late
    run.pass_time(300)
    assert run.view(2).rank_of(1) is None
    run.write(2, 1)
    run.do(e.RESUME, 1)
    for _ in range(5):
        run.do(e.STEP, 1)
        run.do(e.LAND, 0, 0, 0)
        run.do(e.STEP, 2)
        run.do(e.STEP, 3)
    run.until(lambda: bool(run.life(1).end))
    assert run.life(1).end_kind == "CastOut"
    run.start(1)
    run.until(lambda: run.is_member(1))
    assert run.do(e.ROLE, 1, 0, 2)
    run.quiet()
    run.write(1, 2)
    run.quiet()
    assert run.delivered(3)[-2:] == run.sent(1)
    delivered = {entry[3] for one in run.world.check.sequences.values() for entry in one.entries}
    assert not late & delivered
    run.finish([1, 2, 3])


def test_s33_a_leader_that_is_back_before_it_is_missed() -> None:
    """Setup: three members. Script: the leader dies and starts again before anybody has read the end of its connection.
    Expect: its new life is another member: the old one is removed, the new one comes in behind the others."""
    run = Script(3)
    run.crash(1)
    run.start(1)
    run.until(lambda: run.is_member(1) and run.phase(2) is Phase.STABLE)
    assert run.view(2).node_ids == (2, 3, 1)
    run.finish([1, 2, 3])
