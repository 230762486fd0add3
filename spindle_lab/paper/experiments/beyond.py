"""Past the paper: what else there is to gain, each lever beside the paper's configuration in the same runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spindle.group.topics import choose_window
from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import MEMBERS, PAST, Comparison, Experiment, Key, Results, grid
from spindle_lab.paper.parameters import PAPER
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINK_GB_S = 12.5
SLOT = 10240
RANGE_COST = 4096  # bytes; this and the next are those of the fabric over verbs (verbs_table.pyx)
PUSH_BYTES = 64 << 10
CHOSEN = choose_window(SLOT)
IMPROVED = Run(window=CHOSEN, range_cost=RANGE_COST, push_bytes=PUSH_BYTES, ahead=True)
# What a predicate that fires costs in this core, its posts and deliveries not counted: measured 26 ns with everything
# in the cache of one core (`spindle paper measure`); the rest is for lines that are not.
TRIGGER_NS = 100.0
QUICK = (("trigger_ns", TRIGGER_NS),)
P50, P99 = "latency_us/0.5", "latency_us/0.99"


def table(r: Results, names: Mapping[str, str], xs: Sequence[float], head: Callable[[float], str],
          metric: str = "gb_s", text: Callable[[float], str] = "{:.1f}".format) -> str:
    """A row for each series."""
    rows = [f"| | {' | '.join(head(x) for x in xs)} |", "|---" + "|---:" * len(xs) + "|"]
    rows += [f"| {label} | {' | '.join(text(r.of(series, x, metric)) for x in xs)} |"
             for series, label in names.items()]
    return "\n".join(rows)


def members(x: float) -> str:
    return f"{x:.0f} members"


def whole(value: float) -> str:
    return f"{value:,.0f}"


class Beyond(Experiment):
    name = "beyond"
    title = "All improvements together"
    place = "Not in the paper"
    says = ("With all its techniques 10 KB messages of all senders come to 9.7 GB/s with 4 to 16 members, 77.6% of the "
            "link.")
    chapter = PAST
    columns = 2
    fitted = False
    configurations: Mapping[str, tuple[str, Run]] = {
        "paper": ("paper's", Run()),
        "ours": ("improved", IMPROVED),
        "ours 20": ("improved, window 20", replace(IMPROVED, window=20)),
        "paper, quick": ("paper's, quick", Run(changes=QUICK)),
        "ours, quick": ("improved, quick", replace(IMPROVED, changes=QUICK)),
        "ours 12, quick": ("improved, quick, window 12", replace(IMPROVED, window=12, changes=QUICK)),
    }

    def runs(self) -> dict[Key, Run]:
        return grid(self.configurations, MEMBERS, lambda name, n: replace(self.configurations[name][1], members=n))

    def compare(self, r: Results) -> list[Comparison]:
        found = []
        for name, (text, _) in self.configurations.items():
            least = min(r.of(name, n) for n in MEMBERS if n >= 4)
            found += [
                Comparison(f"{text}: share of the link, the least of 4 to 16 members", 77.6, 100 * least / LINK_GB_S,
                           "%"),
                Comparison(f"{text}: median latency, 16 members", None, r.of(name, 16, P50), "us"),
            ]
        found += [
            Comparison(f"median latency, 16 members: {self.configurations[ours][0]}, over: "
                       f"{self.configurations[theirs][0]}", None, r.of(ours, 16, P50) / r.of(theirs, 16, P50), "x")
            for ours, theirs in (("ours", "paper"), ("ours 20", "paper"), ("ours, quick", "paper, quick"),
                                 ("ours 12, quick", "paper, quick"))
        ]
        return found

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        left, right = plots.axes_of(figure, 2)
        names = {name: text for name, (text, _) in self.configurations.items()}
        plots.lines(left, r, None, names)
        plots.paper_level(left, 0.85 * LINK_GB_S, "85% of the link")
        plots.paper_level(left, 9.7, "paper: 9.7")
        plots.finish(left, "members", "GB/s delivered at each node")
        plots.lines(right, r, None, names, P50, 1e-3)
        plots.finish(right, "members", "median latency, ms")

    def remark(self, r: Results, fitted: Results | None) -> str:
        names = {name: text for name, (text, _) in self.configurations.items()}
        return "\n\n".join([
            "The improvements: acknowledgements on a connection of their own, so that they don't wait behind data; "
            f"a count after each {PUSH_BYTES >> 10} KB of a batch instead of one at its end; ranges of slots posted "
            f"apart where that costs less than what lies between them (up to {RANGE_COST:,} bytes go along); and a "
            f"window chosen by the size of the slots ({CHOSEN} here instead of 100). What each gains by itself is "
            "below. With them the link is full from 4 members on, and latency is less by as much as the window is "
            "smaller, and somewhat more. (A node's own messages don't come to it through its link, so that n senders "
            "can deliver n / (n - 1) of 12.5 GB/s.) Smaller windows are shown as well. For 85% of the link, where "
            "predicates are slow, 20 slots are enough from 6 members on, but not for fewer, of whom each has to have "
            "more on its way; where they are quick, 12 slots are.",
            "GB/s delivered at each node:",
            table(r, names, MEMBERS, members),
            f"the same as percent of the link of {LINK_GB_S} GB/s:",
            table(r, names, MEMBERS, members, text=lambda rate: f"{100 * rate / LINK_GB_S:.0f}%"),
            "latency in microseconds, median:",
            table(r, names, MEMBERS, members, P50, whole),
            "and the 99th of a hundred:",
            table(r, names, MEMBERS, members, P99, whole),
        ])


class Acknowledgements(Experiment):
    name = "beyond-acks"
    title = "Acknowledgements ahead of data"
    place = "Not in the paper; its section 3.2 batches acknowledgements"
    says = ("Acknowledgements are pushed through the same connections as messages, whose order guards them both.")
    chapter = PAST
    columns = 2
    fitted = False
    windows = (100, CHOSEN, 20)

    def runs(self) -> dict[Key, Run]:
        found: dict[Key, Run] = {}
        for n in MEMBERS:
            for window in self.windows:
                for ahead in (False, True):
                    key = f"{'ahead' if ahead else 'behind'} {window}"
                    found[key, float(n)] = Run(members=n, window=window, ahead=ahead)
                    found[key + " quick", float(n)] = Run(members=n, window=window, ahead=ahead, changes=QUICK)
        return found

    def compare(self, r: Results) -> list[Comparison]:
        return [
            Comparison(f"throughput, window {window}{text}: ahead over behind, mean over 4 to 16 members", None,
                       sum(r.of(f"ahead {window}{quick}", n) / r.of(f"behind {window}{quick}", n)
                           for n in MEMBERS if n >= 4) / len([n for n in MEMBERS if n >= 4]), "x")
            for quick, text in (("", ""), (" quick", ", quick")) for window in self.windows
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        left, right = plots.axes_of(figure, 2)
        names = {f"{way} {window}": f"{way}, window {window}" for window in self.windows for way in ("behind", "ahead")}
        plots.lines(left, r, None, names)
        plots.finish(left, "members", "GB/s delivered at each node")
        right.set_yscale("log")
        plots.lines(right, r, None, names, "acknowledgement_us")
        plots.finish(right, "members", "us of an acknowledgement's way")

    def remark(self, r: Results, fitted: Results | None) -> str:
        names = {f"{way} {window}{quick}": f"{way}, window {window}{text}"
                 for quick, text in (("", ""), (" quick", ", quick")) for window in self.windows
                 for way in ("behind", "ahead")}
        return "\n\n".join([
            "A node's connection to a peer carries its messages and its acknowledgements in the order in which they "
            "were posted. So an acknowledgement waits until all data in front of it has left, and the port sends to "
            "all peers in turn: up to a window for each of them. It guards nothing, so nothing asks for that order. "
            "The core pushes what a node has received and delivered apart from what it has published, and a fabric "
            "may let it go first: over RDMA on a second connection to each peer, which is what it costs. From "
            f"post to sight an acknowledgement takes {r.of('behind 100', 16, 'acknowledgement_us'):.0f} us with 16 "
            f"members and a window of 100, and {r.of('ahead 100', 16, 'acknowledgement_us'):.1f} us ahead of "
            "data.\n\nThe gain is uneven. Senders that send in bursts wait until whole bursts are acknowledged, "
            "whichever way that goes, and whether a run settles in bursts or in an even flow is for chance: with 16 "
            "members and a window of 50 nothing is gained. What ends the bursts is next.",
            "GB/s delivered at each node; behind data or ahead of them:",
            table(r, names, MEMBERS, members),
        ])


class Pieces(Experiment):
    name = "beyond-pieces"
    title = "Large batches in pieces"
    place = "Not in the paper; section 4.1.2 finds that large batches don't give good throughput"
    says = ("What the send predicate finds leaves as one write or two for each member, with a count behind; large "
            "batches \"do not give good throughput with a simple multicast send scheme of SMC (sequential send)\".")
    chapter = PAST
    columns = 2
    fitted = False
    seeds = 2
    pieces = (4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)
    groups = (4, 16)
    cases: Mapping[str, tuple[str, Run]] = {
        "behind": ("behind, window 100", Run()),
        "ahead": ("ahead, window 100", Run(ahead=True)),
        "ahead 20": ("ahead, window 20", Run(ahead=True, window=20)),
        "quick 20": ("ahead, window 20, quick", Run(ahead=True, window=20, changes=QUICK)),
    }

    def runs(self) -> dict[Key, Run]:
        found: dict[Key, Run] = {}
        for name, (_, run) in self.cases.items():
            for n in self.groups:
                found |= {(f"{name} {n}", float(size)): replace(run, members=n, push_bytes=size)
                          for size in self.pieces}
                found[f"{name} {n} whole", 0.0] = replace(run, members=n)
        return found

    def compare(self, r: Results) -> list[Comparison]:
        return [Comparison(f"{text}, {n} members: pieces of {PUSH_BYTES >> 10} KB over whole batches", None,
                           r.of(f"{name} {n}", PUSH_BYTES) / r.of(f"{name} {n} whole", 0.0), "x")
                for name, (text, _) in self.cases.items() for n in self.groups]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, n in zip(plots.axes_of(figure, 2, sharey=True), self.groups, strict=True):
            axes.set_xscale("log", base=2)
            plots.lines(axes, r, None, {f"{name} {n}": text for name, (text, _) in self.cases.items()})
            for place, name in enumerate(self.cases):
                axes.axhline(r.of(f"{name} {n} whole", 0.0), color=plots.COLORS[place], linestyle=":", linewidth=1.0)
            axes.set_xticks(self.pieces, [f"{size >> 10}" for size in self.pieces])
            plots.finish(axes, "KB of a piece (dotted: whole batches)", "GB/s delivered at each node", f"{n} members")

    def remark(self, r: Results, fitted: Results | None) -> str:
        def label(n: int) -> dict[str, str]:
            return {f"{name} {n}": text for name, (text, _) in self.cases.items()}

        def rows(n: int, metric: str, text: Callable[[float], str]) -> str:
            lines = table(r, label(n), self.pieces, lambda x: f"{x / 1024:.0f} KB", metric, text).splitlines()
            ends = ["whole", "---:", *(text(r.of(f"{name} {n} whole", 0.0, metric)) for name in self.cases)]
            return "\n".join(f"{line} {end} |" if "---:" not in end else f"{line}{end}|"
                             for line, end in zip(lines, ends, strict=True))

        batch = r.of("behind 16 whole", 0.0, "batches/send")
        takes_us = batch * SLOT * 15 / PAPER.network.bytes_s * 1e6
        return "\n\n".join([
            "A member sees nothing of a batch before its count, which follows all of it: with 16 members and a window "
            f"of 100 a batch has {batch:.0f} messages, and at a port that sends to 15 members in turn it takes "
            f"{takes_us:.0f} us. Then all of it is acknowledged, delivered and free at once, and the next burst "
            "begins; in between links are idle. The profile above shows both, a thread and a port with nothing to do. "
            "With a count after each piece the first messages of a batch are acknowledged while the last ones leave, "
            "and the bursts dissolve. It costs posts, for which there is time; pieces of a single message cost so "
            "many that small groups lose. Without acknowledgements ahead it gains less, and not in every run: they "
            "wait behind the rest of the batch.",
            "GB/s delivered at each node, 16 members:",
            rows(16, "gb_s", "{:.1f}".format),
            "4 members:",
            rows(4, "gb_s", "{:.1f}".format),
            "and median latency with 16 members, us:",
            rows(16, P50, whole),
        ])


class Windows(Experiment):
    name = "beyond-windows"
    title = "Throughput and latency by the window"
    place = "Not in the paper; its Figure 6 has throughput alone"
    says = "A window of 100 gives the most throughput; nothing is said of its latency."
    chapter = PAST
    columns = 2
    fitted = False
    seeds = 2
    windows = (4, 6, 8, 12, 20, 35, 50, 100, 200)
    groups = (4, 16)
    ways: Mapping[str, tuple[str, Run]] = {
        "paper": ("paper's", Run()),
        "ahead": ("ahead", Run(ahead=True)),
        "pieces": ("ahead, in pieces", Run(ahead=True, push_bytes=PUSH_BYTES)),
        "quick": ("paper's, quick", Run(changes=QUICK)),
        "all": ("ahead, in pieces, quick", Run(ahead=True, push_bytes=PUSH_BYTES, changes=QUICK)),
    }

    def runs(self) -> dict[Key, Run]:
        return {(f"{name} {n}", float(window)): replace(run, members=n, window=window)
                for name, (_, run) in self.ways.items() for n in self.groups for window in self.windows}

    def least_window(self, r: Results, name: str, n: int, share: float) -> float | None:
        """The smallest window that gives this share of the link."""
        return next((window for window in self.windows if r.of(f"{name} {n}", window) >= share * LINK_GB_S), None)

    def compare(self, r: Results) -> list[Comparison]:
        found = []
        for name, (text, _) in self.ways.items():
            window = self.least_window(r, name, 16, 0.85)
            if window is not None:
                found.append(Comparison(f"16 members, {text}: median latency of the least window with 85% of the link "
                                        f"({window:.0f} slots)", None, r.of(f"{name} 16", window, P50), "us"))
        return found

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, n in zip(plots.axes_of(figure, 2, sharey=True), self.groups, strict=True):
            axes.set_xscale("log")
            for place, (name, (text, _)) in enumerate(self.ways.items()):
                latency, rate = r.values(f"{name} {n}", P50), r.values(f"{name} {n}")
                axes.plot(latency, rate, color=plots.COLORS[place], marker="o", markersize=3.5, label=text)
                if name == "paper":
                    for x, y, window in zip(latency, rate, self.windows, strict=True):
                        axes.annotate(str(window), (x, y), textcoords="offset points", xytext=(4, -9), fontsize=7)
            plots.paper_level(axes, 0.85 * LINK_GB_S, "85% of the link")
            ticks = [x for x in (25, 50, 100, 250, 500, 1000, 2500)
                     if axes.get_xlim()[0] <= x <= axes.get_xlim()[1]]
            axes.set_xticks(ticks, [str(x) for x in ticks])
            axes.minorticks_off()
            plots.finish(axes, "median latency, us (numbers: windows)", "GB/s delivered at each node", f"{n} members")

    def remark(self, r: Results, fitted: Results | None) -> str:
        names = {f"{name} 16": text for name, (text, _) in self.ways.items()}
        on_the_way = 16 * 100 * SLOT / (r.of("paper 16", 100) * 1e9) * 1e6
        return "\n\n".join([
            "A smaller window is no technique. Where senders wait for slots, latency is what is on its way by the rate "
            "at which it is delivered (Little's law): 16 senders with windows of 100 have 1,600 messages on their way, "
            f"at {r.of('paper 16', 100):.1f} GB/s that is {on_the_way:,.0f} us, and nothing but a smaller window "
            "makes it less. What can be gained is how small a window still fills the link: one that holds what "
            "leaves while the first message goes to all members, is acknowledged and delivered everywhere, and its "
            "slot is free again. Each lever that shortens this way moves the curve up and to the left.",
            "16 members, GB/s delivered at each node:",
            table(r, names, self.windows, lambda x: f"window {x:.0f}"),
            "and median latency, us:",
            table(r, names, self.windows, lambda x: f"window {x:.0f}", P50, whole),
        ])


class UsedParts(Experiment):
    name = "beyond-ranges"
    title = "The used part of slots"
    place = "Not in the paper; section 3.2 posts whole slots"
    says = ("A batch leaves as one or two writes of whole slots, with what messages leave unused in them: \"We do not "
            "anticipate any downsides to doing so\".")
    chapter = PAST
    columns = 2
    fitted = False
    seeds = 2
    slots: Mapping[int, tuple[int, ...]] = {SLOT: (128, 1024, 2048, 4096, 6144, 8192, 9216, 10240),
                                            1024: (64, 128, 256, 512, 768, 1024)}
    ways: Mapping[str, tuple[str, int]] = {
        "whole": ("whole slots (paper)", -1),
        "exact": ("what is used", 0),
        "adaptive": (f"gaps up to {RANGE_COST >> 10} KB go along", RANGE_COST),
    }

    def runs(self) -> dict[Key, Run]:
        found: dict[Key, Run] = {}
        for name, (_, cost) in self.ways.items():
            for slot, sizes in self.slots.items():
                for size in sizes:
                    found[f"{name} {slot}", float(size)] = Run(size=size, slot=slot, range_cost=cost)
            for size in self.slots[SLOT][:-1]:
                found[f"{name} mixed", float(size)] = Run(size=size, second_size=SLOT, range_cost=cost)
        return found

    def compare(self, r: Results) -> list[Comparison]:
        def over(size: int, better: str, worse: str) -> float:
            return r.of(better, size) / r.of(worse, size)

        return [
            Comparison("1 KB in slots of 10 KB: what is used over whole slots", None,
                       over(1024, f"exact {SLOT}", f"whole {SLOT}"), "x"),
            Comparison("every second message 1 KB, the others 10 KB: what is used over whole slots", None,
                       over(1024, "exact mixed", "whole mixed"), "x"),
            Comparison("8 KB in slots of 10 KB: what is used over whole slots", None,
                       over(8192, f"exact {SLOT}", f"whole {SLOT}"), "x"),
            Comparison("128 B in slots of 1 KB: what is used over whole slots", None,
                       over(128, "exact 1024", "whole 1024"), "x"),
            Comparison("the same, gaps going along", None, over(128, "adaptive 1024", "whole 1024"), "x"),
            Comparison("messages that fill their slots of 10 KB: what is used over whole slots", None,
                       over(SLOT, f"exact {SLOT}", f"whole {SLOT}"), "x"),
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, slot in zip(plots.axes_of(figure, 2), self.slots, strict=True):
            plots.lines(axes, r, None, {f"{name} {slot}": text for name, (text, _) in self.ways.items()})
            if slot == SLOT:
                plots.lines(axes, r, None, {"whole mixed": "whole, mixed with 10 KB",
                                            "exact mixed": "used, mixed with 10 KB"}, first_color=3)
            plots.finish(axes, "bytes of a message", "GB/s delivered at each node",
                         f"16 members, slots of {slot >> 10} KB")

    def remark(self, r: Results, fitted: Results | None) -> str:
        def rows(kind: str, sizes: Sequence[float]) -> str:
            return table(r, {f"{name} {kind}": text for name, (text, _) in self.ways.items()}, sizes,
                         lambda x: f"{x:,.0f} B", text="{:.2f}".format)

        even = PAPER.network.post_next_ns * PAPER.network.bytes_s / 1e9
        return "\n\n".join([
            "Unused bytes take the link's time, and a further write takes the predicate thread's: "
            f"{PAPER.network.post_next_ns:.0f} ns for each peer, in which the link carries {even:,.0f} bytes. Which of "
            "the two is better is for what is scarce. With slots of 10 KB that is the link: of small messages in "
            "large slots it carries mostly nothing, and exact writes gain most there, until they are so many that the "
            "thread is the limit. With slots of 1 KB it is the thread, and exact writes lose to the paper's one large "
            f"one. A limit for the gaps that go along (the core's over RDMA is {RANGE_COST:,} bytes) chooses well in "
            "both; what it gives away are messages that nearly fill large slots, where the thread has time for "
            "writes. Writes that are exact to the byte leave out even a slot's padding, which is why they lose where "
            "messages fill their slots.",
            "16 members, GB/s of payload delivered at each node, messages of one size in slots of 10 KB:",
            rows(str(SLOT), self.slots[SLOT]),
            "where every second message has 10 KB:",
            rows("mixed", self.slots[SLOT][:-1]),
            "and messages of one size in slots of 1 KB:",
            rows("1024", self.slots[1024]),
        ])


class Claims(Experiment):
    name = "beyond-claims"
    title = "Claims without a lock"
    place = "Not in the paper; section 3.4 shortens what its lock is held for"
    says = ("Applications and the predicate thread share a lock, which the paper releases before posting.")
    chapter = PAST
    columns = 2
    fitted = False
    seeds = 2
    sizes = (128, SLOT)
    ways: Mapping[str, tuple[str, str, bool]] = {
        "under": ("posts under the lock", "nulls", False),
        "after": ("posts after it (paper)", "all", False),
        "none": ("no lock", "all", True),
    }

    def runs(self) -> dict[Key, Run]:
        return {
            (f"{name} {size}{quick}", float(n)): Run(members=n, size=size, techniques=techniques, lock_free=lock_free,
                                                     changes=QUICK if quick else ())
            for name, (_, techniques, lock_free) in self.ways.items() for size in self.sizes
            for quick in ("", " quick") for n in MEMBERS
        }

    def compare(self, r: Results) -> list[Comparison]:
        return [
            Comparison(f"{size:,} B{text}: no lock over posts after unlocking, mean over sizes of the group", None,
                       r.gain(f"none {size}{quick}", f"after {size}{quick}"), "x")
            for size in self.sizes for quick, text in (("", ""), (" quick", ", quick"))
        ]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        for axes, size in zip(plots.axes_of(figure, 2), self.sizes, strict=True):
            plots.lines(axes, r, None, {f"{name} {size}": text for name, (text, _, _) in self.ways.items()},
                        "messages_s", 1e-6)
            plots.finish(axes, "members", "million messages/s at each node", f"{size:,} B")

    def remark(self, r: Results, fitted: Results | None) -> str:
        names = {f"{name} {size}": f"{text}, {size:,} B" for size in self.sizes
                 for name, (text, _, _) in self.ways.items()}
        return "\n\n".join([
            "Once it is released before posts the lock is held for some tens of nanoseconds at a time, and taking it "
            "away altogether gains nothing: what differs in the table is within what seeds differ. Here senders wait "
            "for slots, not for the lock. So the core keeps it; several applications of a node need it among "
            "themselves anyway.",
            "Million messages/s at each node:",
            table(r, names, MEMBERS, members, "messages_s", lambda value: f"{value / 1e6:.2f}"),
        ])
