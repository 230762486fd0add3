"""The mixed fabric keeps the fabric's promise, whichever part a pair of members uses.

Method: the conformance suite with neighbours on shared memory and the others over TCP, and the other way round; then
what only a mixture can get wrong.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spindle_core.engine import Engine
from spindle_core.fabric.mixed import MixedFabric
from spindle_core.fabric.shm import ShmFabric
from spindle_core.fabric.tcp import TcpFabric
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.conformance import BOUND_S, FabricConformance

ROW_SIZE = 64 << 10


class MixedPeer:
    def __init__(self, rank: int, n: int) -> None:
        self.engine = Engine(rank + 1)
        self.shm = ShmFabric(rank, n, self.engine.bell, self.engine.bell_fd)
        self.fabric = MixedFabric({"shm": self.shm, "tcp": TcpFabric(rank, n)}, self.engine.bell_fd)
        self.row = self.fabric.make_row(f"row-{rank}", ROW_SIZE)
        self.driving = threading.Lock()  # as the predicate thread's turn

    def connect_local(self, rank: int, peer: MixedPeer) -> None:
        self.fabric.connect(
            rank, "shm", Mapping.attach(os.dup(peer.row.fd)), Mapping.attach(os.dup(peer.engine.bell.fd)),
            os.dup(peer.engine.bell_fd))

    def peer_row(self, rank: int) -> memoryview:
        return self.fabric.row_of(rank)

    def progress(self) -> int:
        with self.driving:
            return self.fabric.progress()


def make_peers(n: int, local: Callable[[int, int], bool]) -> list[MixedPeer]:
    peers = [MixedPeer(rank, n) for rank in range(n)]
    for i in range(n):
        for k in range(i + 1, n):
            if local(i, k):
                peers[i].connect_local(k, peers[k])
                peers[k].connect_local(i, peers[i])
            else:
                one, other = connection()
                peers[i].fabric.connect(k, "tcp", one.detach())
                peers[k].fabric.connect(i, "tcp", other.detach())
    return peers


def neighbours(i: int, k: int) -> bool:
    return (i + k) % 2 == 1


class TestNeighboursOnOneHost(FabricConformance):
    shares_rows = True

    @staticmethod
    def make_peers(n: int) -> list[Any]:
        return make_peers(n, neighbours)

    @staticmethod
    def pump(peers: list[Any]) -> None:
        while sum([peer.progress() for peer in peers]):
            pass


class TestNeighboursOnTwoHosts(TestNeighboursOnOneHost):
    shares_rows = False

    @staticmethod
    def make_peers(n: int) -> list[Any]:
        return make_peers(n, lambda i, k: not neighbours(i, k))

    def test_nobody_asleep_costs_no_system_call(self) -> None:
        """As over TCP alone: a post rings by itself, and a ring is a frame."""
        a, b = self.make_peers(2)
        assert a.fabric.post_writes([(1, 0, 8)]) == 0
        b.fabric.prepare_wait()
        assert a.fabric.ring(1) == 1
        assert b.fabric.wait(BOUND_S)


def test_each_peer_gets_its_posts_in_order_through_its_part() -> None:
    """More posts in one list than are sorted at a time, alternating between the parts."""
    peers = make_peers(4, lambda i, k: k - i == 1)
    a = peers[0]
    view = a.row.view()
    for k in range(80):
        view[64 * k : 64 * k + 8] = (k + 1).to_bytes(8, "little")
    a.fabric.post_writes([(peer, 64 * k, 8) for k in range(80) for peer in (1, 2, 3)])
    TestNeighboursOnOneHost.pump(peers)
    for peer in peers[1:]:
        row = peer.peer_row(0)
        assert [int.from_bytes(row[64 * k : 64 * k + 8], "little") for k in range(80)] == list(range(1, 81))
    assert [a.fabric.part_of(peer) for peer in (1, 2, 3)] == ["shm", "tcp", "tcp"]


def test_a_cut_ends_one_peer_alone() -> None:
    peers = make_peers(3, neighbours)
    a, b, c = peers
    for k in (2, 1):
        a.fabric.cut(k)
        a.row.view()[0:1] = bytes([k])
        a.fabric.post_writes([(1, 0, 1), (2, 0, 1)])
        TestNeighboursOnOneHost.pump(peers)
    assert c.peer_row(0)[0] == 0 and b.peer_row(0)[0] == 1  # b maps the row itself: a cut one is not rung, that is all
    assert a.fabric.failures() == {} and 0 in c.fabric.failures()


def test_what_can_not_be_put_together() -> None:
    engine = Engine(1)
    shm = ShmFabric(0, 3, engine.bell, engine.bell_fd)
    with pytest.raises(ValueError, match="between 1 and 4"):
        MixedFabric({})
    with pytest.raises(ValueError, match="agree on its size"):
        MixedFabric({"shm": shm, "tcp": TcpFabric(0, 2)})
    mixed = MixedFabric({"shm": shm, "tcp": TcpFabric(0, 3)})
    mixed.make_row("row", ROW_SIZE)
    assert mixed.part_of(1) == "" and mixed.post_writes([(1, 0, 8)]) == 0
    assert mixed.ring(1) == 0
    mixed.connect(1, "tcp", connection()[0].detach())
    with pytest.raises(ValueError, match="connected by tcp already"):
        mixed.connect(1, "tcp", connection()[0].detach())
