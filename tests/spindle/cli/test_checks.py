"""Goal: the doctor sees every trouble that it knows, advises on it, and calls a sound machine sound.

Method: made-up /proc and /sys below a temporary root, limits replaced; on the real machine only that all checks run and
leave nothing behind.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from spindle.cli import checks
from spindle.cli.checks import FAIL, OK, WARN, Check, Machine, run_checks, sockets, worst
from tests.spindle.cli.support import Cli
from tests.spindle.stand_in import StandInNode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return Machine(tmp_path / "run/domain-0", root=tmp_path)


def put(machine: Machine, path: str, text: str) -> None:
    file = machine.root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def expect(result: Check, verdict: str, *parts: str) -> None:
    assert result.verdict == verdict, result
    assert bool(result.advice) == (verdict != OK), "advice where it isn't ok, and only there"
    for part in parts:
        assert part in f"{result.detail} {result.advice}", result


def leave_socket(directory: Path, name: str) -> Path:
    """A socket as a killed node leaves it: nobody listens."""
    directory.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(directory / name))
    return directory / name


@pytest.mark.parametrize(
    ("release", "verdict"), [("6.1.0-18-amd64", OK), ("5.1.0", OK), ("5.0.21", FAIL), ("4.19", FAIL), ("odd", FAIL)]
)
def test_kernel(machine: Machine, release: str, verdict: str) -> None:
    put(machine, "/proc/sys/kernel/osrelease", release)
    expect(checks.check_kernel(machine), verdict, release)


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
    expect(checks.check_memory(machine), verdict, part)


def test_no_proc(machine: Machine) -> None:
    expect(checks.check_memory(machine), WARN, "/proc/meminfo")


def test_locked_memory_matters_with_rdma_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (65536, 65536))
    expect(checks.check_locked_memory(machine), OK, "64 KiB", "no RDMA device")
    put(machine, "/sys/class/infiniband/mlx5_0/node_type", "1")
    expect(checks.check_locked_memory(machine), WARN, "mlx5_0", "ulimit -l unlimited")
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (checks.resource.RLIM_INFINITY,) * 2)
    expect(checks.check_locked_memory(machine), OK, "unlimited")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("always within_size advise [never] deny force", OK), ("always within_size [advise] never deny force", OK),
     ("[always] within_size advise never deny force", WARN), (None, OK)],
)  # fmt: skip
def test_huge_pages(machine: Machine, text: str | None, verdict: str) -> None:
    if text is not None:
        put(machine, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", text)
    expect(checks.check_huge_pages(machine), verdict)


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
    monkeypatch.setattr(checks.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(checks, "sockets", lambda _: ([Path("s")] * nodes, [], []))
    if quota is not None:
        put(machine, "/sys/fs/cgroup/cpu.max", quota)
    expect(checks.check_cores(machine), verdict, part)


def test_clock(machine: Machine) -> None:
    directory = "/sys/devices/system/clocksource/clocksource0"
    put(machine, f"{directory}/current_clocksource", "hpet")
    put(machine, f"{directory}/available_clocksource", "tsc hpet")
    expect(checks.check_clock(machine), WARN, "hpet", "tsc hpet")


def test_governor(machine: Machine) -> None:
    expect(checks.check_governor(machine), OK, "virtual machine")
    put(machine, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    expect(checks.check_governor(machine), OK, "performance")
    put(machine, "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    expect(checks.check_governor(machine), WARN, "powersave", "cpupower")


@pytest.mark.parametrize(("hard", "verdict"), [(128, FAIL), (512, WARN), (1 << 20, OK)])
def test_open_files(machine: Machine, monkeypatch: pytest.MonkeyPatch, hard: int, verdict: str) -> None:
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (64, hard))
    expect(checks.check_open_files(machine), verdict, str(hard))


def test_runtime_directory(machine: Machine, tmp_path: Path) -> None:
    expect(checks.check_runtime_dir(machine), OK, "writable")
    expect(checks.check_runtime_dir(Machine(tmp_path / "new/spindle/domain-0")), OK, "can be made")
    assert not (tmp_path / "new").exists(), "a check makes nothing"
    expect(checks.check_runtime_dir(Machine(tmp_path / ("x" * 100) / "domain-0")), FAIL, "limit 107", "shorter")
    (tmp_path / "run").chmod(0o777)
    expect(checks.check_runtime_dir(machine), WARN, "writable by everybody", "chmod 700")
    (tmp_path / "file").touch()
    expect(checks.check_runtime_dir(Machine(tmp_path / "file/domain-0")), FAIL, "can't be written")


def test_somebody_elses_runtime_directory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.os, "getuid", lambda: os.geteuid() + 4711)
    found = checks.check_runtime_dir(machine)
    if os.geteuid() != 0:  # root's directory is everybody's to trust
        expect(found, FAIL, "belongs to user")


def test_stale_sockets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(checks.check_stale(machine), OK, "none")
    left = leave_socket(machine.domain_dir.parent / "domain-9", "node-1.sock")
    expect(checks.check_stale(machine), WARN, "1 left over", str(left), "spindle daemon")
    assert left.exists(), "a check removes nothing"
    assert sockets(machine) == ([], [], []), "of another domain"
    monkeypatch.setattr(checks.os, "getuid", lambda: os.geteuid() + 4711)
    expect(checks.check_stale(machine), WARN, "another user", "owner")


def test_live_sockets_are_not_stale(stand_in: StandInNode, runtime_dir: Path) -> None:
    machine = Machine(runtime_dir / "domain-0")
    leave_socket(runtime_dir / "domain-0", "node-8.sock")
    alive, stale, foreign = sockets(machine)
    assert [path.name for path in alive] == ["node-7.sock"]
    assert [path.name for path in stale] == ["node-8.sock"]
    assert foreign == []


def test_journal(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(checks.check_journal(machine), OK, "refused")

    def with_journal(file_bytes: int = 1000) -> Machine:
        return Machine(machine.domain_dir, tmp_path, tmp_path / "log", file_bytes)

    expect(checks.check_journal(with_journal()), OK, "GB free")
    expect(checks.check_journal(with_journal(1 << 60)), WARN, "max_file_size")
    put(machine, "/proc/self/mounts", f"/dev/a / ext4 rw 0 0\nnone {tmp_path} tmpfs rw 0 0")
    expect(checks.check_journal(with_journal()), WARN, "tmpfs", "restart")
    put(machine, "/proc/self/mounts", f"host:/x {tmp_path} nfs4 rw 0 0\n/dev/a / ext4 rw 0 0")
    expect(checks.check_journal(with_journal()), WARN, "nfs4", "local disk")
    monkeypatch.setattr(checks, "_free_bytes", lambda _: 1000)
    expect(checks.check_journal(with_journal()), FAIL, "free some space")
    (tmp_path / "file").touch()
    expect(checks.check_journal(Machine(machine.domain_dir, tmp_path, tmp_path / "file/log")), FAIL, "writable")


def test_missing_core_is_seen(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "spindle_core.engine", None)
    expect(checks.check_core(machine), FAIL, "make ext")


def test_small_or_missing_dev_shm(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_free_bytes", lambda _: 1 << 20)
    expect(checks.check_shm_size(machine), WARN, "1 MiB free", "--shm-size")
    monkeypatch.undo()
    (machine.root / "dev/shm").rmdir()
    expect(checks.check_shm_size(machine), WARN, "missing")


def test_a_failing_check_does_not_stop_the_others(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_odd_thing(_: Machine) -> Check:
        raise PermissionError(13, "no", "/proc/odd")

    monkeypatch.setattr(checks, "CHECKS", (check_odd_thing, checks.check_python))
    odd, python = run_checks(machine)
    expect(odd, WARN, "could not be checked", "/proc/odd")
    assert odd.name == "odd thing" and python.verdict == OK


def test_worst() -> None:
    def one(verdict: str) -> Check:
        return Check("x", verdict, "")

    assert worst([one(OK)]) == OK
    assert worst([one(OK), one(WARN)]) == WARN
    assert worst([one(WARN), one(FAIL), one(OK)]) == FAIL


def test_doctor_on_this_machine(cli: Cli, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    result = cli("doctor", "--json", "--runtime-dir", tmp_path / "run")
    found = result.json
    assert [one["name"] for one in found["checks"]][:3] == ["python", "core", "kernel"]
    assert len(found["checks"]) == len(checks.CHECKS)
    assert result.code == (1 if found["verdict"] == FAIL else 0)
    assert set(tmp_path.iterdir()) == before
    shown = cli("doctor", "--runtime-dir", tmp_path / "run").out
    good = {one["name"] for one in found["checks"] if one["verdict"] == OK}
    counted = int(re.findall(r"\b(\d+) ok", shown)[-1])
    assert counted in (len(good - {"clock"}), len(good | {"clock"})), "the clock's cost is measured anew"


def test_doctor_fails_with_exit_code(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "n.toml").write_text(f"[journal]\ndir = '{tmp_path}/n.toml/x'\n")
    result = cli("doctor", "-c", tmp_path / "n.toml")
    assert result.code == 1 and "→ make it writable" in result.out
