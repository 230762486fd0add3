#!/usr/bin/env python3
"""Publishes the air data of the recorded flight: altitude, speeds, Mach, vertical rate, selected altitude.

Each sample is a record of a fixed layout: `loan()` gives memory for one, which is filled field by field and sent as it
is, without encoding. Several publishers may run at once: everybody hears the strongest (--strength) that is alive, and
the others stand by.
With --json the last line is `published` with the count.
"""

from __future__ import annotations

from avionics import IN_ORDER, air_data_topic, fill_air_data
from programs import Output, clock, on_end_signals, parser_for, participant_of, replay_of, replay_options, run

from dds.core import Policy, Qos
from dds.pub import DataWriter
from dds.util import duration


def main() -> int:
    parser = parser_for("Publishes the air data of the recorded flight.")
    parser.add_argument("--strength", type=int, default=1, metavar="N", help="of this publisher (default: 1)")
    replay_options(parser)
    options = parser.parse_args()
    output = Output(options.json)
    replay = replay_of(options)
    on_end_signals(replay.stop)
    replay.prepare()

    participant = participant_of(options)
    strength = Qos(Policy.OwnershipStrength(options.strength))
    writer = DataWriter(participant, air_data_topic(participant), qos=IN_ORDER + strength)
    output.event("ready", "publishing air data")
    count = 0
    for row, due_ns in replay:
        with writer.loan() as record:
            fill_air_data(record, due_ns, row, count)
        count += 1
        if output.status_due(0.25 if options.json else 1.0):
            output.event("status", f"{clock(row.time)} of the flight, {count} samples", count=count)

    writer.wait_for_acks(duration(seconds=10))
    output.event("published", f"{count} samples published and delivered at every subscribing node", count=count)
    return 0


if __name__ == "__main__":
    run(main)
