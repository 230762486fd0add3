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
ROUNDS = 300_000  # without a fence less than one wake-up in ten thousand is lost
ROUNDS_MORE = 10_000
PLAYS_MAX = 100  # until each side has been first: on a busy machine the other one's processor may be somebody else's
ROUNDS_IN_TURNS = 300  # where there is no processor for each thread, every round waits for the scheduler


@pytest.mark.parametrize("shape", SHAPES)
def test_who_falls_asleep_and_who_has_work_never_miss_each_other(shape: str) -> None:
    together = SHAPES[shape][1] < PROCESSORS
    rung = seen = both = 0
    for n in range(PLAYS_MAX if together else 1):
        rounds = ROUNDS_IN_TURNS if not together else ROUNDS_MORE if n else ROUNDS
        race = play(shape, rounds)
        (none, only_rung), (only_seen, at_once) = race.seen_rung
        assert race.lost == none == 0
        assert only_rung + only_seen + at_once == rounds
        rung, seen, both = rung + only_rung, seen + only_seen, both + at_once
        if rung and seen and both:
            return
    assert not together, "they were never there at the same time"


def test_the_command_says_what_it_did() -> None:
    command = [sys.executable, "-m", "spindle_lab.litmus", "--rounds", "2000", "--seed", "5", "peer", "reader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "no wake-up was lost" in done.stdout and "peer" in done.stdout and "application" not in done.stdout
    assert subprocess.run([*command[:-1], "nobody"], capture_output=True, timeout=60).returncode == 2


def test_a_worker_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="worker 1 of 1"):
        Race("peer", 10).work(1)
