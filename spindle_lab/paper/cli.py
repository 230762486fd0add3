"""`spindle paper`: the paper's evaluation with the production core in virtual time."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import debug_option, json_option, note, print_json

if TYPE_CHECKING:
    from spindle_lab.paper.experiments.base import Comparison, Experiment
    from spindle_lab.paper.runner import Store
    from spindle_lab.paper.runs import Run

SECONDS_BETWEEN_LINES = 10.0
DOCS = Path("docs")

jobs_option = click.option("--jobs", type=click.IntRange(1), help="Processes at once. Default: the processors.")
state_option = click.option("--state", type=click.Path(path_type=Path), default=Path("build/paper"), show_default=True,
                            help="Where runs are kept that need not be played again.")


class PaperGroup(click.Group):
    """`spindle paper NAME...` is `spindle paper run NAME...`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=PaperGroup, epilog="""\b
Examples:
  spindle paper list                        what there is
  spindle paper batching                    Figure 3, with the paper's numbers
  spindle paper final levels --plot plots   two of them, with drawings
  spindle paper page                        docs/paper.md with all of it
  spindle paper krcore                      docs/paper-krcore.md: the paper
                                            that links come from
""")
def paper() -> None:
    """Reproduce the paper's evaluation with the production core in virtual time.

    The predicates, rings and counts are those of a node; network and time are a model whose costs come from the paper.
    Equal runs give equal figures, anywhere. What was played once is kept.
    """


@paper.command("list")
@json_option
@debug_option
def list_experiments(as_json: bool) -> None:
    """List the experiments."""
    from spindle.cli.common import console, table
    from spindle_lab.paper.experiments import EXPERIMENTS

    if as_json:
        print_json([{"name": e.name, "title": e.title, "place": e.place, "runs": len(e.needed())}
                    for e in EXPERIMENTS.values()])
        return
    made = table("name", "what", "in the paper", "runs", right=["runs"])
    for e in EXPERIMENTS.values():
        made.add_row(e.name, e.title, e.place, str(len(e.needed())))
    console().print(made)


@paper.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--seeds", type=click.IntRange(1, 100), help="Runs of each point. Default: the experiment's.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Draw NAME.png into a directory.")
@jobs_option
@state_option
@json_option
@debug_option
def run(names: tuple[str, ...], seeds: int | None, plot: Path | None, jobs: int | None, state: Path,
        as_json: bool) -> None:
    """Run experiments and print their figures beside the paper's."""
    from spindle_lab.paper import plots
    from spindle_lab.paper.runner import Store

    experiments = _experiments(names)
    if plot is not None:
        plots.check()
    figures = _play([one for e in experiments for one in e.needed(seeds)], Store(state), jobs)
    said = []
    for e in experiments:
        r, fitted = e.results(figures, seeds)
        tables = (e.reference(figures, seeds), fitted)
        others = [e.compare(results) if results is not None else [] for results in tables]
        said.append(_as_json(e, e.compare(r), *others))
        if not as_json:
            _print(e, e.compare(r), *others)
        if plot is not None:
            plots.draw(e, r, fitted, plot / f"{e.name}.png")
            note(f"drawn: {plot / e.name}.png")
    if as_json:
        print_json(said)


@paper.command("all")
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Draw NAME.png into a directory.")
@jobs_option
@state_option
@json_option
@debug_option
@click.pass_context
def run_all(ctx: click.Context, **options: Any) -> None:
    """Run all experiments."""
    from spindle_lab.paper.experiments import EXPERIMENTS

    ctx.invoke(run, names=tuple(EXPERIMENTS), seeds=None, **options)


@paper.command()
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=DOCS, show_default=True,
              help="Where paper.md and paper/*.png go.")
@jobs_option
@state_option
@debug_option
def page(docs: Path, jobs: int | None, state: Path) -> None:
    """Run what is missing and write docs/paper.md."""
    from spindle_lab.paper import page as pages
    from spindle_lab.paper import plots
    from spindle_lab.paper.experiments import EXPERIMENTS
    from spindle_lab.paper.runner import Store

    plots.check()
    pages.parameter_table()  # raises for a parameter without a source: better before the runs than after
    figures = _play([one for e in EXPERIMENTS.values() for one in e.needed()], Store(state), jobs)
    pages.write(docs, figures, EXPERIMENTS)
    note(f"written: {docs / 'paper.md'}")


@paper.command()
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=DOCS, show_default=True,
              help="Where paper-krcore.md goes.")
@click.option("--measure", "measuring", is_flag=True,
              help="Measure what the pool takes on this machine instead, as JSON.")
@click.option("--real", is_flag=True, help="Run `spindle bench links` on this machine before, and keep what it says.")
@json_option
@debug_option
def krcore(docs: Path, measuring: bool, real: bool, as_json: bool) -> None:
    """Play the KRCore paper's evaluation and write docs/paper-krcore.md.

    The pool of links is the production code; network, kernel and time are a model. With --json it prints the rows, and
    writes nothing.
    """
    import dataclasses

    from spindle_lab.paper.krcore import page as pages
    from spindle_lab.paper.krcore import probe, rows

    if measuring:
        print_json(probe.measure())
        return
    if real:
        from spindle_lab.bench import links
        from spindle_lab.bench.cli import failing_clearly
        from spindle_lab.paper.krcore import real as real_runs

        real_runs.keep(failing_clearly(links.run))
    figures = _play_krcore()
    if as_json:
        print_json([{"section": section, **dataclasses.asdict(row), "deviation": row.deviation}
                    for section, found in rows.rows(figures).items() for row in found])
        return
    note(f"written: {pages.write(docs, figures)}")


@paper.command()
@click.option("--size", "sizes", type=click.IntRange(16), multiple=True, help="Of messages. Default: 1 and 10 KB.")
@debug_option
def measure(sizes: tuple[int, ...]) -> None:
    """Measure the cost table of this machine, as JSON.

    Each cost for itself: passes, lines, locks, copies, posts, switches of threads. None from a multicast as a whole.
    """
    from spindle_lab.paper import measure as measuring

    print_json(measuring.measure(sizes or (1024, 10240)))


@paper.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Runs of each case.")
@click.option("--scale", type=click.FloatRange(0.01), default=1.0, show_default=True, help="Of message counts.")
@click.option("--keep", is_flag=True, help="Keep the results for docs/paper.md.")
@json_option
@debug_option
def real(rounds: int, scale: float, keep: bool, as_json: bool) -> None:
    """Run real nodes on this machine, beside what its cost table predicts.

    Over shared memory and over TCP, 2 to 4 processes: rates really and in virtual time, and the paper's steps.
    """
    import json

    from spindle_lab.paper.experiments import real as runs

    found = runs.study(rounds, scale=scale, progress=note)
    if keep:
        runs.KEPT.write_text(json.dumps(found, indent=1) + "\n")
        note(f"kept: {runs.KEPT}")
    if as_json:
        print_json(found)
        return
    from spindle.cli.common import console, table

    made = table("nodes", "bytes", "fabric", "real", "model", "model/real", right=["real", "model", "model/real"])
    for row in found["predictions"]:
        made.add_row(str(row["nodes"]), str(row["size"]), row["fabric"], f"{row['real']:,.0f}/s",
                     f"{row['model']:,.0f}/s", f"{row['ratio']:.2f}")
    console().print(made)
    made = table("nodes", "bytes", "fabric", "switches", "real", "gain", right=["real", "gain"])
    for row in found["switches"]:
        made.add_row(str(row["nodes"]), str(row["size"]), row["fabric"], row["switches"],
                     f"{row['messages_per_s']:,.0f}/s", f"{row['gain']:.2f}")
    console().print(made)


def _experiments(names: tuple[str, ...]) -> list[Experiment]:
    import difflib

    from spindle_lab.paper.experiments import EXPERIMENTS

    for name in names:
        if name not in EXPERIMENTS:
            close = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else "; see `spindle paper list`"
            raise click.UsageError(f"there is no experiment {name!r}{hint}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def _play(runs: list[Run], store: Store, jobs: int | None) -> dict[Run, dict[str, Any]]:
    from spindle_lab.paper.runner import play

    with _progress() as on_run:
        return play(runs, store, jobs or 0, on_run)


def _play_krcore() -> dict[str, float]:
    from spindle.errors import SpindleError
    from spindle_lab.paper.krcore import rows

    which, done = (*rows.SWIFT, *rows.SLOW), 0
    with _progress() as on_run:
        def on_play() -> None:
            nonlocal done
            done += 1
            on_run(None, done, len(which))

        try:
            return rows.play(which, on_play)
        except OSError as error:
            raise SpindleError(str(error)) from error


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """Calls for each run: a bar on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                      console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
            task = bar.add_task("", total=None)
            yield lambda run, done, total: bar.update(task, completed=done, total=total)
        return
    said = time.monotonic()

    def line(_run: Run, done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > SECONDS_BETWEEN_LINES or done == total:
            said = time.monotonic()
            note(f"{done} of {total} runs")

    yield line


def _as_json(e: Experiment, ours: list[Comparison], reference: list[Comparison],
             fitted: list[Comparison]) -> dict[str, Any]:
    rows = []
    for place, one in enumerate(ours):
        row: dict[str, Any] = {"claim": one.claim, "unit": one.unit, "paper": one.paper, "ours": one.ours,
                               "ratio": one.ratio}
        if reference:
            row["reference"] = reference[place].ours
        if fitted:
            row["fitted"] = fitted[place].ours
        rows.append(row)
    return {"name": e.name, "title": e.title, "place": e.place, "comparisons": rows}


def _print(e: Experiment, ours: list[Comparison], reference: list[Comparison], fitted: list[Comparison]) -> None:
    from spindle.cli.common import console, table
    from spindle_lab.paper.page import figure_text

    numbers = ["paper", "ours", "ratio", "reference", "fitted"]
    made = table(e.place, *numbers, right=numbers, title=f"{e.name}: {e.title}")
    for place, one in enumerate(ours):
        ratio = one.ratio
        made.add_row(one.claim, figure_text(one.paper, one.unit), figure_text(one.ours, one.unit),
                     "" if ratio is None else f"{ratio:.2f}",
                     *[figure_text(other[place].ours, one.unit) if other else "" for other in (reference, fitted)])
    console().print(made)
    console().print()
