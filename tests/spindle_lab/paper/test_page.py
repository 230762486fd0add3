"""Goal: the page is made of the figures and says where each parameter comes from.

Method: an experiment of tiny runs, rendered and drawn.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from itertools import groupby
from pathlib import Path

import pytest

from spindle_lab.paper import page, page_text, plots
from spindle_lab.paper.experiments import EXPERIMENTS
from spindle_lab.paper.experiments.base import Comparison
from spindle_lab.paper.parameters import PAPER, PAPER_REFERENCE
from spindle_lab.paper.runner import Store, play
from tests.spindle_lab.paper.support import Tiny

TINY = {"tiny": Tiny()}


@pytest.fixture(autouse=True)
def nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other modules fill in is tested with these."""
    monkeypatch.setattr(page, "MORE", {})


@pytest.fixture
def figures(tmp_path: Path) -> dict:
    return play(Tiny().needed(), Store(tmp_path), 1)


def test_every_parameter_has_its_source() -> None:
    names = {field.name for part in (PAPER.network, PAPER.node) for field in dataclasses.fields(part)}
    assert set(page_text.SOURCES) == names - page_text.MACHINE_ONLY
    assert PAPER.cores == 0  # so that those of few cores cost nothing
    table = page_text.parameter_table()
    assert all(f"| `{name}` |" in table for name in page_text.SOURCES)


def test_the_page_has_claim_figures_drawing_and_remark(figures: dict, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page.write(tmp_path, figures, TINY)
    text = (tmp_path / "paper.md").read_text()
    assert text.startswith("# ") and len(re.findall("^# ", text, re.MULTILINE)) == 1
    assert "### Two members" in text and "The paper: two members deliver." in text
    number = r"[\d.]+"
    throughput = rf"^\| throughput of two \| 2 GB/s \|( {number} GB/s \| {number} \|){{2}} {number} GB/s \|$"
    latency = rf"^\| latency of two \| - \|( {number} us \| - \|){{2}} {number} us \|$"
    assert re.search(throughput, text, re.MULTILINE) and re.search(latency, text, re.MULTILINE)
    assert "Small groups are quick." in text
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", text)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_it_is_said_how_many_figures_are_near() -> None:
    near, far, none = (Comparison("claim", paper, ours) for paper, ours in ((4.0, 5.0), (4.0, 5.1), (None, 5.0)))
    text = page.agreement([near, far, near], [near, far, far], [far, none, far])
    assert "these 3 figures 2 are within a quarter" in text
    assert ", 1 with what" in text and ", 0 with the fitted" in text


def test_costs_of_the_reference_have_their_sources() -> None:
    for name in (field.name for field in dataclasses.fields(PAPER.node)):
        differs = getattr(PAPER.node, name) != getattr(PAPER_REFERENCE.node, name)
        assert not differs or name in page_text.REFERENCE_SOURCES, name
    assert PAPER_REFERENCE.network == PAPER.network and PAPER_REFERENCE.lock_through


def test_the_same_figures_give_the_same_page(figures: dict) -> None:
    assert page.render(figures, TINY) == page.render(dict(reversed(figures.items())), TINY)


def test_other_modules_fill_their_sections(figures: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a section without its module is left out."""
    module = types.ModuleType("real")
    module.section = lambda: "Measured on two cores.\n"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spindle_lab.paper.experiments.real", module)
    monkeypatch.setattr(page, "MORE", {"Real runs": "spindle_lab.paper.experiments.real",
                                       "Past the paper": "spindle_lab.paper.experiments.there_is_none"})
    text = page.render(figures, TINY)
    assert "## Real runs\n\nMeasured on two cores.\n" in text
    assert "## Past the paper" not in text


def test_experiments_stand_in_their_chapters() -> None:
    """Goal: what is past the paper stands apart from its evaluation, and each chapter has one heading. Method: the
    chapters in the order of the experiments."""
    chapters = [e.chapter for e in EXPERIMENTS.values()]
    assert list(dict.fromkeys(chapters)) == list(page_text.CHAPTERS) == [one for one, _ in groupby(chapters)]
    text = (Path(__file__).resolve().parents[3] / "docs/paper.md").read_text(encoding="utf-8")
    for chapter, opening in page_text.CHAPTERS.items():
        assert text.count(f"\n## {chapter}\n\n{opening}") == 1
    assert text.index("## Past the paper") < text.index("### All improvements together")


def test_figures_have_three_places() -> None:
    assert page.figure_text(None, "GB/s") == "-"
    assert page.figure_text(9.7123, "GB/s") == "9.71 GB/s"
    assert page.figure_text(16.04, "x") == "16x"
    assert page.figure_text(517_000.4, "") == "517,000"


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.NoMatplotlib, match=r"pip install 'spindle-dds\[plot\]'"):
        plots.check()


def test_the_page_in_the_tree_is_of_these_experiments_and_parameters() -> None:
    """Its figures are those of the build that wrote it; `make paper` writes it again."""
    text = (Path(__file__).resolve().parents[3] / "docs/paper.md").read_text(encoding="utf-8")
    assert page_text.opening() in text
    assert page_text.parameter_table() in text
    for e in EXPERIMENTS.values():
        assert f"### {e.title}\n\n{e.place}; `spindle paper {e.name}`.\n\nThe paper: {e.says}\n" in text
        assert f"](paper/{e.name}.png)" in text
