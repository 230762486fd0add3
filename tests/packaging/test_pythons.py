"""Goal: the tests run, and wheels are built, on the CPythons that are here, and those that aren't are named.

Method: directories with programs that answer as interpreters would; this interpreter itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import pythons  # noqa: E402


def pretend(path: Path, release: tuple[int, int, int], *, missing: tuple[str, ...] = (), fit: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = {"path": str(path), "release": release, "include": "/nowhere", "missing": missing, "fit": fit}
    path.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    path.chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose Pythons are in this directory's bin and pyenv alone."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(pythons, "PLACES", pythons.PLACES[:1])
    return tmp_path


def test_the_latest_release_of_each_version_counts(only: Path) -> None:
    pretend(only / "bin/python3.11", (3, 11, 2))
    pretend(only / "pyenv/versions/3.11.7/bin/python3.11", (3, 11, 7))
    pretend(only / "pyenv/versions/3.13.0/bin/python3.13", (3, 13, 0))
    found = pythons.find()
    assert [python.release for python in found.values()] == [(3, 11, 7), (3, 13, 0)]
    assert pythons.unfit(found) == ["CPython 3.10: not found", "CPython 3.12: not found", "CPython 3.14: not found"]


def test_one_that_can_build_comes_before_a_later_one_that_can_not(only: Path) -> None:
    pretend(only / "bin/python3.12", (3, 12, 9), missing=("its headers (python3-dev)",))
    assert any("3.12: " in line and "lacks its headers" in line for line in pythons.unfit(pythons.find()))
    pretend(only / "pyenv/versions/3.12.1/bin/python3.12", (3, 12, 1))
    assert pythons.find()[3, 12].release == (3, 12, 1)


def test_what_is_no_final_cpython_or_does_not_start_is_not_found(only: Path) -> None:
    pretend(only / "bin/python3.14", (3, 14, 0), fit=False)
    pretend(only / "bin/python3.10", (3, 11, 0))  # a link under a wrong name
    broken = only / "bin/python3.13"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert pythons.find() == {}


def test_this_interpreter_is_one() -> None:
    python = pythons.ask(sys.executable)
    assert python is not None and python.release == tuple(sys.version_info[:3])


def test_some_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.chosen(["-k", "x"]) == (list(pythons.VERSIONS), ["-k", "x"])
    assert pythons.chosen(["--python", "3.13", "tests/dds", "--python=3.10", "-x"]) == (
        [(3, 13), (3, 10)], ["tests/dds", "-x"])
    with pytest.raises(SystemExit):
        pythons.chosen(["--python", "3.9"])
    assert "invalid choice: '3.9'" in capsys.readouterr().err
