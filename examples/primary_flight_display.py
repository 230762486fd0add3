#!/usr/bin/env python3
"""The primary flight display, in the terminal: horizon, speed and altitude tapes, heading, vertical speed, alerts.

In a terminal of at least 80 by 24 it redraws ten times a second; elsewhere it prints a line a second. Its readers
keep the newest samples only, so that a display that can't keep up never holds the others back. An alert is shown with
the node whose monitor says that it stands. --offline shows the recording with no node at all.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from alerts import AlertRules
from avionics import (
    AIR_FIGURES,
    ATTITUDE_FIGURES,
    NEWEST,
    air_data_topic,
    air_figures,
    alerts_topic,
    attitude_figures,
    attitude_topic,
    figures_in,
)
from flight_data import FlightRow
from flight_state import FlightState
from pfd_screen import HEIGHT, WIDTH, AlertLine, FeedStatus, line_of, render, view_of
from programs import on_end_signals, parser_for, participant_of, replay_of, replay_options, run
from text_screen import ENTER, LEAVE, stop, stops

from dds.core import InstanceState
from dds.sub import DataReader

FRAME_S = 0.1
BATCH = 1000


class Source(Protocol):
    """Where the display gets what it shows."""

    state: FlightState
    status: FeedStatus

    def collect(self) -> bool:
        """Takes what has come; False when there is nothing more to come."""
        ...

    def alerts(self) -> list[AlertLine]:
        """What stands, oldest first."""
        ...


class LiveSource:
    """Subscribes the three topics."""

    def __init__(self, options: argparse.Namespace) -> None:
        participant = participant_of(options)
        self.state = FlightState()
        self.status = FeedStatus(f"domain {options.domain}")
        self._air_data = DataReader(participant, air_data_topic(participant), qos=NEWEST)
        self._attitude = DataReader(participant, attitude_topic(participant), qos=NEWEST)
        self._alerts = DataReader(participant, alerts_topic(participant), qos=NEWEST)
        self._standing: dict[int, Any] = {}  # by instance

    def collect(self) -> bool:
        ages: list[int] = []
        for reader, names in ((self._air_data, AIR_FIGURES), (self._attitude, ATTITUDE_FIGURES)):
            samples = reader.take(N=BATCH)
            for sample in samples:
                self.state.apply(figures_in(sample, names), float(sample.flight_time))
            if reader is self._air_data:
                self.status.air_data += len(samples)
            else:
                self.status.attitude += len(samples)
            if samples:
                ages.append(time.time_ns() - samples[-1].sample_info.source_timestamp)
        for alert in self._alerts.take(N=BATCH):
            self._take_alert(alert)
        if ages:
            self.status.latency_ms = min(ages) / 1e6
        return True

    def _take_alert(self, alert: Any) -> None:
        # Every monitor publishes every alert, and one is heard. An alert that clears is an instance that has ended.
        info = alert.sample_info
        if info.instance_state == InstanceState.Alive:
            self._standing[info.instance_handle] = alert
        else:
            self._standing.pop(info.instance_handle, None)

    def alerts(self) -> list[AlertLine]:
        return [AlertLine(one.kind, one.text, one.sample_info.node) for one in self._standing.values()]


class OfflineSource:
    """Plays the recording here, and judges it by the same rules as the monitors."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.state = FlightState()
        self.status = FeedStatus("offline")
        self._rules = AlertRules()
        self._rows: Iterator[tuple[FlightRow, int]] = replay_of(options).plan()
        self._next = next(self._rows, None)

    def collect(self) -> bool:
        now_ns = time.time_ns()
        while self._next is not None and self._next[1] <= now_ns:
            row = self._next[0]
            for figures in (air_figures(row), attitude_figures(row)):
                self.state.apply(figures, row.time)
                self._rules.feed(figures, row.time)
            self.status.air_data += 1
            self.status.attitude += 1
            self._next = next(self._rows, None)
        return self._next is not None

    def alerts(self) -> list[AlertLine]:
        return [AlertLine(event.kind, event.text) for event in self._rules.standing.values()]


def fits_terminal() -> bool:
    """True if stdout is a terminal that the display fits into."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.columns >= WIDTH and size.lines >= HEIGHT


def draw(source: Source, stopped: threading.Event) -> None:
    """Redraws until stopped; what was on the terminal comes back."""
    to_stop = stops()
    sys.stdout.write(ENTER)
    try:
        due = time.monotonic()
        more = True
        while more and not stopped.is_set():
            if to_stop():
                sys.stdout.write(LEAVE)
                sys.stdout.flush()
                stop()
                sys.stdout.write(ENTER)
            more = source.collect()
            sys.stdout.write(render(view_of(source.state, source.alerts(), source.status)).to_ansi())
            sys.stdout.flush()
            due = max(due + FRAME_S, time.monotonic())
            stopped.wait(due - time.monotonic())
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def print_lines(source: Source, stopped: threading.Event) -> None:
    """A line a second, for a log or a pipe."""
    shown = math.nan
    more = True
    while more and not stopped.is_set():
        more = source.collect()
        view = view_of(source.state, source.alerts(), source.status)
        if view.flight_time == view.flight_time and view.flight_time != shown:
            shown = view.flight_time
            print(line_of(view), flush=True)
        stopped.wait(1.0)


def main() -> int:
    parser = parser_for("Shows the flight in the terminal.")
    parser.add_argument("--lines", action="store_true", help="print lines in a terminal too")
    parser.add_argument("--offline", action="store_true", help="show the recording itself; needs no daemon")
    parser.add_argument("--note", default="", metavar="TEXT", help="a line to show below the alerts")
    replay_options(parser)
    options = parser.parse_args()
    stopped = threading.Event()
    on_end_signals(stopped.set)
    source: Source = OfflineSource(options) if options.offline else LiveSource(options)
    source.status.note = options.note
    show = print_lines if options.lines or not fits_terminal() else draw
    show(source, stopped)
    return 0


if __name__ == "__main__":
    run(main)
