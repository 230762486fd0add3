"""docs/paper.md, made from the figures of all runs: the same figures give the same page."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spindle.paper.experiments.base import Comparison, Experiment, Results
from spindle.paper.page_text import CHAPTERS, opening, parameter_table
from spindle.paper.runs import Run

# Sections that other modules fill, if they are there: each has section() -> Markdown without its heading.
MORE = {"Real runs": "spindle.paper.experiments.real"}


def figure_text(value: float | None, unit: str) -> str:
    """Three figures; what has none is a dash."""
    if value is None:
        return "-"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text + ("" if not unit else unit if unit in ("x", "%") else f" {unit}")


def comparison_table(ours: list[Comparison], fitted: list[Comparison]) -> list[str]:
    head = ["claim", "paper", "model", "model / paper", *(["fitted table"] if fitted else [])]
    rows = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for place, one in enumerate(ours):
        ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
        cells = [one.claim, figure_text(one.paper, one.unit), figure_text(one.ours, one.unit), ratio]
        if fitted:
            cells.append(figure_text(fitted[place].ours, one.unit))
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def headlines(figures: Mapping[Run, dict[str, Any]], experiments: Mapping[str, Experiment]) -> str:
    """The claims that are named at the top, of all experiments."""
    ours: list[Comparison] = []
    theirs: list[Comparison] = []
    for e in experiments.values():
        r, fitted = e.results(figures)
        for place, one in enumerate(e.compare(r)):
            if one.headline and fitted is not None:
                ours.append(one)
                theirs.append(e.compare(fitted)[place])
    return "\n".join(comparison_table(ours, theirs)) if ours else ""


def experiment_section(e: Experiment, r: Results, fitted: Results | None, picture: str) -> str:
    parts = [f"### {e.title}", f"{e.place}; `spindle paper {e.name}`.", f"The paper: {e.says}"]
    ours = e.compare(r)
    if ours:
        parts.append("\n".join(comparison_table(ours, e.compare(fitted) if fitted is not None else [])))
    parts.append(f"![{e.title}]({picture})")
    remark = e.remark(r, fitted)
    if remark:
        parts.append(remark)
    return "\n\n".join(parts)


def more_sections() -> list[str]:
    found = []
    for heading, name in MORE.items():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue
        found.append(f"## {heading}\n\n{module.section().strip()}")
    return found


def render(figures: Mapping[Run, dict[str, Any]], experiments: Mapping[str, Experiment]) -> str:
    """The page. Raises KeyError for figures that aren't there."""
    parts = [opening(), headlines(figures, experiments), parameter_table()]
    chapter = ""
    for e in experiments.values():
        if e.chapter != chapter:
            chapter = e.chapter
            parts += [f"## {chapter}", CHAPTERS[chapter]]
        r, fitted = e.results(figures)
        parts.append(experiment_section(e, r, fitted, f"paper/{e.name}.png"))
    parts += more_sections()
    return "\n\n".join(part for part in parts if part) + "\n"


def write(docs: Path, figures: Mapping[Run, dict[str, Any]], experiments: Mapping[str, Experiment]) -> None:
    """paper.md and paper/*.png. Raises NoMatplotlib."""
    from spindle.paper import plots

    for e in experiments.values():
        plots.draw(e, *e.results(figures), docs / "paper" / f"{e.name}.png")
    (docs / "paper.md").write_text(render(figures, experiments), encoding="utf-8")
