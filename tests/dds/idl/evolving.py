"""Types that change, for tests: versions of one type, and hypothesis strategies for types and samples at random."""

from typing import Optional

from hypothesis import strategies as st

from dds.idl import IdlEnum, make_idl_enum, make_idl_struct
from dds.idl.annotations import appendable, extensibility
from dds.idl.codec import codec_of
from dds.idl.typeobjects import class_of
from dds.idl.types import (
    array,
    bounded_str,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    sequence,
    uint8,
    uint16,
    uint32,
    uint64,
)


@appendable
class Mode(IdlEnum, typename="test.Mode"):
    auto = 0
    manual = 3


def announced(cls):
    """The class that another program makes of what is announced of this one."""
    info = codec_of(cls).info
    return class_of(info.identifier, info.mapping)


def struct(_how="appendable", _name="test.Fix", _keys=(), **members):
    """A struct with these members; a member's type may be (type, id)."""
    plain = {name: one[0] if isinstance(one, tuple) else one for name, one in members.items()}
    said = {name: {} for name in members}
    for name, one in members.items():
        if isinstance(one, tuple):
            said[name]["id"] = one[1]
        if name in _keys:
            said[name]["key"] = True
    cls = make_idl_struct(_name.split(".")[-1], _name, plain, field_annotations=said)
    return extensibility(_how)(cls)


def enumeration(_how="appendable", _name="test.Kind", **literals):
    return extensibility(_how)(make_idl_enum(_name.split(".")[-1], _name, literals))


def reader_of(cls, *others):
    """A codec of a reader that has learned what is announced of these types."""
    codec = codec_of(cls).for_reader()
    for other in others:
        assert codec.learn(codec_of(other).info.identifier, announced(other)) == ""
    return codec


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
_PRIMITIVES = {
    bool: st.booleans(), int8: st.integers(-128, 127), int16: st.integers(-(1 << 15), (1 << 15) - 1),
    int32: st.integers(-(1 << 31), (1 << 31) - 1), int64: st.integers(-(1 << 63), (1 << 63) - 1),
    uint8: st.integers(0, 255), uint16: st.integers(0, 65535), uint32: st.integers(0, (1 << 32) - 1),
    uint64: st.integers(0, (1 << 64) - 1), float32: st.floats(width=32, allow_nan=False),
    float64: st.floats(allow_nan=False), str: _text, bounded_str[5]: _text, Mode: st.sampled_from(list(Mode))}


@st.composite
def types(draw, depth=2):
    """(annotation, strategy of its values, or a function that gives it)."""
    kinds = ["primitive"] * 4 + (["sequence", "array", "struct", "optional"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "primitive":
        return draw(st.sampled_from(sorted(_PRIMITIVES.items(), key=lambda one: str(one[0]))))
    if kind == "struct":
        cls, values = draw(structs(depth - 1))
        return cls, values
    inner, values = draw(types(depth - 1))
    if kind == "optional":
        return (inner, values) if type(None) in getattr(inner, "__args__", ()) else (
            Optional[inner], st.none() | values)  # noqa: UP045  what the library reads
    if type(None) in getattr(inner, "__args__", ()):
        return inner, values
    if kind == "sequence":
        return sequence[inner], st.lists(values, max_size=3)
    if inner is uint8:
        return array[inner, 2], st.binary(min_size=2, max_size=2)
    return array[inner, 2], st.lists(values, min_size=2, max_size=2)


_names = iter(range(1 << 30))


@st.composite
def structs(draw, depth=2, how=None):
    """(class, strategy of its samples)."""
    chosen = how or draw(st.sampled_from(["final", "appendable", "mutable"]))
    members = {f"m{number}": draw(types(depth)) for number in range(draw(st.integers(1, 4)))}
    cls = struct(chosen, f"test.S{next(_names)}", **{name: one[0] for name, one in members.items()})
    return cls, st.builds(cls, **{name: one[1] for name, one in members.items()})


@st.composite
def evolved(draw):
    """(older class, samples of it, newer class, samples of it): the newer one has more members, and the older one's."""
    how = draw(st.sampled_from(["appendable", "mutable"]))
    older = {f"m{number}": draw(types()) for number in range(draw(st.integers(1, 3)))}
    more = {f"n{number}": draw(types()) for number in range(draw(st.integers(1, 3)))}
    newer = {**older, **more}
    if how == "mutable":
        newer = dict(draw(st.permutations([*newer.items()])))
    numbers = {name: place for place, name in enumerate([*older, *more])}
    made = []
    for members in (older, newer):
        cls = struct(how, "test.Evolved", **{name: (one[0], numbers[name]) for name, one in members.items()})
        made += [cls, st.builds(cls, **{name: one[1] for name, one in members.items()})]
    return tuple(made)
