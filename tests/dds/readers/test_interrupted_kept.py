"""Goal: a signal that interrupts who reads, or takes from what is kept, loses nothing and doubles nothing, and what is
counted of it stays right.

Method: each call is interrupted at every place where Python runs signal handlers; behind each there are new samples.
"""

from dataclasses import dataclass

import pytest

from dds import (
    DataReader,
    DataWriter,
    InstanceState,
    Policy,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleState,
    Topic,
    ViewState,
)
from dds.filters.filtered_topic import ContentFilteredTopic
from dds.idl import IdlStruct
from dds.idl.annotations import key
from tests.dds.test_sub import LONG
from tests.interrupts import Alarm, Interrupt, interrupted_everywhere

ALL = SampleState.Any | ViewState.Any | InstanceState.Any


@dataclass
class Keyed(IdlStruct):
    name: str
    key("name")
    n: int


CALLS = {
    "behind a read": lambda reader, any_, odd: reader.read(4) and reader.take(4),
    "with a condition": lambda reader, any_, odd: reader.take(4, any_),
    "with a query": lambda reader, any_, odd: reader.take(4, odd),
    "one": lambda reader, any_, odd: reader.read(1) and [reader.take_next()],
    "of an instance": lambda reader, any_, odd: (
        reader.take(4, instance_handle=reader.lookup_instance(Keyed("1", 0)))),
}


def what_is_counted(reader):
    """That nothing is kept, and each sample was given out."""
    intake = reader._intake
    assert len(intake) == intake.unread == intake._gone == len(intake._arrived) == 0
    assert not any(one.kept or one.entries for one in intake.instances.by_handle.values())
    assert reader.get_sample_lost_status().total_count == 0


class Writing:
    def __init__(self, participant, topic):
        self.writer, self.sent = DataWriter(participant, topic), []

    def __call__(self):
        for _ in range(6):
            self.sent.append(len(self.sent))
            self.writer.write(Keyed(f"{self.sent[-1] % 3}", self.sent[-1]))
        assert self.writer.wait_for_acks(LONG)


@pytest.mark.parametrize("kind", [Interrupt, Alarm])
@pytest.mark.parametrize("call", list(CALLS))
def test_who_takes(participant, call, kind):
    topic = Topic(participant, "topic", Keyed)
    reader, write, got = DataReader(participant, topic), Writing(participant, topic), []
    conditions = ReadCondition(reader, ALL), QueryCondition(reader, ALL, lambda sample: sample.n % 2)
    write()

    def check(error):
        assert isinstance(error, kind)
        got.append(reader.take(100))
        assert sorted(one.n for some in got for one in some if one is not None) == write.sent
        what_is_counted(reader)
        assert reader._consumed == len(write.sent)
        write()

    assert interrupted_everywhere(lambda: got.append(CALLS[call](reader, *conditions)), check, kind) > 20


def test_who_reads(participant):
    """What is read stays, in its order, and counts as read only if the program has got it."""
    topic = Topic(participant, "topic", Keyed)
    reader, write = DataReader(participant, topic), Writing(participant, topic)
    unread = ReadCondition(reader, SampleState.NotRead | ViewState.Any | InstanceState.Any)
    write()

    def check(error):
        assert isinstance(error, Interrupt)
        new = reader.take(100, unread)
        assert [one.n for one in [*reader.take(100), *new]] == write.sent[-6:]
        what_is_counted(reader)
        assert reader._consumed == len(write.sent)
        write()

    assert interrupted_everywhere(lambda: reader.read(4), check) > 20


@pytest.mark.parametrize("take", [False, True])
def test_the_last_ones_of_each_instance(participant, take):
    topic = Topic(participant, "topic", Keyed)
    reader = DataReader(participant, topic, Qos(Policy.History.KeepLast(1)))
    write, got, any_ = Writing(participant, topic), [], ReadCondition(reader, ALL)
    write()

    def check(error):
        assert isinstance(error, Interrupt)
        got.append(reader.take(100))
        found = sorted({one.n for some in got for one in some})
        assert found[-3:] == write.sent[-3:] and sum(map(len, got)) == 3
        what_is_counted(reader)
        got.clear()
        write()

    def act():
        if take:
            got.append(reader.take(2, any_))
        else:
            reader.read(2)

    assert interrupted_everywhere(act, check) > 20


def test_samples_that_a_filter_is_about(participant):
    topic = Topic(participant, "topic", Keyed)
    some = ContentFilteredTopic(participant, "some", topic, "name <> '1'", [])
    reader, write, got = DataReader(participant, some), Writing(participant, topic), []
    write()

    def check(error):
        assert isinstance(error, Interrupt)
        got.append(reader.take(100))
        assert [one.n for taken in got for one in taken] == [n for n in write.sent if n % 3 != 1]
        what_is_counted(reader)
        write()

    assert interrupted_everywhere(lambda: got.append(reader.take(2)), check) > 20
