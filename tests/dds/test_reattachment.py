"""Readers and writers across the death of their node.

Goal: with `reattach`, programs go on: readers in the same order without losing or repeating a sample that is still
there, writers with a report of what was in doubt. Method: real daemons that are killed; programs as in real life, in
this process.
"""

import asyncio
import itertools
import os
import signal
import threading

import numpy as np
import pytest

import dds
from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSUnacknowledged,
    DomainParticipant,
    Listener,
    Policy,
    Qos,
    SampleState,
    Topic,
    duration,
)
from dds.readers.link import ReaderLink
from dds.writers.link import WriterLink
from spindle.errors import JournalError
from tests.dds.test_late_joiners import Track
from tests.dds.test_node_lost import VOLATILE, waitset_of
from tests.dds.test_sub import LONG
from tests.spindle.daemons import Daemon, daemons
from tests.support import halt, wait_until


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


@pytest.mark.parametrize("asked", ["declare_topic", "announce", "open_reader", "open_writer"])
def test_what_is_being_made_when_the_node_dies_is_made_at_the_next_one(group, monkeypatch, asked):
    """Method: the node is killed when it is asked for one part of it."""
    with DomainParticipant(reattach=True) as participant:
        first = participant.session
        question = getattr(first, asked)

        def asked_of_the_dying(*arguments, **more):
            group[first.node_id - 1].kill()
            wait_until(lambda: first.gone)
            return question(*arguments, **more)

        monkeypatch.setattr(first, asked, asked_of_the_dying)
        topic = Topic(participant, "topic", bytes)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        writer.write(b"x")
        assert reader.take_one(timeout=LONG) == b"x"
        assert participant.session is not first and participant.get_node_status().reattached_count == 1


@pytest.mark.parametrize("dies_too", [False, True], ids=["it lives", "it dies, too"])
def test_what_the_next_node_has_no_room_for_is_opened_there_later(group, monkeypatch, dies_too):
    """Goal: a full disk at the next node costs an endpoint no more than the time until there is room, and other
    endpoints nothing. Method: opening at nodes fails as with a full disk until the test says; `dies_too`: until then
    that node is killed as well."""
    full = True
    opens = {DataWriter: WriterLink._open, DataReader: ReaderLink._open_behind}

    def open_at(kind):
        def open_it(link, session, *rest):
            if full and link.spec.name == "logged":
                raise JournalError("no space left on the disk")
            return opens[kind](link, session, *rest)
        return open_it

    with DomainParticipant(reattach=True) as participant:
        ends = [(DataReader(participant, topic), DataWriter(participant, topic))
                for topic in (Topic(participant, name, bytes) for name in ("logged", "other"))]
        monkeypatch.setattr(WriterLink, "_open", open_at(DataWriter))
        monkeypatch.setattr(ReaderLink, "_open_behind", open_at(DataReader))

        def moves(times):
            group[participant.session.node_id - 1].kill()
            wait_until(lambda: participant.get_node_status().reattached_count == times, 20)
            for call in (lambda: ends[0][1].write(b"x"), lambda: ends[0][0].take_one(timeout=LONG)):
                with pytest.raises(DDSException, match="no space left on the disk"):
                    call()
            ends[1][1].write(b"y")
            assert ends[1][0].take_one(timeout=LONG) == b"y"

        moves(1)
        if dies_too:
            moves(2)
        full = False
        wait_until(lambda: ends[0][1]._link.error is ends[0][0]._source.error is None)
        wait_until(lambda: participant._runtime.attachment._thread is None)
        ends[0][1].write(b"z")
        assert ends[0][0].take_one(timeout=LONG) == b"z"


@pytest.mark.slow
def test_a_writer_goes_by_the_topic_that_another_group_has(runtime_dir):
    """Goal: late joiners get the last sample of each instance, though the writer's program had declared a topic that
    doesn't keep them so. Method: the only node is started anew, and another program there first."""
    with daemons(runtime_dir, 1) as nodes, DomainParticipant(reattach=True) as participant:
        writer = DataWriter(participant, Topic(participant, "topic", Track, qos=VOLATILE))
        may_go_on, attachment = threading.Event(), participant._runtime.attachment
        again = attachment._again
        attachment._again = lambda: again() if may_go_on.wait(20) else None
        nodes[0].kill()
        nodes[0] = Daemon(1, runtime_dir=runtime_dir).wait_ready()
        with DomainParticipant() as other:
            last = VOLATILE + Qos(Policy.History.KeepLast(1))
            topic = Topic(other, "topic", Track, qos=last)
            with DataReader(other, topic, last):
                may_go_on.set()
                wait_until(lambda: participant.get_node_status().reattached_count == 1)
                for number in range(8):
                    writer.write(Track(number % 4, number))
                assert writer.wait_for_acks(LONG)
                late = DataReader(other, topic, last)
                assert sorted(sample.height for sample in late.take(10)) == [4, 5, 6, 7]


@pytest.mark.parametrize("found", ["later", "at once", "never", "without it"])
def test_large_samples_that_a_reader_has_not_opened_come_from_the_next_node(runtime_dir, found):
    """Goal: their bytes went with the node, but nothing is lost that the next one has; without one, only they are.
    Method: the reader's node is killed when it has taken the first of six samples, of which every other one is large.
    Another node is found when the reader has read on, before that, never, or is a new one that has nothing."""
    with daemons(runtime_dir, 2) as nodes, DomainParticipant(reattach=True) as participant, \
            DomainParticipant(node_id=2) as other:
        qos = None if found == "without it" else VOLATILE
        reader = DataReader(participant, Topic(participant, "topic", bytes, qos=qos))
        writer = DataWriter(other, Topic(other, "topic", bytes, qos=qos))
        samples = [b"%d" % n + bytes(100_000 * (n % 2)) for n in range(6)]
        for one in samples:
            writer.write(one)
        assert writer.wait_for_acks(LONG) and reader.take(1) == samples[:1]
        may_go_on, attachment = threading.Event(), participant._runtime.attachment
        again = attachment._again

        def next_node():
            assert may_go_on.wait(20)
            if found == "never":
                raise PermissionError("you may not")
            return again()

        attachment._again = next_node
        first = participant.session
        assert first.node_id == 1
        nodes[0].kill()
        wait_until(lambda: first.gone)
        if found != "at once":
            assert reader.take(9) == []  # the next one is large
        may_go_on.set()
        if found == "never":
            wait_until(lambda: not attachment.hopeful)
            assert reader.take(9) == [b"2", b"4"] and reader.get_sample_lost_status().total_count == 3
            with pytest.raises(dds.DDSNodeLost):
                reader.take(9)
            return
        wait_until(lambda: reader.get_reattached_status().total_count == 1)
        if found == "without it":
            writer.write(b"6")
            assert [*itertools.islice(reader.take_iter(timeout=LONG), 3)] == [b"2", b"4", b"6"]
            assert reader.get_reattached_status().gap_count == 1
            return
        assert [*itertools.islice(reader.take_iter(timeout=LONG), 5)] == samples[1:]
        assert reader.get_sample_lost_status().total_count == reader.get_reattached_status().gap_count == 0


def test_large_samples_are_not_lost_while_the_next_node_has_no_room_for_their_reader(runtime_dir, monkeypatch):
    """Goal: it keeps its place in front of them. Method: opening a reader fails there until the test says."""
    full, opens = True, ReaderLink._open_behind

    def open_behind(link, *rest):
        if full:
            raise JournalError("no space left on the disk")
        return opens(link, *rest)

    monkeypatch.setattr(ReaderLink, "_open_behind", open_behind)
    with daemons(runtime_dir, 2) as nodes, DomainParticipant(reattach=True) as participant, \
            DomainParticipant(node_id=2) as other:
        reader = DataReader(participant, Topic(participant, "topic", bytes, qos=VOLATILE))
        writer = DataWriter(other, Topic(other, "topic", bytes, qos=VOLATILE))
        samples = [b"%d" % n + bytes(100_000 * (n % 2)) for n in range(6)]
        for one in samples:
            writer.write(one)
        assert writer.wait_for_acks(LONG) and participant.session.node_id == 1
        wait_until(lambda: reader._source.log.pending == 6)
        nodes[0].kill()
        wait_until(lambda: participant.get_node_status().reattached_count == 1)
        assert reader.take(9) == samples[:1]
        with pytest.raises(DDSException, match="no space left on the disk"):
            reader.take(9)
        full = False
        wait_until(lambda: reader._source.error is None)
        assert [*itertools.islice(reader.take_iter(timeout=LONG), 5)] == samples[1:]
        assert reader.get_sample_lost_status().total_count == reader.get_reattached_status().gap_count == 0


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


@pytest.mark.slow
def test_a_reader_that_chooses_and_has_little_room_goes_on(group):
    """Goal: what a reader counts when it leaves a log (rejected, lost) may look for more samples, and does not keep it
    from the next log. Method: a filter, and room for few samples; the reader's node is killed."""
    few = Qos(Policy.ResourceLimits(max_samples=50))
    with (Source(payload=lambda n: b"%04d" % n) as source, DomainParticipant(node_id=2) as other,
          DomainParticipant(reattach=True) as participant):
        topic = Topic(participant, "topic", bytes)
        topic.set_topic_filter(lambda _, sample: int(sample) % 2 == 0)
        reader = DataReader(participant, topic, few)
        there = DataReader(other, Topic(other, "topic", bytes), Qos(Policy.History.KeepLast(1)))
        got = []
        wait_until(lambda: got.extend(int(one) for one in reader.take(10)) or len(got) > 50)
        group[0].kill()
        wait_until(lambda: participant.get_node_status().reattached_count == 1)
        before = len(got)
        wait_until(lambda: got.extend(int(one) for one in reader.take(10)) or len(got) > before + 100)
        source.stop()
        assert got == list(range(got[0], got[-1] + 1, 2)) and got[0] % 2 == 0 and there.take(1)
        assert reader.get_sample_lost_status().total_count == 0


@pytest.mark.slow
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


@pytest.mark.slow
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
def test_who_waits_for_acknowledgements_waits_for_the_next_node(runtime_dir):
    """Goal: when somebody has taken what is in doubt, waiting for acknowledgements waits for a node, no longer than it
    may, and is true there. Method: one node, which stands still with a sample and is killed; its like comes later."""
    node = Daemon(1, runtime_dir=runtime_dir).wait_ready()
    with DomainParticipant(node_id=1, reattach=True) as participant:
        try:
            topic = Topic(participant, "topic", bytes)
            reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
            writer.write(b"before")
            assert writer.wait_for_acks(LONG) and reader.take(1)
            halt(node.pid)
            writer.write(b"in doubt")
            node.kill()
            wait_until(lambda: participant.get_node_status().lost_count == 1)
            assert [one.sample for one in writer.take_unacknowledged()] == [b"in doubt"]
            assert not writer.wait_for_acks(duration(milliseconds=20))
            found = []
            waiting = threading.Thread(target=lambda: found.append(writer.wait_for_acks(LONG)))
            waiting.start()
            node.stop()
            node = Daemon(1, runtime_dir=runtime_dir).wait_ready()
            waiting.join(20)
            assert found == [True] and participant.get_node_status().reattached_count == 1
        finally:
            participant.close()
            node.stop()


@pytest.mark.slow
def test_a_batch_goes_on_where_its_dead_node_left_off(group):
    """Goal: a batch in whose middle the node dies comes once: what that node had taken isn't written again. Method: a
    batch that is larger than the ring, of a writer that isn't told of what is in doubt; another member stands still, so
    that the batch waits in its middle; then the writer's node is killed."""
    with (DomainParticipant(node_id=3) as other, DomainParticipant(node_id=2) as third,
          DomainParticipant(reattach=True) as participant):
        untold = Qos(Policy.Reliability.BestEffort)
        reader = DataReader(other, Topic(other, "topic", bytes), untold)
        slow = DataReader(third, Topic(third, "topic", bytes), Qos(*untold, Policy.History.KeepLast(1)))
        writer = DataWriter(participant, Topic(participant, "topic", bytes), Qos(*untold, Policy.ResourceLimits(64)))
        writer.write(b"0")
        assert writer.wait_for_acks(LONG)
        halt(group[1].pid)
        batch = threading.Thread(target=writer.write_many, args=([b"%d" % n for n in range(1, 1000)],), daemon=True)
        batch.start()
        wait_until(lambda: writer._inbox.committed >= 64)
        taken = writer._inbox.committed
        assert batch.is_alive()
        group[0].kill()
        os.kill(group[1].pid, signal.SIGCONT)
        batch.join(30)
        assert not batch.is_alive() and writer.wait_for_acks(LONG) and taken + writer._inbox.committed == 1000
        got = [int(one) for one in reader.take(10_000)]
        assert all(one < following for one, following in itertools.pairwise(got)) and got[0] == 0 and got[-1] == 999
        assert slow.take(1) == [b"999"]


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


@pytest.mark.slow
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
        wait_until(lambda: participant.session.node_id == 2 and reader._source.newest.session is participant.session)
        loan.commit()
        assert reader.take_one(timeout=LONG) == b"loan!"
        everything()
        assert writer.get_guid() != guid
        assert len(wait_until(lambda: len(reader.matched_pub) == 1 and reader.matched_pub)) == 1
        assert len(wait_until(lambda: len(writer.matched_sub) == 2 and writer.matched_sub)) == 2
        assert reader.get_reattached_status().gap_count == 0  # node 2 had the topic all the time
        assert len(anchors) == 2
        anchor.close()


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
