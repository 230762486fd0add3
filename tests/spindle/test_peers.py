"""Goal: only fitting nodes and applications get past a node's reception; everything else is refused in words and costs
nothing lasting.

Method: a real node, and sockets that say the wrong things.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spindle.config import NodeConfig
from spindle.errors import ConnectionEnded
from spindle.node import Node
from spindle.peers import MAGIC, PROTOCOL
from spindle.proto import node_pb2 as pb
from spindle.proto.opening_pb2 import APPLICATION, PEER, Opening, OpeningReply
from spindle.wire import HEADER, Connection, encode

Test = Callable[[Node, Callable[[], Connection]], Awaitable[None]]


def with_node(test: Test, runtime_dir: Path, **config: Any) -> None:
    """Runs `test` beside one node; the second argument connects to it."""

    async def body() -> None:
        node = Node(NodeConfig(runtime_dir=runtime_dir, handshake_timeout_s=0.3, **config))
        await node.start()
        made: list[Connection] = []

        def connect() -> Connection:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(node.config.domain_dir / f"node-{node.node_id}.sock"))
            made.append(Connection(sock))
            return made[-1]

        try:
            await asyncio.wait_for(test(node, connect), 20)
        finally:
            for conn in made:
                conn.close()
            await node.stop()

    asyncio.run(body())


def opening(**changes: Any) -> bytes:
    values = {"magic": MAGIC, "role": PEER, "protocol": PROTOCOL, "domain_id": 0, "node_id": 9, "incarnation": 5}
    return Opening(**{**values, **changes}).SerializeToString()


@pytest.mark.parametrize(("changes", "kind", "word"), [
    ({"protocol": PROTOCOL + 1}, "ProtocolMismatch", f"version {PROTOCOL + 1}"),
    ({"domain_id": 3}, "ProtocolMismatch", "domain 3"),
    ({"node_id": 1}, "NodeIdTaken", f"pid {os.getpid()}"),
    ({"magic": 1}, "ProtocolMismatch", "not an Opening"),
    ({"role": 7}, "ProtocolMismatch", "not an Opening"),
])
def test_unfitting_openings_are_refused_in_words(
    runtime_dir: Path, changes: dict[str, Any], kind: str, word: str
) -> None:
    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening(**changes))
        reply = OpeningReply.FromString((await conn.receive(5)).body)
        assert reply.kind == kind and word in reply.message
        with pytest.raises(ConnectionEnded):
            await conn.receive(5)
        assert node.view().node_ids == (1,)

    with_node(body, runtime_dir)


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", encode(b"\xff\xff\xff"), encode(b""), HEADER.pack(1 << 30, 0, 0), b"\x01",
    b"",
])
def test_nonsense_is_closed_and_the_node_lives(runtime_dir: Path, sent: bytes) -> None:
    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn._sock.send(sent)
        with pytest.raises(ConnectionEnded):
            while True:
                await conn.receive(5)
        assert node.view().node_ids == (1,)

    with_node(body, runtime_dir)


def test_descriptors_of_strangers_are_not_kept(runtime_dir: Path) -> None:
    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            conn = connect()
            conn.send(opening(), [0])
            with pytest.raises(ConnectionEnded):
                while True:
                    await conn.receive(5)
        assert len(os.listdir("/proc/self/fd")) <= before

    with_node(body, runtime_dir)


def test_application_without_attachment_is_closed(runtime_dir: Path) -> None:
    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening(role=APPLICATION))
        with pytest.raises(ConnectionEnded):
            await conn.receive(5)

    with_node(body, runtime_dir)


@pytest.mark.parametrize("message", [
    pb.PeerMessage(row_offer=pb.RowOffer(view_id=1, ballot=1)),
    pb.PeerMessage(join=pb.JoinRequest(member=pb.Member(node_id=4))),
    pb.PeerMessage(current_view=pb.View(members=[pb.Member(node_id=1), pb.Member(node_id=1)])),
    pb.PeerMessage(topic_request=pb.TopicRequest(request_id=1, role=pb.TopicRequest.Role(topic="t", member=True))),
    pb.PeerMessage(prepared=pb.Prepared(view_id=1, ballot=999)),
    pb.PeerMessage(installed=pb.Installed(view_id=1, ballot=999)),
    pb.PeerMessage(admission=pb.Admission(ballot=999)),
    pb.PeerMessage(history=pb.HistoryChunk(topic_id=1, view_id=3, last=True)),
    pb.PeerMessage(endpoint_removed=pb.EndpointRemoved(guid=b"x")),
    pb.PeerMessage(rejection=pb.Rejection(kind="NodeIdTaken", text="go away")),
    pb.PeerMessage(),
])
def test_a_stranger_s_messages_change_nothing(runtime_dir: Path, message: pb.PeerMessage) -> None:
    """Somebody with our user id connects as a node that is not a member and says things out of turn."""

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening())
        reply = OpeningReply.FromString((await conn.receive(5)).body)
        assert not reply.kind and reply.node_id == 1
        told = pb.PeerMessage.FromString((await conn.receive(5)).body)
        assert told.current_view.view_id == node.view().view_id
        conn.send(message.SerializeToString())
        with contextlib.suppress(TimeoutError, ConnectionEnded):
            while True:
                await conn.receive(0.1)
        conn.close()
        later = Node(node.config)
        await later.start()
        assert later.view().node_ids == (1, 2)
        await later.stop()

    with_node(body, runtime_dir)


def test_a_joiner_that_hangs_is_left_out(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks to join, is admitted, and then does nothing: the group goes on without it."""
    monkeypatch.setattr("spindle.changes.JOINER_TIMEOUT_S", 0.2)

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening())
        member = pb.Member(node_id=9, incarnation=5, address=str(runtime_dir / "nowhere"))
        conn.send(pb.PeerMessage(join=pb.JoinRequest(member=member, view_id=0)).SerializeToString())
        kinds: list[str | None] = []
        with pytest.raises(ConnectionEnded):
            OpeningReply.FromString((await conn.receive(5)).body)
            while True:
                frame = await conn.receive(5)
                frame.close_fds()
                kinds.append(pb.PeerMessage.FromString(frame.body).WhichOneof("body"))
        assert "admission" in kinds and "row_offer" in kinds
        later = Node(node.config)
        await later.start()
        assert later.view().node_ids == (1, 2)
        await later.stop()

    with_node(body, runtime_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_foreign_user_is_refused(runtime_dir: Path) -> None:
    """A process of another user that can reach the socket (rights opened by hand here) is still refused as a node."""

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        for path in (runtime_dir.parent, runtime_dir, node.config.domain_dir):
            path.chmod(0o755)
        path = node.config.domain_dir / "node-1.sock"
        path.chmod(0o666)
        program = (
            "import os, socket, sys; os.setgid(4711); os.setuid(4711); s = socket.socket(socket.AF_UNIX); "
            "s.connect(sys.argv[1]); s.send(bytes.fromhex(sys.argv[2])); sys.stdout.buffer.write(s.recv(4096))")
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/env", "python3", "-c", program, str(path), encode(opening()).hex(),
            stdout=asyncio.subprocess.PIPE)
        data, _ = await process.communicate()
        reply = OpeningReply.FromString(data[HEADER.size:])
        assert reply.kind == "AccessDenied" and "user 4711" in reply.message

    with_node(body, runtime_dir)
