"""The TCP fabric keeps the fabric's promise over real connections, and gives up whoever breaks it.

A member here is a fabric with sockets over loopback; a stranger is the bare socket at the other end of one of them, on
which tests write frames of their own.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.fabric.tcp import TcpFabric
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.conformance import BOUND_S, FabricConformance
from tests.support import wait_until

ROW_SIZE = 64 << 10
MEMORY_SIZE = 4096
MAGIC = 0x53504446
WRITE, RING, READ, SWAP, ADD, DATA, FOUND, LETTER, CREDIT, GOODBYE = range(1, 11)


class TcpPeer:
    def __init__(self, rank: int, n: int, **more: int) -> None:
        self.bell_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.fabric = TcpFabric(rank, n, self.bell_fd, **more)
        self.row = self.fabric.make_row(f"row-{rank}", ROW_SIZE)
        self.memory = Mapping.private(MEMORY_SIZE)
        self.key = self.fabric.register(self.memory)
        self.driving = threading.Lock()  # as the predicate thread's turn

    def peer_row(self, rank: int) -> memoryview:
        return self.fabric.row_of(rank)

    def progress(self) -> int:
        with self.driving:
            return self.fabric.progress()

    def __del__(self) -> None:
        os.close(self.bell_fd)


def make_peers(n: int) -> list[TcpPeer]:
    peers = [TcpPeer(rank, n) for rank in range(n)]
    for i in range(n):
        for k in range(i + 1, n):
            one, other = connection()
            peers[i].fabric.connect(k, one.detach())
            peers[k].fabric.connect(i, other.detach())
    return peers


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


def stranger(lanes: int = 4, **more: int) -> tuple[TcpPeer, socket.socket]:
    """A member of two, and the bare connection of the other one."""
    peer = TcpPeer(0, 2, **more)
    if not more:
        peer.fabric.reserve(1000, lanes)
    one, other = connection()
    for end, option in ((one, socket.SO_SNDBUF), (other, socket.SO_RCVBUF)):
        end.setsockopt(socket.SOL_SOCKET, option, 256 << 10)  # said, so that they don't grow
    peer.fabric.connect(1, one.detach())
    other.settimeout(BOUND_S)
    return peer, other


def frame(kind: int, place: int, data: bytes = b"", length: int = -1) -> bytes:
    return struct.pack("<QII", kind << 56 | place, len(data) if length < 0 else length, MAGIC) + data


def ask(key: int, offset: int, length: int = 8, first: int = 0, second: int = 0) -> bytes:
    return struct.pack("<QQQII", offset, first, second, key, length)


def failure(peer: TcpPeer) -> str:
    return wait_until(lambda: (peer.progress(), peer.fabric.failures().get(1, ""))[1], BOUND_S)


# ---- how frames go -------------------------------------------------------------------------------------------------


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


def test_posts_that_repeat_or_continue_the_last_one_are_one_frame() -> None:
    """While the socket is full: the same count again overwrites what waits, neighbours join; nothing else does."""
    peer, other = stranger()
    view = peer.row.view()
    fill(peer)
    before = peer.fabric.statistics()["frames_sent"]
    for k in range(100):
        view[0:8] = k.to_bytes(8, "little")
        peer.fabric.post_writes([(1, 0, 8)])
    for k in range(10):
        view[4096 + 300 * k : 4096 + 300 * (k + 1)] = bytes([k]) * 300
        peer.fabric.post_writes([(1, 4096 + 300 * k, 300)])
    view[0:8] = (1000).to_bytes(8, "little")
    peer.fabric.post_writes([(1, 0, 8)])
    received = drain(peer, other)
    assert before < peer.fabric.statistics()["frames_sent"]
    frames = parse(received)
    assert [int.from_bytes(data[:8], "little") for _, place, data in frames if place == 0] == [99, 1000]
    assert [len(data) for _, place, data in frames if place == 4096] == [3000]


FILLING = 4000


def fill(peer: TcpPeer) -> None:
    """Posts until the socket takes no more and frames wait."""
    for k in range(FILLING):
        peer.fabric.post_writes([(1, 8192 + 20_000 * (k % 2), 20_000)])
        statistics = peer.fabric.statistics()
        if statistics["frames_sent"] < k - 2:
            return
    raise AssertionError("the socket takes everything")


def drain(peer: TcpPeer, other: socket.socket) -> bytes:
    """Everything that waits, as it comes out at the other end, and a last frame."""
    peer.row.view()[ROW_SIZE - 8 :] = b"the end!"
    peer.fabric.post_writes([(1, ROW_SIZE - 8, 8)])
    received = bytearray()
    while received[-8:] != b"the end!":
        peer.progress()
        received += other.recv(1 << 20)
    return bytes(received)


def parse(stream: bytes) -> list[tuple[int, int, bytes]]:
    frames, at = [], 0
    while at < len(stream):
        place, length, magic = struct.unpack_from("<QII", stream, at)
        assert magic == MAGIC
        frames.append((place >> 56, place & (1 << 56) - 1, stream[at + 16 : at + 16 + length]))
        at += 16 + length
    return frames


def test_a_full_socket_is_waited_for_without_spinning() -> None:
    """What could not be sent goes out when there is room, which the descriptor to wait for tells; not before."""
    peer, other = stranger()
    fill(peer)
    assert not peer.fabric.wait(0.0)
    calls = peer.fabric.statistics()["send_calls"]
    for _ in range(20):
        peer.progress()
    assert peer.fabric.statistics()["send_calls"] == calls
    while not peer.fabric.wait(0.001):
        assert other.recv(1 << 20)
    assert peer.fabric.statistics()["send_calls"] > calls


def test_a_peer_that_takes_nothing_is_given_up_and_nobody_waits_for_it() -> None:
    """The queue has a limit; the post that is too much ends the connection, and later ones cost nothing."""
    rung = os.eventfd(0, os.EFD_NONBLOCK)
    peer, _other = stranger(failed_fd=rung, queue=64)
    for k in range(FILLING):
        peer.fabric.post_writes([(1, 8192 + 20_000 * (k % 2), 20_000)])
    assert peer.fabric.failures() == {1: "it does not take what it is sent"}
    assert os.eventfd_read(rung) == 1
    os.close(rung)
    calls = peer.fabric.statistics()["send_calls"]
    peer.fabric.post_writes([(1, 0, 8)])
    assert peer.fabric.statistics()["send_calls"] == calls


# ---- who is not believed -------------------------------------------------------------------------------------------

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


def test_memory_stays_mapped_while_an_answer_may_come() -> None:
    """Who asks for a read and closes the memory at once writes nowhere else; nor does a peer that asks for mine."""
    a, b = make_peers(2)
    b.memory.view()[:5] = b"bytes"
    into = Mapping.private(4096)
    a.fabric.post_read(1, b.key, 0, into, 0, 5, 1)
    into.close()
    b.memory.close()
    TestTcp.pump([a, b])
    assert a.fabric.poll() == [(1, "ok", 0, 1)]
    assert bytes(into.view()[:5]) == b"bytes"
    sealed = Mapping.create("sealed", 4096)
    with pytest.raises(ValueError, match="mapped for writing"):
        a.fabric.post_read(1, b.key, 0, Mapping.attach(os.dup(sealed.fd)), 0, 5, 2)


def test_long_reads_and_many_at_once() -> None:
    """A read longer than a buffer goes straight to where it is wanted; more than fit are refused, and come after."""
    a, b = make_peers(2)
    big = Mapping.private(1 << 20)
    key = b.fabric.register(big)
    big.view()[:] = os.urandom(1 << 20)
    into = Mapping.private(1 << 20)
    a.fabric.post_read(1, key, 0, into, 0, 1 << 20, 1)
    found: list[Any] = []
    wait_until(lambda: (a.progress(), b.progress(), found.extend(a.fabric.poll())) and found, BOUND_S)
    assert found == [(1, "ok", 0, 1)] and bytes(into.view()) == bytes(big.view())
    for k in range(1024):
        a.fabric.post_fetch_add(1, b.key, 0, 1, k)
    with pytest.raises(BlockingIOError):
        a.fabric.post_fetch_add(1, b.key, 0, 1, 1024)
    found.clear()
    wait_until(lambda: (a.progress(), b.progress(), found.extend(a.fabric.poll())) and len(found) == 1024, BOUND_S)
    assert [value for _, _, value, _ in found] == list(range(1024))
    a.fabric.post_fetch_add(1, b.key, 0, 1, 1024)


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
    with pytest.raises(ConnectionError):
        b.fabric.send(0, b"x")
    os.close(rung)


def test_after_my_goodbye_a_break_is_no_failure_either() -> None:
    """The other side may be killed while my last words are on their way: that epoch is over for me."""
    peer, other = stranger()
    fill(peer)
    peer.fabric.goodbye()
    other.close()
    wait_until(lambda: peer.progress() >= 0 and peer.fabric.departed == {1}, BOUND_S)
    assert peer.fabric.failures() == {} and peer.fabric.drained


def test_a_goodbye_comes_behind_all_that_waits() -> None:
    peer, other = stranger()
    fill(peer)
    peer.fabric.goodbye()
    received = bytearray()
    while received[-16:] != frame(GOODBYE, 0):
        received += other.recv(1 << 20)
        peer.progress()
    assert [kind for kind, _, _ in parse(bytes(received))][-2:] == [WRITE, GOODBYE]


# ---- what waits ----------------------------------------------------------------------------------------------------

GUARD, SLOTS, COUNTS = 2, 2 << 16, 3 << 16


def laned(*posts: tuple[int, int, int]) -> list[tuple[int, int, bytes]]:
    """What goes out of posts (flags, offset, length) that wait behind a full socket; each writes its own number."""
    peer, other = stranger()
    fill(peer)
    view = peer.row.view()
    for k, (flags, offset, length) in enumerate(posts, 1):
        view[offset : offset + length] = bytes([k]) * length
        peer.fabric.post_writes([(1, offset, length)], flags=flags)
    return [(place, len(data), data[:1]) for _, place, data in parse(drain(peer, other)) if place < 8192]


def test_posts_of_a_lane_that_wait_are_carried_together() -> None:
    """Slots that touch are one write, and the count behind them is the newest one; a count that guards nothing moves to
    where an earlier one waits."""
    assert laned(
        (SLOTS, 1024, 400), (SLOTS | GUARD, 0, 64), (COUNTS | GUARD, 64, 8),
        (SLOTS, 1424, 400), (SLOTS | GUARD, 0, 64), (COUNTS | GUARD, 64, 8), (COUNTS | GUARD, 64, 8),
    ) == [(1024, 800, b"\1"), (0, 64, b"\5"), (64, 8, b"\7")]


def test_no_count_overtakes_what_it_guards() -> None:
    """A count stays behind data of its lane that could not join earlier data."""
    assert laned(
        (SLOTS, 1024, 400), (SLOTS | GUARD, 0, 64), (SLOTS, 4096, 400), (SLOTS | GUARD, 0, 64), (SLOTS | GUARD, 0, 64),
    ) == [(1024, 400, b"\1"), (0, 64, b"\2"), (4096, 400, b"\3"), (0, 64, b"\5")]


def test_short_data_of_a_lane_join_as_well() -> None:
    """Up to the length of a short post in the queue, then read from the row."""
    assert laned(*[(SLOTS, 1024 + 96 * k, 96) for k in range(10)]) == [(1024, 960, b"\1")]
    assert laned((SLOTS, 1024, 96), (SLOTS, 1024, 96)) == [(1024, 96, b"\2")]


def test_nothing_joins_a_frame_of_which_some_has_left() -> None:
    """Its header, which says how long it is, is gone already. Method: the one frame that waits was sent in part, and
    the next post continues it."""
    peer, other = stranger()
    for k in range(1, FILLING):
        peer.fabric.post_writes([(1, 8192, 20_000)], flags=SLOTS)
        statistics = peer.fabric.statistics()
        if statistics["frames_sent"] < k:
            break
    assert statistics["bytes_sent"] % 20_016 and statistics["waiting_max"] == 1
    peer.fabric.post_writes([(1, 28_192, 300)], flags=SLOTS)
    peer.fabric.post_writes([(1, 28_492, 300)], flags=SLOTS)
    frames = parse(drain(peer, other))
    assert {(place, len(data)) for _, place, data in frames[:-2]} == {(8192, 20_000)}
    assert [(place, len(data)) for _, place, data in frames[-2:]] == [(28_192, 600), (ROW_SIZE - 8, 8)]


def test_room_for_what_waits_is_made_before_anybody_is_connected() -> None:
    fabric = TcpFabric(0, 2)
    with pytest.raises(ValueError, match="smaller windows"):
        fabric.reserve(1 << 24, 2)
    with pytest.raises(ValueError, match="smaller windows"):
        fabric.reserve(1, 2000)
    fabric.reserve(100_000, 10)
    fabric.make_row("row", 4096)
    fabric.connect(1, connection()[0].detach())
    with pytest.raises(ValueError, match="before the first"):
        fabric.reserve(1, 2)


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


def test_letters_that_can_not_be_sent_are_not_counted() -> None:
    """A connection that is broken for sending only says so, as often as it is asked."""
    peer, other = stranger()
    other.close()
    with pytest.raises(ConnectionError):
        for _ in range(100):
            peer.fabric.send(1, b"x")
    for _ in range(100):
        with pytest.raises(ConnectionError):
            peer.fabric.send(1, b"x")


def test_targets_of_reads_are_let_go() -> None:
    """A node that reads into ever new memory keeps what is being read, and not what was."""
    a, b = make_peers(2)
    for k in range(100):
        a.fabric.post_read(1, b.key, 0, Mapping.private(4096), 0, 8, k)
        if k < 50:
            TestTcp.pump([a, b])
            assert a.fabric.poll() == [(k, "ok", 0, 1)]
    assert 50 <= len(a.fabric.targets) <= 66
    TestTcp.pump([a, b])
    a.fabric.forget_targets()
    assert a.fabric.targets == {} and len(a.fabric.poll()) == 50


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
