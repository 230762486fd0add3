"""Many users share the connections of their host as if each had its own (spindle_core/links/links.pxd).

Method: hosts with real pools over simulated ways, TCP connections and shared memory; each test runs over all three.
"""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import pytest

from spindle_core.links.link import BUFFERS, HANDLES
from spindle_core.links.user import PAGE_SIZES, REQUESTS_WAITING, LinkUser
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.conformance import put_word, word
from tests.spindle_core.fabric.regions.test_mixed import DevicePart
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


# ---- requests ------------------------------------------------------------------------------------------------------

def test_a_link_does_all_kinds_of_requests(kind):
    """A chain of a swap, a read, a write elsewhere and an addition in one list: what each found or read is in the
    user's memory, and the list completes once."""
    a, b = hosts = make_hosts(kind, 2)
    program = Program(a, b)
    words, owned = Mapping.create("words", 4096), Mapping.create("owned", 4096)
    counted = program.reach(b, words, atomics=True)
    written = program.reach(b, owned, writer=True)
    put_word(words, 5, 8)
    program.memory.view()[100:108] = b"12345678"
    user = program.user
    user.compare_swap(counted, 8, 5, 6, buffer=program.buffer, buffer_offset=0)
    user.read(counted, 8, 8, program.buffer, 8)
    user.write(written, 40, 8, program.buffer, 100)
    user.fetch_add(counted, 8, 10, cookie=77)
    user.submit()
    assert completions(hosts, program, 1) == [(77, "done", 6)]
    assert word(program.memory, 0) == 5 and word(program.memory, 8) == 6 and word(words, 8) == 16
    assert bytes(owned.view()[40:48]) == b"12345678" and user.waiting == 0


def test_opening_links_makes_no_connection(kind):
    """A thousand links use the one connection; memory of the pool for a closed link is given back, and its number is
    another one's later."""
    a, b = hosts = make_hosts(kind, 2)
    words = Mapping.create("words", 4096)
    first = Program(a, b)
    key = b.node.regions.register(words, atomics=True)
    b.node.opened[key] = words
    seen = set()
    for k in range(1000):
        program = Program(a, b, size=4096) if k % 100 == 0 else None
        link = program.link if program else a.pool.open_link(b.id)
        assert link.id not in seen and link.peer == first.link.peer
        seen.add(link.id)
        if program is not None:
            program.user.fetch_add(program.open(b, key), 0, 1, cookie=k)
            program.user.submit()
            assert completions(hosts, program, 1)[0][1] == "done"
        a.pool.close_link(link)
        a.pool.tidy()
    assert word(words) == 10 and a.pool.connections(b.id) == [first.link.peer]


WRONG = {
    "no such region": lambda u, region, buffer: u.read(region + 1, 0, 8, buffer),
    "a region far off": lambda u, region, buffer: u.read(2**32 - 1, 0, 8, buffer),
    "beyond the region": lambda u, region, buffer: u.read(region, 4090, 8, buffer),
    "misaligned": lambda u, region, buffer: u.fetch_add(region, 4, 1),
    "no right": lambda u, region, buffer: u.write(region, 0, 8, buffer),
    "no such memory": lambda u, region, buffer: u.read(region, 0, 8, buffer + 1),
    "memory far off": lambda u, region, buffer: u.read(region, 0, 8, 2**32 - 1),
    "beyond the memory": lambda u, region, buffer: u.read(region, 0, 8, buffer, (1 << 20) - 7),
    "wraps around": lambda u, region, buffer: u.read(region, 0, 8, buffer, 2**64 - 4),
    "nothing": lambda u, region, buffer: u.read(region, 0, 0, buffer),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_its_users_alone(kind, what):
    """One request of a list is wrong: it completes as `wrong` with the reason, nothing of the list happens, and what
    else is signalled of it says so, too; the user's next list, and those of another user of the same connection, happen
    as ever."""
    a, b = hosts = make_hosts(kind, 2)
    one, other = Program(a, b), Program(a, b)
    words = Mapping.create("words", 4096)
    region = one.reach(b, words, atomics=True)
    also = other.open(b, next(iter(b.node.opened)))
    one.user.fetch_add(region, 0, 1, cookie=1, signalled=True)
    one.user.fetch_add(region, 0, 1)
    WRONG[what](one.user, region, one.buffer)
    one.user.fetch_add(region, 0, 1, cookie=2)
    one.user.submit()
    other.user.fetch_add(also, 8, 1, cookie=3)
    other.user.submit()
    found = completions(hosts, one, 3)
    assert [seen[:2] for seen in found] == [(1, "after"), (0, "wrong"), (2, "after")] and isinstance(found[1][2], str)
    assert completions(hosts, other, 1) == [(3, "done", 0)]
    one.user.fetch_add(region, 0, 1, cookie=4)
    one.user.submit()
    assert completions(hosts, one, 1) == [(4, "done", 0)]
    assert word(words) == 1 and word(words, 8) == 1 and one.user.broken == ""


def test_a_flood_stops_nobody_else(kind):
    """One user keeps its ring full; another one's single requests each complete within a few rounds; the flood is done
    as well, in its order, and a ring that is full is told with the limit."""
    a, b = hosts = make_hosts(kind, 2)
    flood, quiet = Program(a, b), Program(a, b)
    words = Mapping.create("words", 4096)
    region = flood.reach(b, words, atomics=True)
    also = quiet.open(b, next(iter(b.node.opened)))
    with pytest.raises(BlockingIOError, match=str(REQUESTS_WAITING)):
        for k in range(1000):
            flood.user.fetch_add(region, 0, 1, cookie=k)
            if k % 32 == 31:
                flood.user.submit()
    flood.user.submit()
    got: list[tuple] = []
    for k in range(20):
        quiet.user.fetch_add(also, 8, 1, cookie=k)
        quiet.user.submit()
        done: list[tuple] = []
        for _ in range(50):
            step(hosts)
            got += flood.user.take()
            done += quiet.user.take()
            if done:
                break
        assert done == [(k, "done", k)]
    until(hosts, lambda: (got.extend(flood.user.take()), word(words) == REQUESTS_WAITING)[1])
    assert flood.user.waiting == 0
    assert [one[0] for one in got] == sorted(one[0] for one in got)


def test_who_takes_no_completions_stops_itself_alone(kind):
    """A user that never takes its completions has its requests wait; nothing of them is lost when it does."""
    a, b = hosts = make_hosts(kind, 2)
    lazy, other = Program(a, b), Program(a, b)
    words = Mapping.create("words", 4096)
    region = lazy.reach(b, words, atomics=True)
    also = other.open(b, next(iter(b.node.opened)))
    n = 0
    for _ in range(40):
        try:
            while True:
                lazy.user.fetch_add(region, 0, 1, cookie=n)
                lazy.user.submit()
                n += 1
        except BlockingIOError:
            pass
        step(hosts)
    other.user.fetch_add(also, 8, 1, cookie=1)
    other.user.submit()
    assert completions(hosts, other, 1) == [(1, "done", 0)]
    assert word(words) < n
    found = completions(hosts, lazy, n)
    assert [one[0] for one in found] == list(range(n)) and word(words) == n


# ---- users that lie or die -----------------------------------------------------------------------------------------

def test_counts_that_make_no_sense_break_that_link_alone(kind):
    """A user's page says that it has submitted, or taken, what can't be: that link is over and says so; others go on;
    no byte of it is believed."""
    a, b = hosts = make_hosts(kind, 2)
    for place, value in ((1, 2**63), (1, 1000), (8, 1000), (9, 2**63)):
        liar, other = Program(a, b), Program(a, b)
        words = Mapping.create("words", 4096)
        region = other.reach(b, words, atomics=True)
        listener = Program(b, None)
        if place == 9:
            b.pool.bind(listener.link, 7)
            liar = listener
            sender = Program(a, b)
            sender.say(b"hello", port=7)
        memoryview(liar.link.user_page).cast("Q")[place] = value
        if place == 8:
            liar.user.fetch_add(liar.reach(b, Mapping.create("words", 4096), atomics=True), 0, 1)
            liar.user.submit()
        until(hosts, lambda liar=liar: liar.user.broken)
        assert "no sense" in liar.user.broken and not liar.link.is_open
        other.user.fetch_add(region, 0, 1, cookie=1)
        other.user.submit()
        assert completions(hosts, other, 1) == [(1, "done", 0)]
        b.pool.close_link(listener.link)
        b.pool.tidy()


@pytest.mark.parametrize("seed", range(8))
def test_a_user_that_writes_anything_into_its_page(kind, seed):
    """Random lines in its ring, random counts: the pool goes on, another user's requests complete, memory that the user
    was not granted stays as it is."""
    rng = random.Random(seed)
    a, b = hosts = make_hosts(kind, 2)
    other = Program(a, b)
    words, private = Mapping.create("words", 4096), Mapping.create("private", 4096)
    region = other.reach(b, words, atomics=True)
    b.node.regions.register(private)
    for _ in range(5):
        liar = Program(a, b)
        liar.reach(b, Mapping.create("own", 4096), atomics=True)
        page = memoryview(liar.link.user_page)
        for _ in range(200):
            at = REQUESTS_AT + 64 * rng.randrange(256)
            kind_, flags, left = rng.randrange(9), rng.randrange(3), rng.choice([0, 0, 0, 1, 5, 63, 64, 70])
            page[at : at + 64] = struct.pack("<BBHIIIQQQQQQ", kind_, flags, left, rng.choice([0, 8, 4096, 20_000]),
                                             rng.choice([0, 1, 2**31]), rng.choice([0, 1, 16, 2**31]),
                                             rng.choice([0, 8, 5, 2**63]), rng.choice([0, 2**40, 2**64 - 8]),
                                             rng.randrange(4), rng.randrange(4), rng.randrange(1 << 40), 0)
        memoryview(liar.link.user_page).cast("Q")[1] = rng.choice([3, 100, 256, 257, 2**64 - 1])
        for k in range(20):
            step(hosts, k * 1_000_000)
            liar.user.take()
        a.pool.close_link(liar.link)
    before = word(words)
    other.user.fetch_add(region, 0, 1, cookie=1)
    other.user.submit()
    assert completions(hosts, other, 1) == [(1, "done", before)]
    assert not any(private.view())


def test_a_user_that_goes_with_requests_on_the_way():
    """Its requests go on and complete to nobody; its place is used again only when nothing of it is on the way; others'
    completions are their own."""
    a, b = hosts = make_hosts("sim", 2)
    world = world_of(hosts)
    gone, stays = Program(a, b), Program(a, b)
    words = Mapping.create("words", 4096)
    region = gone.reach(b, words, atomics=True)
    also = stays.open(b, next(iter(b.node.opened)))
    for k in range(10):
        for program, handle in ((gone, region), (stays, also)):
            program.user.fetch_add(handle, 0, 1, cookie=k)
            program.user.submit()
    a.pool.run(0)
    a.pool.close_link(gone.link)
    a.pool.tidy()
    old = gone.link.id
    assert a.pool.open_link(b.id).id & 0xFFFF != old & 0xFFFF
    world.run()
    assert completions(hosts, stays, 10) and word(words) == 20
    a.pool.tidy()
    assert gone.user.take() == []
    new = a.pool.open_link(b.id)
    assert new.id & 0xFFFF == old & 0xFFFF and new.id != old


# ---- leases --------------------------------------------------------------------------------------------------------

def test_a_lease_that_ends_holds_requests_up_until_it_is_renewed(kind):
    """Before the end of the lease requests go; after it they wait, and the pool's driver is told once; renewed, they
    go on in order; ended, they fail as `ended`."""
    a, b = hosts = make_hosts(kind, 2)
    program = Program(a, b)
    words = Mapping.create("words", 4096)
    region = program.reach(b, words, lease_ns=1000, atomics=True)
    for now, n in ((999, 1), (1000, 1)):
        program.user.fetch_add(region, 0, 1, cookie=now)
        program.user.submit()
        a.pool.run(now)
        step(hosts[1:])
        leases = a.pool.tidy()
        assert word(words) == n
        assert leases == ([] if now < 1000 else [(program.link, region)])
    a.pool.run(5000)
    assert a.pool.tidy() == [] and word(words) == 1
    program.link.renew(region, 9000)
    assert [one[:2] for one in completions(hosts, program, 2, 5000)] == [(999, "done"), (1000, "done")]
    program.user.fetch_add(region, 0, 1, cookie=1)
    program.user.submit()
    a.pool.run(9000)
    assert a.pool.tidy() == [(program.link, region)]
    program.link.end_region(region)
    assert [one[:2] for one in completions(hosts, program, 1, 9000)] == [(1, "ended")]
    assert word(words) == 2


# ---- messages ------------------------------------------------------------------------------------------------------

def test_many_send_to_one_and_are_answered(kind):
    """Programs of two hosts send to a port; the program there gets each message once, in its sender's order, with who
    sent it, and answers each over a link that it opens in return."""
    a, b, c = hosts = make_hosts(kind, 3)
    server = Program(c, None)
    c.pool.bind(server.link, 700)
    with pytest.raises(ValueError, match="bound"):
        c.pool.bind(c.pool.open_link(), 700)
    clients = [Program(host, c) for host in (a, a, b, b)]
    for number, client in enumerate(clients):
        for k in range(30):
            client.say(b"%d:%d" % (number, k), 100 * k, port=700, cookie=k)
    got: list[tuple] = []
    until(hosts, lambda: (got.extend(server.user.messages()), len(got) == 120)[1])
    for number, client in enumerate(clients):
        mine = [one for one in got if one[1] == client.link.id and one[0] == client.host.id]
        assert [data for _, _, data in mine] == [b"%d:%d" % (number, k) for k in range(30)]
        assert [one[:2] for one in completions(hosts, client, 30)] == [(k, "done") for k in range(30)]
    back = {host.id: Program(c, host) for host in (a, b)}
    for node, link, data in got:
        back[node].say(b"re " + data, to=link)
        until(hosts, lambda node=node: back[node].user.waiting == 0)
    for number, client in enumerate(clients):
        answers = [data for _, _, data in client.user.messages()]
        assert answers == [b"re %d:%d" % (number, k) for k in range(30)]


def test_a_receiver_that_takes_nothing_lets_its_senders_wait(kind):
    """Its box fills; its senders' messages stay in their rings, in order; messages to another program over the same
    connection, and requests, go on; once it takes, all come, none twice, none overtaking."""
    a, b = hosts = make_hosts(kind, 2)
    slow, quick = Program(b, None), Program(b, None)
    b.pool.bind(slow.link, 1)
    b.pool.bind(quick.link, 2)
    sender, other = Program(a, b, size=1 << 20), Program(a, b)
    sent = 0
    for k in range(200):
        try:
            sender.say(struct.pack("<I", sent) * 1000, 4000 * (sent % 200), port=1, cookie=sent)
            sent += 1
        except BlockingIOError:
            break
        step(hosts, k * 1_000_000)
    assert sender.user.waiting > 0
    for k in range(5):
        other.say(b"%d" % k, port=2)
        until(hosts, lambda k=k: quick.user.messages() == [(a.id, other.link.id, b"%d" % k)])
    got: list[bytes] = []
    until(hosts, lambda: (got.extend(one[2] for one in slow.user.messages()), len(got) == sent)[1], 10**9)
    assert got == [struct.pack("<I", k) * 1000 for k in range(sent)]
    assert [one[0] for one in completions(hosts, sender, sent, 2 * 10**9)] == list(range(sent))


def test_a_link_of_no_node_sends_nothing(kind):
    """One that was opened for a port leads nowhere: a message to a port or to a link is `wrong`, and others go on."""
    a, b = hosts = make_hosts(kind, 2)
    server, client = Program(b, None), Program(a, b)
    b.pool.bind(server.link, 3)
    server.say(b"x", to=client.link.id, cookie=1)
    server.say(b"x", port=3, cookie=2)
    server.say(b"x" * 20_000, to=client.link.id, cookie=3)
    assert [one[:2] for one in completions(hosts, server, 3)] == [(k, "wrong") for k in (1, 2, 3)]
    client.say(b"hello", port=3, cookie=4)
    assert completions(hosts, client, 1) == [(4, "done", 0)]


def test_messages_to_nobody_say_so(kind):
    """A port that nobody is bound to, a link that has gone: `nobody`, and the link goes on."""
    a, b = hosts = make_hosts(kind, 2)
    program, server = Program(a, b), Program(b, None)
    gone = b.pool.open_link()
    b.pool.close_link(gone)
    b.pool.tidy()
    program.say(b"x", port=9, cookie=1)
    program.say(b"x", to=gone.id, cookie=2)
    program.say(b"x", to=0, cookie=3)
    assert completions(hosts, program, 3) == [(1, "nobody", 0), (2, "nobody", 0), (3, "nobody", 0)]
    b.pool.bind(server.link, 9)
    program.say(b"hello", port=9, cookie=4)
    assert completions(hosts, program, 1) == [(4, "done", 0)]
    assert server.user.messages() == [(a.id, program.link.id, b"hello")]
    b.pool.close_link(server.link)
    b.pool.tidy()
    program.say(b"x", port=9, cookie=5)
    assert completions(hosts, program, 1) == [(5, "nobody", 0)]
    b.pool.bind(b.pool.open_link(), 9)


# ---- connections ---------------------------------------------------------------------------------------------------

def test_a_link_moves_with_its_order_kept(kind):
    """While requests and messages flow, the link goes to another connection and back, many times: each completion comes
    once and in order, sums are exact, messages come in order, and its regions are reached over the new connection."""
    a, b = hosts = make_hosts(kind, 2)
    shared = a.pool.connections(b.id)[0]
    own = second_connection(kind, a, b)
    assert a.pool.connections(b.id) == [shared, own] and own != shared
    program, server, bystander = Program(a, b), Program(b, None), Program(a, b)
    b.pool.bind(server.link, 3)
    words, owned = Mapping.create("words", 4096), Mapping.create("owned", 4096)
    written = program.reach(b, owned, writer=True)
    region = program.reach(b, words, atomics=True)
    found, messages, n, sent = [], [], 0, 0
    for k in range(300):
        try:
            program.user.fetch_add(region, 0, 1, cookie=n)
            program.user.submit()
            n += 1
            if k % 3 == 0:
                program.say(b"%d" % sent, 64 * (sent % 1000), port=3, cookie=10**6 + sent)
                sent += 1
        except BlockingIOError:
            program.user.drop()
        if k % 10 == 5:
            a.pool.move(program.link, own if program.link.peer == shared else shared)
        if k % 2:
            step(hosts, k * 1000)
        found += program.user.take()
        messages += server.user.messages()
    until(hosts, lambda: (found.extend(program.user.take()), messages.extend(server.user.messages()),
                          len(found) == n + sent)[2], 10**9)
    assert [one[0] for one in found if one[0] < 10**6] == list(range(n))
    assert [one[2] for one in found if one[0] < 10**6] == list(range(n)) and word(words) == n
    assert [data for _, _, data in messages] == [b"%d" % k for k in range(sent)]
    assert bystander.link.peer == shared
    for peer in (own, shared):
        a.pool.move(program.link, peer)
        program.memory.view()[0:8] = b"%8d" % peer
        program.user.write(written, 0, 8, program.buffer, cookie=1)
        program.user.submit()
        assert completions(hosts, program, 1) == [(1, "done", 0)] and program.link.peer == peer
        assert bytes(owned.view()[0:8]) == b"%8d" % peer
    with pytest.raises(ValueError, match="lead"):
        a.pool.move(program.link, 77)
    a.pool.move(program.link, own)
    until(hosts, lambda: program.link.peer == own)
    a.pool.remove_connection(shared)
    program.user.fetch_add(region, 0, 1, cookie=2)
    program.user.submit()
    assert completions(hosts, program, 1) == [(2, "done", n)] and "connection" in bystander.user.broken


def test_a_connection_that_ends_breaks_its_links_alone(kind):
    """Two nodes; the connection to one ends with requests and a message on the way: these complete as `cut`, the link
    says that it is broken; links to the other node go on; a new connection serves new links."""
    a, b, c = hosts = make_hosts(kind, 3)
    to_b, to_c = Program(a, b), Program(a, c)
    words, kept = Mapping.create("words", 4096), Mapping.create("kept", 4096)
    region, other = to_b.reach(b, words, atomics=True), to_c.reach(c, kept, atomics=True)
    to_b.user.fetch_add(region, 0, 1, cookie=1)
    to_b.user.submit()
    to_b.say(b"message", port=9, cookie=2)
    a.pool.run(0)
    a.node.regions.cut(a.node.number(b.node))
    step(hosts)
    found = completions(hosts, to_b, 2)
    assert [one[0] for one in found] == [1, 2] and found[1][1] == "cut" and found[0][1] in ("cut", "done")
    assert "connection" in to_b.user.broken
    to_c.user.fetch_add(other, 0, 1, cookie=3)
    to_c.user.submit()
    assert completions([a, c] if kind != "sim" else hosts, to_c, 1) == [(3, "done", 0)]
    a.pool.remove_connection(a.node.number(b.node))
    assert a.pool.connections(b.id) == []
    with pytest.raises(ConnectionError, match=str(b.id)):
        a.pool.open_link(b.id)


def test_a_number_that_another_connection_gets(kind):
    """A connection is given up while a link is on it, and another one moves there; at once a new connection, to another
    node, gets its number. The first link is broken and reaches nothing more, the other stays where it was."""
    a, b, c = hosts = make_hosts(kind, 3)
    own = second_connection(kind, a, b)
    on_it, moving = Program(a, b), Program(a, b)
    words, others = Mapping.create("words", 4096), Mapping.create("others", 4096)
    region = on_it.reach(b, words, atomics=True)
    also = moving.open(b, next(iter(b.node.opened)))
    a.pool.move(on_it.link, own)
    until(hosts, lambda: on_it.link.peer == own)
    key = c.node.regions.register(others, atomics=True)
    c.node.opened[key] = others
    moving.user.fetch_add(also, 0, 1, cookie=1)
    moving.user.submit()
    a.pool.run(0)
    a.pool.move(moving.link, own)
    a.pool.run(0)
    a.pool.remove_connection(own)
    assert second_connection(kind, a, c) == own
    on_it.user.fetch_add(region, 0, 1, cookie=2)
    on_it.user.submit()
    moving.user.fetch_add(also, 0, 1, cookie=3)
    moving.user.submit()
    assert [one[:2] for one in completions(hosts, moving, 2)] == [(1, "done"), (3, "done")]
    assert "connection" in on_it.user.broken and moving.link.peer == a.pool.connections(b.id)[0]
    assert word(words) == 2 and word(others) == 0


def test_links_that_come_and_go(kind):
    """Forty links are opened and closed in any order, some with requests on the way: whoever is there is served, and
    each request of theirs happens once."""
    rng = random.Random(3)
    a, b = hosts = make_hosts(kind, 2)
    words = Mapping.create("words", 4096)
    key = b.node.regions.register(words, atomics=True)
    b.node.opened[key] = words
    programs: list[tuple[Program, int]] = []
    sent = 0
    for _ in range(60):
        if len(programs) < 40 and rng.random() < 0.6:
            program = Program(a, b, size=4096)
            programs.append((program, program.open(b, key)))
        elif programs:
            program, region = programs.pop(rng.randrange(len(programs)))
            if rng.random() < 0.5:
                program.user.fetch_add(region, 0, 1)
                program.user.submit()
                until(hosts, lambda program=program: program.user.waiting == 0)
                sent += 1
            a.pool.close_link(program.link)
            a.pool.close_link(program.link)
        step(hosts)
        for program, region in programs:
            program.user.fetch_add(region, 0, 1)
            program.user.submit()
            sent += 1
        until(hosts, lambda sent=sent: ([one.user.take() for one, _ in programs], word(words) == sent)[1])
    assert word(words) == sent


def test_ways_know_memory_as_long_as_a_link_uses_it():
    """Two links use one memory, and one of them another one, too: the ways of the host are told, and let go of each
    with the last link that uses it."""
    a, b = make_hosts("sim", 2)
    part = DevicePart(a.node.regions, "device")
    one, other = Program(a, b), Program(a, b)
    other.link.add_buffer(one.memory)
    for program, known in ((None, [one.memory, other.memory]), (one, [one.memory, other.memory]), (other, [])):
        if program is not None:
            a.pool.close_link(program.link)
            a.pool.tidy()
        assert part.known == known


def test_a_run_costs_what_is_in_use():
    """Three links of which each has a high number, and three in a fresh pool: a run, and what is tidied up after it,
    take the same for both. Timed in turns, the shortest of many."""
    many, few = make_hosts("shm", 2)[0].pool, make_hosts("shm", 2)[0].pool
    links = [many.open_link() for _ in range(400)]
    for link in links[:-3]:
        many.close_link(link)
    many.tidy()
    for _ in range(3):
        few.open_link()

    def shortest(pool: Any) -> float:
        began = time.perf_counter()
        for _ in range(100):
            pool.run(0)
            pool.tidy()
        return time.perf_counter() - began

    times = [(shortest(many), shortest(few)) for _ in range(30)]
    assert min(one for one, _ in times) < 2 * min(other for _, other in times)


def test_limits_are_told(kind):
    """Links, memories and regions of one link, ports and pages: each limit in its message; what is given back can be
    had again."""
    a, b = make_hosts(kind, 2)
    program = Program(a, b, size=4096)
    for _ in range(BUFFERS - 1):
        program.link.add_buffer(Mapping.create("more", 4096))
    with pytest.raises(ValueError, match=str(BUFFERS)):
        program.link.add_buffer(Mapping.create("more", 4096))
    words = Mapping.create("words", 4096)
    key = b.node.regions.register(words, atomics=True)
    b.node.opened[key] = words
    handles = [program.open(b, key) for _ in range(HANDLES)]
    with pytest.raises(ValueError, match=str(HANDLES)):
        program.open(b, key)
    program.link.close_region(handles[7])
    assert program.open(b, key) == handles[7]
    for port in (0, 65536):
        with pytest.raises(ValueError, match="65535"):
            a.pool.bind(program.link, port)
    with pytest.raises(ConnectionError):
        Program(b, None).link.open_region(bytes(32), 0)
    with pytest.raises(ValueError, match="pages"):
        LinkUser(Mapping.create("small", 4096), Mapping.create("small", 4096))
    with pytest.raises(ValueError, match="version"):
        LinkUser(*(Mapping.create("none", size) for size in PAGE_SIZES))
    with pytest.raises(OSError):
        Mapping.attach(__import__("os").dup(program.link.pool_page.fd), True)
