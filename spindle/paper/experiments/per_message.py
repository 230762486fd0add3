"""Not the paper's: which costs of the model the difference comes from, found by changing them one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle.paper import plots
from spindle.paper.experiments.base import Comparison, Experiment, Key, Results
from spindle.paper.parameters import PAPER, PAPER_PER_MESSAGE, PER_MESSAGE_WORK_US
from spindle.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELIVER_NS = (100.0, 200.0, 300.0, 450.0, 600.0, 900.0)
WORK_US = (0.0, 1.0, 2.0, 3.0, PER_MESSAGE_WORK_US, 6.0, 8.0)
GROUPS = (4, 11, 16)
OTHERS = {"trigger_ns": (1000.0, 8000.0), "line_ns": (5.0, 80.0), "handover_ns": (0.0, 2000.0), "lap_ns": (0.0, 1000.0),
          "claim_ns": (0.0, 500.0), "latency_ns": (1000.0, 5000.0), "post_first_ns": (300.0, 2000.0)}


class PerMessage(Experiment):
    name = "per-message"
    title = "What the difference comes from"
    place = "Not in the paper; a sensitivity of the model"
    says = ("nothing of what its code takes for a message in the predicate thread and in the application, beside "
            "copies and posts.")
    columns = 3
    seeds = 1
    fitted = False

    def runs(self) -> dict[Key, Run]:
        found: dict[Key, Run] = {}
        for techniques in ("batching", "all"):
            for n in GROUPS:
                for ns in DELIVER_NS:
                    found[f"deliver {techniques} {n}", ns] = Run(members=n, techniques=techniques,
                                                                 changes=(("deliver_ns", ns),))
                for us in WORK_US:
                    found[f"work {techniques} {n}", us] = Run(members=n, techniques=techniques, work_us=us)
                    found[f"both {techniques} {n}", us] = Run(
                        members=n, techniques=techniques, work_us=us,
                        changes=(("deliver_ns", PAPER_PER_MESSAGE.node.deliver_ns),))
            for field, values in OTHERS.items():
                for value in values:
                    found[f"{field} {techniques}", value] = Run(techniques=techniques, changes=((field, value),))
        return found

    def compare(self, r: Results) -> list[Comparison]:
        work, ns = PER_MESSAGE_WORK_US, PAPER_PER_MESSAGE.node.deliver_ns
        return [
            Comparison(f"{text}, {n} members; {change}", paper, r.of(f"{kind} {techniques} {n}", x), "GB/s")
            for techniques, n, text, paper in (("batching", 11, "batching alone", 8.03),
                                               ("all", 4, "all techniques", 9.7), ("all", 16, "all techniques", 9.7))
            for kind, x, change in (("work", 0.0, "as in the table above"),
                                    ("deliver", ns, f"a delivery costs {ns:.0f} ns"),
                                    ("work", work, f"the application {work} us"), ("both", work, "both"))
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        axes = plots.axes_of(figure, 3, sharey=True)
        ns = PAPER_PER_MESSAGE.node.deliver_ns
        for place, (kind, x) in enumerate((("deliver", f"ns of a delivery (PAPER: {PAPER.node.deliver_ns:.0f})"),
                                           ("work", "us of the application for a message (PAPER: 0)"),
                                           ("both", f"us of the application, with {ns:.0f} ns of a delivery"))):
            for color, n in enumerate(GROUPS):
                plots.lines(axes[place], r, None, {f"{kind} all {n}": f"all techniques, {n}"}, first_color=color)
                xs, ys, _ = r.line(f"{kind} batching {n}")
                axes[place].plot(xs, ys, color=plots.COLORS[color], linestyle=":", label=f"batching alone, {n}")
            plots.paper_level(axes[place], 9.7, "paper, all techniques")
            plots.finish(axes[place], x, "GB/s delivered at each node", legend=place == 1)
