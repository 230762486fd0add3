"""Order groups: several topics in one order, and reading over all of them.

Goal: what writers of several topics write has one order, in which each sample reaches the readers of its topic and no
others; a subscriber of group scope gives it out in that order, and stands still at one place of it while a program
looks. What a group fixes for its topics is enforced, with a text that says what to do.
Method: embedded nodes; two of them where orders are compared.
"""

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    Subscriber,
    Topic,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.messages import packets
from dds.messages.operations import PACKET
from tests.dds.test_sub import LONG
from tests.support import wait_until

Scope = Policy.PresentationAccessScope
GROUP = Qos(Scope.Group(coherent_access=True, ordered_access=True))
ALL = Qos(Policy.History.KeepAll)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


@dataclass
class Note(IdlStruct):
    text: str
    number: int = 0


def topics(participant, order="flight", **more):
    return (Topic(participant, "tracks", Track, order=order, **more), Topic(participant, "notes", Note, order=order),
            Topic(participant, "raw", bytes, order=order))


def ends(participant, qos=GROUP, **more):
    """A subscriber with a reader of each topic, and a publisher with a writer of each."""
    subscriber, publisher = Subscriber(participant, qos), Publisher(participant, qos)
    of = topics(participant, **more)
    return subscriber, [DataReader(subscriber, one, ALL) for one in of], publisher, [
        DataWriter(publisher, one) for one in of]


def test_samples_reach_the_readers_of_their_topic_only(participant):
    of = topics(participant)
    readers = [DataReader(participant, one) for one in of]
    writers = [DataWriter(participant, one) for one in of]
    for n in range(20):
        writers[0].write(Track(n, 10))
        writers[1].write(Note(f"note {n}", n))
        writers[2].write(b"%d" % n)
    assert all(one.wait_for_acks(LONG) for one in writers)
    assert [one.number for one in readers[0].take(100)] == list(range(20))
    assert [one.text for one in readers[1].take(100)] == [f"note {n}" for n in range(20)]
    assert readers[2].take(100) == [b"%d" % n for n in range(20)]
    assert [len(one.matched_pub) for one in readers] == [1, 1, 1]
    assert [len(one.matched_sub) for one in writers] == [1, 1, 1]


def test_a_publishers_writers_have_the_order_of_the_program(participant):
    """Whichever of them writes: they share one way."""
    subscriber, readers, _, writers = ends(participant)
    for n in range(300):
        kind = n * 7 % 3
        writers[kind].write((Track(n), Note("", n), b"%d" % n)[kind])
    assert writers[0].wait_for_acks(LONG)
    taken = subscriber.take(1000)
    assert [readers.index(reader) for reader, _ in taken] == [n * 7 % 3 for n in range(300)]
    assert [int(one) if isinstance(one, bytes) else one.number for _, one in taken] == list(range(300))
    places = [(one.sample_info.view_id, one.sample_info.sequence) for _, one in taken]
    assert places == sorted(set(places))
    handles = {one._instance_handle() for one in writers}
    assert {one.sample_info.publication_handle for _, one in taken} == handles and len(handles) == 3


def test_two_nodes_have_one_order_over_all_topics(two_nodes):
    both = [ends(one) for one in two_nodes]
    wait_until(lambda: all(len(reader.matched_pub) == 2 for _, readers, _, _ in both for reader in readers))

    def write(writers):
        for n in range(200):
            kind = n % 3
            writers[kind].write((Track(n), Note("", n), b"%d" % n)[kind])

    threads = [threading.Thread(target=write, args=(writers,)) for _, _, _, writers in both]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(publisher.wait_for_acks(LONG) for _, _, publisher, _ in both)
    taken = [[one for _, one in subscriber.take(1000)] for subscriber, _, _, _ in both]
    assert [len(one) for one in taken] == [400, 400]
    places = [[(one.sample_info.sequence, one.sample_info.publication_handle) for one in samples] for samples in taken]
    assert places[0] == places[1] == sorted(places[0])


def test_types_with_a_fixed_layout_and_loans(participant):
    dtype = np.dtype([("a", "<i8"), ("b", "<f8")])
    of = Topic(participant, "records", dtype, order="o"), Topic(participant, "bytes", bytes, order="o")
    readers = [DataReader(participant, one) for one in of]
    records, plain = (DataWriter(participant, one) for one in of)
    with records.loan() as record:
        record["a"] = 1
    records.write_many(np.array([(2, 0.5), (3, 0.5)], dtype))
    with plain.loan(3) as memory:
        memory[:] = b"abc"
    assert plain.write_many([b"x", b"y"]) == 2
    assert records.wait_for_acks(LONG) and plain.wait_for_acks(LONG)
    with readers[0].take_batch(10) as batch:
        assert batch.array["a"].tolist() == [1, 2, 3]
    assert readers[1].take(10) == [b"abc", b"x", b"y"]


def test_what_a_group_fixes_is_enforced(participant):
    first = Topic(participant, "first", bytes, order="o", size_max=1000)
    writer = DataWriter(participant, first)
    large = DataWriter(participant, Topic(participant, "large", bytes, order="o", size_max=2000))
    large.write(bytes(100_000))  # its slots are the group's, and what fits none goes beside
    with pytest.raises(DDSException, match="level is ATOMIC in the group, you want VOLATILE"):
        Topic(participant, "kept", bytes, Qos(Policy.Durability.TransientLocal), order="o")
    with pytest.raises(DDSException, match="'o' is atomic in the group, the writer offers"):
        DataWriter(participant, Topic(participant, "kept", bytes, order="o"), Qos(Policy.Durability.TransientLocal))
    with pytest.raises(DDSException, match="type_name is 'order group' in the group"):
        DataReader(participant, Topic(participant, "o", bytes))
    plain = Topic(participant, "plain", bytes, Qos(Policy.Durability.Volatile))
    with pytest.raises(DDSException, match=r"outside of order group 'o': .+ `spindle topics plain --delete`"):
        DataReader(participant, Topic(participant, "plain", bytes, order="o"))
    with pytest.raises(DDSException, match="type_name is 'bytes' in the group, you want 'order group'"):
        DataReader(participant, Topic(participant, "x", bytes, order="plain"))
    plain.close()
    with pytest.raises(DDSException, match="'first' is in order group 'o': say order='o'"):
        DataReader(participant, Topic(participant, "first", bytes))
    with pytest.raises(DDSException, match="'first' is in order group 'o': say order='o'"):
        DataReader(participant, Topic(participant, "first", bytes, order="p"))
    with pytest.raises(TypeError, match="order must be"):
        Topic(participant, "first", bytes, order=1)
    writer.close()


def test_best_effort_topics_of_a_group_are_ordered_all_the_same(participant):
    topic = Topic(participant, "quick", bytes, Qos(Policy.Reliability.BestEffort), order="o")
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    assert topic.spec.level.name == "ATOMIC" and topic.order == "o"
    writer.write(b"x")
    assert writer.wait_for_acks(LONG) and reader.take(5) == [b"x"]
    assert len(reader.matched_pub) == 1
    strict = DataReader(participant, topic, Qos(Policy.Reliability.Reliable(LONG)))
    assert strict.get_requested_incompatible_qos_status().total_count == 1
    writer.write(b"y")
    assert writer.wait_for_acks(LONG) and strict.take(5) == [] and reader.take(5) == [b"y"]


def test_another_type_of_a_topic_is_another_topic(participant):
    """Its samples are never taken for ours, whoever comes first."""
    with DomainParticipant.embedded(participant.domain_id) as elsewhere:
        one, other = Topic(participant, "t", Track, order="o"), Topic(elsewhere, "t", Note, order="o")
        readers = DataReader(participant, one), DataReader(elsewhere, other)
        writers = DataWriter(participant, one), DataWriter(elsewhere, other)
        writers[0].write(Track(1))
        writers[1].write(Note("x"))
        assert all(writer.wait_for_acks(LONG) for writer in writers)
        assert [len(reader.take(5)) for reader in readers] == [1, 1]
        assert [len(reader.matched_pub) for reader in readers] == [1, 1]


def test_instances_of_one_topic_dont_end_with_those_of_another(participant):
    of = [Topic(participant, name, Track, order="o") for name in ("a", "b")]
    readers = [DataReader(participant, one) for one in of]
    writers = [DataWriter(participant, one) for one in of]
    for one in writers:
        one.write(Track(1, 1))
    writers[0].dispose(Track(1))
    writers[0].close()
    writers[1].write(Track(1, 2))
    assert writers[1].wait_for_acks(LONG)
    wait_until(lambda: len(readers[0].read(9)) == 2)
    assert [type(one) for one in readers[0].take(9)] == [Track, InvalidSample]
    taken = readers[1].take(9)
    assert [one.height for one in taken] == [1, 2]
    assert taken[1].sample_info.instance_state == InstanceState.Alive


def test_history_of_a_group(participant):
    """A late joiner gets what is kept of its topic; depth counts there, and not in all that the group has."""
    qos = Qos(Policy.Durability.TransientLocal, Policy.History.KeepLast(3))
    of = [Topic(participant, name, bytes, qos, order="o") for name in ("a", "b")]
    writers = [DataWriter(participant, one) for one in of]
    for n in range(50):
        writers[0].write(b"a%d" % n)
    writers[1].write(b"b")
    for n in range(50, 100):
        writers[0].write(b"a%d" % n)
    assert all(one.wait_for_acks(LONG) for one in writers)
    assert DataReader(participant, of[0], qos).take(10) == [b"a97", b"a98", b"a99"]
    assert DataReader(participant, of[1], qos).take(10) == [b"b"]
    assert DataReader(participant, of[1], Qos(Policy.Durability.Volatile)).take(10) == []


def test_find_topic_finds_what_is_in_a_group(participant):
    assert participant.find_topic("tracks", Track) is None
    of = topics(participant)
    writer = DataWriter(participant, of[0])
    found = participant.find_topic("tracks", Track)
    assert (found.name, found.order) == ("tracks", "flight")
    reader = DataReader(participant, found)
    writer.write(Track(1))
    assert writer.wait_for_acks(LONG) and len(reader.take(5)) == 1


def test_a_program_that_names_any_writer_costs_readers_a_bounded_memory(participant, monkeypatch):
    """Method: a raw session speaks for ever new writers in a topic with a key, and for other instances each time."""
    monkeypatch.setattr(packets, "CARRIED_MAX", 10)
    track, _, _ = topics(participant)
    reader = DataReader(participant, track, ALL)
    publisher = Publisher(participant, GROUP)
    honest, _ = (DataWriter(publisher, track) for _ in range(2))
    honest.write(Track(1))
    liar = participant.session.open_writer("flight")
    channel = track._channel
    for n in range(500):
        name = participant.session.node_id << 16 | 1000 + n
        payload = honest._codec.encode(Track(2 + n % 3))
        one = packets.member(payload, 0, 0, channel.mark, time.time_ns(), channel.number, name)
        liar.inbox.write(packets.cut(n, [one], 1000)[0], 0, 5.0, PACKET)
    assert liar.inbox.wait_acknowledged(5.0)
    taken = reader.take(1000)
    assert len([one for one in taken if not isinstance(one, InvalidSample)]) == 501
    intake = reader._intake
    assert intake.sets.writers_carried == 11 and len(intake.instances.writers()) == 11
    honest.write(Track(1, 2))
    assert honest.wait_for_acks(LONG) and reader.take(9)[0].height == 2
    liar.close()  # it has announced no farewell: who it has spoken for is forgotten when others come


def test_a_publisher_has_as_many_writers_of_a_topic_as_readers_remember(participant, monkeypatch):
    monkeypatch.setattr(packets, "CARRIED_MAX", 3)
    track, note, _ = topics(participant)
    publisher = Publisher(participant, GROUP)
    writers = [DataWriter(publisher, track) for _ in range(3)]
    with pytest.raises(DDSException, match=r"at most 3 writers of one topic.*make another publisher") as raised:
        DataWriter(publisher, track)
    assert raised.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    DataWriter(publisher, note).close()
    writers[0].close()
    DataWriter(publisher, track).close()
