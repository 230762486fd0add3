"""Codecs for IDL types: compiled for the types that allow it, the library's own for the rest.

Each payload says of which type it is: the two bytes of options in its encapsulation header, which CDR leaves unused and
readers of plain CDR pass over, hold a mark of the writer's type. So a reader knows what it has, whoever wrote it and
whatever it has heard of the writer. It decodes its own type at full speed, and a type that it has learned (`learn`) by
that type, converted to its own.

Rules: what is written is byte for byte what `sample.serialize()` gives (without cyclonedds' final padding), but for the
mark. A sample that can't be encoded raises ValueError, which names the member. Payloads come from other programs: every
length is checked, and what is not a sample of the type raises ValueError.
"""

from __future__ import annotations

import copy
import enum
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

from cyclonedds_idl import IdlUnion

from dds.idl.compiler import Evolved, compile_decoder, compile_encoder
from dds.idl.conversion import conversion
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
from dds.idl.members import (
    Unencodable,
    bare,
    default_of,
    discriminator,
    extensibility,
    is_enum,
    is_struct,
    is_union,
    key_members,
    members,
    unencodable,
)
from dds.idl.typeobjects import TypeInfo, type_info
from spindle.errors import give_way

EVOLVING = b"~xtypes\0\0"  # in front of the type hashes of types that may differ in one topic, see TopicSpec
LEARNED_MAX = 256  # other types than its own that one reader knows
PARTS_MAX = 8  # of a key, that are looked for in payloads
XCDR2_MIN = 6  # of a header's second byte: the first encoding of XCDR2


class IdlCodec:
    """Codec of one IdlStruct or IdlUnion in one CDR version.

    type_name  as IDL writes it, with :: between modules
    type_hash  EVOLVING and the identifier; 16 bytes over names, types and annotations of all members if there is none
    info       identifier and type object, None for a type that XTypes can't describe: all its readers and writers have
               the same
    mark       2 bytes in each payload, which tell its type from others
    size_max   bytes of the largest sample, None without a bound
    version    1 or 2, of XCDR; what is read may be of either
    compiled   False if the library does the work
    layout     what samples look like, None if the library does the work
    header     encapsulation header of what is written
    key_of     sample -> hashable key of its instance; None for types without a key
    key_places  where samples in native encoding have the key, see dds.codecs.types; None if not always at the same
    places
    encode_key  key -> a sample with it and the default of all other members; None for a type without a key, or one
    with a default that can't be encoded
    """

    kind = "object"
    def __init__(self, cls: type[Any], version: int = 0) -> None:
        """`version` 0 = what is native to the type. Raises TypeError for types that IDL can't describe."""
        resolve_annotations(cls)
        self.data_type: Any = cls
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
        self.info: TypeInfo | None = type_info(cls)
        self.mark = mark_of(self.type_hash if self.info is None else self.info.identifier)
        # By marks: identifiers, and what to do with payloads.
        self._learned: dict[bytes, tuple[bytes, Callable[[memoryview], Any]]] = {}
        self._normal: Callable[[Any], Any] | None = None
        self._seek: Callable[[], object] | None = None
        self._sought: set[bytes] = set()  # marks
        head = idl.xcdrv2_head if self.version == 2 else idl.xcdrv1_head
        self.header = header = bytes((0, head | 1)) + self.mark
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

        if self.info is not None:
            return EVOLVING + self.info.identifier
        return blake2b(describe(self.data_type).encode(), digest_size=16).digest()

    def for_reader(self, seek: Callable[[], object] | None = None) -> IdlCodec:
        """A codec of the same type that learns other types for itself. It calls seek() when it meets one that it has
        not heard of, once for each: whoever knows the type calls learn()."""
        mine = copy.copy(self)
        mine._learned, mine._sought, mine._seek = {}, set(), seek
        return mine

    def knows(self, identifier: bytes) -> bool:
        """True if it is this one's own type, or was learned."""
        learned = self._learned.get(mark_of(identifier))
        return (self.info is not None and self.info.identifier == identifier) or (
            learned is not None and learned[0] == identifier)

    def learn(self, identifier: bytes, cls: Any, why: str = "") -> str:
        """What to do with payloads of the type with this identifier: convert them from `cls`, or refuse them because of
        `why` (`cls` None). Returns why it can't be learned; "" if it was.
        """
        mark = mark_of(identifier)
        known = self._learned.get(mark)
        if mark == self.mark or (known is not None and known[0] != identifier):
            return (f"its payloads have the mark {mark.hex()}, as those of another type of the topic: change the name "
                    "of a member, say")
        if known is None and len(self._learned) >= LEARNED_MAX:
            return f"this reader knows {LEARNED_MAX} types of other writers, which is the limit"
        if cls is None:
            self._learned[mark] = identifier, _refusing(why)
            return ""
        decode, convert = codec_of(cls).decode, conversion(self.data_type, cls)
        self._learned[mark] = identifier, lambda view: convert(decode(view))
        return ""

    def key_sample(self, key: Any) -> Any:
        """A sample with this key; its other members have their types' defaults, or are None where the type has none."""
        other = default_of if self._has_default else _none
        return _sample_of(self.data_type, _key_names(self.data_type), key, other)

    @functools.cached_property
    def _has_default(self) -> bool:
        try:
            self.encode(default_of(self.data_type))
        except Exception:
            return False
        return True

    @functools.cached_property
    def encode_key(self) -> Callable[[Any], bytes] | None:
        return self._encode_key if self._has_default and self.key_of is not None else None

    def _encode_key(self, key: Any) -> bytes:
        return self.encode(_sample_of(self.data_type, _key_names(self.data_type), key, default_of))

    def encode(self, sample: Any) -> bytes:
        if not isinstance(sample, self.data_type):
            raise TypeError(f"{sample!r} is not of type {self.data_type.__name__}")
        if self._compiled_encode is not None:
            try:
                return self._compiled_encode(sample)
            except Exception as error:
                give_way(error)
                # The library knows what is wrong with the sample, or accepts what the compiled form doesn't.
                return self._by_library(sample)
        return self._by_library(sample)

    def _by_library(self, sample: Any) -> bytes:
        try:
            encoded: bytes = self._idl.serialize(sample, use_version_2=self.version == 2)
        except Exception as error:  # the library raises plain Exceptions, from what really happened
            give_way(error)
            raise Unencodable(
                f"a sample of {self.type_name} can't be encoded: {unencodable(sample, error)}") from error
        return encoded[:2] + self.mark + encoded[4:]

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
            return self._decode_other(view)
        except Exception as error:  # the library raises plain Exceptions, too
            give_way(error)
            raise ValueError(f"{len(view)} bytes are not a sample of {self.type_name}: {error}") from error

    decode_lasting = decode

    def _decode_other(self, view: memoryview) -> Any:
        """What the compiled form doesn't read: another encoding, or another type."""
        if len(view) < 4:
            raise ValueError("shorter than its header")
        mark = bytes(view[2:4])
        if mark not in (self.mark, NO_MARK):
            learned = self._learned.get(mark)
            if learned is None and self._seek is not None and mark not in self._sought and (
                    len(self._sought) < LEARNED_MAX):
                self._sought.add(mark)
                self._seek()
                learned = self._learned.get(mark)
            if learned is not None:
                return learned[1](view)
            # From before types were kept, say. XCDR2 tells where the parts of such types end.
            if view[1] < XCDR2_MIN or extensibility(self.data_type) == "final" or self.info is None:
                raise ValueError(f"it is of another type (mark {mark.hex()}), which no writer here has announced and "
                                 "no node has kept")
            if self._normal is None:
                self._normal = conversion(self.data_type, self.data_type)
            return self._normal(self._idl.deserialize(bytes(view)))  # the library fills in numbers for literals
        return self._idl.deserialize(bytes(view))


NO_MARK = b"\0\0"  # of what another program has encoded


def mark_of(identifier: bytes) -> bytes:
    """2 bytes for a type. The last 2 bits are 0: CDR counts padding there."""
    from hashlib import blake2b

    first, second = blake2b(identifier, digest_size=2).digest()
    return bytes((first, second & 0xFC)) if first or second & 0xFC else b"\1\0"


def _refusing(why: str) -> Callable[[memoryview], Any]:
    def refuse(view: memoryview) -> Any:
        raise ValueError(why)

    return refuse


@functools.lru_cache(maxsize=256)
def codec_of(cls: Any, version: int = 0) -> IdlCodec:
    """The codec of a type, made once: writing and compiling its code takes some milliseconds."""
    return IdlCodec(cls, version)


def _key_function(cls: Any) -> Callable[[Any], Any] | None:
    """sample -> hashable value of its key members; None for types without a key."""
    names = _key_names(cls)
    if not names:
        return None
    if len(names) == 1:
        (one,) = names
        return lambda sample: _freeze(getattr(sample, one))
    return lambda sample: tuple(_freeze(getattr(sample, name)) for name in names)


@functools.lru_cache(maxsize=512)
def _key_names(cls: Any, nested: bool = False) -> tuple[str, ...]:
    """Attributes of the key members, by their ids: a type may change the order of its members, and what a key is must
    not. Of a struct within a key without key members: all."""
    found = key_members(cls)
    return tuple(one.attribute for one in found if one.key or nested)


def _key_places(layout: Struct, header: bytes, alignment_max: int) -> tuple[bytes, int, list[tuple[int, int]]] | None:
    """Where samples with this encapsulation header have their key; None if they don't all have it at one place."""
    members = dict(layout.members)
    pieces = []
    cls: Any = layout.cls
    for name in _key_names(cls):
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
        cls: Any = node.cls
        names = _key_names(cls, True)
        return [part for name in names for part in _parts(members[name], (*path, name))]
    if isinstance(node, (FixedBytes, PrimitiveArray)):
        return [((*path, 0), node.length)]
    return [(path, 1)]


def _none(_hint: Any, _optional: bool = False) -> None:
    return None


def _sample_of(cls: type[Any], names: Sequence[str], key: Any, other: Callable[[Any, bool], Any]) -> Any:
    """An object of an IdlStruct whose members `names` have the frozen values in `key`, and the others, here and within
    the key, other(type, whether it is optional)."""
    found = members(cls)
    sample, hints = object.__new__(cls), {one.attribute: one.hint for one in found}
    for one in found:
        if one.attribute not in names:
            setattr(sample, one.attribute, other(one.hint, one.optional))
    for name, value in zip(names, (key,) if len(names) == 1 else key, strict=True):
        setattr(sample, name, _thaw(hints[name], value, other))
    return sample


def _thaw(hint: Any, value: Any, other: Callable[[Any, bool], Any]) -> Any:
    """The other way round of _freeze(): a value of a member of this type."""
    hint = bare(hint)[0]
    if is_struct(hint):
        names = _key_names(hint, True)
        return _sample_of(hint, names, value[0] if len(names) == 1 else value, other)
    if is_union(hint):
        return hint(discriminator=_thaw(discriminator(hint), value[0], other), value=value[1])
    if is_enum(hint):
        return next((one for one in hint if one.value == value), value)
    if isinstance(value, tuple):
        element = hint.subtype if hasattr(hint, "subtype") else (get_args(hint) or (None,))[0]
        return [_thaw(element, one, other) for one in value]
    return value


def _freeze(value: Any) -> Any:
    """A value of a key as one that is the same for all classes with which programs may read it."""
    if value.__class__ in (int, str, bytes, bool, float):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, enum.Enum):
        return value.value  # samples may have the number, too
    if isinstance(value, IdlUnion):
        return tuple(map(_freeze, value.get()))
    if hasattr(value, "__idl_field_annotations__"):  # a struct in a key: its own key members, or all
        cls: Any = type(value)
        return tuple(_freeze(getattr(value, name)) for name in _key_names(cls, True))
    return value


__all__ = ["IdlCodec", "codec_of"]
