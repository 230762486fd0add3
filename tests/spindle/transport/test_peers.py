"""Goal: only fitting nodes and applications get past a node's reception; everything else is refused in words and costs
nothing lasting.

Method: a real node, and sockets that say the wrong things.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import ConnectionEnded
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.proto.opening_pb2 import APPLICATION, PEER, Opening, OpeningReply
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.wire import HEADER, Connection, encode
from tests.support import descriptors_before, open_descriptors

Test = Callable[[Node, Callable[[], Connection]], Awaitable[None]]


def with_node(test: Test, runtime_dir: Path, **config: Any) -> None:
    """Runs `test` beside one node; the second argument connects to it."""

    async def body() -> None:
        node = Node(NodeConfig(runtime_dir=runtime_dir, **{"handshake_timeout_s": 0.3, **config}))
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
    values = {"magic": MAGIC, "role": PEER, "protocol": PROTOCOL, "domain_id": 0, "node_id": 9, "incarnation": 5,
              "settings": NodeConfig().agreed_settings}
    return Opening(**{**values, **changes}).SerializeToString()


@pytest.mark.parametrize(("changes", "kind", "word"), [
    ({"protocol": PROTOCOL + 1}, "ProtocolMismatch", f"version {PROTOCOL + 1}"),
    ({"domain_id": 3}, "ProtocolMismatch", "domain 3; give both the same"),
    pytest.param({"node_id": 1}, "NodeIdTaken", f"pid {os.getpid()}", id="taken"),
    ({"magic": 1}, "ProtocolMismatch", "not an Opening"),
    ({"role": 7}, "ProtocolMismatch", "not an Opening"),
    ({"settings": {**NodeConfig().agreed_settings, "[network] encrypt": "true"}}, "ConfigError",
     "encrypt = false, the other node true"),
    ({"settings": {}}, "ConfigError", "the other node unknown"),
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


def test_a_place_is_free_again_once_its_connection_has_spoken_or_gone(runtime_dir: Path) -> None:
    """Goal: hundreds of introductions one after the other need one place. Method: more than there are places."""

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        for k in range(300):
            conn = connect()
            if k % 2:
                conn.send(opening(protocol=PROTOCOL + 1))
                assert OpeningReply.FromString((await conn.receive(5)).body).kind == "ProtocolMismatch"
            conn.close()
            await asyncio.sleep(0)

    with_node(body, runtime_dir)


def test_who_has_not_said_who_it_is_sees_the_node_end(runtime_dir: Path) -> None:
    """A node that ends inside a program that goes on lets nobody wait for an answer."""

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        while not node._reception._greeting:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        await node.stop()
        with pytest.raises(ConnectionEnded):
            await conn.receive(5)

    with_node(body, runtime_dir, handshake_timeout_s=60.0)


def test_descriptors_of_strangers_are_not_kept(runtime_dir: Path) -> None:
    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        before = descriptors_before()
        for _ in range(20):
            conn = connect()
            conn.send(opening(), [0])
            with pytest.raises(ConnectionEnded):
                while True:
                    await conn.receive(5)
        assert open_descriptors() <= before

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
    pb.PeerMessage(join=pb.JoinRequest(member=pb.Member(node_id=9, incarnation=6, address="/nowhere"))),
    pb.PeerMessage(current_view=pb.View(members=[pb.Member(node_id=1), pb.Member(node_id=1)])),
    pb.PeerMessage(topic_request=pb.TopicRequest(request_id=1, role=pb.TopicRequest.Role(topic="t", member=True))),
    pb.PeerMessage(prepared=pb.Prepared(view_id=1, ballot=999)),
    pb.PeerMessage(installed=pb.Installed(view_id=1, ballot=999)),
    pb.PeerMessage(admission=pb.Admission(ballot=999)),
    pb.PeerMessage(history=pb.HistoryChunk(number=1, last=True)),
    pb.PeerMessage(history_request=pb.HistoryRequest(number=1, topic="t", view_id=1)),
    pb.PeerMessage(history_more=pb.HistoryMore(number=1, taken=5)),
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


def test_who_is_no_member_and_reads_nothing_is_not_told_for_ever(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is connected as a node, asks for nothing, and takes nothing of what it is told. The node lets it go, and goes
    on."""
    monkeypatch.setattr("spindle.transport.peers.UNREAD_TIME_S", 0.3)

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening())
        assert not OpeningReply.FromString((await conn.receive(5)).body).kind
        conn._loop.remove_reader(conn._fd)
        mine = node._peers.connected[9]
        while not mine.conn._out:
            node._peers.send(9, pb.PeerMessage(rejection=pb.Rejection(text="x" * 10_000)))
        while 9 in node._peers.connected:
            await asyncio.sleep(0.01)
        assert node.view().node_ids == (1,)

    with_node(body, runtime_dir)


def test_a_joiner_that_hangs_is_left_out(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks to join, is admitted, and then does nothing: the group goes on without it."""
    monkeypatch.setattr("spindle.membership.preparation.PREPARE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("spindle.membership.preparation.LACKS_WAIT_S", 0.1)

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening())
        member = pb.Member(node_id=9, incarnation=5, address=str(runtime_dir / "nowhere"))
        conn.send(pb.PeerMessage(join=pb.JoinRequest(member=member, group_id=node.view().group_id)).SerializeToString())
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


def test_a_joiner_whose_row_is_none_is_left_out(runtime_dir: Path) -> None:
    """Goal: a newcomer that offers nonsense as its memory costs the group nothing. Method: it asks to join, is
    admitted, and offers descriptors of /dev/null; another one joins afterwards."""

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn = connect()
        conn.send(opening())
        member = pb.Member(node_id=9, incarnation=5, address=str(runtime_dir / "nowhere"))
        conn.send(pb.PeerMessage(join=pb.JoinRequest(member=member, group_id=node.view().group_id)).SerializeToString())
        OpeningReply.FromString((await conn.receive(5)).body)
        with pytest.raises(ConnectionEnded), open(os.devnull, "rb") as nothing:
            while True:
                frame = await conn.receive(5)
                frame.close_fds()
                told = pb.PeerMessage.FromString(frame.body)
                if told.WhichOneof("body") == "admission":
                    view = told.admission.view
                    offer = pb.RowOffer(group_id=view.group_id, view_id=view.view_id, ballot=told.admission.ballot)
                    conn.send(pb.PeerMessage(row_offer=offer).SerializeToString(), [nothing.fileno()] * 3)
        later = Node(node.config)
        await later.start()
        assert later.view().node_ids == (1, 2)
        await later.stop()

    with_node(body, runtime_dir)


async def introduced(connect: Callable[[], Connection], incarnation: int) -> tuple[Connection, OpeningReply]:
    conn = connect()
    conn.send(opening(incarnation=incarnation))
    return conn, OpeningReply.FromString((await conn.receive(5)).body)


def test_one_life_of_a_node_id_at_a_time(runtime_dir: Path) -> None:
    """Goal: S22, S33: another incarnation is refused while the earlier one may live, and let in at once when that one
    has said Farewell. Method: three lives of node 9."""

    async def body(_: Node, connect: Callable[[], Connection]) -> None:
        first, reply = await introduced(connect, 5)
        assert not reply.kind
        _, reply = await introduced(connect, 5)  # the same again is no other one
        assert reply.kind == "ConnectionEnded" and "already" in reply.message
        _, reply = await introduced(connect, 6)
        assert reply.kind == "NodeIdTaken"
        farewell = pb.Farewell(kind="JournalError", text="the disk is full")
        first.send(pb.PeerMessage(farewell=farewell).SerializeToString())
        while True:  # nothing orders the two connections
            _, reply = await introduced(connect, 7)
            if not reply.kind:
                break

    with_node(body, runtime_dir)


def test_who_answers_late_neither_ends_a_member_nor_keeps_a_connection(runtime_dir: Path) -> None:
    """Goal: a node that hung while another one joined answers later: with a refusal, which is no concern of a member
    any more, or gladly, when that one is about to stop (found by chaos). Method: sockets that are accepted and not
    answered until then."""

    async def body(node: Node, _: Callable[[], Connection]) -> None:
        for number, reply in enumerate((OpeningReply(magic=MAGIC, kind="NodeIdTaken", message="late"),
                                        OpeningReply(magic=MAGIC, protocol=PROTOCOL, node_id=90, incarnation=3))):
            with socket.socket(socket.AF_UNIX) as hanging:
                path = node.config.domain_dir / "node-90.sock"
                hanging.bind(str(path))
                hanging.listen()
                newcomer = Node(NodeConfig(runtime_dir=runtime_dir))
                await newcomer.start()
                hung, _address = hanging.accept()
                path.unlink()
            conn = Connection(hung)
            await conn.receive(5)
            if number:
                newcomer._peers.refusing = ConnectionEnded("it stops")
            conn.send(reply.SerializeToString())
            with pytest.raises(ConnectionEnded):
                await conn.receive(5)
            assert 90 not in newcomer._peers.connected
            assert newcomer.view().node_ids == (1, newcomer.node_id)
            await newcomer.stop()

    with_node(body, runtime_dir)


def test_who_was_cast_out_is_told_and_never_let_in_again(runtime_dir: Path) -> None:
    """Goal: S31: a zombie learns that it is one, and stays out; its next life is welcome. Method: cast node 9 out, look
    at its connection, connect again with the same and with another incarnation."""

    async def body(node: Node, connect: Callable[[], Connection]) -> None:
        conn, _ = await introduced(connect, 5)
        await conn.receive(5)  # the view
        node._peers.cast_out(9, 5, "it hung")
        farewell = pb.PeerMessage.FromString((await conn.receive(5)).body).farewell
        assert farewell.cast_out and farewell.text == "it hung"
        with pytest.raises(ConnectionEnded):
            await conn.receive(5)
        _, reply = await introduced(connect, 5)
        assert reply.kind == "CastOut"
        _, reply = await introduced(connect, 6)
        assert not reply.kind

    with_node(body, runtime_dir)


@pytest.mark.parametrize("lives_on", [False, True])
def test_the_end_of_a_process_is_told_from_that_of_a_connection(runtime_dir: Path, lives_on: bool) -> None:
    """Goal: it is known for certain that a killed node never acts again, and not believed of one that lost touch, until
    its process ends, too. Method: a process connects as a node, then is killed, or closes its connection first."""

    async def body(node: Node, _: Callable[[], Connection]) -> None:
        said: list[tuple[str, bool]] = []
        node._peers._on_gone = lambda peer: said.append(("gone", peer.ended))
        node._peers._on_ended = lambda peer: said.append(("ended", peer.ended))
        program = (
            "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
            "s.send(bytes.fromhex(sys.argv[2])); s.recv(4096); sys.stdin.readline(); s.close(); time.sleep(60)")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(node.config.domain_dir / "node-1.sock"), encode(opening()).hex(),
            stdin=asyncio.subprocess.PIPE)
        while 9 not in node._peers.connected:
            await asyncio.sleep(0.002)
        if lives_on:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            while not said:
                await asyncio.sleep(0.002)
            assert said == [("gone", False)]
        process.kill()
        while ("ended" if lives_on else "gone", True) not in said:
            await asyncio.sleep(0.002)
        assert len(said) == (2 if lives_on else 1)
        await process.wait()

    with_node(body, runtime_dir)


@pytest.mark.parametrize("known", ["before", "in between", "after", "said so", "said, and not heard"])
def test_that_a_process_has_ended_is_known_even_if_others_suspect_it_first(runtime_dir: Path, known: str) -> None:
    """Goal: a member that ended counts as ended, whoever noticed first: its process, or another member whose suspicion
    is taken over. In a group that loses several at once a majority may rest on it. Method: cast a killed process out
    before its end is seen, when the end of its connection is on its way, and after that; and one that said Farewell,
    which was read, or waits to be."""

    async def body(node: Node, _: Callable[[], Connection]) -> None:
        said: list[tuple[str, bool]] = []
        peers = node._peers
        peers._on_gone = lambda peer: said.append(("gone", peer.cut))
        peers._on_ended = lambda peer: said.append(("ended", peer.ended))
        farewell = pb.PeerMessage(farewell=pb.Farewell(kind="JournalError", text="the disk is full"))
        program = (
            "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
            "s.send(bytes.fromhex(sys.argv[2])); s.recv(4096); sys.stdin.readline(); "
            "s.send(bytes.fromhex(sys.argv[3])); time.sleep(60)")
        last = encode(farewell.SerializeToString())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(node.config.domain_dir / "node-1.sock"),
            (encode(opening()) + (last if known == "said so" else b"")).hex(), last.hex(),
            stdin=asyncio.subprocess.PIPE)
        while 9 not in peers.connected or (known == "said so" and peers.connected[9].farewell is None):
            await asyncio.sleep(0.002)
        peer = peers.connected[9]
        if known == "in between":  # a ring of the columns is served before the end of the connection is reported
            remembered = peer.conn.finish

            def finish() -> None:
                remembered()
                peers.cast_out(9, 5, "another member suspects it")

            peer.conn.finish = finish  # type: ignore[method-assign]
            asyncio.get_running_loop().remove_reader(peer.conn._fd)  # the end of the process shall be seen first
        if known == "before":
            peers.cast_out(9, 5, "another member suspects it")
            assert said == [("gone", True)]
        if not known.startswith("said"):
            process.kill()
        if known == "after":
            poll = select.poll()
            poll.register(peer.pid_fd)
            assert poll.poll(10_000)  # it has ended, and the loop doesn't know yet
        if known == "said, and not heard":
            assert process.stdin is not None
            asyncio.get_running_loop().remove_reader(peer.conn._fd)  # a busy loop has not come to it yet
            process.stdin.write(b"\n")
            await process.stdin.drain()
            poll = select.poll()
            poll.register(peer.conn._fd, select.POLLIN)
            assert poll.poll(10_000)
        if known in ("after", "said so", "said, and not heard"):
            peers.cast_out(9, 5, "another member suspects it")
        while ("ended", True) not in said:
            await asyncio.sleep(0.002)
        assert said == [("gone", True), ("ended", True)]
        if process.returncode is None and known.startswith("said"):
            process.kill()
        await process.wait()
        assert peer not in peers._watched and len(said) == 2

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
