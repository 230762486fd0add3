"""Checks of clocks.

Why they matter: the protocol never compares clocks of two hosts, so no clock can break an order or a promise. But
samples carry the time at which they were written, readers compare that with their own, and certificates begin and end
by the wall clock. How long anybody is waited for is measured with the monotonic clock, which every message reads, too.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import subprocess
import time

from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine

CLOCK_GOOD_NS = 500
SLOW_SOURCES = ("hpet", "acpi_pm", "jiffies", "pit")
ERROR_GOOD_S = 1.0  # the kernel's own bound of its error grows between corrections; beyond this nobody corrects it
OFFSET_GOOD_S = 0.010
ASK_TIMEOUT_S = 2.0
READINGS = 20  # on each core
CORES_MAX = 64

STA_UNSYNC, STA_NANO = 0x0040, 0x2000
TIME_ERROR = 5

# Who corrects clocks, by the name of the process (at most 15 bytes in /proc/PID/comm).
CORRECTORS = {
    "chronyd": "chrony", "ntpd": "ntpd", "systemd-timesyn": "systemd-timesyncd", "ptp4l": "ptp4l",
    "phc2sys": "phc2sys", "timemaster": "timemaster", "openntpd": "OpenNTPD",
}  # fmt: skip


class Timex(ctypes.Structure):
    """struct timex of adjtimex(2)."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("constant", ctypes.c_long),
        ("precision", ctypes.c_long), ("tolerance", ctypes.c_long), ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long), ("pps", ctypes.c_long * 2), ("shift", ctypes.c_int), ("more", ctypes.c_long * 5),
        ("tai", ctypes.c_int), ("padding", ctypes.c_int * 11),
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class KernelClock:
    """What the kernel says of its wall clock; errors in seconds."""

    synchronised: bool
    offset_s: float  # that is still being corrected
    error_s: float  # as estimated by who corrects it
    error_max_s: float


def kernel_clock() -> KernelClock:
    """Asks the kernel, and changes nothing. Raises OSError."""
    timex = Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    unit = 1e-9 if timex.status & STA_NANO else 1e-6
    return KernelClock(state != TIME_ERROR and not timex.status & STA_UNSYNC, timex.offset * unit,
                       timex.esterror / 1e6, timex.maxerror / 1e6)


def correctors(machine: Machine) -> list[str]:
    """Who corrects the clock here, as far as it can be seen."""
    running = {machine.read(f"/proc/{name}/comm") for name in machine.names("/proc") if name.isdigit()}
    return [text for name, text in CORRECTORS.items() if name in running]


def chrony_offset_s() -> float | None:
    """How far chrony believes the clock to be from the right time; None if it can't be asked."""
    try:
        answer = subprocess.run(["chronyc", "-c", "tracking"], capture_output=True, text=True, check=True,
                                timeout=ASK_TIMEOUT_S).stdout
        return float(answer.split(",")[4])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def check_clock(machine: Machine) -> Check:
    """A clock that takes a system call, or worse a slow device, costs at every message."""
    source = machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    rounds = 2000
    begin = time.perf_counter_ns()
    for _ in range(rounds):
        time.monotonic_ns()
    cost_ns = (time.perf_counter_ns() - begin) / rounds
    text = f"{source}, {cost_ns:.0f} ns a reading"
    if source in SLOW_SOURCES or cost_ns > CLOCK_GOOD_NS:
        available = machine.read("/sys/devices/system/clocksource/clocksource0/available_clocksource") or "none"
        return Check(
            "clock", WARN, text,
            f"a slow clock costs at every message; available: {available}. Boot with clocksource=tsc if the hardware "
            "has a stable one",
        )  # fmt: skip
    return Check("clock", OK, text)


def readings_on_each_core() -> list[tuple[int, int]]:
    """(core, monotonic time) of readings made one after the other on every core that this process may use."""
    allowed = os.sched_getaffinity(0)
    found = []
    try:
        for core in [*sorted(allowed)[:CORES_MAX]] * 2:
            os.sched_setaffinity(0, {core})
            found += [(core, time.monotonic_ns()) for _ in range(READINGS)]
    finally:
        os.sched_setaffinity(0, allowed)
    return found


def check_monotonic(_: Machine) -> Check:
    """Cores must agree on the monotonic clock: by it a member is taken for lost."""
    found = readings_on_each_core()
    cores = len({core for core, _ in found})
    for (core, before_ns), (next_core, after_ns) in itertools.pairwise(found):
        if after_ns < before_ns:
            return Check(
                "monotonic clock", FAIL,
                f"core {next_core} is {before_ns - after_ns} ns behind core {core}",
                "the cores' time stamp counters disagree: boot with clocksource=hpet, or ask whoever runs the "
                "hypervisor",
            )  # fmt: skip
    text = f"goes on over {cores} core{'' if cores == 1 else 's'}"
    return Check("monotonic clock", OK, f"{text}, resolution {time.clock_getres(time.CLOCK_MONOTONIC) * 1e9:.0f} ns")


def check_synchronised(machine: Machine) -> Check:
    """Whether timestamps of this host mean something on another one."""
    name, others = "synchronisation", bool(machine.config.listen or machine.config.contacts)
    clock, by = kernel_clock(), correctors(machine)
    who = ", ".join(by) or "nobody that can be seen from here"
    advice = ("install chrony, or enable systemd-timesyncd, on every host: timestamps of samples of different hosts "
              "can't be compared, and certificates begin and end by this clock. The order of messages doesn't depend "
              "on it")
    if not clock.synchronised:
        text = f"not synchronised; corrected by {who}"
        if not others:
            return Check(name, OK, f"{text} (matters with other hosts only)")
        return Check(name, WARN, text, f"wait until {who} has found the time, or look at its servers" if by else advice)
    chrony_s = chrony_offset_s() if "chrony" in by and machine.root.samefile("/") else None
    offset_s = clock.offset_s if chrony_s is None else chrony_s
    text = (f"synchronised by {who}; offset {_time_text(offset_s)}, error {_time_text(clock.error_s)} estimated, "
            f"{_time_text(clock.error_max_s)} at most")
    if others and (abs(offset_s) > OFFSET_GOOD_S or clock.error_max_s > ERROR_GOOD_S):
        return Check(name, WARN, text, "look at its servers (`chronyc sources`, `timedatectl timesync-status`): "
                                       "timestamps of samples are wrong by so much")
    return Check(name, OK, text)


def _time_text(seconds: float) -> str:
    size = abs(seconds)
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if size * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
