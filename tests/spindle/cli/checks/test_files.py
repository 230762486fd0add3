"""Goal: the doctor sees directories that a node can't use, and what dead nodes left behind.

Method: directories below a temporary root, sockets that nobody listens at.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path

import pytest

from spindle.cli.checks import files
from spindle.cli.checks.base import FAIL, OK, WARN, Machine
from spindle.cli.checks.files import sockets
from spindle.config.settings import AccessRule, NodeConfig
from tests.spindle.cli.checks.support import expect, put
from tests.spindle.stand_in import StandInNode


def leave_socket(directory: Path, name: str) -> Path:
    """A socket as a killed node leaves it: nobody listens."""
    directory.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(directory / name))
    return directory / name


def test_runtime_directory(machine: Machine, tmp_path: Path) -> None:
    expect(files.check_runtime_dir(machine), OK, "writable")
    expect(files.check_runtime_dir(Machine(tmp_path / "new/spindle/domain-0")), OK, "can be made")
    assert not (tmp_path / "new").exists(), "a check makes nothing"
    expect(files.check_runtime_dir(Machine(tmp_path / ("x" * 100) / "domain-0")), FAIL, "limit 107", "shorter")
    (tmp_path / "run").chmod(0o777)
    expect(files.check_runtime_dir(machine), WARN, "writable by everybody", "chmod 700")
    (tmp_path / "file").touch()
    expect(files.check_runtime_dir(Machine(tmp_path / "file/domain-0")), FAIL, "can't be written")


def test_somebody_elses_runtime_directory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "getuid", lambda: os.geteuid() + 4711)
    found = files.check_runtime_dir(machine)
    if os.geteuid() != 0:  # root's directory is everybody's to trust
        expect(found, FAIL, "belongs to user")


def test_stale_sockets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(files.check_stale(machine), OK, "none")
    left = leave_socket(machine.domain_dir.parent / "domain-9", "node-1.sock")
    expect(files.check_stale(machine), WARN, "1 left over", str(left), "spindle daemon")
    assert left.exists(), "a check removes nothing"
    assert sockets(machine) == ([], [], []), "of another domain"
    monkeypatch.setattr(files.os, "getuid", lambda: os.geteuid() + 4711)
    expect(files.check_stale(machine), WARN, "another user", "owner")


def test_names_in_the_access_list(machine: Machine) -> None:
    assert files.check_access(machine) is None, "nobody is named"
    known = NodeConfig(allow_users=("root",), access_rules=(AccessRule(user="root"), AccessRule(uid=4711)))
    expect(files.check_access(dataclasses.replace(machine, config=known)), OK, "known")
    mistaken = NodeConfig(allow_users=("root", "rooot"), node_users=("4711", "roott"),
                          access_rules=(AccessRule(group="wheeel"), AccessRule(user="rooot")))
    found = files.check_access(dataclasses.replace(machine, config=mistaken))
    expect(found, WARN, 'users: "rooot"', 'nodes: "roott"', 'group: "wheeel"', 'user: "rooot"')
    assert found is not None and '"root"' not in found.detail and "4711" not in found.detail


def test_live_sockets_are_not_stale(stand_in: StandInNode, runtime_dir: Path) -> None:
    machine = Machine(runtime_dir / "domain-0")
    leave_socket(runtime_dir / "domain-0", "node-8.sock")
    alive, stale, foreign = sockets(machine)
    assert [path.name for path in alive] == ["node-7.sock"]
    assert [path.name for path in stale] == ["node-8.sock"]
    assert foreign == []


def test_journal(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(files.check_journal(machine), OK, "refused")

    def with_journal(file_bytes: int = 1 << 20) -> Machine:
        config = NodeConfig(journal_dir=tmp_path / "log", journal_max_file_size=file_bytes)
        return Machine(machine.domain_dir, tmp_path, config)

    expect(files.check_journal(with_journal()), OK, "GB free")
    expect(files.check_journal(with_journal(1 << 40)), WARN, "max_file_size")
    put(machine, "/proc/self/mounts", f"/dev/a / ext4 rw 0 0\nnone {tmp_path} tmpfs rw 0 0")
    expect(files.check_journal(with_journal()), WARN, "tmpfs", "restart")
    put(machine, "/proc/self/mounts", f"host:/x {tmp_path} nfs4 rw 0 0\n/dev/a / ext4 rw 0 0")
    expect(files.check_journal(with_journal()), WARN, "nfs4", "local disk")
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    expect(files.check_journal(with_journal()), FAIL, "free some space")
    (tmp_path / "file").touch()
    below_a_file = NodeConfig(journal_dir=tmp_path / "file/log")
    expect(files.check_journal(Machine(machine.domain_dir, tmp_path, below_a_file)), FAIL, "writable")
