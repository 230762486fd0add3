"""Goal: whoever waits for what a pump brings hears of its end, whatever has ended it."""

from __future__ import annotations

import threading
import warnings
from unittest.mock import patch

from dds import DataReader, DataWriter, DDSException, Topic
from dds.rpc.pump import Pump
from tests.support import wait_until


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


def test_what_is_due_in_no_time_is_no_timeout_that_somebody_meant_otherwise(participant) -> None:
    """Goal: a pump goes on where warnings are errors. Method: its owner has something to do in a nanosecond."""
    topic = Topic(participant, "t", bytes)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    asked: list[int] = []

    class Hurried(Owner):
        def time_passed(self, now_ns: int) -> int | None:
            asked.append(now_ns)
            return now_ns + 1 if len(asked) < 10 else None

    owner = Hurried()
    pump = Pump(participant, "dds pump of a test", reader, [writer], owner)
    with warnings.catch_warnings(), patch("dds.rpc.pump.time.monotonic_ns", lambda: 0):
        warnings.simplefilter("error")
        pump.start()
        wait_until(lambda: len(asked) == 10 or owner.ended.is_set())
        pump.stop()
    assert "closed" in str(owner.error)
