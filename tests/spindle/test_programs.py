"""Goal: a process that is started for a module of the package has its modules, whatever directory it is started in.

Method: the directory has files with the names of modules that the process imports, each of which says that it was run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spindle.programs import module_arguments

ROOT = Path(__file__).resolve().parents[2]
SHADOWS = ("asyncio", "ctypes", "http", "json", "runpy", "signal", "spindle", "types")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the directory was run')\n")
    return tmp_path


def test_nothing_is_imported_from_the_current_directory(directory: Path) -> None:
    first = "import ctypes, signal; print(signal.SIGINT + 0)"
    run = subprocess.run([sys.executable, *module_arguments("spindle.cli", first), "journal", "--help"], cwd=directory,
                         capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("2\nUsage: spindle journal")


def test_the_module_gets_its_arguments_and_standard_input(directory: Path) -> None:
    """A cockpit whose daemon has ended before it said a word ends, too."""
    run = subprocess.run([sys.executable, *module_arguments("spindle.cockpit")], cwd=directory, input="",
                         capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_no_other_way_is_used() -> None:
    """`python -m` looks for modules in the current directory first."""
    assert [path for path in (ROOT / "spindle").rglob("*.py") if '"-m"' in path.read_text(encoding="utf-8")] == []
