"""Goal: what docs/recordings.md tells a person to type works, word for word.

Method: its marked blocks run in a shell and in Python, beside a real daemon; only /tmp is another directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import attach
from tests.spindle.cli.support import ROOT
from tests.spindle.daemons import Daemon, daemons
from tests.spindle.journal.test_node import SPEC

DOCUMENT = (ROOT / "docs" / "recordings.md").read_text(encoding="utf-8")
BLOCKS = {name: text for name, text in re.findall(
    r"<!-- (?:program|shell): ([\w.]+) -->\n```\w+\n(.*?)```", DOCUMENT, re.DOTALL)}


@pytest.fixture
def daemon(runtime_dir: Path, tmp_path: Path) -> Iterator[Daemon]:
    with daemons(runtime_dir, 1, ["--journal-dir", str(tmp_path / "spindle-journals")]) as (one,):
        yield one


def run(block: str, directory: Path) -> str:
    """What the lines print, with /tmp/ where the test may write, and this environment's `spindle` on the PATH."""
    command = directory / "bin" / "spindle"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spindle.cli "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-eu", "-c", BLOCKS[block].replace("/tmp/", f"{directory}/")], cwd=ROOT, capture_output=True,
        text=True, timeout=120, env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_blocks_are_run() -> None:
    assert set(BLOCKS) == {"record", "decode.py", "backup"}


@pytest.mark.slow
def test_recorded_played_and_decoded(daemon: Daemon, tmp_path: Path) -> None:
    printed = run("record", tmp_path)
    assert re.findall(r"^(sunny|rain)$", printed, re.MULTILINE) == ["sunny", "rain"] * 2
    assert "recording, 2 messages" in printed
    program = tmp_path / "decode.py"
    program.write_text(BLOCKS["decode.py"])
    done = subprocess.run([sys.executable, str(program), str(tmp_path / "weather.mcap")], capture_output=True,
                          text=True, timeout=60, check=True)
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["weather", "application/octet-stream", "bytes"]] * 2


@pytest.mark.slow
def test_backed_up_and_restored(daemon: Daemon, runtime_dir: Path, tmp_path: Path) -> None:
    with attach(0, runtime_dir=runtime_dir) as session:
        session.declare_topic(SPEC)
        with session.open_writer(SPEC.name) as writer:
            writer.inbox.write(b"kept", timeout_s=10)
            assert writer.inbox.wait_acknowledged(10, persisted=True)
    printed = run("backup", tmp_path)
    assert "backed up" in printed and "1 messages in 1 files: ok" in printed and "restored" in printed
    assert printed.count(SPEC.name) == 3
