"""The predicate thread: idle is idle, every bell wakes it, parking nests, and no way of ending it crashes or hangs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from spindle_core.counters import Counters
from spindle_core.engine import Engine
from spindle_core.inbox import Inbox
from tests.spindle_core.cluster import Cluster, asleep
from tests.spindle_core.inboxes import attach
from tests.support import descriptors_before, halt, open_descriptors, wait_until


def stopped(engine: Engine) -> bool:
    return engine.bell.view()[24] == 1


def laps(engine: Engine) -> int:
    return engine.counters.snapshot()["laps"]


def test_an_idle_engine_sleeps_and_stays_asleep() -> None:
    """Goal: an idle node costs nothing: after the last message its thread blocks and makes no more laps.

    Method: traffic, then wait until all sleep; whatever was on its way settles within a bound, then laps stand still
    although the process goes on for many times the polling time.
    """
    cluster = Cluster(3)
    writer = cluster.writer(0)
    cluster.start()
    try:
        for k in range(50):
            writer.write(b"%d" % k, timeout_s=30)
        assert writer.wait_acknowledged(30)

        def still() -> bool:
            before = [laps(e) for e in cluster.engines]
            until = time.monotonic() + 0.05
            wait_until(lambda: time.monotonic() > until)
            return all(map(asleep, cluster.engines)) and [laps(e) for e in cluster.engines] == before

        wait_until(still, 30)
        wait_until(lambda: all(e.counters.snapshot()["sleeps"] for e in cluster.engines))
        sleeps = [e.counters.snapshot()["sleeps"] for e in cluster.engines]
        writer.write(b"wake up")
        assert writer.wait_acknowledged(30)
        wait_until(still, 30)
        wait_until(lambda: all(e.counters.snapshot()["sleeps"] > n  # counted when it has looked once more
                               for e, n in zip(cluster.engines, sleeps, strict=True)))
    finally:
        cluster.stop()


def test_an_engine_without_a_view_sleeps_too() -> None:
    """Goal: before its first view a node waits for its bell, is woken by it, and stops. Method: ring it by hand."""
    engine = Engine(1)
    engine.start()
    try:
        for k in range(1, 6):
            wait_until(lambda k=k: asleep(engine) and engine.counters.snapshot()["sleeps"] >= k)
            os.eventfd_write(engine.bell_fd, 1)
        assert laps(engine) == 0
    finally:
        engine.stop()
    assert stopped(engine)


@pytest.mark.parametrize("helped", [False, True])
def test_no_wake_up_is_lost(helped: bool) -> None:
    """Goal: however the writer's commit and the thread's falling asleep interleave, the message goes out.

    Method: busy_poll_us=0, so that the thread falls asleep at every gap; many single messages, each waited for. With
    and without a writer that publishes for a thread that is blocked.
    """
    cluster = Cluster(2, busy_poll_us=0)
    writer = cluster.writer(0)
    if helped:
        cluster.engines[0].publishes_by_itself(writer)
    cluster.start()
    try:
        for k in range(1500):
            writer.write(b"%d" % k, timeout_s=30)
            assert writer.wait_acknowledged(30), f"message {k} got stuck"
    finally:
        cluster.stop()


def test_starting_and_stopping_in_every_order() -> None:
    """Goal: an engine starts once and stops as often as one likes, from several threads at once too."""
    never = Engine(1)
    never.stop()
    never.stop()
    assert stopped(never)
    with pytest.raises(RuntimeError, match="starts once"):
        never.start()
    engine = Engine(1)
    engine.start()
    with pytest.raises(RuntimeError, match="starts once"):
        engine.start()
    with pytest.raises(RuntimeError, match="is running"):
        engine.step_once()
    threads = [threading.Thread(target=engine.stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    engine.stop()
    assert stopped(engine) and engine.step_once() == 0


@pytest.mark.slow
def test_an_engine_that_was_never_started_is_freed() -> None:
    """Goal: dropping an engine gives back its memory and descriptors. Method: weak reference, /proc/self/fd."""
    gc.collect()
    before = descriptors_before()
    for _ in range(10):
        cluster = Cluster(2)
        cluster.writer(0).write(b"x")
        cluster.reader(1)
        cluster.settle()
    freed = weakref.ref(cluster)
    del cluster
    gc.collect()
    assert freed() is None
    assert open_descriptors() == before


@pytest.mark.slow
def test_a_stopped_engine_is_freed() -> None:
    """Goal: the same after its thread ran. Method: many started and stopped clusters, then count descriptors."""
    gc.collect()
    before = descriptors_before()
    for _ in range(5):
        cluster = Cluster(2)
        cluster.start()
        writer = cluster.writer(0)
        writer.write(b"x")
        assert writer.wait_acknowledged(30)
        cluster.stop()
    del cluster, writer
    gc.collect()
    assert open_descriptors() == before


FORGOTTEN = """
import gc, sys, threading
from tests.spindle_core.cluster import Cluster, asleep
from spindle_core.engine import Engine
how = sys.argv[1]
if how == "idle":
    engine = Engine(1)
    engine.start()
    del engine
else:
    cluster = Cluster(3, window=32)
    readers = [cluster.reader(i, keep_all=False) for i in range(3)]
    writers = [cluster.writer(i) for i in range(3)]
    cluster.start()
    for k in range(200):
        for w in writers:
            w.write(b"%d" % k, timeout_s=30)
    if how == "busy":
        def more():
            while True:
                writers[0].write(b"x")
        threading.Thread(target=more, daemon=True).start()
    if how == "dropped":
        del cluster, readers, writers, w
gc.collect()
print("end of the program", flush=True)
"""


@pytest.mark.parametrize("how", ["idle", "kept", "dropped", "busy"])
def test_forgetting_to_stop_neither_crashes_nor_hangs(how: str) -> None:
    """Goal: a program that ends, or drops its engines, without stop() ends normally: the predicate thread holds on to
    its engine as long as it runs, and doesn't hold the process.

    Method: programs of their own that leave running engines behind in four ways; their exit status.
    """
    for _ in range(3):
        run = subprocess.run(
            [sys.executable, "-c", FORGOTTEN, how],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "end of the program\n", "")


def test_senders_without_a_slot_neither_hold_up_parking_nor_go_on_in_it() -> None:
    """Goal: who waits for a slot evaluates predicates, but not of an engine that stands still, nor so eagerly that it
    can't come to a stand. Method: four senders for two slots; the engine is parked a hundred times meanwhile, and the
    number of messages delivered stands still each time."""
    cluster = Cluster(2, window=2)
    engine, over, errors = cluster.engines[0], threading.Event(), list[Exception]()
    cluster.start()

    def send() -> None:
        try:
            while not over.is_set():
                engine.write(1, b"x", 0, 30)
        except Exception as error:
            errors.append(error)

    def delivered() -> int:
        return engine.counters.snapshot()["delivery_messages"]

    senders = [threading.Thread(target=send) for _ in range(4)]
    try:
        for sender in senders:
            sender.start()
        for _ in range(100):
            with engine.parked():
                before = delivered()
                os.sched_yield()
                assert delivered() == before
            wait_until(lambda before=before: delivered() > before, what="the senders go on", interval_s=0.0005)
    finally:
        over.set()
        for sender in senders:
            sender.join(60)
        cluster.stop()
    assert not errors


def test_parking_nests_and_excludes() -> None:
    """Goal: parked() of several threads and of one inside itself: the predicate thread stands still in each, goes on
    after the last, and nobody deadlocks.

    Method: two threads park in turns while a third writes; laps stand still inside; then traffic flows again.
    """
    cluster = Cluster(2, window=16)
    engine, writer = cluster.engines[0], cluster.writer(0)
    reader = cluster.reader(1)
    cluster.start()
    inside: list[int] = []
    wrong: list[str] = []

    def park() -> None:
        for _ in range(150):
            with engine.parked():
                inside.append(1)
                if len(inside) != 1:
                    wrong.append("two inside")
                before = laps(engine)
                with engine.parked():
                    os.sched_yield()
                if laps(engine) != before:
                    wrong.append("not parked")
                inside.pop()

    threads = [threading.Thread(target=park) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for k in range(500):
            writer.write(b"%d" % k, timeout_s=30)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not wrong
        assert writer.wait_acknowledged(30)
        assert reader.take(999) == [b"%d" % k for k in range(500)]
    finally:
        cluster.stop()


@pytest.mark.parametrize("asleep", [False, True])
def test_stopping_while_parked(asleep: bool) -> None:
    """Goal: who stops an engine while it has parked it doesn't wait for itself. Method: once with a predicate thread
    that sleeps, once as it comes."""
    cluster = Cluster(1)
    engine = cluster.engines[0]
    cluster.start()
    if asleep:
        wait_until(lambda: engine.counters.snapshot()["sleeps"])
    with engine.parked():
        engine.stop()
    assert stopped(engine)
    cluster.stop()


@pytest.mark.slow
def test_stopping_while_others_take_things_away() -> None:
    """Goal: who removes an inbox from an engine that is just stopping may free it: the last step is over by then.

    Method: a predicate thread with much to do is stopped while another thread removes and closes its inboxes.
    """
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(60):
            cluster = Cluster(1, window=64, size_max=4096)
            engine = cluster.engines[0]
            inboxes = [Inbox(4096, 64, k) for k in range(40)]
            for inbox in inboxes:
                engine.add_inbox(1, inbox)
                attach(inbox, engine).write_many([bytes(4096)] * 64, timeout_s=0)
            cluster.start()

            def take_away(engine: Engine = engine, inboxes: list[Inbox] = inboxes) -> None:
                while inboxes and not stopped(engine):
                    inbox = inboxes.pop()
                    engine.remove_inbox(1, inbox)
                    inbox.close()

            thread = threading.Thread(target=take_away)
            thread.start()
            cluster.stop()
            thread.join(30)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(switch_interval_s)


def test_counters_of_an_engine_stay_while_it_needs_them() -> None:
    """Goal: closing counters under a stopped engine is an error later, not a crash."""
    counters = Counters.create()
    engine = Engine(1, counters=counters)
    engine.start()
    engine.stop()
    counters.close()
    with pytest.raises(ValueError, match="closed"):
        engine.counters.snapshot()


STOPPED = """
import sys, threading
from tests.spindle_core.cluster import Cluster
cluster = Cluster(2, window=64)
writer = cluster.writer(0, slots=64)
cluster.start()
def write():
    while True:
        writer.write_many([b"x"] * 64, timeout_s=30)
threading.Thread(target=write, daemon=True).start()
for line in sys.stdin:
    print(*(engine.counters.snapshot()[line.strip()] for engine in cluster.engines), flush=True)
"""


@pytest.mark.slow
def test_a_pass_that_had_to_wait_is_no_long_pass() -> None:
    """Goal: the longest pass, and the time that passes took, say for how long the thread worked, not for how long it
    was kept from running. Method: a process with two engines under traffic is stopped again and again."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"})
    assert process.stdin is not None and process.stdout is not None

    def counters(name: str) -> list[int]:
        assert process.stdin is not None and process.stdout is not None
        print(name, file=process.stdin, flush=True)
        return [int(value) for value in process.stdout.readline().split()]

    try:
        for _ in range(8):
            before = counters("busy_laps")
            wait_until(lambda before=before: all(  # type: ignore[misc]
                now > then for now, then in zip(counters("busy_laps"), before, strict=True)))
            halt(process.pid)
            until = time.monotonic() + 0.3
            wait_until(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGCONT)
        assert max(counters("lap_ns_max")) < 200_000_000
    finally:
        process.kill()
        process.communicate()


def test_a_thread_beside_one_that_never_sleeps_does_not_give_its_core_away_again_and_again() -> None:
    """Goal: who polls on a core that somebody else uses up is no sooner there, but each time a slice later: after one
    look of that kind it sleeps, and is woken. Method: a predicate thread and a process in a loop on one core; single
    messages, each with time to fall asleep behind it."""
    messages = 300
    cluster = Cluster(2)
    writer = cluster.writer(1)
    others = set(threading.enumerate())
    cluster.start()
    core = min(os.sched_getaffinity(0))
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        thread = next(one for one in threading.enumerate() if one not in others)
        os.sched_setaffinity(hog.pid, {core})
        os.sched_setaffinity(thread.native_id or 0, {core})
        engine = cluster.engines[0]
        before = engine.counters.snapshot()
        for _ in range(messages):
            writer.write(b"x")
            assert writer.wait_acknowledged(30)
            wait_until(lambda: asleep(engine), 30)
        after = engine.counters.snapshot()
        assert after["crowded"] - before["crowded"] <= messages // 10
        assert after["sleeps"] - before["sleeps"] >= messages
    finally:
        hog.kill()
        hog.wait()
        cluster.stop()
