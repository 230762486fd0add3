"""Late joiners of instances that several write: they know who is there to write them.

Goal: who comes late thinks of each instance, when its writers go, what those think that have been there all the while.
Method: a reader from the beginning beside late ones, at the writers' node and at another one; scripts, and what writers
do drawn at random.
"""

from __future__ import annotations

import random

import pytest

from dds import DataReader, DataWriter, DomainParticipant, InstanceState, Policy, Qos, Topic
from tests.dds.test_late_joiners import STAYS, VOLATILE, Track, qos
from tests.dds.test_late_joiners_of_owners import agree, alive, settled
from tests.dds.test_sub import LONG
from tests.support import seeds, wait_until

ALL = Qos(Policy.History.KeepAll)
BY_SOURCE = Policy.DestinationOrder.BySourceTimestamp
ALIVE, DISPOSED, NO_WRITERS = InstanceState.Alive, InstanceState.NotAliveDisposed, InstanceState.NotAliveNoWriters


def topic_of(participant: DomainParticipant, *more: Policy, depth: int = 1, durability: Policy = VOLATILE) -> Topic:
    return Topic(participant, "topic", Track, qos(durability, depth, *more))


def state_of(reader: DataReader) -> int | None:
    """Of the one instance that there is."""
    found = reader.read(9)
    return found[-1].sample_info.instance_state if found else None


def comes_to(reader: DataReader, state: int) -> None:
    wait_until(lambda: state_of(reader) == state, what=f"{state!r}, not {state_of(reader)!r}")


@pytest.mark.parametrize("disposes", [False, True], ids=["leaves", "disposes"])
def test_when_the_last_one_goes_the_others_are_there(
    two_nodes: tuple[DomainParticipant, DomainParticipant], disposes: bool,
) -> None:
    one, two = two_nodes
    topics = [topic_of(each) for each in two_nodes]
    ends = Qos(Policy.WriterDataLifecycle(disposes))
    early = DataReader(two, topics[1], ALL)
    first, last = DataWriter(one, topics[0], ends), DataWriter(two, topics[1], ends)
    settled(first, Track(1, 10))
    settled(last, Track(1, 11))
    late = [DataReader(each, topic, ALL) for each, topic in zip(two_nodes, topics, strict=True)]
    for reader in late:
        wait_until(lambda reader=reader: [one.height for one in reader.read(9)] == [11])
    last.close()
    settled(first)
    if disposes:
        for reader in (early, *late):
            comes_to(reader, DISPOSED)
        return
    settled(first, Track(1, 12))
    for reader in (early, *late):
        wait_until(lambda reader=reader: reader.read(9)[-1].height == 12)
        assert state_of(reader) == ALIVE and reader.read(9)[-1].sample_info.no_writers_generation_count == 0
    first.close()
    for reader in (early, *late):
        comes_to(reader, NO_WRITERS)


def test_who_was_there_first_ends_it_for_them_too(participant: DomainParticipant) -> None:
    """It has written before what they are given, and disposes of what it has written as it goes."""
    topic = topic_of(participant)
    first, last = DataWriter(participant, topic), DataWriter(participant, topic, Qos(STAYS))
    settled(first, Track(1, 10))
    settled(last, Track(1, 11))
    late = DataReader(participant, topic)
    first.close()
    comes_to(late, DISPOSED)
    later = DataReader(participant, topic)
    comes_to(later, DISPOSED)
    settled(last, Track(1, 12))
    for reader in (late, later):
        comes_to(reader, ALIVE)
    last.close()
    for reader in (late, later):
        comes_to(reader, NO_WRITERS)


def test_who_leaves_is_not_there(participant: DomainParticipant) -> None:
    topic = topic_of(participant)
    first, last = (DataWriter(participant, topic, Qos(STAYS)) for _ in range(2))
    settled(first, Track(1, 10))
    settled(last, Track(1, 11))
    first.unregister_instance(Track(1))
    settled(first)
    late = DataReader(participant, topic)
    last.close()
    comes_to(late, NO_WRITERS)


def test_who_has_written_what_was_older_is_there(participant: DomainParticipant) -> None:
    """In a topic that is ordered by source its sample doesn't count."""
    topic = topic_of(participant, BY_SOURCE)
    early = DataReader(participant, topic)
    newer, older = (DataWriter(participant, topic, Qos(STAYS, BY_SOURCE)) for _ in range(2))
    settled(newer, Track(1, 10), timestamp=2_000_000_000)
    settled(older, Track(1, 11), timestamp=1_000_000_000)
    late = DataReader(participant, topic)
    for reader in (early, late):
        wait_until(lambda reader=reader: [one.height for one in reader.read(9)] == [10])
    newer.close()
    settled(older, Track(1, 12), timestamp=3_000_000_000)
    for reader in (early, late):
        wait_until(lambda reader=reader: reader.read(9)[-1].height == 12)
        assert reader.read(9)[-1].sample_info.no_writers_generation_count == 0


class Script:
    """What three writers at two nodes do, drawn at random, and a reader that has been there all the while."""

    def __init__(self, rng: random.Random, participants: tuple[DomainParticipant, DomainParticipant],
                 depth: int) -> None:
        self.rng, self.participants, self.step = rng, participants, 0
        self.topics = [topic_of(each, depth=depth) for each in participants]
        self.depth = Qos(Policy.History.KeepLast(depth))
        self.early = DataReader(participants[1], self.topics[1], self.depth)
        self.writers = [self.writer() for _ in range(3)]
        self.written: list[set[int]] = [set() for _ in range(3)]

    def writer(self) -> DataWriter:
        at = self.rng.randrange(2)
        return DataWriter(self.participants[at], self.topics[at], Qos(
            Policy.WriterDataLifecycle(self.rng.random() < 0.3)))

    def goes_on(self) -> None:
        n, number, what = self.rng.randrange(3), self.rng.randrange(3), self.rng.random()
        self.step += 1
        if what < 0.65:
            self.writers[n].write(Track(number, self.step))
            self.written[n].add(number)
        elif what < 0.8:
            self.writers[n].unregister_instance(Track(number))
            self.written[n].discard(number)
        elif what < 0.88 and number in self.written[n]:  # who ends what it has not written is more than nodes go by
            self.writers[n].dispose(Track(number))
        elif what >= 0.88:
            self.writers[n].close()
            self.writers[n] = self.writer()
            self.written[n].clear()
        assert all(one.wait_for_acks(LONG) for one in self.writers)

    def late(self) -> DataReader:
        at = self.rng.randrange(2)
        return DataReader(self.participants[at], self.topics[at], self.depth)


@pytest.mark.parametrize("seed", seeds(16, quick=4))
def test_at_random_they_think_what_all_think(
    two_nodes: tuple[DomainParticipant, DomainParticipant], seed: int,
) -> None:
    """Of what lives. (What has ended, nodes may have forgotten.)"""
    rng = random.Random(seed)
    script = Script(rng, two_nodes, rng.choice((1, 1, 3)))
    late: list[DataReader] = []
    for _ in range(6):
        for _ in range(rng.randrange(1, 25)):
            script.goes_on()
        late.append(script.late())
        for _ in range(rng.randrange(3)):
            script.goes_on()
        for one in late:
            wait_until(lambda one=one: agree(script.early, one), what=f"{alive(script.early)} and {alive(one)}")
