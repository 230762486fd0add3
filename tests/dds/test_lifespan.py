"""Lifespan: when a sample is over is said in the topic's order.

Goal: at the same place of the order no reader of the group has a sample that is over for another one, whatever the
clocks of programs say; samples go though their writer, or its node, has gone, and wherever the reader is; an idle topic
is silent; late joiners get what is over for nobody.
Method: embedded nodes, daemons of which one is killed, programs without a node; words are read from the logs.
"""

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass

import pytest

import dds
from dds import DataReader, DataWriter, DomainParticipant, Policy, Publisher, Qos, Topic
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.messages.operations import TIME
from dds.util import duration
from tests.dds.test_remote import beside, remote
from tests.dds.test_sub import LONG
from tests.spindle.daemons import Daemon
from tests.support import seeds, wait_until

SHORT = duration(milliseconds=150)
HOUR = duration(hours=1)
DURABLE = Qos(Policy.Durability.TransientLocal, Policy.History.KeepAll)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


def lasts(time_ns):
    return Qos(Policy.Lifespan(time_ns))


def settled(writer, *samples, **how):
    for sample in samples:
        writer.write(sample, **how)
    assert writer.wait_for_acks(LONG)


def said(reader):
    """What the order has said of time, as the reader's log has it."""
    return reader._source.said_ns


def words(participant, topic):
    """How often the time was said, to whoever hears of all that the topic has: waits for nothing."""
    with contextlib.closing(participant.session.open_reader(topic, keep_all=True, from_history=True)) as raw:
        return [info.source_timestamp for _, info in raw.log.take_pairs(9999) if info.tag == TIME and not info.writer]


def test_all_readers_lose_a_sample_at_the_same_place(two_nodes):
    """A program's clock decides nothing: here it says that the hour is over, and nobody has said so in the order."""
    topics = [Topic(one, "topic", bytes) for one in two_nodes]
    readers = [DataReader(*pair) for pair in zip(two_nodes, topics, strict=True)]
    writer = DataWriter(two_nodes[0], topics[0], qos=lasts(HOUR))
    settled(writer, b"1")
    with pytest.MonkeyPatch.context() as patched:
        now = time.time_ns
        patched.setattr("dds.readers.intake.time.time_ns", lambda: now() + 2 * HOUR)
        assert [reader.read(9) for reader in readers] == [[b"1"]] * 2
    brief = DataWriter(two_nodes[1], topics[1], qos=lasts(SHORT))
    settled(brief, b"2")
    for reader in readers:
        wait_until(lambda reader=reader: reader.read(9) == [b"1"])
    assert said(readers[0]) == said(readers[1]) > 0


def test_a_topic_in_which_nothing_is_over_is_silent(participant):
    topic = Topic(participant, "topic", bytes, qos=DURABLE)
    reader = DataReader(participant, topic)
    settled(DataWriter(participant, topic), b"for ever")
    settled(DataWriter(participant, topic, qos=lasts(HOUR)), b"for an hour")
    brief = DataWriter(participant, topic, qos=lasts(SHORT))
    settled(brief, b"1", b"2", b"3")
    wait_until(lambda: reader.read(9) == [b"for ever", b"for an hour"])
    time.sleep(0.3)
    assert 1 <= len(words(participant, "topic")) <= 3
    settled(brief, b"4")
    wait_until(lambda: len(reader.read(9)) == 2)


@pytest.mark.slow
def test_many_at_a_time_take_few_words(participant):
    topic = Topic(participant, "topic", bytes, qos=DURABLE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic, qos=lasts(SHORT))
    begun = time.monotonic()
    settled(writer, *(b"%d" % n for n in range(3000)))
    wait_until(lambda: reader.read(9999) == [])
    assert len(words(participant, "topic")) <= 2 + (time.monotonic() - begun) / 0.009


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_late_joiners_everywhere_get_what_is_over_for_nobody(two_nodes, keyed):
    """Also who joins when nothing is written any more, and of whose node no word was heard when it was said."""
    one, two = two_nodes
    qos = Qos(Policy.Durability.TransientLocal, Policy.History.KeepLast(5))
    kind, sample = (Track, lambda n: Track(n, n)) if keyed else (bytes, lambda n: b"%d" % n)
    topic = Topic(one, "topic", kind, qos=qos)
    keeper = DataReader(one, topic)
    keep = Qos(Policy.WriterDataLifecycle(autodispose=False))
    with (DataWriter(one, topic, qos=lasts(HOUR) + keep) as lasting,
          DataWriter(one, topic, qos=lasts(SHORT) + keep) as brief):
        settled(lasting, sample(1))
        settled(brief, sample(2))

    def samples(reader):
        return [each for each in reader.read(9) if not isinstance(each, dds.InvalidSample)]

    wait_until(lambda: samples(keeper) == [sample(1)])
    late = DataReader(two, Topic(two, "topic", kind, qos=qos))
    late.wait_for_historical_data(LONG)
    assert samples(late) == samples(DataReader(one, topic)) == [sample(1)]


def test_a_writer_that_has_ended_leaves_nothing_for_ever(two_nodes):
    """Its node is no sender any more: it becomes one to say the time, and ends that."""
    one, two = two_nodes
    topics = [Topic(each, "topic", bytes) for each in two_nodes]
    readers = [DataReader(*pair) for pair in zip(two_nodes, topics, strict=True)]
    with DataWriter(one, topics[0], qos=lasts(duration(seconds=3))) as writer:
        settled(writer, b"1")
    wait_until(lambda: all(not info.senders for info in two.session.topics() if info.spec.name == "topic"))
    assert [reader.read(9) for reader in readers] == [[b"1"]] * 2
    wait_until(lambda: [reader.read(9) for reader in readers] == [[]] * 2, 20)
    wait_until(lambda: all(not info.senders for info in two.session.topics() if info.spec.name == "topic"))


def test_sets_and_order_groups(two_nodes):
    topics = [Topic(each, name, bytes, order="group") for each in two_nodes for name in "ab"]
    readers = [DataReader(topic.participant, topic) for topic in topics]
    coherent = Qos(Policy.PresentationAccessScope.Group(True, True))
    publisher = Publisher(two_nodes[0], qos=coherent)
    first, second = (DataWriter(publisher, topic, qos=lasts(SHORT)) for topic in topics[:2])
    with publisher.coherent():
        first.write(b"1")
        second.write(b"2")
    assert first.wait_for_acks(LONG)
    for reader in readers:
        wait_until(lambda reader=reader: said(reader))
        wait_until(lambda reader=reader: reader.read(9) == [])


def test_the_node_of_the_writer_is_killed(runtime_dir, group):
    """The others say when its sample is over; the writer's node alone would have been the first to."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(DomainParticipant(node_id=n)) for n in (1, 2, 3)]
        topics = [Topic(each, "topic", bytes) for each in nodes]
        readers = [DataReader(each, topic) for each, topic in zip(nodes[1:], topics[1:], strict=True)]
        writer = DataWriter(nodes[0], topics[0], qos=lasts(duration(seconds=2)))
        settled(writer, b"1")
        os.kill(group[0].pid, signal.SIGKILL)
        assert [reader.read(9) for reader in readers] == [[b"1"]] * 2
        wait_until(lambda: [reader.read(9) for reader in readers] == [[]] * 2, 20)
        assert said(readers[0]) == said(readers[1]) > 0


def test_programs_without_a_node(site):
    with remote(site) as far, beside(site[1]) as near:
        topics = [Topic(each, "topic", bytes, qos=DURABLE) for each in (far, near)]
        readers = [DataReader(each, topic) for each, topic in zip((far, near), topics, strict=True)]
        lasting = DataWriter(near, topics[1], qos=lasts(HOUR))
        settled(lasting, b"lasting")
        settled(DataWriter(far, topics[0], qos=lasts(SHORT)), b"brief")
        for reader in readers:  # which may have had the first one before the second one came
            wait_until(lambda reader=reader: reader.read(9) == [b"lasting"] and said(reader))
        assert said(readers[0]) == said(readers[1]) > 0
        late = DataReader(far, topics[0])
        wait_until(lambda: late.read(9))
        assert late.read(9) == [b"lasting"] and said(late) == said(readers[0])
        site[0].running.kill()
        settled(DataWriter(near, topics[1], qos=lasts(SHORT)), b"brief again")
        wait_until(lambda: far.session.node_id == 2, 30)
        wait_until(lambda: readers[0].read(9) == [b"lasting"] and said(readers[0]) == said(readers[1]), 30)


def test_what_a_program_says_of_time_is_no_word_of_a_node(participant):
    """A program that lies ends no lifespan."""
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    writer = DataWriter(participant, topic, qos=lasts(HOUR))
    settled(writer, b"1")
    writer._inbox.write(b"", time.time_ns() + 2 * HOUR, 1.0, TIME)
    assert writer.wait_for_acks(LONG)
    assert reader.read(9) == [b"1"] and said(reader) == 0


def test_nothing_stays_of_a_topic_whose_voice_was_used(participant):
    """Nobody else is there: with the last reader the topic is empty, though something would be over later."""
    topic = Topic(participant, "topic", bytes)
    with DataReader(participant, topic) as reader:
        with DataWriter(participant, topic, qos=lasts(SHORT)) as brief:
            settled(brief, b"1")
            settled(DataWriter(participant, topic, qos=lasts(duration(seconds=1))), b"2")
            wait_until(lambda: reader.read(9) == [b"2"])
        writer_count = participant.session.status()["topics"][0]["writers"]
        assert writer_count <= 1
    wait_until(lambda: all(not info.members for info in participant.session.topics() if info.spec.name == "topic"))


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_all_nodes_die_and_the_journals_go_on(runtime_dir, tmp_path, keyed):
    """What was over meanwhile goes, though nobody was there to say it: also at a reader that has kept it since."""
    qos = Qos(Policy.Durability.Persistent, Policy.History.KeepLast(5))
    kind, sample = (Track, lambda n: Track(n, n)) if keyed else (bytes, lambda n: b"%d" % n)
    keep = Qos(Policy.WriterDataLifecycle(autodispose=False))

    def samples(reader):
        return [each for each in reader.read(9) if not isinstance(each, dds.InvalidSample)]

    arguments = ("--journal-dir", str(tmp_path))
    daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
    try:
        with DomainParticipant(reattach=True) as stays:
            lasting = DataReader(stays, Topic(stays, "topic", kind, qos=qos))
            with DomainParticipant() as brief:
                topic = Topic(brief, "topic", kind, qos=qos)
                for n, lifespan in enumerate((HOUR, duration(seconds=2))):
                    writer = DataWriter(brief, topic, qos=lasts(lifespan) + keep)
                    writer.write(sample(n))
                    assert writer.wait_for_acks(LONG, persisted=True)
                assert samples(lasting) == [sample(0), sample(1)]
                daemon.kill()
            daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
            wait_until(lambda: stays.get_node_status().reattached_count == 1, 20)
            wait_until(lambda: samples(lasting) == [sample(0)], 20)
            wait_until(lambda: said(lasting), 20)
            assert samples(DataReader(stays, Topic(stays, "topic", kind, qos=qos))) == [sample(0)]
    finally:
        daemon.stop()


def test_what_was_kept_when_its_node_went_away_goes_by_the_clock_of_the_host(participant):
    """The next node may never have heard of it."""
    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic, qos=lasts(HOUR))
    settled(writer, b"1")
    assert reader.read(9) == [b"1"]
    reader._intake.leave_to_local_clock()
    settled(writer, b"2")
    with pytest.MonkeyPatch.context() as patched:
        now = time.time_ns
        patched.setattr("dds.readers.intake.time.time_ns", lambda: now() + 2 * HOUR)
        assert reader.read(9) == [b"2"]


def test_what_is_said_of_time_takes_no_place_of_the_last_samples(participant):
    topic = Topic(participant, "topic", bytes)
    reader, other = (DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(2))) for _ in range(2))
    settled(DataWriter(participant, topic, qos=lasts(SHORT)), b"brief")
    settled(DataWriter(participant, topic), b"1", b"2")
    wait_until(lambda: said(reader))
    wait_until(lambda: other._source.log.pending >= 4)
    assert reader.take(9) == other.read(9) == [b"1", b"2"]


# --- clocks that are set

class HostClock:
    """What nodes take for the time: this process's, and `ahead_ns` more."""

    def __init__(self):
        self.ahead_ns = 0

    def time_ns(self):
        return time.time_ns() + self.ahead_ns


@pytest.fixture
def host_clock(monkeypatch):
    clock = HostClock()
    monkeypatch.setattr("spindle.topics.timing.time", clock)
    return clock


def test_what_a_wrong_clock_said_is_taken_back(participant, host_clock):
    """The clock of the host was two hours ahead when its node began, as with a clock in the machine that has the local
    time, and is set right."""
    host_clock.ahead_ns = 2 * HOUR
    topic = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic, qos=lasts(duration(minutes=1)))
    settled(writer, b"1")
    wait_until(lambda: said(reader) > time.time_ns() + HOUR and reader.read(9) == [])
    host_clock.ahead_ns = 0
    settled(writer, b"2")  # it is over when it comes, which has the time said anew
    wait_until(lambda: said(reader) < time.time_ns() + HOUR)
    settled(writer, b"3")
    assert reader.take(9) == [b"3"]


@pytest.mark.parametrize("seed", seeds(12, quick=3))
def test_readers_agree_whenever_they_look_while_clocks_are_set(participant, host_clock, monkeypatch, seed):
    """Goal: a reader that looked before what was said was taken back has what another one has that looks later.
    Method: the clock jumps between three times; a sample that is over at once has the time said; who looks, and when,
    is drawn."""
    monkeypatch.setattr("spindle.topics.timing.AGAIN_S", 0.01)
    rng = random.Random(seed)

    def seen(reader):
        return [one for one in reader.read(999) if one != b"brief"]

    topic = Topic(participant, "topic", bytes, qos=Qos(Policy.History.KeepAll, Policy.Reliability.Reliable(LONG)))
    depths = (Policy.History.KeepAll, Policy.History.KeepAll, Policy.History.KeepLast(100))
    readers = [DataReader(participant, topic, qos=Qos(depth)) for depth in depths]
    brief = DataWriter(participant, topic, qos=lasts(duration(milliseconds=1)))
    writers = {hours: DataWriter(participant, topic, qos=lasts(int(hours * HOUR))) for hours in (0.5, 1.5, 2.5)}
    alive, said_h = {}, 0.0  # sample -> hours that it counts; what was said last
    for number in range(40):
        what = rng.random()
        if what < 0.8:
            if what < 0.3:
                host_clock.ahead_ns = rng.choice((0, HOUR, 2 * HOUR))
                settled(brief, b"brief")
            else:
                hours = rng.choice(list(writers))
                settled(writers[hours], sample := b"%d" % number)
                if hours > said_h:
                    alive[sample] = hours
            hour, now_ns = host_clock.ahead_ns / HOUR, host_clock.time_ns()
            comes = what < 0.3 and (not said_h or hour < said_h)  # else only if something is due
            if comes or any(hours <= hour for hours in alive.values()):
                wait_until(lambda now_ns=now_ns: abs(said(readers[0]) - now_ns) < HOUR // 4)
                said_h = hour
                alive = {sample: hours for sample, hours in alive.items() if hours > said_h}
        else:
            rng.choice(readers[1:]).read(rng.choice((1, 3, 999)))
        assert seen(readers[0]) == list(alive)
    assert [seen(reader) for reader in readers] == [list(alive)] * len(readers)
