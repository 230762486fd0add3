"""Samples of writers that have gone, read with another version of their type.

Goal: a late joiner gets the samples of a history or a journal as its own type, in whatever encoding, whatever has gone
since; what its type isn't assignable from it refuses, counts with the reason, and goes on; who looks for a type finds
those of what is kept.
Method: participants on embedded nodes, daemons of one group, hosts that reach each other over TCP, and programs on
hosts without a node. Writers and their participants are closed, daemons killed.
"""

import hashlib
import os
import signal

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSStatus,
    DDSTimeout,
    Domain,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    Topic,
    duration,
)
from dds.dynamic import get_types_for_topic, get_types_for_typeid
from dds.idl.types import float32, int32, int64, sequence
from spindle.config.settings import NodeConfig
from spindle.group.types import TYPE_BYTES_MAX
from spindle.journal import format as journal_format
from spindle.journal.tools import read
from tests.dds.idl.evolving import Mode, struct
from tests.dds.test_sub import LONG, write_all
from tests.spindle.daemons import daemons
from tests.spindle.hosts import hosts
from tests.support import wait_until

OLD = struct(_keys=("aircraft",), aircraft=str, altitude=int32)
NEW = struct(_keys=("aircraft",), aircraft=str, altitude=int32, mode=Mode, speeds=sequence[float32])
OTHER = struct(_keys=("aircraft",), aircraft=str, altitude=int64)
STAYS = Policy.WriterDataLifecycle(autodispose=False)
KEPT, LOGGED = Policy.Durability.TransientLocal, Policy.Durability.Persistent
ENCODINGS = {1: Policy.DataRepresentation(True, False), 2: Policy.DataRepresentation(False, True)}
# What is written, as what it is read, and what comes of it.
VERSIONS = [
    (OLD, NEW, OLD("A", 1), NEW("A", 1, Mode.auto, [])),
    (NEW, OLD, NEW("A", 2, Mode.manual, [1.5]), OLD("A", 2)),
    (struct("mutable", "T", a=(int32, 1), b=(int32, 2)), struct("mutable", "T", c=(str, 3), b=(int32, 2), a=(int32, 1)),
     (5, 99), ("", 99, 5)),
    (OTHER, OLD, OTHER("A", (7 << 32) + 1), None),
    (OLD, OTHER, OLD("A", 1), None)]
DIFFERENCE = "member altitude: int64 at the writer, int32 at the reader"


def made(cls, sample):
    return cls(*sample) if isinstance(sample, tuple) else sample


def topic_of(participant, cls, durability=KEPT, name="fixes", **more):
    return Topic(participant, name, cls, qos=Qos(durability), **more)


def write(participant, cls, *samples, durability=KEPT, version=2, **more):
    """By a writer that goes then."""
    writer = DataWriter(participant, topic_of(participant, cls, durability, **more), qos=Qos(STAYS, ENCODINGS[version]))
    for sample in samples:
        writer.write(made(cls, sample))
    assert writer.wait_for_acks(LONG, persisted=durability is LOGGED)
    writer.close()


def samples(reader, n=99):
    return [one for one in reader.take(n) if not isinstance(one, InvalidSample)]


def member(participant, name="fixes"):
    """A member of the topic that has nothing to do with its types."""
    return participant.session.open_reader(name, keep_all=False, from_history=False)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("writes", "reads", "sample", "comes"), VERSIONS,
                         ids=["more", "less", "moved", "wide", "narrow"])
def test_a_late_joiner_reads_what_its_writer_and_the_writers_node_have_left(
        two_nodes, caplog, version, writes, reads, sample, comes):
    stays, goes = two_nodes
    topic_of(goes, writes)
    anchor = member(stays)
    write(goes, writes, sample, version=version)
    goes.close()
    topic = topic_of(stays, reads)
    reader = DataReader(stays, topic)
    assert samples(reader) == ([] if comes is None else [made(reads, comes)]) and anchor
    refused = int(comes is None)
    assert reader.get_sample_lost_status().total_count == refused
    assert topic.get_inconsistent_topic_status().total_count == refused
    told = [one.message for one in caplog.records if "keeps samples of another type, test::Fix" in one.message]
    assert len(told) == refused and all("member altitude: int" in one for one in told)


def test_what_is_refused_stops_nothing(two_nodes):
    stays, goes = two_nodes
    topic_of(goes, OTHER)
    anchor = member(stays)
    write(goes, OTHER, OTHER("A", 1))
    write(goes, OLD, OLD("B", 2))
    write(goes, OTHER, OTHER("C", 3))
    write(goes, NEW, NEW("D", 4, Mode.manual, []), version=1)
    topic = topic_of(stays, OLD)
    topic.set_status_mask(DDSStatus.InconsistentTopic)
    readers = [DataReader(stays, topic) for _ in range(2)]
    live = DataWriter(stays, topic)
    write_all(live, [OLD("E", 5)])
    for reader in readers:
        assert samples(reader) == [OLD("B", 2), OLD("D", 4), OLD("E", 5)]
        assert reader.get_sample_lost_status().total_count == 2
    assert topic.take_status() == DDSStatus.InconsistentTopic and anchor
    assert topic.get_inconsistent_topic_status().total_count == 1  # the type counts once


def test_the_readers_type_consistency_decides_about_writers_that_have_gone(participant):
    anchor = DataReader(participant, topic_of(participant, NEW))
    write(participant, NEW, NEW("A", 1, Mode.auto, []))
    policies = [Policy.TypeConsistency.DisallowTypeCoercion(),
                Policy.TypeConsistency.AllowTypeCoercion(prevent_type_widening=True),
                Policy.TypeConsistency.AllowTypeCoercion()]
    readers = [DataReader(participant, topic_of(participant, OLD), qos=Qos(one)) for one in policies]
    assert [samples(reader) for reader in readers] == [[], [], [OLD("A", 1)]] and anchor
    assert [one.get_sample_lost_status().total_count for one in readers] == [1, 1, 0]


def test_a_writer_that_is_there_counts_once_though_its_type_is_kept(two_nodes):
    one, two = two_nodes
    writer = DataWriter(two, topic_of(two, OTHER))
    write_all(writer, [OTHER("A", 1)])
    topic = topic_of(one, OLD)
    readers = [DataReader(one, topic) for _ in range(2)]
    assert topic.get_inconsistent_topic_status().total_count == 1
    assert [samples(reader) for reader in readers] == [[], []] and writer.matched_sub == []


def test_a_reader_that_was_there_is_not_told_twice_of_a_writer_that_it_did_not_match(two_nodes):
    one, two = two_nodes
    topic = topic_of(one, OLD)
    reader = DataReader(one, topic)
    write(two, OTHER, OTHER("A", 1))
    wait_until(lambda: topic.get_inconsistent_topic_status().total_count == 1)
    late = DataReader(one, topic_of(one, OLD, name="fixes"))
    assert samples(late) == [] == samples(reader)
    assert topic.get_inconsistent_topic_status().total_count == 1


def test_ends_of_instances_that_a_gone_writer_has_disposed(participant):
    anchor = DataReader(participant, topic_of(participant, NEW))
    writer = DataWriter(participant, anchor.topic, qos=Qos(STAYS, ENCODINGS[1]))
    write_all(writer, [NEW("A", 1, Mode.auto, []), NEW("B", 2, Mode.auto, [])])
    writer.dispose(NEW("A", 0, Mode.auto, []))
    assert writer.wait_for_acks(LONG)
    writer.close()
    late = DataReader(participant, topic_of(participant, OLD))
    got = late.take(9)
    ended = [one for one in got if isinstance(one, InvalidSample)]
    assert [one for one in got if one not in ended] == [OLD("A", 1), OLD("B", 2)]
    assert (ended[0].key_sample.aircraft, ended[0].sample_info.instance_state) == (
        "A", InstanceState.NotAliveDisposed)


def test_the_last_values_of_each_instance(two_nodes):
    stays, goes = two_nodes
    qos = Qos(KEPT, Policy.History.KeepLast(1))
    topic = Topic(goes, "fixes", NEW, qos=qos)
    anchor = member(stays)
    writer = DataWriter(goes, topic, qos=Qos(STAYS, ENCODINGS[1]))
    write_all(writer, [NEW(f"{number % 3}", number, Mode.auto, []) for number in range(30)])
    goes.close()
    late = DataReader(stays, Topic(stays, "fixes", OLD, qos=qos))
    assert sorted(one.altitude for one in samples(late)) == [27, 28, 29] and anchor


def test_topics_of_an_order_group(two_nodes):
    """Each has types of its own, also of writers that had one way together."""
    stays, goes = two_nodes
    gear, wide = struct(_name="test.Gear", down=bool), struct(_name="test.Gear", down=bool, lever=int32)
    fixes, gears = topic_of(goes, NEW, order="flight"), topic_of(goes, wide, name="gears", order="flight")
    anchor = member(stays, "flight")
    publisher = Publisher(goes)
    writers = [DataWriter(publisher, topic, qos=Qos(STAYS, ENCODINGS[1])) for topic in (fixes, gears)]
    writers[0].write(NEW("A", 1, Mode.auto, []))
    writers[1].write(wide(True, 7))
    for writer in writers:
        assert writer.wait_for_acks(LONG)
    goes.close()
    mine = [topic_of(stays, OLD, order="flight"), topic_of(stays, gear, name="gears", order="flight")]
    readers = [DataReader(stays, topic) for topic in mine]
    assert [one.get_inconsistent_topic_status().total_count for one in mine] == [0, 0]
    assert [samples(reader) for reader in readers] == [[OLD("A", 1)], [gear(True)]] and anchor
    assert [one.get_sample_lost_status().total_count for one in readers] == [0, 0]


def test_a_reader_asks_its_node_for_a_type_that_it_has_not_heard_of(two_nodes):
    """Method: what is announced comes to the reader's participant only when the sample has been read."""
    one, two = two_nodes
    reader = DataReader(one, topic_of(one, OLD))
    held, announce = [], one._runtime._announce
    one._runtime._announce = held.append
    write(two, NEW, NEW("A", 1, Mode.auto, []), version=1)
    assert reader.take_one(timeout=LONG) == OLD("A", 1)
    assert reader.get_sample_lost_status().total_count == 0
    one._runtime._announce = announce


# --- looking for types

def test_who_looks_for_a_type_finds_that_of_a_writer_that_has_gone(two_nodes):
    stays, goes = two_nodes
    topic_of(goes, NEW)
    anchor = member(stays)
    write(goes, NEW, NEW("A", 1, Mode.auto, []))
    goes.close()
    found, names = get_types_for_typeid(stays, NEW.__idl__.get_type_id(), LONG)
    assert found.__idl__.get_type_id() == NEW.__idl__.get_type_id() and "test.Mode" in {*names, "test.Mode"}
    (of_topic,) = get_types_for_topic(stays, "fixes")
    assert (of_topic.data_type, of_topic.endpoints, of_topic.reason) == (found, 0, "")
    reader = DataReader(stays, topic_of(stays, of_topic.data_type))
    assert samples(reader) == [found("A", 1, found.__annotations__["mode"].auto, [])] and anchor
    both = get_types_for_topic(stays, "fixes")
    assert [one.endpoints for one in both] == [1]
    with pytest.raises(DDSTimeout):
        get_types_for_typeid(stays, OTHER.__idl__.get_type_id(), duration(milliseconds=20))


def test_the_newest_of_the_kept_types_comes_first(two_nodes):
    """So what shows a topic whose writers have gone shows all members of it. Method: one reads with what is first."""
    stays, goes = two_nodes
    topic_of(goes, OLD)
    anchor = member(stays)
    write(goes, OLD, OLD("A", 1))
    write(goes, NEW, NEW("B", 2, Mode.manual, [1.5]))
    goes.close()
    found = get_types_for_topic(stays, "fixes")
    assert [one.data_type.__idl__.get_type_id() for one in found] == [
        one.__idl__.get_type_id() for one in (NEW, OLD)] and anchor
    reader = DataReader(stays, topic_of(stays, found[0].data_type))
    assert [(one.aircraft, one.speeds) for one in samples(reader)] == [("A", []), ("B", [1.5])]


@pytest.mark.slow
def test_also_where_nobody_beside_the_node_has_the_topic(group, runtime_dir):
    with DomainParticipant(runtime_dir=runtime_dir, node_id=1) as one, \
            DomainParticipant(runtime_dir=runtime_dir, node_id=2) as two, \
            DomainParticipant(runtime_dir=runtime_dir, node_id=3) as three:
        topic_of(one, NEW)
        anchor = member(two)
        write(one, NEW, NEW("A", 1, Mode.auto, []))
        wait_until(lambda: one.session.node_id not in one.session.topics()[0].members)
        (found,) = get_types_for_topic(three, "fixes")
        assert found.data_type.__idl__.get_type_id() == NEW.__idl__.get_type_id() and found.endpoints == 0
        assert anchor and get_types_for_topic(three, "unknown") == []


def test_a_type_that_is_too_large_to_be_announced_is_kept(two_nodes):
    stays, goes = two_nodes
    names = [f"m_{hashlib.sha256(b'%d' % number).hexdigest()}" for number in range(121)]
    large, larger = (struct(**dict.fromkeys(names[:count], int32)) for count in (120, 121))
    topic_of(goes, large)
    anchor = member(stays)
    write(goes, large, large(*range(120)), version=1)
    goes.close()
    said = stays.session.types("fixes")
    assert 4096 < len(said[0]) <= TYPE_BYTES_MAX
    late = DataReader(stays, topic_of(stays, larger))
    assert samples(late) == [larger(*range(120), 0)] and anchor


# --- daemons, and programs on hosts without a node

@pytest.mark.slow
def test_programs_of_daemons_are_killed(runtime_dir):
    with daemons(runtime_dir, 3) as running:
        with DomainParticipant(runtime_dir=runtime_dir, node_id=1) as one, \
                DomainParticipant(runtime_dir=runtime_dir, node_id=1) as other, \
                DomainParticipant(runtime_dir=runtime_dir, node_id=2) as two:
            topic_of(one, NEW)
            anchor = member(two)
            writers = [DataWriter(one, topic_of(one, NEW), qos=Qos(ENCODINGS[1], STAYS)),
                       DataWriter(other, topic_of(other, OTHER), qos=Qos(STAYS))]
            writers[0].write(NEW("A", 1, Mode.auto, []))
            writers[1].write(OTHER("B", 2))
            for writer in writers:
                assert writer.wait_for_acks(LONG)
            os.kill(running[0].pid, signal.SIGKILL)
            wait_until(lambda: len(two.session.view().node_ids) == 2)
            with DomainParticipant(runtime_dir=runtime_dir, node_id=3) as three:
                for participant in (two, three):
                    topic = topic_of(participant, OLD)
                    reader = DataReader(participant, topic)
                    assert samples(reader) == [OLD("A", 1)] and anchor
                    assert reader.get_sample_lost_status().total_count == 1
                    assert topic.get_inconsistent_topic_status().total_count == 1


@pytest.mark.slow
def test_a_reader_goes_on_at_the_next_node(runtime_dir):
    """What that node keeps may be of types that the first one never had."""
    with daemons(runtime_dir, 3) as running:
        with DomainParticipant(runtime_dir=runtime_dir, reattach=True) as one:
            gone = one.session.node_id
            with DomainParticipant(runtime_dir=runtime_dir, node_id=gone % 3 + 1) as two:
                reader = DataReader(one, topic_of(one, OLD))
                anchor = member(two)
                os.kill(running[gone - 1].pid, signal.SIGKILL)
                wait_until(lambda: len(two.session.view().node_ids) == 2)
                write(two, NEW, NEW("A", 1, Mode.auto, []), version=1)
                assert reader.take_one(timeout=LONG) == OLD("A", 1) and anchor


@pytest.mark.slow
def test_over_tcp_and_on_hosts_without_a_node(site):
    with DomainParticipant(runtime_dir=site[1].directory) as near, \
            DomainParticipant.remote([site[0].address, site[1].address]) as far:
        topic_of(near, NEW)
        anchor = member(near)
        write(far, NEW, NEW("A", 1, Mode.auto, []), version=1)
        write(far, OTHER, OTHER("B", 2))
        site[0].running.kill()
        wait_until(lambda: len(near.session.view().node_ids) == 2)
        with DomainParticipant(runtime_dir=site[2].directory) as third, \
                DomainParticipant.remote([site[2].address]) as other:
            for participant in (near, far, third, other):
                topic = topic_of(participant, OLD)
                reader = DataReader(participant, topic)
                assert reader.take_one(timeout=LONG) == OLD("A", 1)
                wait_until(lambda reader=reader: reader.take(9) == []
                           and reader.get_sample_lost_status().total_count == 1)
                assert topic.get_inconsistent_topic_status().total_count == 1 and anchor


def test_the_journal_of_a_topic_whose_nodes_have_all_died(runtime_dir, tmp_path):
    with hosts(runtime_dir, 3, f'journal.dir="{tmp_path}"') as site:
        participants = [DomainParticipant(runtime_dir=host.directory) for host in site]
        readers = [DataReader(one, topic_of(one, NEW, LOGGED)) for one in participants]
        write(participants[0], NEW, NEW("A", 1, Mode.auto, []), durability=LOGGED, version=1)
        with DomainParticipant(runtime_dir=site[1].directory) as other:
            write(other, OTHER, OTHER("B", 2), durability=LOGGED)
        assert [len(samples(one)) for one in readers]
        for host in site:
            os.kill(host.running.pid, signal.SIGKILL)
        for participant in participants:
            participant.close()
        for host in site:
            host.running.process.wait()
            host.start()
        for host in site:
            host.running.wait_ready()
        for host in site:
            with DomainParticipant(runtime_dir=host.directory) as participant:
                topic = topic_of(participant, OLD, LOGGED)
                reader = DataReader(participant, topic)
                assert reader.take_one(timeout=LONG) == OLD("A", 1)
                wait_until(lambda reader=reader: reader.take(9) == []
                           and reader.get_sample_lost_status().total_count == 1)
                assert topic.get_inconsistent_topic_status().total_count == 1
    for node_id in (1, 2, 3):
        assert sum(not one.tag for one in read(tmp_path, node_id=node_id)) == 2


def test_a_journal_from_before_types_were_kept_is_read_as_it_was(tmp_path, monkeypatch):
    """What tells by its encoding where its parts end, no more. Method: a node that wrote journals as before."""
    Domain(11, NodeConfig(domain_id=11, node_id=1, journal_dir=tmp_path))  # for good: no other test's domain
    with monkeypatch.context() as earlier, DomainParticipant.embedded(11) as one:
        earlier.setattr(journal_format, "TYPE_PREFIX", "unknown.")
        write(one, NEW, NEW("A", 1, Mode.auto, []), durability=LOGGED, version=1)
        write(one, NEW, NEW("B", 2, Mode.auto, []), durability=LOGGED, version=2)
    with DomainParticipant.embedded(11) as one:
        reader = DataReader(one, topic_of(one, OLD, LOGGED))
        assert samples(reader) == [OLD("B", 2)]
        assert reader.get_sample_lost_status().total_count == 1
        write(one, NEW, NEW("C", 3, Mode.auto, []), durability=LOGGED, version=1)
        assert reader.take_one(timeout=LONG) == OLD("C", 3)
