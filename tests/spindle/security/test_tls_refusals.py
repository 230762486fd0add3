"""Goal: over TLS whoever isn't wanted is refused with words that help at both ends, and leaves no socket open.

Method: both ends over TCP on the loopback, on asyncio, uvloop and plain threads; strangers are OpenSSL contexts without
what a node has, or bytes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from typing import Any

import pytest

from spindle.errors import AccessDenied, ConnectionEnded, ProtocolMismatch, SpindleError, WireError
from spindle.security import authority
from spindle.security.identity import CERTIFICATES, Identity
from spindle.security.tls import Handshake, secured, secured_blocking
from spindle.security.trust import Trust
from spindle.transport.frames import encode
from tests.spindle.security.test_tls import shake, tcp
from tests.spindle.site import Site, days_from_now


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


@pytest.mark.slow
def test_half_a_handshake_and_then_silence_takes_its_time_and_no_more(site: Site, run: Any) -> None:
    async def body() -> None:
        for server_side in (True, False):
            for sent in (0, 30):
                hello = Handshake(site.trust(), not server_side, "x")
                hello.feed(b"")
                one, other = tcp()
                one.sendall(hello.output()[:sent])
                started = time.monotonic()
                with pytest.raises(ConnectionEnded, match=r"did not finish its TLS handshake within 0\.2 s.*MTU"):
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
