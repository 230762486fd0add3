"""Goal: the TCP fabric gives up whoever sends what no node sends, or breaks off; nothing but its row's copy is touched,
and what was asked of it completes.

Method: a member and the bare connection of the other one, on which tests write frames of their own, wrong ones too, and
any bytes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spindle_core.fabric.conformance import BOUND_S
from tests.spindle_core.fabric.tcp_peers import (
    CREDIT,
    DATA,
    FOUND,
    GOODBYE,
    LETTER,
    READ,
    ROW_SIZE,
    WRITE,
    TcpPeer,
    frame,
    stranger,
)
from tests.support import wait_until


def ask(key: int, offset: int, length: int = 8, first: int = 0, second: int = 0) -> bytes:
    return struct.pack("<QQQII", offset, first, second, key, length)


def failure(peer: TcpPeer) -> str:
    return wait_until(lambda: (peer.progress(), peer.fabric.failures().get(1, ""))[1], BOUND_S)


NONSENSE = {
    "no frame": b"GET / HTTP/1.1\r\nHost: spindle\r\n\r\n",
    "an unknown kind": frame(99, 0, b"12345678"),
    "no kind": frame(0, 0, b"12345678"),
    "a write beyond the row": frame(WRITE, ROW_SIZE - 4, b"12345678"),
    "a write far beyond the row": frame(WRITE, (1 << 56) - 1, b"12345678"),
    "a long write beyond the row": frame(WRITE, ROW_SIZE - 300, bytes(301)),
    "a write of 4 GiB": frame(WRITE, 0, b"", length=0xFFFFFFFF),
    "a question of the wrong size": frame(READ, 0, b"12345678"),
    "an answer that nobody asked for": frame(FOUND, 3, bytes(16)),
    "an answer to no number": frame(FOUND, 1 << 40, bytes(16)),
    "data that nobody asked for": frame(DATA, 3, bytes(16)),
    "long data that nobody asked for": frame(DATA, 3, bytes(300)),
    "a letter that is too long": frame(LETTER, 0, bytes(241)),
    "more letters than may be": frame(LETTER, 0, b"x") * 65,
    "credit for letters that were not sent": frame(CREDIT, 1),
    "a goodbye with something in it": frame(GOODBYE, 0, b"x"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_the_connection_and_touches_nothing(name: str) -> None:
    peer, other = stranger()
    other.sendall(NONSENSE[name] + frame(WRITE, 0, b"12345678"))
    assert failure(peer) == "it sent what no node of this version sends"
    assert not any(peer.peer_row(1)) and not any(peer.memory.view())
    with pytest.raises(ConnectionError):
        peer.fabric.send(1, b"x")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(
    st.binary(max_size=40),
    st.builds(frame, st.integers(0, 11), st.one_of(st.integers(0, 70_000), st.integers(0, (1 << 56) - 1)),
              st.one_of(st.binary(max_size=300), st.builds(ask, st.integers(0, 3), st.integers(0, 5000),
                                                           st.integers(0, 5000))))), max_size=8))
def test_any_bytes_crash_nobody(frames: list[bytes]) -> None:
    """Whatever a peer sends: nothing is written outside of its row's copy, and the node goes on."""
    peer, other = stranger()
    other.sendall(b"".join(frames))
    other.shutdown(socket.SHUT_WR)
    wait_until(lambda: peer.progress() < 0 or peer.fabric.failures() or peer.fabric.departed, BOUND_S)


def test_answers_that_do_not_fit_their_questions() -> None:
    """A read is answered with as many bytes as were asked for, or not at all."""
    for wrong in (frame(DATA, 0, bytes(15)), frame(DATA, 0, bytes(17)), frame(DATA, 0, bytes(5000)),
                  frame(FOUND, 0, struct.pack("<QII", 0, 77, 0)), frame(FOUND, 0, bytes(16)),
                  frame(FOUND, 0, struct.pack("<QII", 0, 1, 0)), frame(DATA, 1, bytes(16))):
        peer, other = stranger()
        peer.fabric.post_read(1, 0, 0, peer.memory, 0, 16, 5)
        other.sendall(wrong)
        assert failure(peer) == "it sent what no node of this version sends"
        assert peer.fabric.poll() == [(5, "cut", 0, 1)]
        assert not any(peer.memory.view())


def test_a_connection_that_is_closed_says_so_and_completes_what_was_asked() -> None:
    rung = os.eventfd(0, os.EFD_NONBLOCK)
    peer, other = stranger(failed_fd=rung)
    peer.fabric.post_fetch_add(1, 0, 0, 1, 7)
    other.close()
    assert failure(peer) in ("the connection was closed", "the network broke the connection")
    assert peer.fabric.poll() == [(7, "cut", 0, 1)]
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
