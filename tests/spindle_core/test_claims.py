"""Direct claims: who publishes what was committed while the predicate thread is blocked."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from spindle_core.engine import Engine
from spindle_core.epoch import SubgroupSpec
from spindle_core.errors import WriteTimeout
from spindle_core.switches import Switches
from tests.spindle_core.cluster import STUCK_S, Cluster


def announce_sleep(engine: Engine) -> None:
    """As its thread does before it blocks; there is nothing to do for it."""
    assert engine.step_once(falls_asleep=True) == 0


def announce_awake(engine: Engine) -> None:
    engine.step_once()


def rings(engine: Engine) -> int:
    """How often it was rung for since the last look."""
    try:
        return os.eventfd_read(engine.bell_fd)
    except BlockingIOError:
        return 0


def test_many_commits_while_the_thread_is_blocked_leave_in_few_batches() -> None:
    """Goal: a message that comes alone is published at once, by its writer; many that come while the predicate thread
    waits for a core are not published one by one, and it is rung once for all of them.

    Method: an engine that says that it is blocked and doesn't run; 20 messages: batches end with the 1st, 2nd, 4th, 8th
    and 16th, of which the first one rings, and the last four are the thread's.
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
        assert rings(engine) == 1
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


def test_who_waits_for_a_slot_does_what_frees_it() -> None:
    """Goal: a writer that finds no slot doesn't wait until the predicate thread has got a core. Method: a predicate
    thread that never sleeps but gives its core away, and an embedded receiver that notes in which thread it is called:
    before long in that of the writer."""
    cluster = Cluster(2, window=4, busy_poll_us=1_000_000)
    engine, threads = cluster.engines[0], set[int]()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    def note(_context: int, _messages: int, _count: int) -> None:
        threads.add(threading.get_native_id())

    engine.set_upcall(1, ctypes.cast(note, ctypes.c_void_p).value, keep=note)
    cluster.start()
    deadline = time.monotonic() + STUCK_S
    try:
        while threading.get_native_id() not in threads:
            assert time.monotonic() < deadline, "the predicate thread has delivered everything"
            engine.write(1, b"x", 0, STUCK_S)
    finally:
        cluster.stop()


def test_a_writer_in_the_nodes_process_publishes_for_a_thread_that_is_blocked() -> None:
    """Goal: a message that comes alone doesn't wait until the predicate thread has woken up, also where it comes
    through an inbox. Method: a group of one, whose receiver notes in which thread it is called: before long in that of
    the writer. Then the writer is closed, and one that is opened without its engine's help leaves all to the thread."""
    cluster = Cluster(1)
    engine, threads = cluster.engines[0], list[int]()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    def note(_context: int, _messages: int, _count: int) -> None:
        threads.append(threading.get_native_id())

    engine.set_upcall(1, ctypes.cast(note, ctypes.c_void_p).value, keep=note)
    helped, plain = cluster.writer(0), cluster.writer(0)
    engine.publishes_by_itself(helped)
    cluster.start()
    deadline = time.monotonic() + STUCK_S
    try:
        while threading.get_native_id() not in threads:
            assert time.monotonic() < deadline, "the predicate thread has delivered everything"
            helped.write(b"x")
            assert helped.wait_acknowledged(STUCK_S)
        helped.close()
        threads.clear()
        for _ in range(20):
            plain.write(b"x")
            assert plain.wait_acknowledged(STUCK_S)
        assert threading.get_native_id() not in threads
    finally:
        cluster.stop()


def test_nobody_else_drives_an_engine_that_is_stepped_by_hand() -> None:
    """Goal: only who steps such an engine changes anything. Method: a full window that the engine's next step empties;
    a claim that waits, then that step."""
    cluster = Cluster(2, window=4)
    engine, other = cluster.engines
    try:
        for _ in range(4):
            engine.write(1, b"x", 0, 0)
        for each in (engine, other):
            each.step_once()
        with pytest.raises(WriteTimeout):
            engine.write(1, b"x", 0, 0.05)
        engine.step_once()
        engine.write(1, b"x", 0, 0)
    finally:
        cluster.stop()


@pytest.mark.slow
def test_a_ring_is_no_time() -> None:
    """Goal: a claim times out when its time is over, however often it was woken in vain. Method: a group that does not
    deliver, a full window, and somebody who rings whatever there is to ring in this process."""
    cluster = Cluster(2, window=4)
    engine = cluster.engines[0]
    engine.start()
    try:
        for _ in range(4):
            engine.write(1, b"x", 0, 1.0)
        with pytest.raises(WriteTimeout):
            engine.write(1, b"x", 0, 0.05)  # what it waits at is there from now on
        gc.collect()  # what earlier tests have left
        bells = [int(fd) for fd in os.listdir("/proc/self/fd") if is_eventfd(fd)]
        over = threading.Event()

        def ring() -> None:
            while not over.is_set():
                for fd in bells:
                    os.eventfd_write(fd, 1)
                time.sleep(0.0005)

        ringer = threading.Thread(target=ring)
        ringer.start()
        began = time.monotonic()
        try:
            with pytest.raises(WriteTimeout):
                engine.write(1, b"x", 0, 0.5)
        finally:
            over.set()
            ringer.join()
        assert time.monotonic() - began >= 0.5
    finally:
        cluster.stop()


def is_eventfd(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("anon_inode:[eventfd")
    except OSError:
        return False


def test_silence_of_any_length_is_something_done() -> None:
    """Goal: a pass that has sent nulls has done something, however many they stand for. Method: numbers of rounds of
    which 32 bits say nothing, or less."""
    for rounds in (1 << 32, 1 << 31, (1 << 31) + 1):
        cluster = Cluster(2, window=8, switches=Switches(null_sends=False))
        try:
            cluster.engines[0].declare_silence(1, rounds)
            assert cluster.engines[0].step_once() > 0
        finally:
            cluster.stop()


def test_nothing_of_python_runs_under_the_lock_of_a_topic() -> None:
    """Goal: a claim that the garbage collector ends while its topic refuses something takes the lock, and gets it.

    Method: a program of its own, since a thread that waits for itself never ends: claims in cycles, a collector that
    runs with every object, and silence declared where there is no slot for it.
    """
    program = textwrap.dedent("""
        import gc
        from spindle_core.errors import WriteTimeout
        from tests.spindle_core.cluster import STUCK_S, Cluster
        cluster = Cluster(2, window=4)
        engine = cluster.engines[0]
        gc.disable()
        while True:
            try:
                cycle = [engine.claim(1, 0)]
            except WriteTimeout:
                break
            cycle.append(cycle)
        del cycle
        gc.set_threshold(1, 1, 1)
        gc.enable()
        try:
            engine.declare_silence(1, 5)
        except WriteTimeout:
            pass
        print("ended")
        """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ended\n", done.stderr


def test_a_view_that_can_not_be_made_closes_nobodys_descriptor() -> None:
    """Goal: memory that runs out while a view is made costs that view. Method: of two topics the second is no topic;
    descriptor 0 is as before."""
    class Broken(SubgroupSpec):
        @property
        def level(self) -> int:  # type: ignore[override]
            raise MemoryError

        @level.setter
        def level(self, value: int) -> None:
            pass

        def check(self, nodes: int) -> None:
            pass

    kept = os.dup(0)
    engine = Engine(1)
    try:
        before = os.fstat(0)
        broken = [SubgroupSpec(1, (0,), (0,), 8, 64), object.__new__(Broken), object.__new__(Broken)]
        for number, one in enumerate(broken[1:], 2):
            object.__setattr__(one, "topic_id", number)
        with pytest.raises((MemoryError, AttributeError)):
            engine.new_epoch(1, 0, (1,), broken)
        gc.collect()
        assert os.path.samestat(before, os.fstat(0))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        engine.stop()
