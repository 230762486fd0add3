"""`bench wakeup`: what one doorbell costs on this machine, the limit beside which paced latency is read.

A paced message wakes one thread at every node, on cores that have nothing to do. On a virtual machine most of a one-way
latency is these wake-ups: the call that rings, because it interrupts another core, and the way out of idle.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from spindle_lab.bench import pacing
from spindle_lab.bench.crew import BenchFailed


def run(rounds: int = 3000, gap_us: float = 1000.0) -> dict[str, Any]:
    """Rings an eventfd `rounds` times, at least `gap_us` apart, for a thread that blocks on it: three times over, with
    both threads where the scheduler puts them, on one core, and each on a core of its own (not on a machine of one).

    The three differ by several times: a scheduler that puts both on one core shows no interrupt of an idle one, which a
    group of nodes on several cores can't do without. Raises BenchFailed.
    """
    cores = sorted(os.sched_getaffinity(0))
    result: dict[str, Any] = {"rounds": rounds, "gap_us": gap_us, **series(rounds, gap_us)}
    result["same_core"] = series(rounds, gap_us, cores[:1])
    if len(cores) > 1:
        result["idle_core"] = series(rounds, gap_us, cores[:2])
    return result


def series(rounds: int, gap_us: float, cores: Sequence[int] = ()) -> dict[str, dict[str, float]]:
    """One series, the ringing thread on the first of the `cores`, the one that waits on the last."""
    from spindle_lab.bench.wakeup import ring, wait_rounds

    rung_ns = memoryview(bytearray(8)).cast("Q")
    woken_ns = memoryview(bytearray(8 * rounds)).cast("Q")
    calls_ns: list[int] = []
    got: list[int] = []

    def wait() -> None:
        pinned(cores[-1:])
        got.append(wait_rounds(fd, rung_ns, woken_ns))

    def ring_all() -> None:
        pinned(cores[:1])
        pacing.precise_timers()
        for number in range(rounds):
            pacing.sleep_ns(int(gap_us * 1000))
            calls_ns.append(ring(fd, rung_ns))
            while not woken_ns[number] and waiting.is_alive():  # two rings before it runs would be heard as one
                pacing.sleep_ns(20_000)

    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    waiting = threading.Thread(target=wait, daemon=True)
    ringing = threading.Thread(target=ring_all, daemon=True)  # of its own, as a thread stays where it is pinned
    try:
        waiting.start()
        ringing.start()
        ringing.join()
        waiting.join()
    finally:
        os.close(fd)
    if got != [rounds]:
        raise BenchFailed(f"{got} of {rounds} rings were heard in time: the machine is too busy for this")
    return {"ring_us": percentiles_us(calls_ns), "wakeup_us": percentiles_us(list(woken_ns))}


def pinned(cores: Sequence[int]) -> None:
    """Keeps the calling thread on `cores`, if any are given."""
    if cores:
        os.sched_setaffinity(threading.get_native_id(), cores)


def percentiles_us(values_ns: list[int]) -> dict[str, float]:
    ordered = sorted(values_ns)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000, 2)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
