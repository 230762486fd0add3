"""`spindle demo` and `make demo`: a recorded flight over three daemons, and proof of what they agreed on.

Starts three daemons in a directory of their own (a running system is never touched), the programs of examples/ on
them, shows the flight for half a minute, and then examines: was everything published delivered on each node, in one
order, by hash; are the alerts the same; are the journals whole. Exit code 0 only if all agree; 1 if something
disagrees, and which; 130 after Ctrl-C. All processes are ended in any case, and every wait has a bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.demo.flight import Plan

FABRICS = ("auto", "shm", "tcp", "verbs")
SECONDS = 30.0
SPEED = 32.0
START_S = 3580.0
"""Where the interesting part begins: a rapid descent, three level-offs, a turn, the landing."""


def examples_directory() -> Path | None:
    """The examples of this source tree, or None where only the packages are installed."""
    found = Path(__file__).resolve().parents[2] / "examples"
    return found if (found / "alert_monitor.py").is_file() else None


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="spindle demo", description="Replays a recorded flight over three daemons and proves what they agree on."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="how long (default: %(default)g)")
    parser.add_argument("--speed", type=float, default=SPEED, metavar="N", help="times real time (default: 32)")
    parser.add_argument("--start", type=float, default=START_S, metavar="S", help="second of the flight to begin at")
    parser.add_argument("--jsonl", type=Path, metavar="PATH", help="the full recording instead of the shipped table")
    parser.add_argument("--no-display", action="store_true", help="no display, but lines, in a terminal too")
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout, progress on stderr")
    parser.add_argument("--keep", action="store_true", help="keep the directory with logs and journals")
    parser.add_argument("--fabric", choices=FABRICS, default="auto", help="how messages get from node to node: "
                        "shared memory (auto, shm), or as between hosts (default: %(default)s)")
    options = parser.parse_args(argv)
    for name in ("seconds", "speed"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be positive")
    if options.start < 0:
        parser.error("--start must not be negative")
    if options.jsonl is not None and not options.jsonl.is_file():
        parser.error(f"--jsonl: there is no file {options.jsonl}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration; returns the exit code."""
    options = arguments_of(argv)
    examples = examples_directory()
    if examples is None:
        print(
            "spindle demo: the example programs are not installed with the package; run it in a clone of its source",
            file=sys.stderr,
        )
        return 2
    from spindle.demo.flight import Plan

    plan = Plan(
        examples=examples,
        seconds=options.seconds,
        speed=options.speed,
        start=options.start,
        jsonl=options.jsonl.resolve() if options.jsonl is not None else None,
        terminal=sys.stdout.isatty() and not (options.json or options.no_display),
        fabric=options.fabric,
    )
    directory = Path(tempfile.mkdtemp(prefix="spindle-demo-"))
    try:
        return asyncio.run(_run(plan, directory, options.json))
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(plan: Plan, directory: Path, as_json: bool) -> int:
    from spindle.demo.findings import text_of
    from spindle.demo.flight import NODES, Demonstration
    from spindle.demo.processes import DemoFailed

    out = sys.stderr if as_json else sys.stdout

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    demonstration = Demonstration(plan, directory, say)
    task = asyncio.ensure_future(demonstration.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    # What is wrong is said after everything has ended: till then the display may have the terminal.
    try:
        found = await task
    except asyncio.CancelledError:
        code, why = 130, "interrupted: all processes ended"
    except DemoFailed as error:
        code, why = 1, f"FAILED: {error}"
    else:
        code, why = 0, ""
    finally:
        await demonstration.close()
    if code:
        say(why)
        return code
    print(json.dumps(found.as_json(NODES)) if as_json else text_of(found, NODES), flush=True)
    return 1 if found.disagreements(NODES) else 0
