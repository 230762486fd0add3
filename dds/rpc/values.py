"""Python values of annotated types as CDR: arguments and results of calls, errors, and what replicated objects keep.

The types are those that members of an IdlStruct may have, `bytes`, and what Python programs use beside them:

| annotation | in CDR |
|---|---|
| `bool`, `int` (64 bits), `float`, `str`, `bytes`, the numbers of `dds.idl.types` | as in an IdlStruct |
| IdlStruct, IdlUnion, IdlEnum, IdlBitmask; `array`, `sequence`, `bounded_str` | as in an IdlStruct |
| `list[T]`, `Sequence[T]`, `tuple[T, ...]` | a sequence |
| `set[T]`, `frozenset[T]` | a sequence, sorted, so that equal sets have equal bytes |
| `tuple[A, B]` | a struct |
| `dict[K, V]`, `Mapping[K, V]` | a sequence of pairs, in the dictionary's order |
| `T | None` | a sequence of no or one element |
| `None` | nothing |

Why not pickle: who unpickles bytes of another program runs whatever that program wants.

Rules: encoding raises TypeError or ValueError for values of other types, decoding ValueError for other bytes. Equal
values have equal bytes.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence

from spindle.errors import give_way

if typing.TYPE_CHECKING:
    from dds.idl.codec import IdlCodec

Value = typing.Any  # of an annotated type that only its caller knows
Convert = Callable[[Value], Value]

_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Iterable)
_SORTABLE = (bool, int, float, str, bytes)
_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


@dataclasses.dataclass(frozen=True)
class Shape:
    """How values of one annotation go into a member of an IdlStruct; `into` and `out` None = as they are. `sortable`:
    what goes into it has one order, by `<`."""

    member: Value
    into: Convert | None = None
    out: Convert | None = None
    sortable: bool = False


class Fields:
    """Values in a row, each of its own type: the arguments of a call, the fields of a state.

    name    of the struct
    fields  name -> annotation, resolved
    Raises TypeError for an annotation that has no CDR; the text names the field.
    """

    def __init__(self, name: str, fields: Mapping[str, Value]) -> None:
        self.names = tuple(fields)
        self._shapes: list[Shape] = []
        for field, annotation in fields.items():
            try:
                self._shapes.append(shape_of(annotation, f"{name}_{field}"))
            except TypeError as error:
                raise TypeError(f"{name}: {field}: {error}") from None
        self._into = [(k, one.into) for k, one in enumerate(self._shapes) if one.into is not None]
        self._out = [(k, one.out) for k, one in enumerate(self._shapes) if one.out is not None]
        # Members are numbered, so that the fields may have names that IdlStruct has itself.
        self._members = [f"m{k}" for k in range(len(self.names))]
        self._codec = _codec_of(name, dict(zip(self._members, (one.member for one in self._shapes), strict=True)))

    @functools.cached_property
    def signature(self) -> bytes:
        """8 bytes that differ where the types do, or the names of the fields."""
        from hashlib import blake2b

        text = " ".join(self.names).encode()
        return blake2b(text + (b"" if self._codec is None else self._codec.type_hash), digest_size=8).digest()

    def encode(self, values: Sequence[Value]) -> bytes:
        """TypeError or ValueError for values that these fields can't have."""
        if self._codec is None:
            return b""
        if self._into:
            given = list(values)
            for k, into in self._into:
                given[k] = self._converted(k, into, given[k])
            values = given
        try:
            return self._codec.encode(self._codec.data_type(*values))
        except Exception as error:  # the library raises what it likes
            give_way(error)
            raise self._wrong(values, error) from error

    def _converted(self, k: int, into: Convert, value: Value) -> Value:
        try:
            return into(value)
        except Exception as error:
            give_way(error)
            raise TypeError(f"{self.names[k]}: {value!r:.200}: {error}") from error

    def _wrong(self, values: Sequence[Value], error: Exception) -> TypeError:
        """Which of the values it is that can't be encoded."""
        from dds.idl.members import unencodable

        for name, shape, value in zip(self.names, self._shapes, values, strict=True):
            alone = _codec_of("Alone", {"m0": shape.member})
            assert alone is not None
            try:
                sample = alone.data_type(value)
                alone.encode(sample)
            except Exception as why:
                give_way(why)
                said = unencodable(sample, why.__cause__ or why)
                if said.startswith("m0"):
                    return TypeError(name + said[2:])
                return TypeError(f"{name}: {value!r:.200}: {_text(why)}")
        return TypeError(_text(error))

    def decode(self, data: bytes | memoryview) -> list[Value]:
        """ValueError for what encode() never makes."""
        if self._codec is None:
            if data:
                raise ValueError(f"{len(data)} bytes where none are expected")
            return []
        sample = self._codec.decode(data)
        values = [getattr(sample, name) for name in self._members]
        try:
            for k, out in self._out:
                values[k] = out(values[k])
        except Exception as error:
            give_way(error)
            raise ValueError(f"no {self.names[k]}: {error}") from error
        return values


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _codec_of(name: str, members: dict[str, Value]) -> IdlCodec | None:
    """None for a struct without members, which IDL doesn't have."""
    if not members:
        return None
    from dds.idl.codec import IdlCodec

    # XCDR2, in which optional members and unions have a form of their own.
    return IdlCodec(_struct(name, members), 2)


def _struct(name: str, members: dict[str, Value]) -> type[Value]:
    from cyclonedds_idl import make_idl_struct

    made: type[Value] = make_idl_struct(name, name, members)
    return made


def shape_of(annotation: Value, name: str) -> Shape:
    """TypeError for an annotation that is none of this module's table. `name` is for structs that stand for it."""
    from dds.idl import types as idl_types

    origin: Value = typing.get_origin(annotation)
    arguments: tuple[Value, ...] = typing.get_args(annotation)
    if annotation in (None, type(None)):
        raise TypeError("None is no type of an argument")
    if origin in (typing.Union, types.UnionType):
        return _optional(annotation, arguments, name)
    if origin is typing.Annotated:
        return Shape(annotation, sortable=arguments[0] in _SORTABLE)
    if origin in _LISTS or (origin is tuple and arguments[1:] == (...,)):
        back = tuple if origin is tuple else None
        return _sequence(shape_of(arguments[0], name), None if back is None else list, back)
    if origin in _SETS:
        inner = shape_of(arguments[0], name)
        return _sequence(inner, sorted if inner.sortable else _by_bytes(inner.member),
                         frozenset if origin is frozenset else set)
    if origin in _DICTS:
        return _dictionary(arguments[0], arguments[1], name)
    if origin is tuple and arguments and arguments != ((),):
        return _tuple(arguments, name)
    if hasattr(annotation, "__idl__"):
        from dds.idl.layout import resolve_annotations

        resolve_annotations(annotation)
    if isinstance(annotation, type) and (
            annotation in (bool, int, float, str, bytes) or hasattr(annotation, "__idl__")
            or annotation.__module__.startswith("cyclonedds_idl")):
        return Shape(annotation, sortable=annotation in _SORTABLE)
    if isinstance(annotation, (idl_types.typedef,)) or getattr(
            type(annotation), "__module__", "").startswith("cyclonedds_idl"):
        return Shape(annotation)
    raise TypeError(f"{annotation!r} is no type that can be sent: see dds.rpc.values for those that can")


def _sequence(inner: Shape, into: Convert | None, out: Convert | None) -> Shape:
    one_in, one_out = inner.into, inner.out

    def convert(values: Value) -> Value:
        if isinstance(values, (str, bytes)):
            raise TypeError("a list is expected")
        values = values if one_in is None else [one_in(value) for value in values]
        return list(values) if into is None else into(values)

    def back(values: Value) -> Value:
        values = values if one_out is None else [one_out(value) for value in values]
        return values if out is None else out(values)

    return Shape(_sequence_of(inner.member), convert, None if one_out is None and out is None else back, inner.sortable)


def _by_bytes(member: Value) -> Convert:
    """Sorts what goes into such a member by its CDR: of tuples, structs and None, `<` says nothing."""

    @functools.cache
    def codec() -> IdlCodec:
        made = _codec_of("Element", {"m0": member})
        assert made is not None
        return made

    def bytes_of(value: Value) -> bytes:
        return codec().encode(codec().data_type(value))

    return lambda values: sorted(values, key=bytes_of)


def _sequence_of(element: Value) -> Value:
    from dds.idl import types as idl_types

    return idl_types.sequence.__class_getitem__(element)


def _optional(annotation: Value, arguments: tuple[Value, ...], name: str) -> Shape:
    left = [one for one in arguments if one is not type(None)]
    if len(left) != 1 or len(left) == len(arguments):
        raise TypeError(f"{annotation!r} may be one of several types: use an IdlUnion")
    listed = _sequence(shape_of(left[0], name), None, None)
    assert listed.into is not None
    into, out = listed.into, listed.out

    def back(values: Value) -> Value:
        if len(values) > 1:
            raise ValueError(f"{len(values)} values where at most one is expected")
        return None if not values else (values if out is None else out(values))[0]

    return Shape(listed.member, lambda value: [] if value is None else into([value]), back)


def _row(shapes: Sequence[Shape], name: str) -> tuple[type[Value], Convert, Convert]:
    """A struct of as many members, and how a tuple becomes one and back."""
    names = [f"m{k}" for k in range(len(shapes))]
    cls = _struct(name, dict(zip(names, (one.member for one in shapes), strict=True)))

    def into(values: Value) -> Value:
        if len(values) != len(shapes):
            raise TypeError(f"{len(shapes)} values are expected, not {len(values)}")
        return cls(*(value if one.into is None else one.into(value)
                     for one, value in zip(shapes, values, strict=True)))

    def out(row: Value) -> Value:
        found = (getattr(row, field) for field in names)
        return tuple(value if one.out is None else one.out(value) for one, value in zip(shapes, found, strict=True))

    return cls, into, out


def _tuple(arguments: tuple[Value, ...], name: str) -> Shape:
    cls, into, out = _row([shape_of(one, f"{name}_{k}") for k, one in enumerate(arguments)], f"{name}_row")
    return Shape(cls, into, out)


def _dictionary(key: Value, value: Value, name: str) -> Shape:
    cls, into, out = _row([shape_of(key, f"{name}_key"), shape_of(value, f"{name}_value")], f"{name}_pair")
    return Shape(_sequence_of(cls), lambda pairs: [into(pair) for pair in pairs.items()],
                 lambda pairs: dict(map(out, pairs)))


__all__ = ["Fields", "Shape", "shape_of"]
