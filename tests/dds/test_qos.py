"""Qos and policies as values.

Goal: the syntax and the results that users of cyclonedds-python know, for every policy.
Method: one Qos for each form of each policy, put through every operation; the documented errors one by one.
"""

import itertools
import json
import pickle

import numpy
import pytest

from dds import qos as q
from dds.qos import Policy, Qos
from dds.util import duration

ALL = [
    Policy.Reliability.BestEffort, Policy.Reliability.Reliable(max_blocking_time=22), Policy.Durability.Volatile,
    Policy.Durability.TransientLocal, Policy.Durability.Transient, Policy.Durability.Persistent,
    Policy.History.KeepAll, Policy.History.KeepLast(depth=10), Policy.ResourceLimits(3, 4, 5), Policy.ResourceLimits(),
    Policy.PresentationAccessScope.Instance(coherent_access=False, ordered_access=True),
    Policy.PresentationAccessScope.Topic(True, True), Policy.PresentationAccessScope.Group(False, False),
    Policy.Lifespan(lifespan=1), Policy.Deadline(deadline=2), Policy.LatencyBudget(budget=3), Policy.Ownership.Shared,
    Policy.Ownership.Exclusive, Policy.OwnershipStrength(strength=4), Policy.Liveliness.Automatic(lease_duration=5),
    Policy.Liveliness.ManualByParticipant(5), Policy.Liveliness.ManualByTopic(5), Policy.TimeBasedFilter(filter_time=6),
    Policy.Partition(partitions=["a", "b"]), Policy.Partition("c"), Policy.TransportPriority(priority=7),
    Policy.DestinationOrder.ByReceptionTimestamp, Policy.DestinationOrder.BySourceTimestamp,
    Policy.WriterDataLifecycle(autodispose=False), Policy.ReaderDataLifecycle(8, 9),
    Policy.DurabilityService(1, Policy.History.KeepAll, 2, 3, 4),
    Policy.DurabilityService(1, Policy.History.KeepLast(5), 2, 3, 4), Policy.IgnoreLocal.Nothing,
    Policy.IgnoreLocal.Participant, Policy.IgnoreLocal.Process, Policy.Userdata(data=b"\0user"),
    Policy.Topicdata(b"\xfftopic"), Policy.Groupdata(b""), Policy.Property("key", "value"),
    Policy.Property("key", "value", True), Policy.BinaryProperty(key="key", value=b"\0", propagate=True),
    Policy.TypeConsistency.DisallowTypeCoercion(True), Policy.TypeConsistency.AllowTypeCoercion(False),
    Policy.DataRepresentation(use_xcdrv2_representation=True), Policy.EntityName("name"),
]


@pytest.mark.parametrize("policy", ALL, ids=repr)
def test_each_policy_through_every_operation(policy):
    qos = Qos(policy)
    assert policy in qos
    assert qos[policy] is policy
    assert list(qos) == [policy] == list(qos.policies)
    assert len(qos) == 1
    assert qos == Qos.fromdict(qos.asdict())
    assert qos == Qos.fromdict(json.loads(json.dumps(qos.asdict())))
    assert qos == qos + qos == Qos() + qos
    assert qos - qos == Qos()
    assert hash(qos) == hash(Qos(policy))
    assert pickle.loads(pickle.dumps(qos)) == qos
    assert repr(policy).startswith("Policy.") and repr(policy) in repr(qos)
    assert eval(repr(policy)) == policy
    limited = [qos.domain_participant(), qos.topic(), qos.publisher(), qos.subscriber(), qos.datareader(),
               qos.datawriter()]
    assert any(policy in one for one in limited)


def test_all_are_different():
    for one, other in itertools.combinations(ALL, 2):
        assert Qos(one) != Qos(other)


def test_lookup():
    qos = Qos(Policy.History.KeepLast(20), Policy.Durability.Volatile)
    assert qos[Policy.History] == qos[Policy.History.KeepLast] == Policy.History.KeepLast(20)
    assert qos[Policy.Durability] is Policy.Durability.Volatile
    assert qos[Policy.Reliability] is None
    assert Policy.History in qos
    assert Policy.History.KeepLast in qos
    assert Policy.History.KeepLast(20) in qos
    assert Policy.History.KeepLast(21) not in qos
    assert Policy.Reliability not in qos
    for nonsense in (3, "History", object):
        with pytest.raises(ValueError):
            qos[nonsense]
        with pytest.raises(ValueError):
            nonsense in qos  # noqa: B015


def test_the_right_side_wins():
    left = Qos(Policy.History.KeepLast(1), Policy.Durability.Volatile)
    right = Qos(Policy.History.KeepAll, Policy.Deadline(1))
    expected = Qos(Policy.Durability.Volatile, Policy.Deadline(1), Policy.History.KeepAll)
    assert left + right == Qos(*right, base=left) == expected
    assert left == Qos(Policy.Durability.Volatile, Policy.History.KeepLast(1))


def test_what_does_not_fit_is_refused():
    with pytest.raises(NotImplementedError):
        Policy()
    with pytest.raises(NotImplementedError):
        Policy.Durability()
    with pytest.raises(TypeError):
        Policy.Durability.Persistent()
    with pytest.raises(TypeError):
        Qos(1)
    with pytest.raises(TypeError):
        Qos(base=1)
    with pytest.raises(ValueError, match="two policies"):
        Qos(Policy.Durability.Persistent, Policy.Durability.Volatile)
    with pytest.raises(ValueError):
        Qos(Policy.Property("a", "b"), Policy.Property("a", "c"))
    with pytest.raises(ValueError):
        Qos() - Qos(Policy.History.KeepAll)
    for policy in (Policy.Userdata, Policy.Topicdata, Policy.Groupdata):
        with pytest.raises(ValueError):
            policy("text")
    with pytest.raises(ValueError):
        Policy.Property("key", b"bytes")
    with pytest.raises(ValueError):
        Policy.BinaryProperty("key", "text")
    with pytest.raises(AttributeError):
        Policy.History.KeepLast(1).depth = 2


@pytest.mark.parametrize("make", [
    lambda: Policy.Lifespan(1.5), lambda: Policy.Deadline("1"), lambda: Policy.History.KeepLast(None),
    lambda: Policy.ResourceLimits(max_instances=2.0), lambda: Policy.Liveliness.Automatic(1e9)])
def test_numbers_are_whole(make):
    with pytest.raises(TypeError, match=r"must be an int, not .*; durations are nanoseconds"):
        make()


def test_whole_numbers_of_any_kind_become_ints():
    depth = Policy.History.KeepLast(numpy.int32(3)).depth
    assert depth == 3 and type(depth) is int


@pytest.mark.parametrize("data", [
    {"Durability": {}}, {"Durability": {"kind": "Sometimes"}}, {"Nonsense": {}}, {"History": {"kind": "KeepLast"}},
    {"History": {"kind": "KeepAll", "depth": 3}}, {"Userdata": {"data": "not base64!"}}, {"History": None},
    {"DurabilityService": {"history": 3}}, {"Lifespan": {"lifespan": 0.5}}, {"__init__": {}}], ids=repr)
def test_dictionaries_that_describe_nothing(data):
    with pytest.raises(ValueError):
        Qos.fromdict(data)


def test_several_properties():
    qos = Qos(Policy.Property("a", "1"), Policy.Property("b", "2"), Policy.BinaryProperty("a", b"3"))
    assert len(qos) == 3
    assert Qos.fromdict(qos.asdict()) == qos
    assert qos[Policy.Property("b", "")] == Policy.Property("b", "2")


def test_a_dictionary_is_not_changed():
    data = Qos(*[one for one in ALL if type(one).__name__ in ("DurabilityService", "Userdata")][:1]).asdict()
    before = json.dumps(data)
    Qos.fromdict(data)
    assert json.dumps(data) == before


def test_limited_scopes():
    with pytest.raises(ValueError, match="does not concern"):
        q.TopicQos(Policy.Partition(["a"]))
    qos = Qos(Policy.Partition(["a"]), Policy.History.KeepAll, Policy.Property("k", "v"))
    assert qos.publisher() == q.PublisherQos(Policy.Partition(["a"]), Policy.Property("k", "v"))
    assert qos.topic() == Qos(Policy.History.KeepAll, Policy.Property("k", "v"))
    assert isinstance(qos.datareader(), q.DataReaderQos)


def test_durations():
    assert duration(seconds=1) == 1_000_000_000
    assert duration(weeks=1, days=1, hours=1, minutes=1, seconds=1, milliseconds=1, microseconds=1, nanoseconds=1) == (
        ((8 * 24 + 1) * 60 + 1) * 60 + 1) * 1_000_000_000 + 1_001_001
    assert duration(milliseconds=0.5) == 500_000
    assert duration(infinite=True) == (1 << 63) - 1
