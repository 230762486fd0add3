"""Type identifiers and objects of IDL types, and classes made of them.

Goal: a class made of what is announced of another is the same to everybody: equal identifier, equal bytes of its
samples, equal IDL. A false or damaged description never becomes a class, and no name in it is executed.
Method: types of every kind, and types at random; descriptions with other names in them, cut short, or of another type.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dds.idl import IdlBitmask, IdlEnum, IdlStruct, IdlUnion
from dds.idl.annotations import (
    appendable,
    autoid,
    bit_bound,
    external,
    key,
    member_hash_id,
    member_id,
    must_understand,
    mutable,
    position,
)
from dds.idl.codec import codec_of
from dds.idl.printer import idl_text
from dds.idl.typeobjects import (
    MAPPING_BYTES_MAX,
    class_of,
    classes_of,
    identifier_bytes,
    identifier_of,
    type_info,
)
from dds.idl.types import (
    array,
    bounded_str,
    byte,
    case,
    char,
    default,
    float32,
    int32,
    sequence,
    typedef,
    uint16,
    wchar,
)
from tests.dds.idl.evolving import announced, structs


@bit_bound(8)
@appendable
class Colour(IdlEnum, typename="paint.Colour", default="green"):
    red = 0
    green = 7


@dataclass
@bit_bound(12)
class Flags(IdlBitmask, typename="paint.Flags"):
    first: bool = False
    eleventh: bool = False
    position("eleventh", 11)


class Shade(IdlUnion, discriminator=Colour, typename="paint.Shade"):
    depth: case[Colour.red, int32]
    text: default[bounded_str[300]]


@appendable
class Letter(IdlUnion, discriminator=bool, discriminator_is_key=True):
    a: case[True, int32]
    none: default[None]


@dataclass
class Base(IdlStruct, typename="paint.Base"):
    number: int
    key("number")


@dataclass
@mutable
@autoid("hash")
class Paint(IdlStruct, typename="paint.Paint"):
    name: str
    key("name")
    colour: Colour
    flags: Flags
    shade: Shade
    inner: Base
    external("inner")
    maybe: float32 | None
    grid: array[array[uint16, 3], 300]
    some: sequence[Base, 7]
    alias: typedef["paint.Count", int32]  # noqa: F821
    aliases: sequence[typedef["paint.Names", sequence[str]]]  # noqa: F821
    hashed: byte
    member_hash_id("hashed")
    odd: wchar
    member_id("odd", 99)
    must_understand("odd")


@dataclass
class Derived(Base, typename="paint.Derived"):
    more: str


@dataclass
class Tree(IdlStruct, typename="Tree"):
    value: int
    left: "Tree | None" = None
    others: sequence["Tree"] = ()


@dataclass
class Nested(IdlStruct):
    one: Letter
    two: sequence[Shade]


class Part(IdlUnion, discriminator=int32):
    small: case[1, int32]
    other: default[str]


class Whole(IdlUnion, discriminator=int32):
    part: case[1, Part]
    parts: default[sequence[Part]]


@pytest.mark.parametrize("cls", [Paint, Derived, Shade, Letter, Nested, Base, Whole])
def test_a_class_of_a_description_is_the_same_to_everybody(cls):
    made = announced(cls)
    assert made is not cls and made.__name__ == cls.__name__
    assert type_info(made) == type_info(cls)
    assert made.__idl__.get_type_id() == cls.__idl__.get_type_id()
    assert idl_text(made) == idl_text(cls)
    assert codec_of(made).mark == codec_of(cls).mark
    assert announced(cls) is made


def test_samples_of_both_are_the_same_bytes():
    sample = Paint("a", Colour.green, Flags(True, True), Shade(discriminator=Colour.red, value=5), Base(3), None,
                   [[1, 2, 3]] * 300, [Base(4)], 5, [["x"]], 6, 7)
    made = announced(Paint)
    other = codec_of(made).decode(codec_of(Paint).encode(sample))
    assert isinstance(other, made) and other.colour.name == "green" and other.flags.eleventh and other.inner.number == 3
    assert codec_of(made).encode(other) == codec_of(Paint).encode(sample)
    assert codec_of(Paint).key_of(sample) == codec_of(made).key_of(other)


def test_types_that_contain_themselves():
    import sys

    sys.modules[__name__].Tree = Tree
    made = announced(Tree)
    assert type_info(made) == type_info(Tree)
    tree = Tree(1, Tree(2), [Tree(3, None, [Tree(4)])])
    other = codec_of(made).decode(codec_of(Tree).encode(tree))
    assert other.others[0].others[0].value == 4 and other.left.value == 2
    assert len(type_info(Tree).identifier) > 15


def test_all_named_types_are_given():
    info = type_info(Paint)
    cls, names = classes_of(info.identifier, info.mapping)
    assert names["Paint"] is cls
    assert set(names) == {"Paint", "Colour", "Flags", "Shade", "Base", "Count", "Names"}


def test_types_that_xtypes_has_no_name_for():
    @dataclass
    class Listed(IdlStruct):
        values: list[int]

    class Lettered(IdlUnion, discriminator=char):
        a: case["a", int32]  # noqa: F821

    for cls in (Listed, Lettered):
        assert type_info(cls) is None and codec_of(cls).info is None
        assert len(codec_of(cls).type_hash) == 16
    assert type_info(Base) is not None


def test_identifiers_as_the_library_has_them():
    type_id = Paint.__idl__.get_type_id()
    assert identifier_of(identifier_bytes(type_id)) == type_id
    assert identifier_bytes(type_id) == type_info(Paint).identifier
    with pytest.raises(TypeError, match="TypeIdentifier"):
        identifier_bytes(b"x")
    with pytest.raises(ValueError, match="TypeIdentifier"):
        identifier_of(b"")


@pytest.mark.slow
@given(structs())
@settings(deadline=None, max_examples=60)
def test_types_at_random_come_back(made):
    cls, _ = made
    assert type_info(announced(cls)) == type_info(cls)


# --- descriptions that lie

def test_a_description_of_another_type_is_refused():
    paint, base = type_info(Paint), type_info(Base)
    for identifier, mapping in ((paint.identifier, base.mapping), (base.identifier, paint.mapping[:-1]),
                                (base.identifier, b""), (base.identifier, b"\xff" * 40)):
        with pytest.raises(ValueError, match=r"description|TypeMapping|type"):
            class_of(identifier, mapping)
    with pytest.raises(ValueError, match=str(MAPPING_BYTES_MAX)):
        class_of(base.identifier, base.mapping + bytes(MAPPING_BYTES_MAX))


def _renamed(cls, before, after):
    """The description of a class with another name in it, and the identifier that it would have if it were honest."""
    assert len(before) == len(after)
    info = type_info(cls)
    mapping = info.mapping.replace(before, after)
    assert mapping != info.mapping
    return info.identifier, mapping


@pytest.mark.parametrize("name", [b"a=b,no", b"a b.no", b"__x__n", b"x\ny_no", b"1umber", b"n\xc3\xbcmbr"])
def test_names_that_are_none_never_reach_python(name):
    with pytest.raises(ValueError, match="no name for a member"):
        class_of(*_renamed(Base, b"number", name))


def test_type_names_that_are_none_never_reach_python():
    with pytest.raises(ValueError, match="no name for a type"):
        class_of(*_renamed(Base, b"paint::Base", b"paint::Ba)("))


def test_an_honest_name_under_another_types_identifier_is_refused():
    with pytest.raises(ValueError, match="of another type than its identifier says"):
        class_of(*_renamed(Base, b"number", b"nomber"))


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_descriptions_are_refused(data):
    info = type_info(Nested)
    mapping = bytearray(info.mapping)
    for _ in range(data.draw(st.integers(1, 3))):
        mapping[data.draw(st.integers(0, len(mapping) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        cls = class_of(info.identifier, bytes(mapping))
    except ValueError:
        return
    assert type_info(cls) == replace(info, mapping=type_info(cls).mapping)
