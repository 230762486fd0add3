"""The heartbeat: made by the predicate thread, for as long as the control thread gives signs of life.

Method: engines with their threads, and a main thread that plays the control thread; step by step with given looks.
"""

from __future__ import annotations

import ctypes

import pytest

from tests.spindle_core.cluster import Cluster
from tests.support import wait_until

MS = 1_000_000


def test_it_beats_while_somebody_keeps_the_interpreter_busy() -> None:
    """Goal: neither the control thread's work nor the GIL is in its way. Method: one vouching; then the interpreter is
    held for 0.3 s by a call that doesn't release it."""
    cluster = Cluster(2)
    cluster.start()
    try:
        mine, theirs = cluster.epochs
        mine.vouch(5 * MS, 1000)
        wait_until(lambda: theirs.get(0, "heartbeat") > 1)
        before = theirs.get(0, "heartbeat")
        ctypes.PyDLL(None).usleep(300_000)
        assert theirs.get(0, "heartbeat") >= before + 5
        assert theirs.get(1, "heartbeat") == 0, "nobody has vouched for that one"
    finally:
        cluster.stop()


def test_it_stands_still_when_the_control_thread_hangs() -> None:
    """Goal: so many beats without a sign of life and no more; the next sign lets it go on. Method: vouch, wait until it
    stands still at the limit, vouch again."""
    cluster = Cluster(2)
    cluster.start()
    try:
        mine, theirs = cluster.epochs
        for limit in (20, 40):
            mine.vouch(1 * MS, 20)
            wait_until(lambda limit=limit: theirs.get(0, "heartbeat") == limit)
            laps = cluster.engines[0].counters.snapshot()["laps"]
            wait_until(lambda laps=laps: cluster.engines[0].counters.snapshot()["laps"] > laps + 10)
            assert theirs.get(0, "heartbeat") == limit
    finally:
        cluster.stop()


@pytest.mark.parametrize("tcp", [False, True])
def test_one_beat_a_time_whoever_steps(tcp: bool) -> None:
    """Goal: many passes in one interval make one beat. Method: passes by hand, with an interval that doesn't end, then
    with one that has ended at each."""
    cluster = Cluster(2, tcp=tcp)
    mine, theirs = cluster.epochs
    mine.vouch(60_000 * MS, 100)
    for _ in range(50):
        cluster.engines[0].step_once()
    cluster.settle()
    assert theirs.get(0, "heartbeat") == 1
    mine.vouch(1, 7)
    for _ in range(50):
        cluster.engines[0].step_once()
    cluster.settle()
    assert theirs.get(0, "heartbeat") == 8


@pytest.mark.parametrize(("between_ns", "beats_max"), [(0, 1), (60_000_000_001, 1), (1, 0), (1, 1 << 32)])
def test_limits(between_ns: int, beats_max: int) -> None:
    with pytest.raises(ValueError, match="a heartbeat every"):
        Cluster(1).epochs[0].vouch(between_ns, beats_max)
