"""Entities, listeners, conditions and wait sets.

Goal: relations and lifetimes as DDS programs expect them; callbacks on their own thread, able to do anything; wait sets
that sleep.
Method: one embedded node; events instead of sleeping.
"""

import asyncio
import gc
import logging
import threading
import time
import weakref

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSStatus,
    Domain,
    DomainParticipant,
    Entity,
    GuardCondition,
    InstanceState,
    Listener,
    Policy,
    Publisher,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleState,
    Subscriber,
    Topic,
    ViewState,
    WaitSet,
    duration,
    isgoodentity,
)
from dds.listener import CALLBACKS
from tests.dds.test_sub import ANY, LONG, SECOND, pair, write_all
from tests.support import wait_until


class TestEntities:
    def test_relations(self, participant):
        topic, publisher, subscriber = Topic(participant, "t", bytes), Publisher(participant), Subscriber(participant)
        reader, writer = DataReader(subscriber, topic), DataWriter(publisher, topic)
        assert participant.children == [topic, publisher, subscriber]
        assert (reader.parent, writer.parent, topic.parent, participant.parent) == (
            subscriber, publisher, participant, None)
        assert reader.subscriber is subscriber is reader.get_subscriber()
        assert writer.publisher is publisher
        for one in (topic, publisher, subscriber, reader, writer, participant):
            assert one.participant is participant
            assert one.domain_id == 0
            assert isgoodentity(one)
            assert Entity(one._ref).get_participant() is participant
            assert Entity.get_entity(one._ref) is one
        assert subscriber.children == [reader]
        assert reader.topic is topic is writer.topic
        for call in (participant.get_subscriber, topic.get_publisher, writer.get_subscriber, reader.get_datareader):
            with pytest.raises(DDSException) as caught:
                call()
            assert caught.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION

    def test_names_and_handles_are_unique(self, participant):
        others = [Topic(participant, f"t{i}", bytes) for i in range(5)]
        assert len({one.guid for one in (participant, *others)}) == 6
        assert len({one.instance_handle for one in (participant, *others)}) == 6
        assert participant.get_guid() == participant.guid

    def test_children_keep_their_parents(self, participant):
        topic = Topic(participant, "t", bytes)
        reader = DataReader(Subscriber(participant), topic)
        gc.collect()
        assert isgoodentity(reader.subscriber)
        name = weakref.ref(reader.subscriber)
        del reader
        gc.collect()
        assert name() is None
        assert participant.children == [topic]

    def test_forgotten_entities_are_closed_without_a_collection(self, participant):
        gc.disable()
        try:
            writer, reader = pair(participant)
            handle = writer._handle
            del writer
            wait_until(lambda: handle.closed)
            assert reader.get_status_changes() & DDSStatus.SubscriptionMatched
            assert reader.get_subscription_matched_status().current_count == 0
        finally:
            gc.enable()

    def test_closing_a_parent_closes_its_children(self, participant):
        writer, reader = pair(participant)
        participant.close()
        for one in (writer, reader, reader.topic, participant):
            assert not isgoodentity(one)
            with pytest.raises(DDSException) as caught:
                one.get_participant()
            assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED
        with pytest.raises(DDSException):
            Topic(participant, "t", bytes)
        with pytest.raises(DDSException):
            Entity(reader._ref).get_participant()

    def test_with_blocks_close(self, participant):
        with Topic(participant, "t", bytes) as topic, DataReader(participant, topic) as reader:
            assert isgoodentity(reader)
        assert not isgoodentity(reader) and not isgoodentity(topic)

    def test_qos_of_entities(self, participant):
        topic = Topic(participant, "t", bytes, qos=Qos(Policy.History.KeepLast(3), Policy.Topicdata(b"data")))
        writer = DataWriter(participant, topic, qos=Qos(Policy.Userdata(b"user")))
        qos = writer.get_qos()
        assert qos[Policy.History] == Policy.History.KeepLast(3)
        assert qos[Policy.Userdata] == Policy.Userdata(b"user")
        assert qos[Policy.Durability] is Policy.Durability.Volatile
        assert writer.qos == qos
        writer.set_qos(Qos(Policy.Userdata(b"other")))
        assert writer.qos[Policy.Userdata] == Policy.Userdata(b"other")
        writer.set_qos(qos)
        with pytest.raises(DDSException) as caught:
            writer.set_qos(Qos(Policy.History.KeepAll))
        assert caught.value.code == DDSException.DDS_RETCODE_IMMUTABLE_POLICY

    def test_statuses(self, participant):
        writer, reader = pair(participant)
        assert reader.get_status_changes() & DDSStatus.SubscriptionMatched
        reader.set_status_mask(DDSStatus.SubscriptionMatched)
        assert reader.status_mask == DDSStatus.SubscriptionMatched
        write_all(writer, [b"x"])
        assert reader.read_status() == DDSStatus.SubscriptionMatched
        assert reader.get_status_changes() & DDSStatus.DataAvailable
        assert reader.take_status() == DDSStatus.SubscriptionMatched
        assert reader.read_status() == 0
        assert reader.take_status(DDSStatus.All) & DDSStatus.DataAvailable
        assert not reader.take_status(DDSStatus.All) & DDSStatus.DataAvailable  # once for what has come
        write_all(writer, [b"y"])
        assert reader.take_status(DDSStatus.DataAvailable) == DDSStatus.DataAvailable
        assert reader.take(10) == [b"x", b"y"]
        assert reader.get_status_changes() == 0
        with pytest.raises(DDSException):
            reader.set_status_mask(1 << 20)
        for _, getter in CALLBACKS.values():
            owner = next(one for one in (participant, reader.topic, writer, reader) if hasattr(one, getter or "guid"))
            if getter:
                assert getattr(owner, getter)() is not None

    def test_unsupported_operations(self, participant):
        for call in (participant.begin_coherent, participant.end_coherent):
            with pytest.raises(DDSException) as caught:
                call()
            assert caught.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION


class TestListeners:
    def test_data_comes_on_a_thread_of_its_own(self, participant):
        got, threads = [], set()
        ready = threading.Event()

        class Mine(Listener):
            def on_data_available(self, reader):
                threads.add(threading.current_thread())
                got.extend(reader.take(3))
                if len(got) == 100:
                    ready.set()

        topic = Topic(participant, "t", bytes)
        reader = DataReader(participant, topic, listener=Mine())
        writer = DataWriter(participant, topic)
        for i in range(100):
            writer.write(b"%d" % i)
        assert ready.wait(20)
        assert got == [b"%d" % i for i in range(100)]
        assert len(threads) == 1 and threading.current_thread() not in threads
        assert isgoodentity(reader)

    def test_one_take_in_each_call_gets_everything(self, participant):
        got = []
        topic = Topic(participant, "t", bytes)
        writer = DataWriter(participant, topic)
        listener = Listener(on_data_available=lambda reader: got.append(reader.take_next()))
        reader = DataReader(participant, topic, listener=listener)
        writer.write_many([b"%d" % i for i in range(50)])
        wait_until(lambda: len(got) >= 50)
        assert got == [b"%d" % i for i in range(50)]
        assert reader.take(1) == []

    def test_a_callback_that_takes_nothing_is_not_called_for_ever(self, participant):
        calls, looked = [], []
        topic = Topic(participant, "t", bytes)
        writer = DataWriter(participant, topic)
        reader = DataReader(participant, topic, listener=Listener(
            on_data_available=calls.append, on_sample_lost=lambda *_: looked.append(1)))
        write_all(writer, [b"a"])
        wait_until(lambda: len(calls) == 1)
        write_all(writer, [b"b"])
        wait_until(lambda: len(calls) == 2)
        self.settle(reader, looked)
        assert reader.take(10) == [b"a", b"b"]
        assert len(calls) == 2

    def test_what_comes_while_the_listener_wakes_up_is_announced_once(self, participant, monkeypatch):
        """Method: a sample comes after the listener thread has looked how many there are, before it calls."""
        calls, looked = [], []
        topic = Topic(participant, "t", bytes)
        writer = DataWriter(participant, topic)
        look = DataReader._look_for_lost

        def late(reader):
            if threading.current_thread() is reader._runtime.dispatcher._thread and not calls and not reader._unread():
                write_all(writer, [b"a"])
                wait_until(reader._unread)
            look(reader)

        monkeypatch.setattr(DataReader, "_look_for_lost", late)
        reader = DataReader(participant, topic, listener=Listener(
            on_data_available=calls.append, on_sample_lost=lambda *_: looked.append(1)))
        wait_until(lambda: calls)
        self.settle(reader, looked)
        assert len(calls) == 1 and reader.take(10) == [b"a"]

    @staticmethod
    def settle(reader, looked):
        """Returns when the listener thread, which counts in `looked` what is posted, has been all the way round."""
        for _ in range(2):
            before = len(looked)
            reader._runtime.dispatcher.post(reader, "on_sample_lost")
            wait_until(lambda before=before: len(looked) > before)

    def test_an_exception_is_logged_and_the_next_callback_runs(self, participant, caplog):
        got = []

        def fail_first(reader):
            got.extend(reader.take(1))
            if len(got) == 1:
                raise RuntimeError("as planned")

        topic = Topic(participant, "t", bytes)
        reader = DataReader(participant, topic, listener=Listener(on_data_available=fail_first))
        writer = DataWriter(participant, topic)
        with caplog.at_level(logging.ERROR, "dds"):
            writer.write_many([b"a", b"b"])
            wait_until(lambda: got == [b"a", b"b"])
        assert "as planned" in caplog.text and "on_data_available" in caplog.text
        assert isgoodentity(reader)

    def test_a_callback_may_close_its_own_entity_and_make_others(self, participant):
        done = threading.Event()
        made = []

        def on_data(reader):
            (sample,) = reader.take(1)
            topic = reader.topic
            reader.close()
            made.append(DataReader(reader._parent.participant, topic))
            made.append(DataWriter(reader._parent.participant, topic))
            made[1].write(sample + b" again")
            done.set()

        topic = Topic(participant, "t", bytes)
        reader = DataReader(participant, topic, listener=Listener(on_data_available=on_data))
        writer = DataWriter(participant, topic)
        writer.write(b"once")
        assert done.wait(20)
        assert made[0].take_one(timeout=LONG) == b"once again"
        assert not isgoodentity(reader)

    def test_a_callback_may_close_its_participant(self):
        done = threading.Event()
        participant = DomainParticipant.embedded()
        topic = Topic(participant, "t", bytes)

        def on_data(reader):
            participant.close()
            done.set()

        reader = DataReader(participant, topic, listener=Listener(on_data_available=on_data))
        DataWriter(participant, topic).write(b"x")
        assert done.wait(20)
        assert not isgoodentity(reader)

    def test_statuses_go_to_the_nearest_that_handles_them(self, participant):
        heard = []

        def listener(label):
            return Listener(on_subscription_matched=lambda reader, status: heard.append((label, status.current_count)))

        participant.listener = listener("participant")
        subscriber = Subscriber(participant, listener=listener("subscriber"))
        topic = Topic(participant, "t", bytes)
        own = DataReader(subscriber, topic, listener=listener("reader"))
        inherited = DataReader(subscriber, topic, listener=Listener())
        apart = DataReader(Subscriber(participant), topic)
        writer = DataWriter(participant, topic)
        wait_until(lambda: len(heard) == 3)
        assert sorted(heard) == [("participant", 1), ("reader", 1), ("subscriber", 1)]
        assert own.get_subscription_matched_status().total_count_change == 0  # the listener has read it
        writer.close()
        wait_until(lambda: len(heard) == 6)
        assert isgoodentity(inherited) and isgoodentity(apart)

    def test_data_on_readers_goes_first(self, participant):
        heard = []

        def on_data_on_readers(subscriber):
            heard.append("subscriber")
            subscriber.notify_readers()

        subscriber = Subscriber(participant, listener=Listener(on_data_on_readers=on_data_on_readers))
        topic = Topic(participant, "t", bytes)

        def on_data(reader):
            heard.extend(reader.take(5))

        reader = DataReader(subscriber, topic, listener=Listener(on_data_available=on_data))
        DataWriter(participant, topic).write(b"x")
        wait_until(lambda: heard == ["subscriber", b"x"])
        assert isgoodentity(reader)

    def test_replacing_listeners(self, participant):
        writer, reader = pair(participant)
        first, second = [], []
        reader.set_listener(Listener(on_data_available=lambda r: first.extend(r.take(9))))
        writer.write(b"1")
        wait_until(lambda: first == [b"1"])
        reader.set_listener(None)
        assert not any(reader.get_listener().handles(name) for name in CALLBACKS)
        write_all(writer, [b"2"])
        reader.listener = Listener(on_data_available=lambda r: second.extend(r.take(9)))
        wait_until(lambda: second == [b"2"])
        assert first == [b"1"]
        with pytest.raises(TypeError):
            reader.set_listener(5)

    def test_what_is_set_adds_to_what_there_is(self, participant):
        """As in cyclonedds: set_listener() takes over callbacks, and neither side's later changes concern the other."""
        writer, reader = pair(participant)
        data, matched = [], []
        given = Listener(on_data_available=lambda r: data.extend(r.take(9)))
        reader.set_listener(given)
        reader.set_listener(Listener(on_subscription_matched=lambda r, status: matched.append(status.current_count)))
        given.set_on_data_available(lambda r: 1 / 0)
        reader.get_listener().reset()
        assert reader.listener.handles("on_data_available") and reader.listener.handles("on_subscription_matched")
        writer.write(b"1")
        wait_until(lambda: data == [b"1"])
        writer.close()
        wait_until(lambda: matched == [0])

    def test_a_listener_that_is_given_is_taken_as_it_is_then(self, participant):
        heard = []
        given = Listener(on_data_available=lambda r: heard.extend(r.take(9)))
        topic = Topic(participant, "t", bytes)
        reader = DataReader(participant, topic, listener=given)
        given.reset()
        DataWriter(participant, topic).write(b"1")
        wait_until(lambda: heard == [b"1"])
        assert isgoodentity(reader)

    def test_a_slow_callback_loses_nothing(self, participant):
        topic = Topic(participant, "t", bytes)
        gate, got = threading.Event(), []

        def slow(reader):
            gate.wait(20)
            got.extend(reader.take(10))

        reader = DataReader(participant, topic, listener=Listener(on_data_available=slow))
        writer = DataWriter(participant, topic)
        writer.write_many([b"%d" % i for i in range(300)])
        gate.set()
        wait_until(lambda: len(got) == 300)
        assert got == [b"%d" % i for i in range(300)]
        assert isgoodentity(reader)

    def test_callbacks_by_name(self):
        def callback(*_):
            pass

        for name in CALLBACKS:
            listener = Listener(**{name: callback})
            assert listener.handles(name) and getattr(listener, name) is callback
            assert [one for one in CALLBACKS if listener.handles(one)] == [name]
            copy = listener.copy()
            assert getattr(copy, name) is callback
            listener.reset()
            assert not listener.handles(name)
            getattr(listener, f"set_{name}")(callback)
            assert listener.handles(name)
            other = Listener()
            other.merge(listener)
            assert other.handles(name)
        with pytest.raises(TypeError, match="no callback"):
            Listener(on_monday=callback)
        with pytest.raises(TypeError):
            Listener(on_data_available=3)


class TestWaitSets:
    def test_a_condition_knows_what_its_program_has_just_written(self, participant):
        writer, reader = pair(participant)
        unread = ReadCondition(reader, ViewState.Any | InstanceState.Any | SampleState.NotRead)
        for number in range(20):
            assert not unread.triggered
            writer.write(b"%d" % number)
            assert unread.triggered
            assert reader.take(2) == [b"%d" % number]

    def test_conditions_of_a_reader(self, participant):
        writer, reader = pair(participant)
        waitset = WaitSet(participant)
        everything = ReadCondition(reader, ANY)
        unread = ReadCondition(reader, ViewState.Any | InstanceState.Any | SampleState.NotRead)
        query = QueryCondition(reader, ANY, lambda sample: sample == b"wanted")
        for one in (everything, unread, query, query):
            waitset.attach(one)
        assert waitset.get_entities() == [everything, unread, query]
        start = time.monotonic()
        assert waitset.wait(duration(milliseconds=20)) == 0
        assert time.monotonic() - start >= 0.02
        threading.Timer(0.02, lambda: writer.write(b"x")).start()
        assert waitset.wait(LONG) == 2
        reader.read(5)
        assert waitset.wait(LONG) == 1
        write_all(writer, [b"wanted"])
        assert waitset.wait(0) == 3
        reader.take(5)
        assert waitset.wait(0) == 0
        waitset.detach(everything)
        waitset.detach(everything)
        assert not waitset.is_attached(everything) and waitset.is_attached(query)

    def test_a_waiting_wait_set_uses_no_cpu(self, participant):
        writer, reader = pair(participant)
        write_all(writer, [b"x"])
        waitset = WaitSet(participant)
        waitset.attach(ReadCondition(reader, SampleState.Read))  # not triggered, though there is data
        start = time.thread_time()
        assert waitset.wait(duration(milliseconds=300)) == 0
        assert time.thread_time() - start < 0.05

    def test_guards(self, participant):
        guard, waitset = GuardCondition(participant), WaitSet(participant)
        waitset.attach(guard)
        assert waitset.wait(0) == 0
        threading.Timer(0.02, lambda: guard.set(True)).start()
        assert waitset.wait(LONG) == 1
        assert guard.read() is True
        assert guard.take() is True
        assert guard.take() is False
        guard.set(True)
        guard.set(False)
        assert waitset.wait(0) == 0

    def test_entities_by_status(self, participant):
        topic = Topic(participant, "t", bytes)
        writer = DataWriter(participant, topic)
        waitset = WaitSet(participant)
        waitset.attach(writer)
        assert waitset.wait(0) == 0
        made = []
        thread = threading.Timer(0.02, lambda: made.append(DataReader(participant, topic)))
        thread.start()
        assert waitset.wait(LONG) == 1
        thread.join()
        assert writer.get_publication_matched_status().current_count == 1
        assert waitset.wait(0) == 0
        waitset.attach(made[0])
        made[0].set_status_mask(DDSStatus.DataAvailable)
        assert waitset.wait(0) == 0
        threading.Timer(0.02, lambda: writer.write(b"x")).start()
        assert waitset.wait(LONG) == 1

    def test_several_waiters_of_one_reader_all_wake(self, participant):
        writer, reader = pair(participant)
        waitsets = [WaitSet(participant) for _ in range(3)]
        results = []
        for one in waitsets:
            one.attach(ReadCondition(reader, ANY))
        threads = [threading.Thread(target=lambda one=one: results.append(one.wait(LONG))) for one in waitsets]
        threads.append(threading.Thread(target=lambda: results.append(len([reader.read_one(timeout=LONG)]))))
        for one in threads:
            one.start()
        wait_until(lambda: len(reader._hub._waiters) == 4)
        writer.write(b"x")
        for one in threads:
            one.join(10)
        assert results == [1, 1, 1, 1]

    def test_triggered_by_hand_and_until(self, participant):
        waitset = WaitSet(participant)
        threading.Timer(0.02, lambda: waitset.set_trigger(True)).start()
        assert waitset.wait(LONG) == 1
        waitset.set_trigger(False)
        assert waitset.wait_until(time.time_ns() + duration(milliseconds=5)) == 0

    def test_without_a_thread(self, participant):
        writer, reader = pair(participant)
        waitset = WaitSet(participant)
        waitset.attach(ReadCondition(reader, ANY))

        async def main():
            before = threading.active_count()
            waiting = asyncio.create_task(waitset.wait_async())
            await asyncio.sleep(0)
            assert threading.active_count() == before
            writer.write(b"x")
            assert await waiting == 1
            reader.take(1)
            assert await waitset.wait_async(duration(milliseconds=5)) == 0

        asyncio.run(main())

    def test_what_cannot_be_attached(self, participant):
        waitset = WaitSet(participant)
        for bad in (Entity(10**9), "x", waitset, WaitSet(participant)):
            with pytest.raises(DDSException) as caught:
                waitset.attach(bad)
            assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
        for cls in (WaitSet, GuardCondition):
            with pytest.raises(TypeError):
                cls(None)
        with pytest.raises(TypeError):
            ReadCondition(None, ANY)

    def test_closing_ends_a_wait(self, participant):
        waitset, caught = WaitSet(participant), []

        def wait():
            try:
                waitset.wait(LONG)
            except DDSException as error:
                caught.append(error.code)

        thread = threading.Thread(target=wait)
        thread.start()
        waitset.close()
        thread.join(10)
        assert caught == [DDSException.DDS_RETCODE_ALREADY_DELETED]

    def test_closing_the_one_reader_that_is_waited_for_ends_no_wait(self, participant):
        """Goal: it is waited for no more, and the rest goes on. Method: a wait that drives the node by this reader."""
        reader = DataReader(participant, Topic(participant, "topic", bytes))
        waitset, guard, found = WaitSet(participant), GuardCondition(participant), []
        waitset.attach(ReadCondition(reader, ANY))
        waitset.attach(guard)
        thread = threading.Thread(target=lambda: found.append(waitset.wait(LONG)), daemon=True)
        thread.start()
        wait_until(lambda: waitset._known)
        reader.close()
        reader._source.wait(waitset._waker, 0, 0)  # as one who has looked just before it was closed
        guard.set(True)
        thread.join(10)
        assert found == [1]


def test_domain_objects(participant):
    domain = Domain(0)
    assert domain.get_participants() == [participant]
    assert domain.domain_id == 0
    assert Domain(1).get_participants() == []
    with pytest.raises(DDSException) as caught:
        Domain(1, "<CycloneDDS/>")
    assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED
    assert duration(seconds=1) == SECOND


def test_who_waits_for_other_states_sleeps_beside_samples_that_are_there(participant):
    """Goal: samples that a condition isn't about don't keep its waiter awake, of a wait set nor an iterator; those that
    it is about end the wait. Method: unread samples there, waits for read ones; the thread's processor time."""
    writer, reader = pair(participant)
    write_all(writer, [b"a", b"b"])
    condition = ReadCondition(reader, SampleState.Read | ViewState.Any | InstanceState.Any)
    waitset = WaitSet(participant)
    waitset.attach(condition)
    used_s = time.thread_time()
    assert waitset.wait(SECOND // 5) == 0
    assert list(reader.take_iter(condition, timeout=SECOND // 5)) == []
    assert time.thread_time() - used_s < 0.15
    timer = threading.Timer(0.05, writer.write, (b"c",))
    timer.start()
    assert waitset.wait(SECOND // 5) == 0
    timer.join()
    timer = threading.Timer(0.05, reader.read, (1,))
    timer.start()
    wait_until(lambda: waitset.wait(SECOND // 20) == 1)
    assert reader.take_one(condition, timeout=LONG) == b"a"
    timer.join()
