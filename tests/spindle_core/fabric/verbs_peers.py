"""Members over verbs for tests: all of a group on one device, and whether there is one at all."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spindle_core.errors import RdmaUnavailable
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.conformance import BOUND_S
from tests.support import wait_until

ROW_SIZE = 64 << 10
QUIET_S = 20.0


def why_not() -> str:
    """Why tests over verbs can't run here; "" if they can."""
    if not any(Path("/sys/class/infiniband").glob("*")):
        return "no RDMA device (`make rdma-test` has one)"
    try:
        from spindle_core.fabric.verbs import VerbsFabric

        VerbsFabric(0, 2)
    except (ImportError, RdmaUnavailable) as error:
        return str(error)
    return ""


WHY_NOT = why_not()
needs_verbs = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "verbs")


class VerbsPeer:
    def __init__(self, rank: int, n: int, row_size: int = ROW_SIZE, row: Mapping | None = None, **more: Any) -> None:
        from spindle_core.fabric.verbs import VerbsFabric

        self.bell_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.fabric = VerbsFabric(rank, n, self.bell_fd, **more)
        self.row = self.fabric.make_row(f"row-{rank}", row_size) if row is None else self.fabric.adopt_row(row)
        self.driving = threading.Lock()  # as the predicate thread's turn

    def peer_row(self, rank: int) -> memoryview:
        return self.fabric.row_of(rank)

    def progress(self) -> int:
        with self.driving:
            return self.fabric.progress()

    def hush(self) -> None:
        """Whoever asks whether all has arrived rings the bell, so that somebody looks."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell_fd)

    def __del__(self) -> None:
        os.close(self.bell_fd)


def connect(peers: list[VerbsPeer]) -> list[VerbsPeer]:
    for i, one in enumerate(peers):
        for k, other in enumerate(peers):
            if i != k:
                one.fabric.connect(k, other.fabric.local_address(i))
    return peers


def make_peers(n: int, **more: Any) -> list[VerbsPeer]:
    return connect([VerbsPeer(rank, n, **more) for rank in range(n)])


def pump(peers: list[Any]) -> None:
    """Until nothing moves any more: what was posted has arrived everywhere, and what came with it is taken."""
    deadline = time.monotonic() + QUIET_S
    while sum([peer.progress() for peer in peers]) or not all([peer.fabric.drained for peer in peers]):
        assert time.monotonic() < deadline, [peer.fabric.statistics() for peer in peers]
    for peer in peers:
        peer.hush()


def failure(peer: Any, rank: int = 1) -> str:
    """Why the connection to that one broke, as soon as it has."""
    return wait_until(lambda: (peer.progress(), peer.fabric.failures().get(rank, ""))[1], BOUND_S)
