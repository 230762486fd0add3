"""Past the paper: where the predicate thread's time and the link's time go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import PAST, Comparison, Experiment, Key, Results
from spindle_lab.paper.experiments.beyond import IMPROVED, QUICK
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THREAD = {"predicate/posting": "posts", "predicate/looking": "looks at columns", "predicate/firing": "predicates",
          "predicate/delivering": "deliveries", "predicate/idle": "idle"}
PORT = {"port/slots": "messages", "port/counts": "counts", "port/idle": "idle"}


class Profile(Experiment):
    name = "beyond-profile"
    title = "Where the time goes"
    place = "Not in the paper, but for shares of single parts"
    says = "The baseline's predicate thread posts for more than 30% of its time."
    chapter = PAST
    columns = 2
    fitted = False
    cases: Mapping[str, tuple[str, Run]] = {
        "baseline": ("baseline", Run(techniques="baseline")),
        "paper": ("paper's", Run()),
        "ours": ("improved", IMPROVED),
        "quick": ("improved, quick", replace(IMPROVED, changes=QUICK)),
        "small": ("paper's, 128 B", Run(size=128)),
        "small quick": ("improved, quick, 128 B", replace(IMPROVED, size=128, window=100, changes=QUICK)),
    }

    def runs(self) -> dict[Key, Run]:
        return {(name, float(n)): replace(run, members=n) for name, (_, run) in self.cases.items() for n in (4, 16)}

    def compare(self, r: Results) -> list[Comparison]:
        def percent(name: str, metric: str) -> float:
            return 100 * max(0.0, r.of(name, 16, metric))

        return [
            Comparison("baseline, 16 members: share of the predicate thread's time in posting (paper: more than)", 30.0,
                       percent("baseline", "predicate/posting"), "%"),
            *(Comparison(f"{self.cases[name][0]}, 16 members: {text}", None, percent(name, metric), "%")
              for name in ("paper", "ours", "quick")
              for metric, text in (("predicate/idle", "thread idle"), ("port/idle", "port idle"))),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        labels = [text.replace(", ", "\n") for text, _ in self.cases.values()]
        for axes, parts, title in zip(plots.axes_of(figure, 2, sharey=True), (THREAD, PORT),
                                      ("the predicate thread, 16 members", "a node's port, 16 members"), strict=True):
            below = [0.0] * len(labels)
            for place, (metric, text) in enumerate(parts.items()):
                heights = [100 * max(0.0, r.of(name, 16, metric)) for name in self.cases]
                axes.bar(labels, heights, bottom=below, width=0.7, label=text,
                         color="#e0e0e0" if text == "idle" else plots.COLORS[place])
                below = [low + height for low, height in zip(below, heights, strict=True)]
            axes.tick_params(axis="x", labelsize=6)
            plots.finish(axes, "", "% of the time", title)

    def remark(self, r: Results, fitted: Results | None) -> str:
        parts = THREAD | {metric: f"port: {text}" for metric, text in PORT.items()}
        rows = ["| % of the time, 16 members | " + " | ".join(text for text, _ in self.cases.values()) + " |",
                "|---" + "|---:" * len(self.cases) + "|"]
        for metric, text in parts.items():
            cells = [f"{100 * max(0.0, r.of(name, 16, metric)):.0f}" for name in self.cases]
            rows.append(f"| {text} | {' | '.join(cells)} |")
        return "\n\n".join([
            "The baseline's thread is busy all the time, and the port has almost nothing to send. With all of the "
            "paper's techniques the thread has nothing to do for "
            f"{100 * max(0.0, r.of('paper', 16, 'predicate/idle')):.0f}% of the time, and still the port is idle for "
            f"{100 * r.of('paper', 16, 'port/idle'):.0f}% of it: senders wait for slots, and these for "
            "acknowledgements, which wait behind data ([ahead of data](#acknowledgements-ahead-of-data)), and for the "
            "end of batches ([in pieces](#large-batches-in-pieces)). With both the port is full, and the thread's "
            "time goes into posts. Small messages leave the port empty: there deliveries are most of what the thread "
            "does, then posts, which is why [fewer of these](#received-and-delivered-in-one-push) were tried.",
            "\n".join(rows),
        ])
