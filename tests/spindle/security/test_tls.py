"""Goal: over TLS nothing changes for frames, whatever happens to the connection, and each end knows the other.

Method: both ends over TCP on the loopback, on asyncio, uvloop and plain threads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

import pytest

from spindle.errors import ConnectionEnded, WireError
from spindle.security.access import NetworkPeer
from spindle.security.identity import Identity
from spindle.security.tls import secured, secured_blocking
from spindle.security.trust import Trust
from spindle.transport.frames import encode
from spindle.transport.wire import BlockingConnection, Connection, Limits
from tests.spindle.security.test_tls_bytes import in_memory
from tests.spindle.site import Site


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


async def shake(client: Trust, server: Trust, timeout_s: float = 5) -> list[Any]:
    """Both ends of a connection; what each returned or raised."""
    one, other = tcp()
    ends = await asyncio.gather(
        secured(one, client, server_side=False, timeout_s=timeout_s),
        secured(other, server, server_side=True, timeout_s=timeout_s), return_exceptions=True)
    for sock, end in ((one, ends[0]), (other, ends[1])):
        if isinstance(end, BaseException):
            assert sock.fileno() == -1, "a socket whose handshake failed is still open"
    return [*ends, one, other]


async def connected(trust: Trust, limits: Limits | None = None) -> tuple[Connection, Connection]:
    (stream, identity), (other_stream, other_identity), one, other = await shake(trust, trust)
    return (Connection(one, stream=stream, peer=NetworkPeer.of(one, identity), limits=limits),
            Connection(other, stream=other_stream, peer=NetworkPeer.of(other, other_identity), limits=limits))


# --- how it begins


def test_frames_of_any_size_go_both_ways_and_each_end_knows_the_other(site: Site, run: Any) -> None:
    async def body() -> None:
        ends = await shake(site.trust(site.node(1)), site.trust(site.node(2)))
        (stream, identity), (_, other_identity), *socks = ends
        assert (identity, other_identity) == (Identity("node-2", "node", frozenset({2})),
                                              Identity("node-1", "node", frozenset({1})))
        assert stream.version().startswith("TLSv1.3 ")
        for sock in socks:
            sock.close()
        one, other = await connected(site.trust())
        assert not one.peer.local and str(one.peer).endswith("(certificate 'any')")
        sizes = (0, 1, 16384, 3_000_000, 7)
        for end, to in ((one, other), (other, one)):
            for size in sizes:
                end.send(bytes([size % 251]) * size)
            for size in sizes:
                frame = await to.receive(10)
                assert frame.body == bytes([size % 251]) * size
        one.close()
        with pytest.raises(ConnectionEnded) as caught:
            await other.receive(5)
        assert caught.value.clean

    run(body)


def test_callbacks_and_frames_that_came_with_the_end_of_the_handshake(site: Site, run: Any) -> None:
    """The connecting end's first frames may be there before the accepting end has a Connection."""
    async def body() -> None:
        one, other = tcp()
        waiting = asyncio.ensure_future(secured(other, site.trust(), server_side=True, timeout_s=5))
        stream, _ = await secured(one, site.trust(), server_side=False, timeout_s=5)
        first = Connection(one, stream=stream)
        first.send(b"early")
        first.send(b"bird")
        await asyncio.sleep(0.05)
        stream, _ = await waiting
        # as if they had been read together with the last bytes of the handshake
        stream.give_back(stream.unseal(other.recv(65536)))
        second = Connection(other, stream=stream)
        bodies: list[bytes] = []
        ends: list[Any] = []
        second.start(lambda frame: bodies.append(frame.body), ends.append)
        assert bodies == [b"early", b"bird"]
        first.close()
        while not ends:
            await asyncio.sleep(0.005)
        assert isinstance(ends[0], ConnectionEnded) and ends[0].clean

    run(body)


def test_no_session_can_be_resumed(site: Site) -> None:
    """Whoever resumed one would show no certificate."""
    client, server = in_memory(site.trust())
    assert client.unseal(server.seal(b"what would have come behind a ticket")) and client._tls.session is not None
    assert not client._tls.session.has_ticket and server._tls.session_reused is False


def test_threads_have_the_same(site: Site) -> None:
    one, other = tcp()
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(
        secured_blocking(other, site.trust(site.node(2)), server_side=True, timeout_s=5)))
    thread.start()
    stream, identity = secured_blocking(one, site.trust(site.application(), "application"), timeout_s=5)
    thread.join()
    assert identity.name == "node-2" and made[0][1].role == "application"
    a, b = BlockingConnection(one, stream=stream), BlockingConnection(other, stream=made[0][0])
    sender = threading.Thread(target=lambda: [a.send(bytes([number]) * 50_000) for number in range(100)])
    sender.start()
    for number in range(100):
        assert b.receive(5).body == bytes([number]) * 50_000
        b.send(b"seen")
    sender.join()
    assert [a.receive(5).body for _ in range(100)] == [b"seen"] * 100
    with pytest.raises(WireError, match="descriptors"):
        a.send(b"x", [0])
    a.close()
    with pytest.raises(ConnectionEnded) as caught:
        b.receive(5)
    assert caught.value.clean
    b.close()


def test_first_bytes_that_were_read_elsewhere_count(site: Site, run: Any) -> None:
    async def body() -> None:
        one, other = tcp()
        other.setblocking(False)
        client = asyncio.ensure_future(secured(one, site.trust(), server_side=False, timeout_s=5))
        first = await asyncio.get_running_loop().sock_recv(other, 4)
        assert first[0] == 0x16
        await secured(other, site.trust(), server_side=True, first=first, timeout_s=5)
        await client
        one.close()
        other.close()

    run(body)


# --- what happens later


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_farewell_is_heard_though_one_was_just_sending(site: Site, run: Any, encrypted: bool) -> None:
    """Over TCP the other end's answer to what it no longer reads is a reset. What it had said before still counts."""
    async def body() -> None:
        if encrypted:
            one, other = await connected(site.trust())
        else:
            one, other = (Connection(sock) for sock in tcp())
        heard: list[bytes] = []
        ends: list[Any] = []
        one.start(lambda frame: heard.append(frame.body), ends.append)
        one.send(b"unread")
        other.send(b"farewell")
        other.close()
        with pytest.raises(ConnectionEnded):
            for _ in range(100):
                one.send(b"too late")
        assert not heard, "taken in the middle of a send"
        with pytest.raises(ConnectionEnded):
            one.send(b"much too late")
        while not ends:
            await asyncio.sleep(0.005)
        assert heard == [b"farewell"] and isinstance(ends[0], ConnectionEnded) and one.closed

    run(body)


@pytest.mark.parametrize("kept", [0, 10, 40, -1])
def test_a_connection_that_is_cut_does_not_end_clean(site: Site, run: Any, kept: int) -> None:
    """Behind a whole frame, in the middle of a record, and in the middle of a frame: only close_notify is an end."""
    async def body() -> None:
        (stream, _), (other_stream, _), one, other = await shake(site.trust(), site.trust())
        receiver = Connection(other, stream=other_stream, label="them")
        one.setblocking(True)
        one.sendall(stream.seal(encode(b"whole")))
        one.sendall(stream.seal(encode(b"x" * 100))[:kept])
        one.close()
        assert (await receiver.receive(5)).body == b"whole"
        with pytest.raises(ConnectionEnded, match="them") as caught:
            await receiver.receive(5)
        assert not caught.value.clean

    run(body)


def test_changed_bytes_break_the_connection_and_the_other_end_hears_of_it(site: Site, run: Any) -> None:
    async def body() -> None:
        (stream, _), (other_stream, _), one, other = await shake(site.trust(), site.trust())
        receiver = Connection(other, stream=other_stream, label="them")
        data = bytearray(stream.seal(encode(b"pay 10")))
        data[-3] ^= 1
        os.write(one.fileno(), data)
        sender = Connection(one, stream=stream, label="us")
        with pytest.raises(WireError, match=r"them: what came can't be decrypted .*changed on the way"):
            await receiver.receive(5)
        with pytest.raises(WireError, match="us: the other end has broken the encrypted connection off"):
            await sender.receive(5)

    run(body)


def test_descriptors_are_refused_by_both_ends(site: Site, run: Any) -> None:
    async def body() -> None:
        one, other = await connected(site.trust())
        with pytest.raises(WireError, match="2 descriptors can't be sent over the network"):
            one.send(b"x", [0, 1])
        assert one.closed
        other.close()
        (stream, _), (other_stream, _), sock, other_sock = await shake(site.trust(), site.trust())
        receiver = Connection(other_sock, stream=other_stream)
        os.write(sock.fileno(), stream.seal(encode(b"x", 2)))
        with pytest.raises(WireError, match="2 descriptors can't be sent over the network"):
            await receiver.receive(5)
        sock.close()
        plain, other_plain = tcp()
        first, second = Connection(plain), Connection(other_plain)
        first.send(b"fine")
        assert (await second.receive(5)).body == b"fine"
        with pytest.raises(WireError, match="over the network"):
            first.send(b"x", [0])
        second.close()

    run(body)


def test_the_last_word_arrives(site: Site, run: Any) -> None:
    async def body() -> None:
        one, other = await connected(site.trust(), Limits(frame_bytes_max=100))
        other.last_word = lambda error: f"because {error}"[:100].encode()
        one.send(b"x" * 101)
        assert (await one.receive(5)).body.startswith(b"because ")
        with pytest.raises(ConnectionEnded):
            await one.receive(5)

    run(body)


def test_an_end_that_reads_slowly_gets_everything_in_order(site: Site, run: Any) -> None:
    async def body() -> None:
        one, other = await connected(site.trust(), Limits(frames_waiting_max=2))
        for number in range(200):
            one.send(number.to_bytes(4, "little") * 10_000)
        for number in range(200):
            frame = await other.receive(10)
            assert frame.body == number.to_bytes(4, "little") * 10_000
        await one.drain(0)
        one.close()
        other.close()

    run(body)
