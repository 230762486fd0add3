"""Readers: what they keep, and which of it a read selects.

Goal: History and ResourceLimits bound what a reader keeps, of the topic or of each instance, and no more is lost than
they say; conditions, instances and filters select from it.
Method: writers and readers on one embedded node.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    DDSStatus,
    DDSTimeout,
    InstanceState,
    Listener,
    Policy,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleState,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.idl.types import int32
from tests.dds.test_sub import ANY, LONG, SECOND, Message, pair, write_all
from tests.support import wait_until


@dataclass
class State(IdlStruct):
    unit: int32
    value: int32
    key("unit")


def test_keep_last_gives_the_newest(participant):
    writer, reader = pair(participant, qos=Qos(Policy.History.KeepLast(3)))
    write_all(writer, [b"%d" % i for i in range(10)])
    assert reader.take(100) == [b"7", b"8", b"9"]
    write_all(writer, [b"a", b"b"])
    assert reader.read(100) == [b"a", b"b"]
    write_all(writer, [b"c", b"d"])
    assert reader.read(1) == [b"b"]
    assert reader.take(100) == [b"b", b"c", b"d"]
    assert reader.get_sample_lost_status().total_count == 0


@pytest.mark.parametrize("way", [lambda one: one.take(1), lambda one: one.take(9), lambda one: [one.take_next()]])
def test_keep_last_gives_the_newest_whatever_goes_along_with_it(participant, way):
    plain, reader = pair(participant, qos=Qos(Policy.History.KeepLast(1)))
    brief = DataWriter(participant, plain.topic, qos=Qos(Policy.Lifespan(LONG)))
    for writer, sample in ((plain, b"1"), (brief, b"2"), (plain, b"3")):
        write_all(writer, [sample])
    assert way(reader) == [b"3"] and reader.take(9) == []
    write_all(plain, [b"4", b"5"])
    assert way(reader) == [b"5"]


def test_keep_last_is_never_waited_for_and_what_it_replaces_is_not_lost(participant):
    qos = Qos(Policy.History.KeepLast(2), Policy.Reliability.Reliable(SECOND))
    writer, reader = pair(participant, qos=qos)
    payload = bytes(16384)
    for i in range(1500):  # three times what the log holds
        writer.write(payload[:-2] + i.to_bytes(2, "big"))
    assert writer.wait_for_acks(LONG)
    assert [int.from_bytes(one[-2:], "big") for one in reader.take(9)] == [1498, 1499]
    assert reader.get_sample_lost_status().total_count == 0


def test_a_best_effort_reader_that_is_overtaken_counts_its_losses(participant):
    writer, reader = pair(participant, qos=Qos(Policy.Reliability.BestEffort))
    for i in range(1500):
        writer.write(bytes(16382) + i.to_bytes(2, "big"))
    assert writer.wait_for_acks(LONG)
    got = [int.from_bytes(one[-2:], "big") for one in reader.take(5000)]
    assert got == list(range(1500 - len(got), 1500))
    status = reader.get_sample_lost_status()
    assert status.total_count == status.total_count_change == 1500 - len(got) > 0
    assert reader.get_sample_lost_status().total_count_change == 0


def test_a_keep_all_reader_holds_the_writer_back(participant):
    qos = Qos(Policy.Reliability.Reliable(duration(milliseconds=50)))
    writer, reader = pair(participant, qos=qos)
    written = 0
    with pytest.raises(DDSTimeout):
        while written < 100_000:
            writer.write(written.to_bytes(4, "big") + bytes(16380))
            written += 1
    assert 100 < written < 2000
    got = []
    while len(got) < written:
        got += reader.take(100)
    assert [int.from_bytes(one[:4], "big") for one in got] == list(range(written))
    writer.write(b"goes on")
    assert reader.take_one(timeout=LONG) == b"goes on"


def test_reading_only_does_not_grow_without_end(participant, monkeypatch):
    monkeypatch.setattr("dds.readers.intake.KEPT_MAX", 100)
    monkeypatch.setattr("dds.readers.intake.PULL", 10)
    writer, reader = pair(participant)
    seen = []
    for start in range(0, 1000, 50):
        write_all(writer, [b"%d" % i for i in range(start, start + 50)])
        for one in reader.read_iter(timeout=1000):
            seen.append(int(one))
    assert seen == list(range(1000))
    assert len(reader._intake) <= 100


def test_resource_limits_keep_the_rest_in_the_log(participant):
    writer, reader = pair(participant, qos=Qos(Policy.ResourceLimits(max_samples=4)))
    write_all(writer, [b"%d" % i for i in range(4)])
    assert len(reader.read(10)) == 4
    write_all(writer, [b"4", b"5"])
    assert reader.read(10) == [b"0", b"1", b"2", b"3"]
    assert reader.take(2) == [b"0", b"1"]
    assert reader.take(10) == [b"2", b"3", b"4", b"5"]


def test_conditions_select(participant):
    writer, reader = pair(participant, Message)
    write_all(writer, [Message(text) for text in ("hi 1", "bye 1", "hi 2")])
    greeting = QueryCondition(reader, ANY, lambda sample: sample.text.startswith("hi"))
    unread = ReadCondition(reader, SampleState.NotRead)
    assert greeting.triggered and unread.triggered
    assert reader.take(10, condition=greeting) == [Message("hi 1"), Message("hi 2")]
    assert not greeting.triggered
    assert reader.read(10, condition=unread) == [Message("bye 1")]
    assert reader.read(10, condition=unread) == []
    assert reader.read(10, condition=ReadCondition(reader, SampleState.Read)) == [Message("bye 1")]
    assert reader.read(10, condition=ReadCondition(reader, InstanceState.NotAliveDisposed)) == []
    assert [*reader.take_iter(condition=greeting, timeout=1000)] == []
    write_all(writer, [Message("bye 2"), Message("hi 3")])
    assert [*reader.take_iter(condition=greeting, timeout=1000)] == [Message("hi 3")]
    assert greeting.get_mask() == greeting.mask == ANY
    assert greeting.get_datareader() is reader
    assert len(reader.take(10)) == 2


def test_what_the_function_of_a_condition_raises_concerns_that_sample_only(participant, caplog):
    """As in cyclonedds: such a sample doesn't pass, whoever asks; here the log has the first exception."""
    topic = Topic(participant, "greetings", Message)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    condition = QueryCondition(reader, ANY, lambda sample: 1 / int(sample.text))
    waitset = WaitSet(participant)
    waitset.attach(condition)
    write_all(writer, [Message("0"), Message("x")])
    assert not condition.triggered and waitset.wait(0) == 0 and reader.take(10, condition=condition) == []
    assert [one.exc_info[0] for one in caplog.records if one.name == "dds"] == [ZeroDivisionError]
    writer.write(Message("1"))
    assert waitset.wait(LONG) == 1 and reader.take_one(condition, LONG) == Message("1")
    assert reader.take(10) == [Message("0"), Message("x")]


def test_instances(participant):
    topic = Topic(participant, "states", State)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    write_all(writer, [State(1, 10), State(2, 20), State(1, 11)])
    first = reader.read(10)
    handles = [one.sample_info.instance_handle for one in first]
    assert handles[0] == handles[2] != handles[1]
    assert [one.sample_info.view_state for one in first] == [ViewState.New] * 3
    for unknown in (99, 0, -1):
        with pytest.raises(DDSException, match=f"no instance {unknown}") as raised:
            reader.read(10, instance_handle=unknown)
        assert raised.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
    assert reader.read(10, instance_handle=handles[1]) == [State(2, 20)]
    assert reader.take(10, instance_handle=handles[0]) == [State(1, 10), State(1, 11)]
    assert reader.lookup_instance(State(2, 0)) == writer.lookup_instance(State(2, 99)) == handles[1]
    assert reader.lookup_instance(State(3, 0)) is None
    handle = writer.register_instance(State(3, 0))
    assert handle not in handles and reader.lookup_instance(State(3, 0)) is None  # it has heard of none
    write_all(writer, [State(3, 1), State(2, 21)])
    assert reader.lookup_instance(State(3, 0)) == handle
    view = {one.unit: one.sample_info.view_state for one in reader.take(10)}
    assert view == {2: ViewState.Old, 3: ViewState.New}
    plain_writer, plain_reader = pair(participant, Message, name="plain")
    for call in (plain_writer.register_instance, plain_writer.lookup_instance, plain_reader.lookup_instance):
        with pytest.raises(DDSException) as caught:
            call(Message(""))
        assert caught.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION


def test_keep_last_counts_per_instance(participant):
    writer, reader = pair(participant, State, qos=Qos(Policy.History.KeepLast(1)))
    write_all(writer, [State(1, 1), State(2, 1), State(1, 2), State(3, 1), State(1, 3)])
    assert reader.read(10) == [State(2, 1), State(3, 1), State(1, 3)]
    write_all(writer, [State(2, 2)])
    assert reader.take(10) == [State(3, 1), State(1, 3), State(2, 2)]
    write_all(writer, [State(1, 4), State(1, 5)])
    assert reader.take(10) == [State(1, 5)]


def test_keep_last_per_instance_after_some_were_taken(participant):
    writer, reader = pair(participant, State, qos=Qos(Policy.History.KeepLast(2)))
    write_all(writer, [State(1, 1), State(1, 2)])
    last = QueryCondition(reader, ANY, lambda sample: sample.value == 2)
    assert reader.take(5, condition=last) == [State(1, 2)]
    write_all(writer, [State(1, 3)])
    assert reader.read(5) == [State(1, 1), State(1, 3)]
    write_all(writer, [State(1, 4)])
    assert reader.take(5) == [State(1, 3), State(1, 4)]


def test_replaced_samples_behind_an_old_one_are_forgotten(participant):
    writer, reader = pair(participant, State, qos=Qos(Policy.History.KeepLast(1)))
    write_all(writer, [State(0, 0)])
    for start in range(0, 1000, 100):
        write_all(writer, [State(1, i) for i in range(start, start + 100)])
        assert reader.read(5) == [State(0, 0), State(1, start + 99)]
    assert len(reader._intake) == 2 and len(reader._intake.entries) < 200


def test_topic_filter(participant):
    topic = Topic(participant, "filtered", Message)
    topic.set_topic_filter(lambda topic, sample: "x" not in sample.text)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    write_all(writer, [Message("a"), Message("x"), Message("b")])
    assert reader.read(10) == [Message("a"), Message("b")]
    topic.set_topic_filter(None)
    unfiltered = DataReader(participant, topic)
    write_all(writer, [Message("x")])
    assert unfiltered.take(10) == [Message("x")]
    assert [*reader.take_iter(timeout=1000)] == []


# --- keys of types that don't say them themselves

FIX = np.dtype([("plane", "S8"), ("of", [("leg", "<i4"), ("speed", "<f4")]), ("altitude", "<f8")])


def test_records_have_the_keys_that_the_topic_names(participant):
    topic = Topic(participant, "fixes", FIX, keys=["plane", "of.leg"])
    last = DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(1)))
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    writer.write_many(np.array([(b"HB", (1, 0), 10), (b"HB", (2, 0), 20), (b"HB", (1, 9), 11)], FIX))
    assert writer.wait_for_acks(LONG)
    got = reader.take(9)
    handles = [one.sample_info.instance_handle for one in got]
    assert handles[0] == handles[2] != handles[1]
    assert [one.altitude for one in last.take(9)] == [20, 11]
    assert writer.lookup_instance((b"HB", (2, 5.0), 0.0)) == handles[1] == reader.lookup_instance(got[1])
    assert reader.lookup_instance((b"XX", (2, 0), 0)) is None


def test_protobuf_messages_have_the_keys_that_the_topic_names(participant):
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    topic = Topic(participant, "protos", Proto, keys=("name", "options.lazy"))
    last = DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(1)))
    writer = DataWriter(participant, topic)
    write_all(writer, [Proto(name="a", number=1), Proto(name="b", number=2), Proto(name="a", number=3)])
    assert [(one.name, one.number) for one in last.read(9)] == [("b", 2), ("a", 3)]
    assert last.lookup_instance(Proto(name="a")) == last.take(9)[1].sample_info.instance_handle


def test_keys_are_agreed_on(two_nodes):
    one, two = two_nodes
    writer = DataWriter(one, Topic(one, "fixes", FIX, qos=Qos(Policy.Durability.Volatile), keys=["plane"]))
    wait_until(lambda: any(info.members for info in two.session.topics()))
    for keys in ((), ("plane", "of.leg")):
        with pytest.raises(DDSException, match="type"):
            Topic(two, "fixes", FIX, keys=keys)
    assert two.find_topic("fixes", FIX, keys=["plane"]).spec is not None and writer


def test_keys_that_can_not_be(participant):
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    for data_type, keys, why in ((bytes, ["a"], "bytes has no keys"), (State, ["unit"], "by annotations"),
                                 (FIX, ["nothing"], "no field 'nothing'"), (FIX, ["of"], "a key is a whole number"),
                                 (FIX, ["altitude"], "a key is a whole number"), (FIX, ["plane.x"], "no field 'x'"),
                                 (Proto, ["x"], "no field 'x'"), (Proto, ["options"], "a key is a whole number"),
                                 (Proto, ["name.x"], "no field 'x'"), (FIX, "plane", "a list of names"),
                                 (FIX, [5], "a list of names"), (FIX, ["plane", "plane"], "name a field twice")):
        with pytest.raises(TypeError, match=why):
            Topic(participant, "t", data_type, keys=keys)


# --- samples for which there is no room

def test_what_finds_no_room_is_counted_and_waits(participant):
    heard = []
    topic = Topic(participant, "limited", Message)
    writer = DataWriter(participant, topic)
    reader = DataReader(participant, topic, qos=Qos(Policy.ResourceLimits(max_samples=2)),
                        listener=Listener(on_sample_rejected=lambda reader, status: heard.append(status)))
    quiet = DataReader(participant, topic, qos=Qos(Policy.ResourceLimits(max_samples=2)))
    plenty = DataReader(participant, topic)
    write_all(writer, [Message("0"), Message("1")])
    assert quiet.get_sample_rejected_status().total_count == 0
    write_all(writer, [Message("2"), Message("3"), Message("4")])
    wait_until(lambda: sum(one.total_count_change for one in heard) == 3)
    assert heard[-1].last_reason == 2 and heard[-1].last_instance_handle == 1
    assert quiet.get_status_changes() & DDSStatus.SampleRejected
    status = quiet.get_sample_rejected_status()
    assert (status.total_count, status.total_count_change) == (3, 3)
    assert not quiet.get_status_changes() & DDSStatus.SampleRejected
    for one in (reader, quiet):
        got = [sample.text for _ in range(3) for sample in one.take(2)]
        assert got == ["0", "1", "2", "3", "4"] and one.get_sample_lost_status().total_count == 0
    assert quiet.get_sample_rejected_status().total_count == 3
    assert plenty.get_sample_rejected_status().total_count == 0


def test_a_reader_has_no_more_at_a_time_than_its_limit(participant):
    topic = Topic(participant, "limited", Message)
    writer = DataWriter(participant, topic)
    qos = Qos(Policy.ResourceLimits(max_samples=3))
    reader, batches = DataReader(participant, topic, qos=qos), []
    write_all(writer, [Message(str(i)) for i in range(8)])
    batches += [[one.text for one in reader.take(100)] for _ in range(4)]
    assert batches == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"], []]
    assert reader.get_sample_rejected_status().total_count == 5  # each once, however often somebody looked
    plain = Topic(participant, "plain", bytes)
    reader, writer = DataReader(participant, plain, qos=qos), DataWriter(participant, plain)
    write_all(writer, [b"%d" % i for i in range(5)])
    with reader.take_batch(100) as batch:
        assert len(batch) == 3
    assert reader.get_sample_rejected_status().total_count == 2


def test_what_a_filter_keeps_out_is_not_rejected(participant):
    topic = Topic(participant, "limited", Message)
    writer = DataWriter(participant, topic)
    filtered = ContentFilteredTopic(participant, "large", topic, "text >= '5'")
    reader = DataReader(participant, filtered, qos=Qos(Policy.ResourceLimits(max_samples=2)))
    write_all(writer, [Message(str(i)) for i in range(5)])
    assert reader.get_sample_rejected_status().total_count == 0
    assert reader.get_sample_filtered_status().total_count == 5
    write_all(writer, [Message(one) for one in ("5", "6", "1", "7", "2", "8")])
    assert reader.get_sample_rejected_status().total_count == 0  # which of them are for it is not known yet
    assert [one.text for one in reader.take(9)] == ["5", "6"]
    assert [one.text for one in reader.take(9)] == ["7", "8"]
    assert reader.get_sample_rejected_status().total_count == 2
    assert reader.get_sample_filtered_status().total_count == 7
