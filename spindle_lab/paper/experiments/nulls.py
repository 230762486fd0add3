"""Null sends: senders that are late, and senders that aren't."""

from __future__ import annotations

import math
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

DELAYS = {"1 us": 1.0, "100 us": 100.0, "for ever": math.inf}
GROUPS = (2, 4, 8, 11, 16)


class Delays(Experiment):
    name = "delays"
    title = "Delayed senders"
    place = "Figure 10, section 4.2.1"
    says = ("All senders, 10 KB, null sends on top of batching; one sender or half of them busy-wait after each "
            "message: 1 us, 100 us, for ever. In every case but that of half for ever throughput rises, up to 10.0 "
            "GB/s. With 16 members, one of them delayed by 100 us, that one sends nulls in 517,000 passes and "
            "another one in 189,000, while those send a million messages each; the time between deliveries falls "
            "from 3.779 us with 2 members to 1.617 us with 8 and 1.192 us with 16.")
    columns = 2
    gaps = {2: 3.779, 8: 1.617, 16: 1.192}

    def runs(self) -> dict[Key, Run]:
        found: dict[Key, Run] = {("none", float(n)): Run(members=n, techniques="nulls") for n in GROUPS}
        for text, us in DELAYS.items():
            for n in GROUPS:
                found["one " + text, float(n)] = Run(members=n, techniques="nulls", delayed=1, delay_us=us)
                found["half " + text, float(n)] = Run(members=n, techniques="nulls", delayed=n // 2, delay_us=us)
                if not math.isinf(us):
                    # Without nulls everybody is as slow as the slowest: fewer messages are as steady.
                    found["no nulls " + text, float(n)] = Run(members=n, techniques="batching", delayed=1, delay_us=us,
                                                              messages=200)
        return found

    @staticmethod
    def swift(r: Results, name: str, members: int = 16) -> float:
        """Messages/s of a sender that isn't delayed."""
        return r.of(name, members, "sent/swift") / r.of(name, members, "seconds")

    @staticmethod
    def null_passes(r: Results, who: str = "swift") -> float:
        """Passes with nulls for each million messages of a sender that isn't delayed, with one delayed by 100 us."""
        return r.of("one 100 us", 16, f"null_laps/{who}") * 1e6 / r.of("one 100 us", 16, "sent/swift")

    def compare(self, r: Results) -> list[Comparison]:
        series = [f"{who} {text}" for text in DELAYS for who in ("one", "half")]
        return [
            *(Comparison(f"{name.replace(' ', ' delayed ', 1)}: throughput over that without, 16 members", None,
                         r.of(name, 16) / r.of("none", 16), "x") for name in series),
            *(Comparison(f"{name.replace(' ', ' delayed ', 1)}: what each other one sends, likewise", None,
                         self.swift(r, name) / self.swift(r, "none"), "x") for name in series),
            Comparison("highest of all cases with more than 2 members", 10.0,
                       max(r.of(name, n) for name in series for n in GROUPS if n > 2), "GB/s"),
            *(Comparison(f"one delayed 100 us: time between deliveries, {n} members", gap,
                         1e6 / r.of("one 100 us", n, "messages_s"), "us") for n, gap in self.gaps.items()),
            Comparison("one delayed 100 us, 16 members: passes with nulls of the delayed one, per million messages of "
                       "another", 517e3, self.null_passes(r, "slow")),
            Comparison("the same, passes with nulls of another one", 189e3, self.null_passes(r)),
            Comparison("one delayed 100 us, 16 members: with nulls over without", None,
                       r.of("one 100 us", 16) / r.of("no nulls 100 us", 16), "x"),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, who in zip(plots.axes_of(figure, 2, sharey=True), ("one", "half"), strict=True):
            names = {"none": "no delay"} | {f"{who} {text}": text for text in DELAYS}
            plots.lines(axes, r, fitted, names)
            if who == "one":
                plots.lines(axes, r, None, {"no nulls 100 us": "100 us, without nulls"}, first_color=5)
            plots.paper_level(axes, 10.0, "paper: highest")
            plots.finish(axes, "members", "GB/s delivered at each node",
                         "one sender delayed" if who == "one" else "half of the senders delayed", fitted=True)

    def remark(self, r: Results, fitted: Results | None) -> str:
        def swift(name: str) -> float:
            return self.swift(r, name) / self.swift(r, "none")

        return (
            "The promise holds in the model: without nulls one sender that takes 100 us for a message holds 16 "
            f"members down to {r.of('no nulls 100 us', 16):.1f} GB/s; with them the others send "
            f"{swift('one 100 us'):.2f} times what they send if nobody is late, with half of them late "
            f"{swift('half 100 us'):.2f} times, and {swift('one for ever'):.2f} and {swift('half for ever'):.2f} "
            "times if these never send (a round then waits for nulls that are sent when the round is seen).\n\nThe "
            "total does not rise, though. Each sender's port carries its messages to all others; what a sender "
            "doesn't send, the others' ports can't make up for. The paper's rise comes of a system that was not at "
            "the link's end before, and in which passes that take longer make better batches. In the model that is "
            "seen where senders are delayed by 1 us only, with 4 to 11 members."
            + ("" if fitted is None else
               " With the fitted table, which is not at the link's end, it rises with 16 members where the paper's "
               "does, but for half of the senders delayed by 100 us. With what the reference's code costs it rises by "
               "a few percent at most.")
            + "\n\nA sender that isn't delayed "
            "sends no nulls in the model: nothing but 10% of jitter makes it late. The paper's did in 189,000 passes "
            "of a run that took some 19 s (16 million messages at 1.192 us), 10,000 a second: too many for the timer "
            "and other interrupts of a core that a thread has for itself." + (
                "" if fitted is None else
                " With the fitted table, where it has work to do for each message and waits for the lock, it is late "
                f"in {self.null_passes(fitted):,.0f}."))


class Nulls(Experiment):
    name = "nulls"
    title = "Null sends where nobody is late"
    place = "Figure 11, section 4.2.2"
    says = ("Continuous senders, 10 KB, null sends on top of batching. With all senders small groups lose up to "
            "25%, larger ones gain; with half of them the loss is almost negligible; with one sender there can be "
            "no nulls, and no cost.")

    def runs(self) -> dict[Key, Run]:
        found = {
            (f"{techniques} {pattern}", float(n)): Run(members=n, senders=senders(pattern, n), techniques=techniques)
            for techniques in ("batching", "nulls") for pattern in PATTERNS for n in MEMBERS
        }
        found |= {(f"{techniques} paused", float(n)): Run(members=n, techniques=techniques, paused=True, messages=2000)
                  for techniques in ("batching", "nulls") for n in MEMBERS}
        return found

    def compare(self, r: Results) -> list[Comparison]:
        def least(pattern: str) -> float:
            return min(r.of(f"nulls {pattern}", n) / r.of(f"batching {pattern}", n) for n in MEMBERS)

        return [
            Comparison("all senders: with nulls over without, the worst size of the group", 0.75, least("all"), "x"),
            Comparison("all senders: mean over sizes of the group", None, r.gain("nulls all", "batching all"), "x"),
            Comparison("all senders: 16 members", None, r.of("nulls all", 16) / r.of("batching all", 16), "x"),
            Comparison("the same, threads interrupted: the worst size", 0.75, least("paused"), "x"),
            Comparison("half of the senders: the worst size", None, least("half"), "x"),
            Comparison("one sender: mean", 1.0, r.gain("nulls one", "batching one"), "x"),
            Comparison("nulls per message, all senders, 16 members", None, r.of("nulls all", 16, "nulls_per_message")),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        (axes,) = plots.axes_of(figure)
        plots.lines(axes, r, fitted, {f"nulls {p}": f"with nulls, {text}" for p, text in PATTERNS.items()})
        plots.lines(axes, r, None, {f"batching {p}": f"without, {text}" for p, text in PATTERNS.items()}, first_color=3)
        plots.finish(axes, "members", "GB/s delivered at each node", fitted=True)

    def remark(self, r: Results, fitted: Results | None) -> str:
        most = max(r.of(f"nulls {pattern}", n, "nulls_per_message") for pattern in PATTERNS for n in MEMBERS)
        few = f"hardly any nulls, at most one for {1 / most:,.0f} messages" if most else "no nulls"
        return (f"In the model continuous senders send {few}: a null is sent by who has claimed fewer slots "
                "than a message that arrives asks for, and a message takes longer to arrive than a sender is ever "
                "late here. So the switch costs nothing, and gains nothing; the look that the predicate takes is "
                "among the costs of a pass either way. "
                "What makes senders late in the paper's system the model has only in part. Interruptions as this "
                "project's machine has them (`PAUSES` in parameters.py: measured, 900 a second, of 2 to 80 us for the "
                "most part; a machine of its own has fewer) change that little: they cost "
                f"{100 * (1 - r.gain('batching paused', 'batching all')):.0f}% of throughput on average, and there "
                f"is one null for {self.per_null(r, 'nulls paused'):,.0f} messages where there are most."
                + ("" if fitted is None else
                   " With the fitted table senders have work to do for each message and wait for the lock, and are "
                   f"late more often: nulls cost up to {self.cost(fitted, 'all'):.0f}%, and up to "
                   f"{self.cost(fitted, 'paused'):.0f}% where threads are interrupted as well. The paper's 25% "
                   "of small groups are not explained by that."))

    @staticmethod
    def cost(r: Results, kind: str) -> float:
        """Percent, where it is most."""
        return 100 * max(1 - r.of(f"nulls {kind}", n) / r.of(f"batching {kind}", n) for n in MEMBERS)

    @staticmethod
    def per_null(r: Results, series: str) -> float:
        """Messages for one null, at the size of the group that has most."""
        return 1 / max(1e-9, *r.values(series, "nulls_per_message"))
