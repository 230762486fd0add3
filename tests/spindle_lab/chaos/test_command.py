"""Goal: the command leaves nothing behind, says what it did, and takes the time that it was given.

Method: its parts with directories and outcomes made by hand; a process that has ended lends its id. The command as a
whole is in test_round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from spindle_lab.chaos.__main__ import PREFIX, _clear_up, _goes_on, summary
from spindle_lab.chaos.checker import Violation
from spindle_lab.chaos.round import Outcome


def test_what_killed_runs_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what belongs to a run that goes on, nor what isn't ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"{PREFIX}{ended.pid}-abc", f"{PREFIX}{os.getpid()}-abc", f"{PREFIX}old", "other"]
    for name in names:
        (tmp_path / name / "round-1").mkdir(parents=True)
    _clear_up()
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(names[1:])


def test_rounds_fill_the_time() -> None:
    """One at least; another one if half of it fits; or as many as were asked for."""
    options = argparse.Namespace(rounds=None, seconds=60.0, round_s=20.0)
    assert _goes_on(options, 0, 100.0) and _goes_on(options, 1, 49.0) and not _goes_on(options, 2, 51.0)
    options.rounds = 2
    assert _goes_on(options, 1, 1000.0) and not _goes_on(options, 2, 1.0)


def test_the_summary_says_what_happened_and_where_the_evidence_is() -> None:
    total, more = Outcome(), Outcome()
    more.faults, more.messages, more.views, more.suspicions = Counter({"kill -9 of a leader": 3}), 1234, 7, 2
    more.violations, more.told_s = [Violation("D2", "twice")], 0.25
    for _ in range(2):
        total.add(more)
    text = summary(total, 2, 99, 61.0, [Path("build/chaos/99")])
    for part in ("2 rounds in 61 s, seed 99", "messages             2,468", "views                14",
                 "6  kill -9 of a leader", "false suspicions     4", "violations           2", "build/chaos/99"):
        assert part in text


def test_where_no_hosts_can_be_made_that_is_said() -> None:
    """Without `ip`, or without root. Nothing is run, and nothing failed."""
    done = subprocess.run([sys.executable, "-m", "spindle_lab.chaos", "--hosts", "3"], capture_output=True, text=True,
                          timeout=60, check=False, env={**os.environ, "PATH": "/nonexistent"})
    assert done.returncode == 0 and done.stdout.startswith("skipped: no hosts can be made here: "), done.stderr


def test_faults_of_links_need_links() -> None:
    done = subprocess.run([sys.executable, "-m", "spindle_lab.chaos", "--only", "links flap"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--hosts" in done.stderr
