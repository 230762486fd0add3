"""Posts after unlocking, and what all techniques together come to."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import (
    MEMBERS,
    PATTERNS,
    Comparison,
    Experiment,
    Key,
    Results,
    senders,
)
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINK_GB_S = 12.5


class Unlock(Experiment):
    name = "unlock"
    title = "Posts after the lock is released"
    place = "Figure 12, section 4.3"
    says = ("One topic, all senders, 10 KB, on top of batching and null sends: about 1.4x on average. 77.6% of the "
            "link (9.7 GB/s) are reached with 4 members and stay up to 16.")
    columns = 2

    def runs(self) -> dict[Key, Run]:
        return {(techniques, float(n)): Run(members=n, techniques=techniques)
                for techniques in ("nulls", "all") for n in MEMBERS}

    def compare(self, r: Results) -> list[Comparison]:
        above = [r.of("all", n) for n in MEMBERS if n >= 4]
        return [
            Comparison("posts after unlocking over before, mean over sizes of the group", 1.4,
                       r.gain("all", "nulls"), "x", headline=True),
            Comparison("throughput with 4 members", 9.7, r.of("all", 4), "GB/s"),
            Comparison("throughput with 16 members", 9.7, r.of("all", 16), "GB/s"),
            Comparison("least over most, 4 to 16 members (paper: very stable)", None, min(above) / max(above), "x"),
            Comparison("share of the time that a sender waits for the lock, 16 members, before", None,
                       100 * r.of("nulls", 16, "locked_share"), "%"),
            Comparison("the same, after", None, 100 * r.of("all", 16, "locked_share"), "%"),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        left, right = plots.axes_of(figure, 2)
        names = {"nulls": "posts under the lock", "all": "posts after unlocking"}
        plots.lines(left, r, fitted, names)
        plots.paper_level(left, 9.7, "paper: 9.7 from 4 members on")
        plots.finish(left, "members", "GB/s delivered at each node", fitted=True)
        plots.lines(right, r, fitted, names, "locked_share", 100)
        plots.finish(right, "members", "% of a sender's time waiting for the lock", fitted=True)

    def remark(self, r: Results, fitted: Results | None) -> str:
        text = ("With the paper's parameters there is nothing to gain: throughput is at the link's end with the "
                "lock as without, and a sender waits for the lock in "
                f"{100 * r.of('nulls', 16, 'locked_share'):.0f}% of the time with 16 members, for slots in the "
                "rest. What the technique is for shows in that share, which falls to 0, and in small groups, where "
                f"it is {100 * r.of('nulls', 2, 'locked_share'):.0f}%.")
        if fitted is not None:
            text += (" With what the reference's code costs the gain is about as large as in the paper: there "
                     "predicates hold the lock from their begin, and senders, who wait for all of that, wait for the "
                     "posts as well.")
            best = max(fitted.values("all"))
            text += (f" With the fitted table senders lose {100 * fitted.of('nulls', 16, 'locked_share'):.0f}% of "
                     f"their time to the lock, and the gain is {fitted.gain('all', 'nulls'):.2f}x on average, "
                     f"{fitted.of('all', 16) / fitted.of('nulls', 16):.2f}x with 16 members. There throughput is "
                     f"not as even as the paper's: 9.7 GB/s with 4 members (fitted), {best:.1f} with 6, "
                     f"{fitted.of('all', 16):.1f} with 16.")
        return text


class Final(Experiment):
    name = "final"
    title = "All techniques together"
    place = "Figures 16 and 17, section 4.5"
    says = ("One topic, 10 KB: from about 1 GB/s to 9.7 GB/s of a link of 12.5 GB/s, with latency lower by nearly "
            "two orders of magnitude.")
    columns = 2

    def runs(self) -> dict[Key, Run]:
        return {
            (f"{techniques} {pattern}", float(n)): Run(members=n, senders=senders(pattern, n), techniques=techniques)
            for techniques in ("baseline", "all") for pattern in PATTERNS for n in MEMBERS
        }

    def compare(self, r: Results) -> list[Comparison]:
        return [
            Comparison("baseline, all senders, mean over sizes of the group", 1.0,
                       fmean(r.values("baseline all")), "GB/s"),
            Comparison("all techniques, all senders, 16 members", 9.7, r.of("all all", 16), "GB/s", headline=True),
            Comparison("the same, mean over 4 to 16 members", 9.7,
                       fmean(r.of("all all", n) for n in MEMBERS if n >= 4), "GB/s"),
            Comparison("throughput: all techniques over the baseline, all senders, mean", 9.7,
                       r.gain("all all", "baseline all"), "x"),
            Comparison("latency (median): baseline over all techniques, all senders, mean (paper: nearly 100)", 100.0,
                       r.gain("baseline all", "all all", "latency_us/0.5"), "x"),
            Comparison("the same, one sender", None, r.gain("baseline one", "all one", "latency_us/0.5"), "x"),
            Comparison("half senders over all senders, all techniques, 16 members", None,
                       r.of("all half", 16) / r.of("all all", 16), "x"),
            Comparison("one sender, 16 members, all techniques", None, r.of("all one", 16), "GB/s"),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        left, right = plots.axes_of(figure, 2)
        names = {f"all {p}": text for p, text in PATTERNS.items()}
        plots.lines(left, r, fitted, names)
        plots.lines(left, r, None, {"baseline all": "baseline, all senders"}, first_color=5)
        plots.paper_level(left, 9.7, "paper: 9.7")
        plots.finish(left, "members", "GB/s delivered at each node", fitted=True)
        right.set_yscale("log")
        plots.lines(right, r, fitted, names, "latency_us/0.5", 1e-3)
        plots.lines(right, r, None, {"baseline all": "baseline, all senders"}, "latency_us/0.5", 1e-3, first_color=5)
        plots.finish(right, "members", "median latency, ms", fitted=True)

    def remark(self, r: Results, fitted: Results | None) -> str:
        text = ("Latency falls as throughput rises, since all techniques together keep every window full: 100 "
                "messages of each sender are on their way, in the baseline as here, and a message waits for those "
                "before it. Why the paper's latency falls by more is said under [Batching step by "
                "step](#batching-step-by-step).")
        if fitted is not None:
            of_baseline, of_all = (fitted.of(name, 4, "latency_us/0.5") for name in ("baseline all", "all all"))
            text += (" With the fitted table windows are not full in small groups, and latency is "
                     f"{of_baseline / of_all:.0f}x lower with 4 members; in larger ones senders wait for slots "
                     "again.")
        return text
