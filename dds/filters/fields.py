"""The members of a type that an expression may name: what kind they are, and how to get at their values.

A member can be had from a sample, by Python's attributes and indexes, and often from the payload, too, without decoding
it: a NumPy record has every member at a known place, CDR has those that only members of fixed size precede.

Rules: `accessor` is source text for the value in a sample called `sample`; it consists of the type's own member names
and whole numbers, nothing else of what a user wrote, and of the functions in HELPERS. Where the sample may lack the
value, `optional` is true, and evaluating the accessor may give None or raise IndexError. `place` is where the value is
in the payload.
"""

from __future__ import annotations

import dataclasses
import enum
import keyword
import typing
from typing import Any

from dds.filters.syntax import ExpressionError, Field

if typing.TYPE_CHECKING:
    from dds.codecs.types import Codec

NUMBERS = ("integer", "float")
TEXTS = ("char", "text")
DISCRIMINATOR = "discriminator"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a value is in every payload: `offset` in bytes, `code` of the struct module for little-endian bytes.

    convert  source text with {} for the unpacked value; CDR strings have code "" and lie behind their length
    """

    offset: int
    code: str
    convert: str = "{}"


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a type.

    kind      "integer", "float", "boolean", "char", "text" or "enumeration"
    accessor  source text for its value, as an int, float, bool or str; an enumeration's is its number
    optional  samples may lack it
    labels    of an enumeration: label -> number
    place     None if only decoding finds it
    """

    kind: str
    accessor: str
    optional: bool = False
    labels: dict[str, int] | None = None
    place: Place | None = None


def member(codec: Codec, field: Field) -> Member:
    """The member of the codec's type that `field` names. Raises ExpressionError if it has none that can be compared."""
    if codec.kind == "numpy":
        return _of_numpy(codec, field)
    if hasattr(codec.data_type, "__idl__"):
        return _of_idl(codec, field)
    if hasattr(codec.data_type, "DESCRIPTOR"):
        return _of_protobuf(codec, field)
    raise ExpressionError(f"samples of type {codec.type_name} have no fields that an expression could name: filter "
                          "them with a Python function")


def header(codec: Codec) -> bytes:
    """The bytes that a payload must begin with for the places of its members to hold."""
    return bytes(getattr(codec, "header", b""))


def _number_of(value: Any) -> Any:
    """Of an enumeration, also of a number that has no label, which decoding leaves as it is."""
    return getattr(value, "value", value)


def _set_field(message: Any, name: str) -> Any:
    """A field of a protobuf message that may be set or not; None if it isn't."""
    return getattr(message, name) if message.HasField(name) else None


HELPERS = {"number_of": _number_of, "set_field": _set_field}  # what accessors may call


def _attribute(accessor: str, name: str) -> str:
    """Source text for an attribute; Python's words, and letters that it would replace, need another way."""
    return f"{accessor}.{name}" if name.isascii() and not keyword.iskeyword(name) else f"getattr({accessor}, {name!r})"


def _unknown(field: Field, name: str | int, names: typing.Iterable[str], where: str) -> ExpressionError:
    if isinstance(name, int):
        return ExpressionError(f"{field}: {where} has no elements, [{name}] can't be said of it")
    known = ", ".join(names)
    return ExpressionError(f"{field}: {where} has no field {name!r}" + (f"; it has {known}" if known else ""))


def _no_value(field: Field, what: str) -> ExpressionError:
    return ExpressionError(f"{field} is {what}, which can't be compared: name a number, text, boolean or enumeration "
                           "in it")


# --- NumPy

_NUMPY_KINDS = {"b": "boolean", "i": "integer", "u": "integer", "f": "float", "S": "text", "U": "text"}
_NUMPY_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f2": "e",
                "f4": "f", "f8": "d", "b1": "?"}


def _of_numpy(codec: Codec, field: Field) -> Member:
    dtype = codec.data_type
    accessor, offset = "sample", 0
    path = list(field.path)
    if dtype.names is None:
        if path != ["value"]:
            raise ExpressionError(f"{field}: records of {dtype} have no fields; the record itself is called value")
        path, accessor = [], "sample.value"
    while path:
        step = path.pop(0)
        where = codec.type_name if accessor == "sample" else "this field"
        if isinstance(step, int):
            if dtype.subdtype is None:
                raise _unknown(field, step, (), where)
            base, shape = dtype.subdtype
            if step >= shape[0]:
                raise ExpressionError(f"{field}: the array has {shape[0]} elements, [0] to [{shape[0] - 1}]")
            dtype = base if len(shape) == 1 else _array_of(base, shape[1:])
            offset += step * dtype.itemsize
        else:
            names = dtype.names or ()
            if step not in names:
                raise _unknown(field, step, names, where)
            dtype, begin = dtype.fields[step][:2]
            offset += begin
        accessor += f"[{step!r}]"
    if dtype.subdtype is not None or dtype.names is not None:
        raise _no_value(field, "an array" if dtype.subdtype is not None else "a record")
    kind = _NUMPY_KINDS.get(dtype.kind)
    if kind is None:
        raise _no_value(field, f"a {dtype}")
    place = None
    native = dtype.newbyteorder("<") == dtype
    if dtype.kind == "S":
        accessor += ".decode('latin-1')"
        place = Place(offset, f"{dtype.itemsize}s", "{}.rstrip(b'\\0').decode('latin-1')")
    elif dtype.kind == "U":
        if native:
            place = Place(offset, f"{dtype.itemsize}s", "{}.decode('utf-32-le').rstrip('\\0')")
    else:
        accessor += ".item()"  # NumPy's float32 and uint64 compare by rules of their own
    if native and f"{dtype.kind}{dtype.itemsize}" in _NUMPY_CODES:
        place = Place(offset, _NUMPY_CODES[f"{dtype.kind}{dtype.itemsize}"])
    return Member(kind, accessor, place=place)


def _array_of(base: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.dtype((base, shape))


# --- IDL

def _of_idl(codec: Codec, field: Field) -> Member:
    from cyclonedds_idl import types as idl_types
    from cyclonedds_idl._type_normalize import WrapOpt

    from dds.idl.members import is_union

    hint: Any = codec.data_type
    accessor, optional = "sample", False
    for step in field.path:
        where = getattr(hint, "__name__", "this field")
        if isinstance(step, int):
            if isinstance(hint, idl_types.array):
                if step >= hint.length:
                    raise ExpressionError(f"{field}: the array has {hint.length} elements, [0] to [{hint.length - 1}]")
                hint = hint.subtype
            elif isinstance(hint, idl_types.sequence):
                hint, optional = hint.subtype, True
            elif typing.get_origin(hint) is list:
                hint, optional = typing.get_args(hint)[0], True
            elif hint is bytes:
                hint, optional = idl_types.uint8, True
            else:
                raise _unknown(field, step, (), where)
            accessor += f"[{step}]"
        else:
            hints = _named_in_idl(hint)
            if step not in hints:
                raise _unknown(field, step, hints, where)
            optional = optional or (is_union(hint) and step != DISCRIMINATOR)  # a sample has one of the cases
            hint = hints[step]
            accessor = _attribute(accessor, step)
        if isinstance(hint, WrapOpt):
            hint, optional = hint.inner, True
        while isinstance(hint, idl_types.typedef):
            hint = hint.subtype
    labels = None
    if hint is str or isinstance(hint, idl_types.bounded_str):
        kind = "text"
    elif hint == idl_types.char:
        kind = "char"
    elif hint is bool:
        kind = "boolean"
    elif isinstance(hint, type) and issubclass(hint, enum.Enum) and not issubclass(hint, enum.Flag):
        kind, labels = "enumeration", {one.name: int(one.value) for one in hint}
        accessor = f"number_of({accessor})"
    elif hint in _idl_numbers():
        kind = "float" if hint in (float, idl_types.float32, idl_types.float64) else "integer"
    else:
        raise _no_value(field, f"a {getattr(hint, '__name__', hint)}")
    place = None if optional else _place_in_cdr(codec, field)
    return Member(kind, accessor, optional, labels, place)


def _named_in_idl(hint: Any) -> dict[str, Any]:
    """The types of what a struct or union has, by name; nothing of what is neither. A union has its discriminator, too,
    by the name that DDS-XTypes gives it."""
    from cyclonedds_idl._type_normalize import get_extended_type_hints

    from dds.idl.members import is_struct, is_union

    if is_struct(hint):
        return dict(get_extended_type_hints(hint))
    if is_union(hint):
        cases = {name: case.subtype for name, case in get_extended_type_hints(hint).items()}
        return {DISCRIMINATOR: hint.__idl_discriminator__, **cases}
    return {}


def _idl_numbers() -> tuple[Any, ...]:
    from cyclonedds_idl import types as idl_types

    return (idl_types.int8, idl_types.int16, idl_types.int32, idl_types.int64, int, idl_types.uint8, idl_types.uint16,
            idl_types.uint32, idl_types.uint64, idl_types.byte, idl_types.float32, idl_types.float64, float)


def _place_in_cdr(codec: Codec, field: Field) -> Place | None:
    from dds.idl.layout import Enumeration, Primitive, Text, place_of

    layout = getattr(codec, "layout", None)
    found = None if layout is None else place_of(layout, field.path, codec.alignment_max)  # type: ignore[attr-defined]
    if found is None:
        return None
    node, offset = found
    if isinstance(node, Text):
        return Place(offset + 4, "")
    if isinstance(node, Enumeration):
        return Place(offset + 4, node.code)
    if isinstance(node, Primitive):
        return Place(offset + 4, "B", "chr({})") if node.code == "c" else Place(offset + 4, node.code)
    return None


# --- protobuf

def _of_protobuf(codec: Codec, field: Field) -> Member:
    from google.protobuf.descriptor import FieldDescriptor as Kind

    descriptor = codec.data_type.DESCRIPTOR
    accessor, optional, found = "sample.message", False, None
    path = list(field.path)
    where = codec.type_name
    while path:
        step = path.pop(0)
        if isinstance(step, int) or descriptor is None:
            raise _unknown(field, step, (), where)
        if step not in descriptor.fields_by_name:
            raise _unknown(field, step, descriptor.fields_by_name, where)
        found = descriptor.fields_by_name[step]
        where = step
        if found.has_presence and not found.has_default_value:  # one that isn't set is missing, not 0
            accessor, optional = f"set_field({accessor}, {step!r})", True
        else:
            accessor = _attribute(accessor, step)
        if found.is_repeated:
            if found.message_type is not None and found.message_type.GetOptions().map_entry:
                raise _no_value(field, "a map")
            if not path or not isinstance(path[0], int):
                raise _no_value(field, "a sequence")
            accessor += f"[{path.pop(0)}]"
            optional = True
        descriptor = found.message_type
    assert found is not None
    if found.message_type is not None:
        raise _no_value(field, f"a {found.message_type.name}")
    if found.cpp_type == Kind.CPPTYPE_ENUM:
        labels = {one.name: one.number for one in found.enum_type.values}
        return Member("enumeration", accessor, optional, labels)
    if found.type == Kind.TYPE_BYTES:
        raise _no_value(field, "bytes")
    kinds = {Kind.CPPTYPE_STRING: "text", Kind.CPPTYPE_BOOL: "boolean", Kind.CPPTYPE_FLOAT: "float",
             Kind.CPPTYPE_DOUBLE: "float"}
    return Member(kinds.get(found.cpp_type, "integer"), accessor, optional)


__all__ = ["NUMBERS", "TEXTS", "Member", "Place", "header", "member"]
