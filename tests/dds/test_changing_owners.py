"""Exclusive ownership, while who meets whom changes: partitions, and what is offered or asked for.

Goal: a writer that a reader doesn't hear any more keeps no weaker one from being heard, whatever has parted them; all
readers that stay change at the same sample; and who comes late thinks the same. What a writer has written ends with it
also where it was parted from the reader before. Method: set_qos() of each end, with readers that were there from the
beginning and late ones, at two nodes, with and without keys, in an order group, and while the publisher is suspended.
"""

from dataclasses import dataclass

import pytest

import dds
from dds import DataReader, DataWriter, Policy, Publisher, Qos, Subscriber, Topic
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.util import duration
from tests.dds.test_sub import LONG
from tests.support import wait_until

EXCLUSIVE = Policy.Ownership.Exclusive
A, B = Qos(Policy.Partition("a")), Qos(Policy.Partition("b"))


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


@dataclass
class Plain(IdlStruct):
    height: int = 0


def strong(strength, *more):
    return Qos(Policy.OwnershipStrength(strength), *more)


def settled(writer, *samples):
    for sample in samples:
        writer.write(sample)
    assert writer.wait_for_acks(LONG)


def heights(reader):
    return [one.height for one in reader.take(99) if not isinstance(one, dds.InvalidSample)]


class Standby:
    """An owner and a weaker writer at one node, each with a publisher of its own, and a reader at each node."""

    def __init__(self, two_nodes, kind=Track, order=""):
        self.nodes, self.kind = two_nodes, kind
        self.topics = [Topic(each, "t", kind, order=order, qos=Qos(
            EXCLUSIVE, Policy.Durability.TransientLocal, Policy.History.KeepLast(1))) for each in two_nodes]
        self.publishers = [Publisher(two_nodes[0], A) for _ in range(2)]
        self.subscribers = [Subscriber(each, A) for each in two_nodes]
        self.owner, self.weak = (DataWriter(publisher, self.topics[0], strong(strength)) for publisher, strength in
                                 zip(self.publishers, (2, 1), strict=True))
        self.readers = [DataReader(subscriber, topic, Qos(Policy.History.KeepAll)) for subscriber, topic in
                        zip(self.subscribers, self.topics, strict=True)]
        for reader in self.readers:
            wait_until(lambda reader=reader: len(reader.get_matched_publications()) == 2)

    def sample(self, height):
        return self.kind(1, height) if self.kind is Track else self.kind(height)

    def write(self, writer, height):
        settled(writer, self.sample(height))

    def come(self, *wanted):
        for reader in self.readers:
            found = []
            wait_until(lambda reader=reader, found=found: found.extend(heights(reader)) or len(found) >= len(wanted))
            assert found == [*wanted]


@pytest.mark.parametrize(("kind", "order"), [(Track, ""), (Plain, ""), (Track, "group")],
                         ids=["keyed", "keyless", "in a group"])
def test_an_owner_that_writes_to_others_owns_nothing_where_it_was(two_nodes, kind, order):
    """Also if it writes nothing there; and as soon as it comes back and writes, it owns again."""
    ends = Standby(two_nodes, kind, order)
    ends.write(ends.owner, 20)
    ends.write(ends.weak, 10)
    ends.come(20)
    ends.publishers[0].set_qos(B)
    ends.write(ends.weak, 11)
    ends.come(11)
    ends.write(ends.owner, 21)
    ends.write(ends.weak, 12)
    ends.come(12)
    ends.publishers[0].set_qos(A)
    ends.write(ends.weak, 13)
    ends.write(ends.owner, 22)
    ends.write(ends.weak, 14)
    ends.come(13, 22)


def test_who_comes_late_thinks_the_same(two_nodes):
    ends = Standby(two_nodes)
    ends.write(ends.owner, 20)
    ends.publishers[0].set_qos(B)
    ends.write(ends.weak, 11)
    ends.come(20, 11)
    for subscriber, topic in zip(ends.subscribers, ends.topics, strict=True):
        ends.readers.append(DataReader(subscriber, topic, Qos(Policy.History.KeepAll)))
    for late in ends.readers[2:]:
        wait_until(lambda late=late: [one.height for one in late.read(9)] == [11])
        late.take(9)
    ends.write(ends.weak, 12)
    ends.come(12)


def test_a_reader_that_listens_elsewhere_hears_who_is_there(two_nodes):
    ends = Standby(two_nodes)
    ends.write(ends.owner, 20)
    ends.come(20)
    ends.publishers[1].set_qos(B)
    for subscriber in ends.subscribers:
        subscriber.set_qos(B)
    ends.write(ends.weak, 11)
    ends.come(11)
    ends.write(ends.owner, 21)
    for subscriber in ends.subscribers:
        subscriber.set_qos(Qos(Policy.Partition("[ab]")))
    ends.write(ends.weak, 12)
    ends.write(ends.owner, 22)
    ends.write(ends.weak, 13)
    ends.come(12, 22)
    for subscriber in ends.subscribers:
        subscriber.set_qos(Qos(Policy.Partition(["a", "c"])))  # the owner is still heard
    ends.publishers[1].set_qos(A)
    ends.write(ends.weak, 14)
    ends.write(ends.owner, 23)
    ends.come(23)


def test_a_suspended_publisher_says_it_where_its_samples_come(two_nodes):
    ends = Standby(two_nodes)
    ends.publishers[0].suspend()
    ends.owner.write(ends.sample(20))
    ends.publishers[0].set_qos(B)
    ends.publishers[0].resume()
    ends.write(ends.owner, 21)
    ends.write(ends.weak, 11)
    ends.come(20, 11)


@pytest.mark.parametrize("parted_by", ["writer", "reader"])
def test_an_owner_that_does_not_match_any_more(two_nodes, parted_by):
    """Nor does it once it has ended, of which such a reader heard nothing."""
    ends = Standby(two_nodes)
    ends.write(ends.owner, 20)
    ends.write(ends.weak, 10)
    ends.come(20)
    lazy, quick = (Qos(Policy.LatencyBudget(duration(milliseconds=n))) for n in (50, 5))
    if parted_by == "writer":
        ends.owner.set_qos(lazy)
    ends.weak.set_qos(Qos(Policy.LatencyBudget(0)))
    for reader in ends.readers:
        reader.set_qos(Qos(Policy.LatencyBudget(0)) if parted_by == "writer" else quick)
    if parted_by == "reader":
        ends.owner.set_qos(lazy)
    for reader in ends.readers:
        wait_until(lambda reader=reader: reader.get_matched_publications() == [ends.weak.instance_handle])
    ends.write(ends.owner, 21)
    ends.write(ends.weak, 11)
    ends.come(11)
    ends.owner.close()
    ends.write(ends.weak, 12)
    ends.come(12)


def test_what_was_written_ends_with_a_writer_that_does_not_match_any_more(two_nodes):
    """Any writer is heard here. Before, the instance stayed alive for as long as the reader was there."""
    one, two = two_nodes
    topics = [Topic(each, "t", Track) for each in two_nodes]
    writer, reader = DataWriter(one, topics[0]), DataReader(two, topics[1])
    wait_until(lambda: reader.get_matched_publications())
    settled(writer, Track(1, 10))
    wait_until(lambda: reader.read(9))
    writer.set_qos(Qos(Policy.LatencyBudget(5)))
    wait_until(lambda: not reader.get_matched_publications())
    settled(writer, Track(2, 20))
    writer.close()
    wait_until(lambda: len(reader.read(9)) == 2)
    (sample, end) = reader.take(9)
    assert sample.height == 10 and isinstance(end, dds.InvalidSample) and end.key_sample.number == 1
    assert end.sample_info.instance_state == dds.InstanceState.NotAliveDisposed


def test_a_group_changes_with_all_that_is_in_it_or_not_at_all(participant):
    """Method: of two writers of a publisher one has no room for so long a name beside its samples."""
    publisher, subscriber = Publisher(participant, A), Subscriber(participant, A)
    topic, narrow = Topic(participant, "t", bytes), Topic(participant, "n", Plain, size_max=39)
    writer, small = DataWriter(publisher, topic), DataWriter(publisher, narrow)
    reader = DataReader(subscriber, topic)
    with pytest.raises(dds.DDSException, match="size_max"):
        publisher.set_qos(Qos(Policy.Partition("b" * 30)))
    for one in (publisher, writer, small):
        assert one.get_qos()[Policy.Partition] == Policy.Partition("a")
    settled(writer, b"1")
    assert reader.take(9) == [b"1"]
