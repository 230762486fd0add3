"""The shared-memory fabric keeps the fabric's promise."""

from __future__ import annotations

import os
import select

import pytest

from spindle_core.ends import Ringer
from spindle_core.engine import Engine
from spindle_core.fabric.shm import ShmFabric
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.conformance import FabricConformance

ROW_SIZE = 8192


class ShmPeer:
    """One peer: a fabric with the doorbell of a real engine."""

    def __init__(self, rank: int, n: int) -> None:
        self.engine = Engine(rank + 1)
        self.row = Mapping.create(f"row-{rank}", ROW_SIZE)
        self.row.seal_writes()
        self.fabric = ShmFabric(rank, n, self.engine.bell, self.engine.bell_fd)

    def connect(self, rank: int, peer: ShmPeer) -> None:
        self.fabric.connect(
            rank,
            Mapping.attach(os.dup(peer.row.fd)),
            Mapping.attach(os.dup(peer.engine.bell.fd)),
            os.dup(peer.engine.bell_fd),
        )

    def peer_row(self, rank: int) -> memoryview:
        return self.fabric.row_of(rank)


def make_peers(n: int) -> list[ShmPeer]:
    peers = [ShmPeer(i, n) for i in range(n)]
    for i, a in enumerate(peers):
        for k, b in enumerate(peers):
            if i != k:
                a.connect(k, b)
    return peers


class TestShm(FabricConformance):
    make_peers = staticmethod(make_peers)
    shares_rows = True


def test_a_peer_cannot_write_into_anothers_row():
    """Only the owner stores into its row: the descriptor that peers get can't be mapped for writing."""
    peer = ShmPeer(0, 2)
    with pytest.raises(OSError, match="read-write"):
        Mapping.attach(os.dup(peer.row.fd), True)
    with pytest.raises(OSError):
        os.ftruncate(peer.row.fd, 4096)


def test_memory_that_could_shrink_is_refused():
    """A descriptor whose sender could make us fault later is refused at the door."""
    fd = os.memfd_create("loose")
    os.ftruncate(fd, 4096)
    with pytest.raises(ValueError, match="shrinking"):
        Mapping.attach(fd)


class Listeners:
    """Peers of a fabric, reached as nodes reach each other: each by a ring of its own, by one for all of them, and by
    one that this node's own predicate thread hears as well."""

    def __init__(self, others: int = 2) -> None:
        self.peers = [ShmPeer(i, others + 1) for i in range(others + 1)]
        self.me = self.peers[0].fabric
        together, everybody = os.eventfd(0, os.EFD_NONBLOCK), self.peers[0].engine.all_fd
        self.me.ring_together(together, everybody)
        self.heard = {0: select.epoll()}
        self.heard[0].register(everybody, select.EPOLLIN | select.EPOLLET)
        for rank in range(1, others + 1):
            engine, ringer = self.peers[rank].engine, Ringer(together, everybody)
            self.me.connect(rank, Mapping.attach(os.dup(self.peers[rank].row.fd)),
                            Mapping.attach(os.dup(engine.bell.fd)), os.dup(ringer.fd))
            self.heard[rank] = select.epoll.fromfd(os.dup(ringer.heard))
            ringer.close()

    def sleep(self, *ranks: int) -> None:
        for rank in range(len(self.peers)):
            self.peers[rank].fabric.finish_wait()
            if rank in ranks:
                self.peers[rank].fabric.prepare_wait()

    def post(self, *ranks: int) -> tuple[int, list[int]]:
        """To these ranks: how many calls that took, and who was rung."""
        calls = self.me.post_writes([(rank, 0, 8) for rank in ranks])
        return calls, [rank for rank, heard in self.heard.items() if heard.poll(0)]

    def close(self) -> None:
        for heard in self.heard.values():
            heard.close()


@pytest.fixture
def listeners():
    listeners = Listeners()
    yield listeners
    listeners.close()


def test_peers_that_all_sleep_are_rung_by_one_call(listeners):
    """Goal: who has something for a group that sleeps makes one system call, once for each sleep."""
    assert listeners.post(1, 2) == (0, [])
    for _ in range(3):
        listeners.sleep(1, 2)
        assert listeners.post(1, 2) == (1, [1, 2])
        assert listeners.post(1, 2) == (0, [])


def test_nobody_is_rung_who_is_awake_or_not_meant(listeners):
    """Goal: the call that rings all is for all only. Method: one of two is awake, is not posted to, was rung before, or
    was cut off."""
    listeners.sleep(1, 2)
    listeners.post(1, 2)
    listeners.sleep(1)
    assert listeners.post(1, 2) == (1, [1])
    listeners.sleep(1, 2)
    assert listeners.post(1) == (1, [1])
    assert listeners.post(1, 2) == (1, [2])
    listeners.sleep(1, 2)
    listeners.me.cut(2)
    assert listeners.post(1, 2) == (1, [1])


def test_who_publishes_for_a_thread_that_sleeps_rings_it_by_the_same_call(listeners):
    """Goal: a message of a sender in the node's process wakes all nodes of a host, its own among them, by one call."""
    for _ in range(3):
        listeners.sleep(0, 1, 2)
        assert listeners.post(1, 2) == (1, [0, 1, 2])
        assert listeners.post(1, 2) == (0, [])
    listeners.sleep(0, 1)
    assert listeners.post(1, 2) == (1, [1])  # not all sleep: who publishes rings the own thread afterwards
    listeners.sleep(0, 1, 2)
    listeners.post(1, 2)
    for peer in listeners.peers[1:]:
        peer.fabric.finish_wait()
        peer.fabric.prepare_wait()
    assert listeners.post(1, 2) == (1, [1, 2])  # the own thread has been rung for this sleep
    listeners.sleep(1, 2)
    assert listeners.post(1, 2) == (1, [1, 2])


def test_a_lone_peer_and_the_own_thread_are_rung_by_one_call():
    listeners = Listeners(1)
    listeners.sleep(0, 1)
    assert listeners.post(1) == (1, [0, 1])
    listeners.sleep(1)
    assert listeners.post(1) == (1, [1])
    listeners.close()
