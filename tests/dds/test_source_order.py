"""DestinationOrder by source timestamp: what was written last, as its source says, is what readers end with.

Goal: of each instance no sample comes after one that was written later; every reader keeps out the same samples,
whenever it takes; what is kept out is counted.
Method: samples with timestamps of the test's choice, from several writers on one embedded node; a reader that takes
after each step beside one that takes at the end.
"""

import os
import socket
import time
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dds import DataReader, DataWriter, DomainParticipant, InstanceState, InvalidSample, Policy, Qos, Topic
from dds.exceptions import DDSException
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.policy.table import number_of
from dds.writers.writing import AHEAD_MAX_NS
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from tests.dds.test_sub import LONG
from tests.support import wait_until

BY_SOURCE = Qos(Policy.DestinationOrder.BySourceTimestamp)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


def settled(*writers):
    for writer in writers:
        assert writer.wait_for_acks(LONG)


@pytest.mark.parametrize("history", [Policy.History.KeepAll, Policy.History.KeepLast(9)], ids=repr)
def test_what_is_older_than_what_came_before_is_kept_out_and_counted(participant, history):
    topic = Topic(participant, "topic", bytes, qos=BY_SOURCE)
    reader = DataReader(participant, topic, qos=Qos(history))
    writers = [DataWriter(participant, topic) for _ in range(2)]
    for writer, stamp in zip(writers * 3, (100, 50, 100, 99, 101, 300), strict=True):
        writer.write(b"%d" % stamp, timestamp=stamp)
        settled(writer)
    assert reader.take(9) == [b"100", b"100", b"101", b"300"]
    assert reader.get_sample_lost_status().total_count == 2 and reader.get_sample_filtered_status().total_count == 0


@pytest.mark.parametrize("depth", [1, 3])
def test_who_comes_late_has_what_was_written_last(participant, depth):
    """Goal: late joiners end with what the others have, dead or alive. Method: what was written before comes late, and
    oftener than is kept of an instance."""
    topic = Topic(participant, "kept", Track, qos=BY_SOURCE + Qos(
        Policy.Durability.TransientLocal, Policy.History.KeepLast(depth)))
    early, one, other = DataReader(participant, topic), DataWriter(participant, topic), DataWriter(participant, topic)
    one.write(Track(1, 100), timestamp=100)
    one.write(Track(2, 100), timestamp=100)
    settled(one)
    for stamp in (50, 60, 70, 80):
        other.write(Track(1, stamp), timestamp=stamp)
    other.dispose(Track(2), timestamp=90)
    settled(other)
    late = DataReader(participant, topic)
    assert [(one.number, one.height) for one in late.read(9)] == [(1, 100), (2, 100)]
    assert late.read(9) == early.read(9)


def test_a_timestamp_in_the_far_future_is_refused(participant):
    """It would keep out everybody else's samples until then. Without the order by source nobody minds."""
    topic = Topic(participant, "tracks", Track, qos=BY_SOURCE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    loose = DataWriter(participant, Topic(participant, "loose", bytes))
    soon, late = time.time_ns() + AHEAD_MAX_NS // 2, time.time_ns() + 2 * AHEAD_MAX_NS
    writer.write(Track(1, 1), timestamp=soon)
    for act in (writer.write, writer.dispose, writer.write_dispose, writer.unregister_instance,
                lambda sample, timestamp: writer.write_many([sample], timestamp),
                lambda _, timestamp: writer.dispose_instance_handle(writer.lookup_instance(Track(1)), timestamp)):
        with pytest.raises(DDSException, match="s in the future") as refused:
            act(Track(1, 2), timestamp=late)
        assert refused.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
    with (pytest.raises(DDSException, match="s in the future"),
          DataWriter(participant, Topic(participant, "plain", bytes, qos=BY_SOURCE)).loan(4, late)):
        pass
    loose.write(b"x", timestamp=late)
    settled(writer, loose)
    assert reader.take(9) == [Track(1, 1)]


def test_a_raw_sessions_timestamp_in_the_far_future_is_refused_too(participant, runtime_dir):
    """By its own library, which names the limit; and by the node, if a program writes past that. Method: a program that
    says that its library need not look."""
    topic = Topic(participant, "tracks", Track, qos=BY_SOURCE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    raw = participant.session.open_writer("tracks").inbox
    payload, late = topic._codec.encode(Track(1, 9)), time.time_ns() + 2 * AHEAD_MAX_NS
    for act in (lambda: raw.write(payload, late), lambda: raw.write_many([payload], late),
                lambda: (raw.claim(len(payload)), raw.commit(timestamp_ns=late))):
        with pytest.raises(ValueError, match=r"source timestamp \d+ is \d\d\.\d s in the future: .* 30 s are the most"):
            act()
    raw.abort()
    liar = unchecked(raw)
    liar.write(payload, late, 5.0)
    wait_until(lambda: liar.refused == 1)
    liar.write(payload, time.time_ns() + AHEAD_MAX_NS // 2, 5.0)
    assert liar.wait_acknowledged(5.0)
    assert reader.take(9) == [Track(1, 9)] and liar.refused == 1
    loose = participant.session.open_writer(Topic(participant, "loose", bytes)._agree(2).spec.name).inbox
    loose.write(b"x", late)
    assert loose.wait_acknowledged(5.0) and loose.refused == 0 and writer


def unchecked(inbox):
    """The same inbox, by a library that looks at no timestamp."""
    ring, progress, bell = (Mapping.attach(os.dup(one.fd), writable) for one, writable in (
        (inbox.ring, True), (inbox.progress, False), (inbox.bell, False)))
    return InboxWriter(ring, progress, socket.socketpair()[0].detach(), bell, os.eventfd(0))


def test_keep_last_counts_only_what_was_let_in(participant):
    topic = Topic(participant, "topic", bytes, qos=BY_SOURCE)
    reader, writer = DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(1))), DataWriter(participant, topic)
    for stamp in (7, 9, 8):
        writer.write(b"%d" % stamp, timestamp=stamp)
    settled(writer)
    assert reader.take(9) == [b"9"]


def test_each_instance_has_a_time_of_its_own(participant):
    topic = Topic(participant, "tracks", Track, qos=BY_SOURCE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    for number, stamp in ((1, 100), (2, 50), (1, 90), (2, 60)):
        writer.write(Track(number, stamp), timestamp=stamp)
    settled(writer)
    assert [(one.number, one.height) for one in reader.take(9)] == [(1, 100), (2, 50), (2, 60)]


def test_who_disposed_before_it_was_written_last_ends_nothing(participant):
    topic = Topic(participant, "tracks", Track, qos=BY_SOURCE)
    reader = DataReader(participant, topic)
    one, other = DataWriter(participant, topic), DataWriter(participant, topic)
    one.write(Track(1, 10), timestamp=100)
    settled(one)
    other.write(Track(1, 20), timestamp=200)
    settled(other)
    one.dispose(Track(1), timestamp=150)
    one.unregister_instance(Track(1), timestamp=150)
    settled(one, other)
    assert [sample.height for sample in reader.take(9)] == [10, 20]
    other.dispose(Track(1), timestamp=250)
    settled(other)
    end, = reader.take(9)
    assert isinstance(end, InvalidSample) and end.sample_info.instance_state == InstanceState.NotAliveDisposed


def test_reception_is_not_enough_for_who_wants_the_source(participant):
    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, topic, qos=BY_SOURCE), DataWriter(participant, topic)
    wait_until(lambda: reader.get_requested_incompatible_qos_status().total_count)
    assert reader.get_requested_incompatible_qos_status().last_policy_id == number_of(Policy.DestinationOrder)
    writer.write(b"no")
    settled(writer)
    assert reader.take(9) == []


ACTS = ["write", "dispose", "unregister_instance", "write_dispose"]
STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(ACTS), st.integers(0, 1), st.integers(1, 6)), max_size=25)


def read_as(sample):
    """(key, height), height None for an end."""
    if isinstance(sample, InvalidSample):
        return sample.key_sample.number, None
    return sample.number, sample.height


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(steps=[(0, "write_dispose", 0, 1), (0, "unregister_instance", 0, 1), (0, "dispose", 0, 1)])
@given(steps=STEPS)
def test_all_keep_out_the_same_whenever_they_take(steps):
    """Also of an instance that one reader has forgotten with its end, and the other not. Of several ends of one
    instance a reader that takes later keeps the last."""
    with DomainParticipant.embedded() as participant:
        topic = Topic(participant, "tracks", Track, qos=BY_SOURCE)
        at_once, later = DataReader(participant, topic), DataReader(participant, topic)
        writers = [DataWriter(participant, topic) for _ in range(2)]
        taken = []
        for n, (writer, act, number, stamp) in enumerate(steps):
            getattr(writers[writer], act)(Track(number, n), timestamp=stamp)
            settled(writers[writer])
            taken += map(read_as, at_once.take(100))
        samples = list(map(read_as, later.take(1000)))
        assert [one for one in taken if one[1] is not None] == [one for one in samples if one[1] is not None]
        assert dict(taken) == dict(samples)


def test_a_writer_that_closes_ends_what_it_alone_has_written(participant):
    """Its node says so, and no source says when that was."""
    topic = Topic(participant, "tracks", Track, qos=BY_SOURCE)
    reader = DataReader(participant, topic)
    one, other = DataWriter(participant, topic), DataWriter(participant, topic)
    one.write(Track(1, 10), timestamp=100)
    one.write(Track(2, 20), timestamp=100)
    settled(one)
    other.write(Track(2, 21), timestamp=200)
    settled(other)
    one.close()
    wait_until(lambda: len(reader.read(9)) == 4)
    *samples, end = reader.take(9)
    assert [read_as(each) for each in samples] == [(1, 10), (2, 20), (2, 21)]
    assert read_as(end) == (1, None) and end.sample_info.instance_state == InstanceState.NotAliveDisposed
    assert samples[-1].sample_info.instance_state == InstanceState.Alive


def test_what_is_no_sample_is_no_news(participant):
    """Method: a raw session sends beginnings of a sample, from as far in the future as may be."""
    topic = Topic(participant, "topic", Track, qos=BY_SOURCE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    writer.write(Track(1, 1))
    settled(writer)
    assert [one.height for one in reader.take(9)] == [1]
    liar, good = participant.session.open_writer("topic").inbox, topic._codec.encode(Track(1, 5))
    for size in range(len(good)):
        liar.write(good[:size], time.time_ns() + AHEAD_MAX_NS // 2, 5.0)
    assert liar.wait_acknowledged(5.0)
    writer.write(Track(1, 2))
    settled(writer)
    assert [one.height for one in reader.take(9)] == [2]
    assert reader.get_sample_lost_status().total_count == len(good)
