"""Long messages stay with their sender until they are read into memory that their receiver has posted, one-sidedly
(spindle_core/links/long_messages.pyx).

Method: as in test_pool.
"""

from __future__ import annotations

import gc
import random
import resource
import struct
import weakref

import pytest

from spindle_core.fabric.regions.regions import REQUESTS_TO_PEER
from spindle_core.links.long_messages import POSTED
from spindle_core.memory import Mapping
from tests.spindle_core.links.hosts import (
    REQUESTS_AT,
    Program,
    completions,
    make_hosts,
    second_connection,
    step,
    until,
    world_of,
)


@pytest.fixture(params=["sim", "tcp", "shm"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_long_message_goes_straight_into_posted_memory(kind):
    """Half a megabyte: read out of the sender's memory into what the receiver has posted, one completion at each end
    with its length; before any memory was posted it waits; what is too small for it is left for others."""
    a, b = hosts = make_hosts(kind, 2)
    server, client = Program(b, None), Program(a, b)
    b.pool.bind(server.link, 5)
    data = random.Random(1).randbytes(500_001)
    client.say(data, 7, port=5, cookie=1)
    for k in range(10):
        step(hosts, k * 10**8)
    assert client.user.take() == [] and server.user.messages() == []
    server.user.receive(1000, server.buffer, 0, cookie=8)
    server.user.receive(600_000, server.buffer, 2000, cookie=9)
    assert completions(hosts, server, 1, 10**10) == [(9, "done", 500_001)]
    assert bytes(server.memory.view()[2000 : 2000 + len(data)]) == data and not any(server.memory.view()[:1000])
    assert completions(hosts, client, 1) == [(1, "done", 0)]
    client.say(b"short", port=5, cookie=2)
    assert completions(hosts, client, 1)[0][:2] == (2, "done")
    assert server.user.messages() == [(a.id, client.link.id, b"short")]


@pytest.mark.slow
def test_what_long_messages_lay_in_is_let_go(kind):
    """Two long messages out of one memory; their sender goes: nothing holds on to that memory any more."""
    a, b = hosts = make_hosts(kind, 2)
    server, client = Program(b, None), Program(a, b)
    b.pool.bind(server.link, 5)
    for k in range(2):
        server.user.receive(30_000, server.buffer, 30_000 * k)
        client.say(b"%d" % k * 20_000, 20_000 * k, port=5, cookie=k)
        assert completions(hosts, client, 1) == [(k, "done", 0)]
    assert bytes(server.memory.view()[:20_000]) == b"0" * 20_000
    assert bytes(server.memory.view()[30_000:50_000]) == b"1" * 20_000
    memory = weakref.ref(client.memory)
    a.pool.close_link(client.link)
    del client
    until(hosts, lambda: (gc.collect(), memory() is None)[1], rounds=50)


def test_a_long_message_waits_for_a_key():
    """Its host has registered as many regions as there may be: the message waits, others go on; it goes when there is
    room for one more."""
    a, b = hosts = make_hosts("sim", 2)
    server, client, other = Program(b, None), Program(a, b), Program(a, b)
    b.pool.bind(server.link, 5)
    server.user.receive(30_000, server.buffer)
    taken: list[int] = []
    memory = Mapping.private(4096)
    with pytest.raises(ValueError, match="4096"):
        while True:
            taken.append(a.node.regions.register(memory))
    client.say(b"x" * 20_000, port=5, cookie=1)
    other.say(b"short", port=5, cookie=2)
    assert completions(hosts, other, 1) == [(2, "done", 0)]
    for k in range(10):
        step(hosts, 10**9 * k)
    assert client.user.take() == [] and client.user.waiting == 1 and client.user.broken == ""
    a.node.regions.deregister(taken[0])
    assert completions(hosts, client, 1, 10**11) == [(1, "done", 0)]


def test_memory_for_long_messages_has_a_limit():
    """So many wait, and what one is being read into counts: one more is `wrong`, with the limit. A sender whose
    connection ends leaves the memory to others, and each of it is filled once."""
    a, b, c = hosts = make_hosts("sim", 3)
    server, lost, sender = Program(b, None, size=4 << 20), Program(a, b), Program(c, b, size=4 << 20)
    b.pool.bind(server.link, 5)
    for k in range(POSTED + 1):
        server.user.receive(32_768, server.buffer, 32_768 * k, cookie=k)
    found = completions(hosts, server, 1)
    assert [one[:2] for one in found] == [(POSTED, "wrong")] and str(POSTED) in found[0][2]
    lost.say(b"lost" * 5000, port=5)
    world = world_of(hosts)
    a.pool.run(0)
    a.pool.tidy()
    world.land(0, 1)
    b.pool.run(0)
    b.pool.tidy()
    assert world.next_of(1, 0) == ("read", 0, 20_000)
    server.user.receive(32_768, server.buffer, 0, cookie=99)
    b.pool.run(0)
    assert [one[:2] for one in server.user.take()] == [(99, "wrong")]
    b.pool.remove_connection(b.node.number(a.node))
    taken: list[tuple] = []
    for k in range(POSTED):
        sender.say(b"%02d" % k * 10_000, 32_768 * k, port=5, cookie=k)
        assert completions(hosts[1:], sender, 1) == [(k, "done", 0)]
        taken += server.user.take()
    until(hosts[1:], lambda: (taken.extend(server.user.take()), len(taken) >= POSTED)[1])
    assert sorted(one[0] for one in taken) == list(range(POSTED)) and {one[1:] for one in taken} == {
        ("done", 20_000)}
    parts = [bytes(server.memory.view()[32_768 * k : 32_768 * k + 20_000]) for k in range(POSTED)]
    assert sorted(parts) == [b"%02d" % k * 10_000 for k in range(POSTED)]


@pytest.mark.slow
def test_more_long_messages_at_once_than_there_may_be_reads():
    """Over a thousand links send one each to programs that have posted memory for all: as many are read at a time as
    may be on the way to a peer, the others are asked for again, and each comes once."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 8192:
        pytest.skip(f"{limits[1]} open files are too few for a thousand links")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 8192), limits[1]))
    try:
        a, b = hosts = make_hosts("sim", 2)
        world, n, size = world_of(hosts), REQUESTS_TO_PEER + 50, 16_400
        servers = [Program(b, None, size=POSTED * size) for _ in range(n // POSTED + 1)]
        clients = [Program(a, b, size=size) for _ in range(n)]
        for port, server in enumerate(servers, 1):
            b.pool.bind(server.link, port)
            for k in range(POSTED):
                server.user.receive(size, server.buffer, size * k)
        for k, client in enumerate(clients):
            client.say(b"%04d" % k * 4100, port=1 + k // POSTED, cookie=k)
        for now_ns in range(0, 10**9, 10**7):
            a.pool.run(now_ns)
            a.pool.tidy()
            world.land(0, 1)
            b.pool.run(now_ns)
            b.pool.tidy()
            world.land(1, 0)
        assert world.waiting[1, 0, 0] == (0, REQUESTS_TO_PEER)
        until(hosts, lambda: all(client.user.waiting == 0 for client in clients), 10**9)
        assert [client.user.take() for client in clients] == [[(k, "done", 0)] for k in range(n)]
        until(hosts, lambda: all(program.user.take() or True for program in servers))
        came = [bytes(server.memory.view()[size * k : size * k + size])
                for server in servers for k in range(POSTED)]
        assert sorted(one for one in came if any(one)) == [b"%04d" % k * 4100 for k in range(n)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(("offset", "format_", "value"), [
    (0, "<B", 1), (16, "<Q", 1 << 40), (4, "<I", 1 << 31), (12, "<I", 9)])
def test_a_user_that_changes_a_long_message_meanwhile(offset, format_, value):
    """Between its check and its note the user makes something else of it: a read, a port that can't be, too many bytes,
    another memory. Its pool tells no other one, and that user alone is told that it is wrong."""
    a, b = hosts = make_hosts("sim", 2)
    program, other, server = Program(a, b), Program(a, b), Program(b, None)
    b.pool.bind(server.link, 5)
    program.say(b"x" * 20_000, port=5, cookie=1)
    a.pool.run(0)
    page = memoryview(program.link.user_page)
    struct.pack_into(format_, page, REQUESTS_AT + offset, value)
    a.pool.tidy()
    assert [one[:2] for one in completions(hosts, program, 1)] == [(1, "wrong")]
    other.say(b"hello", port=5, cookie=2)
    assert completions(hosts, other, 1) == [(2, "done", 0)]


def test_a_message_longer_than_any_read(kind):
    """It could never be fetched, so it is `wrong` at its sender, which is told the limit; the next message goes."""
    a, b = hosts = make_hosts(kind, 2)
    server, client = Program(b, None), Program(a, b, size=(1 << 30) + 4096)
    b.pool.bind(server.link, 5)
    client.user.send((1 << 30) + 1, client.buffer, port=5, cookie=1)
    found = completions(hosts, client, 1)
    assert [one[:2] for one in found] == [(1, "wrong")] and str(1 << 30) in found[0][2]
    client.say(b"short", port=5, cookie=2)
    assert completions(hosts, client, 1)[0][:2] == (2, "done")


@pytest.mark.parametrize("fetching", [False, True])
def test_a_long_message_of_a_connection_that_is_given_up(fetching):
    """It has come, or is being fetched, when its connection is given up and another node's gets the number: nothing is
    read there, and that node is told nothing; the memory posted for it takes the next one."""
    a, b, c = hosts = make_hosts("sim", 3)
    world = world_of(hosts)
    own = second_connection("sim", a, b)
    there = b.pool.connections(a.id)[1]
    server, client = Program(a, None), Program(b, a)
    a.pool.bind(server.link, 5)
    server.user.receive(40_000, server.buffer, 0, cookie=1)
    b.pool.move(client.link, there)
    until(hosts, lambda: client.link.peer == there)
    client.say(b"old" * 10_000, port=5)
    b.pool.run(0)
    b.pool.tidy()
    world.land(1, 0, 1)
    a.pool.run(0)
    if fetching:
        a.pool.tidy()
    a.pool.remove_connection(own)
    assert second_connection("sim", a, c) == own
    for k in range(5):
        a.pool.run(k)
        a.pool.tidy()
        world.run()
    assert c.node.regions.receive() is None and server.user.take() == []
    assert a.node.regions.failures() == {}
    again = Program(b, a)
    again.say(b"new" * 10_000, port=5, cookie=2)
    assert completions(hosts, again, 1) == [(2, "done", 0)]
    assert completions(hosts, server, 1) == [(1, "done", 30_000)]
    assert bytes(server.memory.view()[:30_000]) == b"new" * 10_000
