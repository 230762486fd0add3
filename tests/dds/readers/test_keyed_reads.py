"""Samples of types with keys, taken straight from the log and one by one.

Goal: the fast way says exactly what the way through the intake says, of samples, instances and their ends, whatever
writers do; each kind of type finds its keys, at known places or not.
Method: two readers of one topic on an embedded node, of which one is kept from the fast way; random writers and takes.
"""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
from google.protobuf.struct_pb2 import Value
from hypothesis import given, settings
from hypothesis import strategies as st

from dds import DataReader, DataWriter, DDSException, InvalidSample, Policy, Qos, Topic, ViewState
from dds.codecs.types import codec_for
from dds.idl import IdlEnum, IdlStruct
from dds.idl.annotations import appendable, final, key, keylist
from dds.idl.codec import codec_of
from dds.idl.types import array, bounded_str, int16, uint8
from dds.readers.instances import Instances
from tests.dds.test_sub import LONG, write_all
from tests.support import wait_until

INFO = ("instance_handle", "view_state", "instance_state", "sample_state", "valid_data", "sample_rank",
        "generation_rank", "absolute_generation_rank", "disposed_generation_count", "no_writers_generation_count",
        "source_timestamp", "publication_handle", "sequence", "view_id", "node", "index")
WRITERS = 6  # more than an instance remembers


class Colour(IdlEnum):
    RED = 0
    BLUE = 1


@dataclass
@final
class Place(IdlStruct):
    x: int16
    y: int16


@dataclass
class Track(IdlStruct):
    number: int
    key("number")
    height: int = 0


@dataclass
class Named(IdlStruct):
    name: str
    key("name")
    height: int = 0


@dataclass
class Behind(IdlStruct):
    """Its key has no place of its own."""

    comment: str
    number: int
    key("number")
    height: int = 0


@dataclass
@appendable
@keylist(["colour", "place", "code", "name"])
class Many(IdlStruct):
    height: int
    colour: Colour
    place: Place
    code: array[uint8, 16]
    other: float
    name: bounded_str[20]


def many(k: int, height: int) -> Many:
    return Many(height, Colour(k % 2), Place(k % 3, k % 4), bytes([k % 5]) * 16, 1.5, "n" * (k % 2))


RECORD = np.dtype([("a", "u1"), ("height", "i8"), ("id", [("ship", "S4"), ("crew", "i2")])])


def record(k: int, height: int) -> np.void:
    return np.array((0, height, (b"s%d" % (k % 2), k // 2)), RECORD)[()]


TYPES = {
    "number": (Track, Track, ()), "text": (Named, lambda k, h: Named("n" * k, h), ()),
    "behind": (Behind, lambda k, h: Behind("x" * (h % 5), k, h), ()), "many": (Many, many, ()),
    "numpy": (RECORD, record, ("id.ship", "id.crew")),
    "protobuf": (Value, lambda k, h: Value(string_value=f"{k}"), ("string_value",)),
}


def told(samples, fields=INFO):
    """What a program sees of samples."""
    return [(("end", one.key_sample) if isinstance(one, InvalidSample) else one,
             *(getattr(one.sample_info, name) for name in fields)) for one in samples]


def opened(participant, kind, writers=1, depth=0):
    data_type, make, keys = TYPES[kind]
    topic = Topic(participant, f"keyed-{kind}", data_type, keys=keys) if keys else Topic(
        participant, f"keyed-{kind}", data_type)
    qos = Qos(Policy.History.KeepLast(depth) if depth else Policy.History.KeepAll)
    fast, slow = DataReader(participant, topic, qos), DataReader(participant, topic, qos)
    slow._choose_way = lambda: None
    slow._fast = slow._newest = False
    assert fast._newest if depth else fast._fast
    return topic, make, fast, slow, [DataWriter(participant, topic) for _ in range(writers)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "depth"), [*((kind, 0) for kind in TYPES), ("number", 1), ("numpy", 2)])
def test_both_ways_say_the_same(participant, kind, depth):
    topic, make, fast, slow, writers = opened(participant, kind, WRITERS, depth)
    steps = st.lists(st.tuples(
        st.sampled_from([*["write"] * 4, "dispose", "unregister_instance", "close", "take", "take"]),
        st.integers(0, WRITERS - 1), st.integers(0, 5)), min_size=1, max_size=60)
    height = [0]

    def take(n):
        for one in writers:
            assert one.wait_for_acks(LONG)
        wait_until(lambda: fast._source.arrived == slow._source.arrived)
        assert told(fast.take(n)) == told(slow.take(n))

    @settings(max_examples=40, deadline=None)
    @given(steps)
    def run(sequence):
        for what, who, number in sequence:
            if what == "take":
                take(number + 1)
            elif what == "close":
                writers[who].close()
                writers[who] = DataWriter(participant, topic)
            else:
                height[0] += 1
                sample = make(number, height[0])
                if what == "unregister_instance" and writers[who].lookup_instance(sample) is None:
                    continue
                getattr(writers[who], what)(sample)
        take(1000)

    run()


@pytest.mark.parametrize("kind", TYPES)
def test_ordinary_samples_go_the_fast_way(participant, kind):
    _, make, fast, slow, (writer,) = opened(participant, kind)
    write_all(writer, [make(k % 6, k) for k in range(30)])
    fast._intake.pull = None  # type: ignore[method-assign]  # whoever calls it fails
    got = fast.take(20)
    assert told(got) == told(slow.take(20)) and len(got) == 20
    fast._intake.pull = type(fast._intake).pull.__get__(fast._intake)
    assert told(fast.take(20)) == told(slow.take(20))


@pytest.mark.parametrize("depth", [1, 3])
def test_the_last_of_each_instance_go_the_fast_way_where_all_are_wanted(participant, depth):
    """Goal: KeepLast of instances costs no more than reading all; what is not given out at once is kept. Method: what
    keeps samples fails; then takes of fewer than there are."""
    _, make, fast, slow, (writer,) = opened(participant, "number", depth=depth)
    for wanted in (30, 1000):
        write_all(writer, [make(k % 6, k) for k in range(30)])
        fast._intake.pull = None  # type: ignore[method-assign]  # whoever calls it fails
        got = fast.take(wanted)
        assert told(got) == told(slow.take(wanted)) and len(got) == 6 * depth
        assert [one.sample_info.sample_rank for one in got] == [k // 6 for k in reversed(range(6 * depth))]
        fast._intake.pull = type(fast._intake).pull.__get__(fast._intake)
    write_all(writer, [make(k % 6, k) for k in range(30)])
    for wanted in (4, 1, 100):
        assert told(fast.take(wanted)) == told(slow.take(wanted))
    assert fast.get_sample_lost_status().total_count == 0


def test_an_ended_instance_that_is_written_again(participant):
    _, _, fast, slow, (writer,) = opened(participant, "number")
    write_all(writer, [Track(1, 1)])
    assert len(fast.take(9)) == len(slow.take(9)) == 1
    writer.dispose(Track(1))
    assert writer.wait_for_acks(LONG)
    assert told(fast.take(9)) == told(slow.take(9))
    write_all(writer, [Track(1, 2), Track(1, 3)])
    got = fast.take(9)
    assert told(got) == told(slow.take(9))
    assert [one.sample_info.disposed_generation_count for one in got] == [1, 1]


def test_infos_stay_as_they_were(participant):
    _, _, fast, _, (writer,) = opened(participant, "number")
    write_all(writer, [Track(1, 1)])
    (first,) = fast.take(9)
    before = told([first])
    write_all(writer, [Track(1, 2)])
    writer.dispose(Track(1))
    assert writer.wait_for_acks(LONG) and len(fast.take(9)) == 2
    assert told([first]) == before


def test_a_batch_of_records_is_read_in_place(participant):
    _, _, fast, slow, (writer,) = opened(participant, "numpy")
    rows = np.zeros(10, RECORD)
    rows["id"]["crew"] = np.arange(10) % 3
    rows["height"] = np.arange(10)
    writer.write_many(rows)
    assert writer.wait_for_acks(LONG)
    with fast.take_batch(8) as batch, slow.take_batch(8) as copied:
        assert batch._block is not None and copied._block is None
        assert (batch.array == rows[:8]).all() and len(batch) == 8
        for k in range(8):
            assert [getattr(batch.sample_info(k), name) for name in INFO] == [
                getattr(copied.sample_info(k), name) for name in INFO]
        with pytest.raises(DDSException, match="batch is open"):
            fast.take(1)
    assert told(fast.take(9)) == told(slow.take(9))


def test_a_batch_with_an_end_in_it_says_what_is_so_then(participant):
    _, _, fast, slow, (writer,) = opened(participant, "numpy")
    write_all(writer, [record(0, 1), record(1, 2)])
    writer.dispose(record(0, 0))
    assert writer.wait_for_acks(LONG)
    with fast.take_batch(9) as batch, slow.take_batch(9) as copied:
        for k in range(2):
            assert batch.sample_info(k).instance_state == copied.sample_info(k).instance_state


def test_what_is_no_sample_is_refused_and_counted(participant):
    _, _, fast, _, (writer,) = opened(participant, "numpy")
    write_all(writer, [record(0, 1)])
    writer._inbox.write(b"too short")
    write_all(writer, [record(0, 2)])
    with fast.take_batch(9) as batch:
        assert batch.array["height"].tolist() == [1]
    with fast.take_batch(9) as batch:
        assert batch.array["height"].tolist() == [2]
    assert fast.get_sample_lost_status().total_count == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("cls", "found"), [(Track, 1), (Named, 1), (Behind, None), (Many, None)])
def test_where_types_have_their_keys(cls, found, version):
    """The last member of Many's key is a text that one of varying size doesn't come before: it has a place, too, except
    where members of an older version could be missing."""
    places = codec_of(cls, version).key_places
    if cls is Many:
        assert (places is None) or len(places[2]) == 5
    else:
        assert (None if places is None else len(places[2])) == found


def test_keys_in_other_encodings_are_the_same(participant):
    """A sample in the other CDR version has its key elsewhere, and still means the same instance."""
    instances = Instances(codec_of(Track, 1))
    one, two = codec_of(Track, 1).encode(Track(7, 1)), codec_of(Track, 2).encode(Track(7, 1))
    found = instances.of_payload(one, Track(7, 1))
    assert instances.table.find(one) is found and instances.table.find(two) is None
    assert instances.of_payload(two, Track(7, 1)) is found and instances.table.find(two) is None


def test_instances_that_have_gone_leave_the_table(participant):
    _, _, fast, _, (writer,) = opened(participant, "number")
    for number in range(200):
        writer.write(Track(number))
        writer.unregister_instance(Track(number))
    assert writer.wait_for_acks(LONG)
    assert len(fast.take(1000)) == 400
    assert len(fast._intake.instances.table) == 0


def test_what_has_gone_leaves_no_room_behind(participant):
    _, _, fast, _, (writer,) = opened(participant, "number")
    for number in range(5000):
        writer.write(Track(number))
    assert writer.wait_for_acks(LONG) and len(fast.take(5000)) == 5000
    instances = fast._intake.instances
    full = sys.getsizeof(instances._by_key)
    for number in range(4999):
        writer.unregister_instance(Track(number))
    assert writer.wait_for_acks(LONG) and len(fast.take(5000)) == 4999
    for table in (instances._by_key, instances.by_handle, *instances._registered.values(), writer._written._handles,
                  writer._written._payloads):
        assert 1 <= len(table) < 1000 and sys.getsizeof(table) < full / 4
    writer.write(Track(4999, 1))
    assert writer.wait_for_acks(LONG) and fast.take(1)[0].sample_info.view_state == ViewState.Old


def test_a_key_of_more_fields_than_are_looked_for():
    dtype = np.dtype([(f"k{n}", "i4") for n in range(10)])
    assert codec_for(dtype, keys=[f"k{n}" for n in range(10)]).key_places is None
    assert codec_for(dtype, keys=["k1", "k3"]).key_places == (b"", 40, [(4, 4), (12, 4)])


def test_keep_last_counts_each_instance(participant):
    topic = Topic(participant, "last", Track)
    reader = DataReader(participant, topic, Qos(Policy.History.KeepLast(1), Policy.Reliability.BestEffort))
    assert not reader._fast
    writer = DataWriter(participant, topic)
    write_all(writer, [Track(k % 2, k) for k in range(10)])
    wait_until(lambda: reader.read(9) == [Track(0, 8), Track(1, 9)])
