"""Goal: all checks run, whatever one of them does; the doctor shows them, and its exit code is the gravest verdict.

Method: checks made up for it; on the real machine only that all run and leave nothing behind.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spindle.cli import checks
from spindle.cli.checks import FAIL, OK, SECTIONS, WARN, Check, Machine, host, run_checks, worst
from spindle.cli.doctor import HEADINGS
from tests.spindle.cli.checks.support import expect
from tests.spindle.cli.support import Cli


def test_a_failing_check_does_not_stop_the_others(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_odd_thing(_: Machine) -> Check:
        raise PermissionError(13, "no", "/proc/odd")

    def check_what_does_not_matter(_: Machine) -> None:
        return None

    of_files = (check_odd_thing, check_what_does_not_matter)
    monkeypatch.setattr(checks, "SECTIONS", {"files": of_files, "machine": (host.check_python,)})
    odd, python = run_checks(machine)
    expect(odd, WARN, "could not be checked", "/proc/odd")
    assert (odd.name, odd.section) == ("odd thing", "files")
    assert (python.verdict, python.section) == (OK, "machine")


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
    assert list(dict.fromkeys(one["section"] for one in found["checks"])) == list(SECTIONS) == list(HEADINGS)
    assert result.code == (1 if found["verdict"] == FAIL else 0)
    assert set(tmp_path.iterdir()) == before
    shown = cli("doctor", "--runtime-dir", tmp_path / "run").out
    assert [line for line in shown.splitlines() if line in HEADINGS.values()] == list(HEADINGS.values())
    good = {one["name"] for one in found["checks"] if one["verdict"] == OK}
    counted = int(re.findall(r"\b(\d+) ok", shown)[-1])
    assert counted in (len(good - {"clock"}), len(good | {"clock"})), "the clock's cost is measured anew"


def test_doctor_fails_with_exit_code(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "n.toml").write_text(f"[journal]\ndir = '{tmp_path}/n.toml/x'\n")
    result = cli("doctor", "-c", tmp_path / "n.toml")
    assert result.code == 1 and "→ make it writable" in result.out
