"""Writers: what they take, how they wait, loans, matching.

Goal: every kind of sample goes through unchanged; errors are DDS errors and Python errors at once; nothing of a failed
or discarded write is delivered.
Method: a writer and a reader on one embedded node.
"""

import array
import gc
import itertools
import os
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSSampleTooLarge,
    DDSTimeout,
    Listener,
    Policy,
    Publisher,
    Qos,
    QueryCondition,
    ReadCondition,
    Topic,
    duration,
)
from dds.codecs.types import ProtobufSample
from dds.idl import IdlStruct
from dds.idl import annotations as annotate
from dds.messages.inline_qos import ROOM
from tests.dds.readers.test_intake import State
from tests.dds.test_sub import LONG, Message, pair
from tests.support import wait_until


def test_every_buffer_is_a_sample_of_bytes(participant):
    np = pytest.importorskip("numpy")
    writer, reader = pair(participant)
    samples = [b"bytes", bytearray(b"bytearray"), memoryview(b"xmemoryview")[1:], array.array("H", [1, 2]),
               np.arange(3), np.arange(6).reshape(2, 3).T, np.zeros(6)[::2], np.float64(1.5), b""]
    for one in samples:
        writer.write(one)
    assert writer.write_many(samples[:4]) == 4
    assert writer.wait_for_acks(LONG)
    expected = [memoryview(one).tobytes() for one in samples]
    assert reader.take(100) == expected + expected[:4]


@pytest.mark.parametrize("sample", ["text", 5, None, [1, 2], object()],
                         ids=["text", "int", "None", "list", "object"])
def test_what_has_no_buffer_is_refused(participant, sample):
    writer, reader = pair(participant)
    with pytest.raises(TypeError):
        writer.write(sample)
    with pytest.raises(TypeError) as caught:
        writer.write_many([b"a", sample])
    assert caught.value.written == 1
    assert writer.wait_for_acks(LONG)
    assert reader.take(10) == [b"a"]


def test_too_large(participant):
    writer, _reader = pair(participant, size_max=31)  # which takes nothing larger than its slots
    writer.write(bytes(31))
    for call in (lambda: writer.write(bytes(32)), lambda: writer.loan(32), lambda: writer.write_many([bytes(32)])):
        with pytest.raises(DDSSampleTooLarge, match="size_max is 31") as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
        assert isinstance(caught.value, ValueError)
    typed, _ = pair(participant, Message, name="typed", size_max=20)
    with pytest.raises(DDSSampleTooLarge):
        typed.write(Message("x" * 100))


def test_a_full_group_times_out_after_max_blocking_time(participant):
    writer, reader = pair(participant, qos=Qos(Policy.Reliability.Reliable(duration(milliseconds=30))))
    with pytest.raises(DDSTimeout) as caught:
        for _ in range(100_000):
            writer.write(bytes(16384))
    assert caught.value.code == DDSException.DDS_RETCODE_TIMEOUT
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(DDSTimeout):
        writer.loan()
    with pytest.raises(DDSTimeout) as caught:
        writer.write_many([b"x"] * 3)
    assert caught.value.written == 0
    assert writer.wait_for_acks(duration(milliseconds=1)) is False
    assert reader.take(1) == [bytes(16384)]


def test_a_timeout_names_who_holds_the_writer_up(two_nodes):
    """Goal: node, program and topic are in the error. Method: a reader at the other node that doesn't take."""
    here, there = two_nodes
    topic = Topic(here, "held", bytes, size_max=64)
    reader = DataReader(there, Topic(there, "held", bytes, size_max=64))
    writer = DataWriter(here, topic, Qos(Policy.Reliability.Reliable(duration(milliseconds=200))))
    with pytest.raises(DDSTimeout, match=r"'held'.*waits for a reader of \S+ \(process \d+\) at node 2"):
        while True:
            writer.write_many([bytes(64)] * 100)
    wait_until(lambda: here.session.held_up_by("held")[0].behind >= 100)
    [holder] = there.session.held_up_by("held")
    assert (holder.node_id, holder.receives, [pid for _, pid in holder.readers]) == (2, True, [os.getpid()])
    reader.take(100_000)
    wait_until(lambda: reader.take(100_000) or not here.session.held_up_by("held"))
    wait_until(lambda: not (reader.take(100_000) or here.session.held_up_by("held")))


def test_wrong_types_of_samples(participant):
    writer, _ = pair(participant, Message)
    for bad in (b"bytes", "text", None):
        with pytest.raises(TypeError, match=f"topic '{writer.topic.name}': .* is not of type Message"):
            writer.write(bad)
    wrong = rf"topic '{writer.topic.name}': a sample of .*Message can't be encoded: text is 5, which is no string"
    with pytest.raises(ValueError, match=wrong):
        writer.write(Message(5))
    with pytest.raises(ValueError, match=wrong):
        writer.write_many([Message(5)])


@dataclass
class Keyed(IdlStruct):
    number: int
    annotate.key("number")
    text: str


def test_wrong_samples_of_a_topic_with_a_key(participant):
    """In the other ways that lead to the encoder, too."""
    writer, _ = pair(participant, Keyed, name="keyed")
    watched = DataWriter(participant, writer.topic, Qos(Policy.Deadline(duration(seconds=100))))
    wrong = "topic 'keyed': a sample of .*Keyed can't be encoded: "
    for refuses in (writer.write, writer.write_dispose, watched.write):
        with pytest.raises(ValueError, match=wrong + "text is 5, which is no string"):
            refuses(Keyed(1, 5))
    for refuses in (writer.dispose, writer.register_instance, writer.unregister_instance):  # they need the key alone
        with pytest.raises(ValueError, match=wrong + "number is '1', which is no int64"):
            refuses(Keyed("1", "text"))


def test_wrong_samples_of_bytes_and_records(participant):
    np = pytest.importorskip("numpy")
    for name, data_type in (("bytes", bytes), ("records", np.dtype([("x", "f4")]))):
        writer, _ = pair(participant, data_type, name=name)
        for refuses in (lambda writer=writer: writer.write("text"), lambda writer=writer: writer.write_many(["text"])):
            with pytest.raises(TypeError, match=f"topic '{writer.topic.name}': "):
                refuses()


def test_the_same_mistake_is_the_same_error_however_it_is_written(participant):
    """A value that the type can't have, a sample of another type, one that is too large; alone or among others."""
    writer, reader = pair(participant, Keyed, name="same")
    for wrong in (Keyed("x", "y"), Keyed(1 << 70, "y"), Keyed(1, 5), "text", None):
        caught = []
        for call in (lambda wrong=wrong: writer.write(wrong),
                     lambda wrong=wrong: writer.write_many([Keyed(1, "a"), wrong])):
            with pytest.raises((TypeError, ValueError)) as one:
                call()
            caught.append((type(one.value), str(one.value)))
        assert caught[0] == caught[1] and "topic 'same'" in caught[0][1]
        assert one.value.written == 1
    assert writer.wait_for_acks(LONG)
    assert reader.take(10) == [Keyed(1, "a")] * 5


@pytest.mark.parametrize("way", ["plain", "keyed", "told", "suspended", "coherent", "loan", "told loan", "commit",
                                 "many", "records", "dispose"])
def test_source_timestamps(participant, way):
    """Goal: each way of writing takes those of 64 bits, that of 1970 too, and refuses all others alike, with nothing
    written. Method: a publisher, a Qos or a call for each of the ways."""
    kind = np.dtype("u4") if way == "records" else Keyed if way in ("keyed", "dispose") else bytes
    group = Qos(Policy.PresentationAccessScope.Topic(True, True)) if way == "coherent" else None
    publisher = Publisher(participant, group)
    topic = Topic(participant, "t", kind)
    reader = DataReader(participant, topic)
    writer = DataWriter(publisher, topic, Qos(Policy.Lifespan(duration(weeks=9999))) if "told" in way else None)
    if way == "suspended":
        publisher.suspend()

    def write(timestamp):
        if way == "records":
            writer.write_many(np.zeros(1, "u4"), timestamp)
        elif kind is Keyed:
            (writer.dispose if way == "dispose" else writer.write)(Keyed(1, "x"), timestamp)
        elif "loan" in way:
            with writer.loan(1, timestamp):
                pass
        elif way == "commit":
            loan = writer.loan(1)
            try:
                loan.commit(timestamp=timestamp)
            finally:
                loan.discard()
        elif way == "many":
            writer.write_many([b"x"], timestamp)
        elif way == "coherent":
            with publisher.coherent():
                writer.write(b"x", timestamp)
        else:
            writer.write(b"x", timestamp)

    for wrong in (1.5, "1", b"1"):
        with pytest.raises(TypeError, match="a timestamp is a whole number of nanoseconds"):
            write(wrong)
    for wrong in (-1, 1 << 63, (1 << 63) - 1, 1 << 70):
        with pytest.raises(DDSException, match="a timestamp is nanoseconds since 1970") as caught:
            write(wrong)
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
    for right in (0, 7, np.int64(8)):
        write(right)
    if way == "suspended":
        publisher.resume()
    assert writer.wait_for_acks(LONG)
    stamps = [one.sample_info.source_timestamp for one in reader.take(9)]
    assert stamps == ([1] if way == "dispose" else [1, 7, 8])  # what has been disposed of is no second time


class TestLoans:
    def test_in_place(self, participant):
        writer, reader = pair(participant, size_max=64)
        with writer.loan(5) as data:
            assert len(data) == 5 and not data.readonly
            data[:] = b"hello"
        loan = writer.loan(timestamp=77)
        assert len(loan.data) == 64 and loan.is_open
        loan.data[:3] = b"abc"
        loan.commit(3)
        assert not loan.is_open
        assert writer.wait_for_acks(LONG)
        first, second = reader.take(10)
        assert (first, second, second.sample_info.source_timestamp) == (b"hello", b"abc", 77)

    def test_discarded_loans_are_never_sent(self, participant):
        writer, reader = pair(participant)
        with pytest.raises(KeyError), writer.loan(5) as data:
            data[:] = b"wrong"
            raise KeyError
        writer.loan(5).discard()
        loan = writer.loan(5)
        del loan
        with pytest.raises(DDSException) as caught:
            open_loan = writer.loan(5)
            writer.loan(5)
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
        with pytest.raises(DDSException):
            writer.write(b"x")
        open_loan.discard()
        open_loan.discard()
        with pytest.raises(DDSException) as caught:
            open_loan.commit()
        assert caught.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
        writer.write(b"right")
        assert writer.wait_for_acks(LONG)
        assert reader.take(10) == [b"right"]

    def test_the_memory_is_out_of_reach_afterwards(self, participant):
        writer, _ = pair(participant)
        with writer.loan(5) as data:
            pass
        with pytest.raises(ValueError):
            data[0] = 1

    def test_records(self, participant):
        np = pytest.importorskip("numpy")
        dtype = np.dtype([("altitude", "<f8"), ("speed", "<f4", (2,))])
        writer, reader = pair(participant, dtype)
        assert reader.topic.spec.size_max == dtype.itemsize + ROOM
        with writer.loan() as record:
            record["altitude"] = 9750.5
            record["speed"][:] = 1, 2
        assert writer.wait_for_acks(LONG)
        (sample,) = reader.take()
        assert sample.altitude == sample["altitude"] == 9750.5
        assert sample.speed.tolist() == [1, 2]
        assert sample.sample_info.node == 1

    def test_types_that_are_encoded(self, participant):
        writer, _ = pair(participant, Message)
        with pytest.raises(DDSException) as caught:
            writer.loan()
        assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED


def test_numpy_types(participant):
    np = pytest.importorskip("numpy")
    dtype = np.dtype([("x", "<f8"), ("n", "<i4")])
    writer, reader = pair(participant, dtype)
    rows = np.array([(1.5, 1), (2.5, 2)], dtype)
    writer.write(rows[0])
    writer.write((3.5, 3))
    assert writer.write_many(rows[::-1]) == 2
    assert writer.write_many([(4.5, 4)]) == 1
    assert writer.write_many(rows[:0]) == 0
    assert writer.wait_for_acks(LONG)
    assert [(one.x, one.n) for one in reader.take(10)] == [(1.5, 1), (3.5, 3), (2.5, 2), (1.5, 1), (4.5, 4)]
    for bad in (rows, "x", (1, 2, 3), np.float64(1)):
        with pytest.raises(TypeError):
            writer.write(bad)
    with pytest.raises(TypeError):
        writer.write_many(np.zeros(3))
    numbers, number_reader = pair(participant, np.dtype("<f8"), name="numbers")
    numbers.write(2.5)
    assert numbers.wait_for_acks(LONG)
    (one,) = number_reader.read()
    assert one.value == 2.5 and one == 2.5 and one.sample_info.node == 1
    for bad in (np.dtype(object), np.dtype(("f4", (3,))), np.dtype("V0")):
        with pytest.raises(TypeError):
            Topic(participant, "bad", bad)


def test_protobuf_types(participant):
    from google.protobuf.wrappers_pb2 import DoubleValue, StringValue

    writer, reader = pair(participant, StringValue)
    writer.write(StringValue(value="hello"))
    writer.write_many([StringValue(value="a"), StringValue(value="b")])
    assert writer.wait_for_acks(LONG)
    (first,) = reader.read()
    assert isinstance(first, ProtobufSample)
    assert first.value == first.message.value == "hello"
    assert first == StringValue(value="hello")
    assert first.sample_info.node == 1
    assert [one.value for one in reader.take(10)] == ["hello", "a", "b"]
    writer.write(first)
    with pytest.raises(TypeError):
        writer.write(DoubleValue(value=1))
    assert reader.topic.typename == "google.protobuf.StringValue"
    with pytest.raises(DDSException, match="exists with another definition"):
        Topic(participant, "topic", DoubleValue)


def test_matching_is_known_when_the_second_end_is_made(participant):
    topic = Topic(participant, "topic", bytes)
    writer = DataWriter(participant, topic)
    assert writer.get_matched_subscriptions() == []
    assert not writer.get_publication_matched_status().total_count
    readers = [DataReader(participant, topic) for _ in range(3)]
    assert len(set(writer.matched_sub)) == 3
    status = writer.get_publication_matched_status()
    assert (status.total_count, status.total_count_change, status.current_count) == (3, 3, 3)
    assert status.last_subscription_handle in writer.get_matched_subscriptions()
    status = readers[0].get_subscription_matched_status()
    assert (status.current_count, status.last_publication_handle) == (1, readers[0].matched_pub[0])
    alive = readers[0].get_liveliness_changed_status()
    assert (alive.alive_count, alive.alive_count_change, alive.not_alive_count) == (1, 1, 0)
    readers.pop().close()
    status = writer.get_publication_matched_status()
    assert (status.total_count, status.current_count, status.current_count_change) == (3, 2, -1)
    data = writer.get_matched_subscription_data(writer.matched_sub[0])
    assert data.topic_name == "topic" and data.type_name == "bytes" and data.node_id == 1
    assert data.key in {one.guid for one in readers}
    assert data.participant_key.bytes[:12] == participant.guid.bytes[:12]
    assert writer.get_matched_subscription_data(12345) is None
    del readers
    gc.collect()
    assert writer.get_matched_subscriptions() == []
    assert writer.get_publication_matched_status().current_count == 0


def test_matching_across_nodes(two_nodes):
    one, two = two_nodes
    writer = DataWriter(one, Topic(one, "topic", bytes))
    reader = DataReader(two, Topic(two, "topic", bytes))
    wait_until(writer.get_matched_subscriptions)
    assert wait_until(reader.get_matched_publications) == [1 << 16 | writer._handle.writer_id]
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"
    writer.close()
    wait_until(lambda: not reader.get_matched_publications())
    assert reader.get_subscription_matched_status().current_count == 0


def test_incompatible_qos_keeps_them_apart(participant):
    heard = []
    topic = Topic(participant, "topic", bytes, qos=Qos(Policy.Durability.TransientLocal))
    modest = DataWriter(participant, topic, qos=Qos(Policy.Durability.Volatile), listener=Listener(
        on_offered_incompatible_qos=lambda writer, status: heard.append((writer, status.last_policy_id))))
    fitting = DataWriter(participant, topic)
    reader = DataReader(participant, topic, listener=Listener(
        on_requested_incompatible_qos=lambda reader, status: heard.append((reader, status.last_policy_id))))
    wait_until(lambda: len(heard) == 2)
    assert {one: policy for one, policy in heard} == {modest: 2, reader: 2}
    assert modest.get_offered_incompatible_qos_status().total_count == 1
    assert reader.get_requested_incompatible_qos_status().last_policy_id == 2
    assert len(reader.get_matched_publications()) == 1
    modest.write(b"not for you")
    fitting.write(b"for you")
    assert modest.wait_for_acks(LONG) and fitting.wait_for_acks(LONG)
    assert reader.take(10) == [b"for you"]
    modest.close()
    fitting.write(b"again")
    assert reader.take_one(timeout=LONG) == b"again"


def test_what_an_incompatible_writer_left_is_not_read_when_it_has_closed(participant):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic, qos=Qos(Policy.LatencyBudget(1)))
    modest = DataWriter(participant, topic, qos=Qos(Policy.LatencyBudget(2)))
    wait_until(lambda: reader._matches.incompatible)
    modest.write(b"not for you")
    assert modest.wait_for_acks(LONG)
    modest.close()
    wait_until(lambda: not reader._matches.incompatible)
    assert reader.take(10) == []


def test_a_number_of_an_incompatible_writer_may_be_a_matched_ones_later(participant):
    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    wait_until(reader.get_matched_publications)
    remote = next(iter(reader._matches.matched.values()))
    reader._matches.forget(remote.guid)
    reader._block(remote.handle)
    reader._matches.consider(remote)
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"


def test_publishers(participant):
    publisher = Publisher(participant)
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    writers = [DataWriter(publisher, topic) for _ in range(2)]
    for one in writers:
        one.write(b"x")
    assert publisher.wait_for_acks(LONG) is True
    assert len(reader.take(5)) == 2
    assert writers[0].get_publisher() is publisher is publisher.publisher
    for where, what, keywords in [(False, topic, {}), (publisher, False, {}), (publisher, topic, {"qos": 3}),
                                  (publisher, topic, {"listener": 3}), (publisher, topic, {"qos": Qos().datareader()})]:
        with pytest.raises(TypeError):
            DataWriter(where, what, **keywords)


def test_a_closed_writer_says_so_and_what_it_wrote_arrives(participant):
    writer, reader = pair(participant)
    writer.write(b"last")
    writer.close()
    writer.close()
    for call in (lambda: writer.write(b"x"), lambda: writer.write_many([b"x"]), writer.loan,
                 lambda: writer.wait_for_acks(1), writer.get_publication_matched_status):
        with pytest.raises(DDSException) as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED
        assert "of topic 'topic'" in str(caught.value)
    assert reader.take_one(timeout=LONG) == b"last"


@pytest.mark.parametrize("data_type", [bytes, Message, State])
def test_what_a_program_holds_of_a_closed_writer_says_so(participant, data_type):
    """Method: the functions of a writer, kept from before it was closed; and one that waits when it is closed."""
    writer, reader = pair(participant, data_type)
    sample = {bytes: b"x", Message: Message("x"), State: State(1, 2)}[data_type]
    write, write_many = writer.write, writer.write_many
    writer.close()
    for call in (lambda: write(sample), lambda: write_many([sample])):
        with pytest.raises(DDSException, match="of topic 'topic'") as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED
    assert reader.take(9) == []


def test_entities_say_of_which_topic_they_are(participant):
    topic = Topic(participant, "speeds", Message)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    assert "Topic" in repr(topic) and "'speeds'" in repr(topic)
    for one in (reader, writer, ReadCondition(reader, 0), QueryCondition(reader, 0, "text = ''")):
        assert type(one).__name__ in repr(one) and "of topic 'speeds'" in repr(one)
    writer.close()
    assert "of topic 'speeds' closed" in repr(writer)


def test_a_writer_class_of_ones_own(participant):
    class Shouting(DataWriter):
        def write(self, sample, timestamp=None):
            super().write(sample.upper(), timestamp)

    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, topic), Shouting(participant, topic)
    writer.write(b"hello")
    assert reader.take_one(timeout=LONG) == b"HELLO"
    writer.close()
    with pytest.raises(DDSException):
        writer.write(b"hello")


def test_slots(participant):
    topic = Topic(participant, "topic", bytes)
    assert DataWriter(participant, topic, slots=7)._inbox.slots_count == 7
    assert DataWriter(participant, topic, qos=Qos(Policy.ResourceLimits(max_samples=9)))._inbox.slots_count == 9
    each = Qos(Policy.ResourceLimits(max_samples=9, max_samples_per_instance=5))
    assert DataWriter(participant, topic, qos=each)._inbox.slots_count == 5  # a topic of bytes is one instance
    assert DataWriter(participant, Topic(participant, "keyed", State), qos=each)._inbox.slots_count == 9


def test_a_writer_that_waits_is_woken_by_takes(participant):
    writer, reader = pair(participant)
    done = threading.Event()

    def write():
        for i in range(3000):
            writer.write(i.to_bytes(2, "big") + bytes(16000))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    samples = itertools.islice(reader.take_iter(timeout=LONG), 3000)
    got = [int.from_bytes(one[:2], "big") for one in samples]
    thread.join(20)
    assert done.is_set()
    assert got == list(range(3000))


def test_what_the_programs_own_generator_raises_is_named(participant):
    writer = DataWriter(participant, Topic(participant, "t", bytes))

    def samples():
        yield b"one"
        raise KeyError

    with pytest.raises(DDSException, match=r"writing to topic 't': KeyError$"):
        writer.write_many(samples())
