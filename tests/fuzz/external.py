"""Fuzz targets: applications on hosts without a node, at a running node; what that says to them; an edge's streams."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

from spindle.client.nodes import NodeAddresses
from spindle.client.remote_channel import RemoteChannel
from spindle.client.remote_link import Link
from spindle.client.remote_ports import RemoteReader, RemoteWriter
from spindle.edge.streams import Received, Streams
from spindle.errors import SpindleError
from spindle.group.codec import spec_to_wire, topic_to_wire
from spindle.group.leases import Lease
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.proto import attach_pb2 as attach
from spindle.proto import edge_pb2 as eb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.frames import Frame, encode
from spindle.transport.opening import STREAM_BYTES
from tests.fuzz.live import ANSWER_S, PLAIN, _opening, _requests, host
from tests.fuzz.target import Cutter, in_blocks, target

WRITER = attach.OpenWriter(topic="plain", slots=4, relayed=1 << 20, resumed=True, farewell=8,
                           lease=attach.Lease(duration_ns=10_000_000, lapse=33, revival=34))


def _sides() -> Iterator[bytes]:
    begin = rb.ClientSide(begin=rb.Begin(client=bytes(16), turn=1))
    requests = [rb.ClientSide(request=one) for one in _requests()]
    requests.append(rb.ClientSide(request=attach.Request(
        number=99, declare_topic=attach.DeclareTopic(spec=spec_to_wire(PLAIN))).SerializeToString()))
    requests.append(rb.ClientSide(request=attach.Request(number=100, open_writer=WRITER).SerializeToString()))
    stream = [
        rb.ClientSide(messages=rb.Messages(port=1, messages=[rb.Message(payload=b"x" * n, source_ns=n + 1)
                                                             for n in range(3)])),
        rb.ClientSide(credit=rb.Credit(port=2, bytes=1 << 16)),
        rb.ClientSide(messages=rb.Messages(port=3, messages=[rb.Message(payload=b"y", source_ns=5, tag=4)])),
        rb.ClientSide(messages=rb.Messages(port=3, messages=[rb.Message(tag=300)])),
        rb.ClientSide(messages=rb.Messages(port=3)),  # a sign of life
        rb.ClientSide(request=attach.Request(
            number=101, make_large=attach.MakeLarge(port=3, size=200)).SerializeToString()),
        rb.ClientSide(piece=rb.Piece(port=3, number=1, content=b"z" * 100)),
        rb.ClientSide(piece=rb.Piece(port=3, number=1, at=100, content=b"z" * 100)),
        rb.ClientSide(messages=rb.Messages(port=3, messages=[rb.Message(source_ns=7, large=1)])),
    ]
    for sides in ([begin], [begin, *requests, *stream], requests, [begin, *stream], [begin, begin]):
        yield in_blocks(one.SerializeToString() for one in sides)


@target(_sides, size_max=2048, message=lambda _: rb.ClientSide, prefix=0)
def external_client(data: bytes) -> None:
    """Everything that an application of another host may say to a running node once it is let in."""
    here = host()
    stream = b"".join(map(encode, [_opening(opening_pb2.APPLICATION), *Cutter(data).blocks()]))
    with socket.create_connection(here.address) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.sendall(b"SPNC" + stream)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # it had heard enough
    here.check()


def _node_sides() -> Iterator[bytes]:
    delivery = rb.Delivery(payload=b"hello", sender=1, sequence=7, view_id=3, source_ns=9, writer_id=2, tag=1)
    entry = struct.pack("<QQ8s8s", 5, 100, b"a" * 8, b"a" * 8)
    large = rb.Delivery(payload=entry, sender=1, sequence=8, view_id=3, source_ns=10, large=True)
    sides = [
        rb.NodeSide(piece=rb.Piece(port=1, size=100, content=b"a" * 60)),
        rb.NodeSide(piece=rb.Piece(port=1, size=100, at=60, content=b"a" * 40)),
        rb.NodeSide(deliveries=rb.Deliveries(port=1, messages=[large])),
        rb.NodeSide(), rb.NodeSide(deliveries=rb.Deliveries(port=1, messages=[delivery] * 3, lost=2)),
        rb.NodeSide(progress=rb.Progress(port=1, consumed=1, acknowledged=1, persisted=1)),
        rb.NodeSide(node=attach.NodeFrame(reply=attach.Reply(number=5)).SerializeToString()),
        rb.NodeSide(node=attach.NodeFrame(event=attach.Event(kind="missed")).SerializeToString()),
        rb.NodeSide(node=attach.NodeFrame(refusal=attach.Refusal(kind="NodeStopped", text="bye")).SerializeToString()),
    ]
    yield in_blocks(one.SerializeToString() for one in sides)
    for one in sides:
        yield in_blocks([one.SerializeToString()])


@target(_node_sides, size_max=2048, message=lambda _: rb.NodeSide, prefix=0)
def external_node(data: bytes) -> None:
    """Everything that a node may say to an application of another host which reads and writes."""
    channel = RemoteChannel(NodeAddresses(("127.0.0.1:1",)), 0, "fuzz", 0)
    link = Link(None, "nowhere", attach.Welcome())  # type: ignore[arg-type]
    topic = TopicInfo(TopicSpec("t", size_max=64, window=4), 1, (), ())
    reader = RemoteReader(channel.bell, topic, True, b"", b"")
    reader.opened(attach.ReaderOpened(port=1, topic=topic_to_wire(topic), continued=True))
    writer = RemoteWriter(channel.bell, topic, 4, b"", b"", 0, Lease(10_000_000, 33, 34), b"", channel._changed)
    writer.opened(attach.WriterOpened(port=1, topic=topic_to_wire(topic), slots=4, large_max=1000))
    link.readers[1], link.writers[1] = reader, writer
    writer.inbox.write(b"one")
    writer.inbox.write(b"two")
    assert len(writer.batch()) == 2
    writer.inbox.write(b"three" * 50)
    assert not writer.batch() and writer.sending is not None  # and nothing of it went
    reader.grant()
    try:
        for block in Cutter(data).blocks():
            channel._take(link, Frame(block, []))
            reader.grant()
    except SpindleError:
        pass
    assert writer.outbox.acknowledged <= 2
    assert os.pread(writer.sending.fd, 5, 0) == b"three"
    assert reader.reader is not None
    for payload, info in reader.reader.take_pairs(1000):
        assert (info.large or len(payload) <= 64) and info.writer <= 0xFFFF
    reader.close()


def _said() -> Iterator[bytes]:
    """Blocks of messages about streams; before them 1 if it is the edge that hears them."""
    close = eb.StreamFrame(close=eb.Close(stream=1, kind="WireError", text="over"))
    data = [eb.StreamFrame(data=eb.Data(stream=number, content=bytes(700))) for number in (1, 2)]
    opened = [eb.StreamFrame(open=eb.Open(stream=number)) for number in (1, 2)]
    allowed = [eb.StreamFrame(allowed=eb.Allowed(streams=number)) for number in (2, 0)]
    credit = eb.StreamFrame(credit=eb.Credit(stream=1, bytes=1))
    for at_edge, said in ((0, [*opened, *data, eb.StreamFrame(), close]), (1, [*allowed[:1], *data, credit, close]),
                          (1, allowed), (0, [opened[0], close, opened[1]])):
        yield bytes([at_edge]) + in_blocks(one.SerializeToString() for one in said)


@target(_said, message=lambda _: eb.StreamFrame, prefix=1)
def streams(data: bytes) -> None:
    """What an edge and its node say about streams: bounds hold, whatever comes."""
    cutter = Cutter(data)
    at_edge = cutter.number() == 1
    end = Streams(lambda _: None, opens=at_edge, allowed=0 if at_edge else 2)
    came: dict[int, int] = {}
    with contextlib.suppress(SpindleError):
        for body in cutter.blocks():
            happened = end.take(body)
            if at_edge and len(end) < min(2, end.allowed):
                end.send(end.open(), b"x")
            if isinstance(happened, Received):
                came[happened.stream] = came.get(happened.stream, 0) + len(happened.content)
                assert came[happened.stream] <= STREAM_BYTES
            assert len(end) <= 2 and all(end.room(number) <= STREAM_BYTES for number in range(4))


__all__ = ["external_client", "external_node", "streams"]
