"""What a writer says of itself with each sample.

Goal: any writer's words come back whole, and bytes that no writer sends are an error of their own.
Method: random values, random bytes, without a node; then the room that topics leave for it.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dds import DataReader, DataWriter, Policy, Publisher, Qos, Subscriber, Topic
from dds.exceptions import DDSException
from dds.internal import dds_infinity
from dds.messages.inline_qos import NOTHING, InlineQos, of_writer, split
from dds.messages.operations import ANNOUNCES_QOS, WRITES
from dds.policy.table import PARTITIONS_MAX
from tests.dds.test_sub import LONG

NAMES = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=4)


@given(st.binary(), st.integers(0, (1 << 63) - 1), st.integers(-1 << 31, (1 << 31) - 1), NAMES)
def test_there_and_back(payload, lifespan, strength, names):
    said = InlineQos(lifespan, strength, tuple(names))
    encoded = said.encoded()
    assert (encoded == b"") == (said == NOTHING)
    if encoded:
        assert split(payload + encoded) == (payload, said)


@given(st.binary(max_size=200))
def test_what_no_writer_sends(data):
    try:
        payload, said = split(data)
    except ValueError:
        return
    assert data.startswith(payload) and len(payload) <= len(data) - 14 and said.lifespan >= 0


def test_more_names_than_a_writer_may_have_are_not_looked_at(participant, caplog):
    """A program that writes to its inbox what it likes. The reader says that it can't read that, and goes on."""
    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(Subscriber(participant, qos=Qos(Policy.Partition("a*"))), topic), DataWriter(
        Publisher(participant, qos=Qos(Policy.Partition("ab"))), topic)
    names = bytes(PARTITIONS_MAX + 1)
    writer._inbox.write(b"x" + names + struct.pack("<iHq", 0, len(names), 0), 0, 1.0, WRITES | ANNOUNCES_QOS)
    writer.write(b"y")
    assert writer.wait_for_acks(LONG)
    assert reader.take(9) == [b"y"]
    assert reader.get_sample_lost_status().total_count == 1
    assert "4097 bytes of partitions' names: 4096 are the most" in caplog.text


def test_what_asks_for_nothing_says_nothing():
    assert of_writer(Qos()).encoded() == b""
    assert of_writer(Qos(Policy.Lifespan(dds_infinity), Policy.OwnershipStrength(0), Policy.Partition(""))) == NOTHING
    assert of_writer(Qos(Policy.Lifespan(5), Policy.OwnershipStrength(-3), Policy.Partition(["a", "b"]))) == InlineQos(
        5, -3, ("a", "b"))


def test_the_largest_sample_has_room(participant):
    np = pytest.importorskip("numpy")
    topic = Topic(participant, "records", np.dtype([("a", "<u4"), ("b", "S60")]))
    reader = DataReader(participant, topic)
    writer = DataWriter(participant, topic, qos=Qos(Policy.Lifespan(1 << 60), Policy.OwnershipStrength(1)))
    writer.write((7, b"x" * 60))
    with writer.loan() as record:
        record["a"] = 8
    assert writer.write_many(np.array([(9, b""), (10, b"")], topic.data_type)) == 2
    assert writer.wait_for_acks(LONG)
    assert [one.a for one in reader.take(9)] == [7, 8, 9, 10]


def test_more_than_the_topic_has_room_for(participant):
    np = pytest.importorskip("numpy")
    long = Publisher(participant, qos=Qos(Policy.Partition("x" * 100)))
    with pytest.raises(DDSException, match=r"takes 31 bytes; a sample of .* has up to 4, .* another 114") as caught:
        DataWriter(long, Topic(participant, "records", np.dtype("<u4"), size_max=31))
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
    for size_max in (118, 40):  # the second is too little for a slot, so it goes beside
        wide = Topic(participant, f"wide {size_max}", np.dtype("<u4"), size_max=size_max)
        writer = DataWriter(long, wide)
        reader = DataReader(Subscriber(participant, qos=Qos(Policy.Partition("x*"))), wide)
        writer.write(7)
        assert writer.wait_for_acks(LONG) and [int(one.value) for one in reader.take(9)] == [7]


def test_a_sample_of_bytes_that_leaves_no_room(participant):
    topic = Topic(participant, "bytes", bytes, size_max=20)
    writer = DataWriter(participant, topic, qos=Qos(Policy.Lifespan(1 << 60)))
    writer.write(bytes(6))
    with pytest.raises(ValueError, match="size_max"):
        writer.write(bytes(7))
    with writer.loan() as memory:
        assert len(memory) == 6


def test_a_sample_in_doubt_is_given_without_it(participant):
    from dds.messages.operations import ANNOUNCES_QOS, WRITES
    from spindle.client import Unacknowledged

    topic = Topic(participant, "bytes", bytes)
    writer = DataWriter(participant, topic, qos=Qos(Policy.OwnershipStrength(3)))
    writer._link._doubts = [Unacknowledged(0, 5, b"abc" + InlineQos(strength=3).encoded(), WRITES | ANNOUNCES_QOS)]
    (one,) = writer.take_unacknowledged()
    assert one.sample == b"abc" and one.operation == "write"
