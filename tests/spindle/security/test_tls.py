"""Goal: over TLS nothing changes for frames, and whoever isn't wanted is refused with words that help at both ends.

Method: both ends over TCP on the loopback, on asyncio, uvloop and plain threads; strangers are OpenSSL contexts without
what a node has, or bytes. In memory, the bytes of handshakes and frames are cut at every place.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.errors import AccessDenied, ConnectionEnded, ProtocolMismatch, SpindleError, WireError
from spindle.security import authority
from spindle.security.access import NetworkPeer
from spindle.security.identity import CERTIFICATES, Identity
from spindle.security.tls import Handshake, TlsStream, secured, secured_blocking
from spindle.security.trust import Trust
from spindle.transport.frames import FrameDecoder, encode
from spindle.transport.wire import BlockingConnection, Connection, Limits
from tests.spindle.site import Site, days_from_now

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Any:
    def on_loop(test: Callable[[], Awaitable[Any]]) -> Any:
        loop = LOOPS[request.param]()
        try:
            return loop.run_until_complete(asyncio.wait_for(test(), 20))
        finally:
            loop.close()

    return on_loop


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


def in_memory(trust: Trust, piece: int = 1 << 20) -> tuple[TlsStream, TlsStream]:
    """Both ends after a handshake whose bytes came in pieces of this size."""
    client, server = Handshake(trust, False, "server"), Handshake(trust, True, "client")
    client.feed(b"")
    server.feed(b"")
    while client.identity is None or server.identity is None:
        for end, to in ((client, server), (server, client)):
            data = end.output()
            for at in range(0, len(data), piece):
                to.feed(data[at : at + piece])
    return client.stream, server.stream


# --- what is wanted


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


# --- who isn't wanted


def other_site(site: Site) -> Site:
    return Site(site.directory / "other", "other")


def without_certificate(site: Site) -> Trust:
    """Somebody who speaks TLS 1.3 and has heard of Spindle, but has nothing to show."""
    trust = Trust(CERTIFICATES)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.set_alpn_protocols(["spindle"])
    trust._contexts = (client, client)
    trust.identify = lambda certificate: Identity("whoever", "node")  # type: ignore[method-assign]
    return trust


def expired(site: Site) -> Trust:
    with days_from_now(-900):
        return site.reckless(site.node(1))


def not_yet_valid(site: Site) -> Trust:
    with days_from_now(2):
        return site.reckless(site.node(1))


def says_nothing(site: Site) -> Trust:
    pair = authority._leaf(site.authority, "web", ["https://example.org"], 10,
                           [authority.ExtendedKeyUsageOID.SERVER_AUTH, authority.ExtendedKeyUsageOID.CLIENT_AUTH])
    return site.reckless(pair)


def older_tls(site: Site) -> Trust:
    trust = site.reckless(site.node(1))
    assert trust._contexts is not None
    for context in trust._contexts:
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return trust


def another_service(site: Site) -> Trust:
    trust = site.reckless(site.node(1))
    assert trust._contexts is not None
    for context in trust._contexts:
        context.set_alpn_protocols(["http/1.1"])
    return trust


def application(site: Site) -> Trust:
    return site.reckless(site.application())


def application_for_all_purposes(site: Site) -> Trust:
    """Of an authority that says nothing of connecting and being connected to: OpenSSL finds nothing wrong with it."""
    return site.reckless(authority._leaf(
        site.authority, "plotter", ["spindle:application:plotter"], 10,
        [authority.ExtendedKeyUsageOID.SERVER_AUTH, authority.ExtendedKeyUsageOID.CLIENT_AUTH]))


def with_secret(site: Site) -> Trust:
    return Trust.of_secret(site.secret_file())


def with_another_secret(site: Site) -> Trust:
    return Trust.of_secret(site.secret_file("another"))


def node(site: Site) -> Trust:
    return site.trust()


def node_elsewhere(site: Site) -> Trust:
    return other_site(site).trust()


@pytest.mark.parametrize(("client", "server", "client_hears", "server_hears"), [
    (without_certificate, node, "it wants a certificate", "it has no certificate"),
    (node_elsewhere, node, "is not signed by any authority", "doesn't have the one that signed it"),
    (node, node_elsewhere, "is not signed by any authority", "doesn't have the one that signed it"),
    (expired, node, "to its mind it has expired; make a new one", "its certificate has expired"),
    (node, expired, "its certificate has expired", "to its mind it has expired; make a new one"),
    (not_yet_valid, node, "not valid yet, or malformed; compare the clocks", "is not valid yet; compare the clocks"),
    (node, not_yet_valid, "is not valid yet; compare the clocks", "not valid yet, or malformed; compare the clocks"),
    (node, application, "an application's can't be a node's", "an application's can't be a node's"),
    (node, application_for_all_purposes, "is an application's, and listens as a node", "refuses this end"),
    (says_nothing, node, "doesn't say for whom it is", "doesn't say for whom it is.*found: https://example.org"),
    (node, says_nothing, "doesn't say for whom it is", "doesn't say for whom it is"),
    (older_tls, node, "does not speak TLS 1.3", "does not speak TLS 1.3"),
    (node, older_tls, "does not speak TLS 1.3", "does not speak TLS 1.3"),
    (another_service, node, "not for Spindle", "not for Spindle"),
    (with_secret, with_another_secret, "from another secret", "it has another secret"),
    (with_secret, node, "from another secret", "doesn't have the one that signed it"),
    (node, with_secret, "is not signed by any authority", "it has another secret"),
])
def test_refusals_are_clear_at_both_ends(site: Site, run: Any, client: Any, server: Any, client_hears: str,
                                         server_hears: str) -> None:
    async def body() -> list[Any]:
        started = time.monotonic()
        ends = await shake(client(site), server(site))
        assert time.monotonic() - started < 3, "nobody closed first"
        return ends

    ends = run(body)
    for end, words in ((ends[0], client_hears), (ends[1], server_hears)):
        with pytest.raises((AccessDenied, ProtocolMismatch), match=words) as caught:
            raise end
        assert str(caught.value).startswith("127.0.0.1:"), "it doesn't say about whom"


@pytest.mark.parametrize(("client", "hears"), [
    (without_certificate, "it wants a certificate"), (expired, "has expired"), (older_tls, "does not speak TLS 1.3"),
    (says_nothing, "for whom"), (node_elsewhere, "not signed by any"),
])
def test_threads_hear_the_same(site: Site, client: Any, hears: str) -> None:
    one, other = tcp()
    errors: list[SpindleError] = []

    def serve() -> None:
        try:
            secured_blocking(other, site.trust(), server_side=True, timeout_s=5)
        except SpindleError as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(SpindleError, match=hears):
        secured_blocking(one, client(site), timeout_s=5)
    thread.join()
    assert len(errors) == 1 and one.fileno() == other.fileno() == -1


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 200, b"\x16\x03\x01" + b"\xff" * 300,
                                  b"\x16\x03\x01\x00\x05hello", b"SPNC" + encode(b"x" * 80)])
@pytest.mark.parametrize("server_side", [True, False])
def test_garbage_is_no_tls(site: Site, run: Any, said: bytes, server_side: bool) -> None:
    async def body() -> None:
        one, other = tcp()
        one.sendall(said)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(SpindleError, match=r"does not speak TLS|closed the connection in the middle|TLS 1\.3"):
            await secured(other, site.trust(), server_side=server_side, timeout_s=5)
        one.close()

    run(body)


@given(said=st.binary(max_size=400), server_side=st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_an_error_or_not_enough(said: bytes, server_side: bool) -> None:
    handshake = Handshake(_shared(), server_side, "somebody")
    try:
        handshake.feed(b"")
        handshake.feed(said)
    except SpindleError as error:
        assert "somebody" in str(error)
    assert handshake.identity is None


@given(said=st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda more: b"\0\0" + more)))
@settings(max_examples=100, deadline=None)
def test_any_verdict_of_somebody_with_a_good_certificate(said: bytes) -> None:
    """Method: one end is TLS alone, and says in it whatever it likes where its verdict belongs."""
    server = Handshake(_shared(), True, "somebody")
    client = TlsStream(_shared().context(False), False)
    server.feed(b"")
    done = False
    while not done:
        done = client.handshake(server.output())
        server.feed(client.answer())
    length = int.from_bytes(said[:2], "little")
    try:
        server.feed(client.seal(said))
    except AccessDenied as error:
        assert 0 < length <= len(said) - 2 and "somebody refuses this end: " in str(error)
        assert str(error).isprintable()
    except ProtocolMismatch:
        assert length > 1024
    else:
        assert (server.identity is not None) == (len(said) >= 2 and length == 0)
        if server.identity is not None:
            assert server.stream.unseal(b"") == said[2:]


def test_half_a_handshake_and_then_silence_takes_its_time_and_no_more(site: Site, run: Any) -> None:
    async def body() -> None:
        for server_side in (True, False):
            for sent in (0, 30):
                hello = Handshake(site.trust(), not server_side, "x")
                hello.feed(b"")
                one, other = tcp()
                one.sendall(hello.output()[:sent])
                started = time.monotonic()
                with pytest.raises(ConnectionEnded, match=r"did not finish its TLS handshake within 0\.2 s"):
                    await secured(other, site.trust(), server_side=server_side, timeout_s=0.2)
                assert time.monotonic() - started < 2
                assert other.fileno() == -1
                one.close()

    run(body)
    one, other = tcp()
    with pytest.raises(WireError, match=r"within 0\.2 s"):
        secured_blocking(other, site.trust(), timeout_s=0.2)
    one.close()


def test_an_end_in_the_middle_of_the_handshake(site: Site, run: Any) -> None:
    async def body() -> None:
        one, other = tcp()
        waiting = asyncio.ensure_future(secured(other, site.trust(), server_side=False, timeout_s=5))
        await asyncio.sleep(0.01)
        one.close()  # with bytes that it has not read: a reset
        with pytest.raises(ConnectionEnded, match="in the middle of the TLS handshake"):
            await waiting

    run(body)


def test_who_is_cancelled_leaves_no_socket(site: Site, run: Any) -> None:
    async def body() -> None:
        one, other = tcp()
        waiting = asyncio.ensure_future(secured(other, site.trust(), server_side=True, timeout_s=5))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled() and other.fileno() == -1
        one.close()
        one, other = tcp()
        one.sendall(b"\x16\x03\x01\x00\x05hello")
        waiting = asyncio.ensure_future(secured(other, site.trust(), server_side=True, timeout_s=5))
        await asyncio.get_running_loop().run_in_executor(None, one.recv, 1)  # it waits for the alert to be read
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled() and other.fileno() == -1
        one.close()

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


_made: list[Trust] = []


def _shared() -> Trust:
    """For hypothesis, whose examples share nothing else. The files are gone when it is used, and are not needed."""
    if not _made:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            _made.append(Site(Path(directory)).trust())
    return _made[0]


def test_bytes_cut_at_every_place() -> None:
    stream, other = in_memory(_shared())
    body = encode(b"frame" * 10)
    length = len(stream.seal(body))
    assert other.unseal(b"") == b""
    stream, other = in_memory(_shared())
    for place in range(length + 1):
        sealed = stream.seal(body)
        assert len(sealed) == length
        assert other.unseal(sealed[:place]) + other.unseal(sealed[place:]) == body


@given(bodies=st.lists(st.binary(max_size=40_000), max_size=5), piece=st.integers(1, 20_000))
@settings(max_examples=60, deadline=None)
def test_frames_are_the_same_however_their_records_are_cut(bodies: list[bytes], piece: int) -> None:
    stream, other = in_memory(_shared())
    sealed = b"".join(stream.seal(encode(body)) for body in bodies) + stream.goodbye()
    decoder = FrameDecoder(Limits())
    got: list[bytes] = []
    for at in range(0, len(sealed), piece):
        got += [frame.body for frame in decoder.feed(other.unseal(sealed[at : at + piece]))]
    assert got == bodies and other.ended and not decoder.partial


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
def test_a_handshake_in_small_pieces(piece: int) -> None:
    stream, other = in_memory(_shared(), piece)
    assert other.unseal(stream.seal(b"there")) == b"there" and stream.unseal(other.seal(b"and back")) == b"and back"
