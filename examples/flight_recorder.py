#!/usr/bin/env python3
"""Records the flight: subscribes the logged topics, so that the node it is attached to keeps them on disk.

The node writes the files, not this program: a logged topic is journalled on every node that subscribes it, as MCAP
files that `mcap` and `spindle journal` open; the topics of an order group are in one file, in their order. What this
program adds is the subscription, and counts to compare with. The node needs a directory for journals:
`spindle daemon --journal-dir DIR`.
With --json each file is told as `journal`, and the last line is `final` with the count of each topic.
"""

from __future__ import annotations

import threading

from avionics import AIR_DATA_NAME, ATTITUDE_NAME, ORDER, air_data_topic, attitude_topic
from programs import Output, on_end_signals, parser_for, participant_of, run

from dds.core import InstanceState, ReadCondition, SampleState, ViewState, WaitSet
from dds.domain import DomainParticipant
from dds.sub import DataReader
from dds.util import duration

BATCH = 1000


def journals_of(participant: DomainParticipant) -> dict[str, str]:
    """The files that the node writes our topics to now, with the node's name for them: that of their order group."""
    topics = participant.session.status()["topics"]
    return {one["journal"]["path"]: one["name"] for one in topics if one["name"] == ORDER and "journal" in one}


def main() -> int:
    options = parser_for("Subscribes the logged topics, so that this node records them.").parse_args()
    output = Output(options.json)
    stopped = threading.Event()
    on_end_signals(stopped.set)

    participant = participant_of(options)
    readers = {
        AIR_DATA_NAME: DataReader(participant, air_data_topic(participant)),
        ATTITUDE_NAME: DataReader(participant, attitude_topic(participant)),
    }
    waitset = WaitSet(participant)
    conditions = [ReadCondition(one, SampleState.Any | ViewState.Any | InstanceState.Any) for one in readers.values()]
    for condition in conditions:
        waitset.attach(condition)
    counts = dict.fromkeys(readers, 0)

    def take() -> int:
        taken = 0
        for name, reader in readers.items():
            count = len(reader.take(N=BATCH))
            counts[name] += count
            taken += count
        return taken

    output.event("ready", "recording")
    told: set[str] = set()
    while not stopped.is_set():
        waitset.wait(duration(milliseconds=200))
        take()
        if output.status_due(0.25 if options.json else 1.0):
            for path, name in journals_of(participant).items():
                if path not in told:
                    told.add(path)
                    output.event("journal", f"the node writes {name} to {path}", path=path, topic=name)
            text = ", ".join(f"{name} {count}" for name, count in counts.items())
            output.event("status", text, count=sum(counts.values()), topics=counts)
    while take():
        pass
    text = ", ".join(f"{name} {count}" for name, count in counts.items())
    output.event("final", f"recorded {text}", topics=counts)
    return 0


if __name__ == "__main__":
    run(main)
