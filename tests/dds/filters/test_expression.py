"""Expressions on types: which fit, and what they decide.

Goal: a filter decides as SQL does, and the same by the payload as by the sample; what doesn't fit the type is refused
when the expression is made, or the parameter set.
Method: the oracle is SQLite, which is asked with the same text; expressions and samples come from hypothesis.
"""

import decimal
import enum
import fractions
import math
import sqlite3
import struct
from dataclasses import dataclass
from typing import Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dds.codecs.types import codec_for
from dds.filters.content import Undecided
from dds.filters.expression import Expression
from dds.filters.syntax import ExpressionError
from dds.idl import IdlEnum, IdlStruct
from dds.idl import annotations as annotate
from dds.idl.types import array, bounded_str, char, float32, int16, sequence, uint8, uint16


class Phase(IdlEnum, default_val="CLIMB"):
    CLIMB = 0
    CRUISE = 1
    LANDING = 2


@dataclass
class Engine(IdlStruct):
    n1: float32
    running: bool


@dataclass
class Flight(IdlStruct):
    altitude: float
    phase: Phase
    count: uint16
    engines: array[Engine, 2]
    raw: array[uint8, 3]
    grid: array[array[int16, 2], 2]
    gate: char
    call_sign: str
    speed: float32
    tail: bounded_str[20]
    legs: sequence[int]


@dataclass
@annotate.appendable
class Appendable(IdlStruct):
    altitude: float
    call_sign: str


@dataclass
@annotate.appendable
class WithOptional(IdlStruct):
    altitude: Optional[float]  # noqa: UP045  as IDL types of older programs are written
    engine: Optional[Engine]  # noqa: UP045
    call_sign: str


@dataclass
class WithEnumeration(IdlStruct):
    name: str
    phase: Phase
    maybe: Optional[Phase]  # noqa: UP045
    several: sequence[Phase]


@dataclass
@annotate.appendable
class Outer(IdlStruct):
    first: int
    inner: Appendable


RECORD = np.dtype([("altitude", "<f8"), ("grid", "<i2", (2, 3)), ("call_sign", "S8"), ("gate", "U4"),
                   ("engine", [("running", "?"), ("n1", "<f4")]), ("network", ">i2"), ("when", "M8[ns]")])


def flight(**changes):
    values = dict(altitude=3500.0, phase=Phase.CRUISE, count=7, engines=[Engine(0.5, True), Engine(0.75, False)],
                  raw=b"\1\2\3", grid=[[1, 2], [3, 4]], gate="B", call_sign="HB-JNA", speed=210.5, tail="x",
                  legs=[1, 2])
    return Flight(**{**values, **changes})


def decide(data_type, sample, text, *parameters, by_payload=None, version=0):
    """What the expression says of the sample. Asks both ways; `by_payload` = whether the payload must be enough."""
    codec = codec_for(data_type, version)
    bound = Expression(text, codec).bind(parameters)
    payload = codec.encode(sample)
    verdict = bound.of_payload(payload)
    decided = bound.of_sample(codec.decode(payload))
    assert verdict in (None, decided)
    if by_payload is not None:
        assert bound.knows_payloads == by_payload == (verdict is not None)
    return decided


@pytest.mark.parametrize("text", [
    "altitude > 3000", "altitude = 3500", "3500.5 > altitude", "phase = 'CRUISE'", "phase = 1", "phase <> 'CLIMB'",
    "count = 7 and altitude > count", "engines[0].running = TRUE", "engines[1].running = 0", "engines[1].n1 = 0.75",
    "raw[2] = 3", "grid[1][0] = 3", "gate = 'B'", "call_sign = 'HB-JNA'", "call_sign LIKE 'HB%'", "call_sign > gate",
    "call_sign like '__-JN_'", "not call_sign like '%X%'", "engines[1].n1 between 0.5 and 0.75 and raw[0] < raw[1]",
    "phase = 'CLIMB' or altitude not between 0 and 3499.9", "altitude <> 1 and not (count < 7 or count > 7)"])
def test_true_of_the_flight_without_decoding(text):
    for version in (1, 2):
        assert decide(Flight, flight(), text, by_payload=True, version=version)
        assert not decide(Flight, flight(), f"not ({text})", by_payload=True, version=version)


@pytest.mark.parametrize("text", ["speed > 210", "tail = 'x'", "legs[1] = 2", "altitude > 1 and speed > 1"])
def test_what_lies_behind_text_is_found_by_decoding(text):
    assert decide(Flight, flight(), text, by_payload=False)


@pytest.mark.parametrize("text", ["legs[2] = 1", "not legs[2] = 1", "legs[2] <> 1", "legs[2] between 0 and 9",
                                  "not legs[2] between 0 and 9", "legs[2] = legs[3]"])
def test_what_a_sample_lacks_compares_with_nothing(text):
    assert not decide(Flight, flight(), text)
    assert decide(Flight, flight(), f"{text} or altitude = 3500")
    assert not decide(Flight, flight(), f"not ({text}) or altitude = 1")


def test_optional_members():
    some, none = WithOptional(5.0, Engine(0.5, True), "a"), WithOptional(None, None, "a")
    for text in ("altitude = 5", "altitude > 4 and engine.running = TRUE", "engine.n1 < 1"):
        assert decide(WithOptional, some, text, by_payload=False)
        assert not decide(WithOptional, none, text, by_payload=False)
        assert not decide(WithOptional, none, f"not ({text})", by_payload=False)


def test_appendable_types():
    for version in (1, 2):
        assert decide(Appendable, Appendable(5.0, "a"), "altitude = 5 and call_sign = 'a'", by_payload=True,
                      version=version)


def test_a_part_that_may_grow_is_found_by_decoding():
    for version in (1, 2):
        sample = Outer(1, Appendable(5.0, "a"))
        assert decide(Outer, sample, "first = 1", by_payload=True, version=version)
        assert decide(Outer, sample, "inner.altitude = 5", by_payload=version == 1, version=version)


def test_records():
    record = np.zeros((), RECORD)
    record["altitude"], record["grid"][1, 2], record["call_sign"], record["gate"] = 2.5, 9, b"HB-JNA", "B\u00fc"
    record["engine"]["running"], record["network"] = True, 3
    for text in ("altitude = 2.5", "grid[1][2] = 9", "call_sign = 'HB-JNA'", "gate = 'B\u00fc'",
                 "engine.running = TRUE", "call_sign like 'HB%' and grid[0][0] = 0"):
        assert decide(RECORD, record, text, by_payload=True)
        assert not decide(RECORD, record, f"not ({text})", by_payload=True)
    assert decide(RECORD, record, "network = 3 and altitude > 2", by_payload=False)  # big-endian
    assert decide(np.dtype("<i4"), np.int32(5), "value = 5", by_payload=True)


def test_records_whose_fields_share_bytes():
    dtype = np.dtype({"names": ["all", "low"], "formats": ["<u4", "<u2"], "offsets": [0, 0], "itemsize": 4})
    record = np.zeros((), dtype)
    record["all"] = 0x10002
    assert decide(dtype, record, "all = 0x10002 and low = 2", by_payload=True)


def test_protobuf():
    from google.protobuf import descriptor_pb2

    message = descriptor_pb2.FieldDescriptorProto(
        name="altitude", number=3, type=descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE)
    message.options.deprecated = True
    message.options.targets.append(descriptor_pb2.FieldOptions.TARGET_TYPE_FILE)
    for text in ("name = 'altitude'", "number between 1 and 3", "type = 'TYPE_DOUBLE'", "options.deprecated = TRUE",
                 "options.targets[0] = 'TARGET_TYPE_FILE'"):
        assert decide(type(message), message, text, by_payload=False)
        assert not decide(type(message), message, f"not ({text})", by_payload=False)
    assert decide(type(message), message, "number >= %0", 1, by_payload=False)
    for text in ("options.targets[1] = 1", "not options.targets[1] = 1", "json_name = ''", "not json_name = 'a'"):
        assert not decide(type(message), message, text)
    for text, why in (("options = 1", "is a FieldOptions"), ("options.targets = 1", "is a sequence"),
                      ("nothing = 1", "has no field 'nothing'"), ("name[0] = 'a'", "has no elements")):
        with pytest.raises(ExpressionError, match=why):
            Expression(text, codec_for(type(message)))


def proto3_message():
    """A class with fields that Python's syntax can't name, that may be set or not, and that exclude each other."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="filters.proto", package="filters", syntax="proto3")
    part = file.message_type.add(name="Part")
    part.field.add(name="x", number=1, type=kind.TYPE_INT32, label=1)
    whole = file.message_type.add(name="Whole")
    whole.oneof_decl.add(name="either")
    whole.oneof_decl.add(name="_maybe")
    for number, (name, type_, more) in enumerate([
            ("plain", kind.TYPE_INT32, {}), ("from", kind.TYPE_INT32, {}), ("class", kind.TYPE_STRING, {}),
            ("one", kind.TYPE_INT32, {"oneof_index": 0}), ("other", kind.TYPE_STRING, {"oneof_index": 0}),
            ("maybe", kind.TYPE_INT32, {"oneof_index": 1, "proto3_optional": True}),
            ("part", kind.TYPE_MESSAGE, {"type_name": ".filters.Part"})], 1):
        whole.field.add(name=name, number=number, type=type_, label=1, **more)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("filters.Whole"))


def test_protobuf_fields_that_are_not_set_compare_with_nothing():
    cls = proto3_message()
    for name in ("one", "maybe", "part.x"):
        assert not decide(cls, cls(), f"{name} = 0") and not decide(cls, cls(), f"not {name} = 0")
    assert not decide(cls, cls(one=1), "other = ''")
    full = cls(one=0, maybe=0)
    full.part.x = 0
    assert decide(cls, full, "one = 0 and maybe = 0 and part.x = 0 and not part.x = 1")
    assert decide(cls, cls(), "plain = 0")  # of a field without presence nobody can tell


def test_fields_whose_names_are_words_of_python():
    cls = proto3_message()
    message = cls(**{"from": 5, "class": "first"})
    assert decide(cls, message, "from = 5 and class LIKE 'f%'") and not decide(cls, message, "not from = 5")


def test_numbers_of_an_enumeration_that_have_no_label():
    for sample in (flight(phase=99), WithEnumeration("x", 99, 99, [99])):
        for text in ("phase = 99", "phase <> 'CRUISE'", "phase > 2"):
            assert decide(type(sample), sample, text)
    behind = WithEnumeration("x", Phase.CRUISE, 99, [Phase.CRUISE, 99])
    assert decide(WithEnumeration, behind, "maybe = 99 and several[1] = 99 and several[0] = 'CRUISE' and phase = 1")
    assert not decide(WithEnumeration, WithEnumeration("x", 99, None, []), "maybe >= 0 or several[0] >= 0")


NARROW = np.dtype([("f", "<f4"), ("h", "<f2"), ("i", "<i8"), ("u", "<u8"), ("n", ">f4")])


@pytest.mark.parametrize("text", ["f > 0.1", "not f = 0.1", "i > u", "i > f", "u > 1.8e19", "u > -1", "h > 1e6",
                                  "i <> 4611686018427387904.0", "f <> h", "i < 99999999999999999999999"])
def test_numbers_of_records_compare_as_numbers_do(text):
    record = np.array((0.1, np.inf, (1 << 62) + 1, (1 << 64) - 1, 0.1), NARROW)
    if text == "i > u":
        record["u"] = 1 << 62
    assert decide(NARROW, record, text, by_payload=True)
    assert decide(NARROW, record, f"({text}) and n > 0.1 and f = n", by_payload=False)


def test_like_takes_no_longer_than_the_product_of_both_texts():
    many = "%" + "a%" * 400 + "b"
    assert not decide(Flight, flight(call_sign="a" * 3000), "call_sign LIKE %0", f"'{many}'")
    assert decide(Flight, flight(call_sign="a" * 3000 + "b"), "call_sign LIKE %0", f"'{many}'")
    for pattern, text, expected in (("a%a", "a", False), ("a%a", "aa", True), ("%a_c%", "xabcabd", True),
                                    ("", "", True), ("%", "", True), ("%%x%%", "axb", True),
                                    ("a.c", "abc", False), ("_%_", "x", False),
                                    ("_%_", "x\n", True), ("%ab%b", "ab", False), ("%ab%ba%", "xabax", False)):
        assert decide(Flight, flight(call_sign=text), "call_sign LIKE %0", f"'{pattern}'") == expected


def test_text_that_is_none():
    codec = codec_for(RECORD)
    record = np.zeros((), RECORD)
    broken = bytearray(record.tobytes())
    at = RECORD.fields["gate"][1]
    broken[at:at + 4] = b"\xff\xff\xff\x7f"  # no code point
    bound = Expression("gate = 'a' ORDER BY gate", codec).bind()
    assert bound.of_payload(bytes(broken)) is None
    with pytest.raises(Undecided, match="not the values that its type promises"):
        bound.of_sample(codec.decode(bytes(broken)))


@pytest.mark.parametrize(("data_type", "text", "why"), [
    (bytes, "a = 1", "have no fields"),
    (Flight, "height = 1", "Flight has no field 'height'; it has altitude, phase"),
    (Flight, "engines[0].n2 = 1", "Engine has no field 'n2'; it has n1, running"),
    (Flight, "engines[2].n1 = 1", r"has 2 elements, \[0\] to \[1\]"),
    (Flight, "engines = 1", "can't be compared"),
    (Flight, "altitude.x = 1", "has no field 'x'"),
    (Flight, "altitude[0] = 1", r"has no elements, \[0\] can't be said"),
    (Flight, "altitude = 'a'", "a number can't be compared with that"),
    (Flight, "call_sign = 1", "a text can't be compared with that"),
    (Flight, "gate = 'ab'", "a char can't be compared with that"),
    (Flight, "phase = 'TAXI'", "its labels are CLIMB, CRUISE, LANDING"),
    (Flight, "engines[0].running = 2", "a boolean can't be compared"),
    (Flight, "altitude = TRUE", "a number can't be compared"),
    (Flight, "altitude LIKE '1%'", "LIKE compares text"),
    (Flight, "call_sign LIKE tail", "can't be compared"),
    (Flight, "'x' LIKE call_sign", "the field comes first"),
    (Flight, "altitude = call_sign", "a number can't be compared with a text"),
    (Flight, "ORDER BY engines", "can't be compared"),
    (RECORD, "grid[2][0] = 1", r"\[0\] to \[1\]"),
    (RECORD, "grid[0] = 1", "is an array"),
    (RECORD, "engine = 1", "is a record"),
    (RECORD, "when = 1", "is a datetime64"),
    (np.dtype("<i4"), "x = 1", "the record itself is called value"),
])
def test_what_does_not_fit_the_type(data_type, text, why):
    with pytest.raises(ExpressionError, match=why):
        Expression(text, codec_for(data_type))


class Elsewhere(enum.Enum):
    CRUISE = 99


@pytest.mark.parametrize(("text", "parameters"), [
    ("altitude > %0", [decimal.Decimal("3499.5")]), ("altitude > %0", [fractions.Fraction(7, 2)]),
    ("altitude > %0", [np.int16(3)]), ("altitude < %0", [math.inf]), ("engines[0].running = %0", [np.bool_(True)]),
    ("altitude <> %0", [math.nan]), ("altitude <> %0", [decimal.Decimal("NaN")]), ("count < %0", [(1 << 128) - 1]),
    ("altitude > %0", [3000]), ("altitude > %0", ["3000"]), ("altitude > %0", [np.float32(3000)]),
    ("call_sign = %1", [0, "'HB-JNA'"]), ("call_sign like %0", ["'HB%'"]), ("phase = %0", [Phase.CRUISE]),
    ("phase = %0", ["'CRUISE'"]), ("phase = %0", [1]), ("phase = %0", [Elsewhere.CRUISE]),
    ("engines[0].running = %0", ["TRUE"]), ("engines[0].running = %0", [True]),
    ("altitude between %0 and %1 and count = %0", [7, 4000])])
def test_parameters(text, parameters):
    assert decide(Flight, flight(), text, *parameters, by_payload=True)


@pytest.mark.parametrize(("text", "parameters", "why"), [
    ("altitude > %1", [1], "needs 2 parameters, 1 are given"),
    ("altitude > %0", [1, 2], "needs 1 parameters, 2 are given"),
    ("altitude > 1", [5], "needs 0 parameters, 1 are given"),
    ("ORDER BY altitude", ["1"], "needs 0 parameters, 1 are given"),
    ("call_sign = %0", ["HB-JNA"], "text or a label in quotes"),
    ("call_sign = %0", [1], "call_sign is compared with %0 = 1"),
    ("altitude > %0", ["'1'"], "altitude is compared with %0 = '1'"),
    ("altitude > %0", [None], "altitude is compared with %0"),
    ("altitude > %0", [[1]], "altitude is compared with %0"),
    ("phase = %0", ["'TAXI'"], "its labels are"),
    ("call_sign like %0", [5], "call_sign is compared"),
    ("altitude > %0", [np.datetime64("2020", "s")], "altitude is compared with %0"),
    ("altitude > %0", [np.timedelta64(5, "s")], "altitude is compared with %0"),
    ("altitude > %0", [1j], "altitude is compared with %0"),
    ("altitude > %0", [np.zeros(2)], "altitude is compared with %0"),
    ("altitude > %0", [1 << 20000], "%0 has 20,001 bits; 128 are allowed"),
    ("altitude > %0", ["9" * 5000], "no value to compare"),
    ("altitude > %0", [1] * 101, "101 parameters are given; 100 are allowed"),
])
def test_parameters_that_do_not_fit(text, parameters, why):
    with pytest.raises(ExpressionError, match=why):
        Expression(text, codec_for(Flight)).bind(parameters)


def test_order():
    codec = codec_for(Flight)
    bound = Expression("ORDER BY phase, legs[1]", codec).bind()
    one, two, three = flight(legs=[0]), flight(legs=[9, 3]), flight(phase=Phase.CLIMB, legs=[])
    assert sorted([one, two, three], key=bound.order) == [three, two, one]
    assert bound.of_sample(one) and bound.of_payload(codec.encode(one))
    assert Expression("altitude = 1", codec).bind().order is None


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\1\0\0", b"\0\7\0\0" + bytes(200), bytes(4) + b"\xff" * 60,
                                     b"\0\1\0\0" + bytes(40) + struct.pack("<I", 1 << 31) + b"abc",
                                     b"\0\1\0\0" + bytes(40) + struct.pack("<I", 4) + b"\xff\xff\xff\0"])
def test_a_payload_that_is_no_sample_is_left_to_decoding(payload):
    bound = Expression("call_sign = 'abc' and altitude > %0", codec_for(Flight, 1)).bind([1])
    assert not bound.of_payload(payload)  # None, or that it doesn't pass, but no exception
    record = Expression("altitude = 0", codec_for(RECORD)).bind()
    assert record.of_payload(payload) is None


def test_payloads_of_the_other_cdr_version_are_left_to_decoding():
    one, other = codec_for(Flight, 1), codec_for(Flight, 2)
    bound = Expression("count = 7", one).bind()
    assert bound.of_payload(one.encode(flight())) is True
    assert bound.of_payload(other.encode(flight())) is None
    assert bound.of_sample(one.decode(other.encode(flight())))


# --- as SQLite decides

NUMBERS = st.sampled_from(["a", "b", "grid[0]", "grid[1]", "legs[0]", "legs[1]"])
VALUES = st.one_of(st.integers(-3, 3).map(str), st.sampled_from(["0.5", "-1.5", "2e0", "%0", "%1"]))
TEXT = st.text("abA_%'", max_size=3)
RELATIONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


LEAVES = st.one_of(
    st.tuples(NUMBERS, RELATIONS, VALUES).map(" ".join),
    st.tuples(VALUES, RELATIONS, NUMBERS).map(" ".join),
    st.tuples(NUMBERS, RELATIONS, NUMBERS).map(" ".join),
    st.builds("{} {} {} AND {}".format, NUMBERS, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), VALUES, VALUES),
    st.builds("t {} {}".format, RELATIONS, TEXT.map(quoted)),
    st.builds("t LIKE {}".format, TEXT.map(quoted)),
)
TREES = st.recursive(LEAVES, lambda inner: st.one_of(
    st.builds("NOT ({})".format, inner),
    st.builds("NOT {}".format, LEAVES),
    st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
    st.builds("{} {} {}".format, LEAVES, st.sampled_from(["AND", "OR"]), inner)), max_leaves=6)


@dataclass
class Sample(IdlStruct):
    a: int
    b: float
    grid: array[int, 2]
    t: str
    legs: sequence[int]


SAMPLES = st.builds(Sample, st.integers(-3, 3), st.sampled_from([-1.5, 0.0, 0.5, 2.0]),
                    st.lists(st.integers(-2, 2), min_size=2, max_size=2), TEXT,
                    st.lists(st.integers(-2, 2), max_size=2))


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(TREES, SAMPLES, st.tuples(st.integers(-2, 2), st.sampled_from([0.5, -1.5])))
def test_it_decides_as_sqlite_does(text, sample, parameters):
    legs = [*sample.legs, None, None][:2]
    row = {"a": sample.a, "b": sample.b, "grid0": sample.grid[0], "grid1": sample.grid[1], "t": sample.t,
           "legs0": legs[0], "legs1": legs[1], "p0": parameters[0], "p1": parameters[1]}
    query = text
    for name in ("grid[0]", "grid[1]", "legs[0]", "legs[1]"):
        query = query.replace(name, name[:-3] + name[-2])
    in_quotes = False
    parts = []
    for part in query.split("'"):
        parts.append(part if in_quotes else part.replace("%0", ":p0").replace("%1", ":p1"))
        in_quotes = not in_quotes
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute("CREATE TABLE s (a INTEGER, b REAL, grid0 INTEGER, grid1 INTEGER, t TEXT, legs0 INTEGER, "
                         "legs1 INTEGER)")
        database.execute("INSERT INTO s VALUES (:a, :b, :grid0, :grid1, :t, :legs0, :legs1)", row)
        (expected,) = database.execute(f"SELECT count(*) FROM s WHERE {chr(39).join(parts)}", row).fetchone()
    database.close()
    needed = Expression(text, codec_for(Sample)).parameters_count
    assert decide(Sample, sample, text, *parameters[:needed]) == bool(expected), text
