"""ResourceLimits: samples, instances, samples of an instance, at readers and writers.

Goal: what has no room is rejected with its reason, lost by nobody, and comes when there is room; a writer is told which
limit it has reached. Method: one embedded node, keyed IDL types; both kinds of History.
"""

import itertools
import random
from dataclasses import dataclass

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSTimeout,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    Subscriber,
    Topic,
    ViewState,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.status import (
    REJECTED_BY_INSTANCES_LIMIT,
    REJECTED_BY_SAMPLES_LIMIT,
    REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT,
)
from tests.dds.test_sub import LONG
from tests.support import wait_until

QUICK = Policy.Reliability.Reliable(duration(milliseconds=50))


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


@pytest.fixture(params=["", "flight"], ids=["alone", "in an order group"])
def order(request):
    """In which the reader's topic is."""
    return request.param


def limited(participant, order, limits, *more):
    topic = Topic(participant, "t", Track, order=order)
    return DataReader(participant, topic, qos=Qos(limits, *more)), DataWriter(participant, topic)


def send(writer, *tracks):
    for number, height in tracks:
        writer.write(Track(number, height))
    assert writer.wait_for_acks(LONG)


def taken(reader, n=100):
    return [(sample.number, sample.height) for sample in reader.take(n)]


def test_samples_of_an_instance(participant, order):
    """What comes behind the rejected one waits, too, and nothing is lost or out of order."""
    reader, writer = limited(participant, order, Policy.ResourceLimits(max_samples_per_instance=2))
    send(writer, (1, 0), (1, 1), (2, 0), (1, 2), (2, 1), (1, 3))
    assert [sample.height for sample in reader.read(100)] == [0, 1, 0]
    status = reader.get_sample_rejected_status()
    assert (status.total_count, status.last_reason) == (1, REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT)
    assert status.last_instance_handle == reader.lookup_instance(Track(1))
    assert taken(reader, 1) == [(1, 0)]
    assert taken(reader) == [(1, 1), (2, 0), (1, 2), (2, 1)]
    assert taken(reader) == [(1, 3)]
    assert reader.get_sample_lost_status().total_count == 0
    assert reader.get_sample_rejected_status().total_count >= 1


def test_instances(participant, order):
    """One too many waits as long as something is kept of each; then one that has nothing gives up its place."""
    reader, writer = limited(participant, order, Policy.ResourceLimits(max_instances=2))
    send(writer, (1, 0), (2, 0), (3, 0), (1, 1))
    assert taken(reader, 1) == [(1, 0)]
    send(writer, (4, 0))
    assert taken(reader, 1) == [(2, 0)]
    status = reader.get_sample_rejected_status()
    assert status.last_reason in (0, REJECTED_BY_INSTANCES_LIMIT) and status.last_instance_handle == 0
    assert taken(reader) == [(3, 0), (1, 1)] and taken(reader) == [(4, 0)]
    assert reader.lookup_instance(Track(3)) is None or reader.lookup_instance(Track(1)) is None
    send(writer, (3, 1))
    (again,) = reader.take(5)
    assert again.sample_info.view_state == ViewState.New


def test_instances_are_rejected(participant, order):
    reader, writer = limited(participant, order, Policy.ResourceLimits(max_instances=2))
    send(writer, (1, 0), (2, 0), (3, 0))
    assert len(reader.read(10)) == 2
    status = reader.get_sample_rejected_status()
    assert (status.total_count, status.last_reason) == (1, REJECTED_BY_INSTANCES_LIMIT)
    assert reader.get_sample_rejected_status().total_count_change == 0
    assert taken(reader) == [(1, 0), (2, 0)] and taken(reader) == [(3, 0)]


def test_an_instance_that_ended_gives_its_place(participant, order):
    reader, writer = limited(participant, order, Policy.ResourceLimits(max_instances=1))
    send(writer, (1, 0))
    writer.dispose(Track(1))
    send(writer, (2, 0))
    ends = reader.take(10)
    assert [one.sample_info.instance_state for one in ends] == [InstanceState.NotAliveDisposed] * 2
    assert taken(reader) == [(2, 0)]


def test_samples_of_all_instances_with_keep_last(participant, order):
    """KeepLast replaces within an instance, and needs room for a new sample."""
    reader, writer = limited(participant, order, Policy.ResourceLimits(max_samples=2), Policy.History.KeepLast(1))
    send(writer, (1, 0), (1, 1), (2, 0))
    assert [sample.height for sample in reader.read(9)] == [1, 0]
    send(writer, (1, 2), (3, 0))
    assert sorted((one.number, one.height) for one in reader.read(9)) == [(1, 2), (2, 0)]
    assert reader.get_sample_rejected_status().last_reason == REJECTED_BY_SAMPLES_LIMIT
    assert sorted(taken(reader)) == [(1, 2), (2, 0)] and taken(reader) == [(3, 0)]


def test_only_what_is_for_the_reader_needs_room(participant, order):
    topic = Topic(participant, "t", Track, order=order)
    topic.set_topic_filter(lambda topic, sample: sample.height > 0)
    reader = DataReader(participant, topic, qos=Qos(Policy.ResourceLimits(max_samples_per_instance=1)))
    writer = DataWriter(participant, topic)
    send(writer, (1, 1), (1, 0), (2, 0), (2, 5))
    assert taken(reader) == [(1, 1), (2, 5)]
    assert reader.get_sample_rejected_status().total_count == 0


@pytest.mark.parametrize("kept_out_by", ["owner", "source time", "ignored"])
@pytest.mark.parametrize("coherent", [False, True], ids=["plain", "in packets"])
def test_what_would_be_kept_out_needs_no_room(participant, order, kept_out_by, coherent):
    """And holds up nothing behind it. With a history for late joiners, writers that offer sets say all in packets."""
    more = {"owner": [Policy.Ownership.Exclusive], "source time": [Policy.DestinationOrder.BySourceTimestamp]}
    kept = [Policy.Durability.TransientLocal, Policy.History.KeepLast(1)] if coherent else []
    qos = Qos(*more.get(kept_out_by, []), *kept)
    topic = Topic(participant, "t", Track, qos=qos, order=order)
    sets = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=True)) if coherent else None
    publisher = Publisher(participant, sets)
    ignoring = [Policy.IgnoreLocal.Participant] if kept_out_by == "ignored" else []
    with DomainParticipant.embedded() as elsewhere:
        there = Publisher(elsewhere, sets)
        reader = DataReader(participant, topic, qos=Qos(
            Policy.ResourceLimits(max_samples_per_instance=1), Policy.History.KeepAll, *ignoring))
        strength = [Policy.OwnershipStrength(2)] if kept_out_by == "owner" else []
        counts = DataWriter(there, Topic(elsewhere, "t", Track, qos=qos, order=order), qos=Qos(*strength))
        other = DataWriter(publisher, topic)
        counts.write(Track(1, 1), timestamp=1000)
        assert counts.wait_for_acks(LONG)
        other.write(Track(1, 2), timestamp=500)
        assert other.wait_for_acks(LONG)
        counts.write(Track(2, 3), timestamp=1000)
        assert counts.wait_for_acks(LONG)
        assert [(one.number, one.height) for one in reader.read(9)] == [(1, 1), (2, 3)]
        assert reader.get_sample_rejected_status().total_count == 0


def test_an_instance_that_gives_its_place_leaves_nothing_behind(participant, order):
    """Neither its owner nor its deadline; and a sample that a time-based filter holds back keeps it its place."""
    period = duration(milliseconds=20)
    topic = Topic(participant, "t", Track, qos=Qos(Policy.Ownership.Exclusive), order=order)
    reader = DataReader(participant, topic, qos=Qos(Policy.ResourceLimits(max_instances=2)))
    writer = DataWriter(participant, topic, qos=Qos(Policy.OwnershipStrength(2)))
    weak = DataWriter(participant, topic)
    for number in range(50):
        send(writer, (number, 0))
        assert taken(reader) == [(number, 0)]
    assert sum(map(len, reader._intake.standing._owned.values())) == 2
    send(weak, (49, 1), (0, 1))
    assert taken(reader) == [(0, 1)]
    writer.close()
    weak.close()

    topic = Topic(participant, "due", Track, order=order)
    reader = DataReader(participant, topic, qos=Qos(Policy.ResourceLimits(max_instances=1), Policy.Deadline(period)))
    writer = DataWriter(participant, topic, qos=Qos(Policy.Deadline(period)))
    send(writer, (1, 0))
    assert taken(reader) == [(1, 0)]
    writer.dispose(Track(2))  # not a sample: what ends is not missed
    send(writer, (3, 0))
    reader.take(9)
    wait_until(lambda: reader.get_requested_deadline_missed_status().total_count > 3)
    missed = set()
    for _ in range(3):
        wait_until(lambda: reader.get_requested_deadline_missed_status().total_count_change)
        missed.add(reader.get_requested_deadline_missed_status().last_instance_handle)
    assert missed == {writer.lookup_instance(Track(3))}

    topic = Topic(participant, "held", Track, order=order)
    reader = DataReader(participant, topic, qos=Qos(
        Policy.ResourceLimits(max_instances=1), Policy.TimeBasedFilter(duration(hours=1))))
    writer = DataWriter(participant, topic)
    send(writer, (1, 0), (1, 1))
    assert taken(reader) == [(1, 0)]
    send(writer, (2, 0))
    assert taken(reader) == []
    reader.set_qos(Qos(Policy.TimeBasedFilter(0)))
    assert [(one.number, one.height) for one in reader.read(9)] == [(1, 1)]
    assert taken(reader, 1) == [(1, 1)] and taken(reader, 1) == [(2, 0)]  # which one take() might give, one by one


def test_instances_of_a_writer(participant):
    topic = Topic(participant, "t", Track)
    writer = DataWriter(participant, topic, qos=Qos(Policy.ResourceLimits(max_instances=2)))
    DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(1)))
    writer.register_instance(Track(1))
    writer.write(Track(2))
    writer.write(Track(1))
    for call in (writer.write, writer.register_instance, writer.write_dispose,
                 lambda sample: writer.write_many([sample])):
        with pytest.raises(DDSException, match=r"max_instances allows no more: unregister_instance\(\)") as caught:
            call(Track(3))
        assert caught.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    writer.unregister_instance(Track(1))
    writer.write(Track(3))


def test_samples_of_an_instance_at_a_writer(participant):
    """Those that a reader holds back aren't delivered everywhere: the writer waits for them, and no longer than it may.
    """
    topic = Topic(participant, "t", Track, size_max=1000, window=8)
    writer = DataWriter(participant, topic, qos=Qos(Policy.ResourceLimits(max_samples_per_instance=3), QUICK))
    for height in range(50):
        writer.write(Track(1, height))
    assert writer.wait_for_acks(LONG)
    limits = writer._limits
    limits._sent[writer.lookup_instance(Track(1))].extend([1 << 60] * 3)  # as if the group were slow
    with pytest.raises(DDSTimeout, match="max_samples_per_instance allows no more"):
        writer.write(Track(1))
    writer.write(Track(2))
    limits._sent.clear()
    writer.write(Track(1))


def test_what_contradicts_itself(participant):
    topic = Topic(participant, "t", Track)
    for contradiction in (Qos(Policy.ResourceLimits(5, -1, 6)),
                          Qos(Policy.ResourceLimits(max_samples_per_instance=2), Policy.History.KeepLast(3))):
        with pytest.raises(DDSException) as caught:
            DataReader(participant, topic, qos=contradiction)
        assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY


def test_where_each_sample_is_in_a_packet(participant, order):
    """Nodes that keep the last samples of each instance get those of a publisher with coherent access that way."""
    coherent = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=True))
    topic = Topic(participant, "t", Track, Qos(Policy.Durability.TransientLocal, Policy.History.KeepLast(2), QUICK),
                  order=order)
    reader = DataReader(participant, topic, Qos(Policy.History.KeepAll, Policy.ResourceLimits(
        max_instances=2, max_samples_per_instance=2)))
    publisher = Publisher(participant, coherent)
    writer = DataWriter(publisher, topic, Qos(Policy.History.KeepAll))
    send(writer, *((number, 0) for number in range(5)))
    assert [one.number for one in reader.read(9)] == [0, 1]
    assert reader.get_sample_rejected_status().last_reason == REJECTED_BY_INSTANCES_LIMIT
    assert taken(reader, 1) == [(0, 0)] and [one.number for one in reader.read(9)] == [1, 2]
    assert taken(reader) == [(1, 0), (2, 0)] and taken(reader) == [(3, 0), (4, 0)]
    with publisher.coherent():
        for height in range(3):
            writer.write(Track(9, height))
    assert writer.wait_for_acks(LONG) and taken(reader) == [(9, 0), (9, 1), (9, 2)]


def test_of_an_order_group_only_the_readers_topic_needs_room(participant):
    """Samples of other topics take none, whatever their keys; a reader of these goes on."""
    topic, other = (Topic(participant, name, Track, order="flight") for name in ("t", "other"))
    reader = DataReader(participant, topic, qos=Qos(Policy.ResourceLimits(max_instances=1, max_samples_per_instance=1)))
    beside = DataReader(participant, other)
    writer, elsewhere = DataWriter(participant, topic), DataWriter(participant, other)
    send(writer, (1, 0))
    send(elsewhere, *((number, 0) for number in range(5)))
    assert [one.number for one in reader.read(9)] == [1]
    assert reader.get_sample_rejected_status().total_count == 0
    send(writer, (1, 1), (2, 0))
    send(elsewhere, (9, 0))
    assert [one.height for one in reader.read(9)] == [0]
    status = reader.get_sample_rejected_status()
    assert (status.total_count, status.last_reason) == (1, REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT)
    assert taken(beside) == [(number, 0) for number in (0, 1, 2, 3, 4, 9)]
    assert [taken(reader) for _ in range(3)] == [[(1, 0)], [(1, 1)], [(2, 0)]]
    assert reader.get_sample_lost_status().total_count == 0


@pytest.mark.parametrize("in_packets", [False, True])
def test_what_waits_for_room_is_decoded_once(participant, order, in_packets):
    """Goal: limits cost no sample a second decoding, however often its reader looks whether there is room. Method: a
    reader that has taken nothing for a while; what its codec decodes is counted."""
    group = Publisher(participant, Qos(Policy.PresentationAccessScope.Topic(True, True))) if in_packets else participant
    topic = Topic(participant, "t", Track, order=order)
    subscriber = Subscriber(participant, Qos(Policy.PresentationAccessScope.Topic(True, True))) if in_packets else (
        participant)
    reader = DataReader(subscriber, topic, qos=Qos(Policy.ResourceLimits(max_samples_per_instance=1)))
    writer, codec = DataWriter(group, topic), reader._intake.codec
    decoded = []

    class Counting:
        def __getattr__(self, name):
            return getattr(codec, name)

        def decode_lasting(self, payload):
            decoded.append(bytes(payload))
            return codec.decode_lasting(payload)

    reader._intake.codec = Counting()
    for height in range(3):
        send(writer, (1, height))
    for height in range(3):
        for _ in range(4):
            assert reader.get_sample_rejected_status().total_count == min(height + 1, 2)
        assert reader.take(5)[0].height == height
    assert len(decoded) == len(set(decoded)) == 3


# --- whatever writers do

LIMITS = (
    Policy.ResourceLimits(), Policy.ResourceLimits(max_samples=2), Policy.ResourceLimits(max_instances=2),
    Policy.ResourceLimits(max_samples_per_instance=1), Policy.ResourceLimits(3, 2, 2))
SCOPES = {"by topic": Policy.PresentationAccessScope.Topic(True, True),
          "over all topics": Policy.PresentationAccessScope.Group(True, True)}


@pytest.mark.parametrize("scope", list(SCOPES))
@pytest.mark.parametrize("seed", range(8))
def test_readers_of_a_group_lose_nothing_by_their_limits(participant, scope, seed):
    """Goal: whatever has no room comes in the end, in the order in which readers without limits get it. Method: drawn
    at random: limits, what writers of three topics do, alone and in sets, and when something is taken."""
    rng, qos = random.Random(seed), Qos(SCOPES[scope])
    topics = [Topic(participant, name, Track, order="flight") for name in "abc"]
    free, tight = Subscriber(participant, qos), Subscriber(participant, qos)
    readers = {free: [DataReader(free, topic) for topic in topics],
               tight: [DataReader(tight, topic, Qos(rng.choice(LIMITS))) for topic in topics]}
    publishers = [Publisher(participant, qos) for _ in range(2)]
    writers = {one: [DataWriter(one, topic) for topic in topics] for one in publishers}
    heights, found = itertools.count(), {one: [[], [], []] for one in readers}

    def write(publisher):
        rng.choice(writers[publisher]).write(Track(rng.randrange(4), next(heights)))

    def take(subscriber, n):
        """How many came; with a scope over all topics in one list."""
        if scope == "over all topics":
            pairs = subscriber.take(n)
            found[subscriber][0] += [(one.topic.name, sample.height) for one, sample in pairs if is_sample(sample)]
            return len(pairs)
        taken = [reader.take(n) for reader in readers[subscriber]]
        for those, more in zip(found[subscriber], taken, strict=True):
            those += [sample.height for sample in more if is_sample(sample)]
        return sum(map(len, taken))

    for _ in range(80):
        publisher, what = rng.choice(publishers), rng.random()
        if what < 0.6:
            write(publisher)
        elif what < 0.7:
            rng.choice(writers[publisher]).dispose(Track(rng.randrange(4)))
        elif what < 0.8:
            with publisher.coherent():
                for _ in range(rng.randrange(1, 5)):
                    write(publisher)
        else:
            take(tight, rng.randrange(1, 4))
    assert all(one.wait_for_acks(LONG) for those in writers.values() for one in those)
    for subscriber in readers:
        while take(subscriber, 3):
            pass
    assert found[tight] == found[free] and any(found[free])
    assert [one.get_sample_lost_status().total_count for one in readers[tight]] == [0, 0, 0]


def is_sample(one):
    return not isinstance(one, InvalidSample)
