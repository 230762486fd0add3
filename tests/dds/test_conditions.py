"""Conditions and wait sets.

Goal: a wait set sleeps until one of what is attached is triggered, and then wakes. Method: one embedded node; events
instead of sleeping.
"""

import asyncio
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSStatus,
    Entity,
    GuardCondition,
    InstanceState,
    QueryCondition,
    ReadCondition,
    SampleState,
    Subscriber,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.readers.link import ReaderLink
from tests.dds.test_sub import ANY, LONG, SECOND, pair, write_all
from tests.support import wait_until


def test_a_condition_knows_what_its_program_has_just_written(participant):
    writer, reader = pair(participant)
    unread = ReadCondition(reader, ViewState.Any | InstanceState.Any | SampleState.NotRead)
    for number in range(20):
        assert not unread.triggered
        writer.write(b"%d" % number)
        assert unread.triggered
        assert reader.take(2) == [b"%d" % number]


def test_conditions_of_a_reader(participant):
    writer, reader = pair(participant)
    waitset = WaitSet(participant)
    for wrong in (None, "1", 1.5):
        with pytest.raises(TypeError, match="a mask is an int"):
            ReadCondition(reader, wrong)
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


def test_a_waiting_wait_set_uses_no_cpu(participant):
    writer, reader = pair(participant)
    write_all(writer, [b"x"])
    waitset = WaitSet(participant)
    waitset.attach(ReadCondition(reader, SampleState.Read))  # not triggered, though there is data
    start = time.thread_time()
    assert waitset.wait(duration(milliseconds=300)) == 0
    assert time.thread_time() - start < 0.05


def test_guards(participant):
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


def test_entities_by_status(participant):
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


def test_several_waiters_of_one_reader_all_wake(participant):
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


def test_triggered_by_hand_and_until(participant):
    waitset = WaitSet(participant)
    threading.Timer(0.02, lambda: waitset.set_trigger(True)).start()
    assert waitset.wait(LONG) == 1
    waitset.set_trigger(False)
    assert waitset.wait_until(time.time_ns() + duration(milliseconds=5)) == 0


def test_without_a_thread(participant):
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


def test_what_cannot_be_attached(participant):
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


def test_closing_ends_a_wait(participant):
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


def test_closing_the_one_reader_that_is_waited_for_ends_no_wait(participant):
    """Goal: it is waited for no more, and the rest goes on. Method: a wait that drives the node by this reader."""
    reader = DataReader(participant, Topic(participant, "topic", bytes))
    waitset, guard, found = WaitSet(participant), GuardCondition(participant), []
    waitset.attach(ReadCondition(reader, ANY))
    waitset.attach(guard)
    thread = threading.Thread(target=lambda: found.append(waitset.wait(LONG)), daemon=True)
    thread.start()
    wait_until(lambda: waitset._known)
    reader.close()
    source = reader._source
    log = source.newest.log
    assert log.is_gone
    there = SimpleNamespace(is_gone=False, wait_or=log.wait_or)  # as one finds it who has looked just before it closed
    with patch.object(source, "newest", SimpleNamespace(log=there)):
        source.wait(waitset._waker, 0, 0)
    guard.set(True)
    thread.join(10)
    assert found == [1]


@pytest.mark.parametrize("what", ["entity", "condition", "status", "parent"])
def test_what_is_closed_is_no_longer_attached(participant, what):
    """Goal: neither a wait nor memory is lost to what was closed, in whatever way it was attached."""
    topic = Topic(participant, "topic", bytes)
    subscriber = Subscriber(participant)
    reader, other = DataReader(subscriber, topic), DataReader(participant, topic)
    waitset, left = WaitSet(participant), ReadCondition(other, ANY)
    condition = ReadCondition(reader, ANY)
    waitset.attach({"entity": reader, "condition": condition, "status": reader.status_condition,
                    "parent": condition}[what])
    waitset.attach(left)
    (subscriber if what == "parent" else reader).close()
    assert waitset.wait(0) == 0
    assert waitset.get_entities() == [left] and waitset.attached == [(left, 0)]
    assert len(waitset._hubs) == 1
    DataWriter(participant, topic).write(b"x")
    assert waitset.wait(LONG) == 1


def test_what_closes_just_when_it_is_looked_at_ends_no_wait(participant):
    reader = DataReader(participant, Topic(participant, "topic", bytes))
    waitset, guard = WaitSet(participant), GuardCondition(participant)
    waitset.attach(reader)
    waitset.attach(guard)
    guard.set(True)

    def closes():
        reader.close()
        return reader.read_status() != 0

    with patch.object(reader, "_triggers", closes):
        assert waitset.wait(LONG) == 1
    assert waitset.get_entities() == [guard]


def test_all_that_threads_make_and_attach_is_there(participant):
    """Goal: neither an entity of a participant, nor one that is waited for, is forgotten because another thread makes,
    or attaches, one at the same time. Method: threads that take turns as often as Python lets them."""
    count, threads, made = 100, 4, []
    waitset, watched = WaitSet(participant), GuardCondition(participant)
    others = [WaitSet(participant) for _ in range(count * threads)]
    before, interval = len(participant.get_children()), sys.getswitchinterval()

    def work(mine):
        for other in mine:
            guard = GuardCondition(participant)
            made.append(guard)
            waitset.attach(guard)
            other.attach(watched)

    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=work, args=(others[at::threads],)) for at in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert len(made) == count * threads
    assert len(participant.get_children()) == before + len(made)
    assert len(waitset.get_entities()) == len(made)
    watched.set(True)
    assert all(one.wait(0) == 1 for one in others) and all(one._waker.fd >= 0 for one in others)
    assert len(watched._watchers) == len(others)


@pytest.mark.slow
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


def test_a_reader_that_is_being_made_is_not_looked_at(participant, monkeypatch):
    """Method: the subscriber is asked when the reader's link is made, before the reader is complete."""
    seen = []

    def made(*arguments):
        seen.append((subscriber.get_status_changes(), subscriber._readers(), subscriber.notify_readers()))
        return ReaderLink(*arguments)

    topic, subscriber = Topic(participant, "t", bytes), Subscriber(participant)
    monkeypatch.setattr("dds.readers.reader.ReaderLink", made)
    reader = DataReader(subscriber, topic)
    assert seen == [(0, [], None)] and subscriber._readers() == [reader]


def test_a_subscriber_is_waited_for(participant):
    """DATA_ON_READERS: a wait set with a subscriber, or its StatusCondition, hears of what comes to any of its readers,
    one that is made while it waits included; taking the status, or the samples, ends it until there is more."""
    topic, subscriber = Topic(participant, "t", bytes), Subscriber(participant)
    writer, first = DataWriter(participant, topic), DataReader(subscriber, topic)
    by_mask, by_condition = WaitSet(participant), WaitSet(participant)
    by_mask.attach(subscriber)
    subscriber.status_condition.set_enabled_statuses(DDSStatus.DataOnReaders)
    by_condition.attach(subscriber.status_condition)
    assert by_mask.wait(0) == by_condition.wait(0) == 0 == subscriber.get_status_changes()
    threading.Timer(0.05, writer.write, [b"1"]).start()
    begun = time.monotonic_ns()
    assert by_mask.wait(LONG) == by_condition.wait(LONG) == 1
    assert time.monotonic_ns() - begun < LONG  # at its end it would have looked once more
    assert subscriber.get_status_changes() == DDSStatus.DataOnReaders
    assert subscriber.take_status() == DDSStatus.DataOnReaders and by_mask.wait(0) == by_condition.wait(0) == 0
    write_all(writer, [b"2"])
    assert by_condition.wait(0) == 1 and first.read_status(DDSStatus.DataAvailable)
    assert first.take(9) == [b"1", b"2"] and by_condition.wait(0) == 0

    found = []
    waiting = threading.Thread(target=lambda: found.append(by_mask.wait(LONG)))
    waiting.start()
    first.close()
    second = DataReader(subscriber, topic)
    write_all(writer, [b"3"])
    waiting.join()
    assert found == [1] and second.take(9) == [b"3"] and by_mask.wait(0) == 0
    for one in (by_mask, by_condition):
        one.close()
    assert second._hub._waiters == ()


def test_a_second_thread_is_told_that_one_waits_already(participant):
    """DDS 1.4, 2.2.2.1.6.3. It would sleep on when the first one is woken."""
    waitset, guard = WaitSet(participant), GuardCondition(participant)
    waitset.attach(guard)
    woken = []
    thread = threading.Thread(target=lambda: woken.append(waitset.wait(LONG)))
    thread.start()
    wait_until(waitset._waits.locked)
    for wait in (lambda: waitset.wait(0), lambda: asyncio.run(waitset.wait_async(0))):
        with pytest.raises(DDSException, match="make a WaitSet for each") as refused:
            wait()
        assert refused.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    guard.set(True)
    thread.join(20)
    assert woken == [1] and waitset.wait(0) == asyncio.run(waitset.wait_async(0)) == 1
