"""Topics: one definition in the group, and the level that follows from the Qos.

Goal: who decides a topic's level, and what becomes of those who want another.
Method: topics on one and two embedded nodes; the agreed specification is asked from the node.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    Domain,
    DomainParticipant,
    Policy,
    Qos,
    Topic,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.idl.types import int32
from dds.messages.inline_qos import ROOM
from spindle.config.settings import NodeConfig
from spindle.group.levels import Level
from tests.dds.test_sub import LONG, Message
from tests.support import wait_until

BEST_EFFORT = Qos(Policy.Reliability.BestEffort)
RELIABLE = Qos(Policy.Reliability.Reliable(1_000_000_000))
TRANSIENT_LOCAL = Qos(Policy.Durability.TransientLocal)


@dataclass(frozen=True)
class Frozen(IdlStruct):
    name: str
    number: int32


@dataclass(kw_only=True)
class Named(IdlStruct):
    name: str
    number: int32


@dataclass(slots=True)
class Slotted(IdlStruct):
    name: str
    number: int32


@dataclass
class Track(IdlStruct):
    name: str
    key("name")
    number: int32


@pytest.mark.parametrize("kind", [Frozen, Named, Slotted])
def test_every_kind_of_dataclass_is_read_in_every_way(participant, kind):
    topic = Topic(participant, "kinds", kind)
    plain, sifted = DataReader(participant, topic), DataReader(
        participant, ContentFilteredTopic(participant, "sifted", topic, "number > 0"))
    writer = DataWriter(participant, topic)
    for ways in ((plain.take, sifted.take), (plain.read, plain.take, sifted.read, sifted.take)):
        writer.write(kind(name="a", number=1))
        assert writer.wait_for_acks(LONG)
        for way in ways:
            (one,) = way(2)
            assert one == kind(name="a", number=1) and one.sample_info.valid_data


@dataclass
class Counted(IdlStruct):
    name: str
    seen: int32 = field(default=0, init=False)


@dataclass
class Around(IdlStruct):
    counted: Counted


@pytest.mark.parametrize("kind", [Counted, Around])
def test_a_type_of_which_no_reader_could_make_a_sample_is_refused(participant, kind):
    with pytest.raises(TypeError, match=r"Counted.seen has init=False: no reader could make a sample"):
        Topic(participant, "kinds", kind)


@pytest.mark.parametrize("offsets", [[4, 0], [0, 2]])
def test_records_whose_fields_do_not_lie_one_behind_the_other_are_refused(participant, offsets):
    odd = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": offsets, "itemsize": 8})
    for kind in (odd, np.dtype([("x", odd)])):
        with pytest.raises(TypeError, match="name them as they lie, one behind the other"):
            Topic(participant, "records", kind)


def test_names_and_types(participant):
    topic = Topic(participant, "name", Message)
    assert topic.name == topic.get_name() == "name"
    assert topic.typename == topic.get_type_name() == "Message"
    assert topic.data_type is Message
    assert topic.get_inconsistent_topic_status().total_count == 0
    for bad in (str, int, dict, "bytes", None, object(), Message("a sample")):
        with pytest.raises(TypeError, match="no type for a topic"):
            Topic(participant, "bad", bad)
    with pytest.raises(TypeError):
        Topic(None, "name", bytes)
    with pytest.raises(TypeError):
        Topic(participant, 5, bytes)
    for bad in ("", "x" * 256, "line\nbreak", "\udcfc"):
        for qos in (None, RELIABLE):
            with pytest.raises(DDSException, match="topic name") as caught:
                Topic(participant, bad, bytes, qos=qos)
            assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER
    for wrong in ({"size_max": "16 KiB"}, {"window": 1.5}, {"history_bytes": None}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be a whole number"):
            Topic(participant, "sizes", bytes, **wrong)
    with pytest.raises(DDSException) as caught:
        topic.set_c_topic_filter(None)
    assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED


@pytest.mark.parametrize(("qos", "level"), [
    (BEST_EFFORT, Level.UNORDERED), (RELIABLE, Level.ATOMIC), (TRANSIENT_LOCAL, Level.VOLATILE)], ids=repr)
def test_a_topic_that_says_its_level_is_declared_with_it(participant, qos, level):
    topic = Topic(participant, "topic", bytes, qos=qos)
    assert topic.spec.level == level
    assert participant.session.topics()[0].spec == topic.spec
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    assert reader.matched_pub
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"


@pytest.mark.parametrize(("end", "qos", "level"), [
    (DataWriter, None, Level.ATOMIC), (DataReader, None, Level.ATOMIC), (DataWriter, BEST_EFFORT, Level.UNORDERED),
    (DataReader, BEST_EFFORT, Level.ATOMIC), (DataWriter, TRANSIENT_LOCAL, Level.VOLATILE),
    (DataReader, TRANSIENT_LOCAL, Level.VOLATILE)], ids=repr)
def test_otherwise_the_first_end_decides(participant, end, qos, level):
    topic = Topic(participant, "topic", bytes)
    assert topic.spec is None
    first = end(participant, topic, qos=qos)
    assert topic.spec.level == level
    assert first.topic is topic


@pytest.mark.parametrize("qos", [BEST_EFFORT, RELIABLE, TRANSIENT_LOCAL], ids=repr)
def test_ends_that_say_nothing_go_by_the_topic(participant, qos):
    first = DataWriter(participant, Topic(participant, "topic", bytes, qos=qos))
    plain = Topic(participant, "topic", bytes)
    reader, writer = DataReader(participant, plain), DataWriter(participant, plain)
    assert len(reader.matched_pub) == 2
    for one in (first, writer):
        one.write(b"x")
        assert reader.take_one(timeout=LONG) == b"x"


def test_a_writer_that_offers_more_than_the_topic_gives_is_refused(participant):
    topic = Topic(participant, "topic", bytes)
    reader = DataReader(participant, topic)  # while it lasts, nobody can declare the topic anew
    with pytest.raises(DDSException, match="is atomic in the group") as caught:
        DataWriter(participant, topic, qos=TRANSIENT_LOCAL)
    assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
    DataWriter(participant, topic, qos=BEST_EFFORT)
    fast = Topic(participant, "fast", bytes, qos=BEST_EFFORT)
    with pytest.raises(DDSException, match="is unordered in the group"):
        DataWriter(participant, fast, qos=RELIABLE)
    del reader
    assert participant.children == [topic, fast]


def test_a_reader_that_asks_for_more_is_told_by_its_status(participant):
    topic = Topic(participant, "topic", bytes, qos=RELIABLE)
    writer, reader = DataWriter(participant, topic), DataReader(participant, topic, qos=TRANSIENT_LOCAL)
    assert reader.matched_pub == [] == writer.matched_sub
    assert reader.get_requested_incompatible_qos_status().total_count == 1


def test_another_definition_is_refused_with_both_named(participant):
    @dataclass
    class Other(IdlStruct, typename="Message"):
        text: int32

    first = Topic(participant, "topic", Message, qos=RELIABLE, size_max=100)
    for data_type, keywords, difference in [
        (bytes, {}, "type_name is 'Message' in the group, you want 'bytes'"),
        (Other, {}, "member text: string at the writer, int32 at the reader"),
        (Message, {"qos": TRANSIENT_LOCAL}, "level is ATOMIC in the group, you want VOLATILE"),
        (Message, {"size_max": 200}, "size_max is 100 in the group, you want 200")]:
        with pytest.raises(DDSException, match=difference) as caught:
            Topic(participant, "topic", data_type, **keywords)
        assert caught.value.code == DDSException.DDS_RETCODE_INCONSISTENT_POLICY
    with pytest.raises(DDSException) as caught:
        Topic(participant, "topic", Other)
    assert "string text;" in str(caught.value) and "int32 text;" in str(caught.value)
    assert Topic(participant, "topic", Message).spec.size_max == 100 == first.spec.size_max


def test_sizes(participant):
    @dataclass
    class Fixed(IdlStruct):
        a: int32

    assert Topic(participant, "fixed", Fixed, qos=RELIABLE).spec.size_max == 8 + ROOM
    assert Topic(participant, "said", Fixed, qos=RELIABLE, size_max=20).spec.size_max == 20
    assert Topic(participant, "open", Message, qos=RELIABLE).spec.size_max == 16384
    qos = TRANSIENT_LOCAL + Qos(Policy.History.KeepLast(7))
    topic = Topic(participant, "sized", bytes, qos=qos, size_max=5, window=9)
    assert (topic.spec.size_max, topic.spec.window, topic.spec.history_depth) == (5, 9, 7)
    with pytest.raises(DDSException):
        Topic(participant, "absurd", bytes, qos=RELIABLE, size_max=1 << 40)


def test_finding_topics(participant):
    assert participant.find_topic("topic") is None
    Topic(participant, "topic", Message, qos=RELIABLE)
    assert participant.find_topic("topic", Message).spec.level == Level.ATOMIC
    with pytest.raises(DDSException):
        participant.find_topic("topic", bytes)


def test_two_nodes_agree_on_the_first_definition(two_nodes):
    one, two = two_nodes
    Topic(one, "topic", bytes, qos=TRANSIENT_LOCAL)
    other = Topic(two, "topic", bytes)
    assert wait_until(lambda: other.spec).level == Level.VOLATILE
    with pytest.raises(DDSException, match="level is VOLATILE in the group, you want UNORDERED"):
        Topic(two, "topic", bytes, qos=BEST_EFFORT)


@pytest.mark.parametrize(("old", "new"), [
    ((np.dtype([("a", "f8")]), {}), (np.dtype([("a", "f8"), ("b", "i4")]), {})),
    ((bytes, {}), (Message, {})),
    ((bytes, {"qos": RELIABLE}), (bytes, {"qos": TRANSIENT_LOCAL})),
    ((bytes, {"size_max": 100}), (bytes, {"size_max": 200}))], ids=["a field more", "type", "level", "size"])
def test_what_nobody_has_open_is_declared_anew(two_nodes, old, new):
    """As after an edit of a program, which was stopped. While it runs, the other is told both definitions; who only
    looks for a topic changes none."""
    one, two = two_nodes
    with Topic(one, "topic", old[0], **old[1]) as topic, DataWriter(one, topic):
        wait_until(lambda: any(info.members for info in two.session.topics()))
        with pytest.raises(DDSException, match=r"is .+ in the group, you want .+ declared anew as soon as no"):
            Topic(two, "topic", new[0], **new[1])
    wait_until(lambda: not any(info.members for info in two.session.topics()))
    if old[0] is not new[0]:
        with pytest.raises(DDSException, match="in the group, you want"):
            two.find_topic("topic", new[0])
    topic = Topic(two, "topic", new[0], **new[1])
    reader, writer = DataReader(two, topic), DataWriter(two, topic)
    sample = Message("x") if new[0] is Message else b"x" if new[0] is bytes else np.zeros(1, new[0])[0]
    writer.write(sample)
    assert reader.take_one(timeout=LONG) == sample


LAST, LAST_3 = Policy.History.KeepLast(1), Policy.History.KeepLast(3)


@pytest.mark.parametrize("kind", [Named, Track])
@pytest.mark.parametrize(("old", "new", "kept"), [
    ([LAST], [LAST_3], 3), ([LAST], [Policy.History.KeepAll], 4), ([LAST_3], [LAST], 1),
    ([], [Policy.DurabilityService(0, LAST, -1, -1, -1)], 1)], ids=["more", "all", "less", "service"])
def test_what_nobody_has_open_is_kept_as_the_next_declaration_says(participant, kind, old, new, kept):
    """As after an edit of the Topic's History, while the nodes go on."""
    def late(said):
        qos = TRANSIENT_LOCAL + Qos(*said)
        with Topic(participant, "topic", kind, qos=qos) as topic, DataWriter(participant, topic) as writer:
            for number in range(4):
                writer.write(kind(name="x", number=number))
            assert writer.wait_for_acks(LONG)
            with DataReader(participant, topic, Qos(Policy.History.KeepAll)) as reader:
                return [sample.number for sample in reader.take(10)]

    late(old)
    assert late(new) == list(range(4 - kept, 4))


def test_what_nobody_has_open_is_declared_at_a_level_without_history(participant):
    """Whatever was to be kept of each instance before. While somebody has it open both levels are named."""
    last = TRANSIENT_LOCAL + Qos(LAST)
    with Topic(participant, "topic", Track, qos=last) as topic, DataReader(participant, topic):
        with pytest.raises(DDSException, match="level is VOLATILE in the group, you want ATOMIC"):
            Topic(participant, "topic", Track, qos=RELIABLE)
    topic = Topic(participant, "topic", Track, qos=RELIABLE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    writer.write(Track("x", 1))
    assert topic.spec.level is Level.ATOMIC and reader.take_one(timeout=LONG).number == 1


def test_what_nobody_has_open_gets_an_owner_when_one_is_asked_for(participant):
    with Topic(participant, "topic", Message, qos=RELIABLE) as topic, DataReader(participant, topic):
        pass
    topic = Topic(participant, "topic", Message, qos=Qos(Policy.Ownership.Exclusive))
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    writer.write(Message("mine"))
    assert reader.take_one(timeout=LONG) == Message("mine")


def test_others_go_by_what_a_topic_of_this_participant_has(participant):
    first = Topic(participant, "topic", Track, qos=TRANSIENT_LOCAL + Qos(LAST))
    assert Topic(participant, "topic", Track, qos=TRANSIENT_LOCAL + Qos(LAST_3)).spec.history_depth == 1
    assert first.spec.history_depth == 1


def test_a_writer_goes_by_the_topic_that_it_has_opened(two_nodes):
    """Goal: late joiners get the last sample of each instance, also of a program whose Topic is older than what the
    group has: where it says nothing of instances, its messages name none."""
    one, two = two_nodes
    topic = Topic(one, "topic", Track, qos=TRANSIENT_LOCAL)
    wait_until(lambda: two.find_topic("topic", Track))
    two.session.delete_topic("topic")
    last = TRANSIENT_LOCAL + Qos(LAST)
    anew = Topic(two, "topic", Track, qos=last)
    with DataReader(two, anew, last), DataWriter(one, topic) as writer:
        for number in range(8):
            writer.write(Track(str(number % 4), number))
        assert writer.wait_for_acks(LONG)
        late = DataReader(two, anew, last)
        assert sorted(sample.number for sample in late.take(10)) == [4, 5, 6, 7]


def test_a_logged_topic_is_declared_anew_once_it_was_given_up(tmp_path):
    """As after an edit of a record that is logged: its programs are told what to do, and go on with the new one."""
    Domain(7, NodeConfig(domain_id=7, journal_dir=tmp_path))
    old, new = np.dtype([("a", "f8")]), np.dtype([("a", "f8"), ("b", "i4")])
    logged = Qos(Policy.Durability.Persistent, Policy.Reliability.Reliable(1_000_000_000))
    with DomainParticipant.embedded(7) as participant:
        with Topic(participant, "logged", old, qos=logged) as topic, DataWriter(participant, topic) as writer:
            writer.write(np.ones(1, old)[0])
            assert writer.wait_for_acks(LONG, persisted=True)
        wait_until(lambda: not any(info.members for info in participant.session.topics()))
        with pytest.raises(DDSException, match=r"the group has no field b.*`spindle topics logged --redefine`"):
            Topic(participant, "logged", new, qos=logged)
        participant.session.redefine_topic("logged")
        assert participant.find_topic("logged", new) is None
        topic = Topic(participant, "logged", new, qos=logged)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        sample = np.ones(1, new)[0]
        writer.write(sample)
        assert writer.wait_for_acks(LONG, persisted=True)
        assert reader.take_one(timeout=LONG) == sample and not reader.take(N=9)


def test_the_topics_of_a_participant_have_one_definition(participant):
    """Also while none of them has a reader or writer."""
    first = Topic(participant, "topic", bytes, qos=RELIABLE)
    with pytest.raises(DDSException, match="a Topic of this participant has it"):
        Topic(participant, "topic", bytes, qos=TRANSIENT_LOCAL)
    first.close()
    assert Topic(participant, "topic", bytes, qos=TRANSIENT_LOCAL).spec.level == Level.VOLATILE


def test_logged_topics_are_kept_on_disk(tmp_path):
    """Level, acknowledgement from disk, and history; what the file holds is the journal's own test."""
    Domain(7, NodeConfig(domain_id=7, journal_dir=tmp_path))
    with DomainParticipant.embedded(7) as participant:
        topic = Topic(participant, "logged", bytes, qos=Qos(Policy.Durability.Persistent))
        assert topic.spec.level == Level.LOGGED
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        writer.write(b"x")
        assert writer.wait_for_acks(LONG, persisted=True)
        assert DataReader(participant, topic).take(5) == reader.take(5) == [b"x"]
    assert list(tmp_path.rglob("*.mcap"))
