"""Checks of the machine: Python, kernel, memory, cores, limits."""

from __future__ import annotations

import importlib
import os
import platform
import re
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine, free_bytes
from spindle.cli.checks.files import sockets

KERNEL_MIN = (5, 1)  # F_SEAL_FUTURE_WRITE: memory that applications can map read-only and never otherwise
PYTHON_MIN = (3, 10)
NODE_MEMORY_BYTES = 100_000_000  # resident, default settings and ten topics
FILES_MIN = 256
FILES_GOOD = 1024  # a node has 4 descriptors per endpoint and a few per application
SHM_GOOD_BYTES = 64 << 20


def check_python(_: Machine) -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < PYTHON_MIN:
        return Check("python", FAIL, version, "use Python 3.10 or newer")
    return Check("python", OK, f"{version} ({platform.python_implementation()})")


def check_core(_: Machine) -> Check:
    """The extension modules are there and fit this interpreter."""
    try:
        engine = importlib.import_module("spindle_core.engine")
        return Check("core", OK, f"extension modules in {Path(engine.__file__ or '').parent}")
    except ImportError as error:
        return Check(
            "core",
            FAIL,
            f"the extension modules can't be imported: {error}",
            "build them: `make ext` in the source tree, or install the package again",
        )


def check_kernel(machine: Machine) -> Check:
    release = machine.read("/proc/sys/kernel/osrelease") or platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    if sys.platform != "linux" or not match:
        return Check("kernel", FAIL, f"{sys.platform} {release}", "Spindle needs Linux")
    if (int(match[1]), int(match[2])) < KERNEL_MIN:
        wanted = ".".join(str(part) for part in KERNEL_MIN)
        return Check("kernel", FAIL, release, f"use Linux {wanted} or newer: older ones can't seal shared memory")
    return Check("kernel", OK, release)


def check_memory_files(_: Machine) -> Check:
    """Sealed memfds and eventfds, which carry all shared memory and all waking."""
    import fcntl
    import mmap

    seals = getattr(fcntl, "F_ADD_SEALS", 1033)
    shrink, grow, future_write = 0x2, 0x4, 0x10
    fd = -1
    try:
        fd = os.memfd_create("spindle-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        with mmap.mmap(fd, 4096):
            fcntl.fcntl(fd, seals, shrink | grow | future_write)
            try:
                mmap.mmap(fd, 4096).close()
            except PermissionError:
                pass
            else:
                return Check(
                    "shared memory",
                    FAIL,
                    "a sealed memfd can still be mapped for writing",
                    "use a kernel or sandbox that enforces F_SEAL_FUTURE_WRITE",
                )
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except (OSError, AttributeError) as error:
        return Check(
            "shared memory",
            FAIL,
            f"memfd_create, seals or eventfd refused: {error}",
            "allow memfd_create and eventfd in the container's seccomp profile",
        )
    finally:
        if fd >= 0:
            os.close(fd)
    return Check("shared memory", OK, "memfd with seals, eventfd")


def check_shm_size(machine: Machine) -> Check:
    """Not for Spindle's own memory, which is anonymous: for what runs beside it, and as a sign of a small container."""
    path = machine.root / "dev/shm"
    try:
        free = free_bytes(path)
    except OSError:
        return Check("/dev/shm", WARN, "missing", "Spindle doesn't need it, but multiprocessing does: mount a tmpfs")
    if not os.access(path, os.W_OK):
        return Check("/dev/shm", WARN, "not writable", "Spindle doesn't need it, but others do: make it mode 1777")
    if free < SHM_GOOD_BYTES:
        return Check(
            "/dev/shm",
            WARN,
            f"{free >> 20} MiB free",
            "Spindle doesn't need it, but others do: give the container a larger one (--shm-size)",
        )
    return Check("/dev/shm", OK, f"{free >> 20} MiB free (Spindle's own memory is anonymous)")


def check_memory(machine: Machine) -> Check:
    match = re.search(r"MemAvailable:\s+(\d+) kB", machine.read("/proc/meminfo") or "")
    if not match:
        return Check("memory", WARN, "/proc/meminfo can't be read", "make /proc visible")
    available, source = int(match[1]) * 1024, "available"
    limit, used = machine.read("/sys/fs/cgroup/memory.max"), machine.read("/sys/fs/cgroup/memory.current")
    if limit and used and limit.isdigit() and used.isdigit() and int(limit) - int(used) < available:
        available, source = int(limit) - int(used), "left in this cgroup"
    text = f"{available / 1e9:.1f} GB {source}"
    if available < NODE_MEMORY_BYTES:
        return Check(
            "memory", FAIL, text, f"a node with ten topics takes up to {NODE_MEMORY_BYTES // 10**6} MB: free some"
        )
    if available < 5 * NODE_MEMORY_BYTES:
        return Check("memory", WARN, text, "free some, or make log_capacity in [topics] smaller")
    return Check("memory", OK, text)


def check_huge_pages(machine: Machine) -> Check:
    text = machine.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if text is None:
        return Check("huge pages", OK, "the kernel has no transparent huge pages for shared memory")
    match = re.search(r"\[(\w+)\]", text)
    mode = match[1] if match else text
    if mode in ("always", "force"):
        return Check(
            "huge pages",
            WARN,
            f"shmem_enabled is {mode}: every small mapping takes 2 MiB",
            "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    return Check("huge pages", OK, f"shmem_enabled is {mode}")


def check_cores(machine: Machine) -> Check:
    """Each busy node wants a core for its predicate thread, besides what the applications need."""
    cores: float = len(os.sched_getaffinity(0))
    quota = (machine.read("/sys/fs/cgroup/cpu.max") or "").split()
    limited = ""
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[0]) / int(quota[1]) < cores:
        cores = int(quota[0]) / int(quota[1])
        limited = " (cgroup quota)"
    alive, _, _ = sockets(machine)
    text = f"{cores:g} cores{limited}, {len(alive)} node{'' if len(alive) == 1 else 's'} running"
    if cores < 1:
        return Check("cores", WARN, text, "below one core every message waits for the scheduler: raise the quota")
    if len(alive) > cores:
        return Check(
            "cores",
            WARN,
            text,
            "more nodes than cores: fine for trying things out, but latencies are the scheduler's; set "
            "busy_poll_us = 0 in [core]",
        )
    if cores < 2:
        return Check("cores", WARN, text, "node and applications share one core: set busy_poll_us = 0 in [core]")
    return Check("cores", OK, text)


def check_governor(machine: Machine) -> Check:
    cpus = machine.root / "sys/devices/system/cpu"
    try:
        files = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    except OSError:
        files = []
    governors = sorted({text for f in files if (text := machine.read(str(f.relative_to(machine.root))))})
    if not governors:
        return Check("cpu governor", OK, "not visible (a virtual machine leaves it to its host)")
    if "powersave" in governors:
        return Check(
            "cpu governor",
            WARN,
            ", ".join(governors),
            "slow cores add latency: as root, `cpupower frequency-set -g performance`",
        )
    return Check("cpu governor", OK, ", ".join(governors))


PROMPT = {
    "realtime": "at once, beside busy programs too (real-time priority)",
    "nice": "soon, beside busy programs too (nice {nice})",
    "slice": "soon, unless a node has just worked (short time slices)",
    "": "beside busy programs some milliseconds late",
}


def check_waking(machine: Machine) -> Check:
    """How soon a daemon runs after it is woken, started as this is. Tried on a thread that ends then."""
    from spindle_core.slices import be_prompt  # check_core says if that can't be imported

    realtime, nice = machine.config.realtime_priority, machine.config.nice
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(be_prompt, realtime, nice).result()
    better = f"; at once with LimitRTPRIO={realtime}" if realtime and got != "realtime" else ""
    return Check("waking", OK, PROMPT[got].format(nice=f"{nice:+}") + better)


def check_open_files(_: Machine) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"limit {hard} (soft {soft}, a daemon raises it)"
    if hard < FILES_MIN:
        return Check(
            "open files",
            FAIL,
            text,
            f"a node needs about 4 descriptors per reader and writer: `ulimit -Hn {FILES_GOOD}`",
        )
    if hard < FILES_GOOD:
        return Check(
            "open files", WARN, text, f"enough for about {hard // 8} readers and writers: `ulimit -Hn {FILES_GOOD}`"
        )
    return Check("open files", OK, text)
