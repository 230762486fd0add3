"""`python -m spindle_lab.chaos`: rounds of chaos until the time is up, then a summary. Exit code 0 without
violation."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from spindle_lab.chaos.disk import build
from spindle_lab.chaos.faults import KINDS, LINKS
from spindle_lab.chaos.hosts import unavailable
from spindle_lab.chaos.round import Outcome, Plan, Round

ROUND_S = 20.0
EVIDENCE = Path("build/chaos")
NAMES = [one.name for one in KINDS + LINKS]
PREFIX = "spindle-chaos-"  # of the directory of a run; its process id follows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spindle_lab.chaos", description="Chaos with real processes.")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="in all (default: %(default)g)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the first round; the next ones count on")
    parser.add_argument("--round", type=float, default=ROUND_S, metavar="S", dest="round_s",
                        help="faults of one round (default: %(default)g)")
    parser.add_argument("--rounds", type=int, metavar="N", help="so many, however long they take")
    parser.add_argument("--pace", type=float, default=200.0, metavar="N", help="messages a second and node")
    parser.add_argument("--hosts", type=int, default=0, metavar="N",
                        help="nodes on so many hosts, made of network namespaces, and faults of the links between; "
                             "needs root (default: all on this host)")
    parser.add_argument("--only", action="append", metavar="KIND", choices=NAMES,
                        help="only faults of this kind; repeatable")
    parser.add_argument("--without", action="append", metavar="KIND", choices=NAMES,
                        help="no faults of this kind; repeatable")
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, metavar="DIR",
                        help="where rounds with violations are kept (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the rounds without violations too")
    parser.add_argument("-v", "--verbose", action="store_true", help="every fault as it happens")
    options = parser.parse_args()
    if options.only and not options.hosts and set(options.only) <= {one.name for one in LINKS}:
        parser.error("faults of links need several hosts: --hosts 3")
    return options


def main() -> int:
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    total, began, rounds = Outcome(), time.monotonic(), 0
    kept: list[Path] = []
    if options.hosts and (reason := unavailable()):
        print(f"skipped: no hosts can be made here: {reason}", flush=True)
        return 0
    _clear_up()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as name:
        library = build(Path(name))
        if library is None:
            print("no C compiler: disks that fail are left out", flush=True)
        try:
            while _goes_on(options, rounds, time.monotonic() - began):
                plan = Plan.of(seed + rounds, options.round_s, options.hosts)
                directory = Path(name) / f"round-{plan.seed}"
                directory.mkdir()
                outcome = _round(plan, directory, library, options)
                total.add(outcome)
                rounds += 1
                unstarted = not outcome.messages and any(one.promise == "start" for one in outcome.violations)
                if outcome.violations or options.keep:
                    options.evidence.mkdir(parents=True, exist_ok=True)
                    place = options.evidence / f"{plan.seed}-{time.strftime('%Y%m%dT%H%M%S')}"
                    shutil.move(directory, place)
                    if outcome.violations:
                        kept.append(place)
                else:
                    shutil.rmtree(directory)
                if unstarted:
                    break  # nothing that further rounds could show
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            return 130
    print(summary(total, rounds, seed, time.monotonic() - began, kept), flush=True)
    return 1 if total.violations else 0


def _clear_up() -> None:
    """Removes what runs left that were killed with -9; their processes have ended with them."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)


def _goes_on(options: argparse.Namespace, rounds: int, spent_s: float) -> bool:
    if options.rounds is not None:
        return rounds < int(options.rounds)
    # A round takes longer than its faults: another one is begun if at least half of it fits.
    return rounds == 0 or bool(spent_s + options.round_s / 2 < options.seconds)


def _round(plan: Plan, directory: Path, library: Path | None, options: argparse.Namespace) -> Outcome:
    print(f"round {plan.seed}: {plan}", flush=True)

    def say(text: str) -> None:
        if options.verbose:
            print(f"  {text}", flush=True)

    kinds = set(options.only or NAMES)
    kinds -= set(options.without or ())
    outcome = Round(plan, directory, library, options.pace, say, kinds).run()
    print(f"  {outcome.messages:,} messages, {outcome.deliveries:,} deliveries, {sum(outcome.faults.values())} faults, "
          f"{outcome.views} views, {outcome.groups} groups, {len(outcome.violations)} violations", flush=True)
    for violation in outcome.violations[:20]:
        print(f"  VIOLATION {violation}", flush=True)
    return outcome


def summary(total: Outcome, rounds: int, seed: int, seconds: float, kept: list[Path]) -> str:
    """The result for people."""
    lines = ["", f"{rounds} rounds in {seconds:.0f} s, seed {seed}", ""]
    for name, value in (
        ("messages", f"{total.messages:,}"),
        ("deliveries", f"{total.deliveries:,}"),
        ("faults", f"{sum(total.faults.values()):,}"),
        ("views", f"{total.views:,}"),
        ("groups", f"{total.groups:,}"),
        ("daemons", f"{total.lives:,} lives; " + ", ".join(f"{n} {how}" for how, n in sorted(total.ends.items()))),
        ("disk calls spoiled", f"{total.spoiled:,}"),
        ("told of a dead node", f"after at most {total.told_s:.2f} s"),
        ("together again", f"after at most {total.converged_s:.1f} s"),
        ("false suspicions", f"{total.suspicions} (that there are none isn't promised)"),
        ("violations", f"{len(total.violations)}"),
    ):
        lines.append(f"  {name:<20} {value}")
    lines += ["", "  faults"] + [f"  {count:6d}  {name}" for name, count in sorted(total.faults.items())]
    if kept:
        lines += ["", "Evidence:", *(f"  {one}" for one in kept)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
