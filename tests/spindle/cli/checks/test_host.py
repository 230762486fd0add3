"""Goal: the doctor sees what of a machine hurts a node, and calls a sound one sound.

Method: made-up /proc and /sys below a temporary root, limits replaced.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spindle.cli.checks import host
from spindle.cli.checks.base import FAIL, OK, WARN, Machine
from spindle_core import slices
from tests.spindle.cli.checks.support import expect, put


@pytest.mark.parametrize(
    ("release", "verdict"), [("6.1.0-18-amd64", OK), ("5.1.0", OK), ("5.0.21", FAIL), ("4.19", FAIL), ("odd", FAIL)]
)
def test_kernel(machine: Machine, release: str, verdict: str) -> None:
    put(machine, "/proc/sys/kernel/osrelease", release)
    expect(host.check_kernel(machine), verdict, release)


@pytest.mark.parametrize(
    ("kb", "limit", "used", "verdict", "part"),
    [
        (8_000_000, "max", "0", OK, "8.2 GB available"),
        (300_000, "max", "0", WARN, "log_capacity"),
        (50_000, "max", "0", FAIL, "100 MB"),
        (8_000_000, "60000000", "10000000", FAIL, "left in this cgroup"),
    ],
)
def test_memory(machine: Machine, kb: int, limit: str, used: str, verdict: str, part: str) -> None:
    put(machine, "/proc/meminfo", f"MemTotal: 9 kB\nMemAvailable:   {kb} kB")
    put(machine, "/sys/fs/cgroup/memory.max", limit)
    put(machine, "/sys/fs/cgroup/memory.current", used)
    expect(host.check_memory(machine), verdict, part)


def test_no_proc(machine: Machine) -> None:
    expect(host.check_memory(machine), WARN, "/proc/meminfo")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("always within_size advise [never] deny force", OK), ("always within_size [advise] never deny force", OK),
     ("[always] within_size advise never deny force", WARN), (None, OK)],
)  # fmt: skip
def test_huge_pages(machine: Machine, text: str | None, verdict: str) -> None:
    if text is not None:
        put(machine, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", text)
    expect(host.check_huge_pages(machine), verdict)


@pytest.mark.parametrize(
    ("cores", "quota", "nodes", "verdict", "part"),
    [
        (4, "max 100000", 1, OK, "4 cores, 1 node running"),
        (1, None, 1, WARN, "share one core"),
        (2, None, 3, WARN, "more nodes than cores"),
        (8, "50000 100000", 0, WARN, "below one core"),
    ],
)
def test_cores(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    quota: str | None,
    nodes: int,
    verdict: str,
    part: str,
) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(host, "sockets", lambda _: ([Path("s")] * nodes, [], []))
    if quota is not None:
        put(machine, "/sys/fs/cgroup/cpu.max", quota)
    expect(host.check_cores(machine), verdict, part)


@pytest.mark.parametrize(
    ("got", "part"),
    [
        ("realtime", "at once, beside busy programs too (real-time priority)"),
        ("nice", "(nice -10); at once with LimitRTPRIO=1"),
        ("slice", "unless a node has just worked"),
        ("", "some milliseconds late"),
    ],
)
def test_waking(machine: Machine, monkeypatch: pytest.MonkeyPatch, got: str, part: str) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(slices, "be_prompt", lambda *wanted: [asked.append(wanted), got][1])
    expect(host.check_waking(machine), OK, part)
    assert asked == [(1, -10)]


def test_waking_is_tried_on_a_thread_of_its_own(machine: Machine) -> None:
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert host.check_waking(machine).verdict == OK
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())) == before


def test_governor(machine: Machine) -> None:
    expect(host.check_governor(machine), OK, "virtual machine")
    put(machine, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    expect(host.check_governor(machine), OK, "performance")
    put(machine, "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    expect(host.check_governor(machine), WARN, "powersave", "cpupower")


@pytest.mark.parametrize(("hard", "verdict"), [(128, FAIL), (512, WARN), (1 << 20, OK)])
def test_open_files(machine: Machine, monkeypatch: pytest.MonkeyPatch, hard: int, verdict: str) -> None:
    monkeypatch.setattr(host.resource, "getrlimit", lambda _: (64, hard))
    expect(host.check_open_files(machine), verdict, str(hard))


def test_missing_core_is_seen(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "spindle_core.engine", None)
    expect(host.check_core(machine), FAIL, "make ext")


def test_small_or_missing_dev_shm(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda _: 1 << 20)
    expect(host.check_shm_size(machine), WARN, "1 MiB free", "--shm-size")
    monkeypatch.undo()
    (machine.root / "dev/shm").rmdir()
    expect(host.check_shm_size(machine), WARN, "missing")
