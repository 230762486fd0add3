"""Late joiners of partitions: they begin with what was last written to theirs.

Goal: who comes late to a partition thinks of each instance what those think that have been there all the while,
whatever is written to others. Method: a reader from the beginning beside late ones in each partition, on two nodes;
scripts, and what writers do drawn at random.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dds import DataReader, DataWriter, DomainParticipant, InstanceState, Policy, Publisher, Qos, Subscriber, Topic
from dds.util import duration
from tests.dds.test_late_joiners import STAYS, VOLATILE, Track, qos
from tests.dds.test_late_joiners_of_owners import ALL, EXCLUSIVE, agree, alive, heights, known, settled
from tests.dds.test_ownership import strong
from tests.dds.test_partitions import within
from tests.dds.test_sub import LONG
from tests.support import seeds, wait_until

BY_SOURCE = Policy.DestinationOrder.BySourceTimestamp
NAMES: list[tuple[str, ...]] = [(), ("a",), ("b",)]


def topic_of(participant: DomainParticipant, *more: Policy, kind: type = Track, durability: Policy = VOLATILE,
             depth: int = 1) -> Topic:
    return Topic(participant, "topic", kind, qos(durability, depth, *more))


def reader_in(participant: DomainParticipant, topic: Topic, *names: str, keeps: Qos = ALL) -> DataReader:
    return DataReader(Subscriber(participant, qos=within(*names)), topic, keeps)


def writer_in(participant: DomainParticipant, topic: Topic, *names: str, offers: Qos | None = None) -> DataWriter:
    return DataWriter(Publisher(participant, qos=within(*names)), topic, offers)


def begin(reader: DataReader, *expected: Any) -> None:
    """What it is given first, in any order, and nothing else."""
    wait_until(lambda: len(reader.read(99)) >= len(expected))
    assert sorted(heights(reader)) == sorted(expected)


def test_they_begin_with_what_was_written_to_theirs(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    """Though the same instances were written to others later, and often."""
    topics = [topic_of(each) for each in two_nodes]
    left, right, plain = (writer_in(two_nodes[0], topics[0], *names) for names in (("left",), ("right",), ()))
    settled(left, Track(1, 10), Track(2, 20))
    settled(plain, Track(1, 11))
    settled(right, *(Track(1, 12) for _ in range(300)))
    for each, topic in zip(two_nodes, topics, strict=True):
        begin(reader_in(each, topic, "left"), 10, 20)
        begin(reader_in(each, topic), 11)
        begin(reader_in(each, topic, "right"), 12)
        begin(reader_in(each, topic, "l*", "right"), 10, 12, 20)
        begin(reader_in(each, topic, "*", keeps=Qos(Policy.History.KeepLast(1))), 12, 20)


def test_in_order_groups_too(participant: DomainParticipant) -> None:
    topics = [Topic(participant, name, Track, qos(), order="flight", size_max=200) for name in ("one", "two")]
    writers = [writer_in(participant, topic, name) for topic in topics for name in ("left", "right")]
    for at, writer in enumerate(writers):
        settled(writer, Track(1, at), Track(1, 10 + at))
    for at, (topic, name) in enumerate((topic, name) for topic in topics for name in ("left", "right")):
        begin(reader_in(participant, topic, name), 10 + at)


def test_the_names_make_the_partition_and_not_their_order(participant: DomainParticipant) -> None:
    topic = topic_of(participant)
    writers = [writer_in(participant, topic, *names) for names in (("a", "b"), ("b", "a", "b"))]
    settled(writers[0], Track(1, 10))
    settled(writers[1], Track(1, 11))
    begin(reader_in(participant, topic, "a"), 11)


def test_what_ends_in_one_goes_on_in_the_other(participant: DomainParticipant) -> None:
    topic = topic_of(participant)
    left, right = (writer_in(participant, topic, name, offers=Qos(STAYS)) for name in ("left", "right"))
    settled(left, Track(1, 10), Track(2, 20))
    settled(right, Track(1, 11), Track(2, 21))
    left.dispose(Track(1))
    left.unregister_instance(Track(2))
    settled(left)
    assert known(reader_in(participant, topic, "left")) == {
        1: (10, InstanceState.NotAliveDisposed), 2: (20, InstanceState.NotAliveNoWriters)}
    assert known(reader_in(participant, topic, "right")) == {
        1: (11, InstanceState.Alive), 2: (21, InstanceState.Alive)}


def test_a_writer_that_moves_leaves_what_it_has_written(participant: DomainParticipant) -> None:
    """To another partition; and when it ends, that counts in both."""
    topic = topic_of(participant)
    publisher = Publisher(participant, qos=within("left"))
    writer = DataWriter(publisher, topic, Qos(STAYS))
    settled(writer, Track(1, 10))
    publisher.set_qos(within("right"))
    settled(writer, Track(1, 11))
    late = [reader_in(participant, topic, name) for name in ("left", "right")]
    assert [known(one) for one in late] == [{1: (10, InstanceState.Alive)}, {1: (11, InstanceState.Alive)}]
    writer.close()
    late += [reader_in(participant, topic, name) for name in ("left", "right")]
    for reader, height in zip(late, (10, 11, 10, 11), strict=True):
        wait_until(lambda reader=reader, height=height: {
            one.sample_info.instance_state for one in reader.read(9)} == {InstanceState.NotAliveNoWriters})
        assert [one.height for one in reader.read(9) if one.sample_info.valid_data] == [height]


def test_each_has_its_owner(participant: DomainParticipant) -> None:
    topic = topic_of(participant, EXCLUSIVE)
    weak, strongest = (writer_in(participant, topic, name, offers=strong(rank, STAYS))
                       for name, rank in (("left", 1), ("right", 2)))
    settled(weak, Track(1, 10))
    settled(strongest, Track(1, 11))
    settled(weak, Track(1, 12))
    begin(reader_in(participant, topic, "left"), 12)
    begin(reader_in(participant, topic, "right"), 11)


@pytest.mark.parametrize("more", [EXCLUSIVE, BY_SOURCE], ids=["exclusive", "by source"])
def test_types_without_a_key_whose_topic_has_one_instance(participant: DomainParticipant, more: Policy) -> None:
    topic = topic_of(participant, more, kind=bytes)
    left, right = (writer_in(participant, topic, name) for name in ("left", "right"))
    settled(left, b"left")
    settled(right, b"right", b"last")
    begin(reader_in(participant, topic, "left"), b"left")
    begin(reader_in(participant, topic, "right"), b"last")


def test_a_deadline_that_is_missed_frees_the_instance_where_its_owner_writes(participant: DomainParticipant) -> None:
    """Also when it has moved there: who comes late hears its standby."""
    topic = topic_of(participant, EXCLUSIVE, Policy.Deadline(duration(milliseconds=200)))
    publisher = Publisher(participant, qos=within("left"))
    owner = DataWriter(publisher, topic, strong(2))
    settled(owner, Track(1, 9))
    publisher.set_qos(within("right"))
    settled(owner, Track(1, 10))
    early = reader_in(participant, topic, "right")
    standby = writer_in(participant, topic, "right", offers=strong(1))

    def taken_over() -> bool:
        settled(standby, Track(1, 11))
        return any(one.height == 11 for one in early.read(99))

    wait_until(taken_over)
    wait_until(lambda: heights(reader_in(participant, topic, "right")) == [11])


class Script:
    """What writers in three partitions do at two nodes, drawn at random, and a reader in each from the beginning. Each
    has an instance of its own: of others who write one, late joiners don't hear."""

    def __init__(self, rng: random.Random, participants: tuple[DomainParticipant, DomainParticipant], depth: int,
                 *more: Policy) -> None:
        self.rng, self.participants, self.step = rng, participants, 0
        self.topics = [topic_of(each, *more, depth=depth) for each in participants]
        self.depth = Qos(Policy.History.KeepLast(depth))
        self.early = {names: self.reader(names) for names in NAMES}
        self.publishers: list[Publisher] = []
        self.writers = [self.writer() for _ in range(4)]

    def reader(self, names: tuple[str, ...]) -> DataReader:
        at = self.rng.randrange(2)
        return reader_in(self.participants[at], self.topics[at], *names, keeps=self.depth)

    def writer(self) -> tuple[Publisher, DataWriter]:
        at = self.rng.randrange(2)
        publisher = Publisher(self.participants[at], qos=within(*self.rng.choice(NAMES)))
        ends = Policy.WriterDataLifecycle(self.rng.random() < 0.3)
        return publisher, DataWriter(publisher, self.topics[at], Qos(ends))

    def goes_on(self) -> None:
        n, what = self.rng.randrange(4), self.rng.random()
        publisher, writer = self.writers[n]
        self.step += 1
        if what < 0.7:
            writer.write(Track(n, self.step))
        elif what < 0.78:
            writer.unregister_instance(Track(n))
        elif what < 0.86:
            writer.dispose(Track(n))
        elif what < 0.94:
            publisher.set_qos(within(*self.rng.choice(NAMES)))
        else:
            writer.close()
            self.writers[n] = self.writer()
        assert all(one.wait_for_acks(LONG) for _, one in self.writers)


@pytest.mark.parametrize("seed", seeds(12, quick=3))
def test_at_random_they_think_what_all_think(
    two_nodes: tuple[DomainParticipant, DomainParticipant], seed: int,
) -> None:
    """Of what lives, in each partition: what is written from then on counts for all or none."""
    rng = random.Random(seed)
    script = Script(rng, two_nodes, rng.choice((1, 1, 3)))
    late: list[tuple[tuple[str, ...], DataReader]] = []
    for _ in range(6):
        for _ in range(rng.randrange(1, 25)):
            script.goes_on()
        late += [(names, script.reader(names)) for names in NAMES]
        for _ in range(rng.randrange(3)):
            script.goes_on()
        for names, one in late:
            early = script.early[names]
            wait_until(lambda early=early, one=one: agree(early, one), what=f"{alive(early)} and {alive(one)}")
