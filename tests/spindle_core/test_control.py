"""Control columns and areas are told to others in the order in which they were changed, whenever that happens.

Method: rows are copied by a simulated network, and a control thread changes its row in the middle of a push: at a post
of the predicate thread that the test chooses, of which the network tells before it takes the bytes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest

from spindle_core.fabric.sim import SimNetwork
from tests.spindle_core.cluster import Cluster

COLUMNS, VERSION = 64, 0  # offsets of the posts of a push, in their order: areas, columns, version
HOOK = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)


class Interrupted:
    """Two nodes; `change` happens on a thread of its own while node 0 is about to post a certain part of its row."""

    def __init__(self, offset: int, change: Callable[[], None]) -> None:
        self.network = SimNetwork(late=False)
        self.cluster = Cluster(2, network=self.network)
        self.mine, self.theirs = self.cluster.epochs
        self.cluster.settle()
        self.thread = threading.Thread(target=change)
        self.offset = offset
        self.hook = HOOK(self._posts)  # a callback lives as long as its object
        self.network.call_before_posts(ctypes.cast(self.hook, ctypes.c_void_p).value)

    def _posts(self, node: int, offset: int, length: int) -> None:
        if offset == self.offset and length != 8 and self.thread.ident is None:
            self.thread.start()
            self.thread.join(0.2)  # who waits for the push to end is not waited for

    def land(self, look: Callable[[], None]) -> None:
        """Everything, line by line, the other node looking after each; node 0 goes on when all it posted has landed."""
        for _ in range(10_000):
            if self.network.land(1, 2, 1):
                self.cluster.engines[1].step_once()
                look()
            elif not self.cluster.engines[0].step_once():
                return
        raise AssertionError("it never ends")


@pytest.mark.parametrize("offset", [COLUMNS, VERSION])
def test_no_column_arrives_before_its_area(offset: int) -> None:
    def change() -> None:
        world.mine.write_area("proposal", b"what is proposed")
        world.mine.set("proposed", 1)
        world.mine.push()

    def look() -> None:
        if world.theirs.get(0, "proposed"):
            assert world.theirs.read_area(0, "proposal") == b"what is proposed"

    world = Interrupted(offset, change)
    world.mine.push()
    world.land(look)
    world.thread.join(10)
    world.land(look)
    assert world.theirs.get(0, "proposed") == 1


@pytest.mark.parametrize("offset", [COLUMNS, VERSION])
def test_no_news_is_swallowed(offset: int) -> None:
    """The control thread of the other node is rung after the last change has arrived, not only before."""
    seen: list[int] = []

    def change() -> None:
        world.mine.set("acked", 3)
        world.mine.push()

    def look() -> None:
        try:
            os.eventfd_read(world.cluster.engines[1].control_fd)
        except BlockingIOError:
            return
        seen.append(world.theirs.get(0, "acked"))

    world = Interrupted(offset, change)
    world.mine.push()
    world.land(look)
    world.thread.join(10)
    world.land(look)
    assert seen[-1] == 3


def test_a_push_that_finds_the_row_being_changed_is_made_later() -> None:
    """And the predicate thread doesn't go to sleep over it: the pass says that something was to be done."""
    network = SimNetwork()
    cluster = Cluster(2, network=network)
    cluster.settle()
    mine, theirs = cluster.epochs
    mine.set("acked", 3)
    mine.push()
    with mine.control_held():
        assert cluster.engines[0].step_once() and cluster.engines[0].step_once()
        assert network.pending(1, 2) == 0
    cluster.settle()
    assert theirs.get(0, "acked") == 3


@pytest.mark.parametrize("at_once", [True, False])
def test_the_echo_of_the_trim_leaves_before_the_rest_is_delivered(at_once: bool) -> None:
    """The others wait for it. Whoever drives the engine, a thread or the caller: the same goes out at the same time.

    Method: copied rows; node 0 echoes and delivers to the trim; what it had posted by then lands at node 1.
    """
    network = SimNetwork()
    cluster = Cluster(2, network=network)
    cluster.settle()
    for engine in cluster.engines:
        engine.wedge()
    cluster.settle()
    cluster.epochs[0].set("trim_echoed", 1)
    cluster.epochs[0].push()
    assert network.land_all() == 0
    if at_once:
        assert cluster.engines[0].deliver_trims({1: [0, 0]}) == []
    else:
        assert cluster.engines[0].deliver_to_trim(1, [0, 0])
    assert network.land_all() > 0
    assert cluster.epochs[1].get(0, "trim_echoed") == 1
