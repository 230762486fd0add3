"""How the page's drawings look: ours as lines, the fitted table's dashed, the paper's numbers black and named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.errors import SpindleError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spindle_lab.paper.experiments.base import Experiment, Results

COLORS = ("#1b6ca8", "#d1603d", "#3a8f5d", "#8457a5", "#b8860b", "#5f6b73")
PAPER_COLOR = "#111111"


class NoMatplotlib(SpindleError):
    """Drawings were asked for, and there is nothing to draw with."""

    def __init__(self) -> None:
        super().__init__("drawings need matplotlib, which is not installed: pip install 'spindle-dds[plot]', "
                         "or `make paper` in the source tree")


def check() -> None:
    """Raises NoMatplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise NoMatplotlib from None


def new_figure(columns: int = 1, height: float = 4.0) -> Figure:
    check()
    from matplotlib.figure import Figure

    return Figure(figsize=(6.8 if columns == 1 else 4.4 * columns, height), dpi=110, layout="constrained")


def draw(experiment: Experiment, r: Results, fitted: Results | None, path: Path) -> None:
    """Writes a PNG. The same results give the same bytes. Raises NoMatplotlib."""
    figure = new_figure(getattr(experiment, "columns", 1))
    experiment.draw(figure, r, fitted)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def axes_of(figure: Figure, columns: int = 1, **share: Any) -> list[Axes]:
    found = figure.subplots(1, columns, squeeze=False, **share)[0]
    for axes in found:
        axes.grid(True, color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return list(found)


def lines(axes: Axes, r: Results, fitted: Results | None, names: dict[str, str], metric: str = "gb_s",
          scale: float = 1.0, first_color: int = 0) -> None:
    """One line for each series, with the standard deviation over seeds; dashed and thin with the fitted table."""
    for place, (series, label) in enumerate(names.items()):
        color = COLORS[(first_color + place) % len(COLORS)]
        xs, ys, errors = r.line(series, metric)
        axes.errorbar(xs, [y * scale for y in ys], [e * scale for e in errors], label=label, color=color, marker="o",
                      markersize=3.5, linewidth=1.6, capsize=2)
        if fitted is not None:
            xs, ys, _ = fitted.line(series, metric)
            axes.plot(xs, [y * scale for y in ys], color=color, linestyle=(0, (4, 2)), linewidth=1.0, alpha=0.75)


def paper_points(axes: Axes, points: dict[float, float], label: str = "paper") -> None:
    axes.plot(list(points), list(points.values()), linestyle="none", marker="*", markersize=11, color=PAPER_COLOR,
              label=label, zorder=5)


def paper_level(axes: Axes, value: float, label: str) -> None:
    axes.axhline(value, color=PAPER_COLOR, linewidth=0.9, linestyle=":", label=label)


def finish(axes: Axes, x: str, y: str, title: str = "", fitted: bool = False) -> None:
    """Labels, and the legend below; after all that is drawn."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, fontsize=10)
    if fitted:
        axes.plot([], [], color="#777777", linestyle=(0, (4, 2)), linewidth=1.0, label="fitted table")
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0, auto=None)
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
