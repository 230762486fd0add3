"""Goal: the doctor tells clocks that are slow, disagree or are wrong from those that aren't.

Method: made-up /sys and /proc, answers of the kernel and of chrony replaced; on the real machine only that the kernel
answers what can be.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from spindle.cli.checks import clocks
from spindle.cli.checks.base import FAIL, OK, WARN, Machine
from spindle.cli.checks.clocks import KernelClock
from spindle.config.settings import NodeConfig
from tests.spindle.cli.checks.support import expect, put

GOOD = KernelClock(True, 0.000_012, 0.000_150, 0.020)


@pytest.fixture
def with_others(machine: Machine) -> Machine:
    return dataclasses.replace(machine, config=NodeConfig(node_id=1, listen="127.0.0.1:7402", contacts=("a", "b")))


def test_clock(machine: Machine) -> None:
    directory = "/sys/devices/system/clocksource/clocksource0"
    put(machine, f"{directory}/current_clocksource", "hpet")
    put(machine, f"{directory}/available_clocksource", "tsc hpet")
    expect(clocks.check_clock(machine), WARN, "hpet", "tsc hpet")


def test_cores_that_disagree(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(clocks.check_monotonic(machine), OK, "goes on over")
    monkeypatch.setattr(clocks, "readings_on_each_core", lambda: [(0, 100), (0, 101), (1, 61), (1, 62)])
    expect(clocks.check_monotonic(machine), FAIL, "core 1 is 40 ns behind core 0", "hpet")


def test_readings_leave_the_process_where_it_may_run() -> None:
    before = os.sched_getaffinity(0)
    assert {core for core, _ in clocks.readings_on_each_core()} <= before == os.sched_getaffinity(0)


def test_the_kernel_answers() -> None:
    found = clocks.kernel_clock()
    assert 0 <= found.error_s < 1e5 and 0 <= found.error_max_s < 1e5 and abs(found.offset_s) < 10


def test_synchronisation(with_others: Machine, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel_says(clock: KernelClock) -> None:
        monkeypatch.setattr(clocks, "kernel_clock", lambda: clock)

    kernel_says(dataclasses.replace(GOOD, synchronised=False))
    expect(clocks.check_synchronised(with_others), WARN, "not synchronised", "nobody that can be seen", "chrony",
           "order of messages doesn't depend")
    expect(clocks.check_synchronised(machine), OK, "matters with other hosts only")
    put(machine, "/proc/812/comm", "systemd-timesyn")
    put(machine, "/proc/self/comm", "pytest")
    expect(clocks.check_synchronised(with_others), WARN, "wait until systemd-timesyncd has found the time")
    kernel_says(GOOD)
    expect(clocks.check_synchronised(with_others), OK, "by systemd-timesyncd", "offset 12 us", "150 us estimated",
           "20 ms at most")
    kernel_says(dataclasses.replace(GOOD, offset_s=-0.25))
    expect(clocks.check_synchronised(with_others), WARN, "offset -250 ms", "timestamps of samples")
    kernel_says(dataclasses.replace(GOOD, error_max_s=16.0))
    expect(clocks.check_synchronised(with_others), WARN, "16 s at most")
    expect(clocks.check_synchronised(machine), OK)


def test_chrony_knows_better_than_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "chronyc"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clocks.chrony_offset_s() is None, "it isn't there"
    answer = "C0000201,ntp.example,3,1795301442.1,-0.000025310,0.000009,0.00003,-12.1,0.02,0.1,0.03,0.001,64.4,Normal"
    for text, offset_s in ((answer, -0.00002531), ("506 Cannot talk to daemon", None)):
        command.write_text(f"#!/bin/sh\necho '{text}'\n")
        command.chmod(0o755)
        assert clocks.chrony_offset_s() == offset_s
