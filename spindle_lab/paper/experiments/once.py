"""Past the paper: what a pass acknowledges in one push."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import MEMBERS, PAST, Comparison, Experiment, Key, Results
from spindle_lab.paper.experiments.beyond import IMPROVED, P50, QUICK, members
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {"paper": "paper's", "ours": "improved", "quick": "quick, window 12", "small": "128 B", "one": "one sender",
         "topics": "10 topics"}  # of the cases below, in drawings
WAYS = {"each": False, "once": True}


class Once(Experiment):
    name = "beyond-once"
    title = "Received and delivered in one push"
    place = "Not in the paper; its section 3.2 batches each of the two by itself"
    says = ("What a node has received is acknowledged with one push for a batch, and what it has delivered with "
            "another one.")
    chapter = PAST
    columns = 2
    fitted = False
    cases: Mapping[str, tuple[str, Run]] = {
        "paper": ("paper's, 10 KB", Run()),
        "ours": ("improved, 10 KB", IMPROVED),
        "quick": ("improved, quick, window 12, 10 KB", replace(IMPROVED, window=12, changes=QUICK)),
        "small": ("paper's, 128 B", Run(size=128)),
        "one": ("paper's, one sender", Run(senders=1)),
        "topics": ("paper's, 10 topics, one active", Run(topics=10)),
    }

    def runs(self) -> dict[Key, Run]:
        return {(f"{name} {way}", float(n)): replace(run, members=n, once=once)
                for name, (_, run) in self.cases.items() for way, once in WAYS.items() for n in MEMBERS}

    def over(self, r: Results, name: str, n: float, metric: str) -> float:
        return r.of(f"{name} once", n, metric) / r.of(f"{name} each", n, metric)

    def mean_over(self, r: Results, metric: str) -> float:
        return statistics.fmean(self.over(r, name, n, metric) for name in self.cases for n in MEMBERS)

    def compare(self, r: Results) -> list[Comparison]:
        return [
            Comparison(f"{text}: throughput in one push over two, mean over sizes of the group", None,
                       statistics.fmean(self.over(r, name, n, "gb_s") for n in MEMBERS), "x")
            for name, (text, _) in self.cases.items()
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, metric, text in zip(plots.axes_of(figure, 2), ("gb_s", P50), ("throughput", "median latency"),
                                      strict=True):
            for place, (name, label) in enumerate(SHORT.items()):
                axes.plot(MEMBERS, [self.over(r, name, n, metric) for n in MEMBERS], color=plots.COLORS[place],
                          marker="o", markersize=3.5, label=label)
            axes.axhline(1.0, color="#888888", linestyle=":", linewidth=1.0)
            plots.finish(axes, "members", f"{text}, one push over two")
            axes.set_ylim(bottom=0.6)

    def remark(self, r: Results, fitted: Results | None) -> str:
        def rows(metric: str) -> str:
            lines = [f"| | {' | '.join(members(n) for n in MEMBERS)} |", "|---" + "|---:" * len(MEMBERS) + "|"]
            lines += [f"| {text} | {' | '.join(f'{self.over(r, name, n, metric):.2f}' for n in MEMBERS)} |"
                      for name, (text, _) in self.cases.items()]
            return "\n".join(lines)

        rates = [self.over(r, name, n, "gb_s") for name in self.cases for n in MEMBERS]
        small = statistics.fmean(self.over(r, "small", n, "gb_s") for n in MEMBERS if n >= 4)
        spread = statistics.fmean(r.deviation(f"{name} {way}", n) / r.of(f"{name} {way}", n)
                                  for name in self.cases for way in WAYS for n in MEMBERS)
        return "\n\n".join([
            "Both numbers stand in one line of a node's row, so a pass that raises both could push that line once, at "
            "its end, and what several topics have to acknowledge as one list of posts. Here the fabric holds "
            "acknowledgements back until the pass is over; the core is the same. That saves "
            f"{1 - self.mean_over(r, 'writes_per_message'):.0%} of all writes on average, and gains nothing on "
            f"average: throughput changes by {self.mean_over(r, 'gb_s') - 1:+.1%}, median latency by "
            f"{self.mean_over(r, P50) - 1:+.1%}; single "
            f"points lie between {min(rates) - 1:+.0%} and {max(rates) - 1:+.0%} of throughput, where seeds differ by "
            f"{spread:.1%} (standard deviation). With 128 B, where the thread is scarce, it gains "
            f"{small - 1:.1%} with 4 members and more, and loses {1 - self.over(r, 'small', 2, 'gb_s'):.0%} with 2. "
            "What a write costs is gained; what is lost is that others learn of a batch only after it has been "
            "delivered here, upcalls included, and wait for that. Upcalls take no time in these runs; long ones would "
            "hold up everybody else's deliveries, not the own ones alone. The core pushes each by itself.",
            "Throughput, one push over two:",
            rows("gb_s"),
            "median latency:",
            rows(P50),
            "writes for a message:",
            rows("writes_per_message"),
        ])
