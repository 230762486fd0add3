"""Goal: nodes as real processes agree on the order of everything, whatever joins and leaves meanwhile.

Method: processes (node_process.py) whose writers number their messages; readers note view and payload of every
delivery. Per view all members must have the same sequence (D6, D9), per writer it must be without gap and repetition
(D2, D5, D7), across view changes and crashes too.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from spindle.membership.watch import HANGING
from tests.spindle.node_process import PAYLOAD, NodeProcess
from tests.support import halt, wait_until

ATOMIC, VOLATILE = 1, 2


@pytest.fixture
def crew(runtime_dir: Path) -> Iterator[Any]:
    """crew(node_id, ...) starts a process; all are gone at the end."""
    started: list[NodeProcess] = []

    def start(node_id: int, **config: Any) -> NodeProcess:
        process = NodeProcess(runtime_dir, node_id, **config)
        started.append(process)
        process.answer()
        return process

    yield start
    for process in started:
        process.kill()


def by_view(deliveries: list[tuple[int, str]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for view_id, group in groupby(deliveries, key=lambda one: one[0]):
        assert view_id not in found, f"messages of view {view_id} came in two runs"
        found[view_id] = [payload for _, payload in group]
    return found


def check(all_deliveries: dict[int, list[tuple[int, str]]], whole: tuple[int, ...]) -> int:
    """The properties over what all nodes delivered; `whole` were there all the time. Returns messages delivered."""
    views = {node_id: by_view(deliveries) for node_id, deliveries in all_deliveries.items()}
    longest = views[whole[0]]
    for node_id in whole:
        assert views[node_id] == longest
    for node_id, found in views.items():
        for view_id, sequence in found.items():
            assert sequence == longest[view_id], f"node {node_id} delivered view {view_id} differently"
    for node_id, deliveries in all_deliveries.items():
        last: dict[int, int] = {}
        for _, payload in deliveries:
            sender, count = PAYLOAD.unpack(bytes.fromhex(payload))
            assert count == last.get(sender, count - 1) + 1, f"node {node_id}: a gap or repetition of node {sender}"
            last[sender] = count
    return len(all_deliveries[whole[0]])


def test_three_nodes_deliver_the_same_sequence(crew: Any) -> None:
    nodes = [crew(node_id) for node_id in (1, 2, 3)]
    nodes[1].do("declare", topic="t", level=ATOMIC, size_max=64)
    for node in nodes:
        node.do("subscribe", topic="t")
    for node in nodes:
        node.do("publish", topic="t")
    wait_until(lambda: nodes[0].do("count") > 3000, what="3000 deliveries")
    written = sum(node.do("stop_publishing") for node in nodes)
    for node in nodes:
        wait_until(lambda node=node: node.do("count") == written, what=f"all {written} at node {node.node_id}")
    assert check({node.node_id: node.do("deliver") for node in nodes}, (1, 2, 3)) == written
    for node in nodes:
        node.do("leave")


@pytest.mark.slow
def test_the_one_who_let_a_node_in_dies_while_it_waits_for_another_to_answer(crew: Any, runtime_dir: Path) -> None:
    """A newcomer is a member as soon as its view is installed, though a hanging node that it found has not answered
    yet: when all others have gone, it goes on in the group that it joined, and forms no other (found by chaos)."""
    one = crew(1)
    group = one.do("status")["group_id"]
    hanging = socket.socket(socket.AF_UNIX)
    hanging.bind(str(next(runtime_dir.rglob("node-1.sock")).with_name("node-9.sock")))
    hanging.listen()
    newcomer = NodeProcess(runtime_dir, 2)
    try:
        wait_until(lambda: len(one.do("status")["members"]) == 2, what="the newcomer in a view", interval_s=0.001)
        one.kill()
        hanging.accept()[0].close()
        hanging.close()
        newcomer.answer()
        status = wait_until(lambda: (lambda now: len(now["members"]) == 1 and now)(newcomer.do("status")), what="alone")
        assert status["group_id"] == group
    finally:
        newcomer.kill()


def test_joins_and_leaves_under_traffic(crew: Any) -> None:
    """Two nodes publish all the time; others come, publish, and go, the first leader too. Also with a tiny window."""
    nodes = {node_id: crew(node_id) for node_id in (1, 2, 3)}
    nodes[2].do("declare", topic="t", level=ATOMIC, size_max=64, window=4)
    for node in nodes.values():
        node.do("subscribe", topic="t")
    for node in nodes.values():
        node.do("publish", topic="t", pause_s=0.0005)
    gone: dict[int, list[tuple[int, str]]] = {}
    for node_id in (4, 5, 6):
        node = nodes[node_id] = crew(node_id)
        node.do("subscribe", topic="t")
        node.do("publish", topic="t", pause_s=0.0005)
        wait_until(lambda node=node: node.do("count") > 100, what="deliveries at the newcomer")
    for node_id in (4, 1, 6):
        nodes[node_id].do("stop_publishing")
        gone[node_id] = nodes[node_id].do("deliver")
        nodes[node_id].do("leave")
        del nodes[node_id]
        before = nodes[2].do("count")
        wait_until(lambda before=before: nodes[2].do("count") > before + 100, what="deliveries after the leave")
    written = {node_id: node.do("stop_publishing") for node_id, node in nodes.items()}
    wait_for_all({node_id: nodes[node_id] for node_id in (2, 3)}, written)
    count = nodes[2].do("count")
    delivered = {node_id: node.do("deliver") for node_id, node in nodes.items()}
    for node_id, deliveries in gone.items():
        # It had all of every view but its last, of which it had a part when it was asked.
        views, others = by_view(deliveries), by_view(delivered[2])
        last = max(views)
        assert views[last] == others[last][:len(views[last])]
        delivered[node_id] = [one for one in deliveries if one[0] != last]
    assert check(delivered, (2, 3)) == count
    for node in nodes.values():
        node.do("leave")


def test_a_leaver_in_full_flow_loses_nothing_that_it_said_was_sent(crew: Any) -> None:
    """A node that is told to leave while it writes as fast as it can: all its messages that the others get are the
    first ones, and what it had committed before the leave is among them, though one of the others stands still just
    then, so that most of that has not begun to be sent."""
    nodes = [crew(node_id) for node_id in (1, 2, 3)]
    nodes[0].do("declare", topic="t", level=ATOMIC, size_max=64, window=16)
    for node in nodes:
        node.do("subscribe", topic="t")
    nodes[2].do("publish", topic="t")
    wait_until(lambda: nodes[0].do("count") > 1000, what="deliveries")
    halt(nodes[1].process.pid)
    wait_until(lambda: nodes[2].do("committed") > nodes[0].do("count") + 100, what="messages that wait in the inbox")
    nodes[2].send("leave")
    os.kill(nodes[1].process.pid, signal.SIGCONT)
    written = nodes[2].answer()
    wait_until(lambda: nodes[0].do("count") == nodes[1].do("count") >= written, what=f"all {written} at both")
    check({node.node_id: node.do("deliver") for node in nodes[:2]}, (1, 2))


def test_late_joiner_of_a_volatile_topic_under_traffic(crew: Any) -> None:
    """History up to the cut, then live messages: the joiner has everything from the first message on."""
    nodes = [crew(node_id) for node_id in (1, 2)]
    nodes[0].do("declare", topic="t", level=VOLATILE, size_max=64)
    for node in nodes:
        node.do("subscribe", topic="t", from_history=True)
    for node in nodes:
        node.do("publish", topic="t", pause_s=0.0002)
    wait_until(lambda: nodes[0].do("count") > 2000, what="some history")
    late = crew(3)
    late.do("subscribe", topic="t", from_history=True)
    wait_until(lambda: late.do("count") > 3000, what="history and live messages at the joiner")
    written = sum(node.do("stop_publishing") for node in nodes)
    nodes.append(late)
    for node in nodes:
        wait_until(lambda node=node: node.do("count") == written, what=f"all {written} at node {node.node_id}")
    assert check({node.node_id: node.do("deliver") for node in nodes}, (1, 2, 3)) == written


def wait_for_all(nodes: dict[int, NodeProcess], written: dict[int, int]) -> None:
    """Until each of these nodes has delivered so many messages of each sender. That all have as many as the others says
    nothing: the last ones may be on their way to all."""

    def delivered(node: NodeProcess) -> dict[int, int]:
        senders = [PAYLOAD.unpack(bytes.fromhex(payload))[0] for _, payload in node.do("deliver")]
        return {node_id: senders.count(node_id) for node_id in written}

    for node in nodes.values():
        wait_until(lambda node=node: delivered(node) == written, 20.0, f"all of {written} at {node.node_id}", 0.2)


def survive(crew: Any, count: int, victims: tuple[int, ...], harm: Callable[[list[NodeProcess]], None],
            **config: Any) -> dict[int, NodeProcess]:
    """`count` nodes under traffic, some of which come to harm; the others go on without them, and deliver the same
    sequence with nothing lost or doubled of what survivors wrote. Returns the survivors."""
    nodes = {node_id: crew(node_id, **config) for node_id in range(1, count + 1)}
    nodes[1].do("declare", topic="t", level=ATOMIC, size_max=64)
    for node in nodes.values():
        node.do("subscribe", topic="t")
    for node in nodes.values():
        node.do("publish", topic="t", pause_s=0.0002)
    rest = {node_id: node for node_id, node in nodes.items() if node_id not in victims}
    for node in rest.values():
        wait_until(lambda node=node: node.do("count") > 500, what="deliveries")
    harm([nodes[victim] for victim in victims])
    for node in rest.values():
        wait_until(lambda node=node: members(node) == sorted(rest), what=f"a view of {sorted(rest)}")
    for node in rest.values():
        before = node.do("count")
        wait_until(lambda node=node, before=before: node.do("count") > before + 500, what="deliveries afterwards")
    written = {node_id: node.do("stop_publishing") for node_id, node in rest.items()}
    wait_for_all(rest, written)
    check({node_id: node.do("deliver") for node_id, node in rest.items()}, tuple(rest))
    return rest


def members(node: NodeProcess) -> list[int]:
    return sorted(member["node_id"] for member in node.do("status")["members"])


def kill(victims: list[NodeProcess]) -> None:
    for victim in victims:
        victim.process.kill()


@pytest.mark.parametrize(("count", "victims"), [
    (3, (1,)), pytest.param(3, (2,), marks=pytest.mark.slow), (2, (1,)), (5, (1, 2)),
    pytest.param(5, (2, 4), marks=pytest.mark.slow), pytest.param(3, (1, 3), marks=pytest.mark.slow)])
def test_the_others_go_on_when_members_are_killed(crew: Any, count: int, victims: tuple[int, ...]) -> None:
    """Goal: kill -9 of a member, of the leader, of two of five at once, even of two of three: whoever is left goes on,
    as it is certain that the dead have ended. Method: under traffic; then those who are left let a new node join."""
    rest = survive(crew, count, victims, kill)
    late = crew(victims[0])
    wait_until(lambda: members(late) == sorted([*rest, victims[0]]), what="a view with the restarted node")
    for node in (*rest.values(), late):
        node.do("leave")


def test_a_member_that_hangs_is_cast_out(crew: Any) -> None:
    """Goal: SIGSTOP for longer than suspect_timeout: the others go on, and the zombie, let go, stops with CastOut and
    has done no harm. Method: under traffic, at three nodes; the leader hangs."""
    stopped: list[NodeProcess] = []

    def stop(victims: list[NodeProcess]) -> None:
        stopped.extend(victims)
        for victim in victims:
            victim.process.send_signal(signal.SIGSTOP)

    rest = survive(crew, 3, (1,), stop, suspect_timeout_s=0.5)
    stopped[0].process.send_signal(signal.SIGCONT)
    kind, text, code = stopped[0].last_words()
    assert (kind, code) == ("CastOut", 12), text
    assert [members(node) for node in rest.values()] == [[2, 3]] * 2
    for node in rest.values():
        node.do("leave")


def view_ids(nodes: dict[int, Any]) -> list[int]:
    return [node.do("status")["view_id"] for node in nodes.values()]


def common_view(nodes: dict[int, Any]) -> int:
    """The view that the last role has made, once all nodes are in it; the last to have got a role is in it already."""
    wait_until(lambda: len(set(view_ids(nodes))) == 1, what="one view at all nodes")
    return view_ids(nodes)[0]


@pytest.mark.slow
def test_a_member_with_much_to_do_is_no_member_that_hangs(crew: Any) -> None:
    """Goal: a control loop that is busy for longer than the timeout, and even an interpreter that is held, is no sign
    of death. Method: at the leader of three, for twice the timeout each; under traffic, which goes on."""
    nodes = {node_id: crew(node_id, suspect_timeout_s=0.5) for node_id in (1, 2, 3)}
    nodes[1].do("declare", topic="t", level=ATOMIC, size_max=64)
    nodes[2].do("subscribe", topic="t")
    nodes[3].do("publish", topic="t", pause_s=0.0002)
    view_id = common_view(nodes)
    for interpreter in (False, True):
        before = nodes[2].do("count")
        nodes[1].do("hang", for_s=1.0, interpreter=interpreter)
        wait_until(lambda before=before: nodes[2].do("count") > before, what="deliveries")
    assert view_ids(nodes) == [view_id] * 3
    nodes[3].do("stop_publishing")
    for node in nodes.values():
        node.do("leave")


@pytest.mark.slow
def test_a_member_whose_control_loop_hangs_is_cast_out(crew: Any) -> None:
    """Goal: the predicate thread alone doesn't keep a member in: it would hold up every view change. Method: the loop
    of one of three hangs for good; the others go on without it, and not before it has been given its time."""
    timeout_s = 0.5  # longer than a busy machine keeps a whole process waiting
    nodes = {node_id: crew(node_id, suspect_timeout_s=timeout_s) for node_id in (1, 2, 3)}
    common_view(nodes)  # one that hangs before it has the view of all gives no sign of life in that
    nodes[1].send("hang", for_s=600)
    began = time.monotonic()
    wait_until(lambda: members(nodes[2]) == members(nodes[3]) == [2, 3], 30, what="a view without node 1")
    assert time.monotonic() - began > HANGING * timeout_s
    for node_id in (2, 3):
        nodes[node_id].do("leave")


def test_a_short_pause_is_no_reason(crew: Any) -> None:
    """Goal: SIGSTOP for less than suspect_timeout changes no view. Method: stop each of three nodes in turn, the leader
    too, for a part of the timeout, under traffic."""
    nodes = {node_id: crew(node_id, suspect_timeout_s=5.0) for node_id in (1, 2, 3)}
    nodes[1].do("declare", topic="t", level=ATOMIC, size_max=64)
    for node in nodes.values():
        node.do("subscribe", topic="t")
    for node in nodes.values():
        node.do("publish", topic="t", pause_s=0.0002)
    view_id = common_view(nodes)
    for node in nodes.values():
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        node.process.send_signal(signal.SIGCONT)
        before = node.do("count")
        wait_until(lambda node=node, before=before: node.do("count") > before + 100, what="deliveries")
    assert view_ids(nodes) == [view_id] * 3
    written = sum(node.do("stop_publishing") for node in nodes.values())
    for node in nodes.values():
        wait_until(lambda node=node: node.do("count") >= written, what="everything")
    check({node_id: node.do("deliver") for node_id, node in nodes.items()}, (1, 2, 3))


def test_one_of_two_that_hangs_is_waited_for(crew: Any) -> None:
    """Goal: a node that would be no majority without the hanging one waits, says so, and goes on with it. Method:
    SIGSTOP one of two for several timeouts, look at the other's status, SIGCONT."""
    nodes = [crew(node_id, suspect_timeout_s=0.2) for node_id in (1, 2)]
    nodes[1].process.send_signal(signal.SIGSTOP)
    wait_until(lambda: nodes[0].do("status")["members"][1]["silent_s"] > 0.6, what="silence in the status")
    assert members(nodes[0]) == [1, 2]
    nodes[1].process.send_signal(signal.SIGCONT)
    nodes[1].do("declare", topic="t", level=ATOMIC, size_max=64)
    wait_until(lambda: nodes[0].do("status")["members"][1]["silent_s"] < 0.2, what="a sign of life")
    assert members(nodes[0]) == [1, 2]


def test_kills_in_the_middle_of_view_changes(crew: Any) -> None:
    """Goal: a crash at any moment of a view change. Method: two nodes stay and publish; others join, and are killed at
    some moment of their join or of that of others, the leader among them."""
    nodes = {node_id: crew(node_id) for node_id in (1, 2, 3)}
    nodes[2].do("declare", topic="t", level=ATOMIC, size_max=64)
    for node in nodes.values():
        node.do("subscribe", topic="t")
    for node in nodes.values():
        node.do("publish", topic="t", pause_s=0.0005)
    for round_number in range(6):
        joiner = crew(4)
        joiner.send("subscribe", topic="t")  # a view change begins
        time.sleep(0.0007 * round_number)
        joiner.process.kill()
        if round_number == 3:  # two at once, in the middle: the leader, too
            nodes.pop(1).process.kill()
    for node in nodes.values():
        wait_until(lambda node=node: members(node) == [2, 3], what="a view of the two")
    written = {node_id: node.do("stop_publishing") for node_id, node in nodes.items()}
    wait_until(lambda: nodes[2].do("count") == nodes[3].do("count"), what="the same count")
    delivered = {node_id: node.do("deliver") for node_id, node in nodes.items()}
    check(delivered, (2, 3))
    for node_id, count in written.items():
        assert sum(PAYLOAD.unpack(bytes.fromhex(payload))[0] == node_id for _, payload in delivered[2]) == count


@pytest.mark.slow
def test_joining_survives_the_death_of_the_leader(crew: Any, runtime_dir: Path) -> None:
    """Goal: a newcomer whose contact and leader dies gets in through the others. Method: start a newcomer and kill the
    leader some moment later, five times; another node takes its place each time."""
    nodes = {node_id: crew(node_id) for node_id in (1, 2, 3)}
    joiners: list[NodeProcess] = []
    try:
        for number in range(5):
            joiner = NodeProcess(runtime_dir, 10 + number)
            joiners.append(joiner)
            leader = min(nodes)
            # Its socket is the first sign of a joiner that has met the others; what follows takes milliseconds.
            wait_until(lambda node_id=10 + number: (runtime_dir / "domain-0" / f"node-{node_id}.sock").exists(),
                       interval_s=0.001)
            time.sleep(0.001 * number)
            nodes.pop(leader).process.kill()
            assert joiner.answer() == 10 + number
            nodes[10 + number] = joiner
            for node in nodes.values():
                wait_until(lambda node=node: members(node) == sorted(nodes), what=f"a view of {sorted(nodes)}")
    finally:
        for joiner in joiners:
            joiner.kill()


@pytest.mark.slow
def test_many_start_at_once(crew: Any, runtime_dir: Path) -> None:
    """Six processes at the same moment, ids chosen by themselves: one group, six ids."""
    nodes = [NodeProcess(runtime_dir, 0) for _ in range(6)]
    try:
        assert sorted(node.answer() for node in nodes) == [1, 2, 3, 4, 5, 6]
        wait_until(lambda: all(len(node.do("status")["members"]) == 6 for node in nodes), what="one view of all")
    finally:
        for node in nodes:
            node.kill()
