"""docs/paper.md, made from the figures of all runs: the same figures give the same page."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spindle_lab.paper.experiments.base import Comparison, Experiment
from spindle_lab.paper.page_text import CHAPTERS, opening, parameter_table
from spindle_lab.paper.runs import Run

# Sections that other modules fill, if they are there: each has section() -> Markdown without its heading.
MORE = {"Real runs": "spindle_lab.paper.experiments.real"}


def figure_text(value: float | None, unit: str) -> str:
    """Three figures; what has none is a dash."""
    if value is None:
        return "-"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text + ("" if not unit else unit if unit in ("x", "%") else f" {unit}")


def ratio_text(one: Comparison) -> str:
    return "-" if one.ratio is None else f"{one.ratio:.2f}"


def comparison_table(ours: list[Comparison], reference: list[Comparison], fitted: list[Comparison]) -> list[str]:
    head = ["claim", "paper", "model", "model / paper", *(["reference's code", "/ paper"] if reference else []),
            *(["fitted table"] if fitted else [])]
    rows = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for place, one in enumerate(ours):
        cells = [one.claim, figure_text(one.paper, one.unit), figure_text(one.ours, one.unit), ratio_text(one)]
        if reference:
            cells += [figure_text(reference[place].ours, one.unit), ratio_text(reference[place])]
        if fitted:
            cells.append(figure_text(fitted[place].ours, one.unit))
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def headlines(figures: Mapping[Run, dict[str, Any]], experiments: Mapping[str, Experiment]) -> str:
    """The claims that are named at the top, of all experiments."""
    found: list[tuple[Comparison, Comparison, Comparison]] = []
    for e in experiments.values():
        r, fitted = e.results(figures)
        reference = e.reference(figures)
        if fitted is not None and reference is not None:
            rows = zip(e.compare(r), e.compare(reference), e.compare(fitted), strict=True)
            found += [row for row in rows if row[0].headline]
    ours, theirs, last = ([row[column] for row in found] for column in range(3))
    return "\n".join(comparison_table(ours, theirs, last)) + f"\n\n{agreement(ours, theirs, last)}" if ours else ""


def agreement(ours: list[Comparison], reference: list[Comparison], fitted: list[Comparison]) -> str:
    """How many figures are within a quarter of the paper's."""
    def near(column: list[Comparison]) -> int:
        return sum(one.ratio is not None and 0.75 <= one.ratio <= 1.25 for one in column)

    return (f"Of these {len(ours)} figures {near(ours)} are within a quarter of the paper's with the paper's "
            f"parameters, {near(reference)} with what the reference's code costs, {near(fitted)} with the fitted "
            "table.")


def experiment_section(e: Experiment, figures: Mapping[Run, dict[str, Any]], picture: str) -> str:
    r, fitted = e.results(figures)
    reference = e.reference(figures)
    parts = [f"### {e.title}", f"{e.place}; `spindle paper {e.name}`.", f"The paper: {e.says}"]
    ours = e.compare(r)
    if ours:
        others = [e.compare(results) if results is not None else [] for results in (reference, fitted)]
        parts.append("\n".join(comparison_table(ours, *others)))
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
        parts.append(experiment_section(e, figures, f"paper/{e.name}.png"))
    parts += more_sections()
    return "\n\n".join(part for part in parts if part) + "\n"


def write(docs: Path, figures: Mapping[Run, dict[str, Any]], experiments: Mapping[str, Experiment]) -> None:
    """paper.md and paper/*.png. Raises NoMatplotlib."""
    from spindle_lab.paper import plots

    for e in experiments.values():
        plots.draw(e, *e.results(figures), docs / "paper" / f"{e.name}.png")
    (docs / "paper.md").write_text(render(figures, experiments), encoding="utf-8")
