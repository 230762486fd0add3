"""What an experiment is: runs, a drawing, and its figures beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spindle_lab.paper.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Key = tuple[str, float]  # series, place on the x axis
SEEDS = 3
FITTED, REFERENCE = "per message", "reference"
MEMBERS = (2, 4, 6, 8, 11, 16)
EVALUATION, PAST = "The evaluation", "Past the paper"  # chapters of the page
PATTERNS = {"all": "all senders", "half": "half senders", "one": "one sender"}


def senders(pattern: str, members: int) -> int:
    return {"all": members, "half": max(1, members // 2), "one": 1}[pattern]


@dataclass(frozen=True)
class Comparison:
    """One claim: the paper's figure and ours; paper None: it has no number for it."""

    claim: str
    paper: float | None
    ours: float
    unit: str = ""
    headline: bool = False  # also in the table at the top of the page

    @property
    def ratio(self) -> float | None:
        return self.ours / self.paper if self.paper else None


class Results:
    """The figures of one experiment's runs, over all seeds; metrics as "gb_s" or "batches/send"."""

    def __init__(self, runs: Mapping[Key, Run], figures: Mapping[Run, dict[str, Any]], seeds: int = SEEDS,
                 table: str = "paper") -> None:
        self.runs, self.figures, self.seeds, self.table = runs, figures, seeds, table

    def kept(self, series: str, x: float) -> list[dict[str, Any]]:
        """All figures, of each seed. Raises KeyError for a run that there isn't."""
        return [self.figures[run] for run in seeded(self.runs[series, x], self.seeds, self.table)]

    def all(self, series: str, x: float, metric: str) -> list[float]:
        values = []
        value: Any
        for value in self.kept(series, x):
            for part in metric.split("/"):
                value = value[part]
            values.append(float(value))
        return values

    def of(self, series: str, x: float, metric: str = "gb_s") -> float:
        return statistics.fmean(self.all(series, x, metric))

    def deviation(self, series: str, x: float, metric: str = "gb_s") -> float:
        values = self.all(series, x, metric)
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def xs(self, series: str) -> list[float]:
        return sorted(x for name, x in self.runs if name == series)

    def line(self, series: str, metric: str = "gb_s") -> tuple[list[float], list[float], list[float]]:
        """(x, mean, standard deviation)."""
        xs = self.xs(series)
        return xs, [self.of(series, x, metric) for x in xs], [self.deviation(series, x, metric) for x in xs]

    def values(self, series: str, metric: str = "gb_s") -> list[float]:
        return [self.of(series, x, metric) for x in self.xs(series)]

    def gain(self, better: str, worse: str, metric: str = "gb_s") -> float:
        """Mean over x of the one over the other, as "by about 9X on average" means it."""
        xs = sorted(set(self.xs(better)) & set(self.xs(worse)))
        return statistics.fmean(self.of(better, x, metric) / self.of(worse, x, metric) for x in xs)


class Experiment:
    """One of the paper's figures or claims. Subclasses say the rest; texts are true for the figures that they get."""

    name: str
    title: str
    place: str  # in the paper
    says: str  # the paper, in its words or shortened
    chapter = EVALUATION
    fitted = True  # also with the fitted table, and with that of the reference's code
    seeds = SEEDS

    def runs(self) -> dict[Key, Run]:
        raise NotImplementedError

    def compare(self, r: Results) -> list[Comparison]:
        return []

    def draw(self, figure: Figure, r: Results, fitted: Results | None) -> None:
        raise NotImplementedError

    def remark(self, r: Results, fitted: Results | None) -> str:
        return ""

    def needed(self, seeds: int | None = None) -> list[Run]:
        """All runs, with all seeds and tables."""
        runs = self.runs().values()
        found = [one for run in runs for one in seeded(run, seeds or self.seeds, "paper")]
        if self.fitted:
            found += [one for run in runs for one in seeded(run, seeds or self.seeds, REFERENCE)]
            found += [one for run in runs for one in seeded(run, 1, FITTED)]
        return found

    def reference(self, figures: Mapping[Run, dict[str, Any]], seeds: int | None = None) -> Results | None:
        """Of what the reference's code costs."""
        return Results(self.runs(), figures, seeds or self.seeds, REFERENCE) if self.fitted else None

    def results(
        self, figures: Mapping[Run, dict[str, Any]], seeds: int | None = None
    ) -> tuple[Results, Results | None]:
        """(of the paper's parameters, of the fitted ones)."""
        runs = self.runs()
        return (Results(runs, figures, seeds or self.seeds),
                Results(runs, figures, 1, FITTED) if self.fitted else None)


def seeded(run: Run, seeds: int, table: str) -> list[Run]:
    """A run that names a table itself keeps it."""
    named = run.table if run.table != "paper" else table
    return [replace(run, seed=seed, table=named) for seed in range(1, seeds + 1)]


def grid(series: Iterable[str], xs: Iterable[float], make: Callable[[str, Any], Run]) -> dict[Key, Run]:
    places = list(xs)
    return {(name, x): make(name, x) for name in series for x in places}
