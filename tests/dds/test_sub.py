"""Readers: taking, reading, waiting, history, order.

Goal: what take, read and iterators give, on the fast way and on the other; nothing lost, nothing twice, no waiting
where none is due.
Method: writers and readers on one embedded node, on two where the group matters. Waits are bounded by timeouts of the
interface itself.
"""

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSTimeout,
    DomainParticipant,
    InstanceState,
    Listener,
    Policy,
    Publisher,
    Qos,
    ReadCondition,
    SampleInfo,
    SampleState,
    Subscriber,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.idl import IdlStruct
from tests.support import wait_until

SECOND = duration(seconds=1)
LONG = duration(seconds=20)
ANY = SampleState.Any | ViewState.Any | InstanceState.Any


@dataclass
class Message(IdlStruct):
    text: str


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
            assert info.publication_handle == reader.get_matched_publications()[0] == writer.instance_handle
            assert before <= info.reception_timestamp <= time.time_ns()
            assert (info.disposed_generation_count, info.no_writers_generation_count, info.sample_rank,
                    info.generation_rank, info.absolute_generation_rank) == (0, 0, 0, 0, 0)
            assert info.topic == reader.topic.name
            for said in (f"topic={info.topic!r}", f"sequence={info.sequence}", f"view_id={info.view_id}", "node=1",
                         f"publication_handle={info.publication_handle}", f"source_timestamp={info.source_timestamp}",
                         "SampleState.NotRead", "ViewState.New" if info is first.sample_info else "ViewState.",
                         "InstanceState.Alive", "valid_data=True"):
                assert said in repr(info)
            for again in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info)):
                assert (repr(again), type(again).__name__) == (repr(info), type(info).__name__)
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
        assert caught.value.code == DDSException.DDS_RETCODE_TIMEOUT and "within 1 us" in str(caught.value)
        with pytest.raises(DDSTimeout, match="within 0 s"):
            DataReader(participant, reader.topic).take_one(timeout=-5)
        with pytest.raises(DDSTimeout, match=r"within 1 ns \(times are in nanoseconds"), pytest.warns(UserWarning):
            reader.take_one(timeout=1)
        for wrong in (0.5, "1", b"1"):
            with pytest.raises(TypeError, match=f"a whole number of nanoseconds, not {wrong!r}"):
                reader.take_one(timeout=wrong)

    def test_a_timeout_that_was_meant_in_seconds(self, participant, make):
        """A loop or a wait that ends at once would look as if nothing had come. The warning points at the program."""
        writer, reader = self.make_pair(participant, make)
        for wait in (lambda: [*reader.take_iter(timeout=5)], lambda: WaitSet(participant).wait(5),
                     lambda: writer.wait_for_acks(5)):
            with pytest.warns(UserWarning, match=r"5 is 5 ns: .* dds\.duration\(seconds=5\)") as told:
                wait()
            assert [one.filename for one in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [*reader.take_iter(timeout=0)] == [*reader.take_iter(timeout=duration(microseconds=1))] == []

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


@pytest.mark.parametrize("foreign", [b"", b"\0\1", b"nonsense", b"\0\7\0\0\xff\xff\xff\xff"])
def test_foreign_bytes_are_refused_and_counted(participant, foreign, caplog):
    writer, reader = pair(participant, Message)
    lost = []
    reader.set_listener(Listener(on_sample_lost=lambda reader, status: lost.append(status.total_count)))
    write_all(writer, [Message("a")])
    writer._inbox.write(foreign)
    writer._inbox.write(foreign)
    write_all(writer, [Message("b")])
    assert reader.take(10) == [Message("a"), Message("b")]
    assert reader.get_sample_lost_status().total_count == 2
    writer._inbox.write(foreign)
    write_all(writer, [Message("c"), Message("d")])
    assert reader.read(1) == [Message("c")] and reader.read(10) == [Message("c"), Message("d")]
    assert reader.get_sample_lost_status().total_count == 3
    wait_until(lambda: lost and lost[-1] == 3)
    assert sum("not of its type Message" in one.message for one in caplog.records) == 2  # the first, and as many again


def test_foreign_bytes_wake_nobody_for_nothing(participant):
    writer, reader = pair(participant, Message)
    writer._inbox.write(b"nonsense")
    with pytest.raises(DDSTimeout):
        reader.take_one(timeout=SECOND // 20)
    write_all(writer, [Message("a")])
    assert reader.take_one(timeout=LONG) == Message("a")


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


# --- what is not for a reader

class TestIgnoreLocal:
    """Goal: a reader gets nothing from the writers that it ignores, from the first sample on, and all from others.
    Method: writers in the reader's participant, in another one of this process, and behind it in a daemon's place."""

    @pytest.mark.parametrize(("ignore", "expected"), [
        (Policy.IgnoreLocal.Nothing, [b"own", b"near", b"own 2", b"near 2"]),
        (Policy.IgnoreLocal.Participant, [b"near", b"near 2"]), (Policy.IgnoreLocal.Process, [])], ids=repr)
    def test_by_participant_and_process(self, participant, ignore, expected):
        with DomainParticipant.embedded() as other:
            topics = [Topic(one, "t", bytes) for one in (participant, other)]
            reader = DataReader(participant, topics[0], qos=Qos(ignore))
            last = DataReader(participant, topics[0], qos=Qos(ignore, Policy.History.KeepLast(1)))
            own, near = DataWriter(participant, topics[0]), DataWriter(other, topics[1])
            write_all(own, [b"own"])
            write_all(near, [b"near"])
            write_all(own, [b"own 2"])
            write_all(near, [b"near 2"])
            assert reader.take(9) == expected and last.take(9) == expected[-1:]
            matched = {own.instance_handle: b"own", near.instance_handle: b"near"}
            assert {matched[one] for one in reader.get_matched_publications()} == {
                one for one in expected if one in (b"own", b"near")}
            assert (reader.instance_handle in own.get_matched_subscriptions()) == (b"own" in expected)
            assert reader.get_requested_incompatible_qos_status().total_count == 0
            assert reader.get_sample_lost_status().total_count == 0
            # A writer that is closed by the time the reader looks is ignored all the same.
            write_all(own, [b"own 3"])
            own.close()
            assert (reader.take(9) == [b"own 3"]) == (b"own" in expected)

    @pytest.mark.slow
    def test_writers_of_other_processes_are_heard(self, group, runtime_dir, tmp_path_factory):
        """Also if they have the handle of a writer that a participant of this process had, which is closed."""
        with DomainParticipant.embedded(node_id=2, runtime_dir=tmp_path_factory.mktemp("e")) as earlier:
            topic = Topic(earlier, "t", bytes)
            before = [DataWriter(earlier, topic) for _ in range(5)]
            assert len({one.instance_handle for one in before}) == 5
        with DomainParticipant(runtime_dir=runtime_dir, node_id=1) as participant:
            topic = Topic(participant, "t", bytes)
            reader = DataReader(participant, topic, qos=Qos(Policy.IgnoreLocal.Process))
            writer = DataWriter(participant, topic)
            writer.write(b"own")
            program = (f"import dds; p = dds.DomainParticipant(runtime_dir={str(runtime_dir)!r}, node_id=2); "
                       "w = dds.DataWriter(p, dds.Topic(p, 't', bytes)); w.write(b'far'); "
                       "assert w.wait_for_acks(20_000_000_000)")
            subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
            assert reader.take_one(timeout=LONG) == b"far" and reader.take(9) == []


def test_peers_are_told_the_data_of_topic_and_group(two_nodes):
    one, two = two_nodes
    topics = [Topic(each, "t", bytes, qos=Qos(Policy.Topicdata(b"of the topic"))) for each in (one, two)]
    writer = DataWriter(Publisher(one, qos=Qos(Policy.Groupdata(b"of the publisher"))), topics[0],
                        qos=Qos(Policy.Userdata(b"its own")))
    reader = DataReader(Subscriber(two, qos=Qos(Policy.Groupdata(b"of the subscriber"))), topics[1])
    wait_until(lambda: reader.get_matched_publications() and writer.get_matched_subscriptions())
    told = reader.get_matched_publication_data(writer.instance_handle).qos
    assert told[Policy.Topicdata].data == b"of the topic" and told[Policy.Userdata].data == b"its own"
    assert told[Policy.Groupdata].data == b"of the publisher"
    told = writer.get_matched_subscription_data(reader.instance_handle).qos
    assert told[Policy.Groupdata].data == b"of the subscriber"
