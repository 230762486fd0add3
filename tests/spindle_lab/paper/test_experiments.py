"""Goal: every experiment is whole: its runs make sense, and with their figures it compares, draws and speaks.

Method: figures of the right shape that nobody has played stand in, so that all of it runs in seconds; what they say is
not looked at. That runs show what they should is for the page's reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spindle_lab.paper import plots
from spindle_lab.paper.experiments import EXPERIMENTS
from spindle_lab.paper.experiments.base import Experiment, Results, seeded
from spindle_lab.paper.runs import TABLES, TECHNIQUES, Run, parameters_of, simulate
from tests.spindle_lab.paper.support import TINY, Tiny

each = pytest.mark.parametrize("e", EXPERIMENTS.values(), ids=EXPERIMENTS)


@pytest.fixture(scope="module")
def shape() -> dict[str, Any]:
    return simulate(TINY)


@each
def test_runs_can_be_played(e: Experiment) -> None:
    for run in e.needed():
        assert 2 <= run.members <= 16 and run.sending <= run.members
        assert run.techniques in TECHNIQUES and run.table in TABLES
        assert run.active <= run.topics and run.delayed <= run.sending
        parameters_of(run)


@each
def test_it_compares_and_speaks(e: Experiment, shape: dict[str, Any]) -> None:
    r, fitted = e.results(dict.fromkeys(e.needed(), shape))
    for results in (r, fitted):
        if results is not None:
            claims = e.compare(results)
            assert len({one.claim for one in claims}) == len(claims)
    assert e.says.endswith(".")
    assert isinstance(e.remark(r, fitted), str)


@each
def test_it_draws(e: Experiment, shape: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    r, fitted = e.results(dict.fromkeys(e.needed(), shape))
    plots.draw(e, r, fitted, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_results_are_means_over_seeds() -> None:
    e = Tiny()
    figures = {run: {"gb_s": 1.0 * run.seed, "deep": {"er": run.members}} for run in e.needed()}
    r, fitted = e.results(figures)
    assert r.of("all", 2.0) == 1.5 and r.deviation("all", 2.0) == pytest.approx(0.7071, abs=1e-3)
    assert r.line("all", "deep/er") == ([2.0, 3.0], [2.0, 3.0], [0.0, 0.0])
    assert fitted is not None and fitted.of("all", 2.0) == 1.0
    with pytest.raises(KeyError):
        r.of("all", 4.0)


def test_gains_are_means_of_ratios() -> None:
    runs = {(name, x): Run(members=m) for name, x, m in (("a", 1.0, 2), ("a", 2.0, 3), ("b", 1.0, 4), ("b", 2.0, 5))}
    values = {2: 6.0, 3: 8.0, 4: 3.0, 5: 2.0}
    figures = {one: {"gb_s": values[one.members]} for run in runs.values() for one in seeded(run, 1, "paper")}
    assert Results(runs, figures, 1).gain("a", "b") == 3.0
