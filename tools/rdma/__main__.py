"""`make rdma-test`: the verbs fabric over a real kernel RDMA stack, on guests that have one in software.

Steps, each on guests of its own; what they print is shown as it comes, what they keep goes to build/rdma. A step fails
if a command fails, does not end in time, or runs no test. A machine that can't have guests skips all of it and says
why; with --strict that is a failure, too.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import shutil
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from guests import Guest, run_guests
from image import NotHere, make_image

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "rdma"


@dataclass(frozen=True)
class Step:
    """`commands`: one per guest. `judge` returns what is wrong, or "". `kill`: as in run_guests."""

    name: str
    what: str
    commands: tuple[str, ...]
    timeout_s: float
    judge: Callable[[list[Guest]], str]
    kill: tuple[int, str] | None = None
    memory_mib: int = 1024


def pytest_command(*what: str) -> str:
    """Without the fixtures that look for what a test has left behind: they take seconds, and a guest goes whole."""
    program = Path(sys.executable).parent / "pytest"
    return (f"{shlex.quote(str(program))} -q --noconftest -p no:cacheprovider --durations=8"
            f" --junit-xml=/exchange/results.xml {' '.join(what)}")


def judge_tests(guests: list[Guest]) -> str:
    """All guests' tests have run and passed."""
    for guest in guests:
        try:
            suite = next(ElementTree.parse(guest.exchange / "results.xml").getroot().iter("testsuite"))
        except (OSError, ElementTree.ParseError, StopIteration):
            return f"guest {guest.node}: no results"
        counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        print(f"  guest {guest.node}: {counts['tests']} tests, {counts['failures'] + counts['errors']} failed,"
              f" {counts['skipped']} skipped")
        if guest.status != 0 or counts["failures"] or counts["errors"]:
            return f"guest {guest.node}: tests failed"
        if counts["tests"] <= counts["skipped"]:
            return f"guest {guest.node}: no test has run"
    return ""


def judge_group(guests: list[Guest]) -> str:
    """All saw the same before the last one's power was cut, and those that are left the same after it."""
    for guest in guests:
        survives = guest.node < len(guests) - 1
        if not guest.says("fabric verbs"):
            return f"guest {guest.node}: not over verbs, or not so far"
        if survives and (guest.status != 0 or not guest.says("done")):
            return f"guest {guest.node}: has not survived"
        if not survives and not guest.killed:
            return f"guest {guest.node}: was not cut off"
    orders = [[line for line in guest.lines if line.startswith("order ")] for guest in guests]
    if len({lines[0] for lines in orders}) != 1 or len({lines[1] for lines in orders[:-1]}) != 1:
        return "they do not agree on the order"
    return ""


def judge_flight(guests: list[Guest]) -> str:
    """The same on all: what was delivered, in which order, and the alerts."""
    for guest in guests:
        if guest.status != 0 or not guest.says("fabric verbs"):
            return f"guest {guest.node}: failed, or not over verbs"
    if len({line for guest in guests for line in guest.lines if line.startswith("flight ")}) != 1:
        return "they do not agree on what was delivered"
    return ""


STEPS = (
    Step(
        "fabric", "conformance within a process and between several, accounting, faults, a program over pyverbs",
        (pytest_command("tests/spindle_core/fabric/test_verbs.py"),),
        300, judge_tests,
    ),
    Step(
        "core", "one order across views over verbs; posts for each message",
        (pytest_command("tests/spindle_core/test_over_verbs.py"),),
        180, judge_tests,
    ),
    Step(
        "group", "three nodes on three guests; the power of one is cut, the others go on",
        tuple(f"{shlex.quote(sys.executable)} tools/rdma/group.py" for _ in range(3)),
        180, judge_group, kill=(2, "cut my power"),
    ),
    Step(
        "flight", "the demonstration on three guests: daemons under TLS, publishers on two, what came on each",
        (f"PYTHONPATH=. {shlex.quote(sys.executable)} tools/rdma/flight.py {secrets.token_hex(32)} verbs",) * 3,
        300, judge_flight,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make rdma-test", description=__doc__)
    parser.add_argument("steps", nargs="*", help=f"which (default: all): {', '.join(step.name for step in STEPS)}")
    parser.add_argument("--strict", action="store_true", help="fail where guests can't be had")
    parser.add_argument("--guests", type=int, metavar="N",
                        help="instead of steps: run the command behind -- on N guests")
    parser.add_argument("--timeout", type=float, default=600, help="of that command, in seconds")
    own = sys.argv[1:]
    command: list[str] = []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    unknown = set(options.steps) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}")
    try:
        image = make_image()
    except NotHere as reason:
        print(f"rdma-test {'FAILED' if options.strict else 'skipped'}: no guests on this machine. {reason}")
        return 1 if options.strict else 0
    if options.guests:
        guests = run_guests(image, KEPT / "command", ROOT, [shlex.join(command)] * options.guests, options.timeout)
        return max(125 if guest.status is None else guest.status for guest in guests)
    outcome: list[tuple[Step, str, float]] = []
    for step in STEPS:
        if options.steps and step.name not in options.steps:
            continue
        print(f"{step.name}: {step.what}", flush=True)
        shutil.rmtree(KEPT / step.name, ignore_errors=True)
        begun = time.monotonic()
        guests = run_guests(image, KEPT / step.name, ROOT, step.commands, step.timeout_s, kill=step.kill,
                            memory_mib=step.memory_mib)
        took = time.monotonic() - begun
        wrong = step.judge(guests)
        if wrong and took >= step.timeout_s:
            wrong = f"not over after {step.timeout_s:g} s; {wrong}"
        outcome.append((step, wrong, took))
    print("\nrdma-test")
    for step, wrong, took in outcome:
        print(f"  {'FAILED' if wrong else 'passed'}  {step.name:<10} {took:5.0f} s  {wrong}")
    failed = sum(1 for _, wrong, _ in outcome if wrong)
    print(f"{len(outcome) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
