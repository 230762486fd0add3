"""Reading over all topics of an order group.

Goal: a subscriber of group scope gives its readers' samples in the order of the group, and between begin_access() and
end_access() the state at one place of it; it never waits for what can't come, and wakes whoever waits for what can.
Method: embedded nodes, writers of several topics; a stand-in reader where the order of arrival matters.
"""

import threading
from types import SimpleNamespace

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    InstanceState,
    InvalidSample,
    Listener,
    Policy,
    Publisher,
    Qos,
    ReadCondition,
    SampleState,
    Subscriber,
    Topic,
    WaitSet,
    duration,
)
from dds.readers.access import GroupAccess
from dds.waiting.wake import Waker, wait_readable
from tests.dds.messages.test_order_groups import GROUP, Note, Scope, Track, ends, topics
from tests.dds.test_sub import ANY, LONG
from tests.support import wait_until


def write(writers, *numbers):
    """Each number to the writer that it says by its remainder."""
    for n in numbers:
        writers[n % 3].write((Track(n), Note("", n), b"%d" % n)[n % 3])
    assert writers[0].wait_for_acks(LONG)


def number_of(sample):
    return sample.key_sample.number if isinstance(sample, InvalidSample) else (
        int(sample) if isinstance(sample, bytes) else sample.number)


def test_an_access_stands_still(participant):
    subscriber, readers, _, writers = ends(participant)
    write(writers, 0, 1, 2)
    with subscriber.access():
        write(writers, 3, 4, 5)
        assert [len(one.read(9)) for one in readers] == [1, 1, 1]
        with subscriber.access():  # within it
            assert [len(one.take(9)) for one in readers] == [1, 1, 1]
        assert [len(one.take(9)) for one in readers] == [0, 0, 0]
    with subscriber.access():
        assert [number_of(one.take(9)[0]) for one in readers] == [3, 4, 5]


def test_outside_of_an_access_reading_is_refused(participant):
    subscriber, readers, _, writers = ends(participant)
    write(writers, 0, 1, 2)
    for call in (readers[0].take, readers[0].read, readers[0].take_next, lambda: next(readers[0].take_iter()),
                 readers[2].take_batch, subscriber.get_datareaders):
        with pytest.raises(DDSException, match=r"begin_access\(\)") as error:
            call()
        assert error.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    with pytest.raises(DDSException, match="begin_access"):
        subscriber.end_access()
    readers[0].begin_coherent()  # of its subscriber, as with Cyclone DDS
    assert len(readers[0].take(5)) == 1
    readers[0].end_coherent()
    with subscriber.access(), readers[2].take_batch(5) as batch:
        assert len(batch) == 1


def test_get_datareaders_lists_each_as_often_as_its_turn_comes(participant):
    subscriber, readers, _, writers = ends(participant)
    write(writers, 0, 3, 1, 2, 4, 6)
    with subscriber.access():
        turns = subscriber.get_datareaders(SampleState.NotRead)
        assert [readers.index(one) for one in turns] == [0, 0, 1, 2, 1, 0]
        assert [number_of(one.take(1)[0]) for one in turns] == [0, 3, 1, 2, 4, 6]
        assert subscriber.get_datareaders() == []
    unordered = Subscriber(participant, Qos(Scope.Group(coherent_access=True, ordered_access=False)))
    twice = [DataReader(unordered, one) for one in topics(participant)]
    write(writers, 0, 3, 1)
    with unordered.access():
        assert unordered.get_datareaders() == twice[:2]
    plain = Subscriber(participant)
    reader = DataReader(plain, writers[2].topic)
    assert plain.get_datareaders() == []
    write(writers, 2)
    wait_until(lambda: plain.get_datareaders(SampleState.NotRead) == [reader])


def test_take_gives_all_topics_in_their_order(participant):
    subscriber, readers, _, writers = ends(participant)
    write(writers, *range(50))
    writers[0].dispose(Track(0))
    assert writers[0].wait_for_acks(LONG)
    assert [number_of(one) for _, one in subscriber.take(20)] == list(range(20))
    taken = subscriber.take(1000)
    assert [number_of(one) for _, one in taken] == [*range(20, 50), 0]
    assert taken[-1][0] is readers[0] and taken[-1][1].sample_info.instance_state == InstanceState.NotAliveDisposed
    assert subscriber.take() == []
    with pytest.raises(TypeError):
        subscriber.take(0)
    with pytest.raises(DDSException, match=r"PresentationAccessScope\.Group"):
        Subscriber(participant).take()


def test_waiting_for_all_topics(participant):
    subscriber, readers, _, writers = ends(participant)
    assert list(subscriber.take_iter(timeout=duration(milliseconds=1))) == []
    timer = threading.Timer(0.1, write, (writers, 1, 2, 0))
    timer.start()
    found = []
    for reader, sample in subscriber.take_iter(timeout=LONG):
        found.append((readers.index(reader), number_of(sample)))
        if len(found) == 3:
            break
    timer.join()
    assert found == [(1, 1), (2, 2), (0, 0)]
    waitset = WaitSet(participant)
    waitset.attach(ReadCondition(readers[1], ANY))
    timer = threading.Timer(0.1, write, (writers, 4))
    timer.start()
    assert waitset.wait(LONG) == 1
    timer.join()
    assert [number_of(one) for _, one in subscriber.take(5)] == [4]


def test_a_listener_hears_of_its_topic(participant):
    heard = []
    subscriber = Subscriber(participant, GROUP)

    def take(reader):
        with subscriber.access():
            heard.extend(reader.take(10))

    of = topics(participant)
    reader = DataReader(subscriber, of[2], listener=Listener(on_data_available=take))
    other = DataReader(subscriber, of[1])
    writer = DataWriter(participant, of[2], GROUP)
    writer.write(b"1")
    wait_until(lambda: heard == [b"1"])
    assert reader.subscriber is other.subscriber is subscriber


def test_a_reader_that_comes_later_is_not_waited_for(participant):
    """It will never get what came before it."""
    subscriber = Subscriber(participant, GROUP)
    of = topics(participant)
    writer = DataWriter(participant, of[2], GROUP)
    first = DataReader(subscriber, of[2])
    writer.write(b"1")
    assert writer.wait_for_acks(LONG)
    later = DataReader(subscriber, of[1])
    assert [one for _, one in subscriber.take(5)] == [b"1"]
    writer.write(b"2")
    assert writer.wait_for_acks(LONG)
    assert [one for _, one in subscriber.take(5)] == [b"2"]
    later.close()
    writer.write(b"3")
    assert writer.wait_for_acks(LONG)
    with subscriber.access():
        assert first.take(5) == [b"3"]


def test_a_reader_without_room_holds_the_others(participant):
    """Who reads in the group's order takes from all: what is behind a sample without room waits, too."""
    subscriber = Subscriber(participant, GROUP)
    of = topics(participant)
    small = DataReader(subscriber, of[0], Qos(Policy.ResourceLimits(1, -1, -1)))
    large = DataReader(subscriber, of[2])
    writers = [DataWriter(participant, one, GROUP) for one in of]
    writers[0].write(Track(1))
    assert writers[0].wait_for_acks(LONG)
    writers[0].write(Track(2))
    assert writers[0].wait_for_acks(LONG)
    writers[2].write(b"3")
    assert writers[2].wait_for_acks(LONG)
    taken = [number_of(one) for _, one in subscriber.take(5)]
    while len(taken) < 3:
        taken += [number_of(one) for _, one in subscriber.take(5)]
    assert taken == [1, 2, 3] and small.subscriber is large.subscriber


LIMITS = {
    "instances": (Policy.ResourceLimits(max_instances=1), Track(2)),
    "samples of an instance": (Policy.ResourceLimits(max_samples_per_instance=1), Track(1)),
    "samples": (Policy.ResourceLimits(max_samples=1), Track(2)),
}


@pytest.mark.parametrize("kind", list(LIMITS))
def test_all_wait_at_the_sample_that_has_no_room(participant, kind):
    """Each reader stands at the same place, and who waits for what is behind it is woken once there is room."""
    subscriber, (limits, second) = Subscriber(participant, GROUP), LIMITS[kind]
    of = topics(participant)
    small, large = DataReader(subscriber, of[0], Qos(limits)), DataReader(subscriber, of[2])
    writers = [DataWriter(participant, one, GROUP) for one in of]
    for writer, sample in ((writers[0], Track(1)), (writers[0], second), (writers[2], b"3")):
        writer.write(sample)
        assert writer.wait_for_acks(LONG)
    with subscriber.access():
        assert (len(small.read(9)), len(large.read(9))) == (1, 0)
    status = small.get_sample_rejected_status()
    assert status.total_count == 1 or kind == "samples"  # which are counted one by one, as they come
    waitset, woken = WaitSet(participant), []
    waitset.attach(ReadCondition(large, ANY))
    waiting = threading.Thread(target=lambda: woken.append(waitset.wait(10 * LONG)))
    waiting.start()
    wait_until(waitset._waits.locked)
    for sample in (Track(1), second):
        with subscriber.access():
            assert small.take(9) == [sample]
    wait_until(lambda: woken == [1])  # before its time is over
    waiting.join()
    with subscriber.access():
        assert (small.take(9), large.take(9)) == ([], [b"3"])


@pytest.mark.parametrize("how", ["an access ends", "a reader without room is closed"])
def test_who_waits_is_rung_for_when_nothing_is_in_the_way_any_more(participant, how):
    """What has come rings once, and may be for nobody yet."""
    subscriber, of = Subscriber(participant, GROUP), topics(participant)
    small = DataReader(subscriber, of[0], Qos(Policy.ResourceLimits(max_samples_per_instance=1)))
    large = DataReader(subscriber, of[2])
    writers = [DataWriter(participant, one, GROUP) for one in of]
    waits = Waker()
    large._hub.join(waits)
    if how == "an access ends":
        subscriber.begin_access()
    else:
        writers[0].write_many([Track(1), Track(1)])
        assert writers[0].wait_for_acks(LONG)
    writers[2].write(b"3")
    assert writers[2].wait_for_acks(LONG) and not large._has(ANY, None)
    waits.clear()
    if how == "an access ends":
        subscriber.end_access()
    else:
        small.close()
    assert wait_readable([waits.fd], 0) and large._has(ANY, None)
    assert subscriber.take(9)[-1] == (large, b"3")


def test_who_waits_is_woken_when_what_was_in_the_way_is_over(participant):
    """Time alone makes room: nobody takes anything, and nothing comes."""
    subscriber, of = Subscriber(participant, GROUP), topics(participant)
    small = DataReader(subscriber, of[0], Qos(Policy.ResourceLimits(max_samples_per_instance=1)))
    large = DataReader(subscriber, of[2])
    writers = [DataWriter(participant, one, GROUP) for one in of]
    brief = DataWriter(participant, of[0], GROUP + Qos(Policy.Lifespan(duration(milliseconds=300))))
    for writer, sample in ((brief, Track(1)), (writers[0], Track(1)), (writers[2], b"3")):
        writer.write(sample)
        assert writer.wait_for_acks(LONG)
    waitset = WaitSet(participant)
    waitset.attach(ReadCondition(large, ANY))
    assert waitset.wait(LONG) == 1
    assert [number_of(one) for _, one in subscriber.take(9)][-1] == 3 and small.subscriber is subscriber


def test_endpoints_of_group_scope_are_of_one_group(participant):
    subscriber, publisher = Subscriber(participant, GROUP), Publisher(participant, GROUP)
    one, other = Topic(participant, "a", bytes, order="o"), Topic(participant, "b", bytes, order="p")
    alone = Topic(participant, "c", bytes)
    kept = DataReader(subscriber, one), DataWriter(publisher, one)
    for make, group in ((DataReader, subscriber), (DataWriter, publisher)):
        with pytest.raises(DDSException, match=r"topic 'b' is in 'p', others of the same .* in 'o'"):
            make(group, other)
        with pytest.raises(DDSException, match=r"topic 'c' is in none: make it with Topic\(\.\.\., order=") as error:
            make(group, alone)
        assert error.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
        plain = type(group)(participant)
        with pytest.raises(DDSException, match="belongs to the Qos of the"):
            make(plain, one, GROUP)
    assert all(one._open for one in kept)


@pytest.mark.parametrize(("offered", "requested", "met"), [
    (None, None, True),
    (Scope.Group(True, True), None, True),
    (Scope.Group(True, True), Scope.Topic(True, False), True),
    (Scope.Group(True, True), Scope.Group(True, True), True),
    (Scope.Topic(True, True), Scope.Group(True, True), False),
    (Scope.Group(False, True), Scope.Topic(True, False), False),
    (Scope.Group(True, False), Scope.Topic(False, True), False),
    (None, Scope.Instance(True, False), False),
    (None, Scope.Topic(False, False), False),
])
def test_presentation_is_matched(participant, offered, requested, met):
    topic = Topic(participant, "t", bytes, order="o")
    writer = DataWriter(participant, topic, Qos() if offered is None else Qos(offered))
    subscriber = Subscriber(participant, Qos() if requested is None else Qos(requested))
    reader = DataReader(subscriber, topic)
    assert (len(reader.matched_pub), len(writer.matched_sub)) == ((1, 1) if met else (0, 0))
    status = reader.get_requested_incompatible_qos_status()
    assert (status.total_count, status.last_policy_id) == ((0, 0) if met else (1, 3))
    writer.write(b"x")
    assert writer.wait_for_acks(LONG)
    with subscriber.access():
        assert len(reader.take(5)) == met


class Stream:
    """A reader whose messages come when the test says."""

    def __init__(self, access, session, *places, start=(0, 0)):
        self._open = True
        self._source = SimpleNamespace(session=session, is_over=False, starts_at=start, stands_at=start)
        self._intake = self
        self._coming, self._here = list(places), []
        self.let_in, self.given_up, self.is_full = [], [], False
        access.add(self)

    def comes(self, count=1):
        for _ in range(count):
            self._here.append(self._coming.pop(0))
            self._source.stands_at = self._here[-1][0], self._here[-1][1] + 1

    @property
    def ahead(self):
        return len(self._here)

    @property
    def head(self):
        return SimpleNamespace(view_id=self._here[0][0], sequence=self._here[0][1]) if self._here else None

    def let_in_next(self, step):
        self.let_in.append((step, self._here.pop(0)))

    def give_up_set(self):
        self.given_up.append(self._here.pop(0))
        return True

    def collect(self):
        pass


def test_a_set_of_which_one_reader_has_lost_something_is_given_up_by_all():
    access, session = GroupAccess(), object()
    one, other = Stream(access, session, (1, 5), (1, 6)), Stream(access, session, (1, 6))
    late = Stream(access, session, (1, 6), start=(1, 6))
    one.comes(2)
    other.comes()
    late.comes()
    access.advance()
    assert one.given_up == [(1, 5)] and one.let_in == other.let_in == late.let_in == [(2, (1, 6))]


def test_who_came_later_has_lost_nothing():
    access, session = GroupAccess(), object()
    one, late = Stream(access, session, (1, 5), (1, 6)), Stream(access, session, (1, 6), start=(1, 6))
    one.comes(2)
    late.comes()
    access.advance()
    assert one.given_up == [] and [place for _, place in one.let_in] == [(1, 5), (1, 6)]


def test_a_message_waits_until_everybody_has_it():
    access, session = GroupAccess(), object()
    order = [(1, 5), (1, 6), (2, 0)]
    one, other = Stream(access, session, *order), Stream(access, session, *order[1:], start=(1, 3))
    one.comes(2)
    access.advance()
    assert one.let_in == [] and access.is_blocked  # the other may get (1, 5) yet
    other.comes()
    access.advance()
    assert one.given_up == [(1, 5)] and one.let_in == other.let_in == [(2, (1, 6))] and not access.is_blocked
    one.comes()
    access.advance()
    assert len(one.let_in) == 1
    other.comes()
    access.begin()
    assert one.let_in[-1] == other.let_in[-1] == (3, (2, 0))


def test_who_is_over_is_not_waited_for_and_a_later_nodes_order_comes_later():
    access, before, after = GroupAccess(), object(), object()
    one, other = Stream(access, before, (5, 5), (6, 0)), Stream(access, before, (5, 5), (5, 6))
    one.comes()
    other.comes(2)
    access.advance()
    assert [len(one.let_in), len(other.let_in)] == [1, 1]
    one._source.session = after
    one._coming = [(1, 0)]  # another group, whose views begin anew
    one.comes()
    access.advance()
    assert other.given_up == [(5, 6)] and len(one.let_in) == 1  # the other's log may go on for a while
    other._source.is_over = True
    access.advance()
    assert one.let_in[-1] == (3, (1, 0))


def test_reading_over_all_topics_knows_the_time(participant):
    """Goal: the subscriber's take() gives what the readers' would: nothing whose lifespan is over, and in the end what
    a TimeBasedFilter held back. Method: two topics of a group, beside a reader that has no group scope."""
    short = Topic(participant, "short", bytes, Qos(Policy.Lifespan(duration(milliseconds=50))), order="flight")
    rare = Topic(participant, "rare", Note, order="flight")
    subscriber, beside = Subscriber(participant, GROUP), DataReader(participant, short)
    DataReader(subscriber, short)
    filtered = DataReader(subscriber, rare, Qos(Policy.TimeBasedFilter(duration(milliseconds=50))))
    publisher = Publisher(participant, GROUP)
    DataWriter(publisher, short).write(b"over soon")
    notes = DataWriter(publisher, rare)
    for number in range(3):
        notes.write(Note("", number))
    assert notes.wait_for_acks(LONG)
    wait_until(lambda: not beside.read(1))
    taken = []
    wait_until(lambda: taken.extend(subscriber.take(9)) or len(taken) == 2)
    assert [(reader, one.number) for reader, one in taken] == [(filtered, 0), (filtered, 2)]
