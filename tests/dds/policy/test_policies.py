"""What Spindle makes of a Qos: refusals, levels, matching.

Goal: every policy is honoured or refused, never ignored; levels follow the table of the design; matching follows DDS
1.4, 2.2.3.
Method: tables of cases, without a node.
"""

import pytest

from dds.exceptions import DDSException
from dds.internal import dds_infinity
from dds.policy import policies
from dds.policy.policies import DEFAULT, check, incompatible_policy, level_of
from dds.policy.table import PARTITIONS_MAX, number_of
from dds.qos import DataReaderQos, DataWriterQos, Policy, Qos
from tests.dds.test_qos import ALL

RELIABLE = Policy.Reliability.Reliable(1_000_000)
BEST_EFFORT = Policy.Reliability.BestEffort

HONOURED = [
    RELIABLE, BEST_EFFORT, Policy.Durability.Volatile, Policy.Durability.TransientLocal, Policy.Durability.Transient,
    Policy.Durability.Persistent, Policy.History.KeepAll, Policy.History.KeepLast(1), Policy.ResourceLimits(),
    Policy.ResourceLimits(max_samples=5), Policy.DurabilityService(0, Policy.History.KeepLast(5), -1, -1, -1),
    Policy.DestinationOrder.ByReceptionTimestamp, Policy.DestinationOrder.BySourceTimestamp,
    Policy.PresentationAccessScope.Instance(False, False),
    Policy.PresentationAccessScope.Topic(True, True), Policy.PresentationAccessScope.Group(True, False),
    Policy.PresentationAccessScope.Topic(False, True), Policy.LatencyBudget(1000), Policy.Ownership.Shared,
    Policy.Ownership.Exclusive, Policy.OwnershipStrength(-1), Policy.Liveliness.Automatic(policies.LEASE_MIN),
    Policy.Liveliness.ManualByTopic(dds_infinity), Policy.Liveliness.ManualByParticipant(1 << 40),
    Policy.Liveliness.Automatic(dds_infinity), Policy.Deadline(dds_infinity), Policy.Deadline(1),
    Policy.Lifespan(dds_infinity), Policy.Lifespan(1),
    Policy.TimeBasedFilter(0), Policy.TimeBasedFilter(1), Policy.Partition(()), Policy.Partition(""),
    Policy.Partition(["a", "b*"]), Policy.TransportPriority(7), Policy.ReaderDataLifecycle(0, 1),
    Policy.WriterDataLifecycle(False), Policy.WriterDataLifecycle(True),
    Policy.ReaderDataLifecycle(dds_infinity, dds_infinity),
    Policy.IgnoreLocal.Nothing, Policy.IgnoreLocal.Participant, Policy.IgnoreLocal.Process,
    Policy.TypeConsistency.DisallowTypeCoercion(), Policy.TypeConsistency.AllowTypeCoercion(),
    Policy.DataRepresentation(True, False),
    Policy.EntityName("x"), Policy.Property("a", "b"), Policy.BinaryProperty("a", b"b"), Policy.Userdata(b"x"),
    Policy.Topicdata(b"x"), Policy.Groupdata(b"x")]

IMPOSSIBLE = [
    Policy.Reliability.Reliable(-1), Policy.History.KeepLast(0), Policy.ResourceLimits(0), Policy.ResourceLimits(-2),
    Policy.ResourceLimits(max_instances=0), Policy.LatencyBudget(-1),
    Policy.DurabilityService(0, Policy.History.KeepLast(0), -1, -1, -1), Policy.OwnershipStrength(1 << 31),
    Policy.Liveliness.Automatic(policies.LEASE_MIN - 1), Policy.Liveliness.ManualByTopic(0),
    Policy.Deadline(0), Policy.Lifespan(0), Policy.TimeBasedFilter(-1),
    Policy.Partition("a\0b"), Policy.Partition("x" * (PARTITIONS_MAX + 1)), Policy.ReaderDataLifecycle(-1, 0)]


@pytest.mark.parametrize("policy", HONOURED, ids=repr)
def test_honoured(policy):
    assert policy in check("DataReader", Qos(policy), DataReaderQos)


@pytest.mark.parametrize("entity", ["DataWriter", "Topic", "DomainParticipant", "Publisher"])
def test_only_readers_ignore(entity):
    with pytest.raises(DDSException, match="give it to the DataReader") as caught:
        check(entity, Qos(Policy.IgnoreLocal.Process), DataReaderQos)
    assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED


@pytest.mark.parametrize(("depth", "limits", "keyed", "kept"), [
    (0, (-1, -1, -1), True, (0, 0, 0, 5)), (3, (-1, -1, -1), True, (3, 0, 0, 5)), (0, (-1, -1, 4), True, (4, 0, 0, 5)),
    (3, (9, 7, 4), True, (3, 9, 7, 5)), (3, (-1, -1, 4), False, (3, 0, 0, 0)), (0, (7, -1, 4), False, (4, 0, 0, 0)),
    (9, (7, -1, -1), False, (7, 0, 0, 0)), (0, (7, 1, -1), False, (7, 0, 0, 0))])
def test_what_a_durability_service_keeps(depth, limits, keyed, kept):
    history = Policy.History.KeepLast(depth) if depth else Policy.History.KeepAll
    found = policies.kept_by(Policy.DurabilityService(5, history, *limits), keyed, "")
    assert found == kept and found.by_instance == any(kept)
    if limits[:2] == (-1, -1):  # a group keeps samples of other topics, too, which may have a key
        found = policies.kept_by(Policy.DurabilityService(5, history, *limits), keyed, "group")
        assert found == (kept[0], 0, 0, 5)


@pytest.mark.parametrize(("limits", "keyed"), [((-1, 3, -1), True), ((5, -1, -1), False)])
def test_limits_that_nodes_can_not_keep(limits, keyed):
    with pytest.raises(DDSException, match="of an order group together") as caught:
        policies.kept_by(Policy.DurabilityService(0, Policy.History.KeepAll, *limits), keyed, "group")
    assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED


@pytest.mark.parametrize("policy", IMPOSSIBLE, ids=repr)
def test_impossible_values(policy):
    with pytest.raises(DDSException) as caught:
        check("DataReader", Qos(policy), DataReaderQos)
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY


def test_no_scope_is_forgotten():
    scopes = {one.__scope__.split("<")[0] for one in ALL}
    assert scopes == {one.__scope__.split("<")[0] for one in HONOURED} | {"OwnershipStrength"}


def test_contradictions_and_wrong_types():
    with pytest.raises(DDSException) as caught:
        qos = Qos(Policy.History.KeepLast(5), Policy.ResourceLimits(max_samples_per_instance=4))
        check("DataReader", qos, DataReaderQos)
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
    with pytest.raises(TypeError):
        check("DataReader", False, DataReaderQos)
    with pytest.raises(TypeError, match="for a DataWriter, not for a DataReader"):
        check("DataReader", DataWriterQos(), DataReaderQos)
    assert check("DataReader", None, DataReaderQos) == Qos()


@pytest.mark.parametrize(("said", "level"), [
    ((), 1), ((RELIABLE,), 1), ((BEST_EFFORT,), 0), ((Policy.Durability.Volatile,), 1),
    ((BEST_EFFORT, Policy.Durability.Volatile), 0), ((RELIABLE, Policy.Durability.TransientLocal), 2),
    ((Policy.Durability.Transient,), 2), ((Policy.Durability.Persistent,), 3),
    ((RELIABLE, Policy.Durability.Persistent), 3), ((BEST_EFFORT, Policy.Durability.TransientLocal), 2)], ids=repr)
def test_levels(said, level):
    assert level_of(Qos(*said)) == level


@pytest.mark.parametrize(("offered", "requested", "obstacle"), [
    ((), (), None),
    ((), (BEST_EFFORT,), None),
    ((BEST_EFFORT,), (), "Reliability"),
    ((BEST_EFFORT,), (BEST_EFFORT,), None),
    ((Policy.Durability.Volatile,), (Policy.Durability.TransientLocal,), "Durability"),
    ((Policy.Durability.TransientLocal,), (Policy.Durability.Volatile,), None),
    ((Policy.Durability.TransientLocal,), (Policy.Durability.Persistent,), "Durability"),
    ((Policy.Durability.Persistent,), (Policy.Durability.Transient,), None),
    ((), (Policy.LatencyBudget(5),), None),
    ((Policy.LatencyBudget(6),), (Policy.LatencyBudget(5),), "LatencyBudget"),
    ((), (Policy.DestinationOrder.BySourceTimestamp,), "DestinationOrder"),
    ((Policy.DestinationOrder.BySourceTimestamp,), (), None),
    ((), (Policy.PresentationAccessScope.Instance(False, True),), "PresentationAccessScope"),
    ((), (Policy.PresentationAccessScope.Topic(False, False),), "PresentationAccessScope"),
    ((Policy.PresentationAccessScope.Topic(False, True),), (Policy.PresentationAccessScope.Instance(False, True),),
     None),
    ((), (Policy.Deadline(1 << 30),), "Deadline"),
    ((Policy.Deadline(1 << 30),), (Policy.Deadline(1 << 30),), None),
    ((Policy.Deadline(1 << 30),), (), None),
    ((Policy.Ownership.Exclusive,), (), "Ownership"),
    ((), (Policy.Ownership.Exclusive,), "Ownership"),
    ((Policy.Ownership.Exclusive,), (Policy.Ownership.Exclusive,), None),
    ((), (Policy.Liveliness.Automatic(1 << 30),), "Liveliness"),
    ((Policy.Liveliness.Automatic(1 << 30),), (Policy.Liveliness.ManualByTopic(1 << 30),), "Liveliness"),
    ((Policy.Liveliness.ManualByTopic(1 << 30),), (Policy.Liveliness.ManualByParticipant(1 << 31),), None),
    ((Policy.DataRepresentation(True, False),), (Policy.DataRepresentation(False, True),), "DataRepresentation"),
    ((Policy.DataRepresentation(True, False),), (Policy.DataRepresentation(True, True),), None),
    ((Policy.DataRepresentation(False, True),), (), None)], ids=repr)
def test_offered_against_requested(offered, requested, obstacle):
    expected = number_of(getattr(Policy, obstacle)) if obstacle else 0
    assert incompatible_policy(DEFAULT + Qos(*offered), DEFAULT + Qos(*requested)) == expected


@pytest.mark.parametrize(("written_to", "read_from", "meet"), [
    ((), (), True), (("a",), (), False), ((), ("a",), False), (("a",), ("a",), True), (("a", "b"), ("b", "c"), True),
    (("a",), ("b",), False), (("a1",), ("a*",), True), (("a*",), ("a1",), True), (("a*",), ("a*",), True),
    (("a*",), ("*1",), False), (("a[12]",), ("a2",), True), (("A",), ("a",), False), ((), ("*",), True),
    (("", "a"), (), True), (("a?",), ("ab", "x"), True)])
def test_partitions(written_to, read_from, meet):
    assert policies.partitions_meet(written_to, read_from) is meet


def test_a_deadline_shorter_than_what_the_filter_lets_pass():
    with pytest.raises(DDSException, match="wants more samples") as caught:
        check("DataReader", Qos(Policy.Deadline(1 << 30), Policy.TimeBasedFilter(1 << 31)), DataReaderQos)
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY


def test_blocking_times():
    assert policies.blocking_time_s(Qos(Policy.Reliability.Reliable(2_500_000_000))) == 2.5
    assert policies.blocking_time_s(Qos(Policy.Reliability.Reliable(dds_infinity))) == -1.0
    assert policies.blocking_time_s(Qos(Policy.Reliability.Reliable(0))) == 0.0
    assert policies.blocking_time_s(Qos()) == policies.BLOCKING_TIME_DEFAULT / 1e9


def test_effective_qos():
    topic = Qos(Policy.History.KeepLast(3), Policy.Durability.TransientLocal, Policy.Topicdata(b"x"))
    qos = policies.effective(Qos(Policy.History.KeepAll), topic)
    assert qos[Policy.History] is Policy.History.KeepAll
    assert qos[Policy.Durability] is Policy.Durability.TransientLocal
    assert Policy.Topicdata not in qos
    assert qos[Policy.Reliability] == DEFAULT[Policy.Reliability]
