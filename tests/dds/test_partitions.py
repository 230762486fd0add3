"""Partition: who writes to what, and reads from what, within one topic.

Goal: a reader gets exactly the samples of the writers that have a partition in common with it, at every node, whatever
was announced when; others match with nobody and count nothing as incompatible.
Method: publishers and subscribers with names and patterns, on embedded nodes and on two.
"""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dds import DataReader, DataWriter, Policy, Publisher, Qos, Subscriber, Topic
from dds.core import DDSStatus
from dds.exceptions import DDSException
from dds.policy.policies import partitions_meet
from tests.dds.test_sub import LONG
from tests.support import wait_until


def within(*names):
    return Qos(Policy.Partition(names))


def settled(writer, *samples):
    for sample in samples:
        writer.write(sample)
    assert writer.wait_for_acks(LONG)


def test_each_gets_what_is_for_it(participant):
    topic = Topic(participant, "topic", bytes)
    names = [(), ("left",), ("right",), ("left", "right"), ("*",), ("r*",)]
    readers = {one: DataReader(Subscriber(participant, qos=within(*one)), topic) for one in names}
    writers = {one: DataWriter(Publisher(participant, qos=within(*one)), topic) for one in names[:4]}
    for one, writer in writers.items():
        settled(writer, "+".join(one).encode())
    plain, left, right, both = b"", b"left", b"right", b"left+right"
    assert {one: reader.take(9) for one, reader in readers.items()} == {
        (): [plain], ("left",): [left, both], ("right",): [right, both], ("left", "right"): [left, right, both],
        ("*",): [plain, left, right, both], ("r*",): [right, both]}
    assert len(readers["left",].get_matched_publications()) == 2
    assert len(writers["left",].get_matched_subscriptions()) == 3
    assert readers[()].get_subscription_matched_status().current_count == 1
    assert not readers[()].read_status(DDSStatus.RequestedIncompatibleQos)
    assert readers[()].get_requested_incompatible_qos_status().total_count == 0


def test_at_another_node(two_nodes):
    one, two = two_nodes
    topics = [Topic(each, "topic", bytes) for each in two_nodes]
    reader, plain = DataReader(Subscriber(two, qos=within("a")), topics[1]), DataReader(two, topics[1])
    writer = DataWriter(Publisher(one, qos=within("a")), topics[0])
    settled(writer, b"x")
    wait_until(lambda: reader.read(1) == [b"x"])
    assert plain.take(9) == []
    got = plain.get_matched_publications()
    assert got == [] and len(reader.get_matched_publications()) == 1


def test_without_a_publisher_of_its_own_a_writer_says_it_itself(participant):
    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, topic, qos=within("a")), DataWriter(participant, topic, qos=within("a"))
    plain = DataReader(participant, topic)
    settled(writer, b"x")
    assert reader.take(9) == [b"x"] and plain.take(9) == []


@pytest.mark.parametrize("entity", [DataWriter, DataReader])
def test_a_group_decides_for_its_own(participant, entity):
    group = Publisher(participant) if entity is DataWriter else Subscriber(participant)
    with pytest.raises(DDSException, match="belongs to the Qos of the") as caught:
        entity(group, Topic(participant, "topic", bytes), qos=within("a"))
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY


def test_one_batch_has_what_is_for_the_reader(participant):
    np = pytest.importorskip("numpy")
    topic = Topic(participant, "numbers", np.dtype("<u4"))
    reader = DataReader(participant, topic)
    here, there = DataWriter(participant, topic), DataWriter(Publisher(participant, qos=within("a")), topic)
    settled(here, 1, 2)
    settled(there, 3)
    settled(here, 4)
    got = []
    while len(batch := reader.take_array(9)):
        got += batch.tolist()
    assert got == [1, 2, 4]


@pytest.mark.parametrize("history", [Policy.History.KeepAll, Policy.History.KeepLast(1)], ids=repr)
def test_a_plain_sample_is_not_lost_for_one_of_another_partition(participant, history):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic, qos=Qos(history))
    here, there = DataWriter(participant, topic), DataWriter(Publisher(participant, qos=within("a")), topic)
    settled(here, b"1")
    settled(there, b"2", b"3")
    assert reader.read_status(DDSStatus.DataAvailable)
    assert reader.take(9) == [b"1"]
    settled(there, b"4")
    assert not reader.read_status(DDSStatus.DataAvailable) and reader.take(9) == []
    settled(here, b"5")
    settled(there, b"6")
    assert reader.take_next() == b"5" and reader.take_next() is None


def test_what_is_remembered_of_partitions_is_bounded():
    from dds.readers.standing import NAMES_MAX, Standing

    standing = Standing(within("wanted*"))
    for n in range(3 * NAMES_MAX // 100):
        names = tuple(f"{n}/{k}" for k in range(100))
        assert not standing.reaches(names) and standing.reaches((*names, "wanted"))
        assert sum(map(len, standing._reached)) <= NAMES_MAX


@given(st.lists(st.sampled_from(["", "a", "ab", "b", "a*", "*", "?b", "[a", "[ab]"]), max_size=3),
       st.lists(st.sampled_from(["", "a", "ab", "b", "a*", "*", "?b", "[a", "[ab]"]), max_size=3))
def test_meeting_is_mutual(some, others):
    """And as its definition has it: equal names, or a pattern of one that a name of the other fits."""
    def fit(one, other):
        return one == other or (set("*?[") & set(one) and not set("*?[") & set(other) and fnmatchcase(other, one))

    meet = any(fit(one, other) or fit(other, one) for one in some or [""] for other in others or [""])
    assert partitions_meet(tuple(some), tuple(others)) == partitions_meet(tuple(others), tuple(some)) == bool(meet)
