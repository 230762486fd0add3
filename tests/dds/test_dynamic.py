"""Types that a program finds in the group and has never had.

Goal: what is announced of IDL types, NumPy records and protobuf messages becomes a type that a Topic can be made with,
and samples go both ways; who asks for a type that nobody announces, or that was too large, is told so.
Method: two participants with nodes of their own; one only knows what the other announces.
"""

import asyncio
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from dds import DataReader, DataWriter, DDSException, DDSTimeout, Topic, duration
from dds.dynamic import async_get_types_for_typeid, get_types_for_topic, get_types_for_typeid
from dds.idl import IdlStruct, make_idl_struct
from dds.idl.typeobjects import type_info
from dds.idl.types import int32
from tests.dds.idl.test_typeobjects import Base, Colour, Flags, Paint, Shade
from tests.dds.test_sub import LONG, write_all
from tests.support import wait_until

SAMPLE = Paint("a", Colour.green, Flags(True, True), Shade(discriminator=Colour.red, value=5), Base(3), None,
               [[1, 2, 3]] * 300, [Base(4)], 5, [["x"]], 6, 7)


@dataclass
class Rare(IdlStruct, typename="some.Rare"):
    only: int32


def test_samples_of_a_type_that_was_found_go_both_ways(two_nodes):
    one, two = two_nodes
    topic = Topic(one, "paint", Paint)
    reader, writer = DataReader(one, topic), DataWriter(one, topic)
    cls, names = get_types_for_typeid(two, Paint.__idl__.get_type_id(), LONG)
    assert cls is not Paint and cls.__idl__.get_type_id() == Paint.__idl__.get_type_id()
    assert names["Colour"].green.value == 7
    other = Topic(two, "paint", cls)
    there, back = DataReader(two, other), DataWriter(two, other)
    wait_until(lambda: len(writer.matched_sub) == 2 == len(back.matched_sub))
    write_all(writer, [SAMPLE])
    got = there.take_one(timeout=LONG)
    assert isinstance(got, cls) and (got.name, got.colour, got.inner.number) == ("a", names["Colour"].green, 3)
    assert reader.take_one(timeout=LONG) == SAMPLE
    got.name = "b"
    write_all(back, [got])
    answer = reader.take_one(timeout=LONG)
    assert isinstance(answer, Paint) and answer.name == "b" and answer.shade == SAMPLE.shade


def test_endpoints_tell_their_type(two_nodes):
    one, two = two_nodes
    reader = DataReader(one, Topic(one, "paint", Paint))
    writer = DataWriter(two, Topic(two, "paint", Paint))
    handle = wait_until(lambda: writer.matched_sub)[0]
    found = writer.get_matched_subscription_data(handle)
    assert found.type_id == Paint.__idl__.get_type_id() and found.type_name == "paint::Paint"
    plain = DataWriter(two, Topic(two, "plain", bytes))
    of_bytes = DataReader(two, plain.topic)
    handle = wait_until(lambda: plain.matched_sub)[0]
    assert plain.get_matched_subscription_data(handle).type_id is None
    assert reader and of_bytes


def test_who_asks_waits_until_somebody_announces_the_type(two_nodes):
    one, two = two_nodes
    found = []
    asking = threading.Thread(target=lambda: found.append(
        get_types_for_typeid(two, Rare.__idl__.get_type_id(), LONG)[0]))
    asking.start()
    reader = DataReader(one, Topic(one, "rare", Rare))
    asking.join(10)
    assert found[0].__name__ == "Rare" and reader


def test_a_coroutine_may_ask(participant):
    reader = DataReader(participant, Topic(participant, "rare", Rare))
    found, _ = asyncio.run(async_get_types_for_typeid(participant, Rare.__idl__.get_type_id(), LONG))
    assert found.__idl__.get_type_id() == Rare.__idl__.get_type_id() and reader


def test_a_type_that_nobody_announces(participant):
    begin = time.monotonic()
    with pytest.raises(DDSTimeout, match="no reader or writer in the group announced the type"):
        get_types_for_typeid(participant, Base.__idl__.get_type_id(), duration(milliseconds=20))
    assert time.monotonic() - begin < 5
    with pytest.raises(TypeError, match="TypeIdentifier"):
        get_types_for_typeid(participant, Base, LONG)
    with pytest.raises(TypeError, match="DomainParticipant"):
        get_types_for_typeid(None, Base.__idl__.get_type_id(), LONG)


@pytest.mark.slow
def test_a_type_too_large_to_be_announced_is_said_to_be(two_nodes, caplog):
    """3000 members with names that don't compress."""
    from hashlib import blake2b

    one, two = two_nodes
    names = [f"m{blake2b(b'%d' % number, digest_size=8).hexdigest()}" for number in range(400)]
    large = make_idl_struct("Large", "Large", dict.fromkeys(names, int32))
    larger = make_idl_struct("Large", "Large", dict.fromkeys([*names, "one_more"], int32))
    for cls in (large, larger):
        cls.__idl_annotations__["extensibility"] = "appendable"
    reader = DataReader(one, Topic(one, "large", large))
    topic = Topic(two, "large", large)
    writer = DataWriter(two, topic)
    with pytest.raises(DDSException, match="too large to be announced: an announcement has room for 4096") as caught:
        get_types_for_typeid(two, large.__idl__.get_type_id(), LONG)
    assert caught.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    found, = get_types_for_topic(two, "large")
    assert found.data_type is None and "too large" in found.reason and found.endpoints == 2
    write_all(writer, [large(*range(400))])
    assert reader.take_one(timeout=LONG) == large(*range(400))  # equal types need no description
    changed = Topic(two, "large", larger)
    DataWriter(two, changed)
    wait_until(lambda: changed.get_inconsistent_topic_status().total_count)
    assert "was too large to be announced" in caplog.text


def test_a_type_with_two_types_of_one_name_says_so(participant):
    """The library's description has one of them only."""
    inner = [make_idl_struct("Inner", "m.Inner", fields) for fields in ({"a": int32}, {"b": int32})]
    both = make_idl_struct("Both", "m.Both", {"x": inner[0], "y": inner[1]})
    writer = DataWriter(participant, Topic(participant, "t", both))
    (found,) = get_types_for_topic(participant, "t")
    assert found.data_type is None and "two types of one name" in found.reason
    with pytest.raises(DDSException, match="give one of them another typename"):
        get_types_for_typeid(participant, both.__idl__.get_type_id(), 0)
    writer.close()


def test_numpy_records_and_messages_are_found_too(two_nodes):
    one, two = two_nodes
    inner = np.dtype([("x", "<f4"), ("y", "<f4")])
    dtype = np.dtype({"names": ["plane", "at", "track"], "formats": ["<u4", inner, ("<i2", (2, 3))],
                      "offsets": [0, 8, 16], "itemsize": 32})
    records, words = Topic(one, "records", dtype, keys=["plane"]), Topic(one, "words", StringValue)
    writer, speaker = DataWriter(one, records), DataWriter(one, words)
    assert wait_until(lambda: get_types_for_topic(two, "nothing") == [] and get_types_for_topic(two, "records"))
    found, = get_types_for_topic(two, "records")
    assert found.data_type == dtype and found.keys == ("plane",) and found.reason == ""
    spoken, = wait_until(lambda: get_types_for_topic(two, "words"))
    assert spoken.data_type.DESCRIPTOR.full_name == "google.protobuf.StringValue"
    reader = DataReader(two, Topic(two, "records", found.data_type, keys=found.keys))
    hearer = DataReader(two, Topic(two, "words", spoken.data_type))
    wait_until(lambda: writer.matched_sub and speaker.matched_sub)
    record = np.zeros((), dtype)
    record["plane"], record["at"]["y"] = 7, 0.5
    writer.write(record)
    speaker.write(StringValue(value="hello"))
    got = reader.take_one(timeout=LONG)
    assert got["plane"] == 7 and got["at"]["y"] == 0.5
    assert hearer.take_one(timeout=LONG).value == "hello"


def test_identifiers_are_those_of_the_library():
    assert type_info(Rare).identifier[1:] == bytes(Rare.__idl__.get_type_id().value)
