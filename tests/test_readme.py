"""Goal: what the README tells a newcomer to type works, word for word.

Method: its marked blocks are taken out of the text and run through a real daemon in a runtime directory of the test's
own. Every wait is for a condition and has a bound: the daemon's ready line, the subscriber among the topic's members, a
process's end. `make demo` and `make test` are not run again from inside the tests; make says what it would do.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.support import Program
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent

BLOCK = re.compile(r"<!-- (program|terminals|shell)(?:: ([\w.]+))? -->\n```\w+\n(.*?)```", re.DOTALL)


def blocks(kind: str) -> dict[str, str]:
    """The blocks marked as `kind`, by name."""
    return {name: text for found, name, text in BLOCK.findall(README) if found == kind}


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def daemon(runtime_dir: Path) -> Iterator[Daemon]:
    with daemons(runtime_dir, 1) as (one,):
        yield one


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[Program]:
    one = Program(list(arguments), {"PYTHONPATH": str(ROOT)})
    try:
        yield one
    finally:
        one.close()


def subscribed(topic: str) -> bool:
    """Ask the daemon whether the topic has a member."""
    asked = subprocess.run([sys.executable, "-m", "spindle.cli", "topics", "--json"], cwd=ROOT, capture_output=True,
                           timeout=30, check=True)
    return any(one["name"] == topic and one["members"] for one in json.loads(asked.stdout))


def greet(subscriber: list[str], publisher: list[str]) -> None:
    with program(*subscriber) as reading:
        wait_until(lambda: subscribed("hello"), 30, "the subscriber in its topic", interval_s=0.1)
        with program(*publisher) as writing:
            assert writing.wait() == 0, writing.lines
            assert writing.lines == []
        reading.until("9 good morning")
        assert reading.lines == [f"{number} good morning" for number in range(10)]


def test_every_block_is_accounted_for() -> None:
    """A renamed or unmarked block would silently not be tested."""
    assert set(blocks("program")) == {"publisher.py", "subscriber.py"}
    assert len(blocks("terminals")) == 1 and set(blocks("shell")) == {"hello", "record"}
    in_text = re.findall(r"^```(\w+)$", README, re.MULTILINE)
    assert sorted(in_text) == ["console", "console", "python", "python", "sh", "sh"]


@pytest.mark.slow
def test_publisher_and_subscriber(daemon: Daemon, tmp_path: Path) -> None:
    for name, text in blocks("program").items():
        (tmp_path / name).write_text(text)
    greet([str(tmp_path / "subscriber.py")], [str(tmp_path / "publisher.py")])


def test_programs_have_the_length_that_is_promised() -> None:
    for name, text in blocks("program").items():
        assert len([line for line in text.splitlines() if line.strip()]) <= 15, name


def test_the_same_programs_are_among_the_examples() -> None:
    for role in ("publisher", "subscriber"):
        shipped = (ROOT / "examples" / f"hello_{role}.py").read_text()
        without_docstring = re.sub(r'\A""".*?"""\s*', "", shipped, flags=re.DOTALL)
        assert without_docstring == blocks("program")[f"{role}.py"]


@pytest.mark.slow
def test_three_terminals(daemon: Daemon) -> None:
    """The daemon of the first line is the fixture's (with its own runtime directory); the other two run as written."""
    (block,) = blocks("terminals").values()
    first, *rest = [shlex.split(line) for line in commands(block)]
    assert first == [".venv/bin/spindle", "daemon"]
    assert [one[0] for one in rest] == [".venv/bin/python"] * 2
    subscriber, publisher = [[str(ROOT / one[1])] for one in rest]
    greet(subscriber, publisher)


SHOWN = {"hello": (["hello", "world"], "node 1"), "record": ([], "recording, 2 messages")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_shell(daemon: Daemon, tmp_path: Path, name: str) -> None:
    """The shell lines as they are, with this environment's `spindle` first on the PATH."""
    first, within = SHOWN[name]
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    command = bin_dir / "spindle"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spindle.cli "$@"\n')
    command.chmod(0o755)
    run = subprocess.run(
        ["bash", "-eu", "-c", blocks("shell")[name]], cwd=ROOT, capture_output=True, text=True, timeout=90,
        env={**os.environ, "PATH": f"{bin_dir}:{BIN}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:len(first)] == first
    assert within in run.stdout


def test_make_knows_the_commands() -> None:
    named = set(re.findall(r"\bmake ([a-z]+)", README))
    assert {"demo", "test", "setup"} <= named
    for target in sorted(named):
        run = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
