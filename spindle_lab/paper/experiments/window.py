"""The ring of slots: how large it should be, and how large batches become."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import MEMBERS, Comparison, Experiment, Key, Results
from spindle_lab.paper.parameters import PER_MESSAGE_WORK_US
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOWS = (5, 10, 20, 50, 100, 200, 1000)
GROUPS = (4, 8, 16)


class Window(Experiment):
    name = "window"
    title = "Size of the ring buffer"
    place = "Figure 6, section 4.1.2"
    says = ("All senders, 10 KB, batching. A window of 5 is already 4.5x the baseline with 100, on average; 100 is "
            "best; 500 and 1000 decline from 10 members on.")
    columns = 2
    seeds = 2

    def runs(self) -> dict[Key, Run]:
        found = {(f"{n} members", float(w)): Run(members=n, window=w, techniques="batching")
                 for n in GROUPS for w in WINDOWS}
        found |= {(f"window {w}", float(n)): Run(members=n, window=w, techniques="batching")
                  for w in (5, 100, 1000) for n in MEMBERS}
        return found | {("baseline", float(n)): Run(members=n, techniques="baseline") for n in MEMBERS}

    def compare(self, r: Results) -> list[Comparison]:
        def best(n: int) -> float:
            xs, ys, _ = r.line(f"{n} members")
            return xs[ys.index(max(ys))]

        return [
            Comparison("window 5 with batching over the baseline with 100, mean", 4.5, r.gain("window 5", "baseline"),
                       "x"),
            Comparison("best window, 8 members", 100.0, best(8), "slots"),
            Comparison("best window, 16 members", 100.0, best(16), "slots"),
            Comparison("window 1000 over 100, 8 members", None,
                       r.of("8 members", 1000) / r.of("8 members", 100), "x"),
            Comparison("window 1000 over 100, 16 members", None,
                       r.of("16 members", 1000) / r.of("16 members", 100), "x"),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        left, right = plots.axes_of(figure, 2)
        left.set_xscale("log")
        plots.lines(left, r, fitted, {f"{n} members": f"{n} members" for n in GROUPS})
        left.set_xticks(WINDOWS, [str(w) for w in WINDOWS])
        left.minorticks_off()
        plots.finish(left, "window, slots", "GB/s delivered at each node", fitted=True)
        plots.lines(right, r, fitted, {f"window {w}": f"window {w}" for w in (5, 100, 1000)})
        plots.lines(right, r, fitted, {"baseline": "baseline, window 100"}, first_color=5)
        plots.finish(right, "members", "GB/s delivered at each node", fitted=True)

    def remark(self, r: Results, fitted: Results | None) -> str:
        return ("The model shows why a small window is too small: no batch is larger than it, and each costs its "
                "pushes. It doesn't show why a large one would be too large: for the paper that is the memory that "
                "the predicate thread looks over and writes of up to 2 MB one after the other, and the model's "
                "lines cost the same wherever they lie. (Of a slot it is one line in 161 that the thread reads, and "
                "whether that lies in the cache is the network card's doing, which can't be measured without one.) In "
                "it a larger window gives larger batches and a longer latency, and throughput stays at the link's end. "
                "That large batches hold throughput down is seen at every window, though: what more counts in them "
                "gain is under [Large batches in pieces](#large-batches-in-pieces).")


class BatchSizes(Experiment):
    name = "batch-sizes"
    title = "Sizes of batches"
    place = "Figure 7, section 4.1.2"
    says = ("16 senders, window 100: messages are sent in batches of mostly less than 5, and delivered mostly in "
            "multiples of 16, about 1 to 5 of each sender; the means are 1.72 sent, 22.18 received and 35.19 "
            "delivered at once.")
    columns = 3
    kinds = {"send": 1.72, "receive": 22.18, "delivery": 35.19}

    def runs(self) -> dict[Key, Run]:
        return {("batching", 16): Run(techniques="batching")}

    def compare(self, r: Results) -> list[Comparison]:
        return [
            *(Comparison(f"mean {kind} batch, 16 senders", mean, r.of("batching", 16, f"batches/{kind}"), headline=True)
              for kind, mean in self.kinds.items()),
            Comparison("share of batches sent that are smaller than 5", None,
                       100 * self.share(r, "send", lambda size: size < 5), "%"),
            Comparison("share of deliveries in multiples of 16", None,
                       100 * self.share(r, "delivery", lambda size: size % 16 == 0), "%"),
        ]

    def histogram(self, r: Results, kind: str) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for seed in range(r.seeds):
            for size, count in self.kept(r, seed, kind).items():
                sizes[int(size)] = sizes.get(int(size), 0) + count
        return sizes

    @staticmethod
    def kept(r: Results, seed: int, kind: str) -> dict[str, int]:
        found: dict[str, int] = r.kept("batching", 16)[seed]["histograms"][kind]
        return found

    def share(self, r: Results, kind: str, which: Callable[[int], bool]) -> float:
        sizes = self.histogram(r, kind)
        return sum(n for size, n in sizes.items() if which(size)) / max(1, sum(sizes.values()))

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, (kind, mean) in zip(plots.axes_of(figure, 3), self.kinds.items(), strict=True):
            most = {"send": 60, "receive": 160, "delivery": 640}[kind]
            bins = [most * k / 40 for k in range(41)]
            for place, (results, label) in enumerate(((r, "model"), (fitted, "fitted table"))):
                if results is None:
                    continue
                sizes = self.histogram(results, kind)
                total = sum(sizes.values()) or 1
                axes.hist([min(size, most) for size in sizes], bins, weights=[n / total for n in sizes.values()],
                          histtype="step" if place else "stepfilled", color=plots.COLORS[place],
                          alpha=1.0 if place else 0.6, label=label)
            axes.axvline(mean, color=plots.PAPER_COLOR, linestyle=":", label=f"paper: mean {mean}")
            plots.finish(axes, f"messages in a {kind} batch (last bar: and more)", "share of batches")

    def remark(self, r: Results, fitted: Results | None) -> str:
        text = ("With no cost of its own for a message an application fills all free slots between two passes, so "
                "that it sends in bursts and everything after it is delivered in bursts.")
        if fitted is not None:
            text += (f" With {PER_MESSAGE_WORK_US} us for each message batches come near the paper's: "
                     f"{fitted.of('batching', 16, 'batches/send'):.1f}, "
                     f"{fitted.of('batching', 16, 'batches/receive'):.0f} and "
                     f"{fitted.of('batching', 16, 'batches/delivery'):.0f}, "
                     f"{100 * self.share(fitted, 'send', lambda size: size < 5):.0f}% of sends smaller than 5, and "
                     f"{100 * self.share(fitted, 'delivery', lambda size: size % 16 == 0):.0f}% of deliveries in "
                     f"multiples of 16. The paper's histogram is the best sign that its applications don't send as "
                     f"fast as they could claim slots.")
        return text
