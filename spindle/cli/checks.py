"""What of a machine would hurt a node: one function a check, each with its verdict and what to do.

Why functions over a `Machine`: the checks read /proc and /sys below a root that tests replace by a made-up one, so
every verdict can be seen without having such a machine.

Rules: `fail` is what keeps a node from working, `warn` what makes it slow or fragile, `ok` the rest. Whatever isn't
ok comes with advice that can be followed. A check changes nothing and leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import platform
import re
import resource
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

OK = "ok"
WARN = "warn"
FAIL = "fail"

KERNEL_MIN = (5, 1)  # F_SEAL_FUTURE_WRITE: memory that applications can map read-only and never otherwise
PYTHON_MIN = (3, 10)
NODE_MEMORY_BYTES = 100_000_000  # resident, default settings and ten topics
FILES_MIN = 256
FILES_GOOD = 1024  # a node has 4 descriptors per endpoint and a few per application
MEMLOCK_RDMA_BYTES = 64 << 20
SHM_GOOD_BYTES = 64 << 20
SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7) without the closing 0
CLOCK_GOOD_NS = 500
JOURNAL_FREE_MIN_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Check:
    """One result. `advice` is empty where the verdict is ok."""

    name: str
    verdict: str
    detail: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where the checks look. `root` stands in front of /proc and /sys."""

    domain_dir: Path
    root: Path = Path("/")
    journal_dir: Path | None = None
    journal_file_bytes: int = 1 << 30

    def read(self, path: str) -> str | None:
        """Stripped text of a file below root; None if it can't be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


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
        free = _free_bytes(path)
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


def check_locked_memory(machine: Machine) -> Check:
    """RDMA pins what it registers; without an RDMA device nothing is pinned."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    try:
        devices = sorted(path.name for path in (machine.root / "sys/class/infiniband").iterdir())
    except OSError:
        devices = []
    if not devices:
        return Check("locked memory", OK, f"limit {text}; no RDMA device, so none is needed")
    if soft != resource.RLIM_INFINITY and soft < MEMLOCK_RDMA_BYTES:
        return Check(
            "locked memory",
            WARN,
            f"limit {text}; RDMA device {', '.join(devices)}",
            "RDMA pins its memory: set `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit",
        )
    return Check("locked memory", OK, f"limit {text}; RDMA device {', '.join(devices)}")


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


def check_clock(machine: Machine) -> Check:
    """A clock that takes a system call, or worse a slow device, costs at every message."""
    source = machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    rounds = 2000
    begin = time.perf_counter_ns()
    for _ in range(rounds):
        time.monotonic_ns()
    cost_ns = (time.perf_counter_ns() - begin) / rounds
    text = f"{source}, {cost_ns:.0f} ns a reading"
    if source in ("hpet", "acpi_pm", "jiffies", "pit") or cost_ns > CLOCK_GOOD_NS:
        available = machine.read("/sys/devices/system/clocksource/clocksource0/available_clocksource") or "none"
        return Check(
            "clock",
            WARN,
            text,
            f"a slow clock costs at every message; available: {available}. Boot with clocksource=tsc if the "
            "hardware has a stable one",
        )
    return Check("clock", OK, text)


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


def check_runtime_dir(machine: Machine) -> Check:
    """Exists or can be made, belongs to us, and its sockets' paths are short enough."""
    directory = machine.domain_dir.parent
    longest = len(os.fsencode(machine.domain_dir / "node-65535.sock"))
    name = "runtime directory"
    if longest > SOCKET_PATH_BYTES_MAX:
        return Check(
            name,
            FAIL,
            f"{directory}: socket paths of {longest} bytes, limit {SOCKET_PATH_BYTES_MAX}",
            "set runtime_dir or $SPINDLE_RUNTIME_DIR to a shorter path",
        )
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            name,
            FAIL,
            f"{directory} can't be {'written' if existing == directory else 'made'}",
            f"make {existing} writable for user {os.getuid()}, or set $SPINDLE_RUNTIME_DIR",
        )
    if existing == directory:
        found = directory.stat()
        if found.st_uid not in (os.getuid(), 0):
            return Check(
                name,
                FAIL,
                f"{directory} belongs to user {found.st_uid}",
                "somebody else made it: remove it, or set $SPINDLE_RUNTIME_DIR",
            )
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return Check(
                name,
                WARN,
                f"{directory} is writable by everybody",
                f"others can remove or replace sockets: `chmod 700 {directory}`",
            )
    free = _free_bytes(existing)
    if free < 1 << 20:
        return Check(name, WARN, f"{directory}, {free >> 10} KiB free", "the file system is full: free some space")
    return Check(name, OK, f"{directory}, {'writable' if existing == directory else 'can be made'}")


def check_stale(machine: Machine) -> Check:
    """Sockets of dead nodes of any domain."""
    _, stale, foreign = sockets(machine, all_domains=True)
    if foreign:
        return Check(
            "stale files",
            WARN,
            f"{len(foreign)} left over by another user: {_some(foreign)}",
            "their owner must remove them; nodes of yours never do",
        )
    if stale:
        return Check(
            "stale files",
            WARN,
            f"{len(stale)} left over from dead nodes: {_some(stale)}",
            "the next `spindle daemon` of that domain removes them",
        )
    return Check("stale files", OK, "none")


def check_journal(machine: Machine) -> Check:
    directory = machine.journal_dir
    if directory is None:
        return Check("journal", OK, "no directory configured: logged topics are refused on this node")
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check("journal", FAIL, f"{directory} can't be written", f"make it writable for user {os.getuid()}")
    free = _free_bytes(existing)
    kind = _file_system(machine, existing)
    text = f"{directory}, {free / 1e9:.1f} GB free, {kind or 'unknown file system'}"
    if free < JOURNAL_FREE_MIN_BYTES:
        return Check("journal", FAIL, text, "a full disk stops the acknowledgements of logged topics: free some space")
    if kind in ("tmpfs", "ramfs"):
        return Check("journal", WARN, text, "this is memory: the journal doesn't survive a restart of the machine")
    if kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"):
        return Check("journal", WARN, text, "fsync over the network is slow and not always honest: use a local disk")
    if free < 2 * machine.journal_file_bytes:
        return Check(
            "journal", WARN, text, f"less than two files of max_file_size ({machine.journal_file_bytes / 1e9:.1f} GB)"
        )
    return Check("journal", OK, text)


CHECKS: tuple[Callable[[Machine], Check], ...] = (
    check_python,
    check_core,
    check_kernel,
    check_memory_files,
    check_memory,
    check_shm_size,
    check_locked_memory,
    check_huge_pages,
    check_cores,
    check_clock,
    check_governor,
    check_open_files,
    check_runtime_dir,
    check_stale,
    check_journal,
)


def run_checks(machine: Machine) -> list[Check]:
    """All checks, in order. One that itself fails is a warning and doesn't keep the others from running."""
    results = []
    for check in CHECKS:
        try:
            results.append(check(machine))
        except OSError as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            results.append(Check(name, WARN, f"could not be checked: {error}", "look at the rights of that file"))
    return results


def worst(results: list[Check]) -> str:
    """The gravest verdict."""
    verdicts = {result.verdict for result in results}
    return FAIL if FAIL in verdicts else WARN if WARN in verdicts else OK


def sockets(machine: Machine, all_domains: bool = False) -> tuple[list[Path], list[Path], list[Path]]:
    """The nodes' sockets: (somebody listens, nobody listens, nobody listens and they are another user's)."""
    pattern = "domain-*/node-*.sock" if all_domains else f"{machine.domain_dir.name}/node-*.sock"
    alive: list[Path] = []
    stale: list[Path] = []
    foreign: list[Path] = []
    try:
        found = sorted(machine.domain_dir.parent.glob(pattern))
    except OSError:
        found = []
    for path in found:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
                alive.append(path)
            except ConnectionRefusedError:
                (stale if path.lstat().st_uid == os.getuid() else foreign).append(path)
            except FileNotFoundError:
                pass  # it left between listing and asking
            except OSError:
                alive.append(path)  # not allowed or too busy to take us: there is somebody
    return alive, stale, foreign


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _file_system(machine: Machine, path: Path) -> str:
    """Type of the file system that holds `path`, from the longest mount point above it."""
    best, kind = -1, ""
    here = str(path.resolve())
    for line in (machine.read("/proc/self/mounts") or "").splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), parts[1])
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), parts[2]
    return kind


def _some(paths: list[Path]) -> str:
    shown = ", ".join(str(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
