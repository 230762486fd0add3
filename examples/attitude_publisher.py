#!/usr/bin/env python3
"""Publishes attitude and position of the recorded flight: roll, heading, track, groundspeed, place, callsign, squawk.

Samples are dataclasses and travel as CDR. With --json the last line is `published` with the count.
"""

from __future__ import annotations

from avionics import IN_ORDER, attitude_of, attitude_topic
from programs import Output, clock, on_end_signals, parser_for, participant_of, replay_of, replay_options, run

from dds.pub import DataWriter
from dds.util import duration


def main() -> int:
    parser = parser_for("Publishes attitude and position of the recorded flight.")
    replay_options(parser)
    options = parser.parse_args()
    output = Output(options.json)
    replay = replay_of(options)
    on_end_signals(replay.stop)
    replay.prepare()

    participant = participant_of(options)
    writer = DataWriter(participant, attitude_topic(participant), qos=IN_ORDER)
    output.event("ready", "publishing attitude and position")
    count = 0
    for row, due_ns in replay:
        writer.write(attitude_of(due_ns, row, count))
        count += 1
        if output.status_due():
            output.event("status", f"{clock(row.time)} of the flight, {count} samples", count=count)

    writer.wait_for_acks(duration(seconds=10))
    output.event("published", f"{count} samples published and delivered at every subscribing node", count=count)
    return 0


if __name__ == "__main__":
    run(main)
