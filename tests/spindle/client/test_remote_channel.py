"""Goal: what is asked of a node on another host while the connection to it ends is asked once on that connection; what
a node says of large samples is checked, and what becomes of them is told.

Method: channels whose threads don't run, so that nothing is noticed or sent before the test says so.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spindle.client.nodes import NodeAddresses
from spindle.client.remote import attach_remote
from spindle.client.remote_channel import CLOSE_FLUSH_S, LARGE_FLUSH_S, RemoteChannel
from spindle.client.remote_larges import AGAIN_S, Sending
from spindle.client.remote_link import Link
from spindle.client.remote_ports import RemoteWriter
from spindle.errors import NodeStopped, SpindleError, WireError
from spindle.group.codec import topic_to_wire
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.proto import attach_pb2 as pb
from spindle.proto import relay_pb2 as rb
from spindle.transport.frames import Frame, encode
from spindle.transport.wire_blocking import BlockingConnection
from spindle_core.errors import MessageTooLarge, NodeGone
from tests.spindle.client.remote_site import LONG_S, declare, one_host
from tests.support import wait_until


def test_who_finds_a_connection_to_be_over_waits_until_that_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    channel = RemoteChannel(NodeAddresses(("127.0.0.1:1",), plain=True), 0, "test", None)
    link = Link(BlockingConnection(ours), "127.0.0.1:1", pb.Welcome())
    channel._link = channel._last = link
    link.conn.close()
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(NodeStopped, match="no other node") as raised:
            channel.request(list_topics=pb.ListTopics())
        told.append(str(raised.value))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: channel._changed._waiters, what="the one who asks waits")  # type: ignore[attr-defined]
    assert channel._number == 1 and not link.calls
    channel._lose(link)
    channel._end(NodeStopped("no other node serves"))
    thread.join()
    assert told and not link.calls
    theirs.close()


class Elsewhere:
    """A channel that nobody drives, with a writer of large samples, and the node's end of its connection."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self.channel = RemoteChannel(NodeAddresses(("127.0.0.1:1",), plain=True), 0, "test", None)
        self.link = Link(BlockingConnection(ours), "127.0.0.1:1", pb.Welcome())
        self.channel._link = self.channel._last = self.link
        self.node = BlockingConnection(self._theirs)
        self.topic = TopicInfo(TopicSpec("t", size_max=64), 1, (), ())
        self.writer = RemoteWriter(self.channel.bell, self.topic, 8, b"", b"", 0, None, b"", self.channel._changed)
        self.opens(1, 1 << 30)
        self.link.writers[1] = self.writer
        self.channel._writers = (self.writer,)

    def opens(self, port: int, large_max: int) -> None:
        """The node opens the writer."""
        self.writer.opened(pb.WriterOpened(port=port, topic=topic_to_wire(self.topic), slots=8, large_max=large_max))

    def said(self) -> list[rb.ClientSide]:
        """What has come to the node."""
        found = []
        while True:
            try:
                found.append(rb.ClientSide.FromString(self.node.receive(0).body))
            except TimeoutError:
                return found

    def asked(self) -> list[pb.Request]:
        """The requests among that."""
        return [pb.Request.FromString(one.request) for one in self.said() if one.WhichOneof("body") == "request"]

    def say(self, side: rb.NodeSide) -> None:
        self.channel._take(self.link, Frame(side.SerializeToString(), []))

    def answer(self, number: int, large: int) -> None:
        reply = pb.Reply(number=number, large=pb.LargeMade(number=large))
        self.say(rb.NodeSide(node=pb.NodeFrame(reply=reply).SerializeToString()))

    def begin(self) -> None:
        """A large sample is about to be sent."""
        self.channel._move()
        [wanted] = self.asked()
        assert wanted.make_large.size == 5000
        self.answer(wanted.number, 7)
        assert self.channel._move()

    def close(self) -> None:
        self.channel._end(NodeStopped("over"))
        self.link.conn.close()
        self.node.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.close()


@pytest.mark.parametrize("counts", [{"acknowledged": 1}, {"persisted": 1}, {"acknowledged": 1, "persisted": 1},
                                    {"acknowledged": 2}, {"acknowledged": (1 << 64) - 1}])
@pytest.mark.parametrize("begun", [False, True])
def test_what_is_still_being_sent_can_not_be_acknowledged(
        elsewhere: Elsewhere, counts: dict[str, int], begun: bool) -> None:
    """Goal: a node that lies is cut off, and is not sent what lies under a number that was given back. Method: it
    acknowledges a large sample before it has all of it; then it does so when all has gone."""
    elsewhere.writer.inbox.write(b"x" * 5000)
    if begun:
        elsewhere.begin()
    else:
        elsewhere.channel._move()
        elsewhere.said()
    sending = elsewhere.writer.sending
    assert sending is not None
    with pytest.raises(WireError, match="still being sent"):
        elsewhere.say(rb.NodeSide(progress=rb.Progress(port=1, **counts)))
    assert os.pread(sending.fd, 5000, 0) == b"x" * 5000
    if begun:
        while elsewhere.channel._move():
            pass
        assert [one.WhichOneof("body") for one in elsewhere.said()] == ["piece", "messages"]
        elsewhere.say(rb.NodeSide(progress=rb.Progress(port=1, consumed=1, acknowledged=1)))
        assert not elsewhere.writer.larges._kept


def test_it_may_be_acknowledged_before_the_pump_goes_on(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the node is that fast."""
    elsewhere.writer.inbox.write(b"x" * 5000)
    elsewhere.begin()
    assert elsewhere.channel._move()
    send = elsewhere.link.send

    def at_once(side: rb.ClientSide) -> None:
        send(side)
        elsewhere.say(rb.NodeSide(progress=rb.Progress(port=1, consumed=1, acknowledged=1)))

    monkeypatch.setattr(elsewhere.link, "send", at_once)
    assert elsewhere.channel._move() and not elsewhere.writer.larges._kept and not elsewhere.writer.unsettled


def test_a_node_that_has_no_room_is_asked_again_after_a_while(
        elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one that doesn't wait before it says so isn't asked again and again; the reason that it gave last is told
    until there is memory. Method: time stands still between its answers."""
    now = time.monotonic()
    monkeypatch.setattr("spindle.client.remote_channel.time.monotonic", lambda: now)
    elsewhere.writer.inbox.write(b"x" * 5000)
    elsewhere.writer.larges.was_refused("its user has too much")
    for _ in range(3):
        elsewhere.channel._move()
        [wanted] = elsewhere.asked()
        elsewhere.answer(wanted.number, 0)
        for _ in range(3):
            assert not elsewhere.channel._move()
        assert not elsewhere.said() and elsewhere.writer.larges._refused
        now += AGAIN_S
    elsewhere.begin()
    assert not elsewhere.writer.larges._refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OSError, SpindleError, KeyError])
def test_what_can_not_be_read_ends_the_session_with_a_reason(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """Goal: nobody waits for ever because a thread has died. Method: the piece of a sample fails."""
    def fails(sending: object) -> bytes:
        raise kind("it can't be read")

    monkeypatch.setattr("spindle.client.remote_larges.Sending.piece", fails)
    monkeypatch.setattr("threading.excepthook", lambda args: None)
    with one_host(runtime_dir) as host, attach_remote([host.address], patience_s=None) as session:
        declare(session)
        writer = session.open_writer("t")
        writer.inbox.write(b"x" * 5000)
        with pytest.raises(NodeGone):
            writer.inbox.wait_acknowledged(LONG_S)
        assert "can't be read" in str(session._channel.end_error)
        with pytest.raises(SpindleError, match="can't be read"):
            session.status()
        session._channel._keeper.join(LONG_S)
        assert not session._channel._keeper.is_alive()


def test_a_sample_that_has_lost_its_end_is_said_to() -> None:
    with open(os.memfd_create("short"), "r+b") as short:
        short.write(b"x" * 10)
        short.flush()
        sending = Sending(short.fileno(), 20, 1, 0, 0)
        assert sending.piece() == b"x" * 10
        with pytest.raises(SpindleError, match="of 20 bytes ends after 10"):
            sending.piece()


def waits_of_close(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> int:
    """Seconds that closing its writer takes, where in each second that happens."""
    now = [0.0]

    def second(_: float) -> None:
        now[0] += 1
        assert now[0] < 1000
        happens()

    monkeypatch.setattr("spindle.client.remote_channel.time.monotonic", lambda: now[0])
    monkeypatch.setattr(elsewhere.channel._changed, "wait", second)
    elsewhere.channel._flush([elsewhere.writer])
    return int(now[0])


def test_closing_waits_as_long_as_a_large_sample_gets_on(
        elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what takes longer than a moment isn't lost as long as it goes on, and then for as long as a line may take;
    nobody waits for what stands still. Method: samples of ten pieces, one a second."""
    writer, channel = elsewhere.writer, elsewhere.channel
    monkeypatch.setattr("spindle.large.memory.PIECE_BYTES", 1000)
    writer.inbox.write(b"x" * 10_000)
    assert waits_of_close(elsewhere, monkeypatch, lambda: None) == CLOSE_FLUSH_S
    channel._move()
    assert waits_of_close(elsewhere, monkeypatch, lambda: None) == CLOSE_FLUSH_S
    elsewhere.answer(elsewhere.asked()[-1].number, 7)

    def piece() -> None:
        channel._move()
        elsewhere.said()

    assert waits_of_close(elsewhere, monkeypatch, piece) == 1 + 10 + 1 + LARGE_FLUSH_S
    elsewhere.say(rb.NodeSide(progress=rb.Progress(port=1, consumed=1)))
    assert waits_of_close(elsewhere, monkeypatch, piece) == CLOSE_FLUSH_S
    elsewhere.say(rb.NodeSide(progress=rb.Progress(port=1, consumed=1, acknowledged=1)))
    assert waits_of_close(elsewhere, monkeypatch, piece) == 0


def test_a_node_is_silent_when_nothing_of_a_frame_comes(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a piece that takes a slow line longer than a node may be silent doesn't end the connection. Method: each
    wait is over before the next part of a frame comes; at last nothing comes."""
    frame = encode(rb.NodeSide(piece=rb.Piece(port=1, content=b"x" * 1000)).SerializeToString())
    parts = [frame[at:at + 100] for at in range(0, len(frame), 100)]

    def waits(event: int, deadline: float | None) -> bool:
        if parts:
            elsewhere._theirs.sendall(parts.pop(0))
        return False

    elsewhere._theirs.sendall(parts.pop(0))
    monkeypatch.setattr(elsewhere.link.conn, "_poll", waits)
    assert rb.NodeSide.FromString(elsewhere.link.receive(4).body).piece.content == b"x" * 1000
    with pytest.raises(TimeoutError, match="sent nothing for 4 s"):
        elsewhere.link.receive(4)


def test_a_loan_that_the_next_node_does_not_take_is_refused(elsewhere: Elsewhere) -> None:
    """Goal: a sample that can't be sent isn't kept: nothing behind it would go. Method: another node serves while it is
    being filled."""
    writer = elsewhere.writer
    writer.inbox.claim(5000)
    elsewhere.opens(2, 4999)
    with pytest.raises(MessageTooLarge, match="4999 are the most"):
        writer.inbox.commit()
    assert writer.larges._count == writer.larges._bytes == 0 and not writer.larges._kept
    writer.inbox.write(b"x" * 4999)
    with pytest.raises(SpindleError, match="a sample of 4999 bytes is still to be sent, and this node takes 4998"):
        elsewhere.opens(3, 4998)
