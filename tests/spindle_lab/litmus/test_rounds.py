"""Goal: no wake-up is lost between who goes to sleep and who has work, however their stores and loads interleave.

Method: the races of `make litmus` on the production functions, a small part of its rounds. Not a time is measured; that
both sides were really in each other's way is seen from the outcomes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spindle_lab.litmus.__main__ import play
from spindle_lab.litmus.rounds import SHAPES, Race

PROCESSORS = len(os.sched_getaffinity(0))
ROUNDS = 50_000
ROUNDS_IN_TURNS = 300  # where there is no processor for each thread, every round waits for the scheduler


@pytest.mark.parametrize("shape", SHAPES)
def test_who_falls_asleep_and_who_has_work_never_miss_each_other(shape: str) -> None:
    rounds = ROUNDS if SHAPES[shape][1] < PROCESSORS else ROUNDS_IN_TURNS
    race = play(shape, rounds)
    (none, rung), (seen, both) = race.seen_rung
    assert race.lost == none == 0
    assert rung + seen + both == rounds
    if rounds == ROUNDS:
        assert rung and seen and both, "they were never there at the same time"


def test_the_command_says_what_it_did() -> None:
    command = [sys.executable, "-m", "spindle_lab.litmus", "--rounds", "2000", "--seed", "5", "peer", "reader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "no wake-up was lost" in done.stdout and "peer" in done.stdout and "application" not in done.stdout
    assert subprocess.run([*command[:-1], "nobody"], capture_output=True, timeout=60).returncode == 2


def test_a_worker_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="worker 1 of 1"):
        Race("peer", 10).work(1)
