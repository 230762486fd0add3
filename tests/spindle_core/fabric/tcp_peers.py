"""Members over TCP for tests: all of a group over loopback, or one and a stranger: the bare socket at the other end of
its connection, on which tests write frames of their own."""

from __future__ import annotations

import os
import socket
import struct
import threading

from spindle_core.fabric.tcp import TcpFabric
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.conformance import BOUND_S

ROW_SIZE = 64 << 10
MAGIC = 0x53504446
WRITE, RING, GOODBYE = range(1, 4)


class TcpPeer:
    def __init__(self, rank: int, n: int, **more: int) -> None:
        self.bell_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.fabric = TcpFabric(rank, n, self.bell_fd, **more)
        self.row = self.fabric.make_row(f"row-{rank}", ROW_SIZE)
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


def parse(stream: bytes) -> list[tuple[int, int, bytes]]:
    frames, at = [], 0
    while at < len(stream):
        place, length, magic = struct.unpack_from("<QII", stream, at)
        assert magic == MAGIC
        frames.append((place >> 56, place & (1 << 56) - 1, stream[at + 16 : at + 16 + length]))
        at += 16 + length
    return frames
