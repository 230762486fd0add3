"""Goal: a signal that interrupts who takes, or writes, loses nothing and doubles nothing, and what its handler raises
comes out as it is.

Method: each call is interrupted at every place where Python runs signal handlers; behind each there are new samples.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from dds import (
    DataReader,
    DataWriter,
    Policy,
    Publisher,
    Qos,
    ReadCondition,
    SampleState,
    Subscriber,
    Topic,
    WaitSet,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from tests.dds.test_sub import LONG
from tests.interrupts import Alarm, Interrupt, interrupted_everywhere


@dataclass
class Plain(IdlStruct):
    n: int


@dataclass
class Keyed(IdlStruct):
    name: str
    key("name")
    n: int


KINDS = {
    "bytes": (bytes, lambda n: b"%d" % n, int),
    "idl": (Plain, Plain, lambda sample: sample.n),
    "keyed": (Keyed, lambda n: Keyed(f"{n % 3}", n), lambda sample: sample.n),
    "numpy": (np.dtype([("n", "i8")]), lambda n: (n,), lambda sample: int(sample.n)),
}


@pytest.mark.parametrize("kind", [Interrupt, Alarm])
@pytest.mark.parametrize("type_", list(KINDS))
def test_who_takes(participant, type_, kind):
    data_type, make, number_of = KINDS[type_]
    topic = Topic(participant, "topic", data_type)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    sent, got = [], []

    def feed():
        for _ in range(3):
            sent.append(len(sent))
            writer.write(make(sent[-1]))
        assert writer.wait_for_acks(LONG)

    def act():
        taken = reader.take(10)
        got.append(taken)

    def check(error):
        assert isinstance(error, kind)
        got.append(reader.take(100))
        assert [number_of(one) for some in got for one in some] == sent
        feed()

    feed()
    assert interrupted_everywhere(act, check, kind) > 5
    assert [number_of(one) for some in got for one in some] == sent
    assert reader.get_sample_lost_status().total_count == 0 and reader._intake.unread == len(reader._intake) == 0
    assert reader._consumed == len(sent)


@pytest.mark.parametrize("iterate", [True, False])
def test_who_waits(participant, iterate):
    topic = Topic(participant, "topic", Plain)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    sent, got = [], []

    def feed():
        for _ in range(3):
            sent.append(len(sent))
            writer.write(Plain(sent[-1]))
        assert writer.wait_for_acks(LONG)

    def act():
        if iterate:
            iterator = reader.take_iter(timeout=duration(microseconds=1))
            for one in iterator:
                got.append(one)
                break
            iterator.close()
        else:
            one = reader.take_next()
            got.append(one)

    def check(error):
        got.extend(reader.take(100))
        assert [one.n for one in got] == sent
        feed()

    feed()
    assert interrupted_everywhere(act, check) > 5


def test_the_last_of_each_instance(participant):
    topic = Topic(participant, "topic", Keyed)
    reader = DataReader(participant, topic, Qos(Policy.History.KeepLast(1)))
    writer, sent = DataWriter(participant, topic), []

    def feed():
        for name in "aab":
            sent.append(len(sent))
            writer.write(Keyed(name, sent[-1]))
        assert writer.wait_for_acks(LONG)

    def act():
        got = reader._take_newest(10)
        kept.append(got)

    def check(error):
        kept.append(reader.take(10))
        assert sorted(one.n for some in kept for one in some) == sent[-2:]
        kept.clear()
        feed()

    kept = []
    feed()
    assert interrupted_everywhere(act, check) > 5


@pytest.mark.parametrize("type_", list(KINDS))
def test_who_writes(participant, type_):
    """What a handler has raised is what the program gets, and a write that was interrupted was made or not."""
    data_type, make, number_of = KINDS[type_]
    topic = Topic(participant, "topic", data_type)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    numbers = iter(range(10**6))

    def check(error):
        assert type(error) is Alarm

    count = interrupted_everywhere(lambda: writer.write(make(next(numbers))), check, Alarm)
    last = next(numbers)
    writer.write(make(last))
    assert writer.wait_for_acks(LONG)
    got = [number_of(one) for one in reader.take(1000)]
    assert got == sorted(set(got)) and got[-2:] == [last - 1, last] and len(got) <= count + 2


def test_who_waits_at_a_wait_set(participant):
    """Another thread can wait there afterwards."""
    topic = Topic(participant, "topic", Plain)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    waitset = WaitSet(participant)
    waitset.attach(ReadCondition(reader, SampleState.NotRead))

    def check(error):
        assert isinstance(error, Interrupt)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(waitset.wait, 0).result() in (0, 1)

    assert interrupted_everywhere(lambda: waitset.wait(duration(microseconds=1)), check) > 5
    writer.write(Plain(1))
    assert waitset.wait(LONG) == 1


def test_who_writes_within_an_order_group(participant):
    """Another thread can write afterwards, and what was interrupted was written or not."""
    qos = Qos(Policy.PresentationAccessScope.Group(False, True), Policy.Partition(["here"]))
    publisher, subscriber = Publisher(participant, qos), Subscriber(participant, qos)
    topic = Topic(participant, "topic", Plain, order="together")
    reader = DataReader(subscriber, topic)
    writer, other = DataWriter(publisher, topic), DataWriter(publisher, topic)
    numbers = iter(range(10**6))

    def check(error):
        assert type(error) is Alarm
        with ThreadPoolExecutor(1) as pool:
            pool.submit(other.write, Plain(next(numbers))).result(LONG / 1e9)

    interrupted_everywhere(lambda: writer.write(Plain(next(numbers))), check, Alarm)
    assert writer.wait_for_acks(LONG) and other.wait_for_acks(LONG)
    subscriber.begin_access()
    got = [one.n for one in reader.take(100_000)]
    subscriber.end_access()
    assert got == sorted(set(got)) and len(got) > next(numbers) // 2
