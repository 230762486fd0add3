"""Coherent sets, from the publisher to the readers.

Goal: readers get a set whole and at one place, or nothing of it: over all topics of an order group, else of each
writer; also if a write in it fails, the program raises, or the set is larger than a message. What can't be sent says
which limit it has met.
Method: embedded nodes. What crashes is in test_daemons.py, test_remote.py and test_reattachment.py.
"""

import threading

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSSampleTooLarge,
    DDSTimeout,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    Topic,
    duration,
)
from dds.core import Statistics
from dds.messages import packets
from tests.dds.messages.test_order_groups import GROUP, Note, Scope, Track, ends
from tests.dds.test_sub import LONG
from tests.support import wait_until

TOPIC = Qos(Scope.Topic(coherent_access=True, ordered_access=True))
ALL = Qos(Policy.History.KeepAll)


def code(error):
    return error.value.code


def test_nothing_of_a_set_comes_before_its_end(participant):
    subscriber, _, publisher, writers = ends(participant)
    with publisher.coherent():
        writers[0].write(Track(1, 10))
        writers[1].write(Note("one"))
        writers[0].write(Track(1, 20), timestamp=77)
        assert subscriber.take(10) == []
    samples = [one for _, one in subscriber.take(10)]
    assert [type(one) for one in samples] == [Track, Note, Track]
    infos = [one.sample_info for one in samples]
    assert len({(one.view_id, one.sequence) for one in infos}) == 1 and infos[2].source_timestamp == 77
    assert infos[0].source_timestamp < infos[1].source_timestamp
    assert [one.publication_handle for one in infos] == [writers[n]._instance_handle() for n in (0, 1, 0)]


def test_a_block_that_raises_sends_nothing(participant):
    subscriber, _, publisher, writers = ends(participant)
    with pytest.raises(ZeroDivisionError), publisher.coherent():
        writers[2].write(b"never")
        writers[2].write(b"%d" % (1 // 0))
    publisher.begin_coherent()
    writers[2].write(b"nor this")
    publisher.discard_coherent()
    writers[2].write(b"alone")
    assert writers[2].wait_for_acks(LONG)
    assert [one for _, one in subscriber.take(10)] == [b"alone"]


def test_sets_within_a_set_are_part_of_it(participant):
    subscriber, _, publisher, writers = ends(participant)
    with publisher.coherent():
        writers[2].write(b"1")
        writers[2].begin_coherent()  # of its publisher
        writers[1].write(Note("2"))
        writers[1].end_coherent()
        assert subscriber.take(9) == []
    assert len(subscriber.take(9)) == 2
    with publisher.coherent():
        writers[2].write(b"3")
        with pytest.raises(ValueError), publisher.coherent():
            raise ValueError("inner")
        with pytest.raises(DDSException, match=r"because the block of a set within it raised ValueError\('inner'\)"
                           ) as error:
            publisher._coherence.end()
        assert code(error) == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
        publisher.begin_coherent()
    assert subscriber.take(9) == []
    with pytest.raises(DDSException, match="because a set within it was discarded"), publisher.coherent():
        publisher.begin_coherent()
        writers[2].write(b"4")
        publisher.discard_coherent()
    assert subscriber.take(9) == []
    with pytest.raises(DDSException, match="begin_coherent") as error:
        publisher.end_coherent()
    assert code(error) == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET


def test_only_a_publisher_that_offers_it_has_sets(participant):
    publisher = Publisher(participant)
    with pytest.raises(DDSException, match=r"PresentationAccessScope\.Topic\(") as error:
        publisher.begin_coherent()
    assert code(error) == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    with pytest.raises(DDSException) as error:
        participant.begin_coherent()
    assert code(error) == DDSException.DDS_RETCODE_ILLEGAL_OPERATION


def test_outside_of_groups_each_writers_samples_are_a_set(participant):
    publisher = Publisher(participant, TOPIC)
    names = [Topic(participant, name, bytes) for name in ("a", "b")]
    readers = [DataReader(participant, one) for one in names]
    writers = [DataWriter(publisher, one) for one in names]
    writers[0].write(b"0")
    with publisher.coherent():
        for n in range(1, 5):
            writers[n % 2].write(b"%d" % n)
            assert readers[1].take(10) == []
    assert publisher.wait_for_acks(LONG)
    assert readers[0].take(10) == [b"0", b"2", b"4"] and readers[1].take(10) == [b"1", b"3"]
    assert readers[0]._fast  # no sample but those of sets is looked at one by one


def test_a_writer_of_its_own_has_sets_too(participant):
    topic = Topic(participant, "alone", Track)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic, TOPIC)
    with writer.publisher.coherent():
        writer.write(Track(1, 1))
        writer.write(Track(2, 2))
        writer.dispose(Track(1))
        with pytest.raises(DDSException, match="nothing is sent until it ends"):
            writer.wait_for_acks(LONG)
    assert writer.wait_for_acks(LONG)
    taken = reader.take(10)
    assert [one.number for one in taken[:2]] == [1, 2] and isinstance(taken[2], InvalidSample)


@pytest.mark.slow
def test_a_set_larger_than_a_message_comes_whole(participant):
    """Its packets are kept aside, whatever comes from others in between; none of them waits in the log for the rest."""
    subscriber, readers, publisher, writers = ends(participant, size_max=2000)
    other = DataWriter(Publisher(participant, GROUP), writers[2].topic)
    stop = threading.Event()

    def write_others():
        for _ in range(3000):  # less than the log holds: nobody takes while the sets are written
            other.write(b"other" + bytes(500))
            if stop.is_set():
                break

    thread = threading.Thread(target=write_others)
    thread.start()
    try:
        for size in (3, 200, 3000):
            with publisher.coherent():
                for n in range(size):
                    writers[n % 3].write((Track(n), Note("n" * 100, n), b"%d" % n)[n % 3])
            got = []
            while len(got) < size:
                got += [(reader, one) for reader, one in subscriber.take(size) if not (
                    isinstance(one, bytes) and one.startswith(b"other"))]
            numbers = [int(one) if isinstance(one, bytes) else one.number for _, one in got]
            assert numbers == list(range(size))
            assert len({one.sample_info.sequence for _, one in got}) == 1
    finally:
        stop.set()
        thread.join()
    assert all(one._intake.sets.kept_aside == 0 for one in readers)


def test_a_set_that_is_too_large_names_its_limit_and_costs_nobody_anything(limited, monkeypatch):
    subscriber, _readers, publisher, writers = ends(limited)
    with pytest.raises(DDSSampleTooLarge, match=r"a sample of 80.* 65536 are the most.*large_sample_max") as error:
        with publisher.coherent():
            for _ in range(4):
                writers[2].write(bytes(20_000))
    assert code(error) == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    monkeypatch.setattr("dds.writers.link.LARGE_SAMPLE_MAX", packets.SET_BYTES_MAX)
    with pytest.raises(DDSException, match=f"a set takes at most.*{packets.SET_BYTES_MAX} bytes") as error:
        with publisher.coherent():
            for _ in range(1000):
                writers[2].write(bytes(10_000))
    assert code(error) == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    monkeypatch.setattr(packets, "SET_SAMPLES_MAX", 3)
    publisher.begin_coherent()
    for _ in range(3):
        writers[2].write(b"x")
    with pytest.raises(DDSException, match="at most 3 samples"):
        writers[2].write(b"x")
    with pytest.raises(DDSException, match=r"nothing of this coherent set was sent.*at most 3 samples") as error:
        publisher.end_coherent()
    assert code(error) == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    with pytest.raises(DDSSampleTooLarge, match="a sample of 65537 bytes; 65536 are the most"), publisher.coherent():
        writers[2].write(bytes(65536 - 57))
    with pytest.raises(DDSSampleTooLarge, match="a sample of 65537 bytes; 65536 are the most"):
        writers[2].write(bytes(65536 - 57))
    writers[2].write(bytes(65536 - 58))
    assert [len(one) for _, one in subscriber.take(9)] == [65536 - 58]


def test_readers_that_ask_for_nothing_get_sets_whole_too(participant):
    _, _, publisher, writers = ends(participant)
    plain = DataReader(participant, writers[2].topic, Qos(Policy.History.KeepLast(2)))
    limited = DataReader(participant, writers[2].topic, Qos(Policy.ResourceLimits(3, -1, -1)))
    with publisher.coherent():
        for n in range(6):
            writers[2].write(b"%d" % n)
    assert writers[2].wait_for_acks(LONG)
    assert plain.take(9) == [b"4", b"5"]
    assert limited.take(9) == [b"0", b"1", b"2"] and limited.take(9) == [b"3", b"4", b"5"]
    assert limited.get_sample_rejected_status().total_count == 0


@pytest.mark.slow
def test_a_slow_reader_makes_the_set_time_out_and_readers_forget_what_had_come_of_it(participant):
    qos = Qos(Policy.Reliability.Reliable(duration(milliseconds=300)))
    subscriber, readers, publisher, writers = ends(participant, size_max=1000)
    quick = DataWriter(publisher, writers[2].topic, qos)
    for one in writers:
        one.close()
    with pytest.raises(DDSTimeout), publisher.coherent():
        for n in range(4000):  # with what the log holds beside it, more than there is room for
            quick.write(b"%d" % n + bytes(900))
        fill = DataWriter(participant, quick.topic, qos)
        try:
            while True:
                fill.write(bytes(900))
        except DDSTimeout:
            pass
    while subscriber.take(1000):
        pass
    quick.write(b"after")
    assert quick.wait_for_acks(LONG)
    taken = [one for _, one in subscriber.take(10)]
    assert taken == [b"after"]
    assert all(one._intake.sets.kept_aside == 0 and one._intake.sets.dropped == 1 for one in readers)


def test_a_closed_writers_instances_end_behind_its_samples(participant):
    """The carrier goes on for the others, and says so in the writer's name; in a set, with the set."""
    subscriber, _, publisher, writers = ends(participant)
    with publisher.coherent():
        writers[0].write(Track(1, 1))
        writers[2].write(b"1")
        writers[0].close()
        writers[2].write(b"2")
    assert writers[2].wait_for_acks(LONG)
    taken = [one for _, one in subscriber.take(10)]
    assert [type(one) for one in taken] == [Track, bytes, InvalidSample, bytes] or [
        type(one).__name__ for one in taken] == ["Track", "BytesSample", "InvalidSample", "BytesSample"]
    assert taken[2].sample_info.instance_state == InstanceState.NotAliveDisposed
    again = DataWriter(publisher, writers[0].topic, Qos(Policy.WriterDataLifecycle(autodispose=False)))
    publisher.begin_coherent()
    again.write(Track(2, 2))
    publisher.discard_coherent()
    again.write(Track(3, 3))
    again.close()
    assert writers[2].wait_for_acks(LONG)
    taken = [one for _, one in subscriber.take(10)]
    assert taken[0].number == 3 and taken[1].sample_info.instance_state == InstanceState.NotAliveNoWriters


def test_a_discarded_set_keeps_the_ends_of_writers(participant):
    subscriber, _, publisher, writers = ends(participant)
    writers[0].write(Track(1, 1))
    publisher.begin_coherent()
    writers[0].write(Track(1, 2))
    writers[0].close()
    publisher.discard_coherent()
    assert writers[2].wait_for_acks(LONG)
    taken = [one for _, one in subscriber.take(10)]
    assert taken[0].height == 1 and isinstance(taken[1], InvalidSample) and len(taken) == 2


def test_when_the_publisher_closes_all_its_writers_have_ended(participant):
    subscriber, _, publisher, writers = ends(participant)
    writers[0].write(Track(1, 1))
    writers[0].dispose(Track(2))
    publisher.close()
    wait_until(lambda: subscriber.get_datareaders.__self__._readers()[0]._unread() >= 1)
    taken = []
    wait_until(lambda: taken.extend(one for _, one in subscriber.take(10)) or len(taken) == 3)
    assert [type(one) for one in taken] == [Track, InvalidSample, InvalidSample]
    with pytest.raises(DDSException):
        publisher.begin_coherent()


def test_two_nodes_get_the_same_sets_at_the_same_places(two_nodes):
    both = [ends(one, size_max=500) for one in two_nodes]
    wait_until(lambda: all(len(reader.matched_pub) == 2 for _, readers, _, _ in both for reader in readers))

    def write(publisher, writers, who):
        for n in range(60):
            with publisher.coherent():
                for k in range(n % 7 + 1):
                    writers[1].write(Note(f"{who} {n} {k} {n % 7 + 1}" + "." * (n % 5) * 40))

    threads = [threading.Thread(target=write, args=(publisher, writers, who))
               for who, (_, _, publisher, writers) in enumerate(both)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(publisher.wait_for_acks(LONG) for _, _, publisher, _ in both)
    count = 2 * sum(n % 7 + 1 for n in range(60))
    taken = [[one for _, one in subscriber.take(10_000)] for subscriber, _, _, _ in both]
    assert [len(one) for one in taken] == [count, count]
    assert [one.text for one in taken[0]] == [one.text for one in taken[1]]
    assert [one.sample_info.sequence for one in taken[0]] == [one.sample_info.sequence for one in taken[1]]
    at = 0
    while at < count:  # whole, and together
        who, n, _, size = taken[0][at].text.rstrip(".").split()
        whole = [one.text.rstrip(".") for one in taken[0][at:at + int(size)]]
        assert whole == [f"{who} {n} {k} {size}" for k in range(int(size))]
        at += int(size)


def test_writers_that_share_a_way_count_together(participant):
    _, _, publisher, writers = ends(participant)
    with publisher.coherent():
        writers[2].write(b"x")
        writers[1].write(Note("x"))
    writers[2].write(b"y")
    assert publisher.wait_for_acks(LONG)
    assert Statistics(writers[1]).data["written"] == Statistics(writers[2]).data["written"] == 2


def test_policies_of_each_sample_hold_in_sets(participant):
    """Lifespan, partitions and strength go along with each sample, and owners are agreed on as ever."""
    exclusive = Qos(Policy.Ownership.Exclusive)
    topic = Topic(participant, "owned", bytes, exclusive, order="o")
    reader = DataReader(participant, topic)
    publishers = [Publisher(participant, GROUP) for _ in range(2)]
    weak, strong = (DataWriter(publisher, topic, Qos(Policy.OwnershipStrength(strength)))
                    for strength, publisher in enumerate(publishers))
    for publisher, writer, name in zip(publishers, (weak, strong), (b"weak", b"strong"), strict=True):
        with publisher.coherent():
            writer.write(name + b"1")
            writer.write(name + b"2")
        assert writer.wait_for_acks(LONG)
    weak.write(b"unheard")
    assert weak.wait_for_acks(LONG)
    strong.close()
    assert weak.wait_for_acks(LONG)
    wait_until(lambda: reader._unread() >= 4)
    weak.write(b"weak3")
    assert weak.wait_for_acks(LONG)
    assert reader.take(10) == [b"weak1", b"weak2", b"strong1", b"strong2", b"weak3"]


def test_a_lease_that_runs_out_is_told_of_the_writer_and_not_of_its_carrier(participant):
    lease = Qos(Policy.Liveliness.ManualByTopic(duration(milliseconds=100)))
    publisher, topic = Publisher(participant, GROUP), Topic(participant, "t", Track, order="o")
    reader = DataReader(participant, topic)
    writer, other = DataWriter(publisher, topic, lease), DataWriter(publisher, topic)
    writer.write(Track(1))
    other.write(Track(2))
    wait_until(lambda: reader.get_liveliness_changed_status().not_alive_count == 1)
    wait_until(lambda: len(reader.read(9)) == 3)
    ends_of = [one for one in reader.read(9) if isinstance(one, InvalidSample)]
    assert [one.key_sample.number for one in ends_of] == [1]
    writer.write(Track(1))
    wait_until(lambda: reader.get_liveliness_changed_status().alive_count == 1)


@pytest.mark.parametrize("limit", [1, 2])
def test_handles_are_those_of_the_matched_writers(participant, limit):
    _, readers, _, writers = ends(participant)
    for _ in range(limit):
        writers[0].write(Track(1))
    assert writers[0].wait_for_acks(LONG)
    assert {one.sample_info.publication_handle for one in readers[0]._intake.entries} <= set(readers[0].matched_pub)
    assert readers[0].get_matched_publication_data(readers[0].matched_pub[0]).topic_name == "tracks"


def test_participants_find_a_carrier_no_writer(participant):
    """What nobody announces nobody matches."""
    _, readers, _, writers = ends(participant)
    assert len(readers[0].matched_pub) == 1
    assert len([one for one in participant.session.endpoints("flight") if one.is_writer]) == len(writers)
    assert isinstance(participant, DomainParticipant)


@pytest.mark.parametrize("grouped", [True, False], ids=["of a group", "alone"])
def test_what_a_writer_has_in_a_set_goes_with_it_though_the_writer_is_closed(participant, grouped):
    """Also if it was the only one of its publisher, or another one takes its place within the set."""
    topic = Topic(participant, "t", Track, order="o" if grouped else "")
    reader, publisher = DataReader(participant, topic, ALL), Publisher(participant, GROUP if grouped else TOPIC)
    writer = DataWriter(publisher, topic)
    with publisher.coherent():
        writer.write(Track(1, 1))
        writer.close()
        other = DataWriter(publisher, topic)
        other.write(Track(2, 2))
        assert reader.take(9) == []
    assert other.wait_for_acks(LONG)
    taken = []
    wait_until(lambda: taken.extend(reader.take(9)) or len(taken) == 3)
    said = [(type(one), (one.key_sample if isinstance(one, InvalidSample) else one).number) for one in taken]
    written, ended = [one for one in said if one[0] is Track], (InvalidSample, 1)
    # Alone, each writer has a way of its own: of several the group agrees on an order, not on that of writing.
    assert (written if grouped else sorted(written, key=lambda one: one[1])) == [(Track, 1), (Track, 2)]
    assert said.index(ended) > said.index((Track, 1))
    wait_until(lambda: len(reader.matched_pub) == 1)
    other.close()
    wait_until(lambda: len(reader.matched_pub) == 0)


@pytest.mark.parametrize("what", ["publisher", "participant"])
def test_what_is_closed_with_an_open_set_takes_all_along(two_nodes, what):
    here, far = two_nodes
    reader, publisher = DataReader(here, Topic(here, "t", Track, order="o"), ALL), Publisher(far, GROUP)
    topic = Topic(far, "t", Track, order="o")
    writers = [DataWriter(publisher, topic) for _ in range(2)]
    wait_until(lambda: len(reader.matched_pub) == 2)
    publisher.begin_coherent()
    for one in writers:
        one.write(Track(1))
    writers[0].close()
    assert len(reader.matched_pub) == 2
    (publisher if what == "publisher" else far).close()
    wait_until(lambda: len(reader.matched_pub) == 0)
    assert reader.take(9) == []
