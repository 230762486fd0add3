"""Goal: the demonstration proves agreement, notices trouble, and leaves nothing behind. Method: the real thing, short:
to its end, interrupted, and with a daemon killed. tests/conftest.py checks after every test that no process stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.support import ROOT, Start
from tests.support import command_of, descendants, wait_until

DEMO = ("-m", "spindle.demo", "--seconds", "3")


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the demonstration's own, with a short path: sockets are in it."""
    directory = Path("/tmp") / f"spindle-test-{os.getpid()}"
    directory.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def test_all_agree(temporary: Path) -> None:
    """Goal: exit code 0 and everything equal, with messages and alerts to compare."""
    run = subprocess.run(
        [sys.executable, *DEMO, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert found["agreed"] is True and found["disagreements"] == []
    assert found["killed_at"] > 0 and found["published"]["flight"] == 2 * 384 + found["killed_at"]
    assert found["late_alerts"] == found["monitors"]["1"] == found["monitors"]["3"]
    *_, before, after = found["monitors"]["2"]["owners"]
    assert (before["node"], after["node"]) == (1, 3) and after["sample"] >= found["killed_at"]
    assert found["recorded"] == found["monitors"]["1"]["heard"]
    assert found["published"]["flight/alerts"] > 0
    for topic in found["published"]:
        assert len({found["delivered"][node][topic]["hash"] for node in "123"}) == 1
    assert all(journal["intact"] for journal in found["journals"].values())
    assert not list(temporary.iterdir()), "the temporary directory is not empty"


@pytest.mark.slow
def test_interrupted(programs: Start, temporary: Path) -> None:
    """Goal: Ctrl-C ends everything within seconds. Method: SIGINT while it flies."""
    demo = programs(*DEMO, "--no-display")
    demo.until("flying")
    assert demo.end(signal.SIGINT) == 130
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_a_killed_daemon_is_noticed(programs: Start) -> None:
    """Goal: not 0 when a node dies, and no hang. Method: kill -9 of a daemon while it flies."""
    demo = programs(*DEMO, "--no-display")
    demo.until("flying")
    daemon = wait_until(
        lambda: next((pid for pid in descendants() if "daemon --node 2" in command_of(pid)), 0), 10, "daemon 2"
    )
    os.kill(daemon, signal.SIGKILL)
    assert demo.wait(120) == 1
    assert any("FAILED" in line or "DISAGREEMENT" in line for line in demo.lines), demo.lines


def test_bad_options_are_refused(programs: Start) -> None:
    """Goal: impossible values are named before anything starts."""
    for options, words in ((("--seconds", "0"), "must be positive"), (("--jsonl", "/nowhere"), "there is no file")):
        demo = programs("-m", "spindle.demo", *options)
        assert demo.wait() == 2
        assert any(words in line for line in demo.lines)
