"""The node's side of applications: admission, limits, malformed and malicious connections, and what is left open.

Goal: whatever one application does ends in its own connection, with a clear word, and leaves nothing open.
Method: an Attachments with a stand-in for the node, real sockets and descriptors; a second, well-behaved session proves
after each attack that the node still serves.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spindle.applications import application
from spindle.config.settings import NodeConfig
from spindle.errors import (
    AccessDenied,
    ConfigError,
    ConnectionEnded,
    NoResources,
    SpindleError,
    TopicLimit,
    TopicMismatch,
    TopicUnknown,
)
from spindle.group.codec import PROTOCOL_VERSION
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.proto import attach_pb2 as pb
from spindle.transport.wire import HEADER, BlockingConnection, Connection, encode
from tests.spindle.stand_in import StandInNode
from tests.support import descriptors_before, open_descriptors, wait_until


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[StandInNode]:
    with StandInNode(runtime_dir / "node.sock", NodeConfig(handshake_timeout_s=0.3)) as running:
        yield running


def last_word(conn: BlockingConnection) -> pb.Refusal:
    """The refusal of the whole connection that the node must send before it closes."""
    while True:
        frame = conn.receive(5.0)
        frame.close_fds()
        message = pb.NodeFrame.FromString(frame.body)
        if message.WhichOneof("body") == "refusal" and message.refusal.number == 0:
            with pytest.raises(ConnectionEnded):
                conn.receive(5.0)
            return message.refusal


def assert_serves(node: StandInNode) -> None:
    with node.session("well-behaved") as session:
        assert session.view().node_ids == (5, 7)


# --- admission


def test_a_foreign_protocol_version_is_told_both_versions(node: StandInNode) -> None:
    """Goal: a version mismatch names both. Method: an Opening with version 99."""
    _, conn, reply = node.opened(protocol=99)
    assert reply.kind == "ProtocolMismatch" and "version 99" in reply.message
    assert f"version {PROTOCOL_VERSION} " in reply.message
    with pytest.raises(ConnectionEnded):
        conn.receive(5.0)


def test_another_domain_is_refused(node: StandInNode) -> None:
    """Goal: an application of another domain gets no further. Method: an Opening with domain 4."""
    _, _, reply = node.opened(domain_id=4)
    assert reply.kind == "ProtocolMismatch" and "domain 0" in reply.message and "domain 4" in reply.message


def test_the_number_of_applications_is_limited(runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: max_apps holds, names itself, and a place that becomes free can be taken. Method: limit 1, two sessions."""
    with StandInNode(runtime_dir / "node.sock", NodeConfig(max_apps=1)) as node:
        first = node.session()
        for _ in range(5):
            with pytest.raises(SpindleError, match=r"its limit.*max_apps"):
                node.session()
        assert sum("refused application" in one.getMessage() for one in caplog.records) == 1, "it tries in vain"
        first.close()
        wait_until(lambda: not node.attachments.apps)
        assert_serves(node)


def test_foreign_users_are_refused(node: StandInNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the access list is asked with the kernel's credentials. Method: a node that believes to be run by another
    user sees us as a stranger."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(AccessDenied, match=f"user {os.getuid()} .*may not attach"):
        node.session()


# --- frames


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=300))
@example(b"\x00" * 8)
@example(HEADER.pack(3, 0, 0) + b"abc")
@example(HEADER.pack(0, 1, 0))
@example(encode(pb.Request(number=1).SerializeToString()))
@example(encode(pb.Request(number=0, watch=pb.Watch()).SerializeToString()))
@example(encode(pb.Request(number=2, open_writer=pb.OpenWriter(topic="x" * 200)).SerializeToString()))
def test_arbitrary_bytes_hurt_nobody_else(node: StandInNode, data: bytes) -> None:
    """Goal: bytes of any kind never break the node. Method: hypothesis writes them after a proper Opening."""
    sock, conn, _ = node.opened()
    conn.receive(5.0).close_fds()  # the welcome
    sock.send(data)
    conn.close()
    assert_serves(node)
    wait_until(lambda: not node.attachments.apps, what="the connection is forgotten")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_arbitrary_bodies_are_answered_or_cut_off(node: StandInNode, body: bytes) -> None:
    """Goal: a frame with any body gets an answer or a last word, never silence. Method: hypothesis makes the body."""
    _, conn, _ = node.opened()
    conn.receive(5.0).close_fds()
    conn.send(body)
    frame = conn.receive(5.0)
    frame.close_fds()
    assert pb.NodeFrame.FromString(frame.body).WhichOneof("body") in ("refusal", "reply", "event")
    conn.close()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (HEADER.pack(1 << 30, 0, 0), "1073741824 bytes is over the limit of 65536"),
        (HEADER.pack(0, 5, 0), "5 descriptors is over the limit of 0"),
        (HEADER.pack(0, 0, 77), "malformed frame header"),
        (HEADER.pack(3, 0, 0) + b"\xff\xff\xff", "can't be read"),
        (encode(pb.Request(number=0, get_view=pb.GetView()).SerializeToString()), "number 0"),
    ],
)
def test_a_bad_frame_gets_a_last_word(node: StandInNode, data: bytes, word: str) -> None:
    """Goal: the reason is said before the connection is closed. Method: one bad frame of each kind."""
    sock, conn, _ = node.opened()
    sock.send(data)
    assert word in last_word(conn).text
    assert_serves(node)


def test_a_slowly_dripping_frame_is_cut_off(node: StandInNode) -> None:
    """Goal: half a frame doesn't occupy the node. Method: part of a header, then nothing, with a limit of 0.3 s."""
    sock, conn, _ = node.opened()
    sock.send(b"\x10\x00")
    assert "longer than 0.3 s" in last_word(conn).text


def test_descriptors_from_an_application_are_refused_and_closed(node: StandInNode) -> None:
    """Goal: an application can't fill the node's descriptor table. Method: send some, count the open."""
    sock, conn, _ = node.opened()
    before = descriptors_before()
    socket.send_fds(sock, [encode(pb.Request(number=1, get_view=pb.GetView()).SerializeToString(), 0)], [0] * 20)
    assert "descriptors" in last_word(conn).text
    conn.close()
    wait_until(lambda: open_descriptors() <= before)


def test_who_does_not_read_is_cut_off(node: StandInNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: answers that nobody reads are bounded. Method: a small bound, many status requests, no reading."""
    monkeypatch.setattr(application, "QUEUE_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(node, "status", lambda: {"filler": "x" * 20000})
    _, conn, _ = node.opened()
    with pytest.raises((ConnectionEnded, TimeoutError)):
        for number in range(1, 2000):
            conn.send(pb.Request(number=number, get_status=pb.GetStatus()).SerializeToString(), timeout_s=2.0)
    wait_until(lambda: not node.attachments.apps)
    assert_serves(node)


def test_an_unknown_request_is_refused_and_the_session_goes_on(node: StandInNode) -> None:
    """Goal: a request of a newer release is refused by itself. Method: a request whose body this node doesn't know."""
    _, conn, _ = node.opened()
    conn.receive(5.0).close_fds()
    conn.send(pb.Request(number=5).SerializeToString())
    refusal = pb.NodeFrame.FromString(conn.receive(5.0).body).refusal
    assert (refusal.number, refusal.kind) == (5, "ProtocolMismatch")
    conn.send(pb.Request(number=6, get_view=pb.GetView()).SerializeToString())
    assert pb.NodeFrame.FromString(conn.receive(5.0).body).reply.number == 6
    conn.close()


# --- what is opened is closed


def test_ports_and_endpoints_go_with_the_connection(node: StandInNode) -> None:
    """Goal: nothing stays open. Method: a writer with an open claim and a reader, both announced; then the connection
    ends without a word."""
    session = node.session()
    session.declare_topic(TopicSpec("altitude", size_max=64))
    writer = session.open_writer("altitude", guid=b"w", endpoint=b"qos")
    session.open_reader("altitude", keep_all=True, from_history=False, guid=b"r")
    assert {one.guid for one in session.endpoints("altitude")} == {b"w", b"r"}
    writer.inbox.claim(10)
    assert len(node.open_ports) == 2
    session._channel._sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not node.open_ports)
    assert not node.announced


def test_a_port_opened_for_an_application_that_has_gone_is_closed(node: StandInNode) -> None:
    """Goal: a request in flight leaves nothing behind. Method: hold an opening back, end the connection, let it go."""
    with node.session() as session:
        session.declare_topic(TopicSpec("altitude", size_max=64))
    _, conn, _ = node.opened()
    node.do(lambda: node.hold.clear())
    for number in range(1, application.REQUESTS_AT_ONCE + 10):  # more than are served at once
        conn.send(pb.Request(number=number, open_writer=pb.OpenWriter(topic="altitude")).SerializeToString())
    wait_until(lambda: any(app._tasks for app in node.attachments.apps.values()))
    conn.close()
    wait_until(lambda: not node.attachments.apps)
    opened = []
    close_writer = node.close_writer

    async def closing(port: object) -> None:
        opened.append(port)
        await close_writer(port)  # type: ignore[arg-type]

    node.close_writer = closing  # type: ignore[method-assign]
    node.do(lambda: node.hold.set())
    wait_until(lambda: len(opened) == application.REQUESTS_AT_ONCE)
    assert not node.open_ports


@pytest.mark.parametrize(("opening", "how"), [("open_reader", {"keep_all": True, "from_history": False}),
                                              ("open_writer", {})])
def test_a_port_whose_descriptors_can_not_be_sent_is_closed(
        node: StandInNode, monkeypatch: pytest.MonkeyPatch, opening: str, how: dict[str, bool]) -> None:
    """Nobody has it then, and a reader would hold up its topic. (Found by the simulator.)"""
    send, refused = Connection.send, []

    def no_descriptors(self: Connection, body: bytes, fds: Sequence[int] = ()) -> None:
        if fds and not refused:
            refused.append(len(fds))
            raise NoResources("what waits to be sent needs descriptors")
        send(self, body, fds)

    with node.session("short") as session:
        session.declare_topic(TopicSpec("t", size_max=64))
        monkeypatch.setattr(Connection, "send", no_descriptors)
        with pytest.raises(NoResources, match="descriptors"):
            getattr(session, opening)("t", guid=bytes(16), **how)
        wait_until(lambda: not node.open_ports)
        assert refused == [3] and not session.endpoints() and not node.attachments.announced
        getattr(session, opening)("t", guid=bytes(16), **how)
        assert len(node.open_ports) == 1


def test_readers_and_writers_per_application_are_limited(runtime_dir: Path) -> None:
    """Goal: max_endpoints_per_app holds and counts what is open, not what was. Method: limit 2."""
    with StandInNode(runtime_dir / "node.sock", NodeConfig(max_endpoints_per_app=2)) as node, node.session() as session:
        session.declare_topic(TopicSpec("altitude", size_max=64))
        first = session.open_writer("altitude")
        session.open_writer("altitude")
        with pytest.raises(TopicLimit, match="2 readers and writers open, the limit"):
            session.open_writer("altitude")
        first.close()
        session.open_writer("altitude")


# --- requests


def test_errors_keep_their_class_and_text(node: StandInNode) -> None:
    """Goal: the application gets the node's own error. Method: one request of each failing kind."""
    with node.session() as session:
        session.declare_topic(TopicSpec("altitude", size_max=64, level=Level.ATOMIC))
        with pytest.raises(TopicMismatch, match="level is ATOMIC in the group, you want LOGGED"):
            session.declare_topic(TopicSpec("altitude", size_max=64, level=Level.LOGGED))
        with pytest.raises(TopicUnknown, match="'speed' was not declared"):
            session.open_writer("speed")
        with pytest.raises(ConfigError, match="start index -2"):
            session.open_reader("altitude", keep_all=True, from_history=False, start_index=-2)
        with pytest.raises(ConfigError, match="limit of 65536 slots"):
            session.open_writer("altitude", slots=1 << 20)
        with pytest.raises(ConfigError, match="a guid has 1 to 16 bytes"):
            session.open_writer("altitude", guid=b"x" * 17)


def test_status_names_the_applications(node: StandInNode) -> None:
    """Goal: status shows who is attached with what. Method: one writer and one reader."""
    with node.session("pilot") as session:
        session.declare_topic(TopicSpec("altitude", size_max=64))
        session.open_writer("altitude")
        session.open_reader("altitude", keep_all=False, from_history=False)
        status = session.status()
    assert status["node"] == 7 and status["pid"] == os.getpid() and status["embedded"] is False
    assert status["applications"] == [
        {"name": "pilot", "pid": os.getpid(), "uid": os.getuid(), "writers": ["altitude"], "readers": ["altitude"]}
    ]
