"""The shared-memory fabric keeps the fabric's promise."""

from __future__ import annotations

import os

import pytest

from spindle_core.engine import Engine
from spindle_core.fabric.shm import ShmFabric
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.conformance import FabricConformance

ROW_SIZE = 8192
MEMORY_SIZE = 4096


class ShmPeer:
    """One peer: a fabric with the doorbell of a real engine."""

    def __init__(self, rank: int, n: int) -> None:
        self.engine = Engine(rank + 1)
        self.row = Mapping.create(f"row-{rank}", ROW_SIZE)
        self.row.seal_writes()
        self.memory = Mapping.create(f"memory-{rank}", MEMORY_SIZE)
        self.fabric = ShmFabric(rank, n, self.engine.bell, self.engine.bell_fd)
        self.key = self.fabric.register(self.memory)

    def connect(self, rank: int, peer: ShmPeer) -> None:
        self.fabric.connect(
            rank,
            Mapping.attach(os.dup(peer.row.fd)),
            Mapping.attach(os.dup(peer.engine.bell.fd)),
            os.dup(peer.engine.bell_fd),
            Mapping.attach(os.dup(peer.fabric.mail.fd)),
        )
        self.fabric.connect_memory(rank, peer.key, Mapping.attach(os.dup(peer.memory.fd), True))

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
