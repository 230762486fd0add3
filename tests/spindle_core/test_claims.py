"""Direct claims: who publishes what was committed while the predicate thread is blocked."""

from __future__ import annotations

import os

from spindle_core.engine import Engine
from tests.spindle_core.cluster import Cluster


def announce_sleep(engine: Engine) -> None:
    """As its thread does before it blocks; there is nothing to do for it."""
    assert engine.step_once(falls_asleep=True) == 0


def announce_awake(engine: Engine) -> None:
    engine.bell.view()[12:16] = bytes(4)


def rings(engine: Engine) -> int:
    """How often it was rung for since the last look."""
    try:
        return os.eventfd_read(engine.bell_fd)
    except BlockingIOError:
        return 0


def test_many_commits_while_the_thread_is_blocked_leave_in_few_batches() -> None:
    """Goal: a message that comes alone is published at once, by its writer; many that come while the predicate thread
    waits for a core are not published one by one, nor is it rung for each.

    Method: an engine that says that it is blocked and doesn't run; 20 messages: batches end with the 1st, 2nd, 4th, 8th
    and 16th, of which each rings, and the last four are the thread's.
    """
    cluster = Cluster(2, window=64)
    engine, log = cluster.engines[0], cluster.reader(1)
    try:
        rings(engine)
        announce_sleep(engine)
        published = []
        for k in range(20):
            engine.write(1, b"%d" % k, 0, 0)
            published.append(engine.counters.snapshot()["send_messages"])
        assert published == [1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 16]
        assert engine.counters.snapshot()["send_batches"] == 5
        assert rings(engine) == 5
        cluster.settle()
        assert log.take(100) == [b"%d" % k for k in range(20)]
    finally:
        cluster.stop()


def test_who_gives_a_slot_up_rings_once_too() -> None:
    """Goal: an aborted claim is a null that is not forgotten. Method: two aborts at an engine that says it sleeps."""
    cluster = Cluster(2, window=64)
    engine, log = cluster.engines[0], cluster.reader(1)
    try:
        claims = [engine.claim(1, 0) for _ in range(2)]
        rings(engine)
        announce_sleep(engine)
        for claim in claims:
            claim.abort()
        assert rings(engine) == 1
        announce_awake(engine)
        engine.write(1, b"after", 0, 0)
        cluster.settle()
        assert log.take(100) == [b"after"]
    finally:
        cluster.stop()


def test_every_direct_write_wakes_a_thread_that_sleeps() -> None:
    """Goal: however a commit and the thread's falling asleep interleave, the message goes out, each time.

    Method: busy_poll_us=0, so that the threads fall asleep at every gap; many single writes, each waited for.
    """
    cluster = Cluster(2, busy_poll_us=0)
    log = cluster.reader(1)
    cluster.start()
    try:
        for k in range(1000):
            cluster.engines[0].write(1, b"%d" % k, 0, 30)
            assert log.wait(30), f"message {k} got stuck"
            assert log.take(10) == [b"%d" % k]
    finally:
        cluster.stop()
