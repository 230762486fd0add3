"""Participants on a host without a node: everything as beside one, and nothing lost or repeated when nodes die.

Method: daemons on hosts of their own (`tests.spindle.hosts`), participants in this process that reach them over
loopback. The checker is a sequence of numbers: each subscriber must have all of them, once and in order.
"""

import asyncio
import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest

import dds
import dds.nodes.attachment
from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSNodeLost,
    DDSTimeout,
    DomainParticipant,
    NodeState,
    Policy,
    Qos,
    Topic,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.internal import publication_handle
from dds.nodes.ways import DistantNode
from spindle.client import remote_ports
from tests.dds.test_sub import LONG
from tests.spindle.hosts import hosts
from tests.support import wait_until

ALL = Policy.History.KeepAll
LEVELS = {
    "unordered": Qos(Policy.Reliability.BestEffort),
    "atomic": Qos(Policy.Reliability.Reliable(LONG)),
    "volatile": Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.TransientLocal),
    "logged": Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.Persistent),
}


def remote(site, *order, **more):
    """A participant without a node of its own; it goes to these hosts in this order, from 0."""
    return DomainParticipant.remote([site[k].address for k in (order or range(len(site)))], **more)


def beside(host):
    """A participant on the host of a node."""
    return DomainParticipant(runtime_dir=host.directory)


def numbers(count, first=0):
    return [b"%d" % n for n in range(first, count)]


def take_all(reader, count, timeout_s=30.0):
    got = []
    deadline = time.monotonic() + timeout_s
    while len(got) < count and time.monotonic() < deadline:
        got.extend(reader.take(1000))
        if len(got) < count:
            time.sleep(0.001)
    return got


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_both_ways_at_every_level(site, level):
    """Goal: a program sees no difference. Method: one participant elsewhere, one beside node 3; both write and read."""
    with remote(site) as far, beside(site[2]) as near:
        ends = []
        for participant in (far, near):
            topic = Topic(participant, "topic", bytes, qos=LEVELS[level], size_max=1000)
            ends.append((DataReader(participant, topic, Qos(ALL)), DataWriter(participant, topic)))
        wait_until(lambda: all(len(reader.get_matched_publications()) == 2 for reader, _ in ends))
        for n in range(500):
            for name, (_, writer) in zip((b"far", b"near"), ends, strict=True):
                writer.write(b"%s %d" % (name, n))
        got = [take_all(reader, 1000) for reader, _ in ends]
        assert all(writer.wait_for_acks(LONG) for _, writer in ends)
        for samples in got:
            for name in (b"far", b"near"):
                assert [one for one in samples if one.startswith(name)] == [b"%s %d" % (name, n) for n in range(500)]
        if level != "unordered":
            assert got[0] == got[1]
        assert far.session.node_id == 1 and ends[0][1].get_publication_matched_status().current_count == 2


@pytest.mark.slow
def test_waiting_works_as_beside_a_node(site):
    """Wait sets, iteration and asyncio are woken by what comes over the network; a loan is filled in place."""
    with remote(site) as far, beside(site[1]) as near:
        topics = [Topic(one, "topic", bytes, qos=LEVELS["atomic"], size_max=100) for one in (far, near)]
        reader, writer = DataReader(far, topics[0]), DataWriter(near, topics[1])
        back, there = DataReader(near, topics[1]), DataWriter(far, topics[0])
        waitset = dds.WaitSet(far)
        waitset.attach(dds.ReadCondition(reader, dds.SampleState.NotRead))
        threading.Timer(0.2, writer.write, [b"1"]).start()
        assert waitset.wait(LONG) == 1 and reader.take(10) == [b"1"]
        threading.Timer(0.2, writer.write, [b"2"]).start()
        assert reader.take_one(timeout=LONG) == b"2"

        async def one():
            async for sample in reader.take_aiter(timeout=LONG):
                return sample

        threading.Timer(0.2, writer.write, [b"3"]).start()
        assert asyncio.run(one()) == b"3"
        with there.loan(4) as memory:
            memory[:] = b"loan"
        assert take_all(back, 4) == [b"1", b"2", b"3", b"loan"]


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


@pytest.mark.slow
@pytest.mark.parametrize("level", ["atomic", "logged"])
def test_instances_end_in_the_same_way(site, level):
    """Ends come from and to programs without a node of their own; a writer that turns to another node ends nothing."""
    with remote(site) as far, beside(site[2]) as near:
        topics = [Topic(one, "tracks", Track, qos=LEVELS[level], size_max=100) for one in (far, near)]
        readers = [DataReader(one, topic) for one, topic in zip((far, near), topics, strict=True)]
        there, here = (DataWriter(one, topic) for one, topic in zip((far, near), topics, strict=True))
        there.write(Track(1, 10))
        assert there.wait_for_acks(LONG)
        here.write(Track(2, 20))
        assert here.wait_for_acks(LONG)
        there.dispose(Track(2))
        assert there.wait_for_acks(LONG)
        here.write(Track(3, 30))
        here.dispose(Track(3))
        assert here.wait_for_acks(LONG)
        # What its node had and had not passed on is lost to a reader elsewhere, unless the topic keeps it.
        wait_until(lambda: len(readers[0].read(9)) == 5)
        os.kill(site[0].running.pid, signal.SIGKILL)
        there.write(Track(4, 40))
        assert there.wait_for_acks(LONG)
        there.close()
        got = [take_all(reader, 8) for reader in readers]
        for samples in got:
            seen = [("end", one.key_sample.number) if isinstance(one, dds.InvalidSample) else one.height
                    for one in samples]
            assert seen == [10, 20, ("end", 2), 30, ("end", 3), 40, ("end", 1), ("end", 4)]


@pytest.mark.slow
def test_writers_are_told_apart_wherever_they_are(site, monkeypatch):
    """Goal: a sample names its writer by the writer's own handle, at readers with a node and without one, and a reader
    keeps out the samples of those writers only that it doesn't match. Method: two writers elsewhere whose identities
    end alike, which is all that their number on the node shows; one offers less than the readers want."""
    identities = itertools.count(5 << 15 | 77, 1 << 15)
    monkeypatch.setattr(remote_ports, "new_identity", lambda: next(identities))
    with remote(site) as far, beside(site[2]) as near:
        topics = [Topic(one, "topic", bytes, qos=LEVELS["atomic"], size_max=100) for one in (far, near)]
        readers = [DataReader(far, topics[0]), DataReader(near, topics[1])]
        writers = [DataWriter(far, topics[0]), DataWriter(far, topics[0]), DataWriter(near, topics[1])]
        less = DataWriter(far, topics[0], Qos(Policy.Reliability.BestEffort))
        handles = [one.instance_handle for one in writers]
        assert len({*handles, less.instance_handle}) == 4
        for reader in readers:
            wait_until(lambda: set(reader.get_matched_publications()) == set(handles))  # noqa: B023
            wait_until(lambda: reader.get_requested_incompatible_qos_status().total_count)  # noqa: B023
        less.write(b"less")
        for number, writer in enumerate(writers):
            writer.write(b"%d" % number)
        for reader in readers:
            got = [reader.take_one(timeout=LONG) for _ in range(3)]
            assert {bytes(one): one.sample_info.publication_handle for one in got} == dict(
                zip(numbers(3), handles, strict=True))
            assert all(reader.get_matched_publication_data(one) for one in handles) and reader.take(9) == []


def writer_handle_of(participant, topic):
    """As samples carry it that the participant's one writer of the topic sends now."""
    (found,) = (one for one in participant.session.endpoints(topic) if one.is_writer)
    return publication_handle(found.node_id, found.writer_id, found.relay)


class Source:
    """Writes numbers from a thread until `stop`."""

    def __init__(self, writer):
        self.writer = writer
        self.count = 0
        self.errors = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.is_set():
                self.writer.write(b"%d" % self.count)
                self.count += 1
                if self.count % 50 == 0:
                    time.sleep(0.001)
        except Exception as error:
            self.errors.append(error)

    def stop(self):
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive() and not self.errors
        return self.count


@pytest.mark.slow
@pytest.mark.parametrize("level", ["atomic", "volatile", "logged"])
@pytest.mark.parametrize("how", ["kill", "stop", "leave"])
def test_once_and_in_order_whatever_its_nodes_do(site, level, how):
    """Goal: every subscriber has every sample once and in order, though the writer's node dies, and the next one.
    Method: kill -9, SIGSTOP or SIGTERM in the middle; subscribers beside node 3, and elsewhere at node 3."""
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}
    with remote(site) as far, beside(site[2]) as near, remote(site, 2) as other:
        qos = LEVELS[level]
        topics = [Topic(one, "topic", bytes, qos=qos, size_max=200) for one in (far, near, other)]
        readers = [DataReader(one, topic, Qos(ALL)) for one, topic in zip((near, other), topics[1:], strict=True)]
        writer = DataWriter(far, topics[0])
        source = Source(writer)
        got = [[], []]

        def progress(count):
            def look():
                for samples, reader in zip(got, readers, strict=True):
                    samples.extend(reader.take(10_000))
                return min(map(len, got)) > count

            wait_until(look, 30)

        progress(1000)
        assert far.session.node_id == 1
        os.kill(site[0].running.pid, signals[how])
        wait_until(lambda: far.session.node_id == 2, 30)
        progress(len(got[0]) + 1000)
        if how == "stop":
            os.kill(site[0].running.pid, signal.SIGKILL)
        # What happened is told in order, on a thread of its own: it may hang behind what it asks the next node.
        wait_until(lambda: far.get_node_status().node_id == 2, 30)
        status = far.get_node_status()
        assert status.state is NodeState.ATTACHED and (status.lost_count, status.reattached_count) == (1, 1)
        wait_until(lambda: writer.get_publication_matched_status().current_count == 2, 10)
        for reader in readers:
            wait_until(lambda one=reader: one.get_subscription_matched_status().current_count == 1, 10)
            (match,) = reader.get_matched_publications()
            assert match == writer_handle_of(far, "topic")
        total = source.stop()
        assert writer.wait_for_acks(LONG) and writer.take_unacknowledged() == []
        progress(total - 1)
        assert got[0] == numbers(total) and got[1] == numbers(total)


@pytest.mark.slow
def test_what_a_dead_node_had_sent_counts_as_persisted_when_it_is(site):
    """Goal: a writer that has nothing more to say hears that all of it is on disk. Method: its node dies as soon as
    everything is delivered, or before."""
    with remote(site) as far, beside(site[2]) as near:
        topics = [Topic(one, "topic", bytes, qos=LEVELS["logged"], size_max=200) for one in (far, near)]
        reader, writer = DataReader(near, topics[1], Qos(ALL)), DataWriter(far, topics[0])
        for n in range(500):
            writer.write(b"%d" % n)
        os.kill(site[0].running.pid, signal.SIGKILL)
        assert writer.wait_for_acks(LONG, persisted=True)
        assert take_all(reader, 500) == numbers(500)


def test_a_logged_topic_goes_on_after_all_nodes_were_down(site):
    """Goal: the writer goes on by itself, nothing twice and nothing missing. Method: all nodes are killed in the middle
    of a stream, and started anew; a reader then takes the whole topic."""
    with remote(site, reattach=True) as far:
        topic = Topic(far, "topic", bytes, qos=LEVELS["logged"], size_max=200, history_bytes=32 << 20)
        with beside(site[1]) as near:  # so that others than the writer's node have it
            there = DataReader(near, Topic(near, "topic", bytes, qos=LEVELS["logged"], size_max=200,
                                           history_bytes=32 << 20), Qos(Policy.History.KeepLast(1)))
            writer = DataWriter(far, topic)
            source = Source(writer)
            wait_until(lambda: there.take(1) and source.count > 2000, 30)
            for host in site:
                host.running.process.kill()
        for host in site:
            host.running.wait()
            host.start()
        for host in site:
            host.running.wait_ready()
        wait_until(lambda: far.get_node_status().reattached_count > 0, 60)
        before = source.count
        wait_until(lambda: source.count > before + 1000, 60)
        total = source.stop()
        assert writer.wait_for_acks(LONG, persisted=True)
        with beside(site[2]) as late:
            reader = DataReader(late, Topic(late, "topic", bytes, qos=LEVELS["logged"], size_max=200,
                                            history_bytes=32 << 20), Qos(ALL, Policy.Durability.Persistent))
            got: list[int] = []
            wait_until(lambda: got.extend(int(one) for one in reader.take(10_000)) or got[-1:] == [total - 1], 60)
            jumps = [pair for pair in itertools.pairwise(got) if pair[1] != pair[0] + 1]
            assert not jumps and got[0] == 0


@pytest.mark.slow
def test_readers_go_on_at_the_next_node(site):
    """Goal: nothing missing and nothing twice for a reader whose node dies, where the order is kept elsewhere; where it
    may not be, it is said. Method: a volatile topic with readers at all nodes, an atomic one with none at the next."""
    with remote(site, 0, 1) as far, beside(site[2]) as near:
        kept = [Topic(one, "kept", bytes, qos=LEVELS["volatile"], history_bytes=4 << 20) for one in (far, near)]
        passing = [Topic(one, "passing", bytes, qos=LEVELS["atomic"]) for one in (far, near)]
        reader, gap = DataReader(far, kept[0], Qos(ALL)), DataReader(far, passing[0], Qos(ALL))
        writer, other = DataWriter(near, kept[1]), DataWriter(near, passing[1])
        source = Source(writer)
        other.write(b"before")
        assert gap.take_one(timeout=LONG) == b"before"
        got = []
        wait_until(lambda: got.extend(reader.take(1000)) or len(got) > 500, 30)
        site[0].running.kill()
        wait_until(lambda: far.session.node_id == 2, 30)
        before = len(got)
        wait_until(lambda: got.extend(reader.take(1000)) or len(got) > before + 500, 30)
        total = source.stop()
        wait_until(lambda: got.extend(reader.take(1000)) or len(got) >= total, 30)
        assert got == numbers(total)
        wait_until(lambda: reader.get_reattached_status().total_count == 1, 10)
        assert reader.get_reattached_status().gap_count == 0
        wait_until(lambda: gap.get_reattached_status().gap_count == 1, 10)
        other.write(b"after")
        assert gap.take_one(timeout=LONG) == b"after"


@pytest.mark.slow
def test_all_nodes_gone(site):
    """Without `reattach` a clear error, which waits for no timeout; with it, a wait that ends when a node is back."""
    with remote(site, 0) as brief, remote(site, 0, reattach=True) as patient:
        ends = [DataReader(one, Topic(one, "topic", bytes, qos=LEVELS["atomic"])) for one in (brief, patient)]
        writer = DataWriter(patient, ends[1].topic)
        site[0].running.kill()
        with pytest.raises(DDSNodeLost, match="no other node serves"):
            ends[0].take_one(timeout=LONG)
        assert brief.get_node_status().state is NodeState.LOST
        writer.write(b"meanwhile")
        site[0].start().wait_ready()
        assert writer.wait_for_acks(LONG)
        writer.write(b"again")
        assert ends[1].take_one(timeout=LONG) in (b"meanwhile", b"again")


@pytest.mark.slow
def test_who_hears_of_the_loss_by_an_error_finds_it_in_the_status(site, monkeypatch):
    """Goal: no moment in which a call says that the node is gone and the status that it isn't. Method: the thread that
    brings the news is held up until the reader has raised."""
    told, raised = dds.nodes.attachment.Attachment.lost, threading.Event()

    def late(attachment, session):
        if threading.current_thread() is not threading.main_thread():
            raised.wait(20)
        told(attachment, session)

    monkeypatch.setattr(dds.nodes.attachment.Attachment, "lost", late)
    with remote(site, 0) as participant:
        reader = DataReader(participant, Topic(participant, "topic", bytes, qos=LEVELS["atomic"]))
        site[0].running.kill()
        try:
            with pytest.raises(DDSNodeLost, match="no other node serves"):
                reader.take_one(timeout=LONG)
            status = participant.get_node_status()
            assert status.state is NodeState.LOST and "no other node serves" in status.text
        finally:
            raised.set()


@pytest.mark.slow
def test_what_does_not_go_together_is_refused(site):
    with pytest.raises(TypeError, match="belong to the way"):
        DomainParticipant(node_id=1, way=DistantNode([site[0].address]))
    with pytest.raises(DDSException, match="belong together"):
        DomainParticipant.remote([site[0].address], certificate="x")
    with pytest.raises(DDSException, match="cannot be reached"):
        DomainParticipant.remote(["127.0.0.1:1"])


@pytest.mark.slow
def test_the_environment_says_where(site, monkeypatch):
    monkeypatch.setenv("SPINDLE_NODES", f" {site[1].address} ,{site[0].address}")
    with DomainParticipant() as participant:
        assert participant.session.node_id == 2
    with beside(site[2]) as participant:  # what is said in the program goes before
        assert participant.session.node_id == 3


def started_anew(host, far):
    """Kills the node of a host and starts it again; the program `far` looks for a node once the event is set that is
    returned."""
    may_go_on, finder = threading.Event(), far.session._channel._finder
    find = finder.find
    finder.find = lambda *arguments, **more: find(*arguments, **more) if may_go_on.wait(20) else None
    host.running.kill()
    host.start().wait_ready()
    return may_go_on


@pytest.mark.slow
@pytest.mark.parametrize("writes", [True, False], ids=["writer", "reader"])
def test_a_program_does_not_go_on_in_another_topic_of_that_name(runtime_dir, writes):
    """Goal: nothing is written to, or read from, a topic whose type is another one since a restart of all nodes; who
    tries is told. Method: as below."""
    with hosts(runtime_dir, 1) as (host,), remote([host], reattach=True) as far:
        topic = Topic(far, "topic", Track)
        endpoint = DataWriter(far, topic) if writes else DataReader(far, topic)
        may_go_on = started_anew(host, far)
        with beside(host) as near:
            other = Topic(near, "topic", bytes)
            reader = DataReader(near, other)
            DataWriter(near, other).write(b"other")
            may_go_on.set()

            def is_told():
                try:  # the first error may be about what was under way when the node died
                    endpoint.write(Track(1, 1)) if writes else endpoint.take(9)
                except DDSException as error:
                    return "exists with another definition: type_name" in str(error)

            wait_until(is_told, 30)
            assert take_all(reader, 1) == [b"other"]


@pytest.mark.slow
def test_a_writer_goes_by_the_topic_that_another_group_has(runtime_dir):
    """Goal: late joiners get the last sample of each instance, though the writer's program had declared a topic that
    doesn't keep them so. Method: the only node is started anew, and another program is the first to declare it."""
    volatile = Qos(Policy.Durability.TransientLocal)
    last = volatile + Qos(Policy.History.KeepLast(1))
    with hosts(runtime_dir, 1) as (host,), remote([host], reattach=True) as far:
        writer = DataWriter(far, Topic(far, "topic", Track, qos=volatile))
        before = writer._write
        may_go_on = started_anew(host, far)
        with beside(host) as near:
            topic = Topic(near, "topic", Track, qos=last)
            with DataReader(near, topic, last):
                may_go_on.set()
                wait_until(lambda: writer._write is not before, what="the writer's hearing of it")
                for number in range(8):
                    writer.write(Track(number % 4, number))
                assert writer.wait_for_acks(LONG)
                late = DataReader(near, topic, last)
                assert sorted(sample.height for sample in late.take(10)) == [4, 5, 6, 7]


@pytest.mark.slow
def test_who_waits_for_a_node_is_told_so(runtime_dir):
    """And not that readers hold it up, which nobody can know then."""
    qos = Qos(Policy.Reliability.Reliable(100_000_000), Policy.ResourceLimits(max_samples=4))
    with hosts(runtime_dir, 1) as (host,), remote([host], reattach=True) as far:
        writer = DataWriter(far, Topic(far, "topic", bytes, qos=qos))
        host.running.kill()
        wait_until(lambda: far.session.awaits)
        with pytest.raises(DDSTimeout, match="waits for a node: none serves now, the last one was node 1"):
            for _ in range(100):
                writer.write(b"x")
