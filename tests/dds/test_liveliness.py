"""Liveliness: a writer that gives no sign of life in time is not alive, for all readers at the same place in the order.

Goal: leases never run out early, always run out, end with a message or an assertion, and count on both sides; what the
writer alone wrote has no writers meanwhile; a program that is stopped is noticed, on its own host and from afar.
Method: short leases on embedded nodes, daemons, and over TCP; programs that are stopped with SIGSTOP. The test's
process may be held up, too: what holds only while signs come in time is asked with the longest time without one.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

import dds
from dds import DataReader, DataWriter, DomainParticipant, InstanceState, Listener, Policy, Qos, Topic
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.readers import ends
from dds.util import duration
from tests.dds.test_remote import beside, remote
from tests.dds.test_sub import LONG
from tests.support import wait_until

LEASE = duration(milliseconds=250)
BY_TOPIC, BY_PARTICIPANT = Policy.Liveliness.ManualByTopic, Policy.Liveliness.ManualByParticipant


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


def settled(writer, *samples):
    for sample in samples:
        writer.write(sample)
    assert writer.wait_for_acks(LONG)


def counts(reader):
    reader.read(1)  # what has come is let in
    status = reader.get_liveliness_changed_status()
    return status.alive_count, status.not_alive_count


def told(reader):
    """What the reader is told of its writers from now on: (handle, True for a lease that has run out), in order."""
    heard, on_lapse = [], reader._intake.on_lapse

    def hears(writer, lapsed):
        heard.append((writer, lapsed))
        on_lapse(writer, lapsed)

    reader._intake.on_lapse = hears
    return heard


class Signs:
    """When a writer gave signs of life; `longest` is the longest time without one, up to now, ns."""

    def __init__(self, writer):
        self.at = [time.monotonic_ns()]
        handle = writer._link.handle
        give = handle.give_sign_of_life

        def gives():
            give()
            self.given()

        handle.give_sign_of_life = gives

    def given(self):
        self.at.append(time.monotonic_ns())

    @property
    def longest(self):
        times = [*self.at, time.monotonic_ns()]
        return max(later - at for at, later in itertools.pairwise(times))


@pytest.mark.slow
def test_a_lease_runs_out_and_begins_again(participant):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    heard = told(reader)
    begun = time.monotonic_ns()
    writer = DataWriter(participant, topic, qos=Qos(BY_TOPIC(LEASE)))
    wait_until(lambda: counts(reader) == (0, 1))
    assert time.monotonic_ns() - begun >= LEASE
    wait_until(lambda: writer.get_liveliness_lost_status().total_count == 1)
    settled(writer, b"here")
    assert reader.take(9) == [b"here"]
    assert heard[:2] == [(writer.instance_handle, True), (writer.instance_handle, False)]
    wait_until(lambda: counts(reader) == (0, 1))
    wait_until(lambda: writer.get_liveliness_lost_status().total_count == 2)
    writer.assert_liveliness()
    wait_until(lambda: counts(reader) and len(heard) >= 5)
    wait_until(lambda: counts(reader) == (0, 1))
    assert [lapsed for _, lapsed in heard] == [True, False] * (len(heard) // 2) + [True]
    writer.close()
    wait_until(lambda: counts(reader) == (0, 0))


@pytest.mark.slow
def test_who_says_so_in_time_stays_alive(participant):
    lease = duration(seconds=2)
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    writers = [DataWriter(participant, topic, qos=Qos(BY_TOPIC(lease))) for _ in range(2)]
    signs, until = [Signs(one) for one in writers], time.monotonic() + 2.5
    while time.monotonic() < until:
        writers[0].assert_liveliness()
        writers[1].write(b"x")
        signs[1].given()
        time.sleep(0.1)
    alive = counts(reader) == (2, 0) and [one.get_liveliness_lost_status().total_count for one in writers] == [0, 0]
    assert set(reader.take(999)) == {b"x"} and (alive or max(one.longest for one in signs) >= lease)


@pytest.mark.slow
def test_an_automatic_writer_lives_with_its_program(participant):
    lease = duration(milliseconds=500)
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    heard = told(reader)
    writer = DataWriter(participant, topic, qos=Qos(Policy.Liveliness.Automatic(lease)))
    signs = Signs(writer)
    wait_until(lambda: signs.at[-1] - signs.at[0] > 3 * lease)
    counts(reader)
    assert not heard or signs.longest >= lease
    assert writer.get_liveliness_lost_status().total_count == 0


@pytest.mark.slow
def test_one_manual_writer_speaks_for_its_participant(participant):
    lease = duration(seconds=2)
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    silent, busy = (DataWriter(participant, topic, qos=Qos(BY_PARTICIPANT(lease))) for _ in range(2))
    alone = DataWriter(participant, topic, qos=Qos(BY_TOPIC(duration(milliseconds=100))))
    signs, until = Signs(silent), time.monotonic() + 2.5
    while time.monotonic() < until:
        busy.write(b"x")
        time.sleep(0.1)
    assert set(reader.take(999)) == {b"x"} and (counts(reader) == (2, 1) or signs.longest >= lease)
    assert alone.get_liveliness_lost_status().total_count == 1
    wait_until(lambda: counts(reader) == (0, 3))
    wait_until(lambda: silent.get_liveliness_lost_status().total_count == 1)
    wait_until(lambda: participant.assert_liveliness() or counts(reader) == (2, 1))


def test_instances_of_who_is_not_alive_have_no_writers(participant):
    topic = Topic(participant, "tracks", Track)
    readers = [DataReader(participant, topic) for _ in range(2)]
    lasting, brief = DataWriter(participant, topic), DataWriter(participant, topic, qos=Qos(BY_TOPIC(LEASE)))
    settled(lasting, Track(1, 10))
    settled(brief, Track(1, 11), Track(2, 20))
    wait_until(lambda: len(readers[0].read(9)) == 4)
    settled(lasting, Track(2, 21))
    for reader in readers:
        *before, end, after = reader.take(9)
        assert [one.height for one in (*before, after)] == [10, 11, 20, 21]
        assert end.key_sample.number == 2
        assert after.sample_info.no_writers_generation_count == 1
        assert after.sample_info.instance_state == InstanceState.Alive


def test_the_owner_is_not_alive(participant):
    qos = Qos(Policy.Ownership.Exclusive)
    topic = Topic(participant, "topic", bytes, qos=qos)
    readers = [DataReader(participant, topic) for _ in range(2)]
    weak = DataWriter(participant, topic, qos=Qos(Policy.OwnershipStrength(1)))
    owner = DataWriter(participant, topic, qos=Qos(Policy.OwnershipStrength(2), BY_TOPIC(LEASE)))
    settled(owner, b"1")
    wait_until(lambda: counts(readers[0]) == (1, 1))
    settled(weak, b"2")
    settled(owner, b"3")
    assert [reader.take(9) for reader in readers] == [[b"1", b"2", b"3"]] * 2


def test_listeners_hear_of_it(participant):
    heard = []

    class Hears(Listener):
        def on_liveliness_changed(self, reader, status):
            heard.append((status.alive_count, status.not_alive_count))

        def on_liveliness_lost(self, writer, status):
            heard.append("lost")

    topic = Topic(participant, "topic", bytes)
    DataReader(participant, topic)
    reader = DataReader(participant, topic, listener=Hears())
    writer = DataWriter(participant, topic, qos=Qos(BY_TOPIC(LEASE)), listener=Hears())
    wait_until(lambda: {(0, 1), "lost"} <= set(heard))
    before = len(heard)
    wait_until(lambda: writer.write(b"x") or (1, 0) in heard[before:])
    assert set(reader.take(9999)) == {b"x"}


STOPPED = """
import sys, time
import dds
from dds import Policy, Qos
participant = dds.DomainParticipant(**eval(sys.argv[1]))
topic = dds.Topic(participant, "topic", bytes)
writer = dds.DataWriter(participant, topic, qos=Qos(Policy.Liveliness.Automatic(dds.duration(milliseconds=400))))
writer.write(b"x")
assert writer.wait_for_acks(dds.duration(seconds=30))
print("there", flush=True)
time.sleep(600)
"""


def stopped_and_continued(how, reader):
    process = subprocess.Popen([sys.executable, "-c", STOPPED, repr(how)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "there\n"
        wait_until(lambda: counts(reader) == (1, 0))
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: counts(reader) == (0, 1))
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: counts(reader) == (1, 0))
        process.kill()
        wait_until(lambda: counts(reader) == (0, 0))
    finally:
        process.kill()
        process.wait()


def test_a_program_that_is_stopped(runtime_dir, group):
    with DomainParticipant(node_id=2) as one:
        reader = DataReader(one, Topic(one, "topic", bytes))
        stopped_and_continued({"node_id": 1}, reader)


def test_a_program_without_a_node_that_is_stopped(site):
    with beside(site[2]) as near:
        reader = DataReader(near, Topic(near, "topic", bytes))
        with remote(site) as far:
            here = DataReader(far, Topic(far, "topic", bytes))
            writer = DataWriter(far, Topic(far, "topic", bytes), qos=Qos(BY_TOPIC(LEASE)))
            wait_until(lambda: counts(reader) == (0, 1) and counts(here) == (0, 1))
            wait_until(lambda: writer.assert_liveliness() or (counts(reader) == (1, 0) and counts(here) == (1, 0)))
            writer.close()
            wait_until(lambda: counts(reader) == (0, 0))


def test_nobody_is_told_of_a_writer_that_is_for_others(participant):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    other = DataWriter(dds.Publisher(participant, qos=Qos(Policy.Partition("a"))), topic, qos=Qos(BY_TOPIC(LEASE)))
    wait_until(lambda: other.get_liveliness_lost_status().total_count == 1)
    assert other.wait_for_acks(LONG) and counts(reader) == (0, 0)


def test_a_program_that_is_busy_in_its_own_filter_lives(participant):
    """Goal: nothing that the program does on the thread of the deadlines holds up the signs of life. Method: a filter,
    asked there, that returns when such a sign was given meanwhile."""
    topic = Topic(participant, "topic", bytes)
    filtered = Topic(participant, "topic", bytes)
    asked = threading.Event()
    automatic = DataWriter(participant, topic, qos=Qos(Policy.Liveliness.Automatic(duration(seconds=1))))
    signs = Signs(automatic)

    def slow(topic, sample):
        begun = time.monotonic_ns()
        asked.set()
        return wait_until(lambda: signs.at[-1] > begun)

    filtered.set_topic_filter(slow)
    busy = DataReader(participant, filtered, qos=Qos(Policy.Deadline(duration(milliseconds=100))))
    plain = DataWriter(participant, topic, qos=Qos(Policy.Deadline(duration(milliseconds=100))))
    settled(plain, b"x")
    participant._runtime.alarms.look(busy)
    assert asked.wait(10) and busy.take(1) == [b"x"]


@pytest.mark.slow
def test_writers_come_and_go_while_others_speak_for_them(participant):
    topic = Topic(participant, "topic", bytes)
    qos = Qos(BY_PARTICIPANT(duration(seconds=60)))
    writer = DataWriter(participant, topic, qos=qos)
    reader = DataReader(participant, topic, qos=Qos(Policy.History.KeepLast(1)))
    done, errors = threading.Event(), []

    def write():
        try:
            while not done.is_set():
                writer.write(b"x")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(40):
        DataWriter(participant, topic, qos=qos).close()
    done.set()
    thread.join()
    assert errors == [] and reader.take(1) == [b"x"]
    assert len(participant._runtime.vigils) < 40


@pytest.mark.parametrize("partition", ["", "a"])
def test_who_was_not_alive_leaves_nothing_behind(participant, partition):
    """Neither when it closes, nor when what it writes is for others: the reader takes the fast way again."""
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    publisher = dds.Publisher(participant, qos=Qos(Policy.Partition(partition)))
    writer = DataWriter(publisher, topic, qos=Qos(BY_TOPIC(LEASE)))
    wait_until(lambda: counts(reader) and reader._intake.has_lapsed(writer.instance_handle))
    assert not reader._fast and counts(reader) == ((0, 0) if partition else (0, 1))
    if partition:
        wait_until(lambda: settled(writer, b"not for us") or (reader.take(9) == [] and reader._fast))
    writer.close()
    DataWriter(participant, topic).close()
    wait_until(lambda: reader.take(9) == [] and reader._fast and counts(reader) == (0, 0))
    assert not reader._intake._lapsed and not reader._matches._not_alive


@pytest.mark.parametrize("parted_by", ["partition", "policy"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_lease_that_runs_out_counts_when_the_two_match_again(two_nodes, monkeypatch, parted_by, when):
    """And only then; what the writer alone had written has no writers from the place on where it runs out. Method: it
    does before they are parted, or while they are; nothing is remembered for long of a writer that nobody announces."""
    monkeypatch.setattr(ends, "UNKNOWN_NS", 1_000_000)
    here, there = two_nodes
    publisher, subscriber = (kind(node, qos=Qos(Policy.Partition("a"))) for kind, node in (
        (dds.Publisher, here), (dds.Subscriber, there)))
    topics = [Topic(node, "topic", Track) for node in two_nodes]
    reader = DataReader(subscriber, topics[1], qos=Qos(Policy.LatencyBudget(5)))
    writer = DataWriter(publisher, topics[0], qos=Qos(BY_TOPIC(duration(seconds=1)), Policy.LatencyBudget(5)))
    wait_until(lambda: counts(reader) == (1, 0))

    def part(apart):
        if parted_by == "partition":
            publisher.set_qos(Qos(Policy.Partition("b" if apart else "a")))
        else:
            writer.set_qos(Qos(Policy.LatencyBudget(9 if apart else 5)))
        wait_until(lambda: bool(reader.get_matched_publications()) is not apart)

    settled(writer, Track(1))
    wait_until(lambda: reader.read(9))
    if when == "before":
        wait_until(lambda: counts(reader) == (0, 1))
        part(True)
    else:
        part(True)
        wait_until(lambda: reader._intake.has_lapsed(writer.instance_handle) or counts(reader) != (0, 0))
    wait_until(lambda: counts(reader) == (0, 0))
    part(False)
    wait_until(lambda: counts(reader) == (0, 1))
    found = [one.sample_info.instance_state for one in reader.take(9)]
    assert found == [InstanceState.NotAliveNoWriters] * 2
    writer.assert_liveliness()
    wait_until(lambda: counts(reader) == (1, 0))
    wait_until(lambda: counts(reader) == (0, 1))
    part(True)
    writer.close()
    # That it has ended is said twice: in the order, where it lives once more by that, and by its announcement's end.
    wait_until(lambda: reader.take(9) == [] and not reader._intake._lapsed and not reader._matches._parted)
    assert not reader._matches._not_alive and counts(reader) == (0, 0)


def test_a_lease_that_runs_out_before_its_writer_is_announced(two_nodes):
    """Goal: every reader says the same, also one to which announcements come later than the order. Method: they are
    held up at the second node from another writer's on."""
    here, there = two_nodes
    announced, held, go_on = Topic(here, "topic", bytes), threading.Event(), threading.Event()
    readers = [DataReader(here, announced), DataReader(there, Topic(there, "topic", bytes))]

    def holds(event):
        if event.endpoint is not None and event.endpoint.topic == "other":
            held.set()
            assert go_on.wait(30)

    there.session.add_listener(holds)
    other = DataWriter(here, Topic(here, "other", bytes))
    assert held.wait(10)
    writer = DataWriter(here, announced, qos=Qos(BY_TOPIC(LEASE)))
    wait_until(lambda: counts(readers[0]) == (0, 1))
    wait_until(lambda: counts(readers[1]) == (0, 0) and readers[1]._intake.has_lapsed(writer.instance_handle))
    go_on.set()
    wait_until(lambda: readers[1].get_matched_publications())
    assert counts(readers[1]) == (0, 1)
    writer.assert_liveliness()
    wait_until(lambda: [counts(one) for one in readers] == [(1, 0)] * 2)
    for one in (writer, other):
        one.close()
    wait_until(lambda: [counts(one) for one in readers] == [(0, 0)] * 2)
    assert not readers[1]._intake._lapsed and not readers[1]._matches._not_alive


def test_who_comes_late_hears_who_is_not_alive(two_nodes):
    here, there = two_nodes
    topic = Topic(here, "topic", bytes)
    early = DataReader(here, topic)
    writer = DataWriter(here, topic, qos=Qos(BY_TOPIC(LEASE)))
    wait_until(lambda: counts(early) == (0, 1))
    late = [DataReader(here, topic), DataReader(there, Topic(there, "topic", bytes))]
    wait_until(lambda: [counts(one) for one in late] == [(0, 1)] * 2)
    writer.assert_liveliness()
    wait_until(lambda: [counts(one) for one in (early, *late)] == [(1, 0)] * 3)


OWNER = """
import sys, time
import dds
from dds import Policy, Qos
participant = dds.DomainParticipant.remote([sys.argv[1]])
topic = dds.Topic(participant, "topic", bytes, qos=Qos(Policy.Ownership.Exclusive))
lives = Policy.Liveliness.Automatic(dds.duration(seconds=2))
writer = dds.DataWriter(participant, topic, qos=Qos(Policy.OwnershipStrength(2), lives))
writer.write(b"owner")
assert writer.wait_for_acks(dds.duration(seconds=30))
print("there", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_program_without_a_node_that_is_killed_owns_nothing_for_long(site):
    """Goal: a lease outlives the connection of its program, since nobody else could tell that it was killed, and is not
    cut short either. Method: the program is the owner; a standby beside a node is heard once the lease has run out."""
    with beside(site[2]) as near:
        topic = Topic(near, "topic", bytes, qos=Qos(Policy.Ownership.Exclusive))
        reader, standby = DataReader(near, topic), DataWriter(near, topic)
        lapses = told(reader)
        process = subprocess.Popen([sys.executable, "-c", OWNER, site[0].address], stdout=subprocess.PIPE, text=True)
        heard = []

        def goes_on():
            settled(standby, b"standby")
            heard.extend(reader.take(9))
            return heard[1:]

        try:
            assert process.stdout.readline() == "there\n"
            process.kill()
            assert wait_until(goes_on, timeout_s=30, interval_s=0.05) == [b"standby"]
            assert heard == [b"owner", b"standby"] and [lapsed for _, lapsed in lapses] == [True]
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_who_lives_again_at_another_node_is_said_to_live(site):
    """The one that had said that it doesn't is gone."""
    with beside(site[2]) as near, remote(site) as far:
        reader = DataReader(near, Topic(near, "topic", bytes))
        writer = DataWriter(far, Topic(far, "topic", bytes), qos=Qos(BY_TOPIC(duration(seconds=1))))
        wait_until(lambda: counts(reader) == (0, 1))
        os.kill(site[0].running.pid, signal.SIGKILL)
        wait_until(lambda: far.session.address != site[0].address)
        handle = writer.instance_handle
        wait_until(lambda: not reader._matches.has(handle) or counts(reader) == (1, 0), timeout_s=30)
        wait_until(lambda: writer.assert_liveliness() or counts(reader) == (1, 0), timeout_s=30)


@pytest.mark.slow
def test_who_goes_on_in_time_was_alive_all_the_time(site):
    """Goal: what waits with a dead connection for a lease to run out neither holds up the next node, nor says anything
    of a program that goes on there. Method: a program turns to the next node while the first one still runs."""
    with beside(site[2]) as near, remote(site) as far:
        heard = []

        class Hears(Listener):
            def on_liveliness_changed(self, reader, status):
                heard.append(status.not_alive_count)

        reader = DataReader(near, Topic(near, "topic", bytes), listener=Hears())
        qos = Qos(Policy.Liveliness.Automatic(duration(seconds=600)))
        writer = DataWriter(far, Topic(far, "topic", bytes), qos=qos)
        settled(writer, b"1")
        far.session._channel._link.conn._sock.shutdown(socket.SHUT_RDWR)
        settled(writer, b"2")
        assert reader.take(9) == [b"1", b"2"]
        assert not any(heard)
