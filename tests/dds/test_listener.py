"""Listeners.

Goal: callbacks on their own thread, able to do anything, called once for what has come, and for all of it.
Method: one embedded node; events instead of sleeping.
"""

import logging
import threading

import pytest

from dds import (
    DataReader,
    DataWriter,
    DomainParticipant,
    Listener,
    Subscriber,
    Topic,
    isgoodentity,
)
from dds.listener import CALLBACKS
from tests.dds.test_sub import LONG, pair, write_all
from tests.support import wait_until


def settle(reader, looked):
    """Returns when the listener thread, which counts in `looked` what is posted, has been all the way round."""
    for _ in range(2):
        before = len(looked)
        reader._runtime.dispatcher.post(reader, "on_sample_lost")
        wait_until(lambda before=before: len(looked) > before)


def test_data_comes_on_a_thread_of_its_own(participant):
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


def test_one_take_in_each_call_gets_everything(participant):
    got = []
    topic = Topic(participant, "t", bytes)
    writer = DataWriter(participant, topic)
    listener = Listener(on_data_available=lambda reader: got.append(reader.take_next()))
    reader = DataReader(participant, topic, listener=listener)
    writer.write_many([b"%d" % i for i in range(50)])
    wait_until(lambda: len(got) >= 50)
    assert got == [b"%d" % i for i in range(50)]
    assert reader.take(1) == []


def test_a_callback_that_takes_nothing_is_not_called_for_ever(participant):
    calls, looked = [], []
    topic = Topic(participant, "t", bytes)
    writer = DataWriter(participant, topic)
    reader = DataReader(participant, topic, listener=Listener(
        on_data_available=calls.append, on_sample_lost=lambda *_: looked.append(1)))
    write_all(writer, [b"a"])
    wait_until(lambda: len(calls) == 1)
    write_all(writer, [b"b"])
    wait_until(lambda: len(calls) == 2)
    settle(reader, looked)
    assert reader.take(10) == [b"a", b"b"]
    assert len(calls) == 2


def test_what_comes_while_the_listener_wakes_up_is_announced_once(participant, monkeypatch):
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
    settle(reader, looked)
    assert len(calls) == 1 and reader.take(10) == [b"a"]


def test_an_exception_is_logged_and_the_next_callback_runs(participant, caplog):
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


def test_a_callback_may_close_its_own_entity_and_make_others(participant):
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


def test_a_callback_may_close_its_participant():
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


def test_statuses_go_to_the_nearest_that_handles_them(participant):
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


def test_data_on_readers_goes_first(participant):
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


def test_replacing_listeners(participant):
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


def test_what_is_set_adds_to_what_there_is(participant):
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


def test_a_listener_that_is_given_is_taken_as_it_is_then(participant):
    heard = []
    given = Listener(on_data_available=lambda r: heard.extend(r.take(9)))
    topic = Topic(participant, "t", bytes)
    reader = DataReader(participant, topic, listener=given)
    given.reset()
    DataWriter(participant, topic).write(b"1")
    wait_until(lambda: heard == [b"1"])
    assert isgoodentity(reader)


def test_a_slow_callback_loses_nothing(participant):
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


def test_callbacks_by_name():
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


def test_a_reader_that_is_closed_while_it_is_looked_at_ends_no_callbacks(participant):
    """Method: it is closed between the listener thread's look whether it is open and its next step."""
    calls = []
    topic = Topic(participant, "t", bytes)
    writer, closing = DataWriter(participant, topic), DataReader(participant, topic, listener=Listener(
        on_data_available=lambda reader: reader.take(10)))
    arm = closing._source.arm

    def close_and_arm():
        closing.close()
        return arm()

    closing._source.arm = close_and_arm
    other = DataReader(participant, topic, listener=Listener(on_data_available=lambda reader: calls.extend(
        reader.take(10))))
    writer.write(b"a")
    wait_until(lambda: not closing._open)
    writer.write(b"b")
    wait_until(lambda: calls == [b"a", b"b"])
    assert other._open


def test_a_callback_that_wants_the_program_to_end_ends_no_callbacks(participant, caplog):
    """sys.exit() ends the thread that calls it, in Python; here all callbacks of the participant have one."""
    got = []

    class Leaving(Listener):
        def on_data_available(self, reader):
            got.extend(reader.take(9))
            raise SystemExit("a library wants the program to end")

    topic = Topic(participant, "t", bytes)
    reader, writer = DataReader(participant, topic, listener=Leaving()), DataWriter(participant, topic)
    for number in range(3):
        writer.write(b"%d" % number)
        wait_until(lambda number=number: len(got) == number + 1)
    assert caplog.text.count("on_data_available of") == 3 and reader.read(1) == []
