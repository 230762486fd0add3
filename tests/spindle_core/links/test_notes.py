"""What a far pool says is checked: answers that it was not asked for change nothing, or end its connection; and no
answer is lost where there was no room for it.

Method: simulated ways; notes of the far pool are made by hand and sent over its connection.
"""

from __future__ import annotations

import struct

import pytest

from spindle_core.fabric.regions.regions import GRANT
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions import test_sim
from tests.spindle_core.fabric.regions.conformance import word
from tests.spindle_core.links.hosts import Host, Program, make_hosts, until, world_of

SEND, LONG, ANSWER = 1, 2, 3
DONE, NOBODY = 0, 17


def note(kind: int, *, status: int = 0, port: int = 0, to: int = 0, source: int = 0, number: int = 0, count: int = 0
         ) -> bytes:
    return struct.pack("<IIQQQQQ", kind, status, port, to, source, number, count)


def say(host: Host, to: Host, data: bytes) -> None:
    host.node.regions.send(host.node.number(to.node), data)


def test_an_answer_to_another_note_changes_nothing():
    """Of a note before, of one to come, to a link that isn't there: the message completes once, when its own answer
    comes."""
    a, b = hosts = make_hosts("sim", 2)
    world = world_of(hosts)
    program, server = Program(a, b), Program(b, None)
    b.pool.bind(server.link, 4)
    program.say(b"hello", port=4, cookie=1)
    a.pool.run(0)
    for number in (0, 2, 2**63):
        say(b, a, note(ANSWER, to=program.link.id, number=number, count=1))
    say(b, a, note(ANSWER, to=77, number=1, count=1))
    world.land(1, 0)
    a.pool.run(1)
    assert program.user.take() == [] and program.user.waiting == 1 and program.user.broken == ""
    until(hosts, lambda: program.user.waiting == 0)
    assert program.user.take() == [(1, "done", 0)] and server.user.messages() == [(a.id, program.link.id, b"hello")]


NONSENSE = {
    "more than were sent": lambda link: note(ANSWER, to=link, number=1, count=2),
    "a status that isn't": lambda link: note(ANSWER, status=5, to=link, number=1),
    "an answer with bytes": lambda link: note(ANSWER, to=link, number=1, count=1) + bytes(8),
    "a kind that isn't": lambda link: note(9),
    "too short": lambda link: bytes(47),
    "a message beyond its note": lambda link: note(SEND, port=4) + struct.pack("<Q", 100) + bytes(8),
    "a message of any length": lambda link: note(SEND, port=4) + struct.pack("<Q", 2**64 - 1) + bytes(8),
    "half a head": lambda link: note(SEND, port=4) + bytes(4),
    "a port that can't be": lambda link: note(SEND, port=1 << 40),
    "half of a long one": lambda link: note(LONG, port=4) + bytes(40),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_ends_the_connection_alone(what):
    """The pool that sends it is cut: links to it complete what they had as `cut` and say so; those to others go on."""
    a, b, c = hosts = make_hosts("sim", 3)
    world = world_of(hosts)
    program, other, words = Program(a, b), Program(a, c), Mapping.private(4096)
    region = other.reach(c, words, atomics=True)
    program.say(b"hello", port=4, cookie=1)
    a.pool.run(0)
    say(b, a, NONSENSE[what](program.link.id))
    world.land(1, 0)
    a.pool.run(1)
    a.pool.run(2)
    assert program.user.take() == [(1, "cut", 0)] and "connection" in program.user.broken
    assert a.node.regions.failures() == {a.node.number(b.node): "its messages make no sense"}
    other.user.fetch_add(region, 0, 1, cookie=2)
    other.user.submit()
    until([a, c], lambda: (world.run(), word(words) == 1)[1])


def test_a_long_message_opens_its_range_alone():
    """What the sender's pool says of it opens the bytes of the message to its receiver and not one more, under one key
    for all of its tries; when it was taken the key ends."""
    a, b = make_hosts("sim", 2)
    world, number = world_of([a]), b.node.number(a.node)
    program, mine = Program(a, b), Mapping.private(1 << 20)
    program.say(b"message!" * 5000, 4096, port=4, cookie=1)

    def told(now_ns: int) -> tuple[bytes, int, int, int]:
        """(grant, offset, length, number of the note) of what has come."""
        for k in range(3):
            a.pool.run(now_ns + k * 10**7)
            a.pool.tidy()
        world.land(0, 1)
        _, data = b.node.regions.receive()
        assert len(data) == 48 + 48 and b.node.regions.receive() is None
        return data[48:80], *struct.unpack("<QQ", data[80:]), struct.unpack_from("<Q", data, 32)[0]

    def read(grant: bytes, offset: int, length: int) -> str:
        asker, requests = Asker(), RequestList()
        region = b.node.regions.reach(number, grant)
        requests.read(region, offset, length, mine)
        b.node.regions.post(asker, requests)
        world.run()
        b.node.regions.forget(region)
        return asker.take()[0][1]

    grant, offset, length, first = told(0)
    say(b, a, note(ANSWER, to=program.link.id, number=first))      # no room
    world.land(1, 0)
    again, _, _, second = told(10**9)
    a.pool.run(2 * 10**9)
    assert again == grant and second == first + 1
    assert read(grant, offset, length) == "done" and bytes(mine.view()[:length]) == b"message!" * 5000
    forged = GRANT.pack(*GRANT.unpack(grant)[:1], 1 << 20, *GRANT.unpack(grant)[2:])
    assert read(forged, offset + length - 1, 2) == "range" and read(forged, offset, length) == "done"
    say(b, a, note(ANSWER, to=program.link.id, number=second, count=1))
    world.land(1, 0)
    a.pool.run(3 * 10**9)
    a.pool.tidy()
    assert program.user.take() == [(1, "done", 0)] and read(grant, offset, length) == "ended"


def test_no_answer_is_lost_where_it_has_no_room():
    """The way back is full of other notes: the answer is sent when there is room again, and the message completes."""
    a, b = hosts = make_hosts("sim", 2)
    world = world_of(hosts)
    program, server = Program(a, b), Program(b, None)
    b.pool.bind(server.link, 4)
    with pytest.raises(BlockingIOError):
        while True:
            say(b, a, note(ANSWER, to=77))
    program.say(b"hello", port=4, cookie=1)
    a.pool.run(0)
    world.land(0, 1)
    b.pool.run(0)
    assert server.user.messages() == [(a.id, program.link.id, b"hello")]
    until(hosts, lambda: program.user.waiting == 0)
    assert program.user.take() == [(1, "done", 0)]


def test_a_link_that_is_always_used_moves():
    """A new request in each round, and always one on the way: once told to move it takes no more of them until what it
    had is done, and goes on over the other connection."""
    a, b = hosts = make_hosts("sim", 2)
    world = world_of(hosts)
    numbers = a.node.numbers[b.node], b.node.numbers[a.node]
    test_sim.connect(a.node, b.node)
    own = a.node.numbers[b.node]
    a.pool.add_connection(b.id, own)
    b.pool.add_connection(a.id, b.node.numbers[a.node])
    a.node.numbers[b.node], b.node.numbers[a.node] = numbers
    program, words = Program(a, b), Mapping.private(4096)
    region = program.reach(b, words, atomics=True)
    for k in range(100):
        program.user.fetch_add(region, 0, 1, cookie=k)
        program.user.submit()
        a.pool.run(k)
        a.pool.tidy()
        if k == 10:
            a.pool.move(program.link, own)
        for connection in (0, 1) if k % 2 else ():
            world.land(0, 1, connection, n=2)
            world.answer(0, 1, connection, n=2)
        program.user.take()
    assert program.link.peer == own
    until(hosts, lambda: word(words) == 100)
