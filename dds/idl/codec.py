"""Codecs for IDL types: compiled for the types that allow it, the library's own for the rest.

Rules: what is written is byte for byte what `sample.serialize()` gives (without cyclonedds' final padding). A sample
that can't be encoded raises the library's error. Payloads come from other programs: every length is checked, and what
is not a sample of the type raises ValueError.
"""

from __future__ import annotations

import enum
import functools
import struct
import sys
from collections.abc import Callable
from typing import Any, get_args

from dds.idl.compiler import Evolved, compile_decoder, compile_encoder
from dds.idl.layout import (
    FixedBytes,
    Node,
    NotCompilable,
    PrimitiveArray,
    Struct,
    Text,
    describe,
    has_delimited,
    layout_of,
    place_of,
    resolve_annotations,
    size_max,
)

PARTS_MAX = 8  # of a key, that are looked for in payloads


class IdlCodec:
    """Codec of one IdlStruct or IdlUnion in one CDR version.

    type_name  as IDL writes it, with :: between modules
    type_hash  16 bytes over names, types and annotations of all members
    size_max   bytes of the largest sample, None without a bound
    version    1 or 2, of XCDR; what is read may be of either
    compiled   False if the library does the work
    layout     what samples look like, None if the library does the work
    header     encapsulation header of what is written
    key_of     sample -> hashable key of its instance; None for types without a key
    key_places  where samples in native encoding have the key, see dds.types; None if not always at the same places
    """

    kind = "object"

    def __init__(self, cls: type[Any], version: int = 0) -> None:
        """`version` 0 = what is native to the type. Raises TypeError for types that IDL can't describe."""
        resolve_annotations(cls)
        self.data_type = cls
        idl = cls.__idl__
        try:
            idl.populate()
        except TypeError:
            raise
        except Exception as error:
            raise TypeError(f"{cls.__name__} is not a type that IDL can describe: {error}") from error
        self.version: int = version or idl.default_version
        self.type_name: str = idl.idl_transformed_typename
        self.key_of: Callable[[Any], Any] | None = _key_function(cls)
        self.key_places: tuple[bytes, int, list[tuple[int, int]]] | None = None
        self.size_max: int | None = None
        self.compiled = False
        self._idl = idl
        self._delimited = False  # an earlier version of the type may end sooner, which the library can read
        self._compiled_encode: Callable[[Any], bytes] | None = None
        self._compiled_decode: Callable[[memoryview], Any] | None = None
        head = idl.xcdrv2_head if self.version == 2 else idl.xcdrv1_head
        self.header = header = bytes((0, head | 1, 0, 0))
        self.alignment_max = alignment_max = 4 if self.version == 2 else 8
        self.layout: Struct | None = None
        if sys.byteorder == "little" and hasattr(cls, "serialize_key") and not hasattr(cls, "__idl_discriminator__"):
            try:
                layout = layout_of(cls, self.version)
                self._compiled_encode = compile_encoder(layout, header, alignment_max)
                self._compiled_decode = compile_decoder(layout, header, alignment_max)
                self._delimited = has_delimited(layout)
                end = size_max(layout, 0, alignment_max)
                self.size_max = None if end is None else end + 4
                self.compiled = True
                self.layout = layout
                self.key_places = _key_places(layout, header, alignment_max)
            except NotCompilable:
                pass

    @property
    def type_hash(self) -> bytes:
        from hashlib import blake2b

        return blake2b(describe(self.data_type).encode(), digest_size=16).digest()

    def key_sample(self, key: Any) -> Any:
        """A sample with this key; its other members are None."""
        return _sample_of(self.data_type, _key_names(self.data_type), key)

    def encode(self, sample: Any) -> bytes:
        if not isinstance(sample, self.data_type):
            raise TypeError(f"{sample!r} is not of type {self.data_type.__name__}")
        if self._compiled_encode is not None:
            try:
                return self._compiled_encode(sample)
            except Exception:
                # The library knows what is wrong with the sample, or accepts what the compiled form doesn't.
                return self._by_library(sample)
        return self._by_library(sample)

    def _by_library(self, sample: Any) -> bytes:
        encoded: bytes = self._idl.serialize(sample, use_version_2=self.version == 2)
        return encoded

    def decode(self, view: Any) -> Any:
        """A sample from a memoryview or bytes. Raises ValueError if it isn't one."""
        if not isinstance(view, memoryview):
            view = memoryview(view)
        try:
            if self._compiled_decode is not None:
                try:
                    return self._compiled_decode(view)
                except Evolved:
                    pass
                except struct.error:
                    if not self._delimited:
                        raise
            if len(view) < 4:
                raise ValueError("shorter than its header")
            return self._idl.deserialize(bytes(view))
        except Exception as error:  # the library raises plain Exceptions, too
            raise ValueError(f"{len(view)} bytes are not a sample of {self.type_name}: {error}") from error


@functools.lru_cache(maxsize=256)
def codec_of(cls: type[Any], version: int = 0) -> IdlCodec:
    """The codec of a type, made once: writing and compiling its code takes some milliseconds."""
    return IdlCodec(cls, version)


def _key_function(cls: type[Any]) -> Callable[[Any], Any] | None:
    """sample -> hashable value of its key members; None for types without a key."""
    names = _key_names(cls)
    if not names:
        return None
    if len(names) == 1:
        (one,) = names
        return lambda sample: _freeze(getattr(sample, one))
    return lambda sample: tuple(_freeze(getattr(sample, name)) for name in names)


def _key_names(cls: type[Any]) -> list[str]:
    listed = getattr(cls, "__idl_annotations__", {}).get("keylist")
    if listed:
        return list(listed)
    return [name for name, one in getattr(cls, "__idl_field_annotations__", {}).items() if "key" in one]


def _key_places(layout: Struct, header: bytes, alignment_max: int) -> tuple[bytes, int, list[tuple[int, int]]] | None:
    """Where samples with this encapsulation header have their key; None if they don't all have it at one place."""
    members = dict(layout.members)
    pieces = []
    for name in _key_names(layout.cls):
        for path, count in _parts(members[name], (name,)):
            found = place_of(layout, path, alignment_max)
            if found is None:
                return None
            node, position = found
            size = 0 if isinstance(node, Text) else count * (size_max(node, 0, 1) or 0)
            pieces.append((4 + position, size))
    return (header, 0, pieces) if 0 < len(pieces) <= PARTS_MAX else None


def _parts(node: Node, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], int]]:
    """What is compared of a key member: paths, and how many elements lie there one behind the other."""
    if isinstance(node, Struct):
        members = dict(node.members)
        names = _key_names(node.cls) or list(members)
        return [part for name in names for part in _parts(members[name], (*path, name))]
    if isinstance(node, (FixedBytes, PrimitiveArray)):
        return [((*path, 0), node.length)]
    return [(path, 1)]


def _sample_of(cls: type[Any], names: list[str], key: Any) -> Any:
    """An object of an IdlStruct whose members `names` have the frozen values in `key`."""
    from cyclonedds_idl._type_normalize import get_extended_type_hints

    hints = get_extended_type_hints(cls)
    sample = object.__new__(cls)
    for name in hints:
        setattr(sample, name, None)
    for name, value in zip(names, (key,) if len(names) == 1 else key, strict=True):
        setattr(sample, name, _thaw(hints[name], value))
    return sample


def _thaw(hint: Any, value: Any) -> Any:
    """The other way round of _freeze(): a value of a member of this type."""
    from cyclonedds_idl._type_normalize import WrapOpt
    from cyclonedds_idl.types import typedef

    while isinstance(hint, (WrapOpt, typedef)):
        hint = hint.inner if isinstance(hint, WrapOpt) else hint.subtype
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next((one for one in hint if one.value == value), value)
    if isinstance(hint, type) and hasattr(hint, "__idl_field_annotations__"):
        names = _key_names(hint) or list(hint.__idl_type_annotations__)  # type: ignore[attr-defined]
        return _sample_of(hint, names, value[0] if len(names) == 1 else value)
    if isinstance(value, tuple):
        element = hint.subtype if hasattr(hint, "subtype") else (get_args(hint) or (None,))[0]
        return [_thaw(element, one) for one in value]
    return value


def _freeze(value: Any) -> Any:
    if value.__class__ in (int, str, bytes, bool, float):
        return value
    if isinstance(value, enum.Enum):
        return value.value  # samples may have the number, too
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if hasattr(value, "__idl_field_annotations__"):  # a struct in a key: its own key members, or all
        names = _key_names(type(value)) or list(type(value).__idl_type_annotations__)
        return tuple(_freeze(getattr(value, name)) for name in names)
    return value


__all__ = ["IdlCodec", "codec_of"]
