#!/usr/bin/env python3
"""Watches the flight and raises alerts, the same ones in the same order on every node where it runs.

Air data and attitude are two topics of one order group, so every monitor gets the samples of both in the same order,
and judges them by rules that depend on nothing else (alerts.py). So any number of monitors agree without ever talking
to each other: run one on each node and compare the digests they print. A monitor that starts late gets the topics'
history in the same order, and arrives at the same digest. What it raises and clears it publishes on a third topic,
where the monitor of the highest node that has one is heard.

If the publisher of the air data that everybody hears dies, another one that stands by is heard. Which sample is its
first is agreed, too: the monitors print the same.

--offline judges the recording itself, row by row, with no node at all.
With --json the last line is `final`: alerts, digest, samples written by topic, and who was heard of the publishers of
the air data, each with the number of its first sample.
"""

from __future__ import annotations

import argparse
from typing import Any

from alerts import AlertEvent, AlertLog, AlertRules
from avionics import (
    AIR_FIGURES,
    ALERTS_NAME,
    ATTITUDE_FIGURES,
    IN_ORDER,
    air_data_topic,
    air_figures,
    alert_of,
    alerts_topic,
    attitude_figures,
    attitude_topic,
    figures_in,
)
from programs import Output, clock, on_end_signals, parser_for, participant_of, replay_of, replay_options, run

from dds.core import InstanceState, Policy, Qos, ReadCondition, SampleState, ViewState, WaitSet
from dds.domain import DomainParticipant
from dds.pub import DataWriter
from dds.sub import DataReader, Subscriber
from dds.util import duration

BATCH = 1000


class Monitor:
    """Rules and log together. Feed it the samples of both topics in their order."""

    def __init__(self) -> None:
        self.rules = AlertRules()
        self.log = AlertLog()
        self.heard = 0

    def hear(self, flight_time: float, figures: dict[str, Any]) -> list[AlertEvent]:
        """Takes one sample; returns the alerts that it raises and clears."""
        self.heard += 1
        events = self.rules.feed(figures, flight_time)
        for event in events:
            self.log.add(event)
        return events


class Live:
    """A monitor on two topics of one order, publishing on a third unless it is `mute`."""

    def __init__(self, participant: DomainParticipant, output: Output, mute: bool) -> None:
        self.monitor = Monitor()
        self.output = output
        self.wrote: dict[str, int] = {}
        self.last: dict[str, int] = {}
        """Number of the last sample heard, by topic."""
        self.owners: list[dict[str, int]] = []
        """Publishers of the air data, in the order in which they were heard: node, and number of the first sample."""
        self._owner = 0
        self._subscriber = Subscriber(participant, qos=IN_ORDER)
        self._air_data = DataReader(self._subscriber, air_data_topic(participant))
        self._figures = {
            self._air_data: AIR_FIGURES,
            DataReader(self._subscriber, attitude_topic(participant)): ATTITUDE_FIGURES,
        }
        self._alerts = None
        if not mute:
            strength = Qos(Policy.OwnershipStrength(participant.session.node_id))
            self._alerts = DataWriter(participant, alerts_topic(participant), qos=strength)
        self._waitset = WaitSet(participant)
        everything = SampleState.Any | ViewState.Any | InstanceState.Any
        self._conditions = [ReadCondition(reader, everything) for reader in self._figures]
        for condition in self._conditions:
            self._waitset.attach(condition)
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Works until stopped, then takes what is still there."""
        while not self._stopped:
            self._waitset.wait(duration(milliseconds=200))
            self._take()
            if self.output.as_json and self.output.status_due(0.25):
                self._say_status()
        while self._take():
            pass

    def _take(self) -> int:
        taken = self._subscriber.take(BATCH)
        for reader, sample in taken:
            if reader is self._air_data and sample.sample_info.publication_handle != self._owner:
                self._hear_another(sample)
            self.last[reader.topic.name] = int(sample.sequence)
            for event in self.monitor.hear(float(sample.flight_time), figures_in(sample, self._figures[reader])):
                self._raise(event)
        return len(taken)

    def _hear_another(self, sample: Any) -> None:
        self._owner = sample.sample_info.publication_handle
        self.owners.append({"node": sample.sample_info.node, "sample": int(sample.sequence)})
        if not self.output.as_json:
            print(f"air data of node {sample.sample_info.node} from sample {sample.sequence} on", flush=True)

    def _raise(self, event: AlertEvent) -> None:
        if self._alerts is not None:
            if event.raised:
                self._alerts.write(alert_of(event))
            else:
                self._alerts.dispose(alert_of(event))
            self.wrote[ALERTS_NAME] = self.wrote.get(ALERTS_NAME, 0) + 1
        if not self.output.as_json:
            print(line_of(event, self.monitor.log), flush=True)

    def _say_status(self) -> None:
        log = self.monitor.log
        self.output.event("status", "", heard=self.monitor.heard, alerts=log.count, digest=log.digest(),
                          last=self.last, owners=self.owners)


def line_of(event: AlertEvent, log: AlertLog) -> str:
    what = "RAISED " if event.raised else "cleared"
    when, number = clock(event.flight_time), f"#{event.number}"
    return f"{when}  {number:<4} {what}  {event.kind:<18}  {event.text:<46}  digest {log.digest()}"


def offline(options: argparse.Namespace, output: Output) -> Monitor:
    """The alerts of the recording itself."""
    monitor = Monitor()
    for row, _ in replay_of(options).plan():
        for figures in (air_figures(row), attitude_figures(row)):
            for event in monitor.hear(row.time, figures):
                if not output.as_json:
                    print(line_of(event, monitor.log))
    return monitor


def main() -> int:
    parser = parser_for("Raises alerts about the flight, the same ones on every node.")
    parser.add_argument("--mute", action="store_true", help="publish no alerts, only count and print them")
    parser.add_argument("--offline", action="store_true", help="judge the recording itself; needs no daemon")
    replay_options(parser)
    options = parser.parse_args()
    output = Output(options.json)
    wrote: dict[str, int] = {}
    owners: list[dict[str, int]] = []
    if options.offline:
        monitor = offline(options, output)
    else:
        live = Live(participant_of(options), output, options.mute)
        on_end_signals(live.stop)
        output.event("ready", "watching the flight")
        live.run()
        monitor, wrote, owners = live.monitor, live.wrote, live.owners
    output.event(
        "final",
        f"{monitor.log.count} alerts raised or cleared from {monitor.heard} samples, digest {monitor.log.digest()}",
        alerts=monitor.log.count,
        digest=monitor.log.digest(),
        heard=monitor.heard,
        wrote=wrote,
        owners=owners,
    )
    return 0


if __name__ == "__main__":
    run(main)
