"""Readers: taking, reading, states, history, batches, waiting.

Goal: what take, read, iterators, conditions and batches give, on the fast way and on the other; nothing lost, nothing
twice, no waiting where none is due.
Method: writers and readers on one embedded node, on two where the group matters. Waits are bounded by timeouts of the
interface itself.
"""

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSTimeout,
    InstanceState,
    Policy,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleInfo,
    SampleState,
    Subscriber,
    Topic,
    ViewState,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.idl.types import int32
from tests.support import wait_until

SECOND = duration(seconds=1)
LONG = duration(seconds=20)
ANY = SampleState.Any | ViewState.Any | InstanceState.Any


@dataclass
class Message(IdlStruct):
    text: str


@dataclass
class State(IdlStruct):
    unit: int32
    value: int32
    key("unit")


def pair(participant, data_type=bytes, qos=None, name="topic", **keywords):
    topic = Topic(participant, name, data_type, qos=qos, **keywords)
    reader = DataReader(participant, topic)
    return DataWriter(participant, topic), reader


def write_all(writer, samples):
    for one in samples:
        writer.write(one)
    assert writer.wait_for_acks(LONG)


@pytest.mark.parametrize("make", [lambda i: b"%d" % i, lambda i: Message(str(i))], ids=["bytes", "idl"])
class TestBothWays:
    """The same for bytes, which the core hands out itself, and for decoded types."""

    def make_pair(self, participant, make):
        return pair(participant, bytes if isinstance(make(0), bytes) else Message)

    def test_take_gives_each_sample_once_in_order(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        write_all(writer, map(make, range(10)))
        assert reader.take(3) == [make(0), make(1), make(2)]
        assert reader.take() == [make(3)]
        assert reader.take(100) == [make(i) for i in range(4, 10)]
        assert reader.take(100) == []

    def test_read_leaves_the_samples(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        write_all(writer, map(make, range(3)))
        first = reader.read(2)
        again = reader.read(5)
        assert first == [make(0), make(1)]
        assert again == [make(0), make(1), make(2)]
        assert [one.sample_info.sample_state for one in first] == [SampleState.NotRead] * 2
        assert [one.sample_info.sample_state for one in again] == [
            SampleState.Read, SampleState.Read, SampleState.NotRead]
        assert reader.take(10) == [make(0), make(1), make(2)]
        assert reader.read(10) == []

    def test_next_skips_what_was_read(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        write_all(writer, map(make, range(3)))
        assert reader.read_next() == make(0)
        assert reader.take_next() == make(1)
        assert reader.read_next() == make(2)
        assert reader.read_next() is None and reader.take_next() is None
        assert reader.take(10) == [make(0), make(2)]

    def test_a_read_sees_what_this_process_has_just_written(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        for i in range(100):
            writer.write(make(i))
            assert reader.take() == [make(i)]
        for i in range(20):
            writer.write(make(i))
            writer.write(make(i + 1))
            assert reader.read(2) == [make(i), make(i + 1)]
            assert len(reader.take(2)) == 2

    def test_info(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        before = time.time_ns()
        writer.write(make(0))
        writer.write(make(1), timestamp=12345)
        assert writer.wait_for_acks(LONG)
        first, second = reader.take(2)
        read = self.make_pair(participant, make)[1]
        writer.write(make(2))
        (third,) = read.read()
        for info in (first.sample_info, second.sample_info, third.sample_info):
            assert isinstance(info, SampleInfo)
            assert info.valid_data is True
            assert info.instance_state == InstanceState.Alive
            assert info.instance_handle == 1
            assert info.node == 1
            assert info.publication_handle == reader.get_matched_publications()[0]
            assert before <= info.reception_timestamp <= time.time_ns()
            assert (info.disposed_generation_count, info.no_writers_generation_count, info.sample_rank,
                    info.generation_rank, info.absolute_generation_rank) == (0, 0, 0, 0, 0)
            assert "sequence=" in repr(info)
        assert before <= first.sample_info.source_timestamp <= time.time_ns()
        assert second.sample_info.source_timestamp == 12345
        assert [s.sample_info.view_state for s in (first, second, third)] == [ViewState.New] * 3
        assert first.sample_info.sequence < second.sample_info.sequence < third.sample_info.sequence
        assert second.sample_info.index == first.sample_info.index + 1
        writer.write(make(3))
        assert reader.take(2)[0].sample_info.view_state == ViewState.Old

    def test_iterators_wait_and_end(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        thread = threading.Thread(target=lambda: [writer.write(make(i)) for i in range(50)])
        thread.start()
        found = []
        for one in reader.take_iter(timeout=LONG):
            found.append(one)
            if len(found) == 50:
                break
        thread.join()
        assert found == [make(i) for i in range(50)]
        start = time.monotonic()
        assert list(reader.take_iter(timeout=duration(milliseconds=20))) == []
        assert 0.02 <= time.monotonic() - start < 5
        write_all(writer, [make(7)])
        assert [*reader.read_iter(timeout=duration(milliseconds=1))] == [make(7)]
        assert [*reader.read_iter(timeout=duration(milliseconds=1))] == []
        assert reader.take(5) == [make(7)]

    def test_one(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        timer = threading.Timer(0.05, lambda: writer.write(make(1)))
        timer.start()
        assert reader.take_one(timeout=LONG) == make(1)
        timer.join()
        write_all(writer, [make(2)])
        assert reader.read_one(timeout=LONG) == make(2)
        with pytest.raises(TimeoutError):
            reader.read_one(timeout=1000)
        with pytest.raises(DDSTimeout) as caught:
            DataReader(participant, reader.topic).take_one(timeout=1000)
        assert caught.value.code == DDSException.DDS_RETCODE_TIMEOUT

    def test_async_iteration(self, participant, make):
        writer, reader = self.make_pair(participant, make)

        async def main():
            loop = asyncio.get_running_loop()
            taken, other = [], []
            second = DataReader(participant, reader.topic)

            async def collect(source, into):
                async for one in source.take_aiter(timeout=LONG):
                    into.append(one)
                    if len(into) == 200:
                        return

            def write():
                for i in range(200):
                    writer.write(make(i))

            await asyncio.gather(collect(reader, taken), collect(second, other), loop.run_in_executor(None, write))
            assert taken == other == [make(i) for i in range(200)]
            assert [one async for one in reader.take_aiter(timeout=duration(milliseconds=5))] == []
            writer.write(make(5))
            assert [one async for one in reader.read_aiter(timeout=duration(milliseconds=50))] == [make(5)]

        asyncio.run(main())

    @pytest.mark.slow
    def test_threads_share_a_reader(self, participant, make):
        writer, reader = self.make_pair(participant, make)
        found, lock = [], threading.Lock()

        def take():
            for one in reader.take_iter(timeout=duration(seconds=2)):
                with lock:
                    found.append(one)
                    if len(found) >= 300:
                        return

        threads = [threading.Thread(target=take) for _ in range(3)]
        for one in threads:
            one.start()
        for i in range(300):
            writer.write(make(i))
        for one in threads:
            one.join(20)
        key_of = (lambda one: int(one)) if isinstance(make(0), bytes) else (lambda one: int(one.text))
        assert sorted(map(key_of, found)) == list(range(300))


def test_wrong_arguments(participant):
    writer, reader = pair(participant)
    for n in (0, -1, 1.5, "2", None, True):
        with pytest.raises(TypeError):
            reader.take(n)
        with pytest.raises(TypeError):
            reader.read(n)
    for where, topic, keywords in [
        (False, reader.topic, {}), (Subscriber(participant), False, {}), (writer.publisher, reader.topic, {}),
        (participant, reader.topic, {"qos": False}), (participant, reader.topic, {"listener": False}),
        (participant, reader.topic, {"qos": Qos().datawriter()})]:
        with pytest.raises(TypeError):
            DataReader(where, topic, **keywords)
    other = DataReader(participant, reader.topic)
    with pytest.raises(DDSException) as caught:
        reader.take(condition=ReadCondition(other, ANY))
    assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER


def test_a_closed_reader_says_so(participant):
    writer, reader = pair(participant)
    writer.write(b"x")
    reader.close()
    reader.close()
    for call in (reader.take, reader.read, reader.take_next, reader.take_batch, reader.get_matched_publications,
                 lambda: next(reader.take_iter()), reader.get_sample_lost_status):
        with pytest.raises(DDSException) as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED


def test_closing_wakes_a_thread_that_waits(participant):
    _, reader = pair(participant)
    caught = []

    def wait():
        try:
            next(reader.take_iter())
        except DDSException as error:
            caught.append(error.code)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: reader._hub._waiters)
    reader.close()
    thread.join(10)
    assert caught == [DDSException.DDS_RETCODE_ALREADY_DELETED]


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
    monkeypatch.setattr("dds.intake.KEPT_MAX", 100)
    monkeypatch.setattr("dds.intake.PULL", 10)
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
    failing = QueryCondition(reader, ANY, lambda sample: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reader.take(condition=failing)
    assert len(reader.take(10)) == 2


def test_instances(participant):
    topic = Topic(participant, "states", State)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    write_all(writer, [State(1, 10), State(2, 20), State(1, 11)])
    first = reader.read(10)
    handles = [one.sample_info.instance_handle for one in first]
    assert handles[0] == handles[2] != handles[1]
    assert [one.sample_info.view_state for one in first] == [ViewState.New] * 3
    assert reader.read(10, instance_handle=handles[1]) == [State(2, 20)]
    assert reader.take(10, instance_handle=handles[0]) == [State(1, 10), State(1, 11)]
    assert reader.lookup_instance(State(2, 0)) == writer.lookup_instance(State(2, 99)) == handles[1]
    assert reader.lookup_instance(State(3, 0)) is None
    handle = writer.register_instance(State(3, 0))
    assert handle not in handles and reader.lookup_instance(State(3, 0)) == handle
    write_all(writer, [State(3, 1), State(2, 21)])
    view = {one.unit: one.sample_info.view_state for one in reader.take(10)}
    assert view == {2: ViewState.Old, 3: ViewState.New}
    for call in (writer.dispose, writer.unregister_instance, writer.write_dispose, writer.dispose_instance_handle,
                 writer.unregister_instance_handle):
        with pytest.raises(DDSException) as caught:
            call(State(1, 1))
        assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED
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


def test_an_open_batch_is_in_the_way(participant):
    writer, reader = pair(participant)
    write_all(writer, [b"a", b"b"])
    with reader.take_batch(1):
        for call in (reader.take, reader.read):
            with pytest.raises(DDSException) as caught:
                call()
            assert caught.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    assert reader.take(5) == [b"b"]


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


def test_foreign_bytes_are_told_of_and_skipped(participant):
    writer, reader = pair(participant, Message)
    write_all(writer, [Message("a")])
    writer._inbox.write(b"nonsense")
    write_all(writer, [Message("b")])
    assert reader.take(10) == [Message("a")]
    with pytest.raises(DDSException, match="can't be read and is skipped"):
        reader.take(10)
    assert reader.take(10) == [Message("b")]
    writer._inbox.write(b"nonsense")
    write_all(writer, [Message("c")])
    with pytest.raises(DDSException, match="can't be read and is skipped"):
        reader.read(10)
    assert reader.read(10) == [Message("c")]


class TestBatches:
    def test_records_in_place(self, participant):
        np = pytest.importorskip("numpy")
        dtype = np.dtype([("altitude", "<f8"), ("flags", "<u2"), ("vector", "<f4", (3,))])
        writer, reader = pair(participant, dtype)
        rows = np.zeros(1000, dtype)
        rows["altitude"] = np.arange(1000)
        assert writer.write_many(rows) == 1000
        assert writer.wait_for_acks(LONG)
        got = []
        while len(got) < 1000:
            with reader.take_batch(300) as batch:
                assert len(batch) == len(batch.array)
                assert not batch.array.flags.owndata
                assert batch.array.dtype == dtype
                assert batch.sample_info(0).node == 1
                assert batch.sample_info(-1).index - batch.sample_info(0).index == len(batch) - 1
                got.extend(batch.array["altitude"].tolist())
        assert got == list(range(1000))
        with reader.take_batch() as empty:
            assert len(empty) == 0 and empty.array.shape == (0,)
        with pytest.raises(ValueError):
            _ = batch.array
        with pytest.raises(ValueError):
            batch.sample_info(0)

    def test_take_array_owns_its_memory(self, participant):
        np = pytest.importorskip("numpy")
        writer, reader = pair(participant, np.dtype([("x", "<i4")]))
        writer.write_many(np.array([(1,), (2,)], [("x", "<i4")]))
        assert writer.wait_for_acks(LONG)
        array = reader.take_array(10)
        assert array["x"].tolist() == [1, 2] and array.flags.owndata
        assert reader.take(1) == []

    def test_bytes(self, participant):
        writer, reader = pair(participant)
        write_all(writer, [b"aa", b"bb", b"ccc"])
        with reader.take_batch(10) as batch:
            assert [bytes(batch.payload(i)) for i in range(len(batch))] == [b"aa", b"bb"]
            assert batch.payload(0).readonly
            with pytest.raises(IndexError):
                batch.payload(2)
        with reader.take_batch(10) as batch:
            assert bytes(batch.payload(0)) == b"ccc"
            assert batch.array.tolist() == [[99, 99, 99]]

    def test_after_read_and_for_readers_that_may_be_overtaken(self, participant):
        writer, reader = pair(participant)
        last = DataReader(participant, reader.topic, qos=Qos(Policy.History.KeepLast(2)))
        write_all(writer, [b"a", b"b", b"c"])
        reader.read(1)
        with reader.take_batch(2) as batch:
            assert [bytes(batch.payload(i)) for i in range(len(batch))] == [b"a", b"b"]
            assert [batch.sample_info(i).sample_state for i in (0, 1)] == [SampleState.Read, SampleState.NotRead]
        assert reader.take(9) == [b"c"]
        with last.take_batch(9) as batch:
            assert [bytes(batch.payload(i)) for i in range(len(batch))] == [b"b", b"c"]

    def test_types_without_layout(self, participant):
        _, reader = pair(participant, Message)
        with pytest.raises(DDSException) as caught:
            reader.take_batch()
        assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED


class TestHistory:
    @pytest.mark.parametrize("durability", ["TransientLocal", "Transient"])
    def test_a_late_joiner_gets_what_was_kept_then_the_rest(self, participant, durability):
        qos = Qos(getattr(Policy.Durability, durability), Policy.Reliability.Reliable(SECOND))
        topic = Topic(participant, "kept", bytes, qos=qos)
        early, writer = DataReader(participant, topic), DataWriter(participant, topic)
        write_all(writer, [b"%d" % i for i in range(5)])
        late = DataReader(participant, topic)
        assert late.wait_for_historical_data(SECOND)
        write_all(writer, [b"5"])
        assert late.take(100) == early.take(100) == [b"%d" % i for i in range(6)]

    def test_a_reader_that_asks_for_volatile_gets_no_history(self, participant):
        topic = Topic(participant, "kept", bytes, qos=Qos(Policy.Durability.TransientLocal))
        keeper, writer = DataReader(participant, topic), DataWriter(participant, topic)
        write_all(writer, [b"old"])
        late = DataReader(participant, topic, qos=Qos(Policy.Durability.Volatile))
        write_all(writer, [b"new"])
        assert late.take(10) == [b"new"]
        assert keeper.take(10) == [b"old", b"new"]

    def test_depth_of_history(self, participant):
        service = Policy.DurabilityService(0, Policy.History.KeepLast(2), -1, -1, -1)
        topic = Topic(participant, "kept", bytes, qos=Qos(Policy.Durability.TransientLocal, service))
        keeper, writer = DataReader(participant, topic), DataWriter(participant, topic)
        write_all(writer, [b"%d" % i for i in range(5)])
        assert DataReader(participant, topic).take(10) == [b"3", b"4"]
        assert len(keeper.take(10)) == 5


def test_two_nodes_agree_on_the_order(two_nodes):
    topics = [Topic(one, "agreed", bytes) for one in two_nodes]
    readers = [DataReader(one, topic) for one, topic in zip(two_nodes, topics, strict=True)]
    writers = [DataWriter(one, topic) for one, topic in zip(two_nodes, topics, strict=True)]
    threads = [threading.Thread(target=write_all, args=(one, [b"%d-%d" % (n, i) for i in range(500)]))
               for n, one in enumerate(writers)]
    got = [[], []]
    for one in threads:
        one.start()
    for reader, into in zip(readers, got, strict=True):
        while len(into) < 1000:
            into.append(reader.take_one(timeout=LONG))
    for one in threads:
        one.join(20)
    assert got[0] == got[1]
    for n in range(2):
        assert [one for one in got[0] if one.startswith(b"%d-" % n)] == [b"%d-%d" % (n, i) for i in range(500)]
    assert {one.sample_info.node for one in got[0]} == {1, 2}
    assert {one.sample_info.publication_handle for one in got[0]} == set(readers[0].get_matched_publications())
