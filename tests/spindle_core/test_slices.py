"""Short time slices: of the threads that asked for them and of nobody else, with all else as it was."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spindle_core.engine import Engine
from spindle_core.slices import ask_for_short_slices
from tests.spindle_core.cluster import Cluster, asleep
from tests.support import wait_until

ATTR = struct.Struct("IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
SHORT_NS = 100_000
GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
RELEASE = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
needs_slices = pytest.mark.skipif(GETATTR is None or RELEASE < (6, 12), reason="the kernel has no slices to ask for")


def attributes(thread_id: int = 0) -> tuple[int, int, int]:
    """Policy, nice value and slice (ns) of a thread of this process; 0: the calling one."""
    buffer = ctypes.create_string_buffer(ATTR.size)
    assert ctypes.CDLL(None).syscall(GETATTR, thread_id, buffer, ATTR.size, 0) == 0
    _, policy, _, nice, _, slice_ns, _, _ = ATTR.unpack(buffer.raw)
    return policy, nice, slice_ns


def in_a_thread(work: Callable[[], object]) -> object:
    """A thread of its own: what it asks for ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(10)


@needs_slices
def test_a_thread_gets_the_slice_and_keeps_the_rest() -> None:
    before = attributes()

    def ask() -> tuple[bool, tuple[int, int, int], tuple[int, int, int]]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        return ask_for_short_slices(), ask_for_short_slices() and attributes(), attributes()

    assert in_a_thread(ask) == (True, (os.SCHED_OTHER, 5, SHORT_NS), (os.SCHED_OTHER, 5, SHORT_NS))
    assert attributes() == before


@needs_slices
def test_a_thread_that_shall_have_what_nobody_else_wants_keeps_that() -> None:
    def ask() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return ask_for_short_slices(), attributes()[0]

    assert in_a_thread(ask) == (False, os.SCHED_IDLE)


def may_have_a_higher_priority() -> bool:
    def ask() -> bool:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
        except PermissionError:
            return False
        return True

    return bool(in_a_thread(ask))


@needs_slices
def test_a_thread_asks_for_a_higher_priority_too_and_does_without_where_it_may_not_have_one() -> None:
    want = -10 if may_have_a_higher_priority() else attributes()[1]
    assert in_a_thread(lambda: ask_for_short_slices(-10) and attributes()[1:]) == (want, SHORT_NS)
    assert in_a_thread(lambda: ask_for_short_slices(12) and attributes()[1:]) == (12, SHORT_NS)
    with pytest.raises(ValueError, match="nice -21: must be -20 to 19"):
        ask_for_short_slices(-21)


@needs_slices
def test_a_predicate_thread_that_is_busy_has_the_system_s_slices_until_it_sleeps_again() -> None:
    """And its own priority. Method: two nodes in full flow, from one that commits for as long as it takes; then single
    messages."""
    cluster = Cluster(2, nice=-10)
    writer = cluster.writer(0)
    others = set(threading.enumerate())
    cluster.start()
    try:
        threads = [one.native_id or 0 for one in set(threading.enumerate()) - others]
        usual = attributes()[1:]
        prompt = usual[0] - 10 if may_have_a_higher_priority() else usual[0], SHORT_NS

        def slices() -> list[tuple[int, int]]:
            return [attributes(one)[1:] for one in threads]

        def busy() -> bool:
            for _ in range(100):
                writer.write(b"x", timeout_s=30)
            return usual in slices()

        def single() -> bool:
            wait_until(lambda: all(map(asleep, cluster.engines)))
            writer.write(b"x", timeout_s=30)
            return slices() == [prompt, prompt]

        assert len(threads) == 2
        wait_until(busy, 30, interval_s=0)
        wait_until(single, 30)
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
