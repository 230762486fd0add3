"""Goal: `make` does what is needed, and nothing twice, in whatever order its targets are called.

Method: the Makefile with an environment whose `python` writes down how it was called, and finds the libraries that the
test says are there; everything before it counts as done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PYTHON = """#!/bin/sh
echo "$*" >> {calls}
[ "$*" = "setup.py --libraries" ] && cat {libraries}
exit 0
"""


class Environment:
    """`libraries` is what a compiler would find. `make` gives the calls of Python that a target leads to."""

    def __init__(self, directory: Path) -> None:
        self.venv = directory / "venv"
        self.libraries = directory / "libraries"
        self.libraries.write_text("\n")
        self._calls = directory / "calls"
        (self.venv / "bin").mkdir(parents=True)
        python = self.venv / "bin" / "python"
        python.write_text(PYTHON.format(calls=self._calls, libraries=self.libraries))
        python.chmod(0o755)
        for stamp in ("venv", "build", "install", "test", "lint", "plot", "fuzz"):
            (self.venv / f".stamp-{stamp}").touch()

    def make(self, *arguments: str) -> list[str]:
        self._calls.write_text("")
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        subprocess.run(["make", f"VENV={self.venv}", *arguments], cwd=ROOT, env=environment, check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
        return [call for call in self._calls.read_text().splitlines() if call != "setup.py --libraries"]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


BUILD_ALL = "setup.py --quiet build_ext --inplace"
BUILD = f"{BUILD_ALL} --running"


def test_the_core_is_built_once(environment: Environment) -> None:
    assert environment.make("setup") == [BUILD]
    assert environment.make("setup") == []


def test_what_only_development_needs_is_built_when_a_target_needs_it(environment: Environment) -> None:
    bench = "spindle bench limit"
    command = environment.venv / "bin" / "spindle"
    command.write_text((environment.venv / "bin" / "python").read_text().replace("$*", "spindle $*", 1))
    command.chmod(0o755)
    assert environment.make("setup") == [BUILD]
    assert environment.make("demo", "ARGS=--once")[-1] == "spindle demo --once"
    assert environment.make("bench", "ARGS=limit") == [BUILD_ALL, bench]
    assert environment.make("bench", "ARGS=limit") == [bench]
    assert environment.make("setup") == []


def test_what_imports_the_core_has_it_built_first(environment: Environment) -> None:
    """The tables of the documents come from the code: as the first target of a clone this ended with a traceback."""
    assert environment.make("reference") == [BUILD, "tools/dds_reference.py"]


def test_ext_builds_all_and_leaves_nothing_to_the_others(environment: Environment) -> None:
    assert environment.make("ext") == [BUILD_ALL]
    assert environment.make("lab") == []


def test_nothing_is_done_twice_by_make_with_jobs(environment: Environment) -> None:
    assert environment.make("--jobs=4", "lab", "setup") == [BUILD, BUILD_ALL]


def test_a_library_that_comes_after_the_build_is_built_for(environment: Environment) -> None:
    """Method: libibverbs comes, and goes, after a build."""
    environment.make("setup")
    environment.libraries.write_text("ibverbs\n")
    assert environment.make("setup") == [BUILD]
    assert environment.make("setup") == []
    environment.libraries.write_text("\n")
    assert environment.make("setup") == [BUILD]


def test_what_the_guests_need_is_installed_before_the_core_is_built_for_it(environment: Environment) -> None:
    environment.make("setup")
    python = environment.venv / "bin" / "python"
    python.write_text(python.read_text().replace(
        "exit 0", f'[ "$*" = "tools/rdma --install" ] && echo ibverbs > {environment.libraries}\nexit 0'))
    assert environment.make("rdma-test", "ARGS=fabric") == [
        BUILD_ALL, "tools/rdma --install", BUILD, BUILD_ALL, "tools/rdma fabric"]


@pytest.mark.slow
def test_libraries_are_those_that_a_compiler_finds(tmp_path: Path) -> None:
    """Method: compilers that refuse and accept everything."""
    for compiler, found in (("false", ""), ("true", "ibverbs")):
        run = subprocess.run([sys.executable, "setup.py", "--libraries"], cwd=ROOT, capture_output=True, text=True,
                             timeout=60, check=True, env={**os.environ, "CC": compiler})
        assert run.stdout.strip() == found
