"""Goal: the bytes of TLS are understood wherever they are cut, and bytes of any other kind are refused.

Method: both ends in memory, without a socket; what one gives out is cut at every place for the other, or made up.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.errors import AccessDenied, ProtocolMismatch, SpindleError
from spindle.security.tls import Handshake, TlsStream
from spindle.security.trust import Trust
from spindle.transport.frames import FrameDecoder, encode
from spindle.transport.wire import Limits
from tests.spindle.site import Site


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


@pytest.mark.slow
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


@pytest.mark.slow
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
