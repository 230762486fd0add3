"""A peer of regions over TCP that breaks the rules is given up, and touches nothing that it was not granted.

Method: a node, and the bare socket at the other end of its connection, on which a test writes frames of its own. The
node's other peer goes on in each of them.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import pytest

from spindle_core.fabric.regions.regions import MESSAGE_SIZE, MESSAGES_WAITING, REQUESTS_TO_PEER
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.regions.conformance import BOUND_S, word
from tests.spindle_core.fabric.regions.test_tcp import TcpNode, connect
from tests.support import wait_until

MAGIC = 0x53505247
READ, WRITE, SWAP, ADD, ANSWER, MESSAGE, TAKEN = range(1, 8)
DONE, CUT, ENDED, RANGE, REFUSED, AFTER = range(6)
SIGNALLED = 1


def frame(kind: int, number: int, data: bytes = b"", length: int = -1, magic: int = MAGIC) -> bytes:
    return struct.pack("<QII", kind << 56 | number, len(data) if length < 0 else length, magic) + data


def ask(kind: int, number: int, key: int, offset: int, length: int, *, first: int = 0, second: int = 0, left: int = 0,
        flags: int = SIGNALLED, data: bytes = b"") -> bytes:
    return frame(kind, number, struct.pack("<QQQQQII", key, offset, length, first, second, left, flags) + data)


def answer(number: int, status: int, value: int = 0, data: bytes = b"") -> bytes:
    return frame(ANSWER, number, struct.pack("<QII", value, status, 0) + data)


class Scene:
    """A node with an honest peer and a stranger."""

    def __init__(self) -> None:
        self.node, self.honest = TcpNode(), TcpNode()
        connect(self.honest, self.node)
        one, self.stranger = connection()
        self.number = self.node.part.connect(one.detach())
        self.stranger.settimeout(BOUND_S)
        self.memory = Mapping.create("open", 4096)
        self.key = self.node.regions.register(self.memory, atomics=True)

    def say(self, data: bytes) -> None:
        with suppress(OSError):  # it may have given us up already
            self.stranger.sendall(data)
        self.node.regions.progress()

    def answers(self, n: int) -> list[tuple[int, int, int, bytes]]:
        """(number, status, value, bytes read) of the next answers."""
        found = []
        while len(found) < n:
            place, length, magic = struct.unpack("<QII", self.take(16))
            assert place >> 56 == ANSWER and magic == MAGIC
            value, status, _ = struct.unpack("<QII", self.take(16))
            found.append((place & (1 << 56) - 1, status, value, self.take(length - 16)))
        return found

    def take(self, n: int) -> bytes:
        """What the node sends, while it is driven."""
        found = bytearray()

        def look() -> bool:
            self.node.regions.progress()
            with suppress(BlockingIOError):
                found.extend(os.read(self.stranger.fileno(), n - len(found)))
            return len(found) == n

        if n:
            wait_until(look, BOUND_S)
        return bytes(found)

    def is_given_up(self) -> bool:
        wait_until(lambda: (self.node.regions.progress(), self.node.regions.failures())[1], BOUND_S)
        return self.node.regions.failures() == {self.number: "it sent what no node of this version sends"}

    def goes_on(self) -> bool:
        """The honest peer reads and changes what it may."""
        memory = Mapping.create("honest", 4096)
        _, region = self.node.open(memory, self.honest, atomics=True)
        asker, requests = Asker(), RequestList()
        requests.fetch_add(region, 0, 3)
        self.honest.regions.post(asker, requests)
        found = wait_until(lambda: (self.node.regions.progress(), self.honest.regions.progress(), asker.take())[2],
                           BOUND_S)
        return [one[1] for one in found] == ["done"] and word(memory) == 3


NONSENSE = {
    "magic": lambda s: frame(READ, 0, bytes(48), magic=1),
    "kind 0": lambda s: frame(0, 0),
    "kind 8": lambda s: frame(8, 0),
    "too short for its kind": lambda s: frame(READ, 0, bytes(40)),
    "not the next number": lambda s: ask(READ, 1, s.key, 0, 8),
    "a read with bytes": lambda s: ask(READ, 0, s.key, 0, 8, data=bytes(8)),
    "a write of another length": lambda s: ask(WRITE, 0, s.key, 0, 16, data=bytes(8)),
    "a long write of another length": lambda s: ask(WRITE, 0, s.key, 0, 4096, data=bytes(2048)),
    "an answer to nothing": lambda s: answer(0, DONE),
    "a message too long": lambda s: frame(MESSAGE, 0, length=MESSAGE_SIZE + 1),
    "taken more than sent": lambda s: frame(TAKEN, 8),
    "taken with bytes": lambda s: frame(TAKEN, 0, bytes(8)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_ends_the_connection_alone(what):
    """Each frame that no node sends: the peer is given up with that reason, memory is as before, others go on."""
    scene = Scene()
    scene.say(NONSENSE[what](scene))
    assert scene.is_given_up() and not any(scene.memory.view())
    assert scene.goes_on()


REFUSED_ASKS = {
    "no such key": (lambda s: ask(ADD, 0, s.key + (1 << 32), 0, 8, first=1), ENDED),
    "a key far beyond": (lambda s: ask(ADD, 0, 1 << 20, 0, 8, first=1), ENDED),
    "beyond the end": (lambda s: ask(ADD, 0, s.key, 4096, 8, first=1), RANGE),
    "wraps around": (lambda s: ask(READ, 0, s.key, 2**64 - 8, 16), RANGE),
    "all there is": (lambda s: ask(READ, 0, s.key, 0, 2**64 - 1), RANGE),
    "misaligned": (lambda s: ask(ADD, 0, s.key, 4, 8, first=1), RANGE),
    "an atomic of 16 bytes": (lambda s: ask(ADD, 0, s.key, 0, 16, first=1), RANGE),
    "a write": (lambda s: ask(WRITE, 0, s.key, 0, 8, data=b"\1" * 8), REFUSED),
    "a long write": (lambda s: ask(WRITE, 0, s.key, 0, 3000, data=b"\1" * 3000), REFUSED),
    "a write beyond the end": (lambda s: ask(WRITE, 0, s.key, 4000, 3000, data=b"\1" * 3000), REFUSED),
}


@pytest.mark.parametrize("what", REFUSED_ASKS)
def test_what_was_not_granted_is_refused_at_the_owner(what):
    """A peer that doesn't check, or lies: its request fails with the reason, what is behind it in its list does not
    happen, the next list does."""
    scene = Scene()
    make, status = REFUSED_ASKS[what]
    request = bytearray(make(scene))
    struct.pack_into("<I", request, 16 + 40, 1)  # one more belongs to its list
    scene.say(bytes(request) + ask(ADD, 1, scene.key, 0, 8, first=5) + ask(ADD, 2, scene.key, 0, 8, first=7))
    assert scene.answers(3) == [(0, status, 0, b""), (1, AFTER, 0, b""), (2, DONE, 0, b"")]
    assert word(scene.memory) == 7 and not any(scene.memory.view()[8:])
    assert scene.node.regions.failures() == {} and scene.goes_on()


def test_only_the_writer_writes():
    """The honest peer was granted it; the stranger knows the key, and is refused all the same."""
    scene = Scene()
    memory = Mapping.create("owned", 4096)
    key, _ = scene.node.open(memory, scene.honest, writer=True)
    scene.say(ask(WRITE, 0, key, 0, 8, data=b"\1" * 8) + ask(READ, 1, key, 0, 8))
    assert scene.answers(2) == [(0, REFUSED, 0, b""), (1, DONE, 0, bytes(8))]
    assert not any(memory.view())


def posted(scene: Scene, *what: str) -> tuple[Asker, Mapping]:
    """The node has a list under way to the stranger: `add`, `write` or `read` of 8 bytes, or `long` for 2,000."""
    grant = struct.pack("<QQIIQ", 5, 1 << 20, 5, 0, 0)
    region = scene.node.regions.reach(scene.number, grant)
    writable = scene.node.regions.reach(scene.number, struct.pack("<QQIIQ", 6, 1 << 20, 3, 0, 0))
    asker, requests, mine = Asker(), RequestList(), Mapping.create("mine", 4096)
    for k, one in enumerate(what):
        if one == "add":
            requests.fetch_add(region, 0, 1, cookie=k, found=mine, found_offset=8 * k)
        elif one == "write":
            requests.write(writable, 0, 8, mine, cookie=k)
        else:
            requests.read(region, 0, 2000 if one == "long" else 8, mine, 1024, cookie=k)
    scene.node.regions.post(asker, requests)
    return asker, mine


LIES = {
    "of a request that was never made": (("add",), answer(1, DONE)),
    "cut, which only this side can say": (("add",), answer(0, CUT)),
    "a status that isn't": (("add",), answer(0, 6)),
    "after, where nothing failed": (("add", "add"), answer(1, AFTER)),
    "skips an atomic": (("add", "add"), answer(1, DONE)),
    "skips a read": (("read", "write"), answer(1, DONE)),
    "too short": (("read",), answer(0, DONE, data=bytes(7))),
    "too long": (("read",), answer(0, DONE, data=bytes(9))),
    "without what was read": (("long",), answer(0, DONE)),
    "longer than memory": (("long",), answer(0, DONE, data=bytes(2001))),
    "bytes with a failure": (("long",), answer(0, ENDED, data=bytes(2000))),
    "bytes of an atomic": (("add",), answer(0, DONE, data=bytes(8))),
    "twice": (("add",), answer(0, DONE) * 2),
}


@pytest.mark.parametrize("what", LIES)
def test_an_answer_that_lies_ends_the_connection(what):
    """Nothing beyond the request's own memory is touched, every request completes once, nobody else is hurt."""
    scene = Scene()
    asker, mine = posted(scene, *LIES[what][0])
    scene.say(LIES[what][1])
    assert scene.is_given_up()
    found = asker.take()
    assert asker.waiting == 0 and found[-1][1] == ("done" if what == "twice" else "cut")
    assert not any(mine.view()[3024:]) and not any(mine.view()[512:1024])
    assert scene.goes_on()


def test_an_answer_before_the_request_has_left_is_a_lie():
    """A long write that is still being sent: an answer to it would let its memory be used again while it is read."""
    scene = Scene()
    writable = scene.node.regions.reach(scene.number, struct.pack("<QQIIQ", 6, 1 << 30, 3, 0, 0))
    asker, requests, mine = Asker(), RequestList(), Mapping.create("mine", 64 << 20)
    requests.write(writable, 0, 64 << 20, mine, cookie=1)
    scene.node.regions.post(asker, requests)  # far more than the socket holds
    scene.say(answer(0, DONE))
    assert scene.is_given_up() and [one[:2] for one in asker.take()] == [(1, "cut")]


def test_a_peer_that_asks_and_takes_no_answer_is_bounded():
    """A flood of reads whose answers nobody takes: the peer is given up when more of them wait than it may have on the
    way, and this node's memory has not grown with the flood."""
    scene = Scene()
    request = [ask(READ, k, scene.key, 0, 4096) for k in range(8 * REQUESTS_TO_PEER)]
    flood = threading.Thread(target=lambda: scene.stranger.sendall(b"".join(request)), daemon=True)
    scene.stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    flood.start()
    assert scene.is_given_up()
    assert scene.goes_on()


def test_messages_beyond_what_was_allowed_end_the_connection():
    """A sender that ignores how much was taken: what came before is received, then it is given up."""
    scene = Scene()
    one = frame(MESSAGE, 0, bytes(MESSAGE_SIZE))
    sender = threading.Thread(target=lambda: [scene.say(one) for _ in range(MESSAGES_WAITING // MESSAGE_SIZE + 1)],
                              daemon=True)
    sender.start()
    sender.join(BOUND_S)
    assert scene.is_given_up() and scene.goes_on()


@pytest.mark.parametrize("seed", range(30))
def test_any_bytes_in_any_pieces(seed):
    """Right frames, some of them damaged, in pieces of any size: the node answers what is right until it gives the peer
    up, memory that was not granted stays as it is, and the honest peer goes on."""
    rng = random.Random(seed)
    scene = Scene()
    private = Mapping.create("private", 4096)
    hidden = scene.node.regions.register(private)
    scene.node.regions.deregister(hidden)
    data = b""
    for k in range(40):
        data += rng.choice([
            lambda k: ask(ADD, k, scene.key, 8 * rng.randrange(8), 8, first=1),
            lambda k: ask(READ, k, scene.key, rng.randrange(4096), rng.randrange(1, 5000)),
            lambda k: ask(WRITE, k, rng.choice([scene.key, hidden]), 0, 3000, data=b"\1" * 3000),
            lambda k: ask(SWAP, k, scene.key, 0, 8, second=k, left=rng.randrange(3)),
        ])(k)
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    at = 0
    while at < len(data):
        size = rng.choice([1, 7, 16, 100, 5000])
        scene.say(data[at : at + size])
        at += size
    assert not any(private.view()) and scene.goes_on()


def test_a_region_that_ends_while_it_is_being_written():
    """The rest of the bytes goes nowhere, the writer is told; memory is free at once."""
    scene = Scene()
    memory = Mapping.create("owned", 1 << 20)
    key = scene.node.regions.register(memory, writer=scene.number)
    head = struct.pack("<QQQQQII", key, 0, 1 << 20, 0, 0, 0, SIGNALLED)
    scene.say(frame(WRITE, 0, head, len(head) + (1 << 20)) + b"\1" * 100_000)
    wait_until(lambda: (scene.node.regions.progress(), memory.view()[99_999] == 1)[1], BOUND_S)
    assert not scene.node.regions.idle(memory)
    scene.node.regions.deregister(key)
    assert scene.node.regions.idle(memory)
    rest: Any = threading.Thread(target=scene.stranger.sendall, args=(b"\2" * ((1 << 20) - 100_000),), daemon=True)
    rest.start()
    assert scene.answers(1) == [(0, ENDED, 0, b"")]
    assert 2 not in bytes(memory.view())


def test_memory_is_busy_while_an_answer_is_read_from_it():
    """A long read that the peer does not take: the region's memory is not free after its key has ended, until the
    peer has gone."""
    scene = Scene()
    memory = Mapping.create("large", 64 << 20)
    key = scene.node.regions.register(memory)
    scene.say(ask(READ, 0, key, 0, 64 << 20))
    wait_until(lambda: (scene.node.regions.progress(), scene.node.part.statistics()["bytes_sent"] > 0)[1], BOUND_S)
    scene.node.regions.deregister(key)
    assert not scene.node.regions.idle(memory)
    scene.node.regions.cut(scene.number)
    assert scene.node.regions.idle(memory)
