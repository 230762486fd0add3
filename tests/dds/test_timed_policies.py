"""Policies by which samples come, go, or are missed because time passes: Deadline, Lifespan, TimeBasedFilter,
ReaderDataLifecycle.

Goal: nothing happens early, nothing that is due stays away, also if nobody writes or looks any more, and listeners,
wait sets and statuses tell the same.
Method: short times on one embedded node; conditions are waited for, and lower bounds measured.
"""

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dds
from dds import (
    DataReader,
    DataWriter,
    InstanceState,
    InvalidSample,
    Listener,
    Policy,
    Qos,
    SampleState,
    Topic,
    WaitSet,
)
from dds.core import DDSStatus, ReadCondition
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.internal import dds_infinity
from dds.util import duration
from dds.waiting.alarms import Alarms
from dds.waiting.deadlines import Arrivals, Deadlines
from tests.dds.test_sub import LONG
from tests.support import wait_until

SHORT = duration(milliseconds=150)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


def settled(writer, *samples, **how):
    for sample in samples:
        writer.write(sample, **how)
    assert writer.wait_for_acks(LONG)


# --- Deadline

@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=40))
def test_deadlines_against_a_model(steps):
    """Each step some time passes, and an instance is written, or looked at (number 3)."""
    deadlines, now, last, counted = Deadlines(20), 0, {}, {}
    for number, pause in steps:
        now += pause
        for instance, periods in deadlines.missed(now):
            counted[instance] = counted.get(instance, 0) + periods
        for instance, at in last.items():
            assert counted.get(instance, 0) == (now - at) // 20, (instance, now)
        if number < 3:
            deadlines.written(number, now)
            counted.pop(number, None)
            last[number] = now


@pytest.mark.parametrize("kind", [bytes, Track], ids=["keyless", "keyed"])
def test_both_ends_count_what_is_missed(participant, kind):
    topic = Topic(participant, "topic", kind, qos=Qos(Policy.Deadline(SHORT)))
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    assert reader.get_requested_deadline_missed_status().total_count == 0
    begun = time.monotonic_ns()
    settled(writer, b"x" if kind is bytes else Track(7))
    for look in (reader.get_requested_deadline_missed_status, writer.get_offered_deadline_missed_status):
        wait_until(lambda look=look: (status := look()).total_count and status)
        assert time.monotonic_ns() - begun >= SHORT
    handle = reader.get_requested_deadline_missed_status().last_instance_handle
    assert handle == writer.get_offered_deadline_missed_status().last_instance_handle
    assert handle == (1 if kind is bytes else reader.lookup_instance(Track(7)))
    assert len(reader.take(9)) == 1


def test_who_writes_in_time_misses_nothing(participant):
    period = duration(seconds=2)
    topic = Topic(participant, "topic", bytes, qos=Qos(Policy.Deadline(period)))
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    begun = time.monotonic_ns()
    for _ in range(20):
        settled(writer, b"x")
        time.sleep(0.01)
    counts = [reader.get_requested_deadline_missed_status().total_count,
              writer.get_offered_deadline_missed_status().total_count]
    assert counts == [0, 0] or time.monotonic_ns() - begun >= period  # this process may have been held up


@pytest.mark.slow
def test_an_instance_that_has_ended_is_missed_no_more(participant):
    topic = Topic(participant, "topic", Track, qos=Qos(Policy.Deadline(SHORT)))
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    settled(writer, Track(1), Track(2), Track(3))
    writer.dispose(Track(1))
    writer.unregister_instance(Track(2))
    handle = writer.lookup_instance(Track(3))
    wait_until(lambda: reader.get_requested_deadline_missed_status().total_count >= 3)
    wait_until(lambda: writer.get_offered_deadline_missed_status().total_count >= 3)
    assert reader.get_requested_deadline_missed_status().last_instance_handle == handle
    assert len(reader._intake.deadlines) == 1
    writer.dispose_instance_handle(handle)
    assert writer.wait_for_acks(LONG)
    before = reader.get_requested_deadline_missed_status().total_count
    time.sleep(2 * SHORT / 1e9)
    assert reader.get_requested_deadline_missed_status().total_count == before


def test_listeners_and_wait_sets_hear_of_it(participant):
    heard = []

    class Hears(Listener):
        def on_requested_deadline_missed(self, reader, status):
            heard.append(("requested", status.total_count_change))

        def on_offered_deadline_missed(self, writer, status):
            heard.append(("offered", status.total_count_change))

    topic = Topic(participant, "topic", bytes, qos=Qos(Policy.Deadline(SHORT)))
    reader = DataReader(participant, topic)
    waiting = WaitSet(participant)
    reader.set_status_mask(DDSStatus.RequestedDeadlineMissed)
    waiting.attach(reader)
    assert waiting.wait(0) == 0
    DataReader(participant, topic, listener=Hears())
    listening = DataReader(participant, topic, listener=Hears())
    writer = DataWriter(participant, topic, listener=Hears())
    settled(writer, b"x")
    assert waiting.wait(LONG) == 1
    wait_until(lambda: {kind for kind, _ in heard} == {"requested", "offered"})
    assert all(change >= 1 for _, change in heard)
    assert reader.take_status(DDSStatus.RequestedDeadlineMissed) and listening.take(9) == [b"x"]


def test_a_sample_that_waits_for_room_is_not_missed(participant):
    qos = Qos(Policy.Deadline(SHORT), Policy.ResourceLimits(max_samples=1))
    topic = Topic(participant, "topic", bytes, qos=Qos(Policy.Deadline(SHORT)))
    reader, writer = DataReader(participant, topic, qos=qos), DataWriter(participant, topic)
    begun = time.monotonic_ns()
    settled(writer, b"1", b"2")
    held_up = time.monotonic_ns() - begun >= SHORT  # between the two, perhaps
    time.sleep(2 * SHORT / 1e9)
    assert held_up or reader.get_requested_deadline_missed_status().total_count == 0
    assert reader.take(1) + reader.take(1) == [b"1", b"2"]


# --- Lifespan

@pytest.mark.parametrize("kind", ["read", "unread"])
def test_a_sample_expires(participant, kind):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    brief = DataWriter(participant, topic, qos=Qos(Policy.Lifespan(SHORT)))
    lasting = DataWriter(participant, topic)
    settled(lasting, b"1")
    begun = time.time_ns()
    settled(brief, b"2")
    settled(lasting, b"3")
    if kind == "read":
        assert reader.read(9) == [b"1", b"2", b"3"] or time.time_ns() - begun >= SHORT
    condition = ReadCondition(reader, SampleState.Any)
    wait_until(lambda: reader.read(9) == [b"1", b"3"])
    assert time.time_ns() - begun >= SHORT
    assert condition.triggered and reader.take(9) == [b"1", b"3"] and not condition.triggered


def test_what_has_expired_wakes_nobody(participant):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)
    writer = DataWriter(participant, topic, qos=Qos(Policy.Lifespan(1_000)))
    settled(writer, b"gone", timestamp=(written := time.time_ns() - 1_000_000))
    wait_until(lambda: reader._source.said_ns > written)
    assert reader.take(1) == [] and not reader.read_status(DDSStatus.DataAvailable)
    assert reader.get_sample_lost_status().total_count == 0


def test_late_joiners_get_what_lives_though_its_writer_does_not(participant):
    qos = Qos(Policy.Durability.TransientLocal, Policy.History.KeepAll)
    topic = Topic(participant, "topic", bytes, qos=qos)
    keeper = DataReader(participant, topic)
    writer = DataWriter(participant, topic, qos=Qos(Policy.Lifespan(SHORT)))
    settled(writer, b"brief")
    writer.close()
    with DataWriter(participant, topic, qos=Qos(Policy.Lifespan(duration(hours=1)))) as lasting:
        settled(lasting, b"lasting")
    wait_until(lambda: keeper.read(9) == [b"lasting"])
    assert DataReader(participant, topic).take(9) == [b"lasting"]


# --- TimeBasedFilter

def test_at_most_one_in_the_time_and_the_last_in_the_end(participant):
    topic = Topic(participant, "tracks", Track)
    reader = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(SHORT)))
    writer = DataWriter(participant, topic)
    start = time.time_ns()
    for n in range(10):
        settled(writer, Track(1, n), Track(2, 100 + n), timestamp=start + n)
    begun = time.monotonic_ns()
    first = [one.height for one in reader.take(99)]
    assert first == [0, 100] or time.monotonic_ns() - begun >= SHORT
    last = first[2:] + [reader.take_one(timeout=LONG).height for _ in range(4 - len(first))]
    assert last == [9, 109] and time.monotonic_ns() - begun >= SHORT
    settled(writer, Track(1, 50), timestamp=start + 9 + SHORT)
    assert [one.height for one in reader.take(9)] == [50]
    assert reader.get_sample_filtered_status().total_count == 16


def test_a_listener_hears_of_what_was_held_back(participant):
    got = []

    class Takes(Listener):
        def on_data_available(self, reader):
            got.extend(reader.take(9))

    topic = Topic(participant, "topic", bytes)
    DataWriter(participant, topic)
    reader = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(SHORT)), listener=Takes())
    writer = DataWriter(participant, topic)
    begun = time.monotonic_ns()
    settled(writer, b"1", b"2", b"3")
    held_up = time.monotonic_ns() - begun >= SHORT
    wait_until(lambda: got[-1:] == [b"3"])
    assert held_up or got == [b"1", b"3"]
    reader.close()


def test_who_reads_at_its_own_pace_and_writes_slowly_loses_nothing(participant):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(SHORT)))
    writer = DataWriter(participant, topic)
    for n in range(5):
        settled(writer, b"%d" % n, timestamp=1 + n * SHORT)
    assert reader.take(9) == [b"%d" % n for n in range(5)]


# --- ReaderDataLifecycle

@pytest.mark.parametrize("disposed", [True, False], ids=["disposed", "no writers"])
def test_what_is_kept_of_an_instance_goes_after_its_end(participant, disposed):
    topic = Topic(participant, "tracks", Track)
    delays = (dds_infinity, SHORT) if disposed else (SHORT, dds_infinity)
    reader = DataReader(participant, topic, qos=Qos(Policy.ReaderDataLifecycle(*delays)))
    writer = DataWriter(participant, topic, qos=Qos(Policy.WriterDataLifecycle(disposed)))
    settled(writer, Track(1, 10), Track(2, 20))
    begun = time.monotonic_ns()
    writer.unregister_instance(Track(1))
    assert writer.wait_for_acks(LONG)
    assert len(reader.read(9)) == 3
    wait_until(lambda: reader.read(9) == [Track(2, 20)])
    assert time.monotonic_ns() - begun >= SHORT
    assert len(reader._intake.instances) == 1


def test_an_instance_that_came_alive_again_is_kept(participant):
    topic = Topic(participant, "tracks", Track)
    reader = DataReader(participant, topic, qos=Qos(Policy.ReaderDataLifecycle(dds_infinity, SHORT)))
    writer = DataWriter(participant, topic)
    settled(writer, Track(1, 10))
    writer.dispose(Track(1))
    settled(writer, Track(1, 11))
    kept = reader.read(9)
    assert [type(one) is InvalidSample for one in kept] == [False, True, False]
    time.sleep(2 * SHORT / 1e9)
    assert len(reader.read(9)) == 3
    assert reader.read(1)[0].sample_info.instance_state == InstanceState.Alive


def test_at_once(participant):
    topic = Topic(participant, "tracks", Track)
    reader = DataReader(participant, topic, qos=Qos(Policy.ReaderDataLifecycle(0, 0)))
    writer = DataWriter(participant, topic)
    settled(writer, Track(1, 10))
    writer.write_dispose(Track(2, 20))
    writer.dispose(Track(1))
    assert writer.wait_for_acks(LONG)
    wait_until(lambda: reader.read(9) == [])


@pytest.mark.slow
def test_the_thread_of_the_alarms_holds_nobody(participant):
    import gc
    import weakref

    topic = Topic(participant, "topic", bytes, qos=Qos(Policy.Deadline(SHORT)))

    def used():
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        settled(writer, b"x")
        wait_until(lambda: reader.get_requested_deadline_missed_status().total_count)
        return [weakref.ref(reader), weakref.ref(writer)]

    gone = used()
    gc.collect()
    wait_until(lambda: [one() for one in gone] == [None, None])
    assert dds.DataReader(participant, topic)


# --- clocks that are set, and many instances

@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_clock_that_is_set_misses_nothing_and_holds_nothing_up(participant, monkeypatch, jump_s):
    """Deadlines, separations and delays are measured here, so by a clock that nobody sets."""
    period = duration(seconds=1)
    topic = Topic(participant, "tracks", Track, qos=Qos(Policy.Deadline(period)))
    reader = DataReader(participant, topic, qos=Qos(Policy.ReaderDataLifecycle(dds_infinity, SHORT)))
    apart = DataReader(participant, topic, qos=Qos(Policy.TimeBasedFilter(SHORT)))
    writer = DataWriter(participant, topic)
    start = time.time_ns()
    settled(writer, Track(1, 1), Track(1, 2), Track(3, 3), timestamp=start)
    assert len(reader.read(9)) == 3 and len(apart.read(9)) == 2
    writer.dispose(Track(3))
    assert writer.wait_for_acks(LONG) and len(reader.read(9)) >= 2
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + jump_s * 1_000_000_000)
    wait_until(lambda: len(reader.read(9)) == 2)
    wait_until(lambda: Track(1, 2) in apart.read(9))
    settled(writer, Track(1, 4), Track(2, 5))
    missed = wait_until(lambda: (status := reader.get_requested_deadline_missed_status()).total_count and status)
    assert missed.total_count < 1000
    settled(writer, Track(2, 6))
    wait_until(lambda: reader.get_requested_deadline_missed_status().last_instance_handle == (
        reader.lookup_instance(Track(2))))


@pytest.mark.parametrize("end", ["nothing", "dispose", "sample"])
def test_who_looks_late_finds_all_that_was_missed(participant, end):
    """Goal: a reader that nobody asks, and that has no listener, counts the same periods as its writer. Method: more
    than a period passes before the first look, at the end of which the instance ends or is written again."""
    topic = Topic(participant, "topic", Track, qos=Qos(Policy.Deadline(SHORT)))
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    settled(writer, Track(1))
    wait_until(lambda: writer.get_offered_deadline_missed_status().total_count >= 1)
    before = writer.get_offered_deadline_missed_status().total_count
    if end == "dispose":
        writer.dispose(Track(1))
    elif end == "sample":
        writer.write(Track(1))
    assert writer.wait_for_acks(LONG)
    wait_until(lambda: reader.get_requested_deadline_missed_status().total_count >= before, timeout_s=SHORT / 2e9)


@pytest.mark.parametrize("same_clock", [True, False])
def test_when_something_has_come(monkeypatch, same_clock):
    """Never before the last look that left nothing behind; and nobody knows, where the clock was set."""
    clocks = {"monotonic": 1_000, "utc": 5_000_000}
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks["monotonic"])
    monkeypatch.setattr(time, "time_ns", lambda: clocks["utc"])
    arrivals = Arrivals(same_clock)
    clocks.update(monotonic=1_500, utc=5_000_500)
    found = [arrivals.came_at(utc) for utc in (5_000_400, 4_000_000, 5_000_501)]
    assert found == ([1_400, 1_000, None] if same_clock else [None] * 3)
    arrivals.begin_at(1_450)
    assert arrivals.came_at(5_000_400) == (1_450 if same_clock else None)
    clocks["utc"] += 10 ** 9
    assert arrivals.came_at(5_000_400) is None


def test_what_is_late_counts_once_whoever_tells_of_it():
    deadlines = Deadlines(10)
    deadlines.written(1, 100)
    deadlines.written(1, 110)
    assert deadlines.late() == []
    deadlines.written(1, 141)
    assert deadlines.late() == [(1, 3)]
    assert deadlines.missed(151) == [(1, 1)]
    deadlines.written(1, 165)
    assert deadlines.late() == [(1, 1)] and deadlines.late() == []
    deadlines.ended(1, 176)
    assert deadlines.late() == [(1, 1)] and len(deadlines) == 0
    deadlines.written(1, 200)
    deadlines.written(1, 300, is_certain=False)
    deadlines.begin_anew(500)
    assert deadlines.late() == deadlines.missed(509) == [] and deadlines.missed(510) == [(1, 1)]


def test_deadlines_bear_times_that_go_back():
    deadlines = Deadlines(10)
    deadlines.written(1, 100)
    deadlines.written(2, 95)
    assert deadlines.next_ns == 110 and deadlines.missed(109) == []
    assert deadlines.missed(110) == [(1, 1), (2, 1)]


def test_instances_that_end_again_and_again_leave_no_plans(participant):
    topic = Topic(participant, "tracks", Track)
    reader = DataReader(participant, topic, qos=Qos(Policy.ReaderDataLifecycle(dds_infinity, duration(hours=1))))
    writer = DataWriter(participant, topic)
    for n in range(50):
        writer.write(Track(1, n))
        writer.dispose(Track(1))
    assert writer.wait_for_acks(LONG)
    assert len(reader.read(999)) == 51
    assert [len(one) for one in reader._intake._purges.values()] == [1]
    writer.unregister_instance(Track(1))
    assert writer.wait_for_acks(LONG) and len(reader.take(999)) == 51
    assert [len(one) for one in reader._intake._purges.values()] == [0] and not reader._intake._later


def test_many_instances_go_with_one_look_at_what_is_kept(participant):
    topic = Topic(participant, "tracks", Track)
    reader = DataReader(participant, topic, qos=Qos(Policy.ReaderDataLifecycle(dds_infinity, 0)))
    looks = []
    intake, purge = reader._intake, reader._intake.purge
    intake.purge = lambda instances: looks.append(len(instances)) or purge(instances)
    writer = DataWriter(participant, topic)
    for n in range(300):
        writer.write_dispose(Track(n, n))
    assert writer.wait_for_acks(LONG)
    wait_until(lambda: reader.read(999) == [])
    assert sum(looks) == 300 and len(looks) < 30


def test_what_takes_long_is_due_less_often():
    """Goal: thousands of instances that miss their deadlines leave the program time to write. Method: looks that take
    5 ms of a core each, and are always due."""
    looks = []

    class Busy:
        def _on_time(self):
            looks.append(time.monotonic())
            until = time.thread_time() + 0.005
            while time.thread_time() < until:
                pass
            return 0.0

    alarms, busy = Alarms("busy"), Busy()
    alarms.add(busy)
    wait_until(lambda: len(looks) >= 15)
    alarms.stop()
    assert looks[14] - looks[0] >= 14 * 5 * 0.005 * 0.9
