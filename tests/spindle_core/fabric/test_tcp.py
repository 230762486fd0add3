"""The TCP fabric keeps the fabric's promise over real connections.

Method: members are fabrics with sockets over loopback, on which the conformance suite of all fabrics runs; what a
stream brings, how it ends and what runs out is tried with a stranger's bare socket at its other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.fabric.tcp import TcpFabric
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.conformance import BOUND_S, FabricConformance
from tests.spindle_core.fabric.tcp_peers import ROW_SIZE, WRITE, TcpPeer, frame, make_peers, stranger
from tests.spindle_core.fabric.test_tcp_queue import fill
from tests.support import wait_until


class TestTcp(FabricConformance):
    make_peers: Callable[[int], list[Any]] = staticmethod(make_peers)  # type: ignore[assignment]

    @staticmethod
    def pump(peers: list[Any]) -> None:
        """Until nothing moves any more: what loopback was given is there at once."""
        while sum([peer.progress() for peer in peers]):
            pass

    def test_nobody_asleep_costs_no_system_call(self) -> None:
        """A post rings by itself; ring() wakes who waits, and its frame is taken with the rest by who doesn't."""
        a, b = self.make_peers(2)
        assert a.fabric.post_writes([(1, 0, 8)]) == 0
        self.pump([a, b])
        b.fabric.prepare_wait()
        assert not b.fabric.wait(0.0)
        assert a.fabric.ring(1) == 1
        assert b.fabric.wait(BOUND_S) and not b.fabric.wait(0.0)


# ---- how frames arrive ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.one_of(st.integers(1, 700), st.just(20_000))), max_size=12),
       st.lists(st.integers(1, 30_000), max_size=6))
def test_whatever_the_pieces_in_which_a_stream_arrives(ranges: list[tuple[int, int]], cuts: list[int]) -> None:
    """Against a model: each write lands whole and in order, wherever the stream was cut by the network."""
    peer, other = stranger()
    model, stream = bytearray(ROW_SIZE), b""
    for k, (offset, length) in enumerate(ranges):
        data = bytes([k + 1]) * length
        model[offset : offset + length] = data
        stream += frame(WRITE, offset, data)
    for cut in sorted(cuts):
        other.sendall(stream[: cut])
        stream = stream[cut:]
        peer.progress()
    other.sendall(stream + frame(WRITE, ROW_SIZE - 8, b"the end!"))
    wait_until(lambda: peer.progress() >= 0 and bytes(peer.peer_row(1)[ROW_SIZE - 8 :]) == b"the end!", BOUND_S)
    assert bytes(peer.peer_row(1)[: ROW_SIZE - 8]) == bytes(model[: ROW_SIZE - 8])
    assert peer.fabric.failures() == {}


def test_a_short_write_is_seen_whole_or_not_at_all() -> None:
    """A count of which only some bytes have arrived is not there yet."""
    peer, other = stranger()
    whole = frame(WRITE, 64, (0x0102030405060708).to_bytes(8, "little"))
    for end in range(1, len(whole)):
        other.sendall(whole[end - 1 : end])
        peer.progress()
        assert not any(peer.peer_row(1)[64:72])
    other.sendall(whole[-1:])
    wait_until(lambda: peer.progress() > 0, BOUND_S)
    assert bytes(peer.peer_row(1)[64:72]) == (0x0102030405060708).to_bytes(8, "little")


# ---- orderly ends --------------------------------------------------------------------------------------------------


def test_who_says_goodbye_is_no_failure() -> None:
    """What was posted before arrives, then the end, which rings nobody; what is posted afterwards goes nowhere."""
    rung = os.eventfd(0, os.EFD_NONBLOCK)
    a, b = TcpPeer(0, 2), TcpPeer(1, 2, failed_fd=rung)
    one, other = connection()
    a.fabric.connect(1, one.detach())
    b.fabric.connect(0, other.detach())
    a.row.view()[:8] = b"the last"
    a.fabric.post_writes([(1, 0, 8)])
    a.fabric.goodbye()
    a.row.view()[:8] = b"too late"
    assert a.fabric.post_writes([(1, 0, 8)]) == 0
    wait_until(lambda: a.fabric.drained, BOUND_S)
    a.fabric.close()
    a.fabric.close()
    wait_until(lambda: b.progress() >= 0 and b.fabric.departed == {0}, BOUND_S)
    assert bytes(b.peer_row(0)[:8]) == b"the last"
    assert b.fabric.failures() == a.fabric.failures() == {} and b.fabric.drained
    with pytest.raises(BlockingIOError):
        os.eventfd_read(rung)
    assert b.fabric.ring(0) == 0
    os.close(rung)


def test_after_my_goodbye_a_break_is_no_failure_either() -> None:
    """The other side may be killed while my last words are on their way: that epoch is over for me."""
    peer, other = stranger()
    fill(peer)
    peer.fabric.goodbye()
    other.close()
    wait_until(lambda: peer.progress() >= 0 and peer.fabric.departed == {1}, BOUND_S)
    assert peer.fabric.failures() == {} and peer.fabric.drained


# ---- what runs out -------------------------------------------------------------------------------------------------


def limited(limit: str, program: str) -> str:
    """What a program prints that runs below a limit of its own, which it sets where it says LOWER."""
    text = f"""
import os, resource, socket
from spindle_core.fabric.tcp import TcpFabric
from tests.spindle_core.cluster import connection
{textwrap.dedent(program).replace("LOWER", f"resource.setrlimit({limit})")}
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_descriptor_left() -> None:
    """The error says what to do."""
    assert "raise the limit of open files" in limited("resource.RLIMIT_NOFILE, (10, 10)", """
        LOWER
        kept = []
        try:
            while len(kept) < 20:
                kept.append(TcpFabric(0, 2))
        except OSError as error:
            print(error)
    """)


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs the whole address space")
def test_no_memory_left() -> None:
    """A peer that can't be connected is not half connected: its socket is closed, and the next try may succeed."""
    assert limited("resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY)", """
        fabric = TcpFabric(0, 2)
        fabric.make_row("row", 4096)
        fabric.reserve(1 << 23, 4)
        one, other = connection()
        LOWER
        try:
            fabric.connect(1, one.detach())
        except MemoryError as error:
            print(error)
        print(other.recv(1))
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        one, other = connection()
        fabric.connect(1, one.detach())
        fabric.post_writes([(1, 0, 8)])
        print(len(other.recv(100)))
    """).splitlines()[-2:] == ["b''", "24"]


def test_a_row_that_was_made_elsewhere_is_posted_from() -> None:
    """A member whose row is also mapped by peers of its host: the fabric adopts it, and keeps it mapped."""
    row = Mapping.create("row", ROW_SIZE)
    row.seal_writes()
    fabric, other = TcpFabric(0, 2), TcpPeer(1, 2)
    assert fabric.adopt_row(row) is row is fabric.row
    one, end = connection()
    fabric.connect(1, one.detach())
    other.fabric.connect(0, end.detach())
    row.view()[4096:5096] = bytes(range(250)) * 4
    row.close()
    fabric.post_writes([(1, 4096, 1000)])
    wait_until(lambda: other.progress() > 0, BOUND_S)
    assert bytes(other.peer_row(0)[4096:5096]) == bytes(range(250)) * 4
    with pytest.raises(ValueError, match="has its row"):
        fabric.adopt_row(Mapping.private(ROW_SIZE))


def test_mistakes_of_the_caller_are_told() -> None:
    peer, _other = stranger()
    with pytest.raises(ValueError, match="connected already"):
        peer.fabric.connect(1, connection()[0].detach())
    with pytest.raises(ValueError, match="power of two"):
        TcpFabric(0, 2, queue=100)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        TcpFabric(2, 2)
    with pytest.raises(ValueError, match="its row"):
        peer.fabric.make_row("again", 4096)
    assert peer.fabric.post_writes([(1, (1 << 64) - 8, 16), (1, ROW_SIZE - 4, 8)]) == 0
    assert peer.fabric.statistics()["frames_sent"] == 0
    with pytest.raises(ValueError, match="make_row first"):
        TcpFabric(0, 2).connect(1, connection()[0].detach())
