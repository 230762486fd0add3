"""Goal: the TCP fabric gives up whoever sends what no node sends, or breaks off; nothing but its row's copy is touched.

Method: a member and the bare connection of the other one, on which tests write frames of their own, wrong ones too, and
any bytes.
"""

from __future__ import annotations

import errno
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spindle_core.fabric.conformance import BOUND_S
from tests.spindle_core.fabric.tcp_peers import GOODBYE, RING, ROW_SIZE, WRITE, TcpPeer, frame, stranger
from tests.support import wait_until


def failure(peer: TcpPeer) -> str:
    return wait_until(lambda: (peer.progress(), peer.fabric.failures().get(1, ""))[1], BOUND_S)


NONSENSE = {
    "no frame": b"GET / HTTP/1.1\r\nHost: spindle\r\n\r\n",
    "an unknown kind": frame(99, 0, b"12345678"),
    "no kind": frame(0, 0, b"12345678"),
    "the kind after the last": frame(GOODBYE + 1, 0, b"12345678"),
    "a write beyond the row": frame(WRITE, ROW_SIZE - 4, b"12345678"),
    "a write far beyond the row": frame(WRITE, (1 << 56) - 1, b"12345678"),
    "a long write beyond the row": frame(WRITE, ROW_SIZE - 300, bytes(301)),
    "a write of 4 GiB": frame(WRITE, 0, b"", length=0xFFFFFFFF),
    "a long ring": frame(RING, 0, bytes(300)),
    "a goodbye with something in it": frame(GOODBYE, 0, b"x"),
    "a long goodbye": frame(GOODBYE, 0, bytes(300)),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_the_connection_and_touches_nothing(name: str) -> None:
    peer, other = stranger()
    other.sendall(NONSENSE[name] + frame(WRITE, 0, b"12345678"))
    assert failure(peer) == "it sent what no node of this version sends"
    assert not any(peer.peer_row(1))
    assert peer.fabric.ring(1) == 0


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(
    st.binary(max_size=40),
    st.builds(frame, st.integers(0, 4), st.one_of(st.integers(0, 70_000), st.integers(0, (1 << 56) - 1)),
              st.binary(max_size=300))), max_size=8))
def test_any_bytes_crash_nobody(frames: list[bytes]) -> None:
    """Whatever a peer sends: nothing is written outside of its row's copy, and the node goes on."""
    peer, other = stranger()
    other.sendall(b"".join(frames))
    other.shutdown(socket.SHUT_WR)
    wait_until(lambda: peer.progress() < 0 or peer.fabric.failures() or peer.fabric.departed, BOUND_S)


def test_a_connection_that_is_closed_says_so() -> None:
    rung = os.eventfd(0, os.EFD_NONBLOCK)
    peer, other = stranger(failed_fd=rung)
    peer.fabric.post_writes([(1, 0, 8)])
    other.close()
    assert failure(peer) in ("the connection was closed", "the network broke the connection")
    assert os.eventfd_read(rung) == 1
    assert not peer.fabric.wait(0.0)  # nothing keeps it awake
    os.close(rung)


def test_what_comes_after_a_cut_lands_nowhere() -> None:
    """A zombie that goes on sending writes into nobody's memory; a cut is no failure."""
    peer, other = stranger()
    other.sendall(frame(WRITE, 0, b"12345678"))
    peer.fabric.cut(1)
    peer.progress()
    assert not any(peer.peer_row(1)) and peer.fabric.failures() == {}
    with pytest.raises(OSError) as info:
        for _ in range(1000):
            other.sendall(bytes(1 << 16))
    assert info.value.errno in (errno.EPIPE, errno.ECONNRESET)


def test_what_a_peer_sent_before_it_went_is_taken() -> None:
    """Its connection ends with a reset, since it had unread input; sending finds that out first. It counts."""
    peer, other = stranger()
    peer.fabric.post_writes([(1, 0, 8)])
    other.sendall(frame(WRITE, 8, b"its last"))
    other.close()
    for _ in range(3):
        peer.fabric.post_writes([(1, 0, 8)])
    assert failure(peer)
    assert bytes(peer.peer_row(1)[8:16]) == b"its last"
