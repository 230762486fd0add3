"""The fabric and memory alone: what a write costs by its size, and a copy."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from spindle_lab.paper import plots
from spindle_lab.paper.experiments.base import Comparison, Experiment, Key, Results
from spindle_lab.paper.parameters import PAPER
from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = [1, *(2**k for k in range(4, 21))]


def write_latency_us(size: int) -> float:
    """Of one write between two idle nodes, through the network model, from the call that posts it."""
    from spindle_lab.paper.flights import fly

    ((arrival_ns, _),) = fly(PAPER.network, [(PAPER.network.post_first_ns, 0, 1, size)])
    return float(arrival_ns) / 1e3


def copy_us(size: int) -> float:
    """As the model takes it from its curve."""
    points = sorted(PAPER.node.copy_ns.items())
    if size <= points[0][0]:
        return points[0][1] / 1e3
    for (low, low_ns), (high, high_ns) in pairwise(points):
        if size <= high:
            return (low_ns + (high_ns - low_ns) * (size - low) / (high - low)) / 1e3
    return points[-1][1] * size / points[-1][0] / 1e3


class WriteLatency(Experiment):
    name = "write-latency"
    title = "Latency of a write"
    place = "Figure 1, section 3.2"
    says = ("The latency of an RDMA write grows little with small sizes, from 1.73 us for 1 byte to 2.46 us for 4 "
            "KB: an acknowledgement costs about as much as some KB of data. Posting a write takes about 1 us.")
    fitted = False
    paper = {1: 1.73, 4096: 2.46}

    def runs(self) -> dict[Key, Run]:
        return {}

    def compare(self, r: Results) -> list[Comparison]:
        return [Comparison(f"write of {size} byte{'s' if size > 1 else ''}", us, write_latency_us(size), "us")
                for size, us in self.paper.items()]

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        (axes,) = plots.axes_of(figure)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.plot(SIZES, [write_latency_us(size) for size in SIZES], color=plots.COLORS[0], marker="o", markersize=3.5,
                  label="model")
        plots.paper_points(axes, {float(size): us for size, us in self.paper.items()})
        plots.finish(axes, "bytes of a write", "latency, us")

    def remark(self, r: Results, fitted: Results | None) -> str:
        return ("These two numbers are parameters, so that they come out again says only that the network model "
                "does what it is told. Beyond 4 KB the model adds the bytes' time on a link of 12.5 GB/s and "
                "nothing else.\n\nThe paper doesn't say where this time begins. It is taken as a program takes it, "
                "from before the call that posts, as in the benchmark of writes that is archived with the reference "
                f"implementation: so {PAPER.network.post_first_ns / 1e3:.0f} us of it is the post, and the write is "
                f"on its way for {PAPER.network.latency_ns / 1e3:.2f} us.")


class Copies(Experiment):
    name = "memcpy"
    title = "Cost of a copy"
    place = "Figure 14, section 4.4"
    says = "A copy within a node takes little time up to a few KB, and deteriorates quickly for large messages."
    fitted = False
    columns = 2

    def runs(self) -> dict[Key, Run]:
        return {}

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        left, right = plots.axes_of(figure, 2)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
        left.set_yscale("log")
        left.plot(SIZES, [copy_us(size) for size in SIZES], color=plots.COLORS[0], label="copy of that size")
        left.plot(SIZES, [write_latency_us(size) for size in SIZES], color=plots.COLORS[1], label="write of that size")
        plots.finish(left, "bytes", "us")
        right.plot(SIZES, [size / copy_us(size) / 1e3 for size in SIZES], color=plots.COLORS[0], label="copy")
        right.axhline(PAPER.network.bytes_s / 1e9, color=plots.PAPER_COLOR, linestyle=":", label="link")
        plots.finish(right, "bytes", "GB/s")

    def remark(self, r: Results, fitted: Results | None) -> str:
        return ("The paper shows a curve and gives no numbers; this one was measured on the machine that the "
                f"project is developed on (parameter `copy_ns`). A copy of 10 KB takes {copy_us(10240):.1f} us "
                f"there, {10240 / copy_us(10240) / 1e3:.0f} GB/s; one of 1 MB runs at "
                f"{(1 << 20) / copy_us(1 << 20) / 1e3:.0f} GB/s, below the link.")
