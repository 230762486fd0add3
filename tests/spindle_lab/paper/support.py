"""Runs so small that a test can play them, and an experiment made of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import Comparison, Experiment, Key, Results
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINY = Run(members=2, window=10, messages=30)


class Tiny(Experiment):
    name = "tiny"
    title = "Two members"
    place = "Figure 0"
    says = "two members deliver."
    seeds = 2

    def runs(self) -> dict[Key, Run]:
        return {("all", 2.0): TINY, ("all", 3.0): Run(members=3, window=10, messages=30)}

    def compare(self, r: Results) -> list[Comparison]:
        return [Comparison("throughput of two", 2.0, r.of("all", 2.0), "GB/s"),
                Comparison("latency of two", None, r.of("all", 2.0, "latency_us/0.5"), "us")]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        (axes,) = plots.axes_of(figure)
        plots.lines(axes, r, fitted, {"all": "all techniques"})
        plots.finish(axes, "members", "GB/s", fitted=True)

    def remark(self, r: Results, fitted: Results | None) -> str:
        return "Small groups are quick."
