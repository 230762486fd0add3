"""Goal: what was played is kept, and kept under all that its figures depend on.

Method: tiny runs and a directory of their own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spindle_lab.paper import runner
from spindle_lab.paper.runner import MODULES, Store, digest, hash_of, play
from spindle_lab.paper.runs import Run, simulate
from tests.spindle_lab.paper.support import TINY

RUNS = [replace(TINY, seed=seed) for seed in (1, 2, 3)]


def played(runs: list[Run], store: Store, jobs: int = 1) -> tuple[list[Run], dict]:
    calls: list[Run] = []
    return calls, play(runs, store, jobs, lambda run, done, total: calls.append(run))


def test_a_run_is_played_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, first = played([*RUNS, RUNS[0]], store)
    assert sorted(calls, key=RUNS.index) == RUNS
    calls, second = played(RUNS, store)
    assert calls == [] and second == first
    assert first[TINY] == simulate(TINY)


def test_what_was_interrupted_goes_on(tmp_path: Path) -> None:
    def interrupt(run: Run, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(RUNS, Store(tmp_path), 1, interrupt)
    calls, figures = played(RUNS, Store(tmp_path))
    assert len(calls) == 1 and len(figures) == 3


def test_what_is_not_whole_is_played_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    _, first = played([TINY], store)
    (kept,) = tmp_path.iterdir()
    kept.write_text(kept.read_text()[:20])
    calls, second = played([TINY], store)
    assert calls == [TINY] and second == first


def test_a_pool_plays_the_same(tmp_path: Path) -> None:
    _, alone = played(RUNS[:2], Store(tmp_path / "alone"))
    calls, together = played(RUNS[:2], Store(tmp_path / "pool"), jobs=2)
    assert together == alone and len(calls) == 2


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    play(RUNS[:1], Store(tmp_path), 1)
    play(RUNS, Store(tmp_path), 1, lambda run, done, total: said.append((done, total)))
    assert said == [(1, 2), (2, 2)]


def test_another_core_plays_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_of(TINY)
    monkeypatch.setattr(runner, "digest", lambda: "of another build")
    assert hash_of(TINY) != before


def test_the_digest_is_of_modules_that_there_are() -> None:
    assert len(digest()) == 64
    assert len(set(MODULES)) == len(MODULES)


def test_the_digest_has_the_hot_path() -> None:
    assert "spindle_core.hot_path" in MODULES
