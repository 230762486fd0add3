"""Late joiners of topics with keys: with History.KeepLast, nodes keep the last samples of each instance.

Goal: whoever comes late, at whatever node, or without one, gets the same: of each instance its last samples and how it
ended; then what is written from there on. Method: embedded nodes for what programs see; daemons, hosts without a node
and a restart of all for the ways that a table takes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dds import (
    DataReader,
    DataWriter,
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
from tests.dds.test_sub import LONG
from tests.spindle.daemons import daemons
from tests.spindle.hosts import Host, hosts
from tests.support import wait_until

VOLATILE, LOGGED = Policy.Durability.TransientLocal, Policy.Durability.Persistent
STAYS = Policy.WriterDataLifecycle(autodispose=False)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


def qos(durability: Policy = VOLATILE, depth: int = 1, *more: Policy) -> Qos:
    return Qos(Policy.Reliability.Reliable(LONG), durability, Policy.History.KeepLast(depth), *more)


def topic_of(participant: DomainParticipant, durability: Policy = VOLATILE, depth: int = 1, **more: int) -> Topic:
    return Topic(participant, "tracks", Track, qos(durability, depth), size_max=more.pop("size_max", 200), **more)


def everything(participant: DomainParticipant, topic: Topic) -> DataReader:
    """A late reader that keeps all that it is given."""
    return DataReader(participant, topic, Qos(Policy.History.KeepAll))


def seen(reader: DataReader, count: int) -> list[tuple[int, int | None]]:
    """What comes: number and height of samples, number and None of ends."""
    found = []

    def more() -> bool:
        found.extend((one.key_sample.number, None) if isinstance(one, InvalidSample) else (one.number, one.height)
                     for one in reader.take(1000))
        return len(found) >= count

    wait_until(more)
    return found


def test_an_instance_that_fell_silent_is_not_lost(participant: DomainParticipant) -> None:
    topic = topic_of(participant)
    writer = DataWriter(participant, topic)
    writer.write(Track(1, 7))
    for first in range(0, 120_000, 10_000):
        writer.write_many([Track(2, number) for number in range(first, first + 10_000)])
    assert writer.wait_for_acks(LONG)
    reader = everything(participant, topic)
    assert seen(reader, 2) == [(1, 7), (2, 119_999)]
    assert reader.get_sample_lost_status().total_count == 0
    writer.write(Track(1, 8))
    assert seen(reader, 1) == [(1, 8)]


def test_as_many_samples_as_the_depth_says(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    one, two = two_nodes
    topic = topic_of(one, depth=3)
    writer = DataWriter(one, topic)
    for number in range(40):
        writer.write(Track(number % 4, number))
    assert writer.wait_for_acks(LONG)
    wanted = [(number % 4, number) for number in range(28, 40)]
    for participant in (one, two, two):
        assert seen(everything(participant, topic_of(participant, depth=3)), 12) == wanted


def test_the_history_of_the_durability_service_counts_first(participant: DomainParticipant) -> None:
    topic = Topic(participant, "tracks", Track, qos() + Qos(Policy.DurabilityService(
        0, Policy.History.KeepLast(2), -1, -1, -1)))
    writer = DataWriter(participant, topic)
    for number in range(10):
        writer.write(Track(number % 2, number))
    assert writer.wait_for_acks(LONG)
    assert seen(everything(participant, topic), 4) == [(0, 6), (1, 7), (0, 8), (1, 9)]


def test_limits_of_the_durability_service(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    """Both nodes keep so many samples of each instance, also those that came to one of them as history."""
    one = two_nodes[0]
    limited = qos() + Qos(Policy.DurabilityService(0, Policy.History.KeepAll, -1, -1, 2))
    topics = [Topic(participant, "tracks", Track, limited) for participant in two_nodes]
    writer = DataWriter(one, topics[0])
    for number in range(10):
        writer.write(Track(number % 2, number))
    assert writer.wait_for_acks(LONG)
    for participant, topic in zip(two_nodes, topics, strict=True):
        assert seen(everything(participant, topic), 4) == [(0, 6), (1, 7), (0, 8), (1, 9)]


def test_limits_of_the_durability_service_without_a_key(participant: DomainParticipant) -> None:
    topic = Topic(participant, "t", bytes, Qos(Policy.Durability.TransientLocal, Policy.DurabilityService(
        0, Policy.History.KeepAll, 3, 1, -1)))
    writer = DataWriter(participant, topic)
    for number in range(10):
        writer.write(b"%d" % number)
    assert writer.wait_for_acks(LONG)
    assert DataReader(participant, topic).take(9) == [b"7", b"8", b"9"]


def test_how_an_instance_ended(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    """An end is kept while a writer of the instance is left; then all of it is forgotten. What no writer has disposed
    of outlives its writers."""
    one, two = two_nodes
    topics = [topic_of(participant) for participant in two_nodes]
    writer, other = DataWriter(one, topics[0]), DataWriter(two, topics[1], Qos(STAYS))
    for number in (1, 2, 3):
        writer.write(Track(number, number))
    other.write(Track(4, 4))
    writer.dispose(Track(2))
    writer.unregister_instance(Track(3))
    assert writer.wait_for_acks(LONG) and other.wait_for_acks(LONG)
    for participant, topic in zip(two_nodes, topics, strict=True):
        reader = everything(participant, topic)
        assert sorted(seen(reader, 4), key=str) == sorted([(1, 1), (2, 2), (2, None), (4, 4)], key=str)
    other.close()
    writer.close()
    samples = everything(two, topics[1]).take(100)
    assert [(one.key_sample if isinstance(one, InvalidSample) else one).number for one in samples] == [4, 4]
    assert {one.sample_info.instance_state for one in samples} == {InstanceState.NotAliveNoWriters}


@pytest.mark.parametrize("how", ["many", "array", "loan"])
def test_records_of_numpy_have_their_keys_however_they_are_written(participant: DomainParticipant, how: str) -> None:
    dtype = np.dtype([("number", "i4"), ("height", "f8")])
    topic = Topic(participant, "records", dtype, qos(), keys=["number"])
    writer = DataWriter(participant, topic)
    rows = np.zeros(500, dtype)
    rows["number"], rows["height"] = [7] + [number % 3 for number in range(499)], range(500)
    if how == "array":
        assert writer.write_many(rows) == 500
    for row in rows if how != "array" else ():
        if how == "many":
            writer.write_many(rows[rows["height"] == row["height"]])
        else:
            with writer.loan() as record:
                record["number"], record["height"] = row["number"], row["height"]
    assert writer.wait_for_acks(LONG)
    reader = DataReader(participant, topic, Qos(Policy.History.KeepAll))
    found = []
    wait_until(lambda: found.extend(reader.take(100)) or len(found) >= 4)
    assert [(int(one.number), float(one.height)) for one in found] == [(7, 0.0), (1, 497.0), (2, 498.0), (0, 499.0)]


def test_what_found_no_room_counts_as_lost(participant: DomainParticipant) -> None:
    topic = topic_of(participant, size_max=100, history_bytes=8192)
    writer = DataWriter(participant, topic, Qos(STAYS))
    writer.write_many([Track(number, number) for number in range(300)])
    assert writer.wait_for_acks(LONG)
    reader = everything(participant, topic)
    got = seen(reader, 1)
    assert got == [(number, number) for number in range(300 - len(got), 300)]
    assert 0 < len(got) < 100 and reader.get_sample_lost_status().total_count == 300 - len(got)
    figures = participant.session.status()["topics"][0]
    assert (figures["keys"], figures["given_up"]) == (len(got), 300 - len(got))


def test_sets_are_kept_as_sets(participant: DomainParticipant) -> None:
    """An instance that was written and ended in sets comes with its end; one that others write is kept beside them."""
    access = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=True))
    topic = topic_of(participant, size_max=1000)
    publisher = Publisher(participant, access)
    writer, plain = DataWriter(publisher, topic), DataWriter(participant, topic)
    plain.write(Track(9, 9))
    assert plain.wait_for_acks(LONG)
    with publisher.coherent():
        writer.write(Track(1, 1))
        writer.write(Track(2, 2))
    assert writer.wait_for_acks(LONG)
    for number in range(50):
        plain.write(Track(8, number))
    assert plain.wait_for_acks(LONG)
    writer.dispose(Track(2))
    assert writer.wait_for_acks(LONG)
    assert seen(everything(participant, topic), 5) == [(9, 9), (1, 1), (2, 2), (8, 49), (2, None)]
    of_sets = DataReader(Subscriber(participant, access), topic, Qos(Policy.History.KeepAll))
    assert seen(of_sets, 3) == [(1, 1), (2, 2), (2, None)]


def test_readers_of_other_topics_are_given_what_fits_as_before(participant: DomainParticipant) -> None:
    topic = Topic(participant, "tracks", Track, Qos(Policy.Reliability.Reliable(LONG), VOLATILE), size_max=200)
    assert not topic.spec.effects and topic.spec.history_depth == 0
    writer = DataWriter(participant, topic)
    for number in range(10):
        writer.write(Track(1, number))
    assert writer.wait_for_acks(LONG)
    assert len(seen(everything(participant, topic), 10)) == 10


def test_a_reader_that_keeps_one_reads_each_instance_once(participant: DomainParticipant) -> None:
    topic = topic_of(participant, depth=5)
    writer = DataWriter(participant, topic)
    for number in range(50):
        writer.write(Track(number % 5, number))
    assert writer.wait_for_acks(LONG)
    reader = DataReader(participant, topic, Qos(Policy.History.KeepLast(1)))
    assert sorted(seen(reader, 5)) == [(number % 5, number) for number in range(45, 50)]


@pytest.mark.slow
def test_daemons_one_of_which_came_late_and_one_of_which_dies(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as running:
        first = DomainParticipant(node_id=1)
        writer = DataWriter(first, topic_of(first, depth=2))
        writer.write(Track(99, 1))
        writer.write_many([Track(number % 50, number) for number in range(5000)])
        assert writer.wait_for_acks(LONG)
        wanted = [(99, 1), *((number % 50, number) for number in range(4900, 5000))]
        second = DomainParticipant(node_id=2)
        assert seen(everything(second, topic_of(second, depth=2)), 101) == wanted
        reader = everything(second, topic_of(second, depth=2))
        os.kill(running[0].pid, signal.SIGKILL)
        third = DomainParticipant(node_id=3)
        late = everything(third, topic_of(third, depth=2))
        assert sorted(one for one in seen(late, 101) if one[1] is not None) == sorted(wanted)
        assert sorted(one for one in seen(reader, 101) if one[1] is not None) == sorted(wanted)
        for participant in (second, third):
            participant.close()


@pytest.mark.slow
@pytest.mark.parametrize("durability", [VOLATILE, LOGGED], ids=["volatile", "logged"])
def test_programs_without_a_node_write_and_read_the_same(site: list[Host], durability: Policy) -> None:
    """Over TCP; the writer's and the reader's node are different ones, and the writer turns to another in between."""
    far = DomainParticipant.remote([host.address for host in site])
    near = DomainParticipant(runtime_dir=site[2].directory)
    near_topic = topic_of(near, durability)
    kept = everything(near, near_topic)
    writer = DataWriter(far, topic_of(far, durability))
    writer.write(Track(1, 1))
    writer.write_many([Track(2, number) for number in range(1000)])
    assert writer.wait_for_acks(LONG)
    os.kill(site[0].running.pid, signal.SIGKILL)
    writer.write_many([Track(3, number) for number in range(1000)])
    assert writer.wait_for_acks(LONG)
    wanted = [(1, 1), (2, 999), (3, 999)]
    other = DomainParticipant.remote([site[1].address])
    for participant in (far, other, near):
        assert seen(everything(participant, topic_of(participant, durability)), 3) == wanted
    assert len(seen(kept, 2001)) == 2001
    for participant in (far, other, near):
        participant.close()


@pytest.mark.slow
def test_after_the_death_of_all_the_last_value_of_each_is_read_back(runtime_dir: Path, tmp_path: Path) -> None:
    wanted = [(1, 1), (2, 4999)]
    with hosts(runtime_dir, 3, f'journal.dir="{tmp_path}"') as site:
        with written(site) as (participants, readers):
            for reader in readers:
                wait_until(lambda reader=reader: reader.read(1))
            for host in site:
                os.kill(host.running.pid, signal.SIGKILL)
        for host in site:
            host.running.process.wait()
            host.start()
        for host in site:
            host.running.wait_ready()
        participants = [DomainParticipant(runtime_dir=host.directory) for host in site]
        readers = [everything(one, topic_of(one, LOGGED)) for one in participants]
        for reader in readers:
            assert [one for one in seen(reader, 2) if one[1] is not None] == wanted
        for participant in participants:
            participant.close()


@contextmanager
def written(site: list[Host]) -> Iterator[tuple[list[DomainParticipant], list[DataReader]]]:
    """Programs beside all hosts, after one has written."""
    participants = [DomainParticipant(runtime_dir=host.directory) for host in site]
    topics = [topic_of(one, LOGGED) for one in participants]
    readers = [everything(one, topic) for one, topic in zip(participants, topics, strict=True)]
    writer = DataWriter(participants[0], topics[0], Qos(STAYS))
    writer.write(Track(1, 1))
    writer.write_many([Track(2, number) for number in range(5000)])
    assert writer.wait_for_acks(LONG, persisted=True)
    yield participants, readers
    for participant in participants:
        participant.close()
