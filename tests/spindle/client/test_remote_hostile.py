"""Sessions with nodes on other hosts: applications that say what they like, and those beside them.

Method: a daemon on a host of its own; applications that write their frames themselves.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from spindle.applications.larges import MADE_MAX, WAITING_MAX
from spindle.client.remote import attach_remote
from spindle.group.codec import PROTOCOL_VERSION
from spindle.group.topics import TIMING_STAMPED, TIMING_WORD
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.opening import MAGIC
from tests.spindle.client.remote_site import LONG_S, declare, more
from tests.spindle.frames import receive_frame
from tests.spindle.hosts import Host
from tests.spindle.links.group import descriptors_of
from tests.support import wait_until


class Hostile:
    """An application that says what it likes, without keys on loopback."""

    def __init__(self, address: str, begin: bool = True, received_max: int = 0) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.socket()
        if received_max:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received_max)
        self.sock.settimeout(LONG_S)
        self.sock.connect((host, int(port)))
        self.sock.sendall(b"SPNC")
        self.send(opening_pb2.Opening(magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION,
                                      name="hostile").SerializeToString())
        assert opening_pb2.OpeningReply.FromString(self.receive()).kind == ""
        assert pb.NodeFrame.FromString(rb.NodeSide.FromString(self.receive()).node).WhichOneof("body") == "welcome"
        if begin:
            self.say(begin=rb.Begin(client=os.urandom(16), turn=1))

    def send(self, body: bytes) -> None:
        self.sock.sendall(struct.pack("<IHH", len(body), 0, 0) + body)

    def say(self, **side: Any) -> None:
        self.send(rb.ClientSide(**side).SerializeToString())

    def request(self, **body: Any) -> pb.NodeFrame:
        self.say(request=pb.Request(number=1, **body).SerializeToString())
        while True:
            side = rb.NodeSide.FromString(self.receive())
            if side.WhichOneof("body") == "node":
                return pb.NodeFrame.FromString(side.node)

    def receive(self) -> bytes:
        return receive_frame(self.sock)

    def cut_off(self) -> str:
        """What the node said last, when it has closed."""
        last, deadline = "", time.monotonic() + LONG_S
        try:
            while True:
                assert time.monotonic() < deadline, "the node goes on with it"
                side = rb.NodeSide.FromString(self.receive())
                frame = pb.NodeFrame.FromString(side.node)
                last = frame.refusal.text or last
        except (EOFError, ConnectionError):
            return last
        finally:
            self.sock.close()


def open_writer(hostile: Hostile, slots: int = 4, topic: str = "t") -> int:
    answer = hostile.request(open_writer=pb.OpenWriter(topic=topic, slots=slots, relayed=1 << 20))
    assert answer.reply.writer.slots == slots
    return answer.reply.writer.port


def messages(port: int, *stamps: int, size: int = 1) -> dict[str, Any]:
    return {"messages": rb.Messages(port=port, messages=[rb.Message(payload=bytes(size), source_ns=one)
                                                         for one in stamps])}


def make_large(one: Hostile, size: int = 5000, topic: str = "t") -> tuple[int, int]:
    """A writer, and the number of memory for a sample of it."""
    port = open_writer(one, topic=topic)
    return port, one.request(make_large=pb.MakeLarge(port=port, size=size, timeout_ms=1000)).reply.large.number


def piece_of(one: Hostile, *pieces: tuple[int, int], number: int = 0) -> None:
    """Pieces (at, size) of a large sample of 5,000 bytes."""
    port, made = make_large(one)
    for at, size in pieces:
        one.say(piece=rb.Piece(port=port, number=number or made, at=at, content=bytes(size)))


def name_large(one: Hostile, number: int = 0, filled: int = 0, topic: str = "t", stamp: int = 1) -> None:
    """A message that names a large sample of which so many bytes came."""
    port, made = make_large(one, topic=topic)
    if filled:
        one.say(piece=rb.Piece(port=port, number=made, content=bytes(filled)))
    one.say(messages=rb.Messages(port=port, messages=[rb.Message(source_ns=stamp, large=number or made)]))


def name_many(one: Hostile) -> None:
    """One large sample twice."""
    port, made = make_large(one)
    one.say(piece=rb.Piece(port=port, number=made, content=bytes(5000)))
    one.say(messages=rb.Messages(port=port, messages=[
        rb.Message(source_ns=stamp, large=made) for stamp in (1, 2)]))


HOSTILE: dict[str, tuple[Callable[[Hostile], None], str]] = {
    "nonsense": (lambda one: one.send(b"\xff" * 50), "can't be read"),
    "a nonsense request": (lambda one: one.say(request=b"\xff" * 50), "can't be read"),
    "too long": (lambda one: one.sock.sendall(struct.pack("<IHH", 1 << 30, 0, 0)), "over the limit"),
    "descriptors": (lambda one: one.sock.sendall(struct.pack("<IHH", 1, 1, 0) + b"x"), "over the network"),
    "twice begun": (lambda one: one.say(begin=rb.Begin(client=bytes(16), turn=2)), "comes once"),
    "messages for nobody": (lambda one: one.say(**messages(7, 1)), "no writer"),
    "too many": (lambda one: one.say(**messages(open_writer(one), *range(1, 2000))), "refused: no free slot"),
    "too large": (lambda one: one.say(**messages(open_writer(one), 1, size=1001)), "refused: a message of 1001"),
    "a piece for nobody": (lambda one: one.say(piece=rb.Piece(port=7, content=b"x")), "no writer"),
    "a piece of nothing": (lambda one: piece_of(one, (0, 10), number=99), "no large sample 99"),
    "a piece behind a hole": (lambda one: piece_of(one, (0, 10), (11, 10)), "of which 10 have come"),
    "a piece twice": (lambda one: piece_of(one, (0, 10), (0, 10)), "of which 10 have come"),
    "a piece without bytes": (lambda one: piece_of(one, (0, 0)), "a piece of 0 bytes"),
    "a piece too long": (lambda one: piece_of(one, (0, 5001)), "a piece of 5001 bytes"),
    "a sample that isn't there": (lambda one: name_large(one, number=99), "no large sample 99"),
    "a sample without its bytes": (lambda one: name_large(one), "0 bytes came"),
    "half of a sample": (lambda one: name_large(one, filled=2500), "2500 bytes came"),
    "a sample twice": (name_many, "no large sample"),
    "falling stamps": (lambda one: one.say(**messages(open_writer(one), 5, 5)), "refused: source timestamp"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOSTILE)
def test_who_says_nonsense_is_cut_off_and_told(remote_host: Host, how: str) -> None:
    """And whoever else is there doesn't notice."""
    do, why = HOSTILE[how]
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
        reader, writer = honest.open_reader("t", keep_all=True, from_history=False), honest.open_writer("t")
        hostile = Hostile(remote_host.address)
        do(hostile)
        assert why in hostile.cut_off()
        time.sleep(0.05)
        reader.log.take(10_000)
        writer.inbox.write(b"here")
        wait_until(lambda: b"here" in reader.log.take(10_000), LONG_S)


@pytest.mark.slow
def test_a_timestamp_in_the_far_future_is_refused_where_it_decides_something(remote_host: Host) -> None:
    """The application's own library refuses it, or else its node, which says why. Elsewhere it is as good as any."""
    timing = bytes([TIMING_STAMPED, TIMING_WORD, *[0] * 254])
    late, soon = (time.time_ns() + seconds * 10**9 for seconds in (60, 15))
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
        declare(honest, "stamped", timing=timing)
        with pytest.raises(ValueError, match="in this topic, where they decide what is the latest, 30 s are the most"):
            honest.open_writer("stamped").inbox.write(b"late", late, LONG_S)
        reader = honest.open_reader("stamped", keep_all=True, from_history=False)
        got: list[bytes] = []
        elsewhere, hostile, large = (Hostile(remote_host.address) for _ in range(3))
        elsewhere.say(**messages(open_writer(elsewhere), late))
        hostile.say(**messages(open_writer(hostile, topic="stamped"), soon, late))
        assert "refused: source timestamp" in hostile.cut_off()
        name_large(large, filled=5000, topic="stamped", stamp=late)
        assert "refused: source timestamp" in large.cut_off()
        wait_until(lambda: more(got, reader) == [bytes(1)], LONG_S)
        wait_until(lambda: honest.status()["large"]["on_the_way"] == 0, LONG_S)
        assert elsewhere.request(get_view=pb.GetView()).reply.view.node_ids


def test_requests_that_make_no_sense_are_refused(remote_host: Host) -> None:
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
    hostile = Hostile(remote_host.address)
    for identity in (0, 5, 1 << 50):
        wanted = pb.OpenWriter(topic="t", relayed=identity)
        assert "identity" in hostile.request(open_writer=wanted).refusal.text
    port = open_writer(hostile)
    again = pb.OpenWriter(topic="t", relayed=1 << 20)
    assert "open already" in hostile.request(open_writer=again).refusal.text
    assert hostile.request(close_port=pb.ClosePort(port=port)).reply.WhichOneof("body") == "done"
    hostile.say(**messages(port, 9))  # it had not heard yet
    assert hostile.request(get_view=pb.GetView()).reply.view.my_rank == 0
    hostile.sock.close()
    early = Hostile(remote_host.address, begin=False)
    early.say(request=pb.Request(number=1, get_view=pb.GetView()).SerializeToString())
    assert "before Begin" in early.cut_off()


@pytest.mark.slow
def test_what_an_application_began_and_left_is_given_back(remote_host: Host) -> None:
    """Memory of large samples that were never named; of handed over ones once they are delivered. Requests for
    descriptors, which nobody can be given over a network, leave none open."""
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
        before = descriptors_of(remote_host.running.process.pid)
        for _ in range(5):
            hostile = Hostile(remote_host.address)
            port, number = make_large(hostile)
            hostile.say(piece=rb.Piece(port=port, number=number, content=bytes(2500)))
            assert hostile.request(make_large=pb.MakeLarge(port=port, size=70 << 20)).reply.large.number
            reader = hostile.request(open_reader=pb.OpenReader(topic="t", keep_all=True, start_index=-1)).reply.reader
            hostile.request(open_large=pb.OpenLarge(port=reader.port, id=1))
            hostile.sock.close()
        wait_until(lambda: honest.status()["large"]["on_the_way"] == 0, LONG_S)
        wait_until(lambda: len(descriptors_of(remote_host.running.process.pid)) <= len(before) + 1, LONG_S)


def test_memory_that_makes_no_sense_is_refused(remote_host: Host) -> None:
    """What an entry has no bytes for, or no room; and a sample is handed over by the message that names it alone."""
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
        declare(honest, "narrow", size_max=39)
        one = Hostile(remote_host.address)
        port, number = make_large(one)
        assert one.request(make_large=pb.MakeLarge(port=port, size=16)).reply.large.number
        for size in (0, 1, 15):
            assert "16 the least" in one.request(make_large=pb.MakeLarge(port=port, size=size)).refusal.text
        handed = one.request(hand_over_large=pb.HandOverLarge(port=port, number=number))
        assert "the message that names it" in handed.refusal.text
        narrow = Hostile(remote_host.address)
        port = open_writer(narrow, topic="narrow")
        assert "39 are the most" in narrow.request(make_large=pb.MakeLarge(port=port, size=5000)).refusal.text
        for left in (one, narrow):
            left.sock.close()
        wait_until(lambda: honest.status()["large"]["on_the_way"] == 0, LONG_S)


def test_what_waits_for_memory_keeps_nothing_else_waiting(remote_host: Host) -> None:
    """Goal: the pieces of one sample are read while many others wait for room: what they wait for may be that sample.
    Method: an application that asks for memory many times while somebody else has all there is, and then for something
    else; then that memory comes free."""
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
        holder, one = Hostile(remote_host.address), Hostile(remote_host.address)
        make_large(holder, 257 << 20)
        port = open_writer(one)

        def ask(first: int, count: int) -> None:
            for number in range(first, first + count):
                one.say(request=pb.Request(number=number, make_large=pb.MakeLarge(
                    port=port, size=5000, timeout_ms=10_000)).SerializeToString())

        ask(100, WAITING_MAX)
        answer = one.request(get_view=pb.GetView())
        assert answer.reply.number == 1, "who waits for memory is answered first"
        ask(5000, 1)
        refused = one.request(get_view=pb.GetView()).refusal
        assert refused.number == 5000 and "1024 large samples of one program wait" in refused.text
        holder.sock.close()
        made, too_many = set(), 0
        while len(made) + too_many < WAITING_MAX:
            side = rb.NodeSide.FromString(one.receive())
            if side.WhichOneof("body") == "node":
                frame = pb.NodeFrame.FromString(side.node)
                too_many += "64 large samples of one program are being filled" in frame.refusal.text
                if frame.reply.number >= 100:
                    assert frame.reply.large.number, "what has come free is not given to who waits for it"
                    made.add(frame.reply.large.number)
        assert len(made) == MADE_MAX
        one.sock.close()
        wait_until(lambda: honest.status()["large"]["on_the_way"] == 0, LONG_S)


def test_readers_that_close_while_another_waits_for_the_line(remote_host: Host) -> None:
    """Goal: the others go on. Method: an application that doesn't read for a while, so that its node waits in the
    middle of its readers, and that then closes those whose turn was next."""
    count = 4000
    with attach_remote([remote_host.address]) as honest:
        declare(honest, "much")
        slow = Hostile(remote_host.address, received_max=1 << 16)
        wanted = pb.OpenReader(topic="much", keep_all=True, start_index=-1)
        first, *others = (slow.request(open_reader=wanted).reply.reader.port for _ in range(5))
        writer = honest.open_writer("much")
        for _ in range(count):
            writer.inbox.write(bytes(900), 0, LONG_S)
        assert writer.inbox.wait_acknowledged(LONG_S)
        for port in (first, *others):
            slow.say(credit=rb.Credit(port=port, bytes=1 << 30))
        for port in others:
            slow.say(request=pb.Request(number=port, close_port=pb.ClosePort(port=port)).SerializeToString())
        wait_until(lambda: honest.status()["topics"][-1]["readers"] == 1, LONG_S)
        came = pulses = 0
        while came < count:
            side = rb.NodeSide.FromString(slow.receive())
            pulses += side.WhichOneof("body") is None
            assert pulses < LONG_S, "nothing comes any more"
            if side.WhichOneof("body") == "deliveries" and side.deliveries.port == first:
                came += len(side.deliveries.messages)
        slow.sock.close()


def test_a_later_turn_ends_the_earlier_one(remote_host: Host) -> None:
    client = os.urandom(16)
    ends = [Hostile(remote_host.address, begin=False) for _ in range(3)]
    ends[0].say(begin=rb.Begin(client=client, turn=2))
    assert ends[0].request(get_view=pb.GetView()).reply.view.node_ids
    ends[1].say(begin=rb.Begin(client=client, turn=3))
    assert "another node" in ends[0].cut_off()
    ends[2].say(begin=rb.Begin(client=client, turn=2))
    assert "another node" in ends[2].cut_off()
    assert ends[1].request(get_view=pb.GetView()).reply.view.node_ids
    ends[1].sock.close()


def larges_of(pid: int) -> int:
    """Descriptors of large samples that a process has."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            count += "spindle large" in os.readlink(f"/proc/{pid}/fd/{fd}")
    return count


@pytest.mark.slow
def test_who_leaves_in_the_middle_of_a_large_sample_leaves_nothing(remote_host: Host) -> None:
    """An application that is granted much and doesn't read, and then closes its reader, or goes."""
    with attach_remote([remote_host.address]) as honest:
        declare(honest, "much")
        writer = honest.open_writer("much")
        wanted = pb.OpenReader(topic="much", keep_all=False, start_index=-1)
        for _ in range(4):
            slow = Hostile(remote_host.address, received_max=1 << 16)
            port = slow.request(open_reader=wanted).reply.reader.port
            slow.say(credit=rb.Credit(port=port, bytes=1 << 30))
            writer.inbox.write(bytes(64 << 20), 0, LONG_S)
            assert writer.inbox.wait_acknowledged(LONG_S)
            while rb.NodeSide.FromString(slow.receive()).WhichOneof("body") != "piece":
                pass
            slow.sock.close()
        wait_until(lambda: larges_of(remote_host.running.process.pid) == 0, LONG_S)
