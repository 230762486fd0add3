"""Participants across the death of their node.

Goal: without `reattach`, everything that is blocked or called says so within a second, and statuses and listeners tell;
with it, programs go on: readers in the same order without losing or repeating a sample that is still there, writers
with a report of what was in doubt. Method: real daemons that are killed; programs as in real life, in this process.
"""

import asyncio
import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

import dds
from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSNodeLost,
    DDSStatus,
    DDSTimeout,
    DDSUnacknowledged,
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
from tests.support import halt, wait_until

VOLATILE = Qos(Policy.Durability.TransientLocal)


@pytest.fixture
def group(runtime_dir):
    with daemons(runtime_dir, 3) as running:
        yield running


class Source:
    """A writer at node 3 that writes numbers all the time, from a thread, until `stop`."""

    def __init__(self, name="topic", qos=VOLATILE, pause_s=0.0005, payload=lambda n: b"%d" % n):
        self.participant = DomainParticipant(node_id=3)
        self.topic = Topic(self.participant, name, bytes, qos=qos, history_bytes=4 << 20)
        self.writer = DataWriter(self.participant, self.topic)
        self.count = 0
        self._stop = threading.Event()
        self._pause_s, self._payload = pause_s, payload
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._stop.wait(self._pause_s):
            self.writer.write(self._payload(self.count))
            self.count += 1

    def stop(self):
        self._stop.set()
        self._thread.join(20)
        return self.count

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self.participant.close()


def numbers(count, first=0):
    return [b"%d" % n for n in range(first, count)]


# ---- without reattaching


@pytest.mark.slow
def test_everything_that_is_blocked_or_called_says_that_the_node_died(group):
    """Goal: a clear error within a second, from everything. Method: one thread in each call that waits, an event loop
    in two more; then kill -9, and each call again."""
    with DomainParticipant(node_id=2) as other:
        blocker = DataReader(other, Topic(other, "full", bytes, size_max=64, window=4))
        participant = DomainParticipant(node_id=1)
        reader = DataReader(participant, Topic(participant, "quiet", bytes))
        full = DataWriter(participant, Topic(participant, "full", bytes, size_max=64),
                          Qos(Policy.Reliability.Reliable(duration(seconds=30))), slots=2)
        with pytest.raises(DDSTimeout):
            short = DataWriter(participant, full.topic, Qos(Policy.Reliability.Reliable(duration(milliseconds=200))))
            while True:
                short.write_many([b"x" * 64] * 100)
        wait_until(lambda: _fill(full))
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
                outcome[i] = error, time.monotonic()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
        woken = []
        threads.append(threading.Thread(target=lambda: woken.append(wait_for_status())))
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # not needed for the result: most of them should be waiting by now
        killed = time.monotonic()
        group[0].kill()
        for thread in threads:
            thread.join(10)
        assert [type(error) for error, _ in outcome] == [DDSNodeLost] * len(calls)
        assert max(at for _, at in outcome) - killed < 1.0
        assert all("node 1" in str(error) and "reattach=True" in str(error) for error, _ in outcome)
        assert woken == [1] and full.get_liveliness_lost_status().total_count == 1
        for call in (*calls[:-2], lambda: Topic(participant, "more", bytes), reader.get_matched_publications):
            with pytest.raises(DDSNodeLost):
                call()
        assert participant.get_node_status().state is NodeState.LOST
        left = full.take_unacknowledged()
        assert left and left[0].sample == b"z" and full.take_unacknowledged() == []
        participant.close()
        assert len(blocker.take(1)) == 1


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


def _fill(writer):
    try:
        writer._inbox.write(b"z", 0, 0.0)
    except TimeoutError:
        return True


def waitset_of(participant, entity):
    waitset = WaitSet(participant)
    waitset.attach(entity)
    return waitset


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
        killed = time.monotonic()
        group[0].kill()
        wait_until(lambda: "node" in heard and "lost" in heard and heard["changed"][-1].alive_count == 0
                   and heard["matched"][-1].current_count == 0 and heard["published"][-1].current_count == 0)
        assert time.monotonic() - killed < 1.0
        assert heard["node"][0].state is NodeState.LOST and "node 1" in heard["node"][0].text
        assert heard["node"][0].lost_count == 1 and heard["lost"][0].total_count == 1
        assert reader.get_subscription_matched_status().current_count == 0
        assert writer.get_publication_matched_status().current_count == 0


# ---- going on


@pytest.mark.slow
@pytest.mark.parametrize("how", ["take", "iterate", "batch", "read", "keep last", "listener", "waitset", "async"])
def test_a_reader_goes_on_in_order_whatever_way_it_reads(group, how):
    """Goal: nothing missing, nothing twice, in order, over the death of two nodes. Method: the reader's node is killed
    twice while a writer elsewhere goes on; the samples are numbers."""
    got = []
    done = threading.Event()
    with Source() as source, DomainParticipant(reattach=True) as participant:
        topic = Topic(participant, "topic", bytes)
        if how == "listener":
            reader = DataReader(participant, topic, listener=Listener(
                on_data_available=lambda one: got.extend(one.take(100))))
        elif how == "keep last":
            reader = DataReader(participant, topic, Qos(Policy.History.KeepLast(100_000)))
        else:
            reader = DataReader(participant, topic)

        def read():
            if how == "take" or how == "keep last":
                while not done.wait(0.0005):  # or it would keep the interpreter from the writer
                    got.extend(reader.take(10))
            elif how == "iterate":
                got.extend(reader.take_iter(timeout=duration(seconds=2)))
            elif how == "batch":
                while not done.wait(0.0005):
                    with reader.take_batch(50) as batch:
                        got.extend(bytes(batch.payload(i)) for i in range(len(batch)))
            elif how == "read":
                while not done.wait(0.0005):
                    got.extend(reader.read(20, condition=dds.ReadCondition(reader, SampleState.NotRead)))
                    if len(got) % 7 == 0:
                        reader.take(10_000, condition=dds.ReadCondition(reader, SampleState.Read))
            elif how == "waitset":
                waitset = waitset_of(participant, dds.ReadCondition(reader, SampleState.NotRead))
                while not done.is_set():
                    if waitset.wait(duration(milliseconds=100)):
                        got.extend(reader.take(30))
            elif how == "async":
                asyncio.run(collect())

        async def collect():
            async for sample in reader.take_aiter(timeout=duration(seconds=2)):
                got.append(sample)

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: len(got) > 100)
        for number, victim in enumerate(group[:2]):
            assert participant.session.node_id == number + 1
            victim.kill()
            wait_until(lambda n=number: participant.get_node_status().reattached_count == n + 1)
            before = len(got)
            wait_until(lambda n=before: len(got) > n + 200)
        total = source.stop()
        wait_until(lambda: got and int(got[-1]) == total - 1)
        done.set()
        thread.join(10)
        assert not thread.is_alive()
        assert got == numbers(total, int(got[0]))
        assert participant.session.node_id == 3
        status = reader.get_reattached_status()
        assert (status.total_count, status.gap_count, status.continued) == (2, 0, True)
        assert reader.get_sample_lost_status().total_count == 0


def test_an_unordered_topic_brings_nothing_twice(group):
    """Goal: where there is no order to go on in, samples may be missing, and none comes again. Method: the next node
    has had a reader of the topic all the time, so that its log still holds what this reader has had."""
    best_effort = Qos(Policy.Reliability.BestEffort)
    with (Source(qos=best_effort) as source, DomainParticipant(node_id=2) as other,
          DomainParticipant(reattach=True) as participant):
        reader = DataReader(participant, Topic(participant, "topic", bytes))
        there = DataReader(other, Topic(other, "topic", bytes))
        got = []
        wait_until(lambda: got.extend(reader.take(100)) or len(got) > 100)
        group[0].kill()
        wait_until(lambda: participant.get_node_status().reattached_count == 1)
        before = len(got)
        wait_until(lambda: got.extend(reader.take(100)) or len(got) > before + 200)
        source.stop()
        assert participant.session.node_id == 2 and there.take(1)
        values = [int(one) for one in got]
        assert all(one < following for one, following in itertools.pairwise(values))
        assert reader.get_reattached_status().gap_count == 1


def test_writers_go_on_and_tell_what_is_in_doubt(group):
    """Goal: what was acknowledged is at every survivor; what was not is reported once, with the samples; nothing is
    sent twice. Method: nothing is acknowledged while another member stands still; then the writer's node is killed. The
    writer writes what is in doubt again, marked."""
    with (DomainParticipant(node_id=3) as other, DomainParticipant(node_id=2) as third,
          DomainParticipant(reattach=True) as participant):
        reader = DataReader(other, Topic(other, "topic", bytes))
        slow = DataReader(third, Topic(third, "topic", bytes), Qos(Policy.History.KeepLast(1)))
        writer = DataWriter(participant, Topic(participant, "topic", bytes))
        assert writer.write_many([b"%d" % n for n in range(1000)]) == 1000 and writer.wait_for_acks(LONG)
        halt(group[1].pid)
        for n in range(1000, 1020):
            writer.write(b"%d" % n)
        group[0].kill()
        os.kill(group[1].pid, signal.SIGCONT)
        with pytest.raises(DDSUnacknowledged) as raised:
            writer.wait_for_acks(LONG)
        assert [(one.index, one.sample) for one in raised.value.samples] == [(n, b"%d" % n) for n in range(1000, 1020)]
        assert all(one.timestamp > 0 for one in raised.value.samples)
        for one in raised.value.samples:
            writer.write(b"again " + one.sample)
        assert writer.wait_for_acks(LONG)
        got = reader.take(10_000)
        at = got.index(b"again 1000")
        assert got[:at] == numbers(at) and 1000 <= at <= 1020  # of what is in doubt: a part from its beginning
        assert got[at:] == [b"again %d" % n for n in range(1000, 1020)]
        assert writer.get_unacknowledged_status().total_count == 20 and writer.take_unacknowledged() == []
        assert writer.get_liveliness_lost_status().total_count == 1
        assert slow.take(1) == got[-1:]


@pytest.mark.slow
def test_every_call_of_a_writer_tells_what_is_in_doubt_once(group, runtime_dir):
    """Goal: no way of writing passes over what is in doubt, and none tells it twice; best effort only counts. Method:
    as above, each call in turn."""
    calls = {
        "write": lambda writer: writer.write(b"x"), "write_many": lambda writer: writer.write_many([b"x"] * 3),
        "loan": lambda writer: writer.loan(1), "acks": lambda writer: writer.wait_for_acks(LONG),
        "publisher": lambda writer: writer.publisher.wait_for_acks(LONG),
        "commit": lambda writer: None, "taken": lambda writer: None, "best effort": lambda writer: None}
    with DomainParticipant(node_id=2) as third, DomainParticipant(node_id=1, reattach=True) as participant:
        newest = Qos(Policy.History.KeepLast(1), Policy.Reliability.BestEffort)
        slow = DataReader(third, Topic(third, "topic", bytes), newest)
        topic = Topic(participant, "topic", bytes)
        writers = {name: DataWriter(participant, topic) for name in calls if name != "best effort"}
        writers["best effort"] = DataWriter(participant, topic, Qos(Policy.Reliability.BestEffort))
        for writer in writers.values():
            writer.write(b"before")
            assert writer.wait_for_acks(LONG)
        halt(group[1].pid)
        for name, writer in writers.items():
            writer.write(name.encode())
        loan = writers["commit"].loan(3)
        group[0].kill()
        os.kill(group[1].pid, signal.SIGCONT)
        wait_until(lambda: participant.get_node_status().lost_count == 1)
        assert [one.sample for one in writers["taken"].take_unacknowledged()] == [b"taken"]
        again = Daemon(1, runtime_dir=runtime_dir).wait_ready()
        group.append(again)
        try:
            calls["commit"] = lambda writer: loan.commit()
            wait_until(lambda: participant.get_node_status().reattached_count == 1)
            for name, writer in writers.items():
                if name in ("taken", "best effort"):
                    writer.write(b"goes on")
                else:
                    with pytest.raises(DDSUnacknowledged) as raised:
                        calls[name](writer)
                    assert [one.sample for one in raised.value.samples] == [name.encode()]
                    writer.write(b"goes on")
                assert writer.wait_for_acks(LONG)
                assert writer.get_unacknowledged_status().total_count == 1
            assert slow.take(1) == [b"goes on"]
        finally:
            participant.close()
            again.stop()


def test_a_quiet_program_notices_nothing(group):
    """Goal: a program whose samples are acknowledged needs no line of code for it: write, take, loans, batches, waiting
    go on. Method: everything once, kill, everything again; also what was bound before."""
    record = np.dtype([("n", "i4")])
    with DomainParticipant(reattach=True) as participant:
        topic, table = Topic(participant, "topic", bytes), Topic(participant, "table", record)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        rows, row_writer = DataReader(participant, table), DataWriter(participant, table)
        anchor = DomainParticipant(node_id=2)
        anchors = [DataReader(anchor, Topic(anchor, "topic", bytes), Qos(Policy.History.KeepLast(1))),
                   DataReader(anchor, Topic(anchor, "table", record), Qos(Policy.History.KeepLast(1)))]
        bound = writer.write
        guid = writer.get_guid()
        loan = None

        def everything():
            writer.write(b"one")
            bound(b"two")
            assert writer.write_many([b"three", b"four"]) == 2
            assert writer.write_many(iter([b"five"])) == 1
            with writer.loan(3) as data:
                data[:] = b"six"
            assert [reader.take_one(timeout=LONG) for _ in range(6)] == [
                b"one", b"two", b"three", b"four", b"five", b"six"]
            assert row_writer.write_many(np.array([(1,), (2,), (3,)], record)) == 3
            with row_writer.loan() as row:
                row["n"] = 4
            wait_until(lambda: rows._unread() == 4)
            with rows.take_batch(10) as batch:
                assert batch.array["n"].tolist() == [1, 2, 3, 4]
            assert writer.wait_for_acks(LONG) and row_writer.wait_for_acks(LONG)

        everything()
        loan = writer.loan(5)
        loan.data[:] = b"loan!"
        group[0].kill()
        wait_until(lambda: participant.session.node_id == 2 and reader._link.newest.session is participant.session)
        loan.commit()
        assert reader.take_one(timeout=LONG) == b"loan!"
        everything()
        assert writer.get_guid() != guid
        assert len(wait_until(lambda: len(reader.matched_pub) == 1 and reader.matched_pub)) == 1
        assert len(wait_until(lambda: len(writer.matched_sub) == 2 and writer.matched_sub)) == 2
        assert reader.get_reattached_status().gap_count == 0  # node 2 had the topic all the time
        assert len(anchors) == 2
        anchor.close()


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


def test_a_logged_topic_goes_on_over_the_death_of_all_its_nodes(runtime_dir, tmp_path):
    """Goal: journals bridge the death of the whole group: the reader goes on behind the last sample that it had, and is
    told that nothing is missing. Method: one daemon with a journal, killed with samples taken and samples not taken;
    then the same again."""
    logged = Qos(Policy.Durability.Persistent)
    arguments = ("--journal-dir", str(tmp_path))
    daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
    with DomainParticipant(reattach=True) as participant:
        try:
            topic = Topic(participant, "topic", bytes, qos=logged)
            reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
            count, got = 0, []
            for life in range(1, 4):
                for _ in range(50):
                    writer.write(b"%d" % count)
                    count += 1
                assert writer.wait_for_acks(LONG, persisted=True)
                got += [reader.take_one(timeout=LONG) for _ in range(30)]
                if life < 3:
                    daemon.kill()
                    daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
                    wait_until(lambda n=life: participant.get_node_status().reattached_count == n, 20)
            while len(got) < count:
                got.append(reader.take_one(timeout=LONG))
            assert got == numbers(count) and reader.take(1) == []
            status = reader.get_reattached_status()
            assert (status.total_count, status.gap_count) == (2, 0)
            late = DataReader(participant, topic)
            assert late.take(1000) == got
        finally:
            participant.close()
            daemon.stop()


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
        started = time.monotonic()
        participant.close()
        for thread in threads:
            thread.join(10)
        assert time.monotonic() - started < 3.0
        assert errors == [DDSException.DDS_RETCODE_ALREADY_DELETED] * 2
        wait_until(lambda: not any(one.name == "dds reattaching" for one in threading.enumerate()))


def test_an_embedded_node_that_fails_is_replaced(runtime_dir):
    """Goal: embedded nodes are replaced too. Method: let the node fail as by an error of its own."""
    from spindle.errors import NodeStopped

    with DomainParticipant(node_id=3, embedded=True, runtime_dir=runtime_dir) as other, DomainParticipant(
            node_id=4, embedded=True, runtime_dir=runtime_dir, reattach=True) as participant:
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


def test_a_forked_child_does_not_wait_for_a_node(group):
    """Goal: after fork() a child that uses its parent's participant gets an error, and no node. Method: fork, read."""
    with DomainParticipant(reattach=True) as participant:
        reader, code = DataReader(participant, Topic(participant, "topic", bytes)), 1
        if (child := os.fork()) == 0:
            try:
                for call in (lambda: reader.take_one(timeout=LONG), reader.take, reader.read):
                    with pytest.raises(DDSNodeLost):
                        call()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert participant.get_node_status().state is NodeState.ATTACHED


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
