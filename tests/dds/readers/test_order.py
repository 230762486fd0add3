"""Goal: a reader gives a topic's samples in its order, whoever else in the program looks at it meanwhile.

Method: another thread looks between a take's first look and the rest of it, each time: what had come by then is kept,
to be looked at one by one, and more comes behind it.
"""

import threading

import pytest

from dds import DataReader, DataWriter, Policy, Qos, SampleState, Topic
from dds.conditions import ReadCondition
from tests.dds.messages.test_order_groups import Note
from tests.dds.test_sub import LONG


def looks(reader, how):
    """What others do that lets samples in."""
    if how == "read":
        reader.read(1)
    else:
        assert ReadCondition(reader, SampleState.Any).triggered


@pytest.mark.parametrize("kind", [bytes, Note])
@pytest.mark.parametrize("how", ["read", "condition"])
@pytest.mark.parametrize("keeps", [Policy.History.KeepAll, Policy.History.KeepLast(100)])
def test_what_was_let_in_meanwhile_comes_first(participant, monkeypatch, kind, how, keeps):
    topic = Topic(participant, "order", kind)
    reader, writer = DataReader(participant, topic, Qos(keeps)), DataWriter(participant, topic)
    numbers = iter(range(1000))

    def write(count):
        for _ in range(count):
            number = next(numbers)
            writer.write(b"%d" % number if kind is bytes else Note("", number))
        assert writer.wait_for_acks(LONG)

    take_fast, meddled = reader._take_fast, []

    def others_look_first(n):
        if not meddled:
            meddled.append(True)
            other = threading.Thread(target=looks, args=(reader, how))
            other.start()
            other.join()
            write(5)
        return take_fast(n)

    monkeypatch.setattr(reader, "_take_fast", others_look_first)
    taken = []
    for _ in range(10):
        meddled.clear()
        write(5)
        samples = reader.take(4)
        while samples:
            taken += [int(one) if kind is bytes else one.number for one in samples]
            samples = reader.take(4)
    assert taken == sorted(taken) and taken[-1] == next(numbers) - 1 and (len(taken) == taken[-1] + 1)
