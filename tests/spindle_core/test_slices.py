"""How soon threads run that mostly wait: those that asked for it and nobody else, with all else as it was."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spindle_core.engine import Engine
from spindle_core.slices import be_prompt
from spindle_core.switches import Switches
from tests.spindle_core.cluster import Cluster, asleep
from tests.support import wait_until

ATTR = struct.Struct("IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
SHORT_NS = 100_000
GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
RELEASE = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
needs_slices = pytest.mark.skipif(GETATTR is None or RELEASE < (6, 12), reason="the kernel has no slices to ask for")


def attributes(thread_id: int = 0) -> tuple[int, int, int]:
    """Policy, nice value and slice (ns) of a thread of this process; 0: the calling one. One with a real-time priority
    has that in place of both."""
    buffer = ctypes.create_string_buffer(ATTR.size)
    assert ctypes.CDLL(None).syscall(GETATTR, thread_id, buffer, ATTR.size, 0) == 0
    _, policy, _, nice, priority, slice_ns, _, _ = ATTR.unpack(buffer.raw)
    return (policy, priority, 0) if policy == os.SCHED_RR else (policy, nice, slice_ns)


def in_a_thread(work: Callable[[], object]) -> object:
    """A thread of its own: what it asks for ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(10)


def may(work: Callable[[], object]) -> bool:
    def ask() -> bool:
        try:
            work()
        except PermissionError:
            return False
        return True

    return bool(in_a_thread(ask))


def may_have_a_higher_priority() -> bool:
    return may(lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10))


def may_run_in_real_time() -> bool:
    return may(lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)))


@needs_slices
def test_a_thread_gets_the_slice_and_keeps_the_rest() -> None:
    before = attributes()

    def ask() -> tuple[str, tuple[int, int, int]]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        return be_prompt(realtime=0, nice=0), attributes()

    assert in_a_thread(ask) == ("slice", (os.SCHED_OTHER, 5, SHORT_NS))
    assert attributes() == before


@needs_slices
def test_a_thread_that_shall_have_what_nobody_else_wants_keeps_that() -> None:
    def ask() -> tuple[str, int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return be_prompt(), attributes()[0]

    assert in_a_thread(ask) == ("", os.SCHED_IDLE)


@needs_slices
def test_a_thread_asks_for_more_and_gets_what_it_may_have() -> None:
    """A real-time priority, or else a lower nice value, or else short slices."""
    policy, usual, _ = attributes()
    slices = ("slice", (policy, usual, SHORT_NS))
    less = ("nice", (policy, usual - 10, SHORT_NS)) if may_have_a_higher_priority() else slices
    most = ("realtime", (os.SCHED_RR, 3, 0)) if may_run_in_real_time() else less
    assert in_a_thread(lambda: (be_prompt(0, -10), attributes())) == less
    assert in_a_thread(lambda: (be_prompt(3, -10), attributes())) == most
    assert in_a_thread(lambda: (be_prompt(3, -10) and be_prompt(0, 0), attributes())) == most  # what it has it keeps
    for wrong, text in (((100, 0), "realtime 100: must be 0 to 99"), ((0, -21), "nice -21: must be -20 to 0"),
                        ((0, 1), "nice 1: must be -20 to 0")):
        with pytest.raises(ValueError, match=text):
            be_prompt(*wrong)


@needs_slices
def test_what_a_thread_asks_for_is_for_itself_alone_and_asked_for_once() -> None:
    """Goal: neither a thread nor a program that it starts is before others; and asking again changes nothing."""
    usual = attributes()

    def ask(realtime: int) -> tuple[list[str], tuple[int, int, int], tuple[int, int, int], str]:
        got = [be_prompt(realtime, -5) for _ in range(2)]
        program = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0), os.nice(0))"],
                                 capture_output=True, text=True, timeout=60)
        return got, attributes(), in_a_thread(attributes), program.stdout  # type: ignore[return-value]

    for realtime in (0, 3):
        got, mine, thread, program = in_a_thread(lambda realtime=realtime: ask(realtime))  # type: ignore[misc]
        assert got[0] == got[1] and mine in ((os.SCHED_RR, 3, 0), (usual[0], usual[1] - 5, SHORT_NS),
                                             (usual[0], usual[1], SHORT_NS))
        assert thread[0] == usual[0] and thread[1] >= min(usual[1], 0)
        assert program.split() == [str(usual[0]), str(thread[1])]


@needs_slices
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can do without a right")
@pytest.mark.parametrize(("limits", "got"), [((0, 0), "slice"), ((0, 30), "nice"), ((1, 0), "realtime")])
def test_limits_that_a_process_of_no_rights_has_are_enough(limits: tuple[int, int], got: str) -> None:
    """RLIMIT_RTPRIO and RLIMIT_NICE, as units of systemd set them."""
    program = """
import os, resource, sys
from spindle_core.slices import be_prompt
try:
    resource.setrlimit(resource.RLIMIT_RTPRIO, (int(sys.argv[1]),) * 2)
    resource.setrlimit(resource.RLIMIT_NICE, (int(sys.argv[2]),) * 2)
except ValueError as error:
    sys.exit(f"no: {error}")
os.setuid(65534)
print(be_prompt(1, -10))
"""
    run = subprocess.run([sys.executable, "-c", program, *map(str, limits)], capture_output=True, text=True, timeout=60)
    if run.stderr.startswith("no:"):
        pytest.skip("this root may not raise limits")
    assert run.stdout.strip() == got, run.stderr


@needs_slices
def test_a_predicate_thread_that_is_busy_is_as_it_was_until_it_mostly_sleeps_again() -> None:
    """Method: two nodes in full flow, from one that commits for as long as it takes; then single messages."""
    cluster = Cluster(2, nice=-10, realtime=1)
    writer = cluster.writer(0)
    others = set(threading.enumerate())
    cluster.start()
    try:
        threads = [one.native_id or 0 for one in set(threading.enumerate()) - others]
        usual = attributes()
        prompt = usual[0], usual[1] - 10 if may_have_a_higher_priority() else usual[1], SHORT_NS

        def have() -> list[tuple[int, int, int]]:
            return [attributes(one) for one in threads]

        def busy() -> bool:
            for _ in range(100):
                writer.write(b"x", timeout_s=30)
            return usual in have()

        def single() -> bool:
            wait_until(lambda: all(map(asleep, cluster.engines)))
            writer.write(b"x", timeout_s=30)
            return have() == [prompt, prompt]

        assert len(threads) == 2
        wait_until(single, 30)
        wait_until(busy, 30, interval_s=0)
        wait_until(single, 30)
    finally:
        cluster.stop()


@pytest.mark.skipif(not may_run_in_real_time(), reason="this process may have no real-time priority")
def test_a_predicate_thread_is_in_real_time_while_others_would_keep_its_core() -> None:
    """Goal: beside a program that never sleeps, and only there, it need not wait for that; never while it is busy.
    Method: both on one core. Single messages; as many as there can be; single ones; those after the program's end."""
    cluster = Cluster(2, nice=-10, realtime=2)
    writer = cluster.writer(1)
    others = set(threading.enumerate())
    cluster.start()
    core = min(os.sched_getaffinity(0))
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        thread = next(one for one in threading.enumerate() if one not in others).native_id or 0
        os.sched_setaffinity(hog.pid, {core})
        os.sched_setaffinity(thread, {core})

        def single() -> None:
            writer.write(b"x", timeout_s=30)
            assert writer.wait_acknowledged(30)
            wait_until(lambda: asleep(cluster.engines[0]), 30)

        def is_before_others() -> bool:
            single()
            return attributes(thread) == (os.SCHED_RR, 2, 0)

        def is_among_others() -> bool:
            for _ in range(100):
                writer.write(b"x", timeout_s=30)
            return attributes(thread)[0] == os.SCHED_OTHER

        wait_until(is_before_others, 30, interval_s=0)
        wait_until(is_among_others, 30, interval_s=0)
        wait_until(is_before_others, 30, interval_s=0)
        hog.kill()
        hog.wait()
        wait_until(lambda: not is_before_others(), 30)
    finally:
        hog.kill()
        hog.wait()
        cluster.stop()


@needs_slices
def test_a_predicate_thread_that_always_finds_something_is_as_it_was() -> None:
    """Goal: it doesn't keep its core from others, though no pass of it is in vain. Method: so many messages, one
    a pass, that they take it some ten milliseconds; it is looked at in the middle."""
    count = 1 << 15
    switches = Switches(batch_send=False, batch_receive=False, batch_delivery=False)
    cluster = Cluster(1, nice=-10, realtime=1, window=count, switches=switches)
    reader, writer = cluster.reader(0, capacity=16 << 20), cluster.writer(0, slots=count)
    for _ in range(count):
        writer.write(b"x", timeout_s=0)
    usual, others, found = attributes(), set(threading.enumerate()), None
    cluster.start()
    try:
        (thread,) = set(threading.enumerate()) - others
        while (delivered := reader.pending) < count:
            found = attributes(thread.native_id or 0)
            if delivered and found == usual:
                break
        assert 0 < delivered < count and found == usual
    finally:
        cluster.stop()


def passes_for_each_message() -> float:
    """Of a predicate thread that would look for a second, on one core with a writer that waits for it again and again.
    """
    count, core = 2000, min(os.sched_getaffinity(0))
    cluster, others = Cluster(1, busy_poll_us=1_000_000, window=8), set(threading.enumerate())
    writer, counters = cluster.writer(0, slots=8), cluster.engines[0].counters
    cluster.start()
    (thread,) = set(threading.enumerate()) - others

    def write() -> float:
        for one in (0, thread.native_id or 0):
            os.sched_setaffinity(one, {core})
        before = counters.snapshot()["laps"]
        for _ in range(count):
            writer.write(b"x", timeout_s=30)
        return (counters.snapshot()["laps"] - before) / count

    try:
        return float(in_a_thread(write))  # type: ignore[arg-type]
    finally:
        cluster.stop()


def test_a_predicate_thread_that_looks_in_vain_gives_its_core_to_who_has_work_for_it() -> None:
    """Goal: one pass or a few for each message, not hundreds in the rest of a time slice."""
    assert max(passes_for_each_message() for _ in range(5)) < 40


def processor_s(thread_id: int) -> float:
    return int(Path(f"/proc/self/task/{thread_id}/schedstat").read_text().split()[0]) / 1e9


@pytest.mark.parametrize("realtime", [0, 1])
def test_a_predicate_thread_that_waits_for_its_turn_leaves_its_core_to_others(realtime: int) -> None:
    """Goal: an application's thread that drives, or has a lock, gets on though a thread with a real-time priority waits
    for it on the same core. Method: the predicates are kept from it while it is rung; nobody else wants a core."""
    cluster = Cluster(2, realtime=realtime)
    others = set(threading.enumerate())
    cluster.engines[1].start()
    try:
        (thread,) = set(threading.enumerate()) - others
        wait_until(lambda: asleep(cluster.engines[1]))
        with cluster.engines[1].parked():
            before, since = processor_s(thread.native_id or 0), time.monotonic()
            cluster.writer(0).write(b"x")
            while cluster.engines[0].step_once():
                continue
            time.sleep(0.3)
            assert processor_s(thread.native_id or 0) - before < (time.monotonic() - since) / 2
    finally:
        cluster.stop()


@needs_slices
def test_the_predicate_thread_has_short_slices_and_who_starts_it_has_not() -> None:
    before = attributes()
    engine = Engine(1)
    others = set(threading.enumerate())
    engine.start()
    try:
        (thread,) = set(threading.enumerate()) - others
        wait_until(lambda: attributes(thread.native_id or 0)[2] == SHORT_NS)
        assert attributes() == before
    finally:
        engine.stop()
