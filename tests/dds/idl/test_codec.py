"""Codecs of IDL types.

Goal: what the compiled codec writes is byte for byte what the library writes, and comes back equal, in both CDR
versions; types that can't be compiled still work; foreign bytes never pass as a sample.
Method: hypothesis makes samples of types that cover every kind of member, the library is the reference; types at random
with the same reference; truncated and altered payloads.
"""

import re
from dataclasses import dataclass, make_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dds.idl import IdlEnum, IdlStruct, IdlUnion, make_idl_struct
from dds.idl.annotations import appendable, bit_bound, key, keylist, mutable
from dds.idl.codec import IdlCodec, codec_of
from dds.idl.types import (
    array,
    bounded_str,
    byte,
    case,
    char,
    default,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    sequence,
    typedef,
    uint8,
    uint16,
    uint32,
    uint64,
)


class Color(IdlEnum):
    red = 0
    green = 7


@bit_bound(8)
class Small(IdlEnum):
    a = 0
    b = 5


@dataclass
class Point(IdlStruct):
    flag: uint8
    x: float64


@dataclass
@appendable
class Named(IdlStruct):
    n: uint8
    name: bounded_str[9]
    weights: array[float32, 3]
    key("n")


@dataclass
class Everything(IdlStruct, typename="test.Everything"):
    a: bool
    b: int8
    c: str
    d: int16
    e: uint64
    f: bytes
    g: char
    h: Point
    i: sequence[Point, 4]
    j: list[str]
    k: sequence[uint8]
    l: sequence[float64]  # noqa: E741
    m: array[uint8, 3]
    n: Color
    o: array[array[int16, 2], 2]
    p: Named
    q: sequence[Named]
    r: list[int]
    s: sequence[bool]
    t: Small
    u: typedef["Alias", uint32]  # noqa: F821
    v: array[Point, 2]
    w: sequence[uint16, 5]
    x: array[int32, 1]
    y: sequence[char]
    z: uint16


@dataclass
@appendable
class WithOptionals(IdlStruct):
    a: uint8
    point: Point | None
    named: Named | None
    c: float64
    text: str


def marked(codec, payload):
    """What the library writes, with the type's mark in the two bytes that CDR leaves unused."""
    return payload[:2] + codec.mark + payload[4:]


def _ints(bits, signed):
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
_float32 = st.floats(width=32, allow_nan=False)
_float64 = st.floats(allow_nan=False)
_points = st.builds(Point, flag=_ints(8, False), x=_float64)
_named = st.builds(Named, n=_ints(8, False), name=_text, weights=st.lists(_float32, min_size=3, max_size=3))
_chars = st.characters(max_codepoint=127)


def _some(elements, most=4, least=0):
    return st.lists(elements, min_size=least, max_size=most)


_everything = st.builds(
    Everything, a=st.booleans(), b=_ints(8, True), c=_text, d=_ints(16, True), e=_ints(64, False),
    f=st.binary(max_size=9), g=_chars, h=_points, i=_some(_points), j=_some(_text), k=_some(_ints(8, False)),
    l=_some(_float64), m=st.binary(min_size=3, max_size=3), n=st.sampled_from(Color),
    o=_some(_some(_ints(16, True), 2, 2), 2, 2), p=_named, q=_some(_named), r=_some(_ints(64, True)),
    s=_some(st.booleans()), t=st.sampled_from(Small), u=_ints(32, False), v=_some(_points, 2, 2),
    w=_some(_ints(16, False), 5), x=_some(_ints(32, True), 1, 1), y=_some(_chars), z=_ints(16, False))
_with_optionals = st.builds(
    WithOptionals, a=_ints(8, False), point=st.none() | _points, named=st.none() | _named, c=_float64, text=_text)


def check(sample, version):
    codec = codec_of(type(sample), version)
    assert codec.compiled
    expected = marked(codec, sample.serialize(use_version_2=codec.version == 2))
    assert codec._compiled_encode(sample) == expected
    assert codec.encode(sample) == expected
    decoded = codec._compiled_decode(memoryview(expected))
    assert decoded == sample
    assert type(decoded) is type(sample)
    assert decoded == type(sample).deserialize(expected)


@pytest.mark.slow
@given(_everything, st.sampled_from([1, 2]))
@settings(deadline=None)
def test_bytes_equal_the_librarys_and_come_back(sample, version):
    check(sample, version)


@given(_with_optionals)
@settings(deadline=None)
def test_optional_members(sample):
    check(sample, 0)


_kinds = [
    (bool, st.booleans()), (int8, _ints(8, True)), (uint8, _ints(8, False)), (int16, _ints(16, True)),
    (uint32, _ints(32, False)), (int64, _ints(64, True)), (float32, _float32), (float64, _float64), (str, _text),
    (bytes, st.binary(max_size=5)), (Point, _points), (Named, _named), (sequence[float64], _some(_float64)),
    (sequence[uint16], _some(_ints(16, False))), (array[int64, 2], _some(_ints(64, True), 2, 2)),
    (sequence[str], _some(_text)), (sequence[Point], _some(_points)),
    (array[byte, 5], st.binary(min_size=5, max_size=5))]


@given(st.data(), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None, max_examples=40)
def test_any_order_of_members(data, version, is_appendable):
    kinds = data.draw(st.lists(st.sampled_from(_kinds), min_size=1, max_size=7))
    cls = make_idl_struct("Drawn", "Drawn", {f"m{i}": kind for i, (kind, _) in enumerate(kinds)})
    if is_appendable:
        cls = appendable(cls)
    check(cls(*(data.draw(values) for _, values in kinds)), version)


def test_buffers_are_taken_as_they_are():
    numpy = pytest.importorskip("numpy")

    @dataclass
    class Image(IdlStruct):
        pixels: sequence[uint8]
        scale: sequence[float64]

    codec = IdlCodec(Image)
    expected = codec.encode(Image([1, 2, 3], [0.5, 1.5]))
    for pixels in (b"\1\2\3", bytearray(b"\1\2\3"), memoryview(b"\1\2\3"), numpy.array([1, 2, 3], "u1")):
        assert codec.encode(Image(pixels, numpy.array([0.5, 1.5]))) == expected
    assert codec.encode(Image([1, 2, 3], numpy.array([0.5, 9, 1.5])[::2])) == expected


def test_what_cannot_be_encoded_is_named():
    codec = IdlCodec(Named)
    for bad in (Named(300, "a", [0, 0, 0]), Named(1, "too long by far", [0, 0, 0]), Named(1, "a", [0, 0])):
        with pytest.raises(ValueError, match=rf"{codec.type_name} can't be encoded: \w+ is .*, which is no "):
            codec.encode(bad)

    @dataclass
    class Part(IdlStruct):
        number: uint8
        text: str

    @dataclass
    class Whole(IdlStruct):
        one: Part
        several: sequence[Part]
        rows: sequence[sequence[Part]]

    good = Part(1, "a")
    for bad, why in ((Whole(Part(256, "a"), [], []), "one.number is 256, which is no uint8"),
                     (Whole(good, [good, Part(1, 5)], []), "several[].text is 5, which is no string"),
                     (Whole(good, [], [[], [good, Part(-1, "")]]), "rows[][].number is -1, which is no uint8"),
                     (Whole(None, [], []), "one is None, which is no struct Part"),
                     (Whole(good, 5, []), "several is 5, which is no sequence<struct Part>"),
                     (Whole(good, [good, "x" * 1000], []), "several is [")):
        for version in (1, 2):
            with pytest.raises(ValueError, match=re.escape(why)) as caught:
                IdlCodec(Whole, version).encode(bad)
            assert len(str(caught.value)) < 300
    with pytest.raises(TypeError, match="is not of type Named"):
        codec.encode(Point(1, 1.0))


@given(_named, st.data())
@settings(deadline=None)
def test_truncated_payloads_are_refused(sample, data):
    for version in (1, 2):
        codec = codec_of(Named, version)
        payload = codec.encode(sample)
        with pytest.raises(ValueError):
            codec.decode(payload[:data.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.slow
@given(_everything, st.data())
@settings(deadline=None, max_examples=200)
def test_altered_payloads_give_a_sample_or_a_value_error(sample, data):
    codec = codec_of(Everything)
    payload = bytearray(codec.encode(sample))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(4, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(codec.decode(memoryview(payload)), Everything)
    except ValueError:
        pass


def test_a_sample_of_the_other_version_or_byte_order_is_read():
    sample = Named(3, "abc", [1.0, 2.0, 3.0])
    codec = IdlCodec(Named, 2)
    assert codec.decode(IdlCodec(Named, 1).encode(sample)) == sample
    big = sample.serialize(endianness=__import__("cyclonedds_idl")._support.Endianness.Big)
    assert codec.decode(big) == sample


def test_an_appendable_type_reads_its_earlier_form():
    @dataclass
    @appendable
    class Old(IdlStruct, typename="T"):
        a: int32

    @dataclass
    @appendable
    class New(IdlStruct, typename="T"):
        a: int32
        b: int32

    assert IdlCodec(New).decode(IdlCodec(Old).encode(Old(5))) == New(5, 0)
    assert IdlCodec(Old).decode(IdlCodec(New).encode(New(5, 6))) == Old(5)


def test_types_that_are_not_compiled_go_through_the_library():
    class Either(IdlUnion, discriminator=int32):
        number: case[1, float64]
        text: default[str]

    @dataclass
    class WithUnion(IdlStruct):
        one: Either

    @dataclass
    @mutable
    class Mutable(IdlStruct):
        a: int32
        b: str

    for sample in (Either(number=2.5), WithUnion(Either(number=1.5)), Mutable(1, "b")):
        codec = IdlCodec(type(sample))
        assert not codec.compiled
        assert codec.encode(sample) == marked(codec, sample.serialize())
        assert codec.decode(codec.encode(sample)) == sample


def test_classes_with_their_own_constructor():
    class Plain(IdlStruct):
        a: int32
        b: str

        def __init__(self, *, b, a):
            self.a, self.b = a, b

    codec = IdlCodec(Plain)
    back = codec.decode(codec.encode(Plain(a=1, b="x")))
    assert (back.a, back.b) == (1, "x")


def test_annotations_as_strings():
    here = {"__module__": __name__}
    cls = make_dataclass("Later", [("a", "int32"), ("p", "Point")], bases=(IdlStruct,), namespace=here)
    codec = IdlCodec(cls)
    assert codec.decode(codec.encode(cls(1, Point(2, 3.0)))) == cls(1, Point(2, 3.0))
    broken = make_dataclass("Broken", [("a", "NoSuchType")], bases=(IdlStruct,), namespace=here)
    with pytest.raises(TypeError, match="NoSuchType"):
        IdlCodec(broken)


def test_bounds_of_samples():
    @dataclass
    class Fixed(IdlStruct):
        a: uint8
        b: float64
        c: array[uint16, 3]

    @dataclass
    class Bounded(IdlStruct):
        a: bounded_str[4]
        b: sequence[int64, 2]

    for cls, largest in ((Fixed, Fixed(1, 2.0, [1, 2, 3])), (Bounded, Bounded("\U0001f600" * 4, [1, 2]))):
        codec = IdlCodec(cls)
        assert codec.size_max == len(codec.encode(largest))
    assert IdlCodec(Everything).size_max is None


def test_keys():
    @dataclass
    @keylist(["a", "p"])
    class Keyed(IdlStruct):
        a: list[int]
        b: int32
        p: Point

    first, second = Keyed([1, 2], 3, Point(1, 2.0)), Keyed([1, 2], 9, Point(1, 2.0))
    key_of = IdlCodec(Keyed).key_of
    assert key_of(first) == key_of(second)
    assert hash(key_of(first)) != hash(key_of(Keyed([1, 3], 3, Point(1, 2.0))))
    assert IdlCodec(Named).key_of(Named(7, "", [0, 0, 0])) == 7
    assert IdlCodec(Point).key_of is None


def test_type_hashes_tell_types_apart():
    def variant(typename="T", **members):
        return IdlCodec(make_idl_struct("T", typename, members))

    same = variant(a=int32, b=str)
    assert same.type_hash == variant(a=int32, b=str).type_hash
    assert len({one.mark for one in (same, variant(a=int32, b=str))}) == 1
    assert len(same.type_hash) == 24 and len(variant(a=list[int]).type_hash) == 16  # XTypes has no name for the latter
    others = [variant(a=uint32, b=str), variant(b=str, a=int32), variant(a=int32, c=str), variant("U", a=int32, b=str),
              variant(a=int32, b=bounded_str[4]), variant(a=int32, b=str, c=Point)]
    assert len({one.type_hash for one in (same, *others)}) == 7
    assert variant("module.T", a=int32).type_name == "module::T"
