"""A node's second connection, for lists with atomics, where those of the first one are a device's alone.

Method: the first connection is a simulated way from which atomics are kept, which lands what was posted when the test
says so; the second one is TCP, as between hosts with RDMA.
"""

from __future__ import annotations

from typing import Any

import pytest

from spindle_core.fabric.regions.sim import SimPart, SimWorld
from spindle_core.fabric.regions.tcp import TcpPart
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.regions.conformance import word
from tests.spindle_core.fabric.regions.nodes import Node
from tests.spindle_core.links.hosts import Host, Program, completions, until
from tests.support import wait_until

BOUND_S = 5.0


class DeviceNode(Node):
    """`device`: the way that lands when the world says so; `tcp`: numbers of the others over TCP."""

    def __init__(self, world: SimWorld, name: int) -> None:
        super().__init__()
        self.world = world
        self.device, self.stream = SimPart(self.regions, world, name), TcpPart(self.regions)
        self.regions.keep_atomics_from(self.device)
        self.tcp: dict[Node, int] = {}


@pytest.fixture
def hosts() -> list[Host]:
    world = SimWorld()
    a, b = nodes = [DeviceNode(world, k) for k in range(2)]
    a.numbers[b], b.numbers[a] = a.device.connect(b.device)
    one, other = connection()
    a.tcp[b], b.tcp[a] = a.stream.connect(one.detach()), b.stream.connect(other.detach())
    hosts = [Host(k, node) for k, node in enumerate(nodes)]
    for host in hosts:
        host.start(hosts)
    for host, other_host in (hosts, hosts[::-1]):
        host.pool.add_connection(other_host.id, host.node.tcp[other_host.node], atomics=True)
    return hosts


def drive(hosts: list[Host], rounds: int = 200) -> None:
    """The pools alone: what was posted over the device does not land."""
    for k in range(rounds):
        for host in hosts:
            host.pool.run(k)
            host.pool.tidy()


def reach(program: Program, owner: Host, memory: Mapping, *, writer: bool = False, **rights: Any) -> int:
    """As a directory grants it: alike for all ways."""
    peer = owner.node.number(program.host.node) if writer else None
    key = owner.node.regions.register(memory, writer=peer, **rights)
    return program.link.open_region(owner.node.regions.whole_grant(key), 1 << 62)


def shared_words(a: Host, b: Host) -> tuple[Program, int, Mapping]:
    program = Program(a, b)
    memory = Mapping.create("words", 4096)
    return program, reach(program, b, memory, atomics=True), memory


def test_atomics_go_by_the_second_connection_and_reads_by_the_first(hosts):
    a, b = hosts
    program, words, memory = shared_words(a, b)
    program.user.fetch_add(words, 8, 5, cookie=1)
    program.user.submit()
    found: list[tuple] = []

    def added() -> list[tuple]:
        drive(hosts, 1)
        found.extend(program.user.take())
        return found

    wait_until(added, BOUND_S)  # the world has landed nothing
    assert found == [(1, "done", 0)] and word(memory, 8) == 5
    program.user.read(words, 8, 8, program.buffer, 0, cookie=2)
    program.user.submit()
    drive(hosts)
    assert program.user.take() == []
    assert completions(hosts, program, 1) == [(2, "done", 0)] and word(program.memory, 0) == 5


def test_a_list_with_an_atomic_goes_that_way_whole(hosts):
    """The read behind the swap sees what it left, and a region that is open to writes is written in the same list."""
    a, b = hosts
    program, words, memory = shared_words(a, b)
    owned = Mapping.create("owned", 4096)
    written = reach(program, b, owned, writer=True)
    program.memory.view()[100:108] = b"12345678"
    program.user.compare_swap(words, 8, 0, 6, buffer=program.buffer, buffer_offset=0)
    program.user.read(words, 8, 8, program.buffer, 8)
    program.user.write(written, 40, 8, program.buffer, 100, cookie=9)
    program.user.submit()
    found: list[tuple] = []

    def over() -> list[tuple]:
        drive(hosts, 1)
        found.extend(program.user.take())
        return found

    wait_until(over, BOUND_S)
    assert found == [(9, "done", 0)]
    assert word(memory, 8) == word(program.memory, 8) == 6 and bytes(owned.view()[40:48]) == b"12345678"


@pytest.mark.parametrize("first", ["read", "add"])
def test_what_is_on_one_connection_comes_before_what_goes_by_the_other(hosts, first):
    """Reads and additions in turns, each a list of its own: all complete in the order submitted, and each read has what
    the additions before it left, although one connection lands nothing for long."""
    a, b = hosts
    program, words, memory = shared_words(a, b)
    kinds = ["read", "add"] if first == "read" else ["add", "read"]
    for k in range(20):
        if kinds[k % 2] == "add":
            program.user.fetch_add(words, 8, 1, cookie=k)
        else:
            program.user.read(words, 8, 8, program.buffer, 8 * k, cookie=k)
        program.user.submit()
    drive(hosts)
    assert word(memory, 8) == (0 if first == "read" else 1)  # the read before it has not landed
    assert [cookie for cookie, _, _ in completions(hosts, program, 20)] == list(range(20))
    read = [word(program.memory, 8 * k) for k in range(20) if kinds[k % 2] == "read"]
    assert read == list(range(10) if first == "read" else range(1, 11))


def test_a_region_is_reached_by_both_as_long_as_it_is_open(hosts):
    a, b = hosts
    program, words, _ = shared_words(a, b)
    assert len(a.node.regions.reached) == 2
    program.link.close_region(words)
    assert not a.node.regions.reached
    other, _, _ = shared_words(a, b)
    assert len(a.node.regions.reached) == 2
    a.pool.close_link(other.link)
    until(hosts, lambda: not a.node.regions.reached)


@pytest.mark.parametrize("end", ["device", "tcp"])
def test_a_link_is_over_with_either_connection(hosts, end):
    """What was on the way completes as cut, and the pool keeps nothing of it."""
    a, b = hosts
    program, words, _ = shared_words(a, b)
    program.user.read(words, 8, 8, program.buffer, 0, cookie=1)
    program.user.submit()
    a.pool.run(0)
    numbers = {"device": a.node.number(b.node), "tcp": a.node.tcp[b.node]}
    a.pool.remove_connection(numbers.pop(end))
    until(hosts, lambda: program.user.broken)
    a.pool.remove_connection(*numbers.values())
    assert completions(hosts, program, 1)[0][:2] in ((1, "cut"), (1, "done"))
    with pytest.raises(ConnectionError):
        a.pool.open_link(b.id)
    a.pool.close_link(program.link)
    until(hosts, lambda: not a.node.regions.reached)


def test_a_connection_whose_number_is_another_s_now_is_not_used(hosts):
    """The number of the one for atomics is free at once, and the next connection's: the link is over before that."""
    a, b = hosts
    program, _, _ = shared_words(a, b)
    number = a.node.tcp[b.node]
    a.pool.remove_connection(number)
    one, _other = connection()
    assert a.node.stream.connect(one.detach()) == number
    a.pool.add_connection(99, number)
    a.pool.run(0)
    assert program.user.broken and not program.link.is_open


def test_what_is_none_is_refused(hosts):
    """A second connection for atomics, and a link that would move to the one there is."""
    a, b = hosts
    program = Program(a, b)
    with pytest.raises(ValueError, match="for atomics already"):
        one, _other = connection()
        a.pool.add_connection(b.id, a.node.stream.connect(one.detach()), atomics=True)
    with pytest.raises(ValueError, match="doesn't lead"):
        a.pool.move(program.link, a.node.tcp[b.node])
    words = Mapping.create("words", 4096)
    b.node.regions.register(words, atomics=True, with_owner=True)  # the device's don't count
    with pytest.raises(ValueError, match="already"):
        b.node.regions.keep_atomics_from(b.node.device)


def test_a_device_lets_peers_read_what_is_open_to_atomics(hosts):
    """Its grant says nothing of atomics, and a request for one is refused before it is posted."""
    a, b = hosts
    memory = Mapping.create("words", 4096)
    key = b.node.regions.register(memory, atomics=True)
    rights = int.from_bytes(b.node.regions.grant(key, b.node.number(a.node))[16:20], "little")
    assert rights == 1
    assert int.from_bytes(b.node.regions.grant(key, b.node.tcp[a.node])[16:20], "little") == 1 | 4
