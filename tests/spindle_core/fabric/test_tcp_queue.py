"""Goal: what waits for a TCP connection's socket leaves in order and in as few frames as may be, and has a limit.

Method: a member and the bare connection of the other one, which takes nothing until the test does; the frames that
come out of it are looked at one by one.
"""

from __future__ import annotations

import os
import socket

import pytest

from spindle_core.fabric.tcp import TcpFabric
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.tcp_peers import GOODBYE, ROW_SIZE, WRITE, TcpPeer, frame, parse, stranger

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


def test_a_goodbye_comes_behind_all_that_waits() -> None:
    peer, other = stranger()
    fill(peer)
    peer.fabric.goodbye()
    received = bytearray()
    while received[-16:] != frame(GOODBYE, 0):
        received += other.recv(1 << 20)
        peer.progress()
    assert [kind for kind, _, _ in parse(bytes(received))][-2:] == [WRITE, GOODBYE]


# ---- lanes ---------------------------------------------------------------------------------------------------------

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
