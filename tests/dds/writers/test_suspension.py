"""Publisher.suspend() and resume(), and StatusCondition.

Goal: what is written meanwhile goes out at resume, once, of each writer in order, a coherent set as one, and no more
than the limit is held; a status condition triggers for the statuses that it is asked for. Method: one embedded node.
"""

import gc
import threading
import time
from dataclasses import dataclass

import pytest

import dds
from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSSampleTooLarge,
    DDSStatus,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    StatusCondition,
    Topic,
    WaitSet,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.waiting import reaper
from tests.dds.test_sub import LONG

MS = duration(milliseconds=1)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")


class TestSuspending:
    def test_all_kinds_of_writing_go_out_at_resume(self, participant):
        topic = Topic(participant, "t", Track)
        publisher = Publisher(participant)
        writer, other = DataWriter(publisher, topic), DataWriter(publisher, topic)
        reader = DataReader(participant, topic)
        writer.write(Track(0))
        assert reader.take_one(timeout=LONG).number == 0
        publisher.suspend()
        before = time.time_ns()
        writer.write(Track(1))
        other.write(Track(2))
        writer.write_many([Track(3), Track(4)])
        writer.dispose(Track(1))
        late = DataWriter(publisher, topic)
        late.write(Track(5))
        after = time.time_ns()
        assert reader.take(9) == [] and not writer.wait_for_acks(MS) and not publisher.wait_for_acks(MS)
        publisher.resume()
        assert publisher.wait_for_acks(LONG)
        got = reader.take(9)
        numbers = [one.key_sample.number if isinstance(one, InvalidSample) else one.number for one in got]
        assert [one for one in numbers if one not in (2, 5)] == [1, 3, 4, 1] and sorted(numbers) == [1, 1, 2, 3, 4, 5]
        assert all(before <= one.sample_info.source_timestamp <= after for one in got)
        writer.write(Track(6))
        assert reader.take_one(timeout=LONG).number == 6

    def test_it_is_bounded(self, participant):
        topic = Topic(participant, "t", bytes, size_max=31)  # which takes nothing larger than its slots
        publisher = Publisher(participant)
        writer = DataWriter(publisher, topic, qos=Qos(Policy.ResourceLimits(max_samples=3)))
        reader = DataReader(participant, topic)
        publisher.suspend()
        for number in range(3):
            writer.write(b"%d" % number)
        with pytest.raises(DDSException, match=r"written 3 samples.*ResourceLimits.max_samples.*resume\(\)") as caught:
            writer.write(b"4")
        assert caught.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
        other = DataWriter(publisher, topic)
        with pytest.raises(DDSSampleTooLarge):
            other.write(bytes(32))
        other.write(b"3")
        with pytest.raises(dds.DDSException) as again:
            writer.write_many([b"x"])
        assert again.value.written == 0
        publisher.resume()
        assert publisher.wait_for_acks(LONG) and sorted(reader.take(9)) == [b"0", b"1", b"2", b"3"]

    def test_somebody_may_wait_for_what_is_held(self, participant):
        publisher = Publisher(participant)
        writer = DataWriter(publisher, Topic(participant, "t", bytes))
        publisher.suspend()
        writer.write(b"1")
        timer = threading.Timer(0.05, publisher.resume)
        timer.start()
        assert writer.wait_for_acks(LONG)
        timer.join()

    @pytest.mark.slow
    @pytest.mark.parametrize("forgotten", [False, True], ids=["closed", "forgotten"])
    def test_what_is_held_goes_with_its_writer(self, participant, forgotten):
        """Else nobody could resume the publisher any more."""
        publisher = Publisher(participant)
        topic = Topic(participant, "t", bytes)
        writer, other = DataWriter(publisher, topic), DataWriter(publisher, topic)
        reader = DataReader(participant, topic)
        publisher.suspend()
        writer.write(b"1")
        other.write(b"2")
        if forgotten:
            del writer
            gc.collect()
            reaper.flush()
        else:
            writer.close()
        publisher.resume()
        assert publisher.wait_for_acks(LONG) and reader.take(9) == [b"2"]

    def test_in_brackets(self, participant):
        publisher = Publisher(participant)
        for call in (publisher.resume, lambda: (publisher.suspend(), publisher.suspend())):
            with pytest.raises(DDSException) as caught:
                call()
            assert caught.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
        publisher.resume()


class TestStatusConditions:
    def test_it_waits_for_what_it_is_asked_for(self, participant):
        topic = Topic(participant, "t", bytes)
        writer = DataWriter(participant, topic)
        condition = writer.status_condition
        assert condition is StatusCondition(writer) is writer.get_statuscondition()
        assert condition.get_enabled_statuses() == DDSStatus.All and condition.get_entity() is writer
        waitset = WaitSet(participant)
        condition.set_enabled_statuses(DDSStatus.OfferedIncompatibleQos)
        waitset.attach(condition)
        reader = DataReader(participant, topic)
        assert waitset.wait(MS) == 0 and not condition.trigger_value
        condition.set_enabled_statuses(DDSStatus.PublicationMatched)
        assert waitset.wait(LONG) == 1 and condition.trigger_value
        writer.get_publication_matched_status()
        assert waitset.wait(MS) == 0
        reader.close()
        assert waitset.wait(LONG) == 1

    def test_data_wakes_a_wait_set(self, participant):
        topic = Topic(participant, "t", bytes)
        writer, reader = DataWriter(participant, topic), DataReader(participant, topic)
        condition = reader.status_condition
        condition.set_enabled_statuses(DDSStatus.DataAvailable)
        waitset = WaitSet(participant)
        waitset.attach(condition)
        waitset.attach(reader)
        waitset.detach(reader)  # the condition still watches it
        assert waitset.wait(MS) == 0
        timer = threading.Timer(0.05, lambda: writer.write(b"1"))
        timer.start()
        assert waitset.wait(LONG) == 1
        timer.join()
        assert waitset.attached[0][0] is condition

    def test_wrong_use(self, participant):
        topic = Topic(participant, "t", bytes)
        with pytest.raises(TypeError):
            StatusCondition("topic")
        with pytest.raises(TypeError):
            StatusCondition(topic.status_condition)
        with pytest.raises(DDSException) as caught:
            topic.status_condition.set_enabled_statuses(1 << 20)
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
        condition = topic.status_condition
        topic.close()
        for call in (condition.get_trigger_value, lambda: WaitSet(participant).attach(condition)):
            with pytest.raises(DDSException) as caught:
                call()
            assert caught.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED
        assert participant.children == [] or condition not in participant.children


GROUP = Qos(Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))
TOPIC = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=True))


class TestSets:
    @pytest.mark.parametrize("grouped", [True, False], ids=["of a group", "alone"])
    def test_a_set_is_held_and_sent_as_one(self, participant, grouped):
        """Also one that was open when its publisher was suspended, or that ends after it was resumed."""
        topic = Topic(participant, "t", bytes, order="o" if grouped else "")
        publisher = Publisher(participant, GROUP if grouped else TOPIC)
        reader, writer = DataReader(participant, topic), DataWriter(publisher, topic)
        publisher.suspend()
        with publisher.coherent():
            writer.write(b"1")
            writer.write(b"2")
        assert reader.take(9) == [] and not writer.wait_for_acks(MS)
        publisher.begin_coherent()
        writer.write(b"3")
        publisher.resume()
        assert writer.publisher is publisher and sorted(reader.take(9)) == [b"1", b"2"]
        writer.write(b"4")
        publisher.suspend()
        writer.write(b"5")
        publisher.end_coherent()
        assert reader.take(9) == []
        writer.write(b"6")
        publisher.resume()
        assert writer.wait_for_acks(LONG)
        taken = reader.take(9)
        assert taken == [b"3", b"4", b"5", b"6"]
        assert len({one.sample_info.sequence for one in taken[:3]}) == 1
        assert taken[3].sample_info.sequence != taken[0].sample_info.sequence

    def test_a_set_counts_for_the_limits_of_its_writers(self, participant):
        topic = Topic(participant, "t", bytes, order="o")
        publisher = Publisher(participant, GROUP)
        writer = DataWriter(publisher, topic, Qos(Policy.ResourceLimits(max_samples=3)))
        reader = DataReader(participant, topic)
        publisher.suspend()
        for fits in (True, False):
            publisher.begin_coherent()
            writer.write(b"1")
            writer.write(b"2")
            if fits:
                publisher.end_coherent()
                continue
            with pytest.raises(DDSException, match=r"ResourceLimits.max_samples.*resume\(\)") as caught:
                publisher.end_coherent()
            assert caught.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
        writer.write(b"3")
        publisher.resume()
        assert publisher.wait_for_acks(LONG) and reader.take(9) == [b"1", b"2", b"3"]

    @pytest.mark.parametrize(("qos", "order"), [(TOPIC, ""), (GROUP, "o")], ids=["alone", "of a group"])
    def test_a_sample_that_no_message_can_hold_is_not_held(self, limited, monkeypatch, qos, order):
        """Nobody could resume the publisher with it. What only the node finds too large is given up then."""
        topic = Topic(limited, "t", bytes, size_max=200, order=order)
        publisher = Publisher(limited, qos)
        reader, writer = DataReader(limited, topic), DataWriter(publisher, topic)
        publisher.suspend()
        with monkeypatch.context() as less:
            less.setattr("dds.writers.link.LARGE_SAMPLE_MAX", 1 << 20)
            with pytest.raises(DDSSampleTooLarge, match=r"1048576 (bytes )?are the most"):
                writer.write(bytes((1 << 20) + 1))
        writer.write(bytes(100_000))
        writer.write(bytes(3))
        with pytest.raises(DDSSampleTooLarge, match="large_sample_max"):
            publisher.resume()
        publisher.resume()
        assert publisher.wait_for_acks(LONG) and reader.take(9) == [bytes(3)]

    def test_a_held_set_goes_with_any_of_its_writers(self, participant):
        topic = Topic(participant, "t", bytes, order="o")
        publisher = Publisher(participant, GROUP)
        writers, reader = [DataWriter(publisher, topic) for _ in range(2)], DataReader(participant, topic)
        publisher.suspend()
        with publisher.coherent():
            for one in writers:
                one.write(b"never")
        publisher.begin_coherent()
        for one in writers:
            one.write(b"nor this")
        writers[0].close()
        with pytest.raises(DDSException, match="a closed writer is never sent") as caught:
            publisher.end_coherent()
        assert caught.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
        publisher.resume()
        writers[1].write(b"after")
        assert publisher.wait_for_acks(LONG) and reader.take(9) == [b"after"]
