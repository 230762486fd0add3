"""The life of instances: what ends them, and what readers are told of it.

Goal: every reader that gets the same messages goes through the same states, in the order of the messages, whoever ends
what and however it ends; what has gone takes no memory.
Method: writers and readers on one embedded node; a model that takes the same steps.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Qos,
    QueryCondition,
    ReadCondition,
    SampleState,
    Topic,
    ViewState,
    WaitSet,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.idl.types import array, sequence
from dds.messages.operations import DEPARTURE
from tests.dds.test_sub import ANY, LONG, write_all
from tests.spindle.daemons import Daemon
from tests.support import wait_until

ALIVE, DISPOSED, NO_WRITERS = InstanceState.Alive, InstanceState.NotAliveDisposed, InstanceState.NotAliveNoWriters
KEPT = Policy.WriterDataLifecycle(autodispose=False)


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


def made(participant, writers=1, qos=None, writer_qos=None):
    topic = Topic(participant, "tracks", Track)
    reader = DataReader(participant, topic, qos=qos)
    return topic, reader, *(DataWriter(participant, topic, qos=writer_qos) for _ in range(writers))


def settled(*writers):
    for writer in writers:
        assert writer.wait_for_acks(LONG)


def seen(samples):
    """What was given out: the sample, or -key of an end, with the state of its instance."""
    return [(-one.key_sample.number if isinstance(one, InvalidSample) else one.height, one.sample_info.instance_state)
            for one in samples]


def test_no_program_can_say_that_its_node_has_gone(participant):
    """The message that says so has no writer; one that a program has made changes nothing for the others."""
    _, reader, writer, liar = made(participant, 2)
    write_all(writer, [Track(1, 10)])
    liar._inbox.write(b"", tag=DEPARTURE)
    write_all(liar, [Track(2, 20)])
    settled(writer, liar)
    assert seen(reader.take(9)) == [(10, ALIVE), (20, ALIVE)]


def test_an_end_comes_in_its_place_with_the_key_alone(participant):
    _, reader, writer = made(participant)
    write_all(writer, [Track(1, 10), Track(2, 20)])
    writer.dispose(Track(1, 99))
    write_all(writer, [Track(2, 21)])
    first, second, end, last = reader.take(9)
    assert [first, second, last] == [Track(1, 10), Track(2, 20), Track(2, 21)]
    assert isinstance(end, InvalidSample) and not end.sample_info.valid_data and first.sample_info.valid_data
    assert type(end.key_sample) is Track and (end.key_sample.number, end.key_sample.height) == (1, 0)
    assert end.sample_info.instance_handle == first.sample_info.instance_handle == writer.lookup_instance(Track(1))
    assert end.sample_info.publication_handle == writer.instance_handle
    states = [one.sample_info.instance_state for one in (first, second, end, last)]
    assert states == [DISPOSED, ALIVE, DISPOSED, ALIVE]  # as they are when they are taken


def test_it_comes_alive_again_with_the_next_sample(participant):
    _, reader, writer = made(participant)
    writer.write(Track(1, 1))
    writer.dispose(Track(1))
    write_all(writer, [Track(1, 2)])
    writer.dispose(Track(1))
    write_all(writer, [Track(1, 3), Track(1, 4)])
    got = reader.read(9)
    assert seen(got) == [(1, ALIVE), (2, ALIVE), (-1, ALIVE), (3, ALIVE), (4, ALIVE)]  # of ends the last is kept
    infos = [one.sample_info for one in got]
    assert [one.disposed_generation_count for one in infos] == [0, 1, 1, 2, 2]
    assert [one.no_writers_generation_count for one in infos] == [0] * 5
    assert [one.sample_rank for one in infos] == [4, 3, 2, 1, 0]
    assert [one.generation_rank for one in infos] == [2, 1, 1, 0, 0]
    assert [one.absolute_generation_rank for one in infos] == [2, 1, 1, 0, 0]
    (oldest,) = reader.read(1)
    assert (oldest.sample_info.generation_rank, oldest.sample_info.absolute_generation_rank) == (0, 2)
    assert oldest.sample_info.view_state == ViewState.Old
    writer.dispose(Track(1))
    write_all(writer, [Track(1, 5)])
    assert {one.sample_info.view_state for one in reader.take(9)} == {ViewState.New}


def test_without_autodispose_the_last_writer_decides(participant):
    _, reader, one, two = made(participant, 2, writer_qos=Qos(KEPT))
    write_all(one, [Track(1, 1), Track(2, 2)])
    write_all(two, [Track(1, 3)])
    one.unregister_instance(Track(1))
    settled(one)
    assert seen(reader.take(9)) == [(1, ALIVE), (2, ALIVE), (3, ALIVE)]
    two.unregister_instance(Track(1))
    one.unregister_instance(Track(2))
    two.unregister_instance(Track(2))  # it never wrote that
    settled(one, two)
    assert sorted(seen(reader.take(9))) == [(-2, NO_WRITERS), (-1, NO_WRITERS)]
    write_all(one, [Track(1, 4)])
    (again,) = reader.take(9)
    assert (again.sample_info.no_writers_generation_count, again.sample_info.view_state) == (0, ViewState.New)


def test_generations_without_writers_are_counted_while_the_instance_is_known(participant):
    _, reader, writer = made(participant, writer_qos=Qos(KEPT))
    for height in (1, 2):
        writer.write(Track(1, height))
        writer.unregister_instance(Track(1))
    write_all(writer, [Track(1, 3)])
    infos = [one.sample_info for one in reader.take(9)]
    assert [one.no_writers_generation_count for one in infos] == [0, 1, 1, 2]
    assert [one.generation_rank for one in infos] == [2, 1, 1, 0]


def test_unregistering_disposes_unless_the_writer_says_no(participant):
    _, reader, one, two = made(participant, 2)
    write_all(one, [Track(1, 1)])
    write_all(two, [Track(1, 2)])
    one.unregister_instance(Track(1))
    settled(one)
    assert seen(reader.take(9)) == [(1, DISPOSED), (2, DISPOSED), (-1, DISPOSED)]
    two.unregister_instance(Track(1))
    settled(two)
    assert reader.take(9) == [] and len(reader._intake.instances) == 0


def test_write_dispose_is_a_sample_and_an_end(participant):
    _, reader, writer = made(participant)
    writer.write_dispose(Track(1, 7))
    settled(writer)
    (only,) = reader.take(9)
    assert only == Track(1, 7) and only.sample_info.valid_data and only.sample_info.instance_state == DISPOSED
    assert writer.lookup_instance(Track(1)) == only.sample_info.instance_handle


def test_ends_by_handle(participant):
    _, reader, writer = made(participant)
    handle = writer.register_instance(Track(1, 5))
    assert handle == writer.register_instance(Track(1, 6)) == writer.lookup_instance(Track(1)) > 0
    assert writer.lookup_instance(Track(2)) is None
    write_all(writer, [Track(1, 7), Track(2, 8)])
    writer.dispose_instance_handle(handle)
    writer.unregister_instance_handle(writer.lookup_instance(Track(2)))
    settled(writer)
    assert seen(reader.take(9)) == [(7, DISPOSED), (8, DISPOSED), (-1, DISPOSED), (-2, DISPOSED)]
    assert writer.lookup_instance(Track(2)) is None and writer.lookup_instance(Track(1)) == handle
    for wrong in (0, 1, -5, handle + 1):
        for call in (writer.dispose_instance_handle, writer.unregister_instance_handle):
            with pytest.raises(DDSException, match="has no instance") as raised:
                call(wrong)
            assert raised.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER


def test_what_was_never_written_can_be_disposed_but_not_unregistered(participant):
    _, reader, writer = made(participant, writer_qos=Qos(KEPT))
    writer.dispose(Track(1))
    writer.unregister_instance(Track(2))
    settled(writer)
    assert seen(reader.take(9)) == [(-1, DISPOSED)]


@pytest.mark.parametrize("how", ["unregistered", "closed"])
def test_who_disposes_of_what_was_never_written_has_to_do_with_it_from_then_on(participant, how):
    """Goal: its going is no second end, and nothing is kept of the instance behind it."""
    _, reader, writer = made(participant)
    writer.dispose(Track(1))
    writer.dispose(Track(1))
    settled(writer)
    assert seen(reader.take(9)) == [(-1, DISPOSED)]
    assert len(reader._intake.instances) == 1  # as of what was written: the writer may write it yet
    if how == "unregistered":
        writer.unregister_instance(Track(1))
        settled(writer)
    else:
        writer.close()
    wait_until(lambda: reader.take(9) == [] and len(reader._intake.instances) == 0)


def test_an_end_behind_an_end_keeps_its_instance(participant):
    """Goal: of two ends that nobody has taken the later one is kept, and what is written next is of that instance."""
    _, reader, writer = made(participant)
    write_all(writer, [Track(1, 1)])
    assert seen(reader.take(9)) == [(1, ALIVE)]
    for _ in range(2):
        writer.unregister_instance(Track(1))
    settled(writer)
    assert seen(reader.read(9)) == [(-1, DISPOSED)]
    write_all(writer, [Track(1, 2)])
    last = reader.take(9)[-1]
    assert last == Track(1, 2) and last.sample_info.disposed_generation_count == 1


def test_ends_of_what_has_ended_say_nothing(participant):
    _, reader, writer = made(participant)
    write_all(writer, [Track(1, 1)])
    assert seen(reader.take(9)) == [(1, ALIVE)]
    for _ in range(3):
        writer.dispose(Track(1))
    settled(writer)
    assert seen(reader.take(9)) == [(-1, DISPOSED)]
    writer.dispose(Track(1))
    settled(writer)
    assert reader.take(9) == []


@pytest.mark.parametrize("autodispose", [True, False])
def test_closing_a_writer_ends_what_it_alone_has(participant, autodispose):
    _, reader, one, two = made(participant, 2, writer_qos=None if autodispose else Qos(KEPT))
    write_all(one, [Track(1, 1), Track(2, 2), Track(3, 3)])
    one.unregister_instance(Track(3))
    write_all(two, [Track(2, 4)])
    reader.take(99)
    one.write(Track(4, 5))
    one.close()
    expected = {(5, DISPOSED), (-1, DISPOSED), (-2, DISPOSED), (-4, DISPOSED)} if autodispose else {
        (5, NO_WRITERS), (-1, NO_WRITERS), (-4, NO_WRITERS)}
    wait_until(lambda: len(reader.read(99)) == len(expected))
    ends = [value for value, _ in seen(reader.read(99))]
    assert ends[0] == 5 and ends[1:] == sorted(ends[1:], reverse=True)  # in the order of its first samples
    assert set(seen(reader.take(99))) == expected
    assert len(reader._intake.instances) == 1  # that of the other writer


def test_a_writer_that_is_forgotten_has_ended_too(participant):
    _, reader, writer = made(participant)
    write_all(writer, [Track(1, 1)])
    del writer
    wait_until(lambda: seen(reader.read(9)) == [(1, DISPOSED), (-1, DISPOSED)])


def test_closing_a_participant_ends_what_its_writers_have(participant):
    _, reader = made(participant, 0)
    with DomainParticipant.embedded(participant.domain_id) as other:
        writer = DataWriter(other, Topic(other, "tracks", Track))
        write_all(writer, [Track(1, 1)])
    wait_until(lambda: seen(reader.read(9)) == [(1, DISPOSED), (-1, DISPOSED)])


def test_conditions_by_state(participant):
    _, reader, writer = made(participant)
    ended = ReadCondition(reader, SampleState.Any | ViewState.Any | DISPOSED)
    alive = ReadCondition(reader, SampleState.Any | ViewState.Any | ALIVE)
    waitset = WaitSet(participant)
    waitset.attach(ended)
    write_all(writer, [Track(1, 1), Track(2, 2)])
    assert alive.triggered and not ended.triggered and waitset.wait(0) == 0
    writer.dispose(Track(1))
    assert waitset.wait(LONG) == 1 and ended.triggered
    assert seen(reader.read(9, condition=alive)) == [(2, ALIVE)]
    assert seen(reader.take(9, condition=ended)) == [(1, DISPOSED), (-1, DISPOSED)]
    assert not ended.triggered and alive.triggered


def test_an_end_has_no_content_to_ask_for(participant):
    _, reader, writer = made(participant)
    write_all(writer, [Track(1, 1), Track(2, 2)])
    writer.dispose(Track(1))
    settled(writer)
    low = QueryCondition(reader, ANY, "height < 5")
    assert seen(reader.read(9, condition=low)) == [(1, DISPOSED), (2, ALIVE)]
    by_number = QueryCondition(reader, ANY, "ORDER BY number")
    assert seen(reader.read(9, condition=by_number)) == [(1, DISPOSED), (2, ALIVE)]


def test_a_filter_keeps_out_the_ends_of_what_it_kept_out(participant):
    topic, everything, writer = made(participant)
    reader = DataReader(participant, ContentFilteredTopic(participant, "high", topic, "height > 5"))
    write_all(writer, [Track(1, 1), Track(2, 9), Track(3, 3)])
    for number in (1, 2, 3):
        writer.dispose(Track(number))
    settled(writer)
    assert seen(reader.take(9)) == [(9, DISPOSED), (-2, DISPOSED)]
    assert len(everything.take(9)) == 6


def test_keep_last_keeps_an_end_beside_the_samples(participant):
    _, reader, writer = made(participant, qos=Qos(Policy.History.KeepLast(1)))
    for height in (1, 2):
        writer.write(Track(1, height))
        writer.dispose(Track(1))
    settled(writer)
    assert seen(reader.read(9)) == [(2, DISPOSED), (-1, DISPOSED)]
    write_all(writer, [Track(1, 3)])
    assert seen(reader.take(9)) == [(-1, ALIVE), (3, ALIVE)]


def test_late_joiners_go_through_the_same_states(participant):
    qos = Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.TransientLocal)
    topic = Topic(participant, "kept", Track, qos=qos)
    writer, early = DataWriter(participant, topic, qos=Qos(KEPT)), DataReader(participant, topic)
    write_all(writer, [Track(1, 1), Track(2, 2)])
    writer.dispose(Track(1))
    write_all(writer, [Track(1, 3)])
    writer.unregister_instance(Track(2))
    settled(writer)
    late = DataReader(participant, topic)
    expected = [(1, ALIVE), (2, NO_WRITERS), (-1, ALIVE), (3, ALIVE), (-2, NO_WRITERS)]
    for reader in (early, late):
        got = reader.take(9)
        assert seen(got) == expected and got[3].sample_info.disposed_generation_count == 1


def test_what_has_gone_takes_no_memory(participant):
    _, reader, writer = made(participant)
    for start in range(0, 3000, 500):
        for number in range(start, start + 500):
            writer.write(Track(number))
            writer.unregister_instance(Track(number))
        settled(writer)
        assert len(reader.take(2000)) == 1000
    assert len(reader._intake.instances) == 0 and not reader._intake.instances.by_handle
    assert not writer._written._handles and not writer._written._payloads


def test_types_without_a_key_have_no_ends(participant):
    topic = Topic(participant, "plain", bytes)
    writer, reader = DataWriter(participant, topic), DataReader(participant, topic)
    for call in (writer.dispose, writer.unregister_instance, writer.write_dispose, writer.dispose_instance_handle,
                 writer.unregister_instance_handle, writer.register_instance, writer.lookup_instance):
        with pytest.raises(DDSException, match="has no key") as raised:
            call(b"x")
        assert raised.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION
    writer.write(b"x")
    writer.close()
    wait_until(lambda: reader.read(9) == [b"x"])
    assert reader.take(9) == [b"x"] and reader.take(9) == []


def test_a_closed_writer_ends_nothing(participant):
    _, _, writer = made(participant)
    handle = writer.register_instance(Track(1))
    writer.close()
    for call, argument in ((writer.dispose, Track(1)), (writer.dispose_instance_handle, handle),
                           (writer.unregister_instance, Track(1))):
        with pytest.raises(DDSException) as raised:
            call(argument)
        assert raised.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED


FIX = np.dtype([("plane", "<i4"), ("of", [("site", "U4"), ("x", "<f8")]), ("height", "<f8")])


def test_records(participant):
    topic = Topic(participant, "fixes", FIX, keys=["plane", "of.site"])
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    rows = np.array([(1, ("A", 0.5), 10), (1, ("B", 0.5), 11), (1, ("A", 0.7), 12)], FIX)
    writer.write_many(rows)
    assert writer.lookup_instance((1, ("A", 0), 0)) != writer.lookup_instance((1, ("B", 0), 0)) is not None
    writer.dispose(rows[0])
    writer.dispose_instance_handle(writer.lookup_instance(rows[1]))
    settled(writer)
    *samples, first, second = reader.read(9)
    assert [one.height for one in samples] == [10, 11, 12]
    assert first.key_sample["plane"] == 1 and first.key_sample["of"]["site"] == "A" and first.key_sample["height"] == 0
    assert second.key_sample["of"]["site"] == "B"
    assert reader.take_array(9)["height"].tolist() == [10, 11, 12] and reader.take(9) == []


def test_messages(participant):
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    topic = Topic(participant, "messages", Proto, keys=["number", "options.deprecated"])
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    message = Proto(name="x", number=5)
    message.options.deprecated = True
    writer.write(message)
    writer.dispose(message)
    settled(writer)
    _, end = reader.take(9)
    assert end.key_sample.number == 5 and end.key_sample.options.deprecated and not end.key_sample.name


@dataclass
class Place(IdlStruct):
    row: int
    key("row")
    note: str = ""


@dataclass
class Wide(IdlStruct):
    place: Place
    key("place")
    digits: array[int, 2]
    key("digits")
    names: sequence[str]
    key("names")
    value: float = 0.0


def test_keys_of_many_kinds(participant):
    topic = Topic(participant, "wide", Wide)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    sample = Wide(Place(3, "x"), [1, 2], ["a", "b"], 1.5)
    writer.write(sample)
    writer.dispose(sample)
    settled(writer)
    _, end = reader.take(9)
    found = end.key_sample
    assert (found.place.row, found.place.note, found.digits, found.names, found.value) == (3, "", [1, 2], ["a", "b"], 0)


# --- against a model

STEPS = st.lists(st.tuples(
    st.sampled_from(["write", "write", "write", "dispose", "unregister", "write_dispose", "close", "take"]),
    st.integers(0, 1), st.integers(0, 2)), max_size=25)


class Model:
    """Instances by the letter of DDS 1.4, figure 2.11; nothing is ever forgotten."""

    def __init__(self):
        self.state, self.writers, self.generations = {}, {}, {}

    def write(self, writer, number):
        self.writers.setdefault(number, set()).add(writer)
        counts = self.generations.setdefault(number, {DISPOSED: 0, NO_WRITERS: 0})
        before = self.state.get(number, ALIVE)
        if before != ALIVE:
            counts[before] += 1
        self.state[number] = ALIVE

    def dispose(self, writer, number):
        self.writers.setdefault(number, set()).add(writer)
        self.generations.setdefault(number, {DISPOSED: 0, NO_WRITERS: 0})
        self.state[number] = DISPOSED

    def unregister(self, writer, number):
        self.writers.get(number, set()).discard(writer)
        if number in self.state and not self.writers.get(number) and self.state[number] == ALIVE:
            self.state[number] = NO_WRITERS


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_readers_go_through_the_states_of_the_model(steps):
    model = Model()
    with DomainParticipant.embedded() as participant:
        topic = Topic(participant, "tracks", Track)
        patient, hasty = DataReader(participant, topic), DataReader(participant, topic)
        writers = [DataWriter(participant, topic, qos=Qos(KEPT)) for _ in range(2)]
        names = [0, 1]  # of writers, for the model: a new one after each close
        for what, place, number in steps:
            writer = writers[place]
            if what in ("write", "write_dispose"):
                getattr(writer, what)(Track(number))
                model.write(names[place], number)
                if what == "write_dispose":
                    model.dispose(names[place], number)
            elif what == "dispose":
                writer.dispose(Track(number))
                model.dispose(names[place], number)
            elif what == "unregister":
                writer.unregister_instance(Track(number))
                model.unregister(names[place], number)
            elif what == "close":
                before = patient._source.arrived
                writer.close()
                wait_until(lambda before=before: patient._source.arrived > before)
                for one in list(model.state):
                    model.unregister(names[place], one)
                writers[place] = DataWriter(participant, topic, qos=Qos(KEPT))
                names[place] = max(names) + 1
            else:
                for one in hasty.take(99):
                    info = one.sample_info
                    assert info.instance_state == model.state[getattr(one, "key_sample", one).number]
            settled(writers[place])
        last = {getattr(one, "key_sample", one).number: one.sample_info for one in patient.read(999)}
        assert {number: info.instance_state for number, info in last.items()} == model.state
        for number, counts in model.generations.items():
            info = last[number]
            total = info.disposed_generation_count + info.no_writers_generation_count
            assert total + info.absolute_generation_rank == sum(counts.values())


@pytest.mark.slow
def test_instances_of_a_group_that_has_died(runtime_dir, tmp_path):
    """Goal: where the next group begins, what was written before has no writers, for who takes as it comes, who keeps
    the last, and who comes late; and that is the last look at each message that such readers need. Method: a logged
    topic whose only daemon is killed."""
    qos, arguments = Qos(Policy.Durability.Persistent), ("--journal-dir", str(tmp_path))
    daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
    try:
        with DomainParticipant(reattach=True) as stays:
            topic = Topic(stays, "tracks", Track, qos=qos)
            lasting, last = DataReader(stays, topic), DataReader(stays, topic, qos=Qos(Policy.History.KeepLast(9)))
            with DomainParticipant() as brief, DataWriter(brief, Topic(brief, "tracks", Track, qos=qos)) as writer:
                write_all(writer, [Track(1, 1), Track(2, 2)])
                assert writer.wait_for_acks(LONG, persisted=True)
                assert len(lasting.take(9)) == len(last.take(9)) == 2 and lasting._fast
                daemon.kill()
            daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
            wait_until(lambda: stays.get_node_status().reattached_count == 1, 20)
            late, writer = DataReader(stays, topic), DataWriter(stays, topic)
            write_all(writer, [Track(2, 3)])
            assert writer.wait_for_acks(LONG)
            expected = [(-1, NO_WRITERS), (-2, ALIVE), (3, ALIVE)]
            assert seen(lasting.take(9)) == seen(last.take(9)) == seen(late.take(9))[2:] == expected
            write_all(writer, [Track(2, 4)])
            assert writer.wait_for_acks(LONG)
            assert seen(lasting.take(9)) == seen(late.take(9)) == [(4, ALIVE)] and lasting._fast and late._fast
    finally:
        daemon.stop()


@pytest.mark.parametrize("relayed", ["dispose", "unregister_instance", "register_instance"])
def test_who_passes_an_end_on_needs_the_key_alone(participant, relayed):
    """Of what dispose() and its like are given, only the key members matter: those that are None and those
    that are wrong, too, as well as the defaults in the key_sample of an end; a wrong key is named."""
    _, reader, writer, other = made(participant, 2)
    write_all(writer, [Track(1, 10), Track(2, 20)])
    writer.dispose(Track(1, "no number"))
    settled(writer)
    *_, end = reader.take(9)
    write_all(writer, [Track(1, 11)])
    if relayed == "register_instance":
        handle = other.register_instance(end.key_sample)
        assert handle == end.sample_info.instance_handle
        other.dispose_instance_handle(handle)
    else:
        getattr(other, relayed)(end.key_sample)
    settled(other)
    assert seen(reader.take(9)) == [(11, DISPOSED), (-1, DISPOSED)]
    with pytest.raises(ValueError, match="number is None, which is no int64"):
        getattr(other, relayed)(Track(None, None))
    with pytest.raises(ValueError, match="height is None"):
        other.write_dispose(Track(1, None))  # that writes, too
    with pytest.raises(TypeError, match="3 is not of type Track"):
        getattr(other, relayed)(3)
