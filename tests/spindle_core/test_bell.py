"""Goal: who sleeps is rung once for each sleep by each ringer, and again for the next one, whoever rings.

Method: engines driven by hand. One says that it falls asleep. A peer, a writer, a reader, a program of its own process
find something for it to do several times over. Then it looks, and falls asleep again.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

import pytest

from spindle_core.engine import Engine
from tests.spindle_core.cluster import STUCK_S, Cluster, asleep
from tests.support import wait_until

SLEEPS = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(2, window=64)
    yield cluster
    cluster.stop()


def rung(engine: Engine) -> int:
    """How often, since the last look."""
    try:
        return os.eventfd_read(engine.bell_fd)
    except BlockingIOError:
        return 0


def fall_asleep(engine: Engine) -> None:
    while engine.step_once(falls_asleep=True):
        pass
    rung(engine)
    assert asleep(engine)


def rung_in_each_sleep(cluster: Cluster, engine: Engine, happens: Callable[[], object]) -> list[int]:
    found = []
    for _ in range(SLEEPS):
        cluster.settle()
        fall_asleep(engine)
        for _ in range(4):
            happens()
        found.append(rung(engine))
        engine.step_once()
        assert not asleep(engine)
    cluster.settle()
    return found


@pytest.mark.parametrize("publishes", [False, True])
def test_a_writer_rings_once_for_each_sleep(cluster: Cluster, publishes: bool) -> None:
    """Also one that may publish by itself, and can't here: who drives this engine does so by hand."""
    writer = cluster.writer(0)
    if publishes:
        cluster.engines[0].publishes_by_itself(writer)
    assert rung_in_each_sleep(cluster, cluster.engines[0], lambda: writer.write(b"x")) == [1] * SLEEPS


def test_two_writers_ring_each_for_itself(cluster: Cluster) -> None:
    """Neither relies on the other, who may not come to it."""
    writers = [cluster.writer(0), cluster.writer(0)]
    both = rung_in_each_sleep(cluster, cluster.engines[0], lambda: [writer.write(b"x") for writer in writers])
    assert both == [2] * SLEEPS


def test_a_peer_rings_once_for_each_sleep(cluster: Cluster) -> None:
    other, log = cluster.engines[1], cluster.reader(0)

    def message() -> None:
        other.write(1, b"x", 0, 0)
        while other.step_once():
            pass

    assert rung_in_each_sleep(cluster, cluster.engines[0], message) == [1] * SLEEPS
    assert len(log.take(100)) == 4 * SLEEPS


def test_a_program_of_the_node_rings_once_for_each_sleep(cluster: Cluster) -> None:
    engine = cluster.engines[0]
    assert rung_in_each_sleep(cluster, engine, lambda: engine.write(1, b"x", 0, 0)) == [1] * SLEEPS


def test_a_reader_that_delivery_waits_for_rings_once_for_each_sleep() -> None:
    """Method: a reader that keeps all holds delivery up; it takes one message after the other."""
    cluster = Cluster(1, window=64)
    engine, log = cluster.engines[0], cluster.reader(0)
    try:
        for _ in range(SLEEPS):
            blocked = engine.counters.snapshot()["delivery_blocked"]
            while engine.counters.snapshot()["delivery_blocked"] == blocked:
                engine.write(1, b"x" * 64, 0, 0)
                cluster.settle()
            fall_asleep(engine)
            assert [len(log.take(1)) for _ in range(4)] == [1] * 4
            assert rung(engine) == 1
            while engine.step_once():
                pass
    finally:
        cluster.stop()


@pytest.mark.parametrize("announcements", [1, 2, 3])
def test_every_announcement_is_a_sleep_of_its_own(cluster: Cluster, announcements: int) -> None:
    """Also where the last look has found something, and who drives the engine falls asleep again at once."""
    engine, writer = cluster.engines[0], cluster.writer(0)
    cluster.settle()
    for _ in range(announcements):
        engine.step_once(falls_asleep=True)
        writer.write(b"x")
        assert rung(engine) == 1


def test_those_that_all_sleep_hear_one_ring_together() -> None:
    """Goal: the bells that a node hands over for a view are those that it rings. Method: both other nodes of a host
    fall asleep, and something is posted to both: one call, which each of them hears at what it was handed."""
    cluster = Cluster(3, window=64)
    epoch, own = cluster.epochs[0], select.epoll()
    own.register(cluster.engines[0].all_fd, select.EPOLLIN | select.EPOLLET)
    ringers = epoch.make_ringers((1, 2), cluster.engines[0].all_fd)
    try:
        for engine in cluster.engines[1:]:
            fall_asleep(engine)
        assert epoch.fabric.post_writes([(1, 0, 8), (2, 0, 8)]) == 1
        heard = [ringer.heard for ringer in ringers.values()]
        assert select.select([own, *heard], [], [], 0)[0] == heard
        for engine in cluster.engines:
            engine.step_once()
            fall_asleep(engine)
        assert epoch.fabric.post_writes([(1, 0, 8), (2, 0, 8)]) == 1
        assert select.select([own, *heard], [], [], 0)[0] == [own, *heard]
    finally:
        own.close()
        for ringer in ringers.values():
            ringer.close()
        cluster.stop()


def test_whom_its_own_node_has_rung_no_peer_rings(cluster: Cluster) -> None:
    """Goal: what comes back of a message needs no ring where its sender has woken the node's thread already; the next
    sleep is another one."""
    engine, other = cluster.engines[0], cluster.engines[1]
    for _ in range(SLEEPS):
        cluster.settle()
        fall_asleep(engine)
        engine.write(1, b"x", 0, 0)
        assert rung(engine) == 1
        while other.step_once():
            pass
        assert rung(engine) == 0
        fall_asleep(engine)
        other.write(1, b"x", 0, 0)
        while other.step_once():
            pass
        assert rung(engine) == 1


def test_the_ring_that_is_for_all_wakes_a_node_s_own_thread_too() -> None:
    """Method: an engine whose thread sleeps, and a ring at what it gives its views to ring all by."""
    engine = Engine(1)
    engine.start()
    try:
        wait_until(lambda: engine.counters.snapshot()["sleeps"] > 0 and asleep(engine), STUCK_S, "it sleeps")
        for _ in range(SLEEPS):
            before = engine.counters.snapshot()["sleeps"]
            os.eventfd_write(engine.all_fd, 1)
            wait_until(lambda before=before: engine.counters.snapshot()["sleeps"] > before, STUCK_S, "it has woken up")
    finally:
        engine.stop()


def test_a_ring_for_all_outlives_the_view_by_which_it_came() -> None:
    """Goal: a thread that was rung, and has no core before the view and its memory are gone, wakes up all the same: its
    own node rings it once for each sleep. Method: a view by which all are rung goes before anybody has listened."""
    cluster = Cluster(3, window=64)
    engine, own = cluster.engines[0], select.epoll()
    own.register(engine.all_fd, select.EPOLLIN | select.EPOLLET)
    ringers = cluster.epochs[0].make_ringers((1, 2), engine.all_fd)
    for ringer in ringers.values():
        ringer.close()
    for each in cluster.engines:
        fall_asleep(each)
    assert cluster.epochs[0].fabric.post_writes([(1, 0, 8), (2, 0, 8)]) == 1
    cluster.epochs[0].fabric.ring_together(-1, -1)
    assert select.select([own], [], [], 0)[0] == [own]
    own.close()
    cluster.stop()
