"""Goal: `spindle paper` lists, plays, compares, draws and writes the page; what it played it keeps.

Method: called in this process, with an experiment of tiny runs in place of the paper's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spindle_lab.bench import links
from spindle_lab.paper import experiments, page
from spindle_lab.paper.krcore import page as krcore_page
from spindle_lab.paper.krcore import probe, real, rows
from tests.spindle.cli.support import Cli
from tests.spindle_lab.paper.support import Tiny


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": Tiny()})
    monkeypatch.setattr(page, "MORE", {})
    monkeypatch.chdir(tmp_path)


def test_list(cli: Cli) -> None:
    result = cli("paper", "list")
    assert result.code == 0 and "Two members" in result.out and "Figure 0" in result.out
    assert cli("paper", "list", "--json").json[0]["name"] == "tiny"


def test_an_experiment_by_its_name(cli: Cli) -> None:
    result = cli("paper", "tiny", "--jobs", "1")
    assert result.code == 0, result.err
    assert "throughput of two" in result.out and "GB/s" in result.out
    assert "10 of 10 runs" in result.err
    again = cli("paper", "tiny", "--jobs", "1")
    assert again.out == result.out and "runs" not in again.err


def test_seeds_and_json(cli: Cli) -> None:
    result = cli("paper", "run", "tiny", "--seeds", "1", "--json", "--jobs", "1")
    (found,) = result.json
    claim = found["comparisons"][0]
    assert claim["paper"] == 2.0 and claim["ratio"] == pytest.approx(claim["ours"] / 2) and claim["fitted"] > 0
    assert claim["reference"] > 0
    assert "6 of 6 runs" in result.err


def test_all_is_every_experiment(cli: Cli) -> None:
    assert [one["name"] for one in cli("paper", "all", "--json", "--jobs", "1").json] == ["tiny"]


def test_drawings(cli: Cli) -> None:
    pytest.importorskip("matplotlib")
    assert cli("paper", "tiny", "--plot", "drawn", "--jobs", "1").code == 0
    assert Path("drawn/tiny.png").exists()


def test_the_page(cli: Cli) -> None:
    pytest.importorskip("matplotlib")
    result = cli("paper", "page", "--docs", "documents", "--jobs", "1")
    assert result.code == 0, result.err
    assert "### Two members" in Path("documents/paper.md").read_text()
    assert Path("documents/paper/tiny.png").exists()


@pytest.mark.parametrize("words", [("page",), ("tiny", "--plot", "drawn")], ids=["page", "plot"])
def test_without_matplotlib_nothing_is_played(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = cli("paper", *words)
    assert result.code == 1 and "pip install 'spindle-dds[plot]'" in result.err
    assert not Path("build").exists()


def test_a_name_that_there_is_not(cli: Cli) -> None:
    result = cli("paper", "tinny")
    assert result.code == 2 and "did you mean tiny?" in result.err
    assert "spindle paper list" in cli("paper", "something").err


@pytest.mark.slow
def test_the_page_of_krcore(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command plays, writes the page, or prints its rows; what can't be measured here is said."""
    monkeypatch.setattr(rows, "SPECS", {"Control path": (lambda f: rows.Row("a", 1.0, "us", rows.PLAYED, f["a"]),)})
    monkeypatch.setattr(rows, "SWIFT", (lambda: {"a": 1.5},))
    monkeypatch.setattr(rows, "SLOW", ())
    monkeypatch.setattr(krcore_page, "own_text", lambda _: "")
    monkeypatch.setattr(krcore_page, "remarks", lambda _: "")
    result = cli("paper", "krcore", "--docs", "documents")
    assert result.code == 0, result.err
    assert "| a | 1 us | 1.5 us | +50% | played | - |" in Path("documents/paper-krcore.md").read_text()
    (row,) = cli("paper", "krcore", "--json").json
    assert row["claim"] == "a" and row["deviation"] == pytest.approx(50) and not Path("docs").exists()

    def fails() -> dict:
        raise OSError("4 descriptors are needed")

    monkeypatch.setattr(rows, "SLOW", (fails,))
    result = cli("paper", "krcore")
    assert result.code == 1 and "4 descriptors" in result.err


def test_real_runs_come_before_the_page(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict] = []
    monkeypatch.setattr(links, "run", lambda: {"rounds": 7})
    monkeypatch.setattr(real, "keep", kept.append)
    monkeypatch.setattr(rows, "SPECS", {})
    monkeypatch.setattr(rows, "SWIFT", ())
    monkeypatch.setattr(rows, "SLOW", ())
    assert cli("paper", "krcore", "--real", "--json").json == [] and kept == [{"rounds": 7}]


def test_measuring_the_pool(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure", lambda: {"pool_run": 1.0})
    assert cli("paper", "krcore", "--measure").json == {"pool_run": 1.0}
