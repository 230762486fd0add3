"""ContentFilteredTopic and QueryCondition with expressions, at readers.

Goal: a reader sees what passes and nothing else, counts the rest, and keeps what its History says of what passes;
expressions and parameters that don't fit are refused and change nothing.
Method: writers and readers on one embedded node.
"""

import itertools
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    DomainParticipant,
    InstanceState,
    Listener,
    Policy,
    Qos,
    QueryCondition,
    SampleState,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.idl import IdlStruct
from dds.idl import annotations as annotate
from tests.support import wait_until

LONG = duration(seconds=20)
ANY = SampleState.Any | ViewState.Any | InstanceState.Any
BAD = DDSException.DDS_RETCODE_BAD_PARAMETER


@dataclass
class Point(IdlStruct):
    x: int
    name: str


@dataclass
class Keyed(IdlStruct):
    plane: int
    annotate.key("plane")
    x: int


def write_all(writer, samples):
    for one in samples:
        writer.write(one)
    assert writer.wait_for_acks(LONG)


def points(*values):
    return [Point(one, f"p{one}") for one in values]


def made(participant, text="x > %0", parameters=(2,), qos=None, data_type=Point):
    topic = Topic(participant, "points", data_type)
    filtered = ContentFilteredTopic(participant, "some points", topic, text, parameters)
    return topic, filtered, DataReader(participant, filtered, qos=qos), DataWriter(participant, topic)


def test_a_reader_sees_what_passes_and_counts_the_rest(participant):
    topic, filtered, reader, writer = made(participant)
    everything = DataReader(participant, topic)
    write_all(writer, points(1, 2, 3, 4))
    assert reader.read(10) == points(3, 4) == reader.take(10)
    assert everything.take(10) == points(1, 2, 3, 4)
    status = reader.get_sample_filtered_status()
    assert (status.total_count, status.total_count_change) == (2, 2)
    write_all(writer, points(0, 5))
    assert reader.take_one(timeout=LONG) == Point(5, "p5")
    status = reader.get_sample_filtered_status()
    assert (status.total_count, status.total_count_change) == (3, 1)
    assert everything.get_sample_filtered_status().total_count == 0
    assert reader.get_sample_lost_status().total_count == 0
    assert reader.topic is filtered and filtered.related_topic is topic


def test_what_it_says_of_itself(participant):
    topic, filtered, _, _ = made(participant)
    assert filtered.name == filtered.get_name() == "some points"
    assert filtered.filter_expression == "x > %0" and filtered.expression_parameters == [2]
    assert filtered.participant is participant and filtered.data_type is Point
    assert filtered.typename == topic.typename and "x > %0" in repr(filtered)


def test_parameters_change_for_what_comes_later(participant):
    _, filtered, reader, writer = made(participant)
    write_all(writer, points(1, 3))
    assert reader.read(9) == points(3)
    filtered.expression_parameters = ["0"]
    write_all(writer, points(1, 0))
    assert reader.take(9) == points(3, 1)
    for wrong in ([], ["'a'"], [None]):
        with pytest.raises(DDSException) as raised:
            filtered.set_expression_parameters(wrong)
        assert raised.value.code == BAD
    assert filtered.get_expression_parameters() == ["0"]
    write_all(writer, points(7))
    assert reader.take(9) == points(7)


def test_history_is_of_what_passes(participant):
    """The last sample that passes stays, whatever comes behind it that doesn't."""
    _, _, reader, writer = made(participant, qos=Qos(Policy.History.KeepLast(1)))
    write_all(writer, points(8, 9, 1, 0))
    assert reader.take(9) == points(9)
    assert reader.get_sample_lost_status().total_count == 0


def test_history_of_each_instance_is_of_what_passes(participant):
    _, _, reader, writer = made(participant, "x < 5", (), Qos(Policy.History.KeepLast(1)), Keyed)
    write_all(writer, [Keyed(1, 1), Keyed(2, 4), Keyed(1, 7), Keyed(2, 9)])
    assert reader.take(9) == [Keyed(1, 1), Keyed(2, 4)]


def test_waiting_is_for_what_passes(participant):
    _, _, reader, writer = made(participant)
    got = []
    thread = threading.Thread(
        target=lambda: got.extend(itertools.islice(reader.take_iter(timeout=LONG), 2)), daemon=True)
    thread.start()
    write_all(writer, points(1, 1, 3, 1, 4))
    thread.join(20)
    assert got == points(3, 4)


def test_a_function_of_the_topic_and_an_expression_both_count(participant):
    topic = Topic(participant, "points", Point)
    with pytest.raises(TypeError, match="a topic filter is a function of a topic and a sample, not 'x > 1'"):
        topic.set_topic_filter("x > 1")
    topic.set_topic_filter(lambda topic, sample: sample.x % 2 == 0)
    reader = DataReader(participant, ContentFilteredTopic(participant, "high", topic, "x > 2"))
    write_all(DataWriter(participant, topic), points(1, 2, 3, 4, 5, 6))
    assert reader.take(9) == points(4, 6)
    assert reader.get_sample_filtered_status().total_count == 4


def test_records_in_batches(participant):
    dtype = np.dtype([("x", "<i4"), ("y", "<f8")])
    _, _, reader, writer = made(participant, "y >= %0 AND x <> 3", (2.5,), None, dtype)
    writer.write_many(np.array([(i, i / 2) for i in range(10)], dtype))
    assert writer.wait_for_acks(LONG)
    assert reader.take_array(100)["x"].tolist() == [5, 6, 7, 8, 9]


def test_late_joiners_get_what_passes(participant):
    qos = Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.TransientLocal)
    topic = Topic(participant, "kept", Point, qos=qos)
    writer = DataWriter(participant, topic)
    keeper = DataReader(participant, topic)
    write_all(writer, points(1, 2, 3, 4))
    late = DataReader(participant, ContentFilteredTopic(participant, "high", topic, "name = 'p2' or x >= 4"))
    assert late.take(9) == points(2, 4)
    assert keeper.take(9) == points(1, 2, 3, 4)


def test_wrong_arguments(participant):
    topic = Topic(participant, "points", Point)
    for arguments in ((topic, "x", topic, "x = 1"), (participant, 5, topic, "x = 1"), (participant, "x", "points", ""),
                      (participant, "x", topic, None), (participant, "x", topic, "x = %0", "1")):
        with pytest.raises(TypeError):
            ContentFilteredTopic(*arguments)
    for text, parameters, why in (("x >", (), "character 4"), ("y = 1", (), "no field 'y'"), ("x = %0", (), "needs 1"),
                                  ("x = %0", (1, 2), "needs 1 parameters, 2 are given"),
                                  ("x = %0", (None,), "parameters"), ("x = 1 ORDER BY x", (), "ORDER BY")):
        with pytest.raises(DDSException, match=why) as raised:
            ContentFilteredTopic(participant, "x", topic, text, parameters)
        assert raised.value.code == BAD
    with DomainParticipant.embedded() as another, pytest.raises(DDSException, match="another participant"):
        ContentFilteredTopic(another, "x", topic, "x = 1")
    with pytest.raises(TypeError, match="must be a Topic"):
        DataWriter(participant, ContentFilteredTopic(participant, "x", topic, "x = 1"))


# --- conditions

def test_a_query_condition_with_an_expression(participant):
    topic = Topic(participant, "points", Point)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    high = QueryCondition(reader, ANY, "x > %0 AND name LIKE 'p%'", [2])
    assert not high.triggered
    write_all(writer, points(1, 3, 2, 4))
    assert high.triggered
    assert reader.take(1, condition=high) == points(3)
    assert reader.read(9) == points(1, 2, 4)
    assert high.get_query_expression() == "x > %0 AND name LIKE 'p%'" and high.get_query_parameters() == [2]
    high.set_query_parameters([3])
    assert reader.take(9, condition=high) == points(4) and not high.triggered
    with pytest.raises(DDSException, match="can't be used"):
        high.set_query_parameters([])
    with pytest.raises(DDSException, match="needs 1 parameters, 2 are given"):
        high.set_query_parameters([3, 4])
    assert high.get_query_parameters() == [3]


def test_a_query_condition_with_an_order(participant):
    topic = Topic(participant, "points", Point)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    write_all(writer, points(5, 1, 4, 2, 3))
    ordered = QueryCondition(reader, ANY, "x > 1 ORDER BY x")
    assert reader.read(2, condition=ordered) == points(2, 3)
    assert [*reader.take_iter(condition=ordered, timeout=0)] == points(2, 3, 4, 5)
    assert reader.take(9) == points(1)
    everything = QueryCondition(reader, ANY, "ORDER BY x")
    write_all(writer, points(9, 8))
    assert reader.take(9, condition=everything) == points(8, 9)


def test_new_parameters_wake_who_waits(participant):
    topic = Topic(participant, "points", Point)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    condition = QueryCondition(reader, ANY, "x = %0", [7])
    write_all(writer, points(1))
    waitset = WaitSet(participant)
    waitset.attach(condition)
    woken, got = [], []
    threads = [threading.Thread(target=lambda: woken.append(waitset.wait(LONG)), daemon=True),
               threading.Thread(target=lambda: got.append(reader.read_one(condition, LONG)), daemon=True)]
    for one in threads:
        one.start()
    wait_until(lambda: len(reader._hub._waiters) > 1)
    condition.set_query_parameters([1])
    for one in threads:
        one.join(20)
    assert woken == [1] and got == points(1)


def test_query_conditions_that_can_not_be(participant):
    topic = Topic(participant, "points", Point)
    reader = DataReader(participant, topic)
    with pytest.raises(TypeError, match="callable or an expression"):
        QueryCondition(reader, ANY, 5)
    with pytest.raises(TypeError, match="parameters belong to an expression"):
        QueryCondition(reader, ANY, lambda sample: True, [1])
    with pytest.raises(DDSException, match="no field 'y'") as raised:
        QueryCondition(reader, ANY, "y = 1")
    assert raised.value.code == BAD and not reader.children
    by_function = QueryCondition(reader, ANY, lambda sample: True)
    for call in (by_function.get_query_expression, lambda: by_function.set_query_parameters([])):
        with pytest.raises(DDSException) as raised:
            call()
        assert raised.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION


# --- samples that a filter can't tell about

def taken_in_turn(reader, count=20):
    """What `count` calls of take(100) give; errors by their text."""
    out = []
    for _ in range(count):
        try:
            out += reader.take(100)
        except DDSException as error:
            out.append(str(error))
    return out


def test_a_filter_that_fails_costs_its_sample_and_no_other(participant):
    topic = Topic(participant, "points", Point)
    topic.set_topic_filter(lambda topic, sample: 6 // (sample.x - 3) != 6)
    reader = DataReader(participant, topic)
    write_all(DataWriter(participant, topic), points(1, 3, 4, 5, 3, 6))
    got = taken_in_turn(reader)
    assert [one for one in got if isinstance(one, Point)] == points(1, 5, 6)
    errors = [one for one in got if isinstance(one, str)]
    assert len(errors) == 2 and all("topic 'points' can't be read and is skipped: ZeroDivisionError" in one
                                    for one in errors)
    assert reader.get_sample_filtered_status().total_count == 1


def test_a_filter_that_fails_does_not_stop_the_listener(participant):
    topic = Topic(participant, "points", Point)
    topic.set_topic_filter(lambda topic, sample: 6 // (sample.x - 3) != 100)
    got = []
    listener = Listener(on_data_available=lambda reader: got.extend(reader.take()))
    reader = DataReader(participant, topic, listener=listener)
    writer = DataWriter(participant, topic)
    for numbers in ((3,), (1, 3, 4), (3, 3, 5)):
        write_all(writer, points(*numbers))
    wait_until(lambda: got == points(1, 4, 5))
    assert reader.get_sample_lost_status().total_count == 0


def test_text_that_is_none_costs_its_sample_and_no_other(participant):
    dtype = np.dtype([("n", "<i4"), ("name", "<U2")])
    topic, _, reader, writer = made(participant, "name <> 'a'", (), None, dtype)
    query = QueryCondition(DataReader(participant, topic), ANY, "name <> 'a' ORDER BY name")
    for number in range(5):
        record = np.zeros((), dtype)
        record["n"] = number
        content = bytearray(record.tobytes())
        if number == 2:
            content[4:8] = b"\xff\xff\xff\x7f"  # no code point
        writer.write(np.frombuffer(bytes(content), dtype)[0])
    assert writer.wait_for_acks(LONG)
    got = taken_in_turn(reader)
    assert [int(one["n"]) for one in got if not isinstance(one, str)] == [0, 1, 3, 4]
    assert sum("the values that its type promises" in one for one in got if isinstance(one, str)) == 1
    other = query.reader
    assert [int(one["n"]) for one in other.take(9, condition=query)] == [0, 1, 3, 4] and not query.triggered
    assert [int(one["n"]) for one in other.take(9)] == [2]


def test_what_can_not_be_decoded_is_refused_also_where_a_condition_asks(participant):
    topic = Topic(participant, "points", Point)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    for text in ("name <> ''", "x > 0 ORDER BY name"):
        condition = QueryCondition(reader, ANY, text)
        write_all(writer, points(1, 2))
        writer._inbox.write(writer._codec.encode(points(1)[0])[:5])
        write_all(writer, points(3))
        assert condition.triggered
        assert reader.read(9, condition=condition) == points(1, 2, 3)
        assert reader.take(9, condition=condition) == points(1, 2, 3)
        assert not condition.triggered and reader.take(9) == []
    assert reader.get_sample_lost_status().total_count == 2


def test_a_signal_in_a_filter_loses_nothing(participant):
    topic, interrupted = Topic(participant, "points", Point), []

    def passes(topic, sample):
        if sample.x == 3 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return True

    topic.set_topic_filter(passes)
    reader = DataReader(participant, topic)
    write_all(DataWriter(participant, topic), points(1, 2, 3, 4, 5))
    with pytest.raises(KeyboardInterrupt):
        reader.take(9)
    assert reader.take(9) == points(1, 2, 3, 4, 5)


def test_an_order_costs_no_more_per_sample_the_more_there_are(participant, monkeypatch):
    topic = Topic(participant, "points", Point)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    write_all(writer, points(*range(50, 0, -1)))
    ordered = QueryCondition(reader, ANY, "ORDER BY name")
    decoded = []
    for name in ("decode", "decode_lasting"):
        decode = getattr(reader._codec, name)
        monkeypatch.setattr(reader._codec, name, lambda view, decode=decode: decoded.append(1) or decode(view))
    assert [*reader.take_iter(ordered, 0)] == sorted(points(*range(1, 51)), key=lambda one: one.name)
    assert len(decoded) == 100  # once to sort it, once to give it


def test_parameters_may_come_from_anything_that_gives_them_once(participant):
    topic = Topic(participant, "points", Point)
    filtered = ContentFilteredTopic(participant, "high", topic, "x > %0", (one for one in [2]))
    assert filtered.expression_parameters == [2]
    filtered.set_expression_parameters(one for one in [3])
    assert filtered.expression_parameters == [3]
    reader = DataReader(participant, topic)
    for wrong in (5, "1"):
        with pytest.raises(TypeError, match="parameters must be a list"):
            QueryCondition(reader, ANY, "x > %0", wrong)
    assert not reader.children
    assert QueryCondition(reader, ANY, "x > %0", iter([1])).get_query_parameters() == [1]
