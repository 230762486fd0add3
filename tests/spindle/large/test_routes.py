"""Goal: every host's network carries a sample in once and out at most a few times, and nobody waits for itself.

Method: the ways of all members of every kind of group, for every sender, as one graph.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest

from spindle.large.routes import BLOCK, sources_for

GROUPS = [[[1]], [[1, 2, 3]], [[1], [2], [3]], [[1, 2], [3], [4, 5, 6]], [[3, 1], [9, 2], [5]],
          [[number] for number in range(20)], [[10 * host + member for member in range(3)] for host in range(9)]]
SIZES = [0, 1, BLOCK, 3 * BLOCK, 4 << 30]
every = pytest.mark.parametrize("hosts", GROUPS, ids=lambda hosts: "-".join(str(len(host)) for host in hosts))


def host_of(hosts: list[list[int]], node_id: int) -> int:
    return next(number for number, host in enumerate(hosts) if node_id in host)


@every
@pytest.mark.parametrize("size", SIZES)
def test_the_sender_is_the_last_resort_and_nobody_waits_for_itself(hosts: list[list[int]], size: int) -> None:
    members = [member for host in hosts for member in host]
    for sender in members:
        ways = {me: sources_for(me, sender, hosts, size) for me in members}
        assert ways.pop(sender) == []
        for me, way in ways.items():
            assert way[-1] == sender and me not in way and len(set(way)) == len(way)
            for source in way[:-1]:  # in one order, so there is no circle of any length
                assert set(ways[source]) < set(way)


@every
@pytest.mark.parametrize("size", SIZES)
def test_a_host_gets_it_over_the_network_once(hosts: list[list[int]], size: int) -> None:
    for sender in [member for host in hosts for member in host]:
        into, out = Counter[int](), Counter[int]()
        for me in [member for host in hosts for member in host if member != sender]:
            source = sources_for(me, sender, hosts, size)[0]
            if host_of(hosts, source) != host_of(hosts, me):
                into[host_of(hosts, me)] += 1
                out[host_of(hosts, source)] += 1
        assert into == {host: 1 for host in range(len(hosts)) if host != host_of(hosts, sender)}
        in_a_chain = size == 0 or size > (len(hosts) - 1) * BLOCK
        assert all(count <= (1 if in_a_chain else math.log2(len(hosts)) + 1) for count in out.values())


def test_small_ones_reach_the_last_host_in_few_steps() -> None:
    hosts = [[number] for number in range(16)]

    def steps(me: int, size: int) -> int:
        return 0 if me == 3 else 1 + steps(sources_for(me, 3, hosts, size)[0], size)

    assert max(steps(me, BLOCK) for me in range(16)) == 4
    assert max(steps(me, 4 << 30) for me in range(16)) == 15


def test_on_the_host_of_the_sender_it_is_asked_itself() -> None:
    assert sources_for(3, 2, [[1, 2, 3], [4]]) == [2]


def test_the_others_of_a_host_ask_those_before_them_first() -> None:
    assert sources_for(6, 1, [[1], [2, 3], [4, 5, 6]]) == [4, 5, 2, 1]
    assert sources_for(4, 1, [[1], [2, 3], [4, 5, 6]]) == [2, 1]


def test_who_is_in_no_list_asks_the_sender() -> None:
    assert sources_for(9, 1, [[1], [2]]) == [1]
    assert sources_for(2, 9, [[1], [2, 3]]) == [9]
    assert sources_for(3, 9, [[1], [2, 3]]) == [2, 9]
