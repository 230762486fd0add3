"""A node's end of an edge: who says what he likes in the place of one, and what the node keeps to.

Method: a daemon, and connections on which this test writes the frames of an edge itself.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client import attach
from spindle.client.remote import attach_remote
from spindle.group.codec import PROTOCOL_VERSION
from spindle.proto import attach_pb2 as pb
from spindle.proto import edge_pb2 as eb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.opening import EDGE_PROTOCOL, MAGIC, STREAM_BYTES
from spindle.transport.wire import encode
from tests.spindle.client.remote_site import LONG_S, declare, more, one_host, options
from tests.spindle.frames import receive_frame
from tests.spindle.hosts import Host
from tests.support import wait_until

PIECE = 64 << 10


class RawEdge:
    """An edge that says what it likes, without keys on loopback."""

    def __init__(self, host: Host, local: bool = False, **more: Any) -> None:
        if local:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(LONG_S)
            self.sock.connect(str(host.directory / "domain-0" / f"node-{host.number}.sock"))
        else:
            address, port = host.address.rsplit(":", 1)
            self.sock = socket.create_connection((address, int(port)), LONG_S)
            self.sock.sendall(b"SPNC")
        self.send(opening_pb2.Opening(**{"magic": MAGIC, "role": opening_pb2.EDGE, "protocol": EDGE_PROTOCOL,
                                         "name": "raw", **more}).SerializeToString())
        self.reply = opening_pb2.OpeningReply.FromString(self.receive())
        self.came: dict[int, bytes] = {}

    def send(self, body: bytes) -> None:
        self.sock.sendall(encode(body))

    def say(self, **body: Any) -> None:
        self.send(eb.StreamFrame(**body).SerializeToString())

    def data(self, stream: int, content: bytes) -> None:
        for at in range(0, len(content), PIECE):
            self.say(data=eb.Data(stream=stream, content=content[at : at + PIECE]))

    def open(self, stream: int, role: opening_pb2.Role = opening_pb2.APPLICATION) -> None:
        self.say(open=eb.Open(stream=stream))
        self.data(stream, encode(opening_pb2.Opening(
            magic=MAGIC, role=role, protocol=PROTOCOL_VERSION, name=f"program {stream}").SerializeToString()))

    def receive(self) -> bytes:
        return receive_frame(self.sock)

    def next(self, *kinds: str) -> eb.StreamFrame:
        """The next message of one of these kinds."""
        while True:
            frame = eb.StreamFrame.FromString(self.receive())
            if frame.WhichOneof("body") == "data":
                self.came[frame.data.stream] = self.came.get(frame.data.stream, b"") + frame.data.content
            if frame.WhichOneof("body") in kinds:
                return frame

    def frame_of(self, stream: int) -> bytes:
        """The first frame that came in a stream, and has not been taken."""
        while True:
            data = self.came.get(stream, b"")
            if len(data) >= 8 and len(data) >= 8 + (size := struct.unpack("<IHH", data[:8])[0]):
                self.came[stream] = data[8 + size :]
                return data[8 : 8 + size]
            self.next("data")

    def cut_off(self) -> str:
        """What the node said last, when it has closed."""
        last = ""
        try:
            while True:
                frame = self.next("close")
                last = frame.close.text if frame.close.stream == 0 else last
        except (EOFError, ConnectionError):
            return last
        finally:
            self.sock.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = Path(f"/tmp/edges-{os.getpid()}")
    directory.mkdir()
    try:
        with one_host(directory, *options(limits__max_apps=6, limits__handshake_timeout_s=1.0)) as running:
            yield running
    finally:
        import shutil

        shutil.rmtree(directory)


def welcomed(edge: RawEdge, stream: int) -> None:
    assert opening_pb2.OpeningReply.FromString(edge.frame_of(stream)).kind == ""
    welcome = pb.NodeFrame.FromString(rb.NodeSide.FromString(edge.frame_of(stream)).node)
    assert welcome.WhichOneof("body") == "welcome"


@pytest.mark.slow
def test_programs_are_applications_and_nothing_else(host: Host) -> None:
    """Whatever the edge's keys are: what comes through it can't be a node, or an edge in turn."""
    edge = RawEdge(host)
    assert edge.reply.kind == "" and edge.reply.protocol == EDGE_PROTOCOL and edge.next("allowed").allowed.streams == 6
    edge.open(1)
    welcomed(edge, 1)
    for stream, role in enumerate((opening_pb2.PEER, opening_pb2.CONTACT, opening_pb2.EDGE), 2):
        edge.open(stream, role)
        reply = opening_pb2.OpeningReply.FromString(edge.frame_of(stream))
        assert "only applications come through an edge" in reply.message and reply.incarnation == 0
    edge.sock.close()


@pytest.mark.slow
@pytest.mark.parametrize(("lie", "why"), [
    (eb.StreamFrame(open=eb.Open(stream=7)), "stream 7 was opened after stream 1"),
    (eb.StreamFrame(data=eb.Data(stream=9, content=b"x")), "no such stream"),
    (eb.StreamFrame(credit=eb.Credit(stream=1, bytes=STREAM_BYTES)), "are on the way"),
    (eb.StreamFrame(allowed=eb.Allowed(streams=7)), "by the end that opens none"),
], ids=["number", "nobody", "credit", "allows"])
def test_an_edge_that_lies_is_cut_off_with_its_programs(host: Host, lie: eb.StreamFrame, why: str) -> None:
    """And told why; another edge, and programs with connections of their own, don't notice."""
    with attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as alone:
        honest, edge = RawEdge(host), RawEdge(host)
        honest.open(1)
        welcomed(honest, 1)
        edge.open(1)
        welcomed(edge, 1)
        wait_until(lambda: local.status()["relayed"]["applications"] == 3)
        edge.send(lie.SerializeToString())
        assert why in edge.cut_off()
        wait_until(lambda: local.status()["relayed"]["applications"] == 2)
        assert local.status()["relayed"]["edges"] == 1 and alone.view().node_ids == (1,)
        honest.sock.close()
    with attach(runtime_dir=host.directory) as local:
        wait_until(lambda: local.status()["relayed"]["edges"] == 0)


def test_more_than_a_window_is_refused(host: Host) -> None:
    """Goal: a node keeps no more of a stream than it has granted. Method: what the node doesn't take as long as nobody
    has introduced himself: the rest of an Opening that is a few bytes short."""
    edge = RawEdge(host)
    edge.say(open=eb.Open(stream=1))
    edge.data(1, bytes(STREAM_BYTES))
    with pytest.raises((ConnectionError, EOFError, BrokenPipeError)):
        for _ in range(200):
            edge.data(1, bytes(PIECE))
            time.sleep(0.001)
        while True:
            edge.next("close")
    edge.sock.close()


@pytest.mark.slow
def test_who_says_nothing_in_a_stream_is_closed(host: Host) -> None:
    edge = RawEdge(host)
    edge.say(open=eb.Open(stream=1))
    assert "sent nothing for 1 s" in opening_pb2.OpeningReply.FromString(edge.frame_of(1)).message
    assert edge.next("close").close.stream == 1
    edge.open(2)
    welcomed(edge, 2)
    edge.sock.close()


def test_limits_of_streams_are_told(host: Host) -> None:
    """Of all edges together; each that is refused is told, and the edge goes on."""
    one, other = RawEdge(host), RawEdge(host)
    one.next("allowed")
    for stream in (1, 2, 3, 4):
        one.open(stream)
        welcomed(one, stream)
    other.open(1)
    reply = opening_pb2.OpeningReply.FromString(other.frame_of(1))
    assert "node 1 has 6 applications, its limit" in reply.message  # both edges count
    for stream in (2, 3, 4):
        other.say(open=eb.Open(stream=stream))
    while "node 1 has 6 programs at edges, its limit" not in other.next("close").close.text:
        pass
    one.data(1, encode(rb.ClientSide(begin=rb.Begin(client=os.urandom(16), turn=1)).SerializeToString()))
    for edge in (one, other):
        edge.sock.close()
    with attach(runtime_dir=host.directory) as local:
        wait_until(lambda: local.status()["relayed"]["edges"] == 0)


@pytest.mark.parametrize(("more", "why"), [
    ({"local": True}, "an edge comes over the network"),
    ({"protocol": 99}, f"speaks version {EDGE_PROTOCOL} of the edge protocol, the edge version 99"),
    ({"domain_id": 5}, "the edge wants domain 5"),
], ids=["beside the node", "another version", "another domain"])
def test_edges_that_are_not_admitted(host: Host, more: dict[str, Any], why: str) -> None:
    edge = RawEdge(host, **more)
    edge.sock.close()
    assert edge.reply.kind == "ProtocolMismatch" and why in edge.reply.message


@pytest.mark.slow
def test_a_node_that_stops_says_so_before_its_programs_hear_of_it(runtime_dir: Path) -> None:
    """So they find the next node ready when they come again. Then they get their last words, and the edge its own."""
    with one_host(runtime_dir) as stopping:
        edge = RawEdge(stopping)
        assert edge.next("allowed").allowed.streams
        edge.open(1)
        welcomed(edge, 1)
        stopping.running.process.send_signal(signal.SIGTERM)
        first = edge.next("allowed", "close")
        assert first.WhichOneof("body") == "allowed" and first.allowed.streams == 0
        while (word := pb.NodeFrame.FromString(rb.NodeSide.FromString(edge.frame_of(1)).node)).refusal.text == "":
            pass
        assert word.refusal.kind == "NodeStopped" and "node 1 was stopped" in word.refusal.text
        assert "node 1 was stopped" in edge.cut_off()
        assert stopping.running.wait() == 0


def test_what_a_program_had_sent_counts_when_its_edge_dies(host: Host) -> None:
    """As that of a program with a connection of its own."""
    with attach(runtime_dir=host.directory) as local:
        declare(local, "last")
        reader = local.open_reader("last", keep_all=True, from_history=False)
        edge = RawEdge(host)
        edge.open(1)
        welcomed(edge, 1)

        def say(**side: Any) -> None:
            edge.data(1, encode(rb.ClientSide(**side).SerializeToString()))

        say(begin=rb.Begin(client=os.urandom(16), turn=1))
        say(request=pb.Request(number=1, open_writer=pb.OpenWriter(
            topic="last", slots=64, relayed=1 << 20)).SerializeToString())
        while True:
            frame = pb.NodeFrame.FromString(rb.NodeSide.FromString(edge.frame_of(1)).node)
            if frame.reply.number == 1:
                break
        say(messages=rb.Messages(port=frame.reply.writer.port, messages=[
            rb.Message(payload=b"%d" % number, source_ns=1 + number) for number in range(50)]))
        edge.sock.shutdown(socket.SHUT_WR)
        got: list[bytes] = []
        wait_until(lambda: len(more(got, reader)) == 50)
        assert got == [b"%d" % number for number in range(50)]
        edge.sock.close()
