"""set_qos() on living entities.

Goal: what DDS 1.4, 2.2.3 calls changeable changes, at its entity and at all peers, which match anew; what isn't is
refused, and nothing changes then. Method: a test for each policy, with both ends on nodes of their own; every policy
against the table.
"""

import threading
from dataclasses import dataclass

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSStatus,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    ReadCondition,
    SampleState,
    Subscriber,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.messages.operations import KEYLESS_HANDLE
from dds.policy.table import TABLE, number_of, row_of
from tests.dds.test_qos import ALL
from tests.dds.test_sub import LONG
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until

IMMUTABLE = DDSException.DDS_RETCODE_IMMUTABLE_POLICY
MS = duration(milliseconds=1)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


class Ends:
    """A writer at one node, a reader at another."""

    def __init__(self, two_nodes, data_type=bytes, writes=None, reads=None, qos=None):
        one, two = two_nodes
        self.topics = [Topic(participant, "t", data_type, qos=qos) for participant in two_nodes]
        self.publisher, self.subscriber = Publisher(one), Subscriber(two)
        self.writer = DataWriter(self.publisher, self.topics[0], qos=writes)
        self.reader = DataReader(self.subscriber, self.topics[1], qos=reads)
        self.matched(True)

    def matched(self, wanted):
        for end in (self.reader.get_matched_publications, self.writer.get_matched_subscriptions):
            wait_until(lambda end=end: bool(end()) is wanted)

    def told(self):
        """What the reader is told of the writer."""
        return self.reader.get_matched_publication_data(self.writer.instance_handle).qos

    def send(self, *samples):
        for sample in samples:
            self.writer.write(sample)
        assert self.writer.wait_for_acks(LONG)
        return self.reader.take(100)


@pytest.mark.parametrize("policy", [one for one in ALL if not row_of(one).changeable], ids=repr)
def test_what_may_not_change(participant, policy):
    topic = Topic(participant, "t", bytes)
    writer, reader = DataWriter(participant, topic), DataReader(participant, topic)
    for entity in (writer, reader, topic, participant):
        before = entity.get_qos()
        if before[policy] == policy:
            entity.set_qos(Qos(policy))
            continue
        with pytest.raises(DDSException) as caught:
            entity.set_qos(Qos(policy, Policy.Userdata(b"not this either")))
        assert caught.value.code in (
            IMMUTABLE, DDSException.DDS_RETCODE_UNSUPPORTED, DDSException.DDS_RETCODE_INCONSISTENT_POLICY)
        assert entity.get_qos() == before


def test_the_table_is_that_of_dds():
    """DDS 1.4, 2.2.3, the column Changeable."""
    changeable = {"Userdata", "Topicdata", "Groupdata", "Deadline", "LatencyBudget", "OwnershipStrength",
                  "TimeBasedFilter", "Partition", "TransportPriority", "Lifespan", "WriterDataLifecycle",
                  "ReaderDataLifecycle", "EntityFactory"}
    known = {row.scope for row in TABLE if 0 < row.number < 23}
    assert {row.scope for row in TABLE if row.changeable and row.scope in known} == changeable & known


def test_a_qos_that_was_read_can_be_set_again(two_nodes):
    deadline = Policy.Deadline(LONG)
    ends = Ends(two_nodes, reads=Qos(Policy.History.KeepLast(2), deadline), writes=Qos(deadline))
    for entity in (ends.writer, ends.reader, ends.topics[0], ends.publisher, ends.subscriber, *two_nodes):
        entity.set_qos(entity.get_qos())
        entity.qos = entity.qos


def test_wrong_arguments(participant):
    topic = Topic(participant, "t", bytes)
    for wrong in (None, 3, Qos(Policy.History.KeepAll).datareader()):
        with pytest.raises(TypeError):
            topic.set_qos(wrong)
    reader = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(duration(seconds=1))))
    for contradiction in (Policy.Deadline(duration(milliseconds=10)), Policy.TimeBasedFilter(-1)):
        with pytest.raises(DDSException) as caught:
            reader.set_qos(Qos(contradiction))
        assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
    topic.close()
    with pytest.raises(DDSException) as caught:
        topic.set_qos(Qos())
    assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED


def test_data_reaches_whoever_is_matched(two_nodes):
    ends = Ends(two_nodes)
    ends.writer.set_qos(Qos(Policy.Userdata(b"user"), Policy.Property("k", "v")))
    ends.topics[0].set_qos(Qos(Policy.Topicdata(b"topic")))
    ends.publisher.set_qos(Qos(Policy.Groupdata(b"group")))
    wanted = [Policy.Userdata(b"user"), Policy.Property("k", "v"), Policy.Topicdata(b"topic"),
              Policy.Groupdata(b"group")]
    wait_until(lambda: all(policy in ends.told() for policy in wanted))
    ends.reader.set_qos(Qos(Policy.Userdata(b"reader")))
    handle = ends.reader.instance_handle
    wait_until(lambda: Policy.Userdata(b"reader") in ends.writer.get_matched_subscription_data(handle).qos)
    assert ends.writer.get_publication_matched_status().total_count == 1  # nobody was matched anew for that
    assert ends.reader.get_subscription_matched_status().total_count == 1


def test_threads_that_change_different_policies_at_once(two_nodes):
    """Each finds its own changed in the end, at the entity and at whoever is told: none goes back to what it was."""
    ends = Ends(two_nodes)
    steps = 40

    def change(entity, policy):
        return threading.Thread(target=lambda: [entity.set_qos(Qos(policy(step + 1))) for step in range(steps)])

    threads = [change(ends.writer, lambda n: Policy.Userdata(b"%d" % n)), change(ends.writer, Policy.OwnershipStrength),
               change(ends.publisher, lambda n: Policy.Groupdata(b"%d" % n)),
               change(ends.topics[0], lambda n: Policy.Topicdata(b"%d" % n))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    wanted = [Policy.Userdata(b"40"), Policy.OwnershipStrength(40)]
    assert all(one in ends.writer.get_qos() for one in wanted)
    told = [*wanted, Policy.Groupdata(b"40"), Policy.Topicdata(b"40")]
    wait_until(lambda: all(one in ends.told() for one in told))


def test_partitions_of_groups(two_nodes):
    ends = Ends(two_nodes)
    assert ends.send(b"1") == [b"1"]
    ends.publisher.set_qos(Qos(Policy.Partition("a")))
    ends.matched(False)
    assert ends.send(b"2") == []
    ends.subscriber.set_qos(Qos(Policy.Partition(["a", "b"])))
    ends.matched(True)
    assert ends.send(b"3") == [b"3"]
    ends.publisher.set_qos(Qos(Policy.Partition("")))
    ends.subscriber.set_qos(Qos(Policy.Partition("")))
    ends.matched(True)
    assert ends.send(b"4") == [b"4"]
    assert ends.reader.get_subscription_matched_status().total_count == 3
    with pytest.raises(DDSException, match="belongs to the Qos of the Publisher"):
        ends.writer.set_qos(Qos(Policy.Partition("c")))


def test_what_has_come_counts_by_what_was_so_far(two_nodes):
    """A sample that came before the reader's partitions changed is still for it."""
    ends = Ends(two_nodes)
    ends.writer.write(b"1")
    assert ends.writer.wait_for_acks(LONG)
    ends.subscriber.set_qos(Qos(Policy.Partition("elsewhere")))
    assert ends.send(b"2") == [b"1"]


def test_partition_of_a_writer_of_its_own(two_nodes):
    one, two = two_nodes
    writer = DataWriter(one, Topic(one, "t", bytes), qos=Qos(Policy.Partition("a")))
    reader = DataReader(two, Topic(two, "t", bytes), qos=Qos(Policy.Partition("b")))
    assert reader.get_matched_publications() == []
    writer.set_qos(Qos(Policy.Partition("b")))
    wait_until(lambda: reader.get_matched_publications() == [writer.instance_handle])


@pytest.mark.parametrize(("policy", "worse", "better"), [
    (Policy.Deadline, Policy.Deadline(LONG), Policy.Deadline(duration(seconds=1))),
    (Policy.LatencyBudget, Policy.LatencyBudget(LONG), Policy.LatencyBudget(5))], ids=["Deadline", "LatencyBudget"])
def test_what_is_offered_decides_anew(two_nodes, policy, worse, better):
    """Offered worse than requested: both ends count it, and the reader gets no more of it; better: they match again."""
    ends = Ends(two_nodes, reads=Qos(worse), writes=Qos(better))
    ends.reader.set_qos(Qos(better))
    ends.matched(True)
    ends.writer.set_qos(Qos(worse))
    ends.matched(False)
    for status in (ends.reader.get_requested_incompatible_qos_status, ends.writer.get_offered_incompatible_qos_status):
        wait_until(lambda status=status: status().last_policy_id == number_of(policy))
    assert ends.send(b"not for it") == []
    ends.reader.set_qos(Qos(worse))
    ends.matched(True)
    assert ends.send(b"for it") == [b"for it"]
    ends.reader.set_qos(Qos(better))
    ends.matched(False)
    ends.writer.set_qos(Qos(better))
    ends.matched(True)
    assert ends.send(b"again") == [b"again"]


def test_deadlines_of_both_ends(two_nodes):
    """A period that a writer sets anew is watched from its next sample on, one that becomes shorter from the last."""
    ends = Ends(two_nodes, Track)
    ends.writer.set_qos(Qos(Policy.Deadline(duration(seconds=1000))))
    ends.reader.set_qos(Qos(Policy.Deadline(duration(seconds=1000))))
    ends.send(Track(1))
    ends.writer.set_qos(Qos(Policy.Deadline(20 * MS)))
    ends.reader.set_qos(Qos(Policy.Deadline(20 * MS)))
    for status in (ends.writer.get_offered_deadline_missed_status, ends.reader.get_requested_deadline_missed_status):
        wait_until(lambda status=status: status().total_count > 1)
    for end in (ends.writer, ends.reader):
        end.set_qos(Qos(Policy.Deadline(duration(infinite=True))))
    ends.writer.get_offered_deadline_missed_status()
    ends.reader.get_requested_deadline_missed_status()
    ends.send(Track(1))
    assert ends.writer.get_offered_deadline_missed_status().total_count_change == 0
    assert ends.reader.get_requested_deadline_missed_status().total_count_change == 0


@pytest.mark.parametrize("data_type", [bytes, Track], ids=["keyless", "keyed"])
def test_a_reader_that_sets_a_deadline_misses_what_is_silent_already(participant, data_type):
    """Also what it took from the log without a look at each; not what has ended, nor what has never come."""
    topic = Topic(participant, "t", data_type)
    reader, silent = DataReader(participant, topic), DataReader(participant, Topic(participant, "other", data_type))
    writer, period = DataWriter(participant, topic, qos=Qos(Policy.Deadline(MS))), Qos(Policy.Deadline(20 * MS))
    samples = [b"1"] if data_type is bytes else [Track(1), Track(2)]
    for one in samples:
        writer.write(one)
    assert writer.wait_for_acks(LONG) and reader.take(9) == samples
    if data_type is Track:
        writer.dispose(Track(2))
        assert writer.wait_for_acks(LONG) and len(reader.take(9)) == 1
    silent.set_qos(period)
    reader.set_qos(period)
    missed = set()
    for _ in range(4):
        wait_until(lambda: reader.get_requested_deadline_missed_status().total_count_change)
        missed.add(reader.get_requested_deadline_missed_status().last_instance_handle)
    assert missed == {KEYLESS_HANDLE if data_type is bytes else writer.lookup_instance(Track(1))}
    assert silent.get_requested_deadline_missed_status().total_count == 0
    reader.set_qos(Qos(Policy.Deadline(duration(infinite=True))))
    reader.get_requested_deadline_missed_status()
    assert reader.get_requested_deadline_missed_status().total_count_change == 0


def test_strength(two_nodes):
    """The owner is whoever says the greatest strength with its samples."""
    one, two = two_nodes
    exclusive = Qos(Policy.Ownership.Exclusive)
    topics = [Topic(participant, "t", Track, qos=exclusive) for participant in two_nodes]
    first, second = (DataWriter(one, topics[0], qos=Qos(Policy.OwnershipStrength(strength))) for strength in (5, 3))
    reader = DataReader(two, topics[1])
    wait_until(lambda: len(reader.get_matched_publications()) == 2)

    def both(height):
        for number, writer in enumerate((first, second)):
            writer.write(Track(7, height + number))
            assert writer.wait_for_acks(LONG)
        return [sample.height for sample in reader.take(10)]

    assert both(10) == [10]
    second.set_qos(Qos(Policy.OwnershipStrength(9)))
    assert both(20) == [20, 21] and both(30) == [31]
    first.set_qos(Qos(Policy.OwnershipStrength(1 << 20)))
    assert both(40) == [40]


def test_lifespan(two_nodes):
    ends = Ends(two_nodes)
    ends.writer.set_qos(Qos(Policy.Lifespan(1)))
    ends.writer.write(b"gone at once")
    assert ends.writer.wait_for_acks(LONG)
    wait_until(lambda: ends.reader.read(1) == [])
    ends.writer.set_qos(Qos(Policy.Lifespan(duration(infinite=True))))
    assert ends.send(b"stays") == [b"stays"]


@pytest.mark.parametrize("data_type", [bytes, Track], ids=["keyless", "keyed"])
def test_time_based_filter(two_nodes, data_type):
    """What is held back when the filter goes, or becomes shorter, waits no longer than the filter says then."""
    ends = Ends(two_nodes, data_type)
    one = [b"%d" % n if data_type is bytes else Track(1, n) for n in range(9)]
    hour = duration(hours=1)
    ends.reader.set_qos(Qos(Policy.TimeBasedFilter(hour)))
    assert ends.send(one[1], one[2], one[3]) == [one[1]]
    ends.reader.set_qos(Qos(Policy.TimeBasedFilter(0)))
    assert ends.reader.take(9) == [one[3]]
    assert ends.send(one[4], one[5]) == [one[4], one[5]]
    assert ends.reader.get_sample_filtered_status().total_count == 1
    ends.reader.set_qos(Qos(Policy.TimeBasedFilter(hour)))
    assert ends.send(one[6], one[7]) == []
    waits = WaitSet(two_nodes[1])
    waits.attach(ReadCondition(ends.reader, SampleState.NotRead | ViewState.Any | InstanceState.Any))
    ends.reader.set_qos(Qos(Policy.TimeBasedFilter(20 * MS)))
    assert waits.wait(LONG) == 1
    assert ends.reader.take(9) == [one[7]]


def test_a_time_based_filter_that_becomes_longer(participant):
    """What is held back stays so for the new time. Method: the alarm of the shorter time rings meanwhile."""
    topic = Topic(participant, "t", bytes)
    reader = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(200 * MS)))
    second = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(200 * MS)))
    writer = DataWriter(participant, topic)
    writer.write(b"1")
    writer.write(b"2")
    assert writer.wait_for_acks(LONG)
    assert second.take(9) == reader.take(9) == [b"1"]
    reader.set_qos(Qos(Policy.TimeBasedFilter(duration(hours=1))))
    wait_until(lambda: second.take(9) == [b"2"])
    assert reader.take(9) == []


def test_autodispose(two_nodes):
    """Also what the writer's end does, which its node says."""
    ends = Ends(two_nodes, Track)
    ends.send(Track(1), Track(2))
    ends.writer.set_qos(Qos(Policy.WriterDataLifecycle(False)))
    ends.writer.unregister_instance(Track(1))
    (end,) = ends.send()
    assert end.sample_info.instance_state == InstanceState.NotAliveNoWriters
    ends.writer.close()
    found = []
    wait_until(lambda: found.extend(ends.reader.take(9)) or found)
    assert isinstance(found[0], InvalidSample)
    assert found[0].sample_info.instance_state == InstanceState.NotAliveNoWriters


def test_delays_of_what_is_over(two_nodes):
    """Those that are over already go, too."""
    ends = Ends(two_nodes, Track)
    ends.writer.write(Track(1))
    ends.writer.dispose(Track(1))
    assert ends.writer.wait_for_acks(LONG)
    assert len(ends.reader.read(9)) == 2
    ends.reader.set_qos(Qos(Policy.ReaderDataLifecycle(duration(infinite=True), 0)))
    wait_until(lambda: ends.reader.read(9) == [])


def test_a_topic_gives_what_it_has_now_to_those_that_are_made_later(participant):
    topic = Topic(participant, "t", bytes)
    early = DataWriter(participant, topic)
    topic.set_qos(Qos(Policy.Lifespan(LONG)))
    assert Policy.Lifespan not in early.get_qos()
    assert DataWriter(participant, topic).get_qos()[Policy.Lifespan] == Policy.Lifespan(LONG)


@pytest.mark.slow
def test_what_changed_holds_at_the_next_node(runtime_dir):
    """A participant that reattaches opens its readers and writers with what they said last."""
    with daemons(runtime_dir, 2) as nodes:
        with DomainParticipant(node_id=1) as near, DomainParticipant(node_id=2, reattach=True) as mover:
            ends = Ends((mover, near))
            ends.writer.set_qos(Qos(Policy.Userdata(b"x")))
            ends.publisher.set_qos(Qos(Policy.Partition("p")))
            ends.matched(False)
            nodes[1].kill()
            wait_until(lambda: mover.take_status(DDSStatus.NodeChanged) != 0)
            ends.writer.set_qos(Qos(Policy.Userdata(b"while there was no node")))
            nodes.append(Daemon(2, runtime_dir=runtime_dir))
            nodes[-1].wait_ready()
            ends.subscriber.set_qos(Qos(Policy.Partition("p")))
            ends.matched(True)
            assert ends.told()[Policy.Userdata].data == b"while there was no node"
            assert ends.send(b"1") == [b"1"]
