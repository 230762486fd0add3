"""Goal: a seed is a run, the same every time; runs hold every promise; a failing one is found, printed and made small.

Method: a few seeds of both kinds of rows, twice; and a planted mistake in the trim, which the checkers must see.
"""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from spindle.membership import rules
from spindle_lab.sim.check import Checker
from spindle_lab.sim.cli import sim
from spindle_lab.sim.run import run_events, run_seed
from spindle_lab.sim.schedule import Schedule
from spindle_lab.sim.shrink import shrink
from spindle_lab.sim.trace import Tracer


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["shared", "copied"])
def test_seeds_hold_every_promise(fabric: str) -> None:
    for seed in range(1_000_000, 1_000_030):
        outcome = run_seed(seed, fabric)
        assert not outcome.failed, f"seed {seed}: {outcome.broken}: {outcome.text}"


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["shared", "copied"])
def test_a_seed_gives_the_same_run(fabric: str) -> None:
    for seed in range(5):
        first, second = run_seed(seed, fabric), run_seed(seed, fabric)
        assert (first.hash, first.steps, first.probes) == (second.hash, second.steps, second.probes)


@pytest.mark.parametrize("fabric", ["shared", "copied"])
def test_a_run_has_its_own_clock(fabric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node notes as the time of a delivery is the run's, not the system's: a run that is played tomorrow is the
    same."""
    noted: list[int] = []
    delivered = Checker.delivered

    def look(self: Checker, life: Any, topic_id: int, pairs: list[Any]) -> None:
        noted.extend(info.reception_timestamp for _, info in pairs)
        delivered(self, life, topic_id, pairs)

    monkeypatch.setattr(Checker, "delivered", look)
    for seed in range(1, 8):
        assert not run_seed(seed, fabric).failed
    assert noted and max(noted) < 10**15, "that is the year 1970, as the world's clock has it"


def test_watching_a_run_changes_nothing() -> None:
    lines: list[str] = []
    tracer = Tracer(lines.append)
    assert run_seed(3, watch=tracer.watch, listener=tracer.listen).hash == run_seed(3).hash
    assert len(lines) > 100


@pytest.mark.slow
def test_a_mistake_is_found_and_its_run_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader trims to the most that anybody has instead of the least."""

    def most_frozen(view, table, live):  # type: ignore[no-untyped-def]
        return {
            topic.topic_id: tuple(map(max, zip(*[
                table.frozen_counts(view.rank_of(node_id), topic.topic_id) for node_id in topic.members], strict=True)))
            for topic in view.topics if topic.senders}

    monkeypatch.setattr(rules, "least_frozen", most_frozen)
    seed = next(seed for seed in range(300) if run_seed(seed, "shared").failed)
    first = run_seed(seed, "shared")
    events, replay = shrink(seed, "shared", seconds=20)
    assert len(events) < len(first.events) / 2
    lines: list[str] = []
    assert replay(Tracer(lines.append)).broken == first.broken
    assert run_events(Schedule(seed, "shared").setup, events, seed).broken == first.broken
    assert len(lines) >= len(events) / 2


def test_the_command_counts_replays_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner()
    done = run.invoke(sim, ["--core", "--seeds", "3", "--jobs", "1", "--probes"], standalone_mode=False)
    assert done.exception is None and done.return_value == 0 and "3 seeds" in done.output
    replayed = run.invoke(sim, ["--core", "--replay", "2", "--until", "40"], standalone_mode=False)
    assert replayed.return_value == 0 and "start 1" in replayed.output
    nightly = run.invoke(sim, ["--core", "--seeds", "1", "--jobs", "1", "--nightly"], standalone_mode=False)
    assert nightly.return_value == 1 and "never happened" in nightly.output
    monkeypatch.setattr(rules.Rules, "_propose", lambda self: 1 // 0)
    broken = run.invoke(sim, ["--core", "--seed", "1", "--no-shrink"], standalone_mode=False)
    assert broken.return_value == 1 and "E1" in broken.output
