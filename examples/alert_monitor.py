#!/usr/bin/env python3
"""Watches the flight and raises alerts, the same ones in the same order on every node where it runs.

It subscribes two topics, merges them by a rule that only depends on what is in them (merge.py), and judges the merged
stream by rules that only depend on that (alerts.py). So any number of monitors agree without ever talking to each
other: run one on each node and compare the digests they print. A monitor that starts late gets the topics' history
and arrives at the same digest. What it raises and clears it publishes on a third topic.

If one topic falls silent while the other goes on, the merge can't know whether something earlier is still to come.
After --patience seconds a monitor writes an empty sample into the silent topic itself, where it takes its place in
the agreed order, and all monitors go on alike.

--offline computes the alerts straight from the recording, with no node at all: the digest must be the same.
With --json the last line is `final`: alerts, digest, samples written by topic, and how often it stepped in.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from typing import Any

from alerts import AIR_DATA, ATTITUDE, AlertEvent, AlertLog, AlertRules
from avionics import (
    AIR_DATA_NAME,
    AIR_FIGURES,
    ALERTS_NAME,
    ATTITUDE_FIGURES,
    ATTITUDE_NAME,
    air_data_topic,
    air_figures,
    alert_of,
    alerts_topic,
    attitude_figures,
    attitude_of,
    attitude_topic,
    figures_in,
    fill_air_data,
)
from merge import Merge
from programs import Output, clock, on_end_signals, parser_for, participant_of, replay_of, replay_options, run

from dds.core import InstanceState, ReadCondition, SampleState, ViewState, WaitSet
from dds.domain import DomainParticipant
from dds.pub import DataWriter
from dds.sub import DataReader
from dds.util import duration

BATCH = 1000
NAMES = {AIR_DATA: AIR_DATA_NAME, ATTITUDE: ATTITUDE_NAME}
FIGURES = {AIR_DATA: AIR_FIGURES, ATTITUDE: ATTITUDE_FIGURES}


@dataclass(slots=True)
class Heard:
    """A sample as the merge holds it."""

    flight_time: float
    figures: dict[str, Any]


class Monitor:
    """Merge, rules and log together. Feed it the samples of both streams, each stream in its own order."""

    def __init__(self) -> None:
        self.merge: Merge[Heard] = Merge(2)
        self.rules = AlertRules()
        self.log = AlertLog()
        self.heard = 0
        self.held = 0
        """Samples with figures that the merge holds back."""

    def hear(self, stream: int, time_ns: int, flight_time: float, figures: dict[str, Any]) -> list[AlertEvent]:
        """Takes one sample; returns the alerts that this settles."""
        events: list[AlertEvent] = []
        self.heard += 1
        self.held += not math.isnan(flight_time)
        for _, heard in self.merge.push(stream, time_ns, Heard(flight_time, figures)):
            self.held -= not math.isnan(heard.flight_time)
            events += self.rules.feed(heard.figures, heard.flight_time)
        for event in events:
            self.log.add(event)
        return events


class Live:
    """A monitor on two topics, publishing on a third."""

    def __init__(self, participant: DomainParticipant, output: Output, patience_s: float) -> None:
        self.monitor = Monitor()
        self.output = output
        self.wrote: dict[str, int] = {}
        self.stepped_in = 0
        self._participant = participant
        self._topics = {AIR_DATA: air_data_topic(participant), ATTITUDE: attitude_topic(participant)}
        self._readers = {stream: DataReader(participant, topic) for stream, topic in self._topics.items()}
        self._alerts = DataWriter(participant, alerts_topic(participant))
        self._writers: dict[int, Any] = {}  # made when first needed: whoever writes takes part in the order
        self._waitset = WaitSet(participant)
        everything = SampleState.Any | ViewState.Any | InstanceState.Any
        self._conditions = [ReadCondition(reader, everything) for reader in self._readers.values()]
        for condition in self._conditions:
            self._waitset.attach(condition)
        self._patience_s = patience_s
        self._went_on_at = time.monotonic()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Works until stopped, then takes what is still there."""
        while not self._stopped:
            self._waitset.wait(duration(milliseconds=200))
            self._take()
            self._step_in()
            if self.output.as_json and self.output.status_due(0.25):
                self._say_status()
        while self._take():
            pass

    def _take(self) -> int:
        before, count = self.monitor.held, 0
        for stream, reader in self._readers.items():
            for sample in reader.take(N=BATCH):
                count += 1
                figures = figures_in(sample, FIGURES[stream])
                for event in self.monitor.hear(stream, int(sample.time_ns), float(sample.flight_time), figures):
                    self._raise(event)
        if not self.monitor.held or self.monitor.held < before + count:
            self._went_on_at = time.monotonic()
        return count

    def _raise(self, event: AlertEvent) -> None:
        self._alerts.write(alert_of(event))
        self.wrote[ALERTS_NAME] = self.wrote.get(ALERTS_NAME, 0) + 1
        if not self.output.as_json:
            print(line_of(event, self.monitor.log), flush=True)

    def _step_in(self) -> None:
        """Ends the silence of a topic that holds the merge back for too long."""
        if not self.monitor.held or time.monotonic() - self._went_on_at < self._patience_s:
            return
        for stream, time_ns in self.monitor.merge.waiting_for():
            writer = self._writers.get(stream)
            if writer is None:
                writer = self._writers[stream] = DataWriter(self._participant, self._topics[stream])
            if stream == AIR_DATA:
                with writer.loan() as record:
                    fill_air_data(record, time_ns, None, 0)
            else:
                writer.write(attitude_of(time_ns, None, 0))
            self.stepped_in += 1
            self.wrote[NAMES[stream]] = self.wrote.get(NAMES[stream], 0) + 1
            if not self.output.as_json:
                print(f"{NAMES[stream]} is silent: went on without it", flush=True)
        self._went_on_at = time.monotonic()

    def _say_status(self) -> None:
        log = self.monitor.log
        self.output.event("status", "", heard=self.monitor.heard, held=self.monitor.held, alerts=log.count,
        digest=log.digest())


def line_of(event: AlertEvent, log: AlertLog) -> str:
    what = "RAISED " if event.raised else "cleared"
    when, number = clock(event.flight_time), f"#{event.number}"
    return f"{when}  {number:<4} {what}  {event.kind:<18}  {event.text:<46}  digest {log.digest()}"


def offline(options: argparse.Namespace, output: Output) -> Monitor:
    """The alerts of the recording itself."""
    monitor = Monitor()
    for row, due_ns in replay_of(options).plan():
        for stream, figures in ((AIR_DATA, air_figures(row)), (ATTITUDE, attitude_figures(row))):
            for event in monitor.hear(stream, due_ns, row.time, figures):
                if not output.as_json:
                    print(line_of(event, monitor.log))
    for stream in (AIR_DATA, ATTITUDE):
        monitor.hear(stream, (1 << 63) - 1, math.nan, {})
    return monitor


def main() -> int:
    parser = parser_for("Raises alerts about the flight, the same ones on every node.")
    parser.add_argument(
        "--patience", type=float, default=2.0, metavar="S", help="wait this long for a silent topic (default: 2)"
    )
    parser.add_argument("--offline", action="store_true", help="compute the alerts from the recording; needs no daemon")
    replay_options(parser)
    options = parser.parse_args()
    output = Output(options.json)
    wrote: dict[str, int] = {}
    stepped_in = 0
    if options.offline:
        monitor = offline(options, output)
    else:
        live = Live(participant_of(options), output, options.patience)
        on_end_signals(live.stop)
        output.event("ready", "watching the flight")
        live.run()
        monitor, wrote, stepped_in = live.monitor, live.wrote, live.stepped_in
    output.event(
        "final",
        f"{monitor.log.count} alerts raised or cleared from {monitor.heard} samples, digest {monitor.log.digest()}",
        alerts=monitor.log.count,
        digest=monitor.log.digest(),
        heard=monitor.heard,
        wrote=wrote,
        stepped_in=stepped_in,
    )
    return 0


if __name__ == "__main__":
    run(main)
