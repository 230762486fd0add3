"""Two versions of a type that differ in anything.

Goal: where a reader's type is declared assignable from a writer's, every sample comes with the right values, or is
refused because a bound is exceeded, and belongs to the same instance; where it isn't, a reason is given. Both ends
decide alike, each knowing the other's type from its announcement.
Method: hypothesis makes a type, and changes it at random in ways that go together and in ways that don't; the oracle
goes from the writer's sample to the reader's by what DDS-XTypes 1.3, 7.2.4.4 says of each kind of type.
"""

import enum
from dataclasses import dataclass, replace
from typing import Any, Optional

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dds.idl import make_idl_union
from dds.idl.annotations import extensibility
from dds.idl.assignability import Rules, difference
from dds.idl.codec import codec_of
from dds.idl.members import default_of
from dds.idl.types import array, bounded_str, case, default, float32, int8, int16, int32, int64, sequence, uint8
from dds.messages.operations import handle_of
from tests.dds.idl.evolving import announced, enumeration, reader_of, struct

HOW = st.sampled_from(["final", "appendable", "mutable"])
TEXT = st.text("ab\u00fc", max_size=4)


@dataclass(frozen=True)
class Shape:
    """A type that can be changed: kind, and what it consists of.

    primitive, text, sequence, array, enumeration, struct, union
    parts   of a struct: Parts; of a union: (label, Part); of an enumeration: (name, number); of others: the element
    bound   of a text or sequence, 0 = none; of an array its length
    """

    kind: str
    parts: tuple[Any, ...] = ()
    bound: int = 0
    how: str = "appendable"
    other: Any = None  # a primitive's type; a union's default Part


@dataclass(frozen=True)
class Part:
    name: str
    number: int
    shape: Shape
    optional: bool = False
    key: bool = False


PRIMITIVES = {int8: st.integers(-128, 127), int16: st.integers(-9, 9), int32: st.integers(-9, 9),
              int64: st.integers(-(1 << 63), (1 << 63) - 1), uint8: st.integers(0, 255), bool: st.booleans(),
              float32: st.sampled_from([0.0, -1.5, float("inf")])}
LITERALS = [("a", 0), ("b", 1), ("c", 2), ("d", 9)]


@st.composite
def shapes(draw: st.DrawFn, depth: int = 2) -> Shape:
    kind = draw(st.sampled_from(["primitive", "primitive", "text", "enumeration"] + (
        ["sequence", "array", "struct", "union"] if depth else [])))
    if kind == "primitive":
        return Shape(kind, other=draw(st.sampled_from(list(PRIMITIVES))))
    if kind == "text":
        return Shape(kind, bound=draw(st.sampled_from([0, 2, 3])))
    if kind == "enumeration":
        count = draw(st.integers(1, len(LITERALS)))
        return Shape(kind, tuple(LITERALS[:count]), how=draw(st.sampled_from(["final", "appendable"])))
    if kind == "sequence":
        return Shape(kind, (draw(shapes(depth - 1)),), draw(st.sampled_from([0, 1, 2])))
    if kind == "array":
        return Shape(kind, (draw(shapes(depth - 1)),), 2)
    if kind == "struct":
        return draw(structs(depth - 1))
    count = draw(st.integers(1, 2))
    parts = tuple((place + 1, Part(f"c{place}", place, draw(shapes(depth - 1)))) for place in range(count))
    rest = Part("rest", 9, draw(shapes(depth - 1))) if draw(st.booleans()) else None
    return Shape(kind, parts, how=draw(st.sampled_from(["final", "appendable"])), other=rest)


@st.composite
def structs(draw: st.DrawFn, depth: int = 2, keyed: bool = False) -> Shape:
    parts = tuple(
        Part(f"m{place}", place, draw(shapes(depth)), draw(st.integers(0, 4)) == 0,
             keyed and draw(st.booleans())) for place in range(draw(st.integers(1, 3))))
    return Shape("struct", tuple(replace(one, optional=one.optional and not one.key) for one in parts), how=draw(HOW))


@st.composite
def changed(draw: st.DrawFn, shape: Shape, depth: int = 2) -> Shape:
    """Another version of it: most of it is as it was."""
    if draw(st.integers(0, 2)) == 0 and depth < 2:
        return shape
    if depth < 2 and draw(st.integers(0, 30)) == 0:
        return draw(shapes(0))
    if shape.kind == "text":
        return replace(shape, bound=draw(st.sampled_from([0, 2, 3])))
    if shape.kind == "enumeration":
        found = draw(st.lists(st.sampled_from(LITERALS), min_size=1, unique=True))
        if draw(st.integers(0, 9)) == 0:
            found = [(found[0][0], found[0][1] + draw(st.integers(0, 1))), *found[1:]]
        return replace(shape, parts=tuple(dict((number, (name, number)) for name, number in found).values()))
    if shape.kind in ("sequence", "array"):
        bound = draw(st.sampled_from([0, 1, 2])) if shape.kind == "sequence" else draw(st.sampled_from([2, 2, 2, 3]))
        return replace(shape, parts=(draw(changed(shape.parts[0], depth - 1)),), bound=bound)
    if shape.kind == "union":
        parts = [(label, replace(one, shape=draw(changed(one.shape, depth - 1)))) for label, one in shape.parts]
        if draw(st.booleans()):
            parts.append((7, Part("more", 7, draw(shapes(0)))))
        if len(parts) > 1 and draw(st.booleans()):
            del parts[draw(st.integers(0, len(parts) - 1))]
        rest = draw(st.sampled_from([None, shape.other, shape.other]))
        return replace(shape, parts=tuple(parts), other=rest)
    if shape.kind != "struct":
        return shape
    parts = [replace(one, shape=draw(changed(one.shape, depth - 1))) for one in shape.parts]
    for place, one in enumerate(parts):
        what = draw(st.integers(0, 20))
        if what == 0:
            parts[place] = replace(one, optional=not one.optional, key=False)
        elif what == 1:
            parts[place] = replace(one, name="renamed")
        elif what == 2:
            parts[place] = replace(one, number=one.number + 10)
        elif what == 3:
            parts[place] = replace(one, key=not one.key, optional=False)
    if draw(st.booleans()):
        parts.append(Part("more", 20, draw(shapes(0)), draw(st.booleans())))
    if len(parts) > 1 and draw(st.integers(0, 2)) == 0:
        del parts[draw(st.integers(0, len(parts) - 1))]
    if shape.how == "mutable" or draw(st.integers(0, 9)) == 0:
        parts = draw(st.permutations(parts))
    return replace(shape, parts=tuple(parts), how=shape.how if draw(st.integers(0, 15)) else draw(HOW))


# --- classes and samples of shapes

def type_of(shape: Shape, path: str = "T") -> Any:
    """`path`: of the member, of which types have their names, for a name stands for one type."""
    if shape.kind == "primitive":
        return shape.other
    if shape.kind == "text":
        return bounded_str[shape.bound] if shape.bound else str
    if shape.kind == "enumeration":
        return enumeration(shape.how, f"test.{path}", **dict(shape.parts))
    if shape.kind == "sequence":
        inner = type_of(shape.parts[0], path)
        return sequence[inner, shape.bound] if shape.bound else sequence[inner]
    if shape.kind == "array":
        return array[type_of(shape.parts[0], path), shape.bound]
    if shape.kind == "union":
        cases = {one.name: case[label, type_of(one.shape, f"{path}_{one.name}")] for label, one in shape.parts}
        if shape.other is not None:
            cases[shape.other.name] = default[type_of(shape.other.shape, f"{path}_rest")]
        return extensibility(shape.how)(make_idl_union(path, f"test.{path}", cases, discriminator=int32))
    members = {}
    for one in shape.parts:
        hint = type_of(one.shape, f"{path}_{one.name}")
        members[one.name] = (Optional[hint] if one.optional else hint, one.number)  # noqa: UP045
    return struct(shape.how, f"test.{path}", tuple(one.name for one in shape.parts if one.key), **members)


def samples(shape: Shape, cls: Any) -> st.SearchStrategy[Any]:
    if shape.kind == "primitive":
        return PRIMITIVES[cls]
    if shape.kind == "text":
        return TEXT.filter(lambda text: not shape.bound or len(text) <= shape.bound)
    if shape.kind == "enumeration":
        return st.sampled_from(list(cls))
    if shape.kind == "sequence":
        inner = samples(shape.parts[0], cls.subtype)
        return as_bytes(shape, st.lists(inner, max_size=shape.bound or 3))
    if shape.kind == "array":
        inner = samples(shape.parts[0], cls.subtype)
        return as_bytes(shape, st.lists(inner, min_size=shape.bound, max_size=shape.bound))
    hints = hints_of(cls)
    if shape.kind == "union":
        found = [samples(one.shape, hints[one.name].subtype).map(
            lambda value, label=label: cls(discriminator=label, value=value)) for label, one in shape.parts]
        if shape.other is not None:
            found.append(samples(shape.other.shape, hints[shape.other.name].subtype).map(
                lambda value: cls(discriminator=5, value=value)))
        return st.one_of(found)
    return st.builds(cls, **{
        one.name: st.none() | samples(one.shape, hints[one.name].inner) if one.optional else samples(
            one.shape, hints[one.name]) for one in shape.parts})


def as_bytes(shape: Shape, lists: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return lists.map(bytes) if shape.kind == "array" and shape.parts[0].other is uint8 else lists


def hints_of(cls: Any) -> dict[str, Any]:
    from cyclonedds_idl._type_normalize import get_extended_type_hints

    return dict(get_extended_type_hints(cls))


class Exceeded(Exception):
    """The reader's type has no room for it."""


def as_read(reader: Shape, cls: Any, writer: Shape, value: Any) -> Any:
    """What the reader gets of the writer's value."""
    if reader.kind == "enumeration":
        number = value.value if isinstance(value, enum.Enum) else value
        return next((one for one in cls if one.value == number), number)
    if reader.kind in ("text", "sequence"):
        if reader.bound and len(value) > reader.bound:
            raise Exceeded
        return value if reader.kind == "text" else [
            as_read(reader.parts[0], cls.subtype, writer.parts[0], one) for one in value]
    if reader.kind == "array":
        found = [as_read(reader.parts[0], cls.subtype, writer.parts[0], one) for one in value]
        return bytes(found) if isinstance(value, bytes) else found
    hints = hints_of(cls) if reader.kind in ("struct", "union") else {}
    if reader.kind == "union":
        label, content = value.get()
        mine = dict(reader.parts).get(label, reader.other)
        theirs = dict(writer.parts).get(label, writer.other)
        if mine is None:
            return cls(discriminator=label, value=None)
        hint = hints[mine.name].subtype
        return cls(discriminator=label, value=default_of(hint) if theirs is None else as_read(
            mine.shape, hint, theirs.shape, content))
    if reader.kind != "struct":
        return value
    theirs = {one.number: one for one in writer.parts}
    found = {}
    for one in reader.parts:
        hint = hints[one.name].inner if one.optional else hints[one.name]
        other = theirs.get(one.number)
        content = None if other is None else getattr(value, other.name)
        if content is None:
            found[one.name] = None if one.optional else default_of(hint)
        else:
            found[one.name] = as_read(one.shape, hint, other.shape, content)
    return cls(**found)


RULES = st.builds(Rules, st.integers(0, 5).map(bool), st.booleans(), st.booleans(), st.booleans(), st.booleans())


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_what_goes_together_is_read_right_and_what_does_not_has_a_reason(data: st.DataObject) -> None:
    before = data.draw(structs(keyed=True))
    after = data.draw(changed(before))
    rules = data.draw(RULES)
    for mine, theirs in ((before, after), (after, before)):
        reader, writer = type_of(mine), type_of(theirs)
        said = difference(reader, announced(writer), rules)
        assert bool(said) == bool(difference(announced(reader), writer, rules)), said
        event("apart" if said else "together")
        if said:
            assert " at the " in said or "only the " in said or "in common" in said, said
            continue
        sample = data.draw(samples(theirs, writer))
        codec = reader_of(reader, writer) if codec_of(reader).mark != codec_of(writer).mark else codec_of(reader)
        for version in (1, 2):
            payload = codec_of(writer, version).encode(sample)
            try:
                expected = as_read(mine, reader, theirs, sample)
            except Exceeded:
                with pytest.raises(ValueError, match="the reader's type takes"):
                    codec.decode(payload)
                continue
            got = codec.decode(payload)
            assert type(got) is reader and got == expected
            key_of = codec_of(reader).key_of
            if key_of is not None:
                assert handle_of(key_of(got)) == handle_of(codec_of(writer).key_of(sample))  # type: ignore[misc]
