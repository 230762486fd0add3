"""Goal: what a schema says of a type is what payloads of that type are, to tools that don't know Spindle.

Method: samples are encoded by the codec of their type, and decoded by others from the schema alone: IDL by rosbags,
ROS 1 by mcap-ros1-support, protobuf by its own library in an empty pool. What a writer says travels as JSON; nonsense
there is no schema.
"""

import json
import zlib
from base64 import b85encode
from dataclasses import dataclass

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2
from mcap.records import Schema
from mcap_ros1.decoder import DecoderFactory
from rosbags.typesys import Stores, get_types_from_idl, get_typestore

from dds.codecs.schemas import schema_of
from dds.codecs.types import codec_for
from dds.idl import IdlBitmask, IdlEnum, IdlStruct
from dds.idl.types import array, float32, float64, int16, int32, sequence, uint32
from dds.matching.announcing import encode_type
from spindle.group.schemas import SCHEMA_BYTES_MAX, MessageSchema, schema_in


@dataclass
class Point(IdlStruct, typename="flight.Point"):
    x: float64
    y: float32


@dataclass
class State(IdlStruct, typename="flight.State"):
    aircraft: str
    number: uint32
    position: Point
    track: sequence[Point]
    names: sequence[str]
    wind: array[float64, 3]
    ok: bool
    small: int16


class Phase(IdlEnum, typename="flight.Phase"):
    taxi = 0
    cruise = 7


@dataclass
class Flags(IdlBitmask, typename="flight.Flags"):
    gear: bool
    flaps: bool


@dataclass
class Plan(IdlStruct, typename="flight.Plan"):
    phase: Phase
    flags: Flags
    legs: sequence[array[int32, 2]]


@dataclass
class Masked(IdlStruct, typename="flight.Masked"):
    phase: Phase
    flags: Flags


RECORD = np.dtype([("time", "f8"), ("feet", "f4"), ("gear", "?"), ("wind", "f4", (3,)), ("grid", "i2", (2, 2)),
                   ("at", [("lat", "f8"), ("lon", "f8")]), ("legs", [("to", "S4"), ("km", "u2")], (2,)),
                   ("field with spaces", "u1"), ("far", ">i4"), ("text", "U3"), ("when", "M8[ns]"), ("z", "c16"),
                   ("half", "f2")], align=True)


def a_record() -> np.ndarray:
    record = np.zeros((), RECORD)
    record["time"], record["feet"], record["gear"] = 1.5, 1200, True
    record["wind"], record["grid"] = (1, 2, 3), ((1, 2), (3, 4))
    record["at"] = (47.25, 8.5)
    record["legs"] = [(b"LSZH", 5), (b"LSGG", 250)]
    record["field with spaces"], record["far"], record["text"] = 9, -2, "abc"
    record["when"], record["z"], record["half"] = np.datetime64(77, "ns"), 1 + 2j, 0.5
    return record


def by_ros1(schema: MessageSchema, payload: bytes) -> object:
    said = Schema(id=1, name=schema.name, encoding=schema.encoding, data=schema.data)
    decode = DecoderFactory().decoder_for(schema.message_encoding, said)
    assert decode is not None
    return decode(payload)


def test_idl_is_decoded_by_others() -> None:
    schema = schema_of(State)
    assert (schema.name, schema.encoding, schema.message_encoding) == ("flight::State", "omgidl", "cdr")
    codec = codec_for(State)
    assert schema.mark == codec.mark  # type: ignore[attr-defined]
    payload = codec.encode(State("HB-JNA", 7, Point(1.5, 2.5), [Point(3, 4)], ["a", "bc"], [1, 2, 3], True, -5))
    assert schema.fits(payload) and not schema_of(Masked).fits(payload)
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_idl(schema.data.decode()))
    found = store.deserialize_cdr(payload, "flight/State")
    assert (found.aircraft, found.number, found.position.x, found.position.y) == ("HB-JNA", 7, 1.5, 2.5)
    assert [(one.x, one.y) for one in found.track] == [(3, 4)] and found.names == ["a", "bc"]
    assert list(found.wind) == [1, 2, 3] and found.ok is True and found.small == -5


def test_bit_masks_are_numbers_to_tools_that_know_none() -> None:
    text = schema_of(Masked).data.decode()
    assert "typedef uint32 Flags;" in text and "bitmask" not in text and "gear 0, flaps 1" in text


def test_a_type_that_such_idl_has_no_word_for_has_no_schema() -> None:
    with pytest.raises(ValueError, match="name the array by a typedef"):
        schema_of(Plan)
    said = encode_type(codec_for(Plan))  # its writer can be opened all the same
    assert json.loads(said)["of"]["kind"] == "idl" and schema_in(said) is None


def test_numpy_records_are_messages_of_ros_1() -> None:
    schema, record = schema_of(RECORD), a_record()
    found = by_ros1(schema, record.tobytes())
    assert (found.time, found.feet, found.gear) == (1.5, 1200, True)
    assert list(found.wind) == [1, 2, 3] and list(found.grid) == [1, 2, 3, 4]
    assert (found.at.lat, found.at.lon) == (47.25, 8.5)
    assert [(bytes(leg.to), leg.km) for leg in found.legs] == [(b"LSZH", 5), (b"LSGG", 250)]
    assert found.f_field_with_spaces == 9 and bytes(found.far) == (-2).to_bytes(4, "big", signed=True)
    assert "".join(map(chr, found.text)) == "abc" and found.when == 77 and list(found.z) == [1, 2]
    assert found.half == int(np.float16(0.5).view("u2"))
    assert schema == schema_of(np.dtype(RECORD.descr, align=True)) or schema.name.startswith("numpy/Record_")


@pytest.mark.parametrize("dtype, value", [("f8", 2.5), ("<i4", -3), ("u1", 7), ("?", True)])
def test_numpy_scalars(dtype: str, value: object) -> None:
    of = np.dtype(dtype)
    assert by_ros1(schema_of(of), np.array(value, of).tobytes()).value == value


def test_fields_that_share_bytes_are_bytes() -> None:
    of = np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2], "itemsize": 6})
    assert bytes(by_ros1(schema_of(of), b"abcdef").data) == b"abcdef"


def test_protobuf_is_decoded_from_the_schema_alone() -> None:
    schema = schema_of(struct_pb2.Struct)
    assert (schema.name, schema.encoding, schema.message_encoding) == ("google.protobuf.Struct", "protobuf", "protobuf")
    message = struct_pb2.Struct()
    message["a"] = 5
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(schema.data).file:
        pool.Add(one)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName(schema.name)).FromString(
        codec_for(struct_pb2.Struct).encode(message))
    assert found.fields["a"].number_value == 5


def test_bytes_have_none() -> None:
    assert schema_of(bytes) == MessageSchema("bytes")
    with pytest.raises(TypeError):
        schema_of(int)


@pytest.mark.parametrize("data_type", [State, RECORD, struct_pb2.Struct, np.dtype("f8")], ids=str)
def test_a_writer_says_it_to_nodes(data_type: object) -> None:
    assert schema_in(encode_type(codec_for(data_type))) == schema_of(data_type)


def said(**more: object) -> bytes:
    about = {"name": "T", "is": "omgidl", "of": "cdr", "text": b85encode(zlib.compress(b"x")).decode(), **more}
    return json.dumps({"of": {"kind": "idl", "schema": about}}).encode()


@pytest.mark.parametrize("nonsense", [
    b"", b"[]", b"\xff", b'{"of": null}', b'{"of": {"schema": 5}}', said(name=["T"] * 1000), said(name="a\nb"),
    said(name="x" * 2000), said(mark="zz"), said(mark="001122"), said(text="\0"), said(text=7),
    said(text=b85encode(b"no zlib").decode()),
    said(text=b85encode(zlib.compress(bytes(SCHEMA_BYTES_MAX + 1))).decode())])
def test_nonsense_is_no_schema(nonsense: bytes) -> None:
    assert schema_in(said()) == MessageSchema("T", "omgidl", b"x", "cdr")
    assert schema_in(nonsense) is None


def test_fields_of_the_same_name_once_made_legal_differ() -> None:
    of = np.dtype([("a b", "u1"), ("a-b", "u1"), ("padding_0", "u1"), ("class", "u1")])
    names = [line.split()[1] for line in schema_of(of).data.decode().splitlines()]
    assert len(set(names)) == 4
    assert by_ros1(schema_of(np.dtype([("a b", "u1"), ("a-b", "u1")])), b"\1\2").f_f_a_b == 2


