"""What the tables of `bench suite` are made of: lines, and runs that take turns.

Rules: a line carries the command that gives its number alone. Runs in which something was lost, torn, or (where an
order is promised) in another order don't count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spindle_lab.bench import multicast
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.options import MulticastOptions
from spindle_lab.bench.results import median_run, rate_text

COMMAND = "spindle bench"
KB = 1024
TEN_KB = 10 * 1024


@dataclass
class Line:
    """One row of the table. met: None where nothing is promised."""

    what: str
    value: str
    target: str = ""
    met: bool | None = None
    command: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        met = {None: "", True: "yes", False: "no"}[self.met]
        return self.what, self.value, self.target, met, f"`{self.command}`" if self.command else ""


HEADER = ("what", "measured", "wanted", "met", "command")


@dataclass(frozen=True)
class Plan:
    """How long everything takes."""

    repeat: int = 5
    scale: float = 1.0  # of message counts
    idle_s: float = 5.0


QUICK = Plan(repeat=1, scale=0.2, idle_s=1.0)


def command_of(options: MulticastOptions, repeat: int, *, with_limit: bool = False) -> str:
    """The command line of a run with these options."""
    words = [COMMAND, "latency" if options.pace_per_s else "multicast"]
    plain = MulticastOptions(senders="one", pace_per_s=1000.0) if options.pace_per_s else MulticastOptions()
    for name, value in asdict(options).items():
        if value == getattr(plain, name) or name in ("count", "node_options", "pace_per_s"):
            continue
        words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    if with_limit:
        words.append("--limit")
    if repeat > 1:
        words.append(f"--repeat {repeat}")
    return " ".join(words)


def alternate(plan: Plan, runs: Sequence[MulticastOptions]) -> list[dict[str, Any]]:
    """Each of the runs in turn, `repeat` times round; the median run of each, with right results only.

    Raises BenchFailed when one of them lost something or disagreed on the order.
    """
    results: list[list[dict[str, Any]]] = [[] for _ in runs]
    for _ in range(plan.repeat):
        for place, options in enumerate(runs):
            scaled = replace(options, count=max(100, int(options.messages_each * plan.scale)))
            results[place].append(checked(multicast.run_once(scaled)))
    return [median_run(found) for found in results]


def checked(result: dict[str, Any]) -> dict[str, Any]:
    unordered = not result["ordered"]
    if result["lost"] or result["corrupt"] or not (result["order_identical"] or unordered):
        raise BenchFailed(
            f"{result['lost']} messages lost, {result['corrupt']} torn, "
            f"order {'identical' if result['order_identical'] else 'different'}: this is a defect"
        )
    return result


def rate_line(what: str, result: dict[str, Any], command: str, wanted: float = 0.0) -> Line:
    rate = result["messages_per_s"]
    return Line(
        what,
        f"{rate_text(rate)}/s, {result['bytes_per_s'] / 1e9:.2f} GB/s; latency {latency_text(result)}",
        f"at least {rate_text(wanted)}/s" if wanted else "",
        rate >= wanted if wanted else None,
        command,
        result,
    )


def latency_text(result: dict[str, Any]) -> str:
    found = result["latency_us"]
    return f"p50 {found['p50']:g}, p99 {found['p99']:g} us"
