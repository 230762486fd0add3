"""Goal: the page in the tree is what the command makes, and says of each figure what kind it is.

Method: what is swift is played again, and each row that it suffices for stands in the page, as does the text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spindle_lab.paper.krcore import costs, page, page_text, real, rows
from spindle_lab.paper.krcore.rows import CALIBRATED, GIVEN, PLAYED, Row

PAGE = Path(__file__).resolve().parents[4] / "docs" / page.NAME


@pytest.fixture(scope="module")
def figures() -> dict:
    return rows.play(rows.SWIFT)


@pytest.fixture
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_in_the_tree_has_the_rows_that_are_played(figures: dict, text: str) -> None:
    found = rows.rows(figures, whole=False)
    assert sum(len(one) for one in found.values()) >= 30
    for section, its in found.items():
        assert f"\n### {section}\n" in text
        for row in its:
            assert page.row_text(row) in text
    assert page.remarks(figures) in text


def test_the_page_in_the_tree_has_text_and_costs(text: str) -> None:
    for part in (page_text.OPENING, page_text.KINDS, page_text.GUEST, page_text.CONTRADICTIONS, page_text.LEFT_OUT):
        assert part.strip() in text
    assert page.cost_table() in text
    assert len(re.findall("^# ", text, re.MULTILINE)) == 1


@pytest.mark.slow
def test_the_page_is_whole_with_all_figures(figures: dict, text: str, tmp_path: Path) -> None:
    """What takes longer, and memory, come from the page: then it is the same to the last letter."""
    slow = {"reads rate": "reads a second, 240 clients, lists, RC", "reads dc rate": "reads a second, the same, DC",
            "writes rate": "writes a second, the same, RC", "writes dc rate": "writes a second, the same, DC",
            "links bytes": "memory of 5,000 connections, KRCore; own: of 5,000 links",
            "connection bytes": "memory of one connection, LITE; own: one end, of a pool"}
    with pytest.raises(KeyError):
        page.render(figures)
    known = {}
    for name, claim in slow.items():
        cells = next(line for line in text.splitlines() if line.startswith(f"| {claim} |")).split(" | ")
        cell = cells[5 if "bytes" in name else 2]
        known[name] = float(cell.split()[0].replace(",", "")) * (
            1e6 if "MB" in cell else 1024 if "KB" in cell else 1.0)
        own = re.match(r"[\d.]+", cells[5])
        if own and "bytes" not in name:
            known[name.replace(" rate", " daemon rate")] = float(own[0])
    assert page.write(tmp_path / "docs", figures | known).read_text() == text


def test_every_cost_has_a_kind_and_a_source() -> None:
    found = [one for one in vars(costs).values() if isinstance(one, costs.Cost)]
    assert sorted(one.name for one in found) == sorted(one.name for one in costs.COSTS)
    kinds = {costs.GIVEN, costs.CALIBRATED, costs.MEASURED, costs.ASSUMED}
    assert all(one.kind in kinds and one.source and one.value > 0 for one in costs.COSTS)


def test_what_was_calibrated_predicts_nothing() -> None:
    near, far = Row("a", 10.0, "us", PLAYED, 10.9), Row("b", 10.0, "us", PLAYED, 12.4)
    same, cost = Row("c", 10.0, "us", CALIBRATED, 10.0), Row("d", 10.0, "us", GIVEN, 10.0)
    bound, none = Row("e", 7.0, "%", PLAYED, 5.0, bound=True), Row("f", None, "us", PLAYED, 5.0)
    assert "Of 2 figures that the model predicts 1 are within a tenth of the paper's, and 2" in page.agreement(
        [near, far, same, cost, bound, none])
    assert page.row_text(bound) == "| e | < 7% | 5% | holds | played | - |"
    assert page.row_text(far) == "| b | 10 us | 12.4 us | +24% | played | - |"
    assert page.row_text(none) == "| f | - | 5 us | - | played | - |"
    assert page.deviation_text(Row("e", 7.0, "%", PLAYED, 8.0, bound=True)) == "doesn't hold"


def test_real_runs_are_kept(tmp_path: Path) -> None:
    """What the benchmark of links says goes to a file, and from there into the page; without one that is said."""
    kept = tmp_path / "real.json"
    assert "spindle paper krcore --real" in real.section(kept)
    us = {"p50": 20.13, "p99": 1234.5}
    real.keep({"rounds": 500, "ratios": {}, **dict.fromkeys(real.ROWS, us)}, kept)
    found = real.section(kept)
    assert "500 rounds" in found and found.count("| 20.1 us | 1,234 us |") == len(real.ROWS)


def test_the_page_in_the_tree_has_the_real_runs_that_are_kept(text: str) -> None:
    assert real.KEPT.exists() and f"## Real runs\n\n{real.section()}\n" in text
