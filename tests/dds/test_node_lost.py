"""Participants whose node died: what they say, and how they come to the next.

Goal: without `reattach`, everything that is blocked or called says so within a second, and statuses and listeners tell;
with it, calls wait for the next node as long as the program wants, an embedded node is replaced, and closing is quick
meanwhile.
Method: real daemons that are killed; programs as in real life, in this process.
"""

import asyncio
import os
import threading
import time

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSNodeLost,
    DDSStatus,
    DDSTimeout,
    DomainParticipant,
    Listener,
    NodeState,
    Policy,
    Qos,
    QueryCondition,
    SampleState,
    Topic,
    WaitSet,
    duration,
)
from tests.dds.test_sub import LONG
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until

VOLATILE = Qos(Policy.Durability.TransientLocal)


# ---- without reattaching


@pytest.mark.slow
def test_everything_that_is_blocked_or_called_says_that_the_node_died(group):
    """Goal: a clear error, from everything. Method: one thread in each call that waits, an event loop in two more; then
    kill -9, and each call again."""
    with DomainParticipant(node_id=2) as other:
        blocker = DataReader(other, Topic(other, "full", bytes, size_max=64, window=4))
        participant = DomainParticipant(node_id=1)
        reader = DataReader(participant, Topic(participant, "quiet", bytes))
        full = DataWriter(participant, Topic(participant, "full", bytes, size_max=64),
                          Qos(Policy.Reliability.Reliable(duration(seconds=30))), slots=2)
        fill(full)
        condition = QueryCondition(reader, SampleState.NotRead, lambda _: True)
        waitset, statuses = WaitSet(participant), WaitSet(participant)
        waitset.attach(condition)
        statuses.attach(full)
        full.take_status()

        def wait_for_status():
            full.set_status_mask(DDSStatus.LivelinessLost)
            return statuses.wait(LONG)

        async def iterate():
            async for _ in reader.take_aiter():
                pass

        calls = [
            lambda: reader.take_one(timeout=LONG), lambda: next(reader.read_iter()), lambda: waitset.wait(LONG),
            lambda: full.write(b"y"), lambda: full.loan(3), lambda: full.write_many([b"y"] * 9),
            lambda: full.wait_for_acks(LONG), lambda: asyncio.run(iterate()),
            lambda: asyncio.run(waitset_of(participant, reader).wait_async(LONG))]
        outcome = [None] * len(calls)

        def run(i):
            try:
                calls[i]()
            except Exception as error:
                outcome[i] = error

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
        woken = []
        threads.append(threading.Thread(target=lambda: woken.append(wait_for_status())))
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # not needed for the result: most of them should be waiting by now
        group[0].kill()
        for thread in threads:
            thread.join(10)
        assert [type(error) for error in outcome] == [DDSNodeLost] * len(calls)
        assert all("node 1" in str(error) and "reattach=True" in str(error) for error in outcome)
        assert woken == [1] and full.get_liveliness_lost_status().total_count == 1
        for call in (*calls[:-2], lambda: Topic(participant, "more", bytes), reader.get_matched_publications):
            with pytest.raises(DDSNodeLost):
                call()
        assert participant.get_node_status().state is NodeState.LOST
        left = full.take_unacknowledged()
        assert left and left[0].sample == b"z" and full.take_unacknowledged() == []
        participant.close()
        assert len(blocker.take(1)) == 1


@pytest.mark.slow
def test_a_call_that_comes_while_another_finds_the_node_gone_is_told_the_same(group):
    """Method: the other one has got as far as to know that its sample is in doubt, and has told nobody yet."""
    with DomainParticipant(node_id=2) as other, DomainParticipant(node_id=1) as participant:
        blocker = DataReader(other, Topic(other, "full", bytes, size_max=64, window=4))
        writer = DataWriter(participant, Topic(participant, "full", bytes, size_max=64), slots=2)
        fill(writer)
        group[0].kill()
        wait_until(lambda: writer._inbox.is_gone)
        writer._link.bury()
        for call in (lambda: writer.write(b"y"), lambda: writer.write_many([b"y"] * 9), lambda: writer.loan(3),
                     lambda: writer.wait_for_acks(LONG)):
            writer._link._untold = True
            with pytest.raises(DDSNodeLost, match=r"samples had not been acknowledged: take_unacknowledged\(\) has"):
                call()
        assert writer.take_unacknowledged() and blocker.take(1)


@pytest.mark.slow
def test_a_wait_set_hears_a_status_before_it_fails(group, monkeypatch):
    """Method: the statuses change only after the wait set has looked at a node that is gone."""
    participant = DomainParticipant(node_id=1)
    writer = DataWriter(participant, Topic(participant, "topic", bytes))
    writer.set_status_mask(DDSStatus.LivelinessLost)
    waitset = WaitSet(participant)
    waitset.attach(writer)
    runtime, looked = participant._runtime, threading.Event()
    tell, count = runtime.node_changed, waitset._count

    def looking():
        if runtime.session.gone and runtime.attachment.status.state is NodeState.LOST:
            looked.set()
        return count()

    def told_late(lost):
        waitset._waker.ring()
        assert looked.wait(10)
        tell(lost)

    monkeypatch.setattr(waitset, "_count", looking)
    monkeypatch.setattr(runtime, "node_changed", told_late)
    group[0].kill()
    assert waitset.wait(LONG) == 1 and writer.get_liveliness_lost_status().total_count == 1
    with pytest.raises(DDSNodeLost):
        waitset.wait(LONG)
    participant.close()


def fill(writer):
    """Writes to a topic whose reader takes nothing, until the topic and the writer's ring are full: nothing has gone on
    for so long that it isn't the machine that was busy."""
    with pytest.raises(DDSTimeout):
        short = DataWriter(writer.publisher.participant, writer.topic,
                           Qos(Policy.Reliability.Reliable(duration(seconds=2))))
        while True:
            short.write_many([b"x" * 64] * 100)
    wait_until(lambda: has_no_room(writer))


def has_no_room(writer):
    """One sample more, if there is room."""
    try:
        writer._inbox.write(b"z", 0, 0.0)
    except TimeoutError:
        return True


def waitset_of(participant, entity):
    waitset = WaitSet(participant)
    waitset.attach(entity)
    return waitset


@pytest.mark.slow
def test_statuses_and_listeners_tell_that_the_node_died(group):
    """Goal: who only listens hears it too. Method: a listener on the participant counts calls; matches go to zero."""
    heard = {}

    def note(name):
        return lambda entity, status: heard.setdefault(name, []).append(status)

    with DomainParticipant(node_id=1, listener=Listener(
            on_node_changed=note("node"), on_liveliness_lost=note("lost"), on_liveliness_changed=note("changed"),
            on_subscription_matched=note("matched"), on_publication_matched=note("published"))) as participant:
        topic = Topic(participant, "topic", bytes)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        wait_until(lambda: heard.get("matched") and heard.get("published"))
        group[0].kill()
        wait_until(lambda: "node" in heard and "lost" in heard and heard["changed"][-1].alive_count == 0
                   and heard["matched"][-1].current_count == 0 and heard["published"][-1].current_count == 0)
        assert heard["node"][0].state is NodeState.LOST and "node 1" in heard["node"][0].text
        assert heard["node"][0].lost_count == 1 and heard["lost"][0].total_count == 1
        assert reader.get_subscription_matched_status().current_count == 0
        assert writer.get_publication_matched_status().current_count == 0


# ---- coming to the next


@pytest.mark.slow
def test_calls_wait_for_the_next_node(runtime_dir):
    """Goal: a program with one daemon outlives its restart: reads wait, writes wait up to max_blocking_time, new
    entities are made at the new node; that the order began anew is said. Method: kill, wait, start again."""
    with daemons(runtime_dir, 1) as (daemon,), DomainParticipant(reattach=True) as participant:
        topic = Topic(participant, "topic", bytes)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        impatient = DataWriter(participant, topic, Qos(Policy.Reliability.Reliable(duration(milliseconds=100))))
        writer.write(b"before")
        assert writer.wait_for_acks(LONG)
        daemon.kill()
        wait_until(lambda: participant.get_node_status().state is NodeState.REATTACHING)
        assert reader.take(5) == [b"before"] and reader.take(5) == []
        with pytest.raises(DDSTimeout, match="no other node"):
            impatient.write(b"x")
        with pytest.raises(DDSTimeout):
            reader.take_one(timeout=duration(milliseconds=100))
        assert WaitSet(participant).wait(duration(milliseconds=10)) == 0
        results = []
        threads = [threading.Thread(target=lambda work=work: results.append(work())) for work in (
            lambda: reader.take_one(timeout=LONG), lambda: writer.write(b"after"),
            lambda: DataWriter(participant, Topic(participant, "other", bytes)))]
        for thread in threads:
            thread.start()
        second = Daemon(1, runtime_dir=runtime_dir).wait_ready()
        try:
            for thread in threads:
                thread.join(20)
            assert b"after" in results and len(results) == 3
            assert reader.get_reattached_status().gap_count == 1  # nobody can tell what the old group had
            assert reader.get_sample_lost_status().total_count == 1
            assert participant.get_node_status().reattached_count == 1
        finally:
            participant.close()
            second.stop()


@pytest.mark.slow
def test_the_next_node_is_named_as_soon_as_it_is_used(group):
    """Goal: who could call through the next node reads its id, though other endpoints have yet to move there. Method:
    one of two readers is kept from moving for a while."""
    with DomainParticipant(reattach=True) as participant, DomainParticipant(node_id=2) as other:
        assert participant.get_node_status().node_id == 1
        topic = Topic(participant, "topic", bytes)
        reader, late = DataReader(participant, topic), DataReader(participant, topic)
        attachment = participant._runtime.attachment
        moved, go_on = threading.Event(), threading.Event()
        last = attachment._links[-1]
        switch = last.switch

        def wait_and_switch(session):
            moved.set()
            assert go_on.wait(30)
            switch(session)

        last.switch = wait_and_switch
        try:
            group[0].kill()
            assert moved.wait(30)
            DataWriter(other, Topic(other, "topic", bytes)).write(b"through the next")
            assert reader.take_one(timeout=LONG) == b"through the next"
            status = participant.get_node_status()
            assert status.state is NodeState.REATTACHING and status.node_id == attachment.session.node_id != 1
        finally:
            go_on.set()
        assert late.take_one(timeout=LONG) == b"through the next"
        wait_until(lambda: participant.get_node_status().state is NodeState.ATTACHED)


@pytest.mark.slow
def test_patience_ends(runtime_dir):
    """Goal: a participant may give up. Method: no daemon comes back; the program waits in a read."""
    states = []
    with daemons(runtime_dir, 1) as (daemon,), DomainParticipant(
            reattach=duration(milliseconds=300),
            listener=Listener(on_node_changed=lambda _, status: states.append(status.state))) as participant:
        reader = DataReader(participant, Topic(participant, "topic", bytes))
        daemon.kill()
        with pytest.raises(DDSNodeLost, match="no other node was found"):
            reader.take_one(timeout=LONG)
        wait_until(lambda: states and states[-1] is NodeState.LOST)
        with pytest.raises(DDSNodeLost):
            Topic(participant, "more", bytes)


@pytest.mark.slow
def test_closing_while_a_node_is_looked_for(runtime_dir):
    """Goal: close() is quick at any time, and wakes who waits. Method: close while a read and a write wait."""
    with daemons(runtime_dir, 1) as (daemon,):
        participant = DomainParticipant(reattach=True)
        topic = Topic(participant, "topic", bytes)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        errors = []

        def run(work):
            try:
                work()
            except DDSException as error:
                errors.append(error.code)

        daemon.kill()
        wait_until(lambda: participant.get_node_status().state is NodeState.REATTACHING)
        threads = [threading.Thread(target=run, args=(work,)) for work in (
            lambda: reader.take_one(timeout=LONG), lambda: writer.write(b"x"))]
        for thread in threads:
            thread.start()
        participant.close()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == [DDSException.DDS_RETCODE_ALREADY_DELETED] * 2
        wait_until(lambda: not any(one.name == "dds reattaching" for one in threading.enumerate()))


def test_an_embedded_node_that_fails_is_replaced(runtime_dir):
    """Goal: embedded nodes are replaced too. Method: let the node fail as by an error of its own."""
    from spindle.errors import NodeStopped

    with DomainParticipant.embedded(node_id=3, runtime_dir=runtime_dir) as other, DomainParticipant.embedded(
            node_id=4, runtime_dir=runtime_dir, reattach=True) as participant:
        topic = Topic(participant, "topic", bytes, qos=VOLATILE)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        theirs = DataReader(other, Topic(other, "topic", bytes))
        writer.write(b"one")
        assert reader.take_one(timeout=LONG) == theirs.take_one(timeout=LONG) == b"one"
        assert writer.wait_for_acks(LONG)
        node = participant.session._finalizer.peek()[2][1].__self__
        node._loop.call_soon_threadsafe(node._attachments.node.fail, NodeStopped("a test wants this"))
        wait_until(lambda: participant.get_node_status().reattached_count == 1, 20)
        writer.write(b"two")
        assert reader.take_one(timeout=LONG) == theirs.take_one(timeout=LONG) == b"two"
        assert reader.get_reattached_status().gap_count == 0
        assert "a test wants this" in participant.get_node_status().text


@pytest.mark.slow
def test_a_forked_child_does_not_wait_for_a_node(group):
    """Goal: after fork() a child that uses its parent's participant gets an error, and no node. Method: fork, read."""
    with DomainParticipant(reattach=True) as participant:
        reader, code = DataReader(participant, Topic(participant, "topic", bytes)), 1
        if (child := os.fork()) == 0:
            try:
                for call in (lambda: reader.take_one(timeout=LONG), reader.take, reader.read):
                    with pytest.raises(DDSNodeLost, match=r"before fork\(\)"):
                        call()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert participant.get_node_status().state is NodeState.ATTACHED


@pytest.mark.slow
def test_the_environment_can_ask_for_it(group, monkeypatch):
    """Goal: a program goes on without a change. Method: SPINDLE_REATTACH."""
    monkeypatch.setenv("SPINDLE_REATTACH", "1")
    with DomainParticipant() as participant:
        topic = Topic(participant, "topic", bytes, qos=VOLATILE)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        group[0].kill()
        wait_until(lambda: participant.get_node_status().reattached_count == 1)
        writer.write(b"x")
        assert reader.take_one(timeout=LONG) == b"x"
    monkeypatch.setenv("SPINDLE_REATTACH", "yes")
    with pytest.raises(DDSException, match="SPINDLE_REATTACH"):
        DomainParticipant()
