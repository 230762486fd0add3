"""Builtin topics: who is in the group, with what.

Goal: a builtin reader has what there is when it is made, hears of all that comes, changes and goes, once, and is a
reader like any other: states, conditions, wait sets, listeners, iterators. Method: one embedded node and two; daemons
and hosts where nodes die or sessions turn to the next.
"""

import asyncio
import threading
import uuid

import pytest

import dds
from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSNodeLost,
    DDSStatus,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Listener,
    Policy,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleState,
    Subscriber,
    Topic,
    ViewState,
    WaitSet,
    duration,
)
from dds.builtin import (
    BuiltinDataReader,
    BuiltinTopicDcpsParticipant,
    BuiltinTopicDcpsPublication,
    BuiltinTopicDcpsSubscription,
    BuiltinTopicDcpsTopic,
    DcpsEndpoint,
    DcpsParticipant,
    DcpsTopic,
)
from dds.matching.notices import NoticeLog
from tests.dds.test_sub import ANY, LONG
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until

GONE = InstanceState.NotAliveDisposed


class Seen:
    """What a builtin reader has given, by key: the last sample of what is there, and how often something ended."""

    def __init__(self, reader):
        self.reader, self.there, self.ends = reader, {}, 0

    def look(self):
        for sample in self.reader.take(1000):
            if isinstance(sample, InvalidSample):
                assert sample.sample_info.instance_state == GONE
                del self.there[sample.key_sample.key]
                self.ends += 1
            else:
                self.there[sample.key] = sample
        return self.there

    def until(self, condition):
        wait_until(lambda: condition(self.look()))
        return self.there


def test_what_is_there_is_there_at_once(participant):
    """Each of the four topics, read after everything was made."""
    topic = Topic(participant, "speed", bytes, qos=Qos(Policy.Topicdata(b"km/h")))
    writer = DataWriter(participant, topic, qos=Qos(Policy.Userdata(b"w")))
    reader = DataReader(participant, topic, qos=Qos(Policy.Userdata(b"r"), Policy.History.KeepLast(3)))
    (me,) = BuiltinDataReader(participant, BuiltinTopicDcpsParticipant).take(9)
    assert isinstance(me, DcpsParticipant) and me.key == participant.guid and me.node_id and me.pid
    (found,) = BuiltinDataReader(participant, BuiltinTopicDcpsTopic).take(9)
    assert isinstance(found, DcpsTopic)
    assert (found.topic_name, found.type_name, found.qos[Policy.Topicdata].data) == ("speed", "bytes", b"km/h")
    (offered,) = BuiltinDataReader(participant, BuiltinTopicDcpsPublication).take(9)
    assert isinstance(offered, DcpsEndpoint)
    assert (offered.key, offered.participant_key, offered.topic_name) == (writer.guid, participant.guid, "speed")
    assert offered.qos == writer.get_qos() + Qos(Policy.Topicdata(b"km/h"))
    assert offered.participant_instance_handle == me.sample_info.instance_handle
    subscriptions = BuiltinDataReader(participant, BuiltinTopicDcpsSubscription)
    wanted = {one.key: one for one in subscriptions.take(9)}
    assert wanted[reader.guid].qos[Policy.Userdata].data == b"r" and wanted[reader.guid].type_name == "bytes"
    assert subscriptions.guid in wanted  # itself


def test_what_comes_changes_and_goes(two_nodes):
    """At another node: each thing is one instance, from its first sample to its end."""
    one, two = two_nodes
    seen = {builtin: Seen(BuiltinDataReader(one, builtin)) for builtin in (
        BuiltinTopicDcpsParticipant, BuiltinTopicDcpsTopic, BuiltinTopicDcpsPublication)}
    people, topics, writers = seen.values()
    people.until(lambda there: two.guid in there)
    two.set_qos(Qos(Policy.Userdata(b"tower")))
    people.until(lambda there: there[two.guid].qos == Qos(Policy.Userdata(b"tower")))
    topic = Topic(two, "t", bytes)
    writer = DataWriter(two, topic)
    topics.until(lambda there: [one.topic_name for one in there.values()] == ["t"])
    writers.until(lambda there: writer.guid in there)
    writer.set_qos(Qos(Policy.Userdata(b"new")))
    writers.until(lambda there: there[writer.guid].qos[Policy.Userdata] == Policy.Userdata(b"new"))
    topic.set_qos(Qos(Policy.Topicdata(b"of the topic")))
    topics.until(lambda there: [one.qos[Policy.Topicdata] for one in there.values()] == [
        Policy.Topicdata(b"of the topic")])
    writers.until(lambda there: there[writer.guid].qos[Policy.Topicdata] == Policy.Topicdata(b"of the topic"))
    writer.publisher.set_qos(Qos(Policy.Groupdata(b"group")))
    writers.until(lambda there: there[writer.guid].qos[Policy.Groupdata] == Policy.Groupdata(b"group"))
    two.close()
    writers.until(lambda there: not there)
    topics.until(lambda there: not there)
    people.until(lambda there: list(there) == [one.guid])
    assert (people.ends, writers.ends) == (1, 1)


def test_programs_that_have_a_topic_alike_have_one_topic(two_nodes):
    one, two = two_nodes
    topics = Seen(BuiltinDataReader(one, BuiltinTopicDcpsTopic))
    mine, theirs = Topic(one, "t", bytes), Topic(two, "t", bytes)
    other = Topic(two, "t", bytes, qos=Qos(Policy.Lifespan(1 << 40)))
    topics.until(lambda there: len(there) == 2)
    other.close()
    topics.until(lambda there: len(there) == 1)
    mine.close()
    late = Seen(BuiltinDataReader(two, BuiltinTopicDcpsTopic))
    assert len(late.look()) == 1
    theirs.close()
    topics.until(lambda there: not there)
    assert late.look() == {} and topics.ends == 2


def test_what_came_and_went_unseen_was_never_there():
    """Nobody looks for long: what waits is bounded by what there is."""

    class Thing:
        def __init__(self, number):
            self.endpoint = type("E", (), {"node_id": 1})
            self.number = number

    log = NoticeLog(lambda: False)
    for number in range(1000):
        log.put(b"%d" % number, Thing(number))
        if number % 10:
            log.gone(b"%d" % number)
    assert log.pending == 100
    first = log.take_pairs(60)
    assert [one.number for one, _ in first[:3]] == [0, 10, 20] and log.pending == 40
    for number in range(0, 1000, 10):
        log.gone(b"%d" % number)
    ends = log.take_pairs(1000)
    assert len(ends) == 60 and all(notice.tag for _, notice in ends) and log.pending == 0
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.take_pairs(1)


@pytest.mark.slow
def test_hundreds_of_endpoints(two_nodes):
    one, two = two_nodes
    early = Seen(BuiltinDataReader(one, BuiltinTopicDcpsPublication))
    topics = [Topic(two, name, bytes) for name in ("a", "b")]
    writers = [DataWriter(two, topic, slots=4) for topic in topics for _ in range(150)]
    early.until(lambda there: len(there) == 300)
    late = Seen(BuiltinDataReader(one, BuiltinTopicDcpsPublication))
    assert late.look().keys() == early.there.keys() == {writer.guid for writer in writers}
    for writer in writers[:200]:
        writer.close()
    for seen in (early, late):
        seen.until(lambda there: len(there) == 100)
        assert seen.ends == 200


class TestAsAnyReader:
    """Everything that readers have."""

    def test_read_take_and_states(self, participant):
        reader = BuiltinDataReader(Subscriber(participant), BuiltinTopicDcpsParticipant)
        first = reader.read_next()
        assert first.key == participant.guid and first.sample_info.view_state == ViewState.New
        assert reader.read_next() is None
        (again,) = reader.read(3)
        assert again.sample_info.sample_state == SampleState.Read and again.sample_info.view_state == ViewState.Old
        assert reader.take_next() is None  # it was read
        (taken,) = reader.take(3, instance_handle=first.sample_info.instance_handle)
        assert taken.key == first.key and reader.take(1) == []
        assert [one for one in reader.take_iter(timeout=duration(milliseconds=1))] == []

    def test_conditions_and_wait_sets(self, participant):
        reader = BuiltinDataReader(participant, BuiltinTopicDcpsTopic)
        unread = ReadCondition(reader, SampleState.NotRead | ViewState.Any | InstanceState.Any)
        wanted = QueryCondition(reader, ANY, lambda sample: sample.topic_name == "wanted")
        waitset = WaitSet(participant)
        waitset.attach(wanted)
        assert waitset.wait(duration(milliseconds=1)) == 0 and not unread.triggered
        others = Topic(participant, "other", bytes)
        timer = threading.Timer(0.05, lambda: made.append(Topic(participant, "wanted", bytes)))
        made = []
        timer.start()
        assert waitset.wait(LONG) == 1
        timer.join()
        assert [one.topic_name for one in reader.take(5, condition=wanted)] == ["wanted"]
        assert [one.topic_name for one in reader.take(5, condition=unread)] == ["other"]
        others.close()
        gone = ReadCondition(reader, SampleState.Any | ViewState.Any | GONE)
        assert gone.triggered and isinstance(reader.take(1, condition=gone)[0], InvalidSample)

    def test_listeners_and_statuses(self, two_nodes):
        one, two = two_nodes
        heard = threading.Semaphore(0)
        got = []

        def on_data_available(reader):
            got.extend(reader.take(100))
            heard.release()

        reader = BuiltinDataReader(one, BuiltinTopicDcpsPublication,
                                   listener=Listener(on_data_available=on_data_available))
        writer = DataWriter(two, Topic(two, "t", bytes))
        assert heard.acquire(timeout=20) and [sample.key for sample in got] == [writer.guid]
        writer.set_qos(Qos(Policy.Userdata(b"x")))  # the same instance again
        wait_until(lambda: len(got) == 2)
        writer.close()
        wait_until(lambda: len(got) == 3)
        assert isinstance(got[2], InvalidSample)
        reader.set_listener(None)
        assert reader.get_matched_publications() == [] and reader.get_subscription_matched_status().total_count == 0
        second = DataWriter(two, Topic(two, "t", bytes))
        wait_until(lambda: reader.take_status(DDSStatus.DataAvailable) == DDSStatus.DataAvailable)
        assert reader.take_one(timeout=LONG).key == second.guid

    def test_async_for(self, participant):
        reader = BuiltinDataReader(participant, BuiltinTopicDcpsTopic)

        async def names():
            found = []
            async for sample in reader.take_aiter(timeout=duration(milliseconds=300)):
                found.append(sample.topic_name)
                if len(found) == 1:
                    kept.append(Topic(participant, "second", bytes))
            return found

        kept = [Topic(participant, "first", bytes)]
        assert asyncio.run(names()) == ["first", "second"]

    def test_samples_that_were_disposed_can_be_purged(self, participant):
        purging = Qos(Policy.ReaderDataLifecycle(duration(infinite=True), 0))
        reader = BuiltinDataReader(participant, BuiltinTopicDcpsTopic, qos=purging)
        topic = Topic(participant, "t", bytes)
        assert len(reader.read(9)) == 1
        topic.close()
        wait_until(lambda: reader.read(9) == [])

    def test_what_makes_no_sense(self, participant):
        reader = BuiltinDataReader(participant, BuiltinTopicDcpsTopic)
        with pytest.raises(TypeError, match="builtin_topic must be one of"):
            BuiltinDataReader(participant, Topic(participant, "t", bytes))
        with pytest.raises(TypeError, match="made in a Subscriber"):
            BuiltinDataReader(None, BuiltinTopicDcpsTopic)
        with pytest.raises(DDSException, match="has no batches"):
            reader.take_batch()
        with pytest.raises(DDSException, match="can't be used"):
            QueryCondition(reader, ANY, "topic_name = 'x'")
        with pytest.raises(DDSException) as caught:
            DataReader(participant, BuiltinTopicDcpsTopic)
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
        with pytest.raises(DDSException) as caught:
            DataWriter(participant, BuiltinTopicDcpsTopic)
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
        reader.close()
        with pytest.raises(DDSException) as caught:
            reader.take(1)
        assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED


def test_participants_of_one_process_share_a_node(runtime_dir):
    """One that is closed goes, though the node stays for the other."""
    with DomainParticipant.embedded() as one:
        people = Seen(BuiltinDataReader(one, BuiltinTopicDcpsParticipant))
        two = DomainParticipant.embedded(qos=Qos(Policy.Userdata(b"two")))
        topic = Topic(two, "t", bytes)
        topics = Seen(BuiltinDataReader(one, BuiltinTopicDcpsTopic))
        people.until(lambda there: there.keys() == {one.guid, two.guid})
        assert len(topics.look()) == 1 and topic.name == "t"
        two.close()
        people.until(lambda there: there.keys() == {one.guid})
        topics.until(lambda there: not there)


@pytest.mark.slow
def test_a_node_that_dies_takes_its_own_along(runtime_dir):
    with daemons(runtime_dir, 2) as nodes:
        with DomainParticipant(node_id=1) as mine, DomainParticipant(node_id=2) as theirs:
            people = Seen(BuiltinDataReader(mine, BuiltinTopicDcpsParticipant))
            readers = Seen(BuiltinDataReader(mine, BuiltinTopicDcpsSubscription))
            doomed = BuiltinDataReader(theirs, BuiltinTopicDcpsParticipant)
            DataReader(theirs, Topic(theirs, "t", bytes))
            there = DataReader(theirs, Topic(theirs, "t", bytes))
            people.until(lambda seen: theirs.guid in seen)
            readers.until(lambda seen: there.guid in seen)
            known = {one.key for one in doomed.read(9)}
            assert known == {mine.guid, theirs.guid}
            nodes[1].kill()
            people.until(lambda seen: list(seen) == [mine.guid])
            readers.until(lambda seen: there.guid not in seen)
            # Whoever was attached to it hears that all of it has gone, then that its node has.
            ended = []
            with pytest.raises(DDSNodeLost):
                for sample in doomed.take_iter(timeout=LONG):
                    ended.append(sample)
            assert {one.key_sample.key for one in ended if isinstance(one, InvalidSample)} == known


@pytest.mark.slow
def test_another_node_is_a_new_truth(runtime_dir):
    """A participant that reattaches is announced anew, under new guids, and so is what it has."""
    with daemons(runtime_dir, 2) as nodes:
        with DomainParticipant(node_id=1) as watcher, DomainParticipant(
                node_id=2, reattach=True, qos=Qos(Policy.Userdata(b"goes on"))) as mover:
            topic = Topic(mover, "t", bytes, qos=Qos(Policy.Topicdata(b"x")))
            own = Seen(BuiltinDataReader(mover, BuiltinTopicDcpsParticipant))
            people = Seen(BuiltinDataReader(watcher, BuiltinTopicDcpsParticipant))
            before = mover.guid
            people.until(lambda there: before in there)
            own.until(lambda there: len(there) == 2)
            nodes[1].kill()
            people.until(lambda there: before not in there)
            again = Daemon(2, runtime_dir=runtime_dir)
            nodes.append(again)
            again.wait_ready()
            wait_until(lambda: mover.get_node_status().reattached_count == 1, 20)
            assert mover.guid != before
            people.until(lambda there: there.get(mover.guid) is not None and (
                there[mover.guid].qos[Policy.Userdata] == Policy.Userdata(b"goes on")))
            own.until(lambda there: there.keys() == {watcher.guid, mover.guid})
            topics = BuiltinDataReader(watcher, BuiltinTopicDcpsTopic)
            assert [one.qos[Policy.Topicdata] for one in topics.take(9)] == [Policy.Topicdata(b"x")]
            assert topic.name == "t"


@pytest.mark.slow
def test_programs_on_hosts_without_a_node(site):
    """They hear of everybody and everybody hears of them, also after their session has turned to the next node; what
    belongs to one participant belongs together then, too."""
    with DomainParticipant(runtime_dir=site[2].directory) as near, DomainParticipant.remote(
            [site[0].address, site[1].address], reattach=True, qos=Qos(Policy.Userdata(b"far"))) as far:
        people = Seen(BuiltinDataReader(near, BuiltinTopicDcpsParticipant))
        writers = Seen(BuiltinDataReader(near, BuiltinTopicDcpsPublication))
        theirs = Seen(BuiltinDataReader(far, BuiltinTopicDcpsParticipant))
        topic = Topic(far, "t", bytes)
        writer = DataWriter(far, topic)
        people.until(lambda there: far.guid in there)
        writers.until(lambda there: writer.guid in there)
        theirs.until(lambda there: there.keys() == {near.guid, far.guid})
        before = far.guid
        writer.set_qos(Qos(Policy.Userdata(b"of the writer")))
        site[0].running.kill()
        people.until(lambda there: before not in there and len(there) == 2)
        assert far.guid != before
        people.until(lambda there: there[far.guid].qos[Policy.Userdata] == Policy.Userdata(b"far"))
        writers.until(lambda there: writer.guid in there)
        assert writers.there[writer.guid].participant_key == far.guid
        assert writers.there[writer.guid].qos[Policy.Userdata] == Policy.Userdata(b"of the writer")
        theirs.until(lambda there: there.keys() == {near.guid, far.guid})
        far.set_qos(Qos(Policy.Userdata(b"farther")))
        people.until(lambda there: there[far.guid].qos[Policy.Userdata] == Policy.Userdata(b"farther"))
        topic.close()
        assert BuiltinDataReader(near, BuiltinTopicDcpsTopic).take(9) == []


def test_what_is_too_long_is_refused_and_changes_nothing(participant):
    topic = Topic(participant, "t", bytes)
    writer = DataWriter(participant, topic, qos=Qos(Policy.Userdata(b"short")))
    long = Qos(Policy.Userdata(bytes(5000)))
    for call in (lambda: participant.set_qos(long), lambda: writer.set_qos(long),
                 lambda: DataReader(participant, topic, qos=long)):
        with pytest.raises(DDSException, match="limit 4096") as caught:
            call()
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
    assert writer.get_qos()[Policy.Userdata].data == b"short" and Policy.Userdata not in participant.get_qos()
    (told,) = BuiltinDataReader(participant, BuiltinTopicDcpsPublication).take(9)
    assert told.qos[Policy.Userdata].data == b"short"
    with pytest.raises(DDSException, match="limit 4096"):
        DomainParticipant.embedded(qos=long)


def test_names_of_the_package():
    assert dds.BuiltinDataReader is BuiltinDataReader and dds.BuiltinTopicDcpsTopic is BuiltinTopicDcpsTopic
    assert isinstance(BuiltinTopicDcpsTopic, Topic) and BuiltinTopicDcpsTopic.name == "DCPSTopic"
    assert uuid.UUID(int=0) != BuiltinTopicDcpsTopic
