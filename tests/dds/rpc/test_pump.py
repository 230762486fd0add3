"""Goal: whoever waits for what a pump brings hears of its end, whatever has ended it."""

from __future__ import annotations

import threading

from dds import DataReader, DataWriter, DDSException, Topic
from dds.rpc.pump import Pump


class Owner:
    """Fails at the first sample."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: DDSException | None = None

    def samples_came(self, samples: list[bytes]) -> bool:
        raise ZeroDivisionError("a defect")

    def statuses_changed(self) -> None:
        pass

    def time_passed(self, now_ns: int) -> int | None:
        return None

    def pump_ended(self, error: DDSException) -> None:
        self.error = error
        self.ended.set()


def test_a_defect_is_told_to_who_waits(participant, caplog) -> None:
    topic = Topic(participant, "t", bytes)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    owner = Owner()
    pump = Pump(participant, "dds pump of a test", reader, [writer], owner)
    pump.start()
    writer.write(b"x")
    assert owner.ended.wait(20) and "ended by a defect: ZeroDivisionError('a defect')" in str(owner.error)
    assert "dds pump of a test has ended by a defect" in caplog.text
    pump.stop()
