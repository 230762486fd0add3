"""Exclusive ownership: of the writers of an instance the strongest is heard.

Goal: nobody ever hears two writers of one instance, all readers hear the same one after each message, and when the
owner ends, hangs, loses its node or misses its deadline, the next one is heard with its next sample.
Method: scripts of writers on embedded nodes and daemons; random orders of messages against a model; a reader that
takes after each message beside one that takes at the end.
"""

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass

import pytest

import dds
from dds import DataReader, DataWriter, DomainParticipant, Policy, Qos, Topic
from dds.exceptions import DDSException
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.messages.inline_qos import InlineQos
from dds.messages.operations import ANNOUNCES_QOS, WRITES
from dds.util import duration
from tests.dds.test_sub import LONG
from tests.spindle.daemons import Daemon
from tests.support import seeds, wait_until

EXCLUSIVE = Qos(Policy.Ownership.Exclusive)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


@dataclass
class Plain(IdlStruct):
    number: int
    height: int = 0


def strong(strength, *more):
    return Qos(Policy.OwnershipStrength(strength), *more)


def settled(writer, *samples):
    for sample in samples:
        writer.write(sample)
    assert writer.wait_for_acks(LONG)


def heights(reader):
    return [one.height for one in reader.take(99) if not isinstance(one, dds.InvalidSample)]


@pytest.mark.parametrize("history", [Policy.History.KeepAll, Policy.History.KeepLast(9)], ids=repr)
def test_only_the_strongest_is_heard(participant, history):
    topic = Topic(participant, "topic", bytes, qos=EXCLUSIVE)
    reader = DataReader(participant, topic, qos=Qos(history))
    weak, owner, other = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 5, 3))
    settled(weak, b"alone")
    settled(owner, b"taken over")
    settled(weak, b"no")
    settled(other, b"no")
    settled(owner, b"yes")
    assert reader.take(9) == [b"alone", b"taken over", b"yes"]
    assert reader.get_sample_filtered_status().total_count == 2
    owner.close()
    settled(weak, b"first to write")
    settled(other, b"stronger")
    settled(weak, b"no")
    assert reader.take(9) == [b"first to write", b"stronger"]


def test_each_instance_has_an_owner_of_its_own(participant):
    topic = Topic(participant, "tracks", Track, qos=EXCLUSIVE)
    reader = DataReader(participant, topic)
    weak, owner = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    settled(owner, Track(1, 10))
    settled(weak, Track(1, 11), Track(2, 20))
    settled(owner, Track(1, 12))
    assert heights(reader) == [10, 20, 12]
    owner.unregister_instance(Track(1))
    assert owner.wait_for_acks(LONG)
    settled(weak, Track(1, 13))
    assert heights(reader) == [13]


def test_only_the_owner_ends_an_instance(participant):
    topic = Topic(participant, "tracks", Track, qos=EXCLUSIVE)
    reader = DataReader(participant, topic)
    weak, owner = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    settled(owner, Track(1, 10))
    settled(weak, Track(1, 11))
    weak.dispose(Track(1))
    assert weak.wait_for_acks(LONG)
    assert [one.height for one in reader.take(9)] == [10]
    owner.dispose(Track(1))
    assert owner.wait_for_acks(LONG)
    (end,) = reader.take(9)
    assert end.sample_info.instance_state == dds.InstanceState.NotAliveDisposed
    settled(weak, Track(1, 12))  # its owner has ended it, and goes on to own it
    settled(owner, Track(1, 13))
    assert heights(reader) == [13]


def test_a_stronger_writer_ends_what_it_has_not_written(participant):
    topic = Topic(participant, "tracks", Track, qos=EXCLUSIVE)
    reader = DataReader(participant, topic)
    weak, strongest = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    settled(weak, Track(1, 10))
    strongest.dispose(Track(1))
    assert strongest.wait_for_acks(LONG)
    settled(weak, Track(1, 11))
    sample, end = reader.take(9)
    assert sample.height == 10 and end.sample_info.instance_state == dds.InstanceState.NotAliveDisposed


def test_equals_are_told_apart(participant):
    topic = Topic(participant, "topic", bytes, qos=EXCLUSIVE)
    readers = [DataReader(participant, topic) for _ in range(2)]
    one, other = sorted((DataWriter(participant, topic) for _ in range(2)), key=lambda w: w.instance_handle)
    settled(other, b"a")
    settled(one, b"b")
    settled(other, b"no")
    assert [reader.take(9) for reader in readers] == [[b"a", b"b"]] * 2


def test_who_has_no_strength_has_none_to_lose(participant):
    """A writer that says nothing has strength 0, above those below it."""
    topic = Topic(participant, "topic", bytes, qos=EXCLUSIVE)
    reader = DataReader(participant, topic)
    below, plain = DataWriter(participant, topic, qos=strong(-1)), DataWriter(participant, topic)
    settled(below, b"a")
    settled(plain, b"b")
    settled(below, b"no")
    assert reader.take(9) == [b"a", b"b"]


def test_the_owner_misses_its_deadline(participant):
    qos = EXCLUSIVE + Qos(Policy.Deadline(duration(milliseconds=200)))
    topic = Topic(participant, "tracks", Track, qos=qos)
    readers = [DataReader(participant, topic) for _ in range(2)]
    weak, owner = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    times = [time.monotonic_ns()]
    settled(owner, Track(1, 10), Track(2, 20))
    settled(weak, Track(1, 11))
    times.append(time.monotonic_ns())
    wait_until(lambda: owner.get_offered_deadline_missed_status().total_count >= 2)
    assert owner.wait_for_acks(LONG)
    settled(weak, Track(1, 12))
    times.append(time.monotonic_ns())
    settled(owner, Track(2, 21))
    settled(weak, Track(2, 22))
    times.append(time.monotonic_ns())
    settled(owner, Track(1, 13))
    got = [heights(reader) for reader in readers]
    late = {number for number, at in ((11, 0), (22, 2)) if times[at + 1] - times[at] >= duration(milliseconds=200)}
    assert got[0] == got[1] and [one for one in got[0] if one not in late] == [10, 20, 12, 21, 13]


def test_random_orders_against_a_model(participant):
    """Each step, one of three writers writes, unregisters or is replaced; every reader hears what the model says."""
    rng = random.Random(7)
    topic = Topic(participant, "tracks", Track, qos=EXCLUSIVE)
    lasting, fresh = DataReader(participant, topic), DataReader(participant, topic)
    off = Policy.WriterDataLifecycle(False)
    writers = [DataWriter(participant, topic, qos=strong(n, off)) for n in (1, 2, 2)]
    strengths = [1, 2, 2]
    owners: dict[int, int] = {}
    expected, step_by_step = [], []

    def rank(n):
        return strengths[n], -writers[n].instance_handle

    for step in range(150):
        n, number = rng.randrange(3), rng.randrange(2)
        owner = owners.get(number)
        what = rng.random()
        if what < 0.8:
            settled(writers[n], Track(number, step))
            if owner is None or rank(n) >= rank(owner):
                owners[number] = n
                expected.append(step)
        elif what < 0.9:
            writers[n].unregister_instance(Track(number))
            assert writers[n].wait_for_acks(LONG)
            if owner == n:
                del owners[number]
        else:
            writers[n].close()
            for number in [number for number, owner in owners.items() if owner == n]:
                del owners[number]
            strengths[n] = rng.randrange(3)
            writers[n] = DataWriter(participant, topic, qos=strong(strengths[n], off))
        step_by_step += heights(fresh)
        assert step_by_step == expected
    assert heights(lasting) == expected


@pytest.mark.parametrize("seed", seeds(6, 2))
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_a_filter_has_no_say_about_who_is_heard(participant, keyed, seed):
    """A reader with a filter gets what passes it of what others get, whatever becomes of the writers; and in the end it
    keeps nothing of instances that it doesn't know. Method: steps drawn at random; one reader takes now and then."""
    rng = random.Random(seed)
    topic = Topic(participant, "topic", Track if keyed else Plain, qos=EXCLUSIVE)
    every = DataReader(participant, topic)
    some = [DataReader(participant, dds.ContentFilteredTopic(participant, f"high {n}", topic, "height >= %0", [500]))
            for n in range(2)]
    others = [Policy.WriterDataLifecycle(False)], []
    writers = [DataWriter(participant, topic, qos=strong(n, *others[n & 1])) for n in range(3)]
    found = [[] for _ in some]
    for step in range(150):
        n, number, what = rng.randrange(3), rng.randrange(3), rng.random()
        sample = topic.data_type(number, rng.randrange(1000))
        if what < 0.7 or (not keyed and 0.78 < what < 0.92):
            settled(writers[n], sample)
        elif what < 0.78:
            writers[n].set_qos(Qos(Policy.OwnershipStrength(rng.randrange(3))))
        elif what < 0.85:
            writers[n].dispose(sample)
        elif what < 0.92:
            writers[n].unregister_instance(sample)
        else:
            writers[n].close()
            writers[n] = DataWriter(participant, topic, qos=strong(rng.randrange(3), *others[step & 1]))
        if rng.random() < 0.3:
            found[0] += heights(some[0])
    for writer in writers:
        assert writer.wait_for_acks(LONG)
        writer.close()
    found = [one + heights(reader) for one, reader in zip(found, some, strict=True)]
    expected = [one.height for one in every.take(999) if not isinstance(one, dds.InvalidSample) and one.height >= 500]
    assert found == [expected, expected] and expected
    for standing in [reader._intake.standing for reader in some]:
        assert not standing._unseen and not standing._owned and not standing._written_to


def test_the_last_owner_that_a_filter_saw_nothing_of(participant):
    """It is known from the first sample that passes on, also after it was disposed of and has missed its deadline."""
    topic = Topic(participant, "topic", Track, qos=EXCLUSIVE)
    reader = DataReader(participant, dds.ContentFilteredTopic(participant, "high", topic, "height > 100"))
    weak, owner = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    settled(owner, Track(1, 10))
    settled(weak, Track(1, 101))
    settled(owner, Track(1, 102))
    settled(weak, Track(1, 103))
    assert heights(reader) == [102] and reader.get_sample_filtered_status().total_count == 3
    owner.dispose(Track(2))
    settled(weak, Track(2, 104))
    owner.unregister_instance(Track(2))
    assert owner.wait_for_acks(LONG)
    settled(weak, Track(2, 105))
    assert heights(reader) == [105]
    settled(owner, Track(3, 10))
    owner.set_qos(Qos(Policy.Deadline(duration(milliseconds=20))))
    settled(owner, Track(3, 11))
    wait_until(lambda: owner.get_offered_deadline_missed_status().total_count)
    assert owner.wait_for_acks(LONG)
    settled(weak, Track(3, 106))
    assert heights(reader) == [106]


def test_who_comes_late_with_a_filter_knows_the_owner(participant):
    """Though nothing of it passes, and the first that passes is said to be of a weaker writer that is there, too."""
    topic = Topic(participant, "topic", Track, qos=EXCLUSIVE + Qos(
        Policy.Durability.TransientLocal, Policy.History.KeepLast(1)))
    weak, owner = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    settled(owner, Track(1, 10))
    settled(weak, Track(1, 101))
    high = dds.ContentFilteredTopic(participant, "high", topic, "height > 100")
    reader = DataReader(participant, high, qos=Qos(Policy.History.KeepAll))
    assert reader.wait_for_historical_data(LONG)
    settled(weak, Track(1, 102))
    settled(owner, Track(1, 103))
    assert heights(reader) == [103]


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_the_node_of_the_owner_is_killed(runtime_dir, group, keyed):
    with contextlib.ExitStack() as stack:
        one, two, three = (stack.enter_context(DomainParticipant(node_id=n)) for n in (1, 2, 3))
        kind = Track if keyed else bytes
        sample = (lambda n: Track(1, n)) if keyed else (lambda n: b"%d" % n)
        topics = [Topic(each, "topic", kind, qos=EXCLUSIVE) for each in (one, two, three)]
        readers = [DataReader(each, topic) for each, topic in zip((two, three), topics[1:], strict=True)]
        owner, standby = DataWriter(one, topics[0], qos=strong(2)), DataWriter(two, topics[1], qos=strong(1))
        settled(owner, sample(1))
        settled(standby, sample(2))
        os.kill(group[0].pid, signal.SIGKILL)
        wait_until(lambda: len(two.session.view().node_ids) == 2)
        settled(standby, sample(3))
        for reader in readers:
            got = [one for one in reader.take(9) if not isinstance(one, dds.InvalidSample)]
            assert got == [sample(1), sample(3)]


def test_a_topic_that_was_declared_as_shared(participant):
    Topic(participant, "topic", bytes, qos=Qos(Policy.Reliability.Reliable(LONG)))
    with pytest.raises(DDSException, match=r"without Ownership\.Exclusive"):
        DataWriter(participant, Topic(participant, "topic", bytes), qos=EXCLUSIVE)


def test_who_does_not_own_an_instance_ends_nothing_by_closing(participant):
    topic = Topic(participant, "tracks", Track, qos=EXCLUSIVE)
    reader = DataReader(participant, topic)
    weak, owner = (DataWriter(participant, topic, qos=strong(n)) for n in (1, 2))
    settled(owner, Track(1, 10))
    settled(weak, Track(1, 11))
    weak.close()
    settled(owner, Track(1, 12))
    got = reader.take(9)
    assert [one.height for one in got] == [10, 12] and got[1].sample_info.disposed_generation_count == 0
    owner.close()
    (end,) = reader.take(9)
    assert end.sample_info.instance_state == dds.InstanceState.NotAliveDisposed


@pytest.mark.parametrize("more", [Policy.Partition("a"), Policy.Lifespan(LONG)], ids=["partition", "lifespan"])
def test_whoever_hears_a_writer_hears_that_it_is_late(participant, more):
    group = [more] if isinstance(more, Policy.Partition) else []
    publisher, subscriber = dds.Publisher(participant, qos=Qos(*group)), dds.Subscriber(participant, qos=Qos(*group))
    qos = EXCLUSIVE + Qos(Policy.Deadline(duration(milliseconds=100)))
    topic = Topic(participant, "tracks", Track, qos=qos)
    reader = DataReader(subscriber, topic)
    own = [] if group else [more]
    weak, owner = (DataWriter(publisher, topic, qos=strong(n, *own)) for n in (1, 2))
    settled(owner, Track(1, 10))
    wait_until(lambda: owner.get_offered_deadline_missed_status().total_count)
    settled(weak, Track(1, 11))
    assert heights(reader) == [10, 11]


def test_who_is_late_says_so_once(participant):
    qos = EXCLUSIVE + Qos(Policy.Deadline(duration(milliseconds=20)))
    topic = Topic(participant, "topic", bytes, qos=qos)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)

    def came():
        return reader._source.arrived

    for times in (1, 2):
        settled(writer, b"x")
        before = writer.get_offered_deadline_missed_status().total_count
        wait_until(lambda before=before: writer.get_offered_deadline_missed_status().total_count >= before + 4)
        assert writer.wait_for_acks(LONG) and came() == 2 * times


def test_a_deadline_that_is_missed_uses_up_no_doubts(runtime_dir):
    from spindle.client import Unacknowledged

    with dds.DomainParticipant.embedded(reattach=True) as participant:
        topic = Topic(participant, "topic", bytes, qos=EXCLUSIVE + Qos(Policy.Deadline(duration(milliseconds=20))))
        writer = DataWriter(participant, topic)
        writer.write(b"x")
        writer._link._doubts, writer._link._untold = [Unacknowledged(0, 5, b"abc")], True
        before = writer.get_offered_deadline_missed_status().total_count
        wait_until(lambda: writer.get_offered_deadline_missed_status().total_count >= before + 3)
        with pytest.raises(dds.DDSUnacknowledged) as caught:
            writer.write(b"y")
        assert [one.sample for one in caught.value.samples] == [b"abc"]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_who_has_missed_the_end_of_the_owner_hears_the_next_one(participant, keyed):
    """What says that the owner has gone is overwritten before the reader looks."""
    topic = Topic(participant, "topic", Track if keyed else bytes, qos=EXCLUSIVE, size_max=4096)
    reader = DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(5)))
    weak, owner = DataWriter(participant, topic, qos=strong(1)), DataWriter(participant, topic, qos=strong(2))
    elsewhere = DataWriter(dds.Publisher(participant, qos=Qos(Policy.Partition("elsewhere" * 400))), topic)
    first, second = (Track(1, 1), Track(1, 2)) if keyed else (b"1", b"2")
    settled(owner, first)
    assert reader.take(9) == [first]
    owner.close()
    settled(elsewhere, *[Track(9, 9) if keyed else b""] * 4000)
    settled(weak, second)
    *ends, sample = reader.take(9)
    assert sample == second and reader.get_sample_lost_status().total_count > 0
    assert [one.key_sample.number for one in ends] == ([1] if keyed else [])
    assert sample.sample_info.no_writers_generation_count == (1 if keyed else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("keyed", "exclusive"), [(True, True), (True, False), (False, True)],
                         ids=["keyed", "shared", "keyless"])
def test_all_nodes_of_the_owner_die(runtime_dir, tmp_path, keyed, exclusive):
    """Goal: whoever reads what the journals have takes no writer of a dead group for the owner, and finds the instances
    without writers at the same place, also where any writer is heard. Method: one daemon, killed twice; a reader that
    goes on, and one that is new."""
    topic_qos = Qos(Policy.Durability.Persistent, base=EXCLUSIVE if exclusive else None)
    kind = Track if keyed else bytes
    samples = [Track(1, n) for n in range(3)] if keyed else [b"%d" % n for n in range(3)]
    arguments = ("--journal-dir", str(tmp_path))
    daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
    try:
        with DomainParticipant(reattach=True) as stays:
            lasting = DataReader(stays, Topic(stays, "topic", kind, qos=topic_qos))
            for life, sample in enumerate(samples):
                with DomainParticipant() as brief:
                    topic = Topic(brief, "topic", kind, qos=topic_qos)
                    late, taking = DataReader(brief, topic), DataReader(brief, topic)
                    writer = DataWriter(brief, topic, qos=strong(9 - life) if exclusive else None)
                    writer.write(sample)
                    assert writer.wait_for_acks(LONG, persisted=True)
                    seen = [[(type(one) is dds.InvalidSample, one.sample_info.view_id, one.sample_info.sequence)
                             for one in found] for found in (late.read(99), lasting.read(99), taking.take(99))]
                    assert seen[0] == seen[1] == seen[2]
                    assert len(seen[0]) == 1 + life + (keyed and life > 0)  # one end is kept
                    got = [one for one in late.take(99) if not isinstance(one, dds.InvalidSample)]
                    assert got == samples[:life + 1]
                    daemon.kill()
                daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
                wait_until(lambda n=life: stays.get_node_status().reattached_count == n + 1, 20)
    finally:
        daemon.stop()


@pytest.mark.parametrize("keyed", [True, False])
def test_what_is_no_sample_owns_nothing(participant, keyed):
    """Method: a raw session says that it is the strongest, in front of beginnings of a sample."""
    topic = Topic(participant, "topic", Track if keyed else Plain, qos=EXCLUSIVE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    settled(writer, topic.data_type(1, 1))
    assert heights(reader) == [1]
    liar, good = participant.session.open_writer("topic").inbox, topic._codec.encode(topic.data_type(1, 5))
    for size in range(len(good)):
        liar.write(good[:size] + InlineQos(strength=99).encoded(), 0, 5.0, WRITES | ANNOUNCES_QOS)
    assert liar.wait_acknowledged(5.0)
    settled(writer, topic.data_type(1, 2))
    assert heights(reader) == [2]
    assert reader.get_sample_lost_status().total_count == len(good)
    assert reader.get_sample_filtered_status().total_count == 0
