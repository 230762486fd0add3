"""`spindle sim`: runs simulated groups from seeds, replays one, makes a failing one smaller."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spindle_lab.sim.batch import Summary
    from spindle_lab.sim.run import Outcome
    from spindle_lab.whole.batch import Summary as WholeSummary

SECONDS_BETWEEN_LINES = 10.0


@click.command(epilog="""\b
Examples:
  spindle sim --seeds 2000             2000 groups of nodes with faults, all
                                       promises checked
  spindle sim --replay 17              what happened in one of them, one line
                                       per event
  spindle sim --core --seeds 2000      the core and the membership machine
                                       alone, in smaller steps
  spindle sim --core --replay 17 --until 400
  spindle sim --exhaustive             three nodes, two messages, one fault:
                                       every run of the core
""")
@click.option("--core", is_flag=True, help="The core and the membership machine alone, instead of whole nodes.")
@click.option("--seeds", type=click.IntRange(1), help="Run so many seeds, beginning with --first.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first of the seeds.")
@click.option("--having", type=click.Choice(["remotes", "edge", "liars", "newer", "guarded", "resets", "crowded",
                                          "limits", "embedded", "keyed", "grouped", "typed", "replicas", "large",
                                          "links", "renewing", "unlike"]),
              metavar="KIND",
              help="Only seeds whose runs of whole nodes have remotes (programs without a node), an edge (for them), "
              "liars (programs that lie), newer (settings), guarded (keys and rules), resets (broken connections), "
              "crowded (many topics), limits (of what is kept of each key), embedded (nodes inside programs), keyed "
              "(messages with keys), grouped (of order groups), typed (writers that say types), replicas (of an "
              "object), large (samples that don't fit their slots), links (programs with regions and ports), "
              "renewing (logged topics that are declared anew), or unlike (contacts in another order in each file).")
@click.option("--seed", type=click.IntRange(0), help="Run one seed.")
@click.option("--replay", type=click.IntRange(0), metavar="SEED", help="Run one seed and print every event.")
@click.option("--until", type=click.IntRange(1), metavar="STEP", help="With --replay: stop after this step.")
@click.option("--since", type=click.IntRange(0), default=0, metavar="STEP", help="With --replay: print from this step.")
@click.option("--fabric", type=click.Choice(["shared", "copied"]), help="Rows shared as on one host, or copied line by "
              "line as between hosts. Default: the seed decides.")
@click.option("--jobs", type=click.IntRange(1), help="Processes at once. Default: the processors.")
@click.option("--failures", type=click.IntRange(1), default=10, show_default=True, help="Stop after so many.")
@click.option("--shrink/--no-shrink", default=True, help="Make the first failing run as small as it gets.")
@click.option("--exhaustive", is_flag=True, help="Instead of seeds: every run there is of the smallest groups.")
@click.option("--states", type=click.IntRange(0), default=0, help="With --exhaustive: so many states of each at most.")
@click.option("--nightly", is_flag=True, help="With --core: fail also if a rare path was never taken.")
@click.option("--probes", is_flag=True, help="Print how often rare paths were taken, or faults happened.")
def sim(core: bool, seeds: int | None, first: int, having: str | None, seed: int | None, replay: int | None,
        until: int | None, since: int, fabric: str | None, jobs: int | None, failures: int, shrink: bool,
        exhaustive: bool, states: int, nightly: bool, probes: bool) -> int:
    """Simulate groups with faults, and check every promise after every event.

    What runs is what `spindle daemon` runs: nodes, journals, attachment and the client's library, in one thread under
    one seed. A seed and a release give the same run, wherever and whenever. Exit code 1: a promise was broken.
    """
    if not (core or exhaustive):
        for option, given in (("--until", until), ("--since", since), ("--fabric", fabric), ("--nightly", nightly)):
            if given:
                raise click.UsageError(f"{option} goes with --core")
        return _whole(seeds, first, having, seed if seed is not None else replay, replay is not None,
                      jobs or len(os.sched_getaffinity(0)), failures, shrink, probes)
    if having:
        raise click.UsageError("--having goes with whole nodes")
    if exhaustive:
        return _exhaustive(states, jobs or len(os.sched_getaffinity(0)))
    if replay is not None:
        return _replay(replay, fabric or "", since, until or 0)
    if seed is not None:
        seeds, first, jobs = 1, seed, 1
    if seeds is None:
        raise click.UsageError("say --seeds, --seed or --replay")
    summary = _run(range(first, first + seeds), jobs or len(os.sched_getaffinity(0)), fabric or "", failures)
    _report(summary, probes)
    for outcome in summary.failed[:1] if shrink else ():
        _shrink(outcome, fabric or "")
    missing = _missing_probes(summary, fabric or "") if nightly else []
    for probe in missing:
        click.echo(f"never happened: {probe}")
    return 1 if summary.failed or missing else 0


def _whole(seeds: int | None, first: int, having: str | None, seed: int | None, replay: bool, jobs: int, failures: int,
           shrink: bool, probes: bool) -> int:
    """Whole nodes."""
    import itertools
    import time

    from spindle_lab.whole.batch import having as seeds_having
    from spindle_lab.whole.batch import run_seeds, shrunk
    from spindle_lab.whole.run import run_seed

    if replay and seed is not None:
        outcome = run_seed(seed, click.echo)
        if outcome.failed:
            click.echo(f"{outcome.broken}: {outcome.text}")
        click.echo(f"seed {seed}: {outcome.steps} steps, hash {outcome.hash:016x}")
        return 1 if outcome.failed else 0
    if seed is not None:
        seeds, first, jobs = 1, seed, 1
    if seeds is None:
        raise click.UsageError("say --seeds, --seed or --replay")
    said = time.monotonic()

    def on_outcome(summary: WholeSummary, outcome: Outcome) -> None:
        nonlocal said
        if outcome.failed:
            click.echo(f"seed {outcome.seed}: {outcome.broken}: {outcome.text}")
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            click.echo(f"{summary.seeds} of {seeds} seeds, {summary.steps} steps, {len(summary.failed)} failed")

    which = seeds_having(having, first) if having else itertools.count(first)
    summary = run_seeds(itertools.islice(which, seeds), jobs, failures, on_outcome)  # type: ignore[arg-type]
    for title, counts in (("faults", summary.faults), ("programs were told", summary.errors),
                          ("lives ended", summary.ends), ("rare paths", summary.paths)) if probes else ():
        click.echo(f"{title}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    click.echo(f"{summary.seeds} seeds, {summary.steps} steps, {summary.virtual_s:.0f} s of nodes' time, "
               f"{summary.deliveries} messages taken, {len(summary.failed)} failed, {summary.seconds:.1f} s, "
               f"hash {summary.hash:016x}")
    for failure in summary.failed[:1] if shrink else ():
        click.echo(f"making seed {failure.seed} smaller ...")
        smallest = shrunk(failure.seed)
        again = run_seed(failure.seed, click.echo, setup=smallest)
        click.echo(f"{again.broken}: {again.text}")
    return 1 if summary.failed else 0


def _run(seeds: range, jobs: int, fabric: str, failures: int) -> Summary:
    import time

    from spindle_lab.sim.batch import run_seeds

    said = time.monotonic()

    def on_outcome(summary: Summary, outcome: Outcome) -> None:
        nonlocal said
        if outcome.failed:
            click.echo(f"seed {outcome.seed}: {outcome.broken}: {outcome.text}")
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            click.echo(f"{summary.seeds} of {len(seeds)} seeds, {summary.steps} steps, {len(summary.failed)} failed")

    return run_seeds(seeds, jobs, fabric, failures, on_outcome)


def _report(summary: Summary, probes: bool) -> None:
    if probes:
        for probe, count in sorted(summary.probes.items()):
            click.echo(f"{count:10} {probe}")
    click.echo(f"{summary.seeds} seeds, {summary.steps} steps, {summary.views} views installed, {summary.deliveries} "
               f"messages delivered, {len(summary.failed)} failed, {summary.seconds:.1f} s, hash {summary.hash:016x}")
    for outcome in summary.failed:
        click.echo(f"  seed {outcome.seed}: {outcome.broken}")


def _replay(seed: int, fabric: str, since: int, until: int) -> int:
    from spindle_lab.sim.run import run_seed
    from spindle_lab.sim.trace import Tracer

    tracer = Tracer(click.echo, since)
    outcome = run_seed(seed, fabric, tracer.watch, tracer.listen, until)
    tracer.finish()
    if outcome.failed:
        click.echo(f"{outcome.broken}: {outcome.text}")
    click.echo(f"seed {seed}: {outcome.steps} steps, hash {outcome.hash:016x}")
    return 1 if outcome.failed else 0


def _exhaustive(states: int, jobs: int) -> int:
    from spindle_lab.sim.exhaustive import CASES, explore_all

    broken = False
    all_states = all_runs = 0
    for result in explore_all(CASES, states, jobs):
        click.echo(f"{result.case.name}: {result.states} states in {result.runs} runs, {result.ends} ends, up to "
                   f"{result.depth} events and {result.views} views in a run, "
                   f"{'all' if result.complete else 'not all'} followed"
                   f"{': ' + result.broken if result.broken else ''}")
        all_states, all_runs = all_states + result.states, all_runs + result.runs
        for event in result.events:
            click.echo("  " + " ".join(map(str, event)))
        broken = broken or bool(result.broken)
    click.echo(f"{len(CASES)} cases, {all_states} states, {all_runs} runs")
    return 1 if broken else 0


def _shrink(outcome: Outcome, fabric: str) -> None:
    from spindle_lab.sim.shrink import shrink
    from spindle_lab.sim.trace import Tracer

    click.echo(f"making seed {outcome.seed} smaller ...")
    events, replay = shrink(outcome.seed, fabric)
    tracer = Tracer(click.echo)
    smaller = replay(tracer)
    tracer.finish()
    click.echo(f"seed {outcome.seed} in {len(events)} events: {smaller.broken}: {smaller.text}")


def _missing_probes(summary: Summary, fabric: str) -> list[str]:
    from spindle_lab.sim.probes import expected

    return [probe for probe in expected(fabric) if not summary.probes.get(probe)]
