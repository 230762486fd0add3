"""Goal: time passes as the costs say, and what is posted lands in the order of its connection.

Method: hosts with production pools; single requests of which each part is known, and many at once.
"""

from __future__ import annotations

import pytest

from spindle_core.memory import Mapping
from spindle_lab.paper.krcore import costs
from spindle_lab.paper.krcore.hosts import DAEMON, KERNEL, Program, Reader, make_hosts
from spindle_lab.paper.krcore.network import WORD_NS, Clock, Dcqp, Station, wire_ns


def test_the_clock_goes_forward() -> None:
    clock, seen = Clock(), []
    clock.at(20, lambda: seen.append((clock.now, "b")))
    clock.at(10, lambda: (seen.append((clock.now, "a")), clock.at(5, lambda: seen.append((clock.now, "late")))))
    clock.at(20, lambda: seen.append((clock.now, "c")))
    clock.run()
    assert seen == [(10, "a"), (10, "late"), (20, "b"), (20, "c")]


def test_a_station_serves_one_after_the_other() -> None:
    station = Station()
    assert [station.take(at, 10) for at in (0, 5, 40)] == [10, 20, 50]


def test_a_dcqp_connects_anew_for_another_target() -> None:
    dcqp, again = Dcqp(), costs.RECONNECT.value
    assert [dcqp.leave(at, target) for at, target in ((0, 1), (0, 1), (0, 2), (0, 2), (0, 1))] == [
        0, 0, again, again, 2 * again]
    assert dcqp.leave(1e6, 2) == 1e6 + again


def test_bytes_take_their_place_on_the_wire() -> None:
    assert wire_ns(4096) == pytest.approx((4096 + 26) / 12.5)
    assert wire_ns(4097) == pytest.approx((4097 + 52) / 12.5)


@pytest.mark.parametrize("size", [8, 4096, 1 << 17])
def test_an_unloaded_read_takes_its_cost_and_its_bytes(size: int) -> None:
    clock, _, (server, client) = make_hosts(2, KERNEL)
    memory = Mapping.create("server", max(4096, size))
    memory.view()[:8] = b"12345678"
    reader, done = Reader(client, server, memory, size), []

    def run():
        yield from reader.read(1, size)
        done.append(clock.now)

    client.start(run())
    clock.run()
    assert done == [pytest.approx(costs.READ.value + wire_ns(size) - WORD_NS)]
    assert bytes(reader.memory.view()[:8]) == b"12345678"


def test_the_device_of_a_server_is_shared() -> None:
    """64 reads at once: the first after an unloaded one, the last when the device has served all before it."""
    clock, net, (server, client) = make_hosts(2, KERNEL)
    reader, done = Reader(client, server, Mapping.create("server", 4096)), []

    def run():
        yield from reader.read(64)
        done.append(clock.now)

    client.start(run())
    clock.run()
    assert done == [pytest.approx(costs.READ.value + 63 * costs.DEVICE_READ.value)]
    assert net.landed["read"] == 64


@pytest.mark.parametrize("structure", [KERNEL, DAEMON])
def test_programs_get_what_they_ask_for(structure: str) -> None:
    """Lists of several programs of one host at once, and a region that is found by name: what was read is there, each
    program got its own completion, and no connection was made for its link."""
    clock, net, (server, client) = make_hosts(2, structure)
    memory = Mapping.create("server", 4096)
    memory.view()[:8] = b"found it"
    server.exports.offer("region", memory)
    made, over = net.connections, []

    def run(program: Program):
        yield from program.find("region")
        yield from program.requests(3)
        over.append(bytes(program.memory.view()[16:24]))

    for _ in range(20):
        client.start(run(Program(client, server, shared=True)))
    clock.run()
    assert over == [b"found it"] * 20
    assert net.connections == made and client.finder.reads == 1
    assert net.landed["read"] == 20 * 3 + 1


def test_a_region_that_is_not_there_is_said() -> None:
    clock, _, (server, client) = make_hosts(2, DAEMON)
    client.start(Program(client, server).find("nothing"))
    with pytest.raises(AssertionError, match=r"'nothing'.*nobody"):
        clock.run()


@pytest.mark.parametrize("structure", [KERNEL, DAEMON])
def test_a_request_that_fails_ends_the_run(structure: str) -> None:
    """Beyond the region: its figures would show nothing."""
    clock, _, (server, client) = make_hosts(2, structure)
    program = Program(client, server)
    program.reach(server, Mapping.create("server", 4096))
    client.start(program.requests(1, 1 << 13))
    with pytest.raises(AssertionError, match="wrong"):
        clock.run()
