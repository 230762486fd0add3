"""`bench wakeup`: what one doorbell costs on this machine, the limit beside which paced latency is read.

A paced message wakes one thread at every node, on cores that have nothing to do. On a virtual machine most of a one-way
latency is these wake-ups: the call that rings, because it interrupts another core, and the way out of idle.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from spindle_lab.bench import pacing
from spindle_lab.bench.crew import BenchFailed


def run(rounds: int = 3000, gap_us: float = 1000.0) -> dict[str, Any]:
    """Rings an eventfd `rounds` times, at least `gap_us` apart, for a thread that blocks on it. Raises BenchFailed."""
    from spindle_lab.bench.wakeup import ring, wait_rounds

    pacing.precise_timers()
    rung_ns = memoryview(bytearray(8)).cast("Q")
    woken_ns = memoryview(bytearray(8 * rounds)).cast("Q")
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(wait_rounds(fd, rung_ns, woken_ns)), daemon=True)
    thread.start()
    calls_ns = []
    try:
        for number in range(rounds):
            pacing.sleep_ns(int(gap_us * 1000))
            calls_ns.append(ring(fd, rung_ns))
            while not woken_ns[number] and thread.is_alive():  # two rings before it runs would be heard as one
                pacing.sleep_ns(20_000)
        thread.join()
    finally:
        os.close(fd)
    if got != [rounds]:
        raise BenchFailed(f"{got} of {rounds} rings were heard in time: the machine is too busy for this")
    return {
        "rounds": rounds,
        "gap_us": gap_us,
        "ring_us": percentiles_us(calls_ns),
        "wakeup_us": percentiles_us(list(woken_ns)),
    }


def percentiles_us(values_ns: list[int]) -> dict[str, float]:
    ordered = sorted(values_ns)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000, 2)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
