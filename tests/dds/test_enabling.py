"""Entities that are made disabled: Policy.EntityFactory and enable(). DDS 1.4, 2.2.3.20 and 2.2.2.1.1.7.

Goal: while an entity is disabled nobody hears of it, nothing comes to it and it sends nothing; what needs it enabled
says so; all its policies can still be changed. enable() makes it what it would have been at once, and with it what was
made in it, as the policy of each says.
Method: entities of a participant that doesn't enable, beside a participant at another node, on embedded nodes.
"""

import dataclasses
import inspect
import threading
from dataclasses import dataclass

import pytest

from dds import (
    BuiltinDataReader,
    DataReader,
    DataWriter,
    DDSException,
    DomainParticipant,
    InstanceState,
    Listener,
    Policy,
    Publisher,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleState,
    StatusCondition,
    Subscriber,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.builtin import BuiltinTopicDcpsParticipant, BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription
from dds.core import Statistics
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.replicated import Replica
from dds.replicated.batteries import Counter
from tests.support import wait_until

LONG = duration(seconds=10)
LATER = Qos(Policy.EntityFactory(autoenable_created_entities=False))
ANY = SampleState.Any | ViewState.Any | InstanceState.Any
NOT_ENABLED = DDSException.DDS_RETCODE_NOT_ENABLED
PRECONDITION = DDSException.DDS_RETCODE_PRECONDITION_NOT_MET


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


# What DDS 1.4, 2.2.2.1.1.7 allows at once: Qos, listeners, status conditions, statuses, making entities in it, looking
# up where it belongs; and what says no more than how it was made. `enable` itself, and the end.
ALLOWED = {
    "enable", "is_enabled", "close", "get_entity", "get_qos", "set_qos", "get_listener", "set_listener",
    "get_statuscondition", "get_status_changes", "get_status_mask", "set_status_mask", "read_status", "take_status",
    "get_parent", "get_participant", "get_children", "get_domain_id", "get_publisher", "get_subscriber", "get_guid",
    "get_name", "get_type_name", "set_topic_filter", "get_datareader", "get_instance_handle"}
# Of these only enabled ones of other entities, or nothing at all, is what they are asked for.
INTERNAL = {"fileno", "set_c_topic_filter", "begin_coherent", "end_coherent"}
ARGUMENTS = {"sample": Track(1), "samples": [Track(1)], "handle": 1, "timeout": 0, "N": 1, "size": 8}


@pytest.fixture
def apart(runtime_dir):
    """A participant that doesn't enable what is made in it, and another one at another node."""
    with DomainParticipant.embedded(qos=LATER, node_id=1, runtime_dir=runtime_dir) as later, \
            DomainParticipant.embedded(node_id=2, runtime_dir=runtime_dir) as other:
        yield later, other


def refused(call, code=NOT_ENABLED):
    with pytest.raises(DDSException) as raised:
        call()
    assert raised.value.code == code, raised.value
    return str(raised.value)


def statuses(entity):
    """Names of what reads its statuses."""
    return [name for name, _ in inspect.getmembers(type(entity), inspect.isfunction)
            if name.startswith("get_") and name.endswith("_status")]


def operations(entity):
    for name, function in inspect.getmembers(type(entity), inspect.isfunction):
        if name[0] != "_" and name not in ALLOWED | INTERNAL and name not in statuses(entity):
            needed = [one for one in list(inspect.signature(function).parameters.values())[1:]
                      if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
            yield name, [ARGUMENTS[one.name] for one in needed]


def carried_out(entity, name, arguments):
    """Call it, as far as it does anything: iterators begin with the first step."""
    found = getattr(entity, name)(*arguments)
    if inspect.isgenerator(found):
        next(found, None)
    elif inspect.isasyncgen(found):
        import asyncio

        asyncio.run(anext(found))
    elif hasattr(found, "__enter__") and not isinstance(found, (list, memoryview)):
        with found:
            pass


def test_operations_need_an_enabled_entity(apart):
    """Each public operation of each kind, but for those that DDS allows: none is forgotten, none fails otherwise."""
    later, _ = apart
    topic = Topic(later, "tracks", Track)
    publisher, subscriber = Publisher(later), Subscriber(later)
    entities = topic, publisher, subscriber, DataWriter(publisher, topic), DataReader(subscriber, topic)
    tried, wrong = 0, []
    for entity in entities:
        assert not entity.is_enabled() and "disabled" in repr(entity)
        for name, arguments in operations(entity):
            try:
                carried_out(entity, name, arguments)
                outcome = "it was carried out"
            except Exception as error:
                outcome = getattr(error, "code", repr(error))
            wrong += [] if outcome == NOT_ENABLED else [(entity, name, outcome)]
            tried += 1
    assert not wrong
    assert tried > 40
    writer, reader = entities[3:]
    for asked in (lambda: topic.spec, lambda: writer.matched_sub, lambda: reader.matched_pub,
                  lambda: writer.instance_handle, lambda: Statistics(writer), lambda: Statistics(reader)):
        assert "call enable()" in refused(asked)


def test_what_is_allowed_before(apart):
    later, _ = apart
    topic = Topic(later, "tracks", Track)
    publisher, subscriber = Publisher(later), Subscriber(later)
    writer, reader = DataWriter(publisher, topic), DataReader(subscriber, topic, listener=Listener())
    assert later.is_enabled() and later.children == [topic, publisher, subscriber]
    assert publisher.children == [writer] and writer.publisher is publisher and reader.subscriber is subscriber
    assert writer.topic is topic and (topic.name, topic.typename) == ("tracks", "Track")
    assert len({one.guid for one in (topic, publisher, subscriber, writer, reader)}) == 5
    for entity in (topic, publisher, subscriber, writer, reader):
        assert entity.get_status_changes() == 0 and not StatusCondition(entity).triggered
        for name in statuses(entity):
            status = getattr(entity, name)()
            assert not any(getattr(status, one.name) for one in dataclasses.fields(status) if "count" in one.name)
        entity.set_listener(Listener())
        entity.set_qos(entity.get_qos())
    assert [len(statuses(entity)) for entity in (topic, publisher, subscriber, writer, reader)] == [1, 0, 0, 5, 8]
    reader.close()
    for name in statuses(reader):
        assert "closed" in refused(getattr(reader, name), DDSException.DDS_RETCODE_ALREADY_DELETED)


def test_nobody_hears_of_what_is_disabled(apart):
    later, other = apart
    writers, readers = (BuiltinDataReader(other, one) for one in (
        BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription))
    known = {one.key for one in readers.read(99)}
    topic = Topic(later, "t", bytes)
    writer, reader = DataWriter(later, topic), DataReader(later, topic)
    theirs = Topic(other, "t", bytes)
    beside = DataWriter(other, theirs), DataReader(other, theirs)
    beside[0].write(b"before")
    assert beside[1].take_one(timeout=LONG) == b"before"
    assert beside[0].get_matched_subscriptions() == [beside[1].instance_handle] and len(beside[1].matched_pub) == 1
    assert {one.key for one in writers.read(99)} == {beside[0].guid}
    for one in (topic, writer, reader):
        one.enable()
    wait_until(lambda: writer.guid in {one.key for one in writers.read(99)})
    wait_until(lambda: {one.key for one in readers.read(99)} - known == {beside[1].guid, reader.guid})
    writer.write(b"after")
    for one in (reader, beside[1]):
        assert one.take_one(timeout=LONG) == b"after"  # and nothing from before


def test_a_disabled_topic_is_not_declared(apart):
    later, other = apart
    topic = Topic(later, "t", bytes, qos=Qos(Policy.Durability.TransientLocal))
    assert other.session.topics() == []
    first = Topic(other, "t", Track)
    writer = DataWriter(other, first)  # while it lasts, nobody can declare the topic anew
    assert "another definition" in refused(topic.enable, DDSException.DDS_RETCODE_INCONSISTENT_POLICY)
    assert not topic.is_enabled()
    refused(lambda: topic.spec)
    writer.close()


def test_enabling_goes_from_above(apart):
    later, _ = apart
    topic, publisher = Topic(later, "t", bytes), Publisher(later)
    writer = DataWriter(publisher, topic)
    assert "enable that first" in refused(writer.enable, PRECONDITION)
    publisher.set_qos(LATER)
    publisher.enable()
    assert publisher.is_enabled() and not writer.is_enabled()
    assert "is to be enabled first" in refused(writer.enable, PRECONDITION)
    topic.enable()
    writer.enable()
    writer.enable()
    writer.write(b"x")
    assert writer.wait_for_acks(LONG)
    another = DataWriter(publisher, topic)
    assert not another.is_enabled()
    publisher.set_qos(Qos(Policy.EntityFactory(True)))
    publisher.enable()  # it is: nothing happens
    assert not another.is_enabled() and DataWriter(publisher, topic).is_enabled()


@pytest.mark.parametrize("automatic", [True, False])
def test_what_was_made_in_it_begins_too(apart, automatic):
    later, _ = apart
    topic = Topic(later, "t", bytes)
    subscriber = Subscriber(later, Qos(Policy.EntityFactory(automatic)))
    readers = [DataReader(subscriber, topic) for _ in range(3)]
    assert not any(one.is_enabled() for one in readers)  # the subscriber itself is disabled
    topic.enable()
    subscriber.enable()
    assert [one.is_enabled() for one in readers] == [automatic] * 3


def test_one_that_can_not_begin_keeps_nobody_else_back(apart):
    later, other = apart
    topic, small = Topic(later, "t", bytes), Topic(later, "u", bytes, qos=Qos(Policy.Durability.Volatile))
    topic.enable()
    small.enable()
    publisher = Publisher(later)
    more = DataWriter(publisher, small, Qos(Policy.Durability.Persistent))
    fits = DataWriter(publisher, topic)
    refused(publisher.enable, DDSException.DDS_RETCODE_INCONSISTENT_POLICY)
    assert publisher.is_enabled() and fits.is_enabled() and not more.is_enabled()
    more.set_qos(Qos(Policy.Durability.Volatile))
    more.enable()
    more.write(b"x")
    assert other.is_enabled()


def test_a_writer_in_a_participant_brings_its_publisher_along(apart):
    later, _ = apart
    topic = Topic(later, "t", bytes)
    topic.enable()
    writer, reader = DataWriter(later, topic), DataReader(later, topic)
    reader.enable()
    writer.enable()
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"
    assert writer.publisher.is_enabled() and reader.subscriber.is_enabled()


def test_all_policies_may_change_before(apart):
    """Also those that never change of an enabled entity; each end goes by what was said last."""
    later, other = apart
    topic = Topic(later, "tracks", Track, size_max=500)
    publisher, subscriber = Publisher(later), Subscriber(later)
    writer, reader = DataWriter(publisher, topic), DataReader(subscriber, topic)
    topic.set_qos(Qos(Policy.Durability.TransientLocal))
    for group in (publisher, subscriber):
        group.set_qos(Qos(Policy.PresentationAccessScope.Topic(True, True), Policy.Partition(["p"])))
    writer.set_qos(Qos(Policy.Ownership.Exclusive, Policy.OwnershipStrength(3), Policy.WriterDataLifecycle(False)))
    reader.set_qos(Qos(Policy.Ownership.Exclusive, Policy.History.KeepLast(1)))
    wrong = Qos(Policy.History.KeepLast(0))
    refused(lambda: reader.set_qos(wrong), DDSException.DDS_RETCODE_INCONSISTENT_POLICY)
    for one in (topic, publisher, subscriber):
        one.enable()
    assert topic.spec.level.name == "VOLATILE"
    assert reader.get_qos()[Policy.History] == Policy.History.KeepLast(1)
    assert Policy.Partition(["p"]) in writer.get_qos() and Policy.Partition(["p"]) in reader.get_qos()
    with publisher.coherent():
        writer.write(Track(1, 1))
        writer.write(Track(1, 2))
    assert writer.wait_for_acks(LONG) and reader.take(9) == [Track(1, 2)]
    refused(lambda: reader.set_qos(Qos(Policy.History.KeepLast(2))), DDSException.DDS_RETCODE_IMMUTABLE_POLICY)
    strangers = DataReader(other, Topic(other, "tracks", Track), Qos(Policy.Ownership.Exclusive))
    assert strangers.get_matched_publications() == []  # not of the partition


def test_conditions_and_wait_sets_wait_for_it(apart):
    """What is attached while its reader is disabled triggers once there is something."""
    later, other = apart
    topic, subscriber = Topic(later, "t", bytes), Subscriber(later)
    reader = DataReader(subscriber, topic)
    conditions = [ReadCondition(reader, ANY), QueryCondition(reader, ANY, lambda one: one == b"x")]
    waitset = WaitSet(later)
    for one in (*conditions, reader.status_condition):
        waitset.attach(one)
    assert waitset.wait(0) == 0 and not any(one.triggered for one in conditions)
    found = []
    waiting = threading.Thread(target=lambda: found.append(waitset.wait(LONG)))
    waiting.start()
    topic.enable()
    subscriber.enable()
    writer = DataWriter(other, Topic(other, "t", bytes))
    writer.write(b"x")
    waiting.join(20)
    assert found and found[0] >= 1
    wait_until(lambda: all(one.triggered for one in conditions))
    assert reader.take(9, condition=conditions[1]) == [b"x"]


def test_listeners_hear_from_then_on(apart):
    later, other = apart
    heard = []
    topic = Topic(later, "t", bytes)
    reader = DataReader(later, topic, listener=Listener(
        on_subscription_matched=lambda r, status: heard.append(r.is_enabled()),
        on_data_available=lambda r: heard.extend(r.take(9))))
    writer = DataWriter(other, Topic(other, "t", bytes))
    writer.write(b"before")
    assert writer.wait_for_acks(LONG)
    topic.enable()
    assert heard == []
    reader.enable()
    wait_until(lambda: heard == [True])
    writer.write(b"after")
    wait_until(lambda: heard == [True, b"after"])


def test_what_is_closed_before_it_begins_leaves_nothing(apart):
    later, other = apart
    topic, publisher = Topic(later, "t", bytes), Publisher(later)
    writer = DataWriter(publisher, topic)
    writer.close()
    writer.close()
    refused(writer.enable, DDSException.DDS_RETCODE_ALREADY_DELETED)
    refused(lambda: writer.write(b"x"), DDSException.DDS_RETCODE_ALREADY_DELETED)
    topic.enable()
    publisher.enable()
    assert publisher.children == []
    publisher.close()
    refused(publisher.enable, DDSException.DDS_RETCODE_ALREADY_DELETED)
    assert other.is_enabled()


def test_several_threads_enable_it_once(apart):
    """All of them find it disabled before the first one begins."""
    later, other = apart
    topic, publisher = Topic(later, "t", bytes), Publisher(later)
    topic.enable()
    publisher.enable()
    publisher.set_qos(LATER)
    found_disabled, starts, failed = threading.Barrier(8), [], []

    class Writer(DataWriter):
        def _check_factory(self):
            super()._check_factory()
            found_disabled.wait(20)

        def _start(self):
            starts.append(self)
            super()._start()

    writer = Writer(publisher, topic)

    def enable():
        try:
            writer.enable()
            writer.write(b"x")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=enable) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert not failed and len(starts) == 1
    assert len(DataReader(other, Topic(other, "t", bytes)).matched_pub) == 1


def test_what_is_builtin_is_enabled(apart):
    """DDS 1.4, 2.2.5: as is what libraries make for the program."""
    later, _ = apart
    people = BuiltinDataReader(later, BuiltinTopicDcpsParticipant)
    assert people.is_enabled() and people.take_one(timeout=LONG).key
    with Replica(later, "n", Counter) as counter:
        assert counter.add(2) == 2


def test_the_policy():
    assert Policy.EntityFactory().autoenable_created_entities
    for qos in (LATER.domain_participant(), LATER.publisher(), LATER.subscriber()):
        assert qos[Policy.EntityFactory] == Policy.EntityFactory(False)
    assert Qos.fromdict(LATER.asdict()) == LATER
    assert Policy.EntityFactory not in LATER.datawriter() and Policy.EntityFactory not in LATER.topic()
