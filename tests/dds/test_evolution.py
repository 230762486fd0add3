"""Readers and writers of a topic with different types.

Goal: those whose types go together match, and every reader gets every sample as its own type; those that don't never
match, both sides count an inconsistent topic and the log says which member is to blame; nothing that a writer sends
stops a reader. Keys, filters, histories and readers with KeepLast work alike for samples of another layout.
Method: participants on two embedded nodes, daemons of one group, and a program on a host without a node.
"""

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    DDSStatus,
    DomainParticipant,
    Listener,
    Policy,
    Qos,
    QueryCondition,
    Topic,
    WaitSet,
)
from dds.dynamic import get_types_for_typeid
from dds.idl.types import float32, int32, int64, sequence
from tests.dds.idl.evolving import Mode, struct
from tests.dds.test_sub import ANY, LONG, write_all
from tests.support import wait_until

OLD = struct(_keys=("aircraft",), aircraft=str, altitude=int32)
NEW = struct(_keys=("aircraft",), aircraft=str, altitude=int32, mode=Mode, speeds=sequence[float32])
OTHER = struct(_keys=("aircraft",), aircraft=str, altitude=int64)
Consistency = Policy.TypeConsistency


def new(aircraft="HB-JNA", altitude=900):
    return NEW(aircraft, altitude, Mode.manual, [1.5])


def ends(participant, data_type, name="fixes", qos=None, reader_qos=None):
    topic = Topic(participant, name, data_type, qos=qos)
    return topic, DataReader(participant, topic, qos=reader_qos), DataWriter(participant, topic)


def test_each_reader_gets_its_own_type_of_every_writer(two_nodes):
    (_, old_reader, old_writer), (_, new_reader, new_writer) = ends(two_nodes[0], OLD), ends(two_nodes[1], NEW)
    wait_until(lambda: len(old_writer.matched_sub) == 2 == len(new_writer.matched_sub))
    wait_until(lambda: len(old_reader.matched_pub) == 2 == len(new_reader.matched_pub))
    write_all(old_writer, [OLD("A", 1)])
    write_all(new_writer, [new("A", 2)])
    wait_until(lambda: len(old_reader.read(9)) == 2 == len(new_reader.read(9)))
    assert old_reader.take(9) == [OLD("A", 1), OLD("A", 2)]
    assert new_reader.take(9) == [NEW("A", 1, Mode.auto, []), new("A", 2)]


@pytest.mark.parametrize("version", [1, 2])
def test_in_both_encodings(participant, version):
    inner_old, inner_new = struct(_name="In", a=int32), struct(_name="In", a=int32, b=str)
    old, new_ = struct(many=sequence[inner_old], end=int32), struct(many=sequence[inner_new], end=int32)
    qos = Qos(Policy.DataRepresentation(version == 1, version == 2))
    _, reader, _ = ends(participant, old)
    writer = DataWriter(participant, Topic(participant, "fixes", new_), qos=qos)
    write_all(writer, [new_([inner_new(1, "x"), inner_new(2, "y")], 3)])
    assert reader.take_one(timeout=LONG) == old([inner_old(1), inner_old(2)], 3)
    assert reader.get_sample_lost_status().total_count == 0


def test_a_key_is_one_instance_whatever_type_its_samples_had(participant):
    _, reader, old_writer = ends(participant, OLD)
    _, new_reader, new_writer = ends(participant, NEW)
    write_all(old_writer, [OLD("A", 1)])
    write_all(new_writer, [new("A", 2), new("B", 3)])
    handles = [one.sample_info.instance_handle for one in reader.read(9)]
    assert handles[0] == handles[1] != handles[2]
    assert [one.sample_info.instance_handle for one in new_reader.read(9)] == handles
    assert old_writer.lookup_instance(OLD("A", 9)) == new_writer.lookup_instance(new("A", 9)) == handles[0]
    new_writer.dispose(new("A", 0))
    old_writer.dispose(OLD("A", 0))
    assert new_writer.wait_for_acks(LONG)
    *_, ended = reader.take(9)
    assert ended.key_sample.aircraft == "A" and ended.sample_info.instance_handle == handles[0]


def test_filters_see_samples_of_another_layout_as_their_own(participant):
    """The old type has the altitude at a known place, the new one elsewhere."""
    old = struct("mutable", "T", a=(int32, 1), altitude=(int32, 2))
    new_ = struct("mutable", "T", more=(str, 3), altitude=(int32, 2), a=(int32, 1))
    topic = Topic(participant, "mutable", old)
    reader = DataReader(participant, ContentFilteredTopic(participant, "high", topic, "altitude > 10"))
    write_all(DataWriter(participant, Topic(participant, "mutable", new_)), [new_("x", 5, 99), new_("x", 50, 1)])
    assert reader.take(9) == [old(1, 50)]
    plain, widened = struct(a=int32), struct(a=int32, b=int32)
    assert DataReader(participant, Topic(participant, "t", plain))
    all_of_it = DataReader(participant, Topic(participant, "t", plain))
    query = QueryCondition(all_of_it, ANY, "a > 1 ORDER BY a")
    write_all(DataWriter(participant, Topic(participant, "t", widened)), [widened(3, 0), widened(1, 0), widened(2, 0)])
    assert all_of_it.take(9, condition=query) == [plain(2), plain(3)]


def test_a_late_joiner_reads_a_history_in_another_layout_whose_writers_have_gone(participant):
    qos = Qos(Policy.Durability.TransientLocal)
    topic, reader, writer = ends(participant, OLD, qos=qos)
    writer.write(OLD("A", 1))
    write_all(writer, [OLD("B", 2)])
    writer.close()
    late = DataReader(participant, Topic(participant, "fixes", NEW))
    assert [one for one in late.take(9) if isinstance(one, NEW)] == [
        NEW("A", 1, Mode.auto, []), NEW("B", 2, Mode.auto, [])]
    assert late.get_sample_lost_status().total_count == 0 and topic and reader


# --- types that don't go together

def test_types_that_do_not_go_together_never_match_and_both_sides_count(two_nodes, caplog):
    heard = []
    listener = Listener(on_inconsistent_topic=lambda topic, status: heard.append((topic.name, status.total_count)))
    topic = Topic(two_nodes[0], "fixes", OLD, listener=listener)
    reader = DataReader(two_nodes[0], topic)
    other, other_reader, writer = ends(two_nodes[1], OTHER)
    wait_until(lambda: topic.get_inconsistent_topic_status().total_count == 1)
    wait_until(lambda: other.get_inconsistent_topic_status().total_count == 1)
    wait_until(lambda: heard == [("fixes", 1)])
    assert reader.matched_pub == [] and len(writer.matched_sub) == 1 and other_reader.matched_pub
    assert reader.get_requested_incompatible_qos_status().total_count == 0
    write_all(writer, [OTHER("A", 1)])
    assert other_reader.take_one(timeout=LONG) == OTHER("A", 1)
    assert reader.take(9) == [] and reader.get_sample_lost_status().total_count == 0
    told = [one.message for one in caplog.records if "another type" in one.message]
    assert len(told) == 2 and all("member altitude: int64 at the writer, int32 at the reader" in one for one in told)
    assert "topic 'fixes': a writer of node 2" in told[0] or "topic 'fixes': a writer of node 2" in told[1]
    second = DataWriter(two_nodes[1], other)
    wait_until(lambda: topic.get_inconsistent_topic_status().total_count == 2)
    assert len([one for one in caplog.records if "another type" in one.message]) == 2 and second  # said once


def test_a_kept_sample_of_a_type_that_does_not_match_is_not_read_when_its_writer_has_gone(two_nodes):
    """Goal: it isn't read as the reader's type, as which its bytes would say something else. Method: a late joiner that
    hears of the type by another writer."""
    qos = Qos(Policy.Durability.TransientLocal)
    theirs = Topic(two_nodes[1], "fixes", OTHER, qos=qos)
    gone, stays = DataWriter(two_nodes[1], theirs), DataWriter(two_nodes[1], theirs)
    anchor = DataReader(two_nodes[1], theirs)
    write_all(gone, [OTHER("A", 1)])
    gone.close()
    topic = Topic(two_nodes[0], "fixes", OLD, qos=qos)
    reader = DataReader(two_nodes[0], topic)
    wait_until(lambda: topic.get_inconsistent_topic_status().total_count == 1 and stays and anchor)
    reader.wait_for_historical_data(LONG)
    assert [one for one in reader.take(9) if isinstance(one, OLD)] == []
    assert reader.get_sample_lost_status().total_count == 1


def test_a_wait_set_wakes_for_an_inconsistent_topic(two_nodes):
    topic = Topic(two_nodes[0], "fixes", OLD)
    topic.set_status_mask(DDSStatus.InconsistentTopic)
    reader, waiting = DataReader(two_nodes[0], topic), WaitSet(two_nodes[0])
    waiting.attach(topic)
    end = ends(two_nodes[1], OTHER)
    assert waiting.wait(LONG) == 1 and topic.take_status() == DDSStatus.InconsistentTopic
    assert reader and end


@pytest.mark.parametrize(("policy", "data_type", "matches"), [
    (Consistency.DisallowTypeCoercion(), NEW, False), (Consistency.DisallowTypeCoercion(), OLD, True),
    (Consistency.AllowTypeCoercion(), NEW, True),
    (Consistency.AllowTypeCoercion(prevent_type_widening=True), NEW, False),
    (Consistency.AllowTypeCoercion(ignore_member_names=False), NEW, True),
    (Consistency.AllowTypeCoercion(True, True, False), struct(_keys=("name",), name=str, altitude=int32), False),
    (Consistency.AllowTypeCoercion(True, True, True), struct(_keys=("name",), name=str, altitude=int32), True)],
    ids=repr)
def test_the_readers_type_consistency_decides(participant, policy, data_type, matches):
    topic = Topic(participant, "fixes", OLD)
    reader = DataReader(participant, topic, qos=Qos(policy))
    writer = DataWriter(participant, Topic(participant, "fixes", data_type))
    assert bool(reader.matched_pub) == bool(writer.matched_sub) == matches
    assert topic.get_inconsistent_topic_status().total_count == int(not matches)
    sample = new("A", 5) if data_type is NEW else data_type("A", 5)
    write_all(writer, [sample])
    assert reader.take(9) == ([OLD("A", 5)] if matches else [])


def test_a_reader_that_forces_validation_wants_a_type(participant):
    topic = Topic(participant, "fixes", OLD)
    qos = Qos(Consistency.AllowTypeCoercion(force_type_validation=True))
    strict, lenient = DataReader(participant, topic, qos=qos), DataReader(participant, topic)
    silent = participant.session.open_writer("fixes", guid=b"silent", endpoint=b'{"qos":{}}')
    wait_until(lambda: lenient.matched_pub)
    assert strict.matched_pub == [] and topic.get_inconsistent_topic_status().total_count == 1
    silent.close()


def test_a_program_is_told_of_its_own_contradiction_with_both_definitions(participant):
    topic = Topic(participant, "fixes", OLD)
    with pytest.raises(DDSException, match="member altitude: ") as caught:
        Topic(participant, "fixes", OTHER)
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
    assert "int32 altitude;" in str(caught.value) and "int64 altitude;" in str(caught.value)
    assert Topic(participant, "fixes", NEW) and topic


def test_numpy_records_must_be_equal_and_a_mismatch_shows_both(participant):
    first = Topic(participant, "records", np.dtype([("a", "<i4"), ("b", "<f8")]), qos=Qos(Policy.Durability.Volatile))
    with pytest.raises(DDSException, match=r"numpy\(a:i4,b:f8\).* in the group, you want 'numpy\(a:i4,b:f4\)'"):
        Topic(participant, "records", np.dtype([("a", "<i4"), ("b", "<f4")]))
    with pytest.raises(DDSException, match="'bytes'"):
        Topic(participant, "records", bytes)
    assert first


# --- protobuf

def message(kind="TYPE_INT32", name="pkg.Note", **more):
    """A message class with a field `a` of that type, and more fields by name and number."""
    file = descriptor_pb2.FileDescriptorProto(name="note.proto", package=name.split(".")[0], syntax="proto3")
    described = file.message_type.add(name=name.split(".")[1])
    types = descriptor_pb2.FieldDescriptorProto
    described.field.add(name="a", number=1, type=getattr(types, kind), label=types.LABEL_OPTIONAL)
    for field, number in more.items():
        described.field.add(name=field, number=number, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_messages_evolve_by_their_own_rules(two_nodes, caplog):
    old, newer, other = message(), message(text=2), message("TYPE_DOUBLE")
    (topic, reader, writer), (_, new_reader, new_writer) = ends(two_nodes[0], old), ends(two_nodes[1], newer)
    wait_until(lambda: len(writer.matched_sub) == 2 == len(new_writer.matched_sub))
    write_all(new_writer, [newer(a=5, text="x")])
    write_all(writer, [old(a=6)])
    wait_until(lambda: len(reader.read(9)) == 2 == len(new_reader.read(9)))
    assert [one.a for one in reader.take(9)] == [5, 6] and new_reader.take(9)[1].text == ""
    wrong = DataWriter(two_nodes[1], Topic(two_nodes[1], "fixes", other))
    wait_until(lambda: topic.get_inconsistent_topic_status().total_count == 1)
    assert "field a (1): double at the writer, int32 at the reader" in caplog.text and wrong.matched_sub == []
    with pytest.raises(DDSException, match="you want 'pkg"):
        Topic(two_nodes[0], "fixes", message(name="pkg.Letter"))


# --- whatever is sent

@pytest.mark.parametrize("data_type", [OLD, struct("final", a=int32)])
def test_no_payload_stops_a_reader(participant, data_type):
    sample = data_type("A", 1) if data_type is OLD else data_type(1)
    topic = Topic(participant, "t", data_type, size_max=400)
    reader, other = DataReader(participant, topic), DataReader(participant, topic)
    writer = DataWriter(participant, topic)
    valid = writer._codec.encode(sample)
    wrong = [b"", b"\0", valid[:3], valid[:-1], valid[:4], valid[:2] + b"\x40\x40",
             valid[:2] + b"\x40\x40" + b"\xff" * 60, b"\0\3\0\0" + b"\xff" * 30, bytes(100)]
    for one in wrong:
        writer._inbox.write(one)
        write_all(writer, [sample])
    assert other.read(99).count(sample) == len(wrong)
    got = reader.take(99)
    assert got.count(sample) == len(wrong) and topic
    assert reader.get_sample_lost_status().total_count == 2 * len(wrong) - len(got)


# --- daemons, and a program on a host without a node

@pytest.mark.slow
def test_programs_of_daemons_and_of_a_host_without_a_node(group, runtime_dir):
    with DomainParticipant(runtime_dir=runtime_dir, node_id=1) as one, \
            DomainParticipant(runtime_dir=runtime_dir, node_id=2) as two:
        (topic, old_reader, old_writer), (_, new_reader, new_writer) = ends(one, OLD), ends(two, NEW)
        wait_until(lambda: len(old_reader.matched_pub) == 2 == len(new_reader.matched_pub))
        write_all(old_writer, [OLD("A", 1)])
        write_all(new_writer, [new("B", 2)])
        assert [old_reader.take_one(timeout=LONG) for _ in range(2)] == [OLD("A", 1), OLD("B", 2)]
        assert [new_reader.take_one(timeout=LONG) for _ in range(2)] == [NEW("A", 1, Mode.auto, []), new("B", 2)]
        with DomainParticipant(runtime_dir=runtime_dir, node_id=3) as three:
            _, reader, wrong = ends(three, OTHER)
            wait_until(lambda: topic.get_inconsistent_topic_status().total_count == 2)  # a reader and a writer
            write_all(wrong, [OTHER("C", 3)])
            assert reader.take_one(timeout=LONG) == OTHER("C", 3)
            write_all(old_writer, [OLD("D", 4)])
            assert old_reader.take_one(timeout=LONG) == OLD("D", 4)


@pytest.mark.slow
def test_a_program_on_a_host_without_a_node(site):
    with DomainParticipant(runtime_dir=site[0].directory) as one, \
            DomainParticipant.remote([site[1].address, site[2].address]) as far:
        (topic, old_reader, old_writer), (_, new_reader, new_writer) = ends(one, OLD), ends(far, NEW)
        wait_until(lambda: len(old_reader.matched_pub) == 2 == len(new_reader.matched_pub))
        write_all(old_writer, [OLD("A", 1)])
        write_all(new_writer, [new("B", 2)])
        assert [old_reader.take_one(timeout=LONG) for _ in range(2)] == [OLD("A", 1), OLD("B", 2)]
        assert [new_reader.take_one(timeout=LONG) for _ in range(2)] == [NEW("A", 1, Mode.auto, []), new("B", 2)]
        found, _ = get_types_for_typeid(far, OLD.__idl__.get_type_id(), LONG)
        assert found.__idl__.get_type_id() == OLD.__idl__.get_type_id()
        site[1].daemon.kill()
        write_all(new_writer, [new("C", 3)])
        assert old_reader.take_one(timeout=LONG) == OLD("C", 3)
        assert topic.get_inconsistent_topic_status().total_count == 0
