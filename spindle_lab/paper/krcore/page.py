"""docs/paper-krcore.md, made from the figures: the same figures give the same page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spindle_core.links.directory import WINDOW_SIZE
from spindle_lab.paper.krcore import costs, plays, real
from spindle_lab.paper.krcore.network import wire_ns
from spindle_lab.paper.krcore.page_text import CONTRADICTIONS, GUEST, KINDS, LEFT_OUT, OPENING, OWN, REMARKS
from spindle_lab.paper.krcore.rows import LINKS, MESH, Figures, Row, rows
from spindle_lab.paper.page import figure_text

NAME = "paper-krcore.md"


def deviation_text(row: Row) -> str:
    if row.bound and row.paper is not None and row.model is not None:
        return "holds" if row.model < row.paper else "doesn't hold"
    if row.deviation is None:
        return "-"
    return f"{row.deviation:+.0f}%" if abs(row.deviation) >= 0.5 else "0%"


def _with_kind(value: float | None, unit: str, kind: str) -> str:
    return "-" if value is None else f"{figure_text(value, unit)}, {kind}"


def row_text(row: Row) -> str:
    paper = ("< " if row.bound else "") + figure_text(row.paper, row.unit)
    cells = [row.claim, paper, figure_text(row.model, row.unit), deviation_text(row),
             "-" if row.model is None else row.kind, _with_kind(row.own, row.unit, row.own_kind)]
    return "| " + " | ".join(cells) + " |"


def table(found: Iterable[Row]) -> str:
    return "\n".join(["| | paper | model | deviation | kind | this project's structure |",
                      "|---|---:|---:|---:|---|---:|", *map(row_text, found)])


def agreement(found: Iterable[Row]) -> str:
    """How near the predictions are."""
    deviations = [abs(row.deviation) for row in found if row.predicts and row.deviation is not None]
    tenth, quarter = (sum(one <= limit for one in deviations) for limit in (10, 25))
    return (f"Of {len(deviations)} figures that the model predicts {tenth} are within a tenth of the paper's, and "
            f"{quarter} within a quarter.")


def cost_table() -> str:
    out = ["| cost | value | kind | source |", "|---|---:|---|---|"]
    for one in costs.COSTS:
        value = f"{one.value:.3g}" if abs(one.value) < 1000 else f"{one.value:,.0f}"
        out.append(f"| `{one.name}` | {' '.join([value, one.unit]).strip()} | {one.kind} | {one.source} |")
    return "\n".join(out)


def own_text(f: Figures) -> str:
    """What this project's structure does otherwise, and what follows."""
    find_ns = costs.POOL_FIND.value + costs.POOL_LOOKUP.value
    return OWN.strip().format(
        read=f["read"], read_daemon=f["read daemon"], find=f["find us"], python=find_ns / 1e3, cached=f["cached"],
        find_rate=f["find 240 rate"], by_port=1e3 / wire_ns(WINDOW_SIZE), pools=plays.HOSTS - 1,
        by_python=(plays.HOSTS - 1) / find_ns * 1e3,
        mesh_links=f["mesh links"], mesh_all=MESH, mesh_reads=f["mesh lookups"], mesh=f["mesh us"],
        link_kb=f["links bytes"] / LINKS / 1024, connection_kb=f["connection bytes"] / 1024)


def remarks(f: Figures) -> str:
    return REMARKS.strip().format(rate=f["connect 240 rate"], device=1e3 / (2 * costs.DEVICE_READ.value))


def render(f: Figures) -> str:
    """The page. KeyError for figures that aren't there."""
    sections = rows(f)
    parts = [OPENING.strip(), KINDS.strip(), "## What it comes to",
             agreement(row for found in sections.values() for row in found)]
    for section, found in sections.items():
        parts += [f"### {section}", table(found)]
    parts += ["### Where the model and the paper differ", remarks(f),
              "## Where this project's structure differs", own_text(f),
              "## Real runs", real.section(), "## Counts on a guest", GUEST.strip(),
              "## Where the paper's text contradicts itself", CONTRADICTIONS.strip(),
              "## What is left out", LEFT_OUT.strip(),
              "## Costs", "All that the model takes (`spindle_lab/paper/krcore/costs.py`). Sections and figures are "
              "the paper's. What is measured was so on a two-core x86-64 virtual machine, by `spindle paper krcore "
              "--measure`.", cost_table()]
    return "\n\n".join(parts) + "\n"


def write(docs: Path, f: Figures) -> Path:
    """Into that directory; returns the page."""
    docs.mkdir(parents=True, exist_ok=True)
    path = docs / NAME
    path.write_text(render(f), encoding="utf-8")
    return path
