"""Goal: a round with real processes runs from start to verdict, and finds nothing; a broken one is found.

Method: short rounds of three nodes, one with faults of each harmless kind, one whose records are altered afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spindle_lab.chaos.checker import check
from spindle_lab.chaos.history import History, load
from spindle_lab.chaos.round import Plan, Round


def plan(**changes: object) -> Plan:
    settings = ["membership.suspect_timeout_s=2.0", "limits.open_timeout_s=5"]
    values = {"seed": 5, "seconds": 3.0, "nodes": 3, "suspect_timeout_s": 2.0, "pause_s": 0.5, "settings": settings}
    return Plan(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_round_with_kills_keeps_every_promise(tmp_path: Path) -> None:
    """Also the proof that the checker can find something: with one delivery taken out of the records, it does."""
    said: list[str] = []
    kinds = {"kill -9 of a member", "application crashed with a loan"}
    outcome = Round(plan(), tmp_path, None, 100.0, said.append, kinds).run()
    assert outcome.violations == [] and outcome.faults and outcome.messages > 100
    assert any(line.startswith("kill -9 of a member") for line in said)
    records = tmp_path / "records"
    external = max(records.glob("talker-0-*"), key=lambda one: one.stat().st_size).read_text().splitlines()
    last = [json.loads(line) for line in external if '"wrote"' in line or '"writer-end"' in line]
    assert {one["why"] for one in last if one["k"] == "writer-end"} == {"finished"} and len(last) > 10
    assert any(one.stat().st_size > 10_000 for one in records.glob("watcher-0-*"))
    target = max(records.glob("watcher-*"), key=lambda one: one.stat().st_size)
    lines = target.read_text().splitlines()
    places = [place for place, line in enumerate(lines) if len(json.loads(line).get("m", [])) > 2]
    line = json.loads(lines[places[len(places) // 2]])
    del line["m"][1]
    lines[places[len(places) // 2]] = json.dumps(line)
    target.write_text("\n".join(lines) + "\n")
    history = History()
    load(records.iterdir(), history)
    assert check(history)


@pytest.mark.slow
def test_the_command_says_what_it_did() -> None:
    """Exit code 0 without violation, and the figures that a reader wants."""
    command = [sys.executable, "-m", "spindle_lab.chaos", "--rounds", "1", "--round", "1", "--seed", "7",
               "--only", "churn"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("messages", "faults", "views", "violations           0", "seed 7"):
        assert word in done.stdout
