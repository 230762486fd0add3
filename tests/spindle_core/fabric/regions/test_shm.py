"""Regions of nodes on one host keep the promise of regions."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest

from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.shm import ShmPart
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.conformance import BOUND_S, RegionConformance, word
from tests.spindle_core.fabric.regions.nodes import Node


class ShmNode(Node):
    def __init__(self) -> None:
        super().__init__()
        self.part = ShmPart(self.regions)

    def mapped(self, owner: Node, memory: Mapping) -> Mapping | None:
        return Mapping.attach(os.dup(memory.fd), True)


def copy(mapping: Mapping) -> Mapping:
    return Mapping.attach(os.dup(mapping.fd))


def connect(a: Any, b: Any) -> None:
    posts = a.part.make_post(), b.part.make_post()
    for one, other, mine, theirs in ((a, b, *posts), (b, a, *reversed(posts))):
        there = other.part
        one.numbers[other] = one.part.connect(mine, copy(there.keys), copy(theirs), copy(there.bell),
                                              os.dup(there.bell_fd))


def make_nodes(n: int) -> list[ShmNode]:
    nodes = [ShmNode() for _ in range(n)]
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            connect(a, b)
    return nodes


class TestShm(RegionConformance):
    make_nodes = staticmethod(make_nodes)


def test_no_ring_is_lost_around_going_to_sleep():
    """Two threads send each other one message after the other, and sleep between: a lost ring would run into the
    bound."""
    a, b = make_nodes(2)
    rounds, failures = 300, []

    def serve(me: Any, peer: int, first: bool) -> None:
        for k in range(rounds):
            if first:
                me.regions.send(peer, b"%d" % k)
            while (one := me.regions.receive()) is None:
                if not me.regions.wait(BOUND_S):
                    failures.append(f"round {k}: not rung")
                    return
            assert one == (peer, b"%d" % k)
            if not first:
                me.regions.send(peer, b"%d" % k)

    threads = [threading.Thread(target=serve, args=(a, a.number(b), True), daemon=True),
               threading.Thread(target=serve, args=(b, b.number(a), False), daemon=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S * 2)
    assert failures == [] and not any(thread.is_alive() for thread in threads)


def test_what_a_peer_maps_it_cannot_write():
    """The page of keys, the doorbell and the messages of a node: others map them for reading alone."""
    a, _ = make_nodes(2)
    for mapping in (a.part.keys, a.part.bell, a.part.make_post()):
        with pytest.raises(OSError):
            Mapping.attach(os.dup(mapping.fd), True)


@pytest.mark.parametrize("lie", ["much", "backwards", "long", "longer than sent"])
def test_counts_of_a_peer_that_lies(lie):
    """A peer's counts and lengths in shared memory are checked: its messages are not received, others' are."""
    a, b, c = make_nodes(3)
    theirs = b.part.make_post()
    number = a.part.connect(a.part.make_post(), copy(b.part.keys), copy(theirs), copy(b.part.bell),
                            os.dup(b.part.bell_fd))
    view = memoryview(theirs).cast("Q")
    ring = 4096 // 8
    view[0] = {"much": 1 << 40, "backwards": 2**64 - 8, "long": 64, "longer than sent": 16}[lie]
    view[ring] = {"long": 1 << 30, "longer than sent": 64}.get(lie, 0)
    c.regions.send(c.number(a), b"good")
    assert a.regions.receive() == (a.number(c), b"good") and a.regions.receive() is None
    a.regions.send(number, b"to who lies")
    view[8] = 2**64 - 1  # it says that it has taken what was never sent
    for _ in range(3):
        try:
            a.regions.send(number, bytes(1 << 20))
        except BlockingIOError:
            break


def test_regions_that_are_not_mapped_as_granted_are_refused():
    """Too small, not there, or read-only where the grant allows more: ValueError; so is memory that is no doorbell."""
    a, b = make_nodes(2)
    memory = Mapping.create("memory", 8192)
    key = b.regions.register(memory, atomics=True)
    grant = b.regions.grant(key, b.number(a))
    for mapping in (None, Mapping.create("small", 4096), copy(memory)):
        with pytest.raises(ValueError, match="mapped"):
            a.regions.reach(a.number(b), grant, mapping)
    with pytest.raises(ValueError, match="32 bytes"):
        a.regions.reach(a.number(b), grant[:-1], memory)
    with pytest.raises(ValueError, match="rights"):
        a.regions.reach(a.number(b), grant[:16] + b"\7\0\0\0" + grant[20:], memory)
    post = a.part.make_post()
    with pytest.raises(ValueError, match="doorbell"):
        a.part.connect(post, copy(b.part.keys), copy(post), Mapping.create("no bell", 4096), os.dup(b.part.bell_fd))
    asker, requests = Asker(), RequestList()
    requests.fetch_add(a.regions.reach(a.number(b), grant, Mapping.attach(os.dup(memory.fd), True)), 0, 1)
    a.regions.post(asker, requests)
    assert asker.take()[0][1] == "done" and word(memory) == 1


def test_what_the_garbage_collector_takes_leaves_no_descriptor():
    """Nodes refer to each other, so their ends go in any order."""
    make_nodes(2)
    gc.collect()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        make_nodes(3)
        gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= set(before)
