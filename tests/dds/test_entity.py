"""Entities: relations, lifetimes, statuses.

Goal: relations and lifetimes as DDS programs expect them. Method: one embedded node.
"""

import copy
import gc
import pickle
import weakref

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSStatus,
    DDSTimeout,
    Domain,
    Entity,
    Policy,
    Publisher,
    Qos,
    Subscriber,
    Topic,
    WaitSet,
    duration,
    isgoodentity,
)
from dds.listener import CALLBACKS
from tests.dds.test_sub import SECOND, pair, write_all
from tests.support import wait_until


def test_relations(participant):
    topic, publisher, subscriber = Topic(participant, "t", bytes), Publisher(participant), Subscriber(participant)
    reader, writer = DataReader(subscriber, topic), DataWriter(publisher, topic)
    assert participant.children == [topic, publisher, subscriber]
    assert (reader.parent, writer.parent, topic.parent, participant.parent) == (
        subscriber, publisher, participant, None)
    assert reader.subscriber is subscriber is reader.get_subscriber()
    assert writer.publisher is publisher
    for one in (topic, publisher, subscriber, reader, writer, participant):
        assert one.participant is participant
        assert one.domain_id == 0
        assert isgoodentity(one)
        assert Entity(one._ref).get_participant() is participant
        assert Entity.get_entity(one._ref) is one
    assert subscriber.children == [reader]
    assert reader.topic is topic is writer.topic
    for call in (participant.get_subscriber, topic.get_publisher, writer.get_subscriber, reader.get_datareader):
        with pytest.raises(DDSException) as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION


def test_names_and_handles_are_unique(participant):
    others = [Topic(participant, f"t{i}", bytes) for i in range(5)]
    assert len({one.guid for one in (participant, *others)}) == 6
    assert len({one.instance_handle for one in (participant, *others)}) == 6
    assert participant.get_guid() == participant.guid


@pytest.mark.slow
def test_children_keep_their_parents(participant):
    topic = Topic(participant, "t", bytes)
    reader = DataReader(Subscriber(participant), topic)
    gc.collect()
    assert isgoodentity(reader.subscriber)
    name = weakref.ref(reader.subscriber)
    del reader
    gc.collect()
    assert name() is None
    assert participant.children == [topic]


def test_forgotten_entities_are_closed_without_a_collection(participant):
    gc.disable()
    try:
        writer, reader = pair(participant)
        handle = writer._handle
        del writer
        wait_until(lambda: handle.closed)
        assert reader.get_status_changes() & DDSStatus.SubscriptionMatched
        assert reader.get_subscription_matched_status().current_count == 0
    finally:
        gc.enable()


def test_closing_a_parent_closes_its_children(participant):
    writer, reader = pair(participant)
    participant.close()
    for one in (writer, reader, reader.topic, participant):
        assert not isgoodentity(one)
        with pytest.raises(DDSException) as caught:
            one.get_participant()
        assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED
    with pytest.raises(DDSException):
        Topic(participant, "t", bytes)
    with pytest.raises(DDSException):
        Entity(reader._ref).get_participant()


def test_with_blocks_close(participant):
    with Topic(participant, "t", bytes) as topic, DataReader(participant, topic) as reader:
        assert isgoodentity(reader)
    assert not isgoodentity(reader) and not isgoodentity(topic)


def test_qos_of_entities(participant):
    topic = Topic(participant, "t", bytes, qos=Qos(Policy.History.KeepLast(3), Policy.Topicdata(b"data")))
    writer = DataWriter(participant, topic, qos=Qos(Policy.Userdata(b"user")))
    qos = writer.get_qos()
    assert qos[Policy.History] == Policy.History.KeepLast(3)
    assert qos[Policy.Userdata] == Policy.Userdata(b"user")
    assert qos[Policy.Durability] is Policy.Durability.Volatile
    assert writer.qos == qos
    writer.set_qos(Qos(Policy.Userdata(b"other")))
    assert writer.qos[Policy.Userdata] == Policy.Userdata(b"other")
    writer.set_qos(qos)
    with pytest.raises(DDSException) as caught:
        writer.set_qos(Qos(Policy.History.KeepAll))
    assert caught.value.code == DDSException.DDS_RETCODE_IMMUTABLE_POLICY


def test_statuses(participant):
    writer, reader = pair(participant)
    assert reader.get_status_changes() & DDSStatus.SubscriptionMatched
    reader.set_status_mask(DDSStatus.SubscriptionMatched)
    assert reader.status_mask == DDSStatus.SubscriptionMatched
    write_all(writer, [b"x"])
    assert reader.read_status() == DDSStatus.SubscriptionMatched
    assert reader.get_status_changes() & DDSStatus.DataAvailable
    assert reader.take_status() == DDSStatus.SubscriptionMatched
    assert reader.read_status() == 0
    assert reader.take_status(DDSStatus.All) & DDSStatus.DataAvailable
    assert not reader.take_status(DDSStatus.All) & DDSStatus.DataAvailable  # once for what has come
    write_all(writer, [b"y"])
    assert reader.take_status(DDSStatus.DataAvailable) == DDSStatus.DataAvailable
    assert reader.take(10) == [b"x", b"y"]
    assert reader.get_status_changes() == 0
    with pytest.raises(DDSException):
        reader.set_status_mask(1 << 20)
    for _, getter in CALLBACKS.values():
        owner = next(one for one in (participant, reader.topic, writer, reader) if hasattr(one, getter or "guid"))
        if getter:
            assert getattr(owner, getter)() is not None


def test_a_mask_without_any_status_of_the_entity_is_refused(participant):
    """Who attaches such an entity to a wait set would wait for ever. One mask may serve readers and writers."""
    writer, reader = pair(participant)
    for one, mask, name in ((reader, DDSStatus.PublicationMatched, "a DataReader has no status PublicationMatched"),
                            (writer, DDSStatus.DataAvailable, "a DataWriter has no status DataAvailable"),
                            (participant, DDSStatus.InconsistentTopic, "no status InconsistentTopic"),
                            (Publisher(participant), DDSStatus.LivelinessLost, "a Publisher has no status")):
        before = one.get_status_mask()
        for setter in (one.set_status_mask, one.status_condition.set_enabled_statuses):
            with pytest.raises(DDSException, match=name) as caught:
                setter(mask)
            assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
            for wrong in (None, "1", 1.0):
                with pytest.raises(TypeError, match="a mask is an int"):
                    setter(wrong)
            setter(DDSStatus.All)
            setter(0)
        one.set_status_mask(before)
    both = DDSStatus.PublicationMatched | DDSStatus.SubscriptionMatched
    reader.set_status_mask(both)
    writer.set_status_mask(both)
    assert reader.read_status() == DDSStatus.SubscriptionMatched and writer.read_status() == (
        DDSStatus.PublicationMatched)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_entities_are_not_copied(participant, how):
    """A copy that is forgotten would close the entity."""
    writer, reader = pair(participant)
    for one in (participant, writer, reader, reader.topic, WaitSet(participant), writer.status_condition):
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            how([one] if how is not copy.copy else one)
    gc.collect()
    write_all(writer, [b"x"])
    assert reader.take(1) == [b"x"]


def test_unsupported_operations(participant):
    for call in (participant.begin_coherent, participant.end_coherent):
        with pytest.raises(DDSException) as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION


def test_domain_objects(participant):
    domain = Domain(0)
    assert domain.get_participants() == [participant]
    assert domain.domain_id == 0
    assert Domain(1).get_participants() == []
    with pytest.raises(DDSException) as caught:
        Domain(1, "<CycloneDDS/>")
    assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED
    assert duration(seconds=1) == SECOND


def test_closing_at_a_node_that_hangs(participant):
    """Goal: an error in the terms of DDS, and everything else is closed all the same. Method: in the place of a node
    that doesn't answer, what gives one writer back says so."""
    publisher, topic = Publisher(participant), Topic(participant, "t", bytes)
    writers = [DataWriter(publisher, topic) for _ in range(3)]
    give_back = writers[1]._closer

    def hangs():
        give_back()
        raise TimeoutError("node 1 sent nothing for 30 s")

    writers[1]._closer = hangs
    with pytest.raises(DDSTimeout, match=r"closing .*: node 1 sent nothing for 30 s"):
        publisher.close()
    assert not any(isgoodentity(one) for one in (publisher, *writers))
    publisher.close()
