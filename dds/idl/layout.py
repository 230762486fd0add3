"""What an IdlStruct looks like in CDR: a tree of nodes, from which codecs, bounds and type hashes are made.

Why a tree of our own: the library walks a machine per member for every sample. The same facts, once in a tree, let
`dds.idl.compiler` write straight Python for the type, and tell how large a sample can become.

Rules: the encodings are XCDR1 and XCDR2 as DDS-XTypes 1.3, 7.4 defines them and as `cyclonedds_idl` writes them. What
has no node here (unions, maps, bit masks, mutable types, optional members in XCDR1, recursion) raises NotCompilable,
and the library encodes it. Sizes and alignments are bytes; positions count from behind the 4-byte encapsulation header.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import typing
from typing import Any

from cyclonedds_idl import IdlEnum, IdlStruct
from cyclonedds_idl import types as idl_types

_CODES = {
    idl_types.int8: "b", idl_types.int16: "h", idl_types.int32: "i", idl_types.int64: "q", int: "q",
    idl_types.uint8: "B", idl_types.uint16: "H", idl_types.uint32: "I", idl_types.uint64: "Q", idl_types.byte: "B",
    idl_types.float32: "f", idl_types.float64: "d", float: "d", idl_types.wchar: "h", bool: "?"}
_SIZES = {"b": 1, "h": 2, "i": 4, "q": 8, "B": 1, "H": 2, "I": 4, "Q": 8, "f": 4, "d": 8, "?": 1}


class NotCompilable(Exception):
    """The type has a part that only the library encodes; the text says which."""


@dataclasses.dataclass
class Node:
    """One member or element."""


@dataclasses.dataclass
class Primitive(Node):
    code: str  # of the struct module; "c" for an IDL char

    @property
    def size(self) -> int:
        return 1 if self.code == "c" else _SIZES[self.code]


@dataclasses.dataclass
class Enumeration(Node):
    cls: type[enum.Enum]
    code: str = "I"


@dataclasses.dataclass
class Text(Node):
    bound: int | None = None  # characters


@dataclasses.dataclass
class Blob(Node):
    """`bytes`: a length and raw bytes."""


@dataclasses.dataclass
class FixedBytes(Node):
    """array[uint8, n]: raw bytes."""

    length: int


@dataclasses.dataclass
class PrimitiveArray(Node):
    code: str
    length: int


@dataclasses.dataclass
class PrimitiveSequence(Node):
    code: str
    bound: int | None = None


@dataclasses.dataclass
class Array(Node):
    element: Node
    length: int
    header: bool  # a size in front (XCDR2)


@dataclasses.dataclass
class Sequence(Node):
    element: Node
    bound: int | None
    header: bool


@dataclasses.dataclass
class OptionalValue(Node):
    """XCDR2: a flag in front."""

    value: Node


@dataclasses.dataclass
class Struct(Node):
    cls: type[Any]
    members: list[tuple[str, Node]]
    delimited: bool  # a size in front (appendable, XCDR2)


def resolve_annotations(cls: type[Any], seen: set[type[Any]] | None = None) -> None:
    """Turn annotations that the library doesn't know into ones that it does, here and in members: strings (`from
    __future__ import annotations`) into types, `T | None` into Optional[T].

    Raises TypeError if a name is unknown, or a field can't be given to the class, as whoever decodes a sample does.
    """
    seen = set() if seen is None else seen
    if cls in seen:
        return
    seen.add(cls)
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if not field.init:
            raise TypeError(f"{cls.__name__}.{field.name} has init=False: no reader could make a sample with it; "
                            "give it a default instead")
    if sys.version_info >= (3, 14):
        try:
            annotations = cls.__annotations__  # made when first asked for, in no __dict__ before, and never a base's
        except NameError as error:
            raise TypeError(f"a member type of {cls.__name__} can't be resolved: {error}") from None
    else:
        annotations = cls.__dict__.get("__annotations__", {})  # noqa: RUF063  changed in place, below
    if any(isinstance(one, str) for one in annotations.values()):
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except NameError as error:
            raise TypeError(f"a member type of {cls.__name__} can't be resolved: {error}") from None
        for name in annotations:
            annotations[name] = hints[name]
    for name, one in annotations.items():
        if isinstance(one, types.UnionType):
            annotations[name] = typing.Union[typing.get_args(one)]  # noqa: UP007  made from a tuple
    for one in annotations.values():
        for part in (one, *typing.get_args(one)):
            if isinstance(part, type) and issubclass(part, IdlStruct):
                resolve_annotations(part, seen)


def layout_of(cls: type[Any], version: int, _open: tuple[type[Any], ...] = ()) -> Struct:
    """The tree of an IdlStruct in CDR `version` 1 or 2. Raises NotCompilable, or TypeError for what IDL can't have."""
    from cyclonedds_idl._type_normalize import get_extended_type_hints, get_idl_annotations

    if cls in _open:
        raise NotCompilable(f"{cls.__name__} contains itself")
    extensibility = get_idl_annotations(cls).get("extensibility", "final")
    if extensibility == "mutable":
        raise NotCompilable(f"{cls.__name__} is mutable")
    members = [(name, _node(hint, version, (*_open, cls))) for name, hint in get_extended_type_hints(cls).items()]
    if not members:
        raise NotCompilable(f"{cls.__name__} has no members")
    return Struct(cls, members, delimited=version == 2 and extensibility == "appendable")


def _node(hint: Any, version: int, open_types: tuple[type[Any], ...]) -> Node:
    from cyclonedds_idl._type_normalize import WrapOpt, get_idl_annotations

    if hint is str:
        return Text()
    if hint is bytes:
        return Blob()
    if hint == idl_types.char:
        return Primitive("c")
    if isinstance(hint, typing.Hashable) and hint in _CODES:
        return Primitive(_CODES[hint])
    if isinstance(hint, WrapOpt):
        if version == 1:
            raise NotCompilable("an optional member in XCDR1")
        return OptionalValue(_node(hint.inner, version, open_types))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        bits = get_idl_annotations(hint).get("bit_bound") if issubclass(hint, IdlEnum) else None
        if bits is not None and version == 2:
            if bits not in (8, 16, 32, 64):
                raise NotCompilable(f"an enum of {bits} bits")
            return Enumeration(hint, {8: "B", 16: "H", 32: "I", 64: "Q"}[bits])
        return Enumeration(hint)
    if isinstance(hint, type) and issubclass(hint, IdlStruct):
        return layout_of(hint, version, open_types)
    if isinstance(hint, idl_types.typedef):
        return _node(hint.subtype, version, open_types)
    if isinstance(hint, idl_types.bounded_str):
        return Text(hint.max_length)
    if isinstance(hint, idl_types.array):
        return _array(_node(hint.subtype, version, open_types), hint.length, version)
    if isinstance(hint, idl_types.sequence):
        element = _node(hint.subtype, version, open_types)
        if isinstance(element, Primitive):
            if element.code == "c":
                return Sequence(element, hint.max_length, header=False)
            return PrimitiveSequence(element.code, hint.max_length)
        return Sequence(element, hint.max_length, header=version == 2)
    if typing.get_origin(hint) is list:
        return Sequence(_node(typing.get_args(hint)[0], version, open_types), None, header=version == 2)
    raise NotCompilable(f"a member of type {hint}")


def _array(element: Node, length: int, version: int) -> Node:
    if isinstance(element, Primitive) and element.code == "B":
        return FixedBytes(length)
    if isinstance(element, Primitive) and element.code != "c":
        return PrimitiveArray(element.code, length)
    innermost = element
    while isinstance(innermost, Array):  # only the outermost array says its size
        innermost.header = False
        innermost = innermost.element
    plain = isinstance(innermost, (FixedBytes, PrimitiveArray)) or innermost == Primitive("c")
    return Array(element, length, header=version == 2 and not plain)


def has_delimited(node: Node) -> bool:
    """True if some struct in it says its size, so that another version of the type can be told and read."""
    if isinstance(node, Struct):
        return node.delimited or any(has_delimited(member) for _, member in node.members)
    if isinstance(node, (Array, Sequence)):
        return has_delimited(node.element)
    return isinstance(node, OptionalValue) and has_delimited(node.value)


# ---- sizes

def align(position: int, alignment: int) -> int:
    return (position + alignment - 1) & -alignment


def size_max(node: Node, position: int, alignment_max: int) -> int | None:
    """Largest position behind `node` when it starts at `position`; None if there is no bound."""
    if isinstance(node, Primitive):
        return align(position, min(node.size, alignment_max)) + node.size
    if isinstance(node, Enumeration):
        size = _SIZES[node.code]
        return align(position, min(size, alignment_max)) + size
    if isinstance(node, Text):
        return None if node.bound is None else align(position, 4) + 4 + 4 * node.bound + 1  # UTF-8: up to 4 bytes each
    if isinstance(node, Blob):
        return None
    if isinstance(node, FixedBytes):
        return position + node.length
    if isinstance(node, PrimitiveArray):
        size = _SIZES[node.code]
        return align(position, min(size, alignment_max)) + size * node.length
    if isinstance(node, PrimitiveSequence):
        if node.bound is None:
            return None
        size = _SIZES[node.code]
        return align(align(position, 4) + 4, min(size, alignment_max)) + size * node.bound
    if isinstance(node, (Array, Sequence)):
        sequence = isinstance(node, Sequence)
        count = node.bound if isinstance(node, Sequence) else node.length
        if count is None:
            return None
        place = position
        if sequence or node.header:
            place = align(position, 4) + 4 * (int(sequence) + int(node.header))
        seen: dict[int, tuple[int, int]] = {}  # position modulo 8 -> elements left there, and where
        while count:
            before = seen.setdefault(place % 8, (count, place))
            if before[0] > count:  # alignment repeats: so does what this many elements take
                period, size = before[0] - count, place - before[1]
                place, count = place + count // period * size, count % period
                seen.clear()
                if not count:
                    break
            after = size_max(node.element, place, alignment_max)
            if after is None:
                return None
            place, count = after, count - 1
        return place
    if isinstance(node, OptionalValue):
        return size_max(node.value, position + 1, alignment_max)
    if isinstance(node, Struct):
        at: int | None = align(position, 4) + 4 if node.delimited else position
        for _, member in node.members:
            at = size_max(member, at, alignment_max) if at is not None else None
        return at
    raise AssertionError(node)


def place_of(node: Node, path: tuple[str | int, ...], alignment_max: int) -> tuple[Node, int] | None:
    """The member at `path` in a Struct, and where it begins in every sample; None if samples differ in that.

    It begins at its alignment; a Text begins with its length.
    """
    position = 0
    for depth, step in enumerate(path):
        if isinstance(node, Struct):
            if node.delimited:
                if depth:  # one of an older version may end earlier, and what follows it stand in the member's place
                    return None
                position = 4
            for name, one in node.members:
                if name == step:
                    break
                if not _is_fixed(one):
                    return None
                position = size_max(one, position, alignment_max) or 0
            else:
                return None
            node = one
        elif isinstance(step, int) and isinstance(node, (FixedBytes, PrimitiveArray)):
            element = Primitive("B" if isinstance(node, FixedBytes) else node.code)
            if step >= node.length:
                return None
            position = align(position, min(element.size, alignment_max)) + step * element.size
            node = element
        elif isinstance(step, int) and isinstance(node, Array) and _is_fixed(node.element) and step < node.length:
            if node.header:
                position = align(position, 4) + 4
            for _ in range(step):
                position = size_max(node.element, position, alignment_max) or 0
            node = node.element
        else:
            return None
    if isinstance(node, (Primitive, Enumeration)):
        return node, align(position, min(_SIZES.get(node.code, 1), alignment_max))
    return (node, align(position, 4)) if isinstance(node, Text) else None


def _is_fixed(node: Node) -> bool:
    """True if it takes as many bytes in every sample, also in those of other versions of the type."""
    if isinstance(node, Struct):
        return not node.delimited and all(_is_fixed(member) for _, member in node.members)
    if isinstance(node, Array):
        return _is_fixed(node.element)
    return isinstance(node, (Primitive, Enumeration, FixedBytes, PrimitiveArray))


def describe(cls: type[Any], _open: tuple[type[Any], ...] = ()) -> str:
    """One line of text that is the same for types that understand each other's samples: names, types, annotations."""
    from cyclonedds_idl._type_normalize import get_extended_type_hints, get_idl_annotations, get_idl_field_annotations

    if cls in _open:
        return f"<{cls.__idl_typename__}>"
    annotations = sorted((k, repr(v)) for k, v in get_idl_annotations(cls).items())
    fields = get_idl_field_annotations(cls)
    members = [
        f"{name}:{_describe_hint(hint, (*_open, cls))}{sorted((k, repr(v)) for k, v in fields.get(name, {}).items())}"
        for name, hint in get_extended_type_hints(cls).items()]
    extra = ""
    if hasattr(cls, "__idl_discriminator__"):
        extra = f" switch {_describe_hint(cls.__idl_discriminator__, (*_open, cls))}"
    return f"{cls.__idl_typename__}{extra}{annotations}({';'.join(members)})"


def _describe_hint(hint: Any, open_types: tuple[type[Any], ...]) -> str:
    from cyclonedds_idl._type_normalize import WrapOpt

    if isinstance(hint, WrapOpt):
        return f"optional[{_describe_hint(hint.inner, open_types)}]"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"enum {hint.__name__}{[(one.name, one.value) for one in hint]}"
    if isinstance(hint, type) and hasattr(hint, "__idl_typename__"):
        return describe(hint, open_types)
    if isinstance(hint, idl_types.typedef):
        return _describe_hint(hint.subtype, open_types)
    if isinstance(hint, idl_types.array):
        return f"array[{_describe_hint(hint.subtype, open_types)},{hint.length}]"
    if isinstance(hint, idl_types.sequence):
        return f"sequence[{_describe_hint(hint.subtype, open_types)},{hint.max_length}]"
    if isinstance(hint, idl_types.bounded_str):
        return f"str[{hint.max_length}]"
    if isinstance(hint, (idl_types.case, idl_types.default)):
        labels = getattr(hint, "labels", "default")
        return f"case {labels} {_describe_hint(hint.subtype, open_types)}"
    if isinstance(hint, typing.Hashable) and hint in _CODES:
        return _CODES[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (list, dict):
        inner = ",".join(_describe_hint(one, open_types) for one in arguments)
        return f"{typing.get_origin(hint).__name__}[{inner}]"
    return hint.__name__ if isinstance(hint, type) else repr(hint)
