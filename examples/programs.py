"""What the example programs have in common: options, ending in order, and what they print.

Rules: every program ends in order on Ctrl-C and SIGTERM, with exit code 0, and at once on a second one. With `--json`
each line on stdout is an object with "event": `ready` once it takes part, `status` now and then, and what its help
names at the end. Errors are one line on stderr and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from flight_data import FlightDataError, read_flight
from replay import Replay

from dds.core import DDSException
from dds.domain import DomainParticipant

STATUS_S = 1.0


class Output:
    """Lines for people or JSON for scripts."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._status_at = 0.0

    def event(self, event: str, text: str, **fields: Any) -> None:
        """Prints one thing that happened: `text`, or the fields as JSON."""
        print(json.dumps({"event": event, **fields}) if self.as_json else text, flush=True)

    def status_due(self, every_s: float = STATUS_S) -> bool:
        """True at most once in `every_s`."""
        now = time.monotonic()
        if now < self._status_at:
            return False
        self._status_at = now + every_s
        return True


def clock(flight_time: float) -> str:
    """A time of the flight as hours, minutes and seconds."""
    return time.strftime("%H:%M:%SZ", time.gmtime(flight_time))


def parser_for(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every program has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line, for scripts")
    group = parser.add_argument_group("node")
    group.add_argument("--domain", type=int, default=0, metavar="N", help="domain to join (default: 0)")
    group.add_argument("--node", type=int, metavar="ID", help="attach to this node (default: any daemon on this host)")
    return parser


def moment(text: str) -> float | TextIO:
    """The value of --at."""
    return sys.stdin if text == "-" else float(text)


def replay_options(parser: argparse.ArgumentParser) -> None:
    """Adds: which flight, which part of it, how fast."""
    group = parser.add_argument_group("replay")
    group.add_argument("--speed", type=float, default=1.0, metavar="N", help="times real time (default: 1)")
    group.add_argument(
        "--start", type=float, default=0.0, metavar="S", help="skip so many seconds of the flight (take-off is at 950)"
    )
    group.add_argument("--duration", type=float, default=math.inf, metavar="S", help="seconds of the flight to play")
    group.add_argument(
        "--at", type=moment, metavar="UNIX_TIME", help="when to begin (default: now); -: standard input says it"
    )
    group.add_argument(
        "--jsonl", type=Path, metavar="PATH", help="full recording (.jsonl or .jsonl.gz) instead of the shipped table"
    )


def replay_of(options: argparse.Namespace) -> Replay:
    """The replay that the options ask for."""
    return Replay(
        read_flight(options.jsonl),
        speed=options.speed,
        start=options.start,
        duration=options.duration,
        at=options.at,
    )


def participant_of(options: argparse.Namespace) -> DomainParticipant:
    """A participant at the node that the options name."""
    return DomainParticipant(options.domain, node_id=options.node)


def on_end_signals(stop: Callable[[], None]) -> None:
    """Calls `stop()` on SIGINT and SIGTERM; a second one ends the program at once."""

    def handle(number: int, frame: object) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        stop()

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, handle)


def run(main: Callable[[], int]) -> None:
    """Runs a program's main and exits with its code; expected errors become one line."""
    try:
        sys.exit(main())
    except (DDSException, FlightDataError, ValueError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
