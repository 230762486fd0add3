"""Goal: what a logged topic's members had on disk when all of them died is what they go on from, whoever is back first.

Method: the simulator has no disks, so the parts of S05, S20, S21 and S29 that lie behind a total crash are scripts for
the model of a restart (tests/spindle/restart/model.py), where the decisions are those of the production code. It checks
at each step that whoever becomes whole has everything that was acknowledged as persisted, in a rising order.
"""

from __future__ import annotations

import random

import pytest

from tests.spindle.restart.model import World


class Restart:
    """A logged topic whose members are all of these nodes, whole."""

    def __init__(self, nodes: int, others: int = 0) -> None:
        self.world = World(nodes + others, random.Random(1), "majority")
        self.up(*range(1, nodes + 1))
        self.settle()

    def up(self, *nodes: int) -> None:
        """These start, in this order, and all of them become members of the topic."""
        for node in nodes:
            self.world.nodes[node].up = True
            self.world.change([*self.world.ranks, node])
        self.world.change(list(self.world.ranks), joining=set(nodes))

    def whole(self) -> bool:
        return all(self.world.nodes[node].whole for node in self.world.members)

    def work(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.deliver()
            for node in self.world.members:
                self.world.fill(node)

    def settle(self) -> None:
        """Everything that can go on does; all members are whole then."""
        for _ in range(400):
            if self.whole():
                return
            self.work(1)
        raise AssertionError([str(node.restorer and node.restorer.awaiting()) for node in self.world.nodes.values()])

    def write(self, n: int, *synced: int) -> None:
        """Messages that all members have, and these have on disk."""
        for _ in range(n):
            self.world.write()
        for node in synced:
            self.world.sync(node, n)

    def numbers(self, node: int) -> list[int]:
        return [number for _, number in self.world.nodes[node].content]


def test_s05_what_only_the_dead_had_on_disk_was_acknowledged_to_nobody() -> None:
    """Setup: three members; the last message is on node 1's disk only. Script: all die; two come back without node 1,
    and go on; then node 1 comes back. Expect: nobody was told that it is persisted; the two go on without it; node 1
    moves it beside, and has what the others have."""
    run = Restart(3)
    run.write(4, 1, 2, 3)
    run.write(1, 1)
    assert run.world.acknowledged == {0, 1, 2, 3}
    run.world.crash({1, 2, 3})
    run.up(2, 3)
    run.settle()
    run.write(2, 2, 3)
    run.up(1)
    run.settle()
    assert run.numbers(1) == run.numbers(2) == run.numbers(3) == [0, 1, 2, 3, 5, 6]
    assert [number for _, number in run.world.nodes[1].forked] == [4]


@pytest.mark.parametrize("rounds", range(1, 30, 4))
def test_s20_who_died_in_the_middle_of_a_transfer_is_no_source(rounds: int) -> None:
    """Setup: node 1 missed the last twenty messages. Script: all die and come back, node 1 first, which takes the topic
    up and is filled by another; in the middle of that all die again, and come back. Expect: the second restart has the
    longest journal as its source and not the half-filled one, however far that came."""
    run = Restart(3)
    run.write(3, 1, 2, 3)
    run.world.crash({1})
    run.write(20, 2, 3)
    run.world.crash({2, 3})
    run.up(1, 2, 3)
    run.work(rounds)
    run.world.crash({1, 2, 3})
    run.up(1, 2, 3)
    run.settle()
    assert run.numbers(1) == run.numbers(2) == run.numbers(3) == list(range(23))


def test_s21_a_fresh_node_in_the_middle_of_a_restart_waits_with_it() -> None:
    """Setup: three members and a node that never was one. Script: all die; the fresh node starts first, and one of the
    members; another one starts, and dies before it has said anything; then all die but the fresh one, which starts
    again; then two members come back. Expect: one of three is no majority, so the topic waits and says whom for;
    nothing begins anew, not even when only the fresh node is left; with two it goes on with everything."""
    run = Restart(3, others=1)
    run.write(5, 1, 2, 3)
    run.world.crash({1, 2, 3})
    run.up(4, 1)
    run.work(40)
    run.up(2)
    run.world.crash({2})
    run.work(40)
    restorer = run.world.nodes[4].restorer
    assert not run.whole() and restorer is not None and "2" in restorer.awaiting() and "3" in restorer.awaiting()
    run.world.crash({1})
    run.work(40)
    assert not run.whole(), "who told it of the others is gone, and it waits still"
    run.world.crash({4})
    run.up(4)
    run.work(40)
    assert not run.whole(), "also in its next life"
    run.up(1, 3)
    run.settle()
    assert run.numbers(1) == run.numbers(3) == run.numbers(4) == list(range(5))


def test_a_member_that_is_not_whole_holds_nothing() -> None:
    """Setup: three members, and node 4, which takes no part in the topic. Script: nodes 1 and 2 die at once; node 3
    goes on alone. Node 1 comes back as a member, and node 3 dies before node 1 has anything from it; node 2 comes back.
    Expect: node 4 has written down that node 3 held the topic last, and not that those who wait with it do: they wait
    for node 3. (Found by chaos: they went on as the majority of the three.)"""
    run = Restart(3, others=1)
    run.world.nodes[4].up = True
    run.world.change([*run.world.ranks, 4])
    run.write(5, 1, 2, 3)
    run.world.crash({1, 2})
    run.write(4, 3)
    run.up(1)
    run.world.crash({3})
    run.up(2)
    run.work(40)
    assert not run.whole()
    run.world.crash({2})
    run.up(2)
    run.work(40)
    assert not run.whole(), "in the next views, too"
    run.up(3)
    run.settle()
    assert run.numbers(1) == run.numbers(2) == run.numbers(3) == list(range(9))


def test_s29_what_the_others_logged_survives_a_leader_that_had_not() -> None:
    """Setup: three members; the last messages are on the disks of nodes 2 and 3, node 1 died before it logged them.
    Script: all die; nodes 1 and 2 come back, node 1 first. Expect: the longest journal of the two is what they go on
    from."""
    run = Restart(3)
    run.write(2, 1, 2, 3)
    run.write(3, 2, 3)
    run.world.crash({1, 2, 3})
    run.up(1, 2)
    run.settle()
    assert run.numbers(1) == run.numbers(2) == list(range(5))
