"""Type identifiers and type objects of IDL types (DDS-XTypes 1.3, 7.3.4): from a class, and back to a class.

Why the way back is our own: what comes in was written by another program, perhaps one that lies. The library builds
classes from any names, which dataclasses and the compiled codecs then execute as source; it also forgets some facts.
Here names are checked, sizes are bounded, and a class counts only if its own identifier is the announced one again.

Rules: an identifier is the serialized complete TypeIdentifier: 15 bytes, 24 for types that contain themselves. A
mapping is a serialized TypeMapping with complete type objects only. Little endian, XCDR2, without a header. A class
for an identifier is made once per process.
"""

from __future__ import annotations

import dataclasses
import functools
import keyword
import math
import threading
import typing
from typing import Any

from cyclonedds_idl import (
    IdlStruct,
    make_idl_bitmask,
    make_idl_enum,
    make_idl_struct,
    make_idl_union,
)
from cyclonedds_idl import types as idl_types

from spindle.locks import free_after_fork

MAPPING_BYTES_MAX = 64 << 10  # of a type that another program describes
MEMBERS_MAX = 4096  # of such a type, those of its members' types counted wherever they stand
ELEMENTS_MAX = 1 << 20  # the same, with arrays of structs and unions unrolled, as the library does it for keys
CLASSES_MAX = 256  # types of other programs that are kept
UNBOUNDED = 2**32 - 1
RESERVED = {"value", "discriminator"}  # names that a union's class has itself

_lock = free_after_fork(threading.RLock())  # the library's builder keeps its state in a class


@dataclasses.dataclass(frozen=True)
class TypeInfo:
    """identifier  of the complete type; minimal  the same without names: equal for equivalent types
    mapping  its type objects, and those of all types in it"""

    identifier: bytes
    minimal: bytes
    mapping: bytes


def type_info(cls: type[Any]) -> TypeInfo | None:
    """Of a class; None for a type that XTypes can't describe: one with a Python list, dict or bytes in it."""
    from cyclonedds_idl._typesupport.DDS import XTypes as xt
    from cyclonedds_idl._xt_builder import XTBuilder

    with _lock:
        known = set(XTBuilder._type_hash_db)
        try:
            cls.__idl__.fill_type_data()
        except Exception:  # the library raises plain ones
            XTBuilder._current_sc_resolver = None
            return None
        finally:
            for one in XTBuilder._type_hash_db.keys() - known:  # the class itself remembers what it needs
                del XTBuilder._type_hash_db[one]
        said, mapping = cls.__idl__.get_type_info(), cls.__idl__.get_type_mapping()
        nothing: Any = []
        complete = xt.TypeMapping(nothing, mapping.identifier_object_pair_complete, nothing)
        return TypeInfo(_serialized(said.complete.typeid_with_size.type_id),
                        _serialized(said.minimal.typeid_with_size.type_id), _serialized(complete))


def _serialized(value: Any) -> bytes:
    from cyclonedds_idl._support import Endianness

    encoded: bytes = value.__idl__.serialize(value, use_version_2=True, endianness=Endianness.Little)
    return encoded[4:]


def identifier_bytes(type_id: Any) -> bytes:
    """Of a TypeIdentifier of the library. Raises TypeError for anything else."""
    from cyclonedds_idl._typesupport.DDS.XTypes import TypeIdentifier

    if not isinstance(type_id, TypeIdentifier):
        raise TypeError("a type_id is a TypeIdentifier, as cls.__idl__.get_type_id() and DcpsEndpoint.type_id have it, "
                        f"not {type_id!r}")
    return _serialized(type_id)


def identifier_of(identifier: bytes) -> Any:
    """The library's TypeIdentifier for the bytes of one. Raises ValueError."""
    from cyclonedds_idl._typesupport.DDS.XTypes import TypeIdentifier

    return _deserialized(TypeIdentifier, identifier)


def _deserialized(kind: Any, data: bytes) -> Any:
    try:
        return kind.__idl__.deserialize(b"\0\x07\0\0" + data)  # the header of plain, little-endian XCDR2
    except Exception as error:
        raise ValueError(f"{len(data)} bytes are not a {kind.__name__}: {error!r}") from error


def classes_of(identifier: bytes, mapping: bytes) -> tuple[type[Any], dict[str, Any]]:
    """The class that a mapping has for an identifier, and all named types in it by the last part of their names.

    Raises ValueError for what isn't such a mapping, or has another type than it says.
    """
    cls, names = _classes_of(identifier, mapping)
    return cls, dict(names)


def class_of(identifier: bytes, mapping: bytes) -> type[Any]:
    """As classes_of(), the class alone."""
    return _classes_of(identifier, mapping)[0]


@functools.lru_cache(maxsize=CLASSES_MAX)
def _classes_of(identifier: bytes, mapping: bytes) -> tuple[type[Any], dict[str, Any]]:
    from cyclonedds_idl._typesupport.DDS.XTypes import TypeMapping

    if len(mapping) > MAPPING_BYTES_MAX:
        raise ValueError(f"a description of {len(mapping)} bytes; types of other programs may have {MAPPING_BYTES_MAX}")
    with _lock:
        pairs = _deserialized(TypeMapping, mapping).identifier_object_pair_complete
        try:
            builder = _Builder({_serialized(one.type_identifier): one.type_object for one in pairs})
            cls = builder.of(identifier)
            if not (isinstance(cls, type) and hasattr(cls, "__idl__")):
                raise ValueError("the type is no struct or union")
            cls.__idl__.populate()
            info = type_info(cls)
        except ValueError:
            raise
        except Exception as error:  # RecursionError, AttributeError, whatever a false description leads to
            raise ValueError(f"no type can be made of this description: {error!r}") from error
        if info is None or info.identifier != identifier:
            raise ValueError("the description is of another type than its identifier says")
        return cls, builder.names


def _checked(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("__"):
        raise ValueError(f"{name!r} is no name for {what}")
    return name


def _attribute(name: Any, taken: typing.Collection[str] = ()) -> str:
    """The Python name of a member."""
    name = _checked(name, "a member")
    return f"_{name}" if keyword.iskeyword(name) or name in taken else name


def _names(detail: Any) -> tuple[str, str]:
    """Name of a class, and of its type as the library has it."""
    parts = [_checked(one, "a type") for one in str(detail.type_name).replace("::", ".").split(".")]
    return parts[-1], ".".join(parts)


class _Builder:
    """Classes from type objects. A class is there before its members are, so that it can be among them."""

    def __init__(self, objects: dict[bytes, Any]) -> None:
        self._objects = objects
        self._made: dict[bytes, Any] = {}
        self._open: set[bytes] = set()
        self.names: dict[str, Any] = {}
        self._weights: dict[tuple[bytes, bool], int] = {}  # of struct and union types: members, with those within

    def of(self, identifier: bytes) -> Any:
        if identifier in self._made:
            return self._made[identifier]
        if identifier in self._open:
            raise ValueError("a type that is its own base, or an alias of itself")
        if identifier not in self._objects:
            raise ValueError("the description lacks a type that it names, as that of two types of one name does: give "
                             "one of them another typename")
        complete = self._objects[identifier].complete
        # Before anything is made: a small description may be of a type with 2**30 members.
        if self._weight(identifier, False) > MEMBERS_MAX or self._weight(identifier, True) > ELEMENTS_MAX:
            raise ValueError(f"the type has more than {MEMBERS_MAX:,} members, with those of its members' types, or "
                             f"{ELEMENTS_MAX:,} with each element of its arrays: types of other programs may have no "
                             "more")
        self._open.add(identifier)
        made = self._make(identifier, complete)
        self._open.discard(identifier)
        self._made[identifier] = made
        return made

    def _weight(self, identifier: bytes, unrolled: bool) -> int:
        """Members of a type when each member of a struct or union type stands with its own; `unrolled`: each element of
        an array of these, too."""
        place = identifier, unrolled
        if place not in self._weights:
            self._weights[place] = 1  # a type that contains itself is not unrolled
            found = self._objects.get(identifier)
            complete = None if found is None else found.complete
            inner, times = ([], 1) if complete is None else _types_in(complete)
            self._weights[place] = 1 + (times if unrolled else 1) * sum(self._weight_of(one, unrolled) for one in inner)
        return self._weights[place]

    def _weight_of(self, type_id: Any, unrolled: bool) -> int:
        times = 1
        while hasattr(type_id.value, "element_identifier"):
            times *= math.prod(getattr(type_id.value, "array_bound_seq", ()))
            type_id = type_id.value.element_identifier
        found = _serialized(type_id)
        return self._weight(found, unrolled) * (times if unrolled else 1) if found in self._objects else 1

    def _make(self, identifier: bytes, complete: Any) -> Any:
        from cyclonedds_idl._typesupport.DDS import XTypes as xt

        kind = complete.discriminator
        if kind == xt.TK_STRUCTURE:
            return self._struct(identifier, complete.struct_type)
        if kind == xt.TK_UNION:
            return self._union(identifier, complete.union_type)
        if kind == xt.TK_ENUM:
            return self._enum(complete.enumerated_type)
        if kind == xt.TK_BITMASK:
            return self._bitmask(complete.bitmask_type)
        if kind == xt.TK_ALIAS:
            header, related = complete.alias_type.header, complete.alias_type.body.common.related_type
            short, name = _names(header.detail)
            self.names[short] = typedef = idl_types.typedef(name, self._hint(related))
            return typing.Annotated[typing.Any, typedef]
        if kind == xt.TK_SEQUENCE:
            bound = complete.sequence_type.header.common.bound
            return _sequence(self._hint(complete.sequence_type.element.common.type), bound)
        if kind == xt.TK_ARRAY:
            return _array(self._hint(complete.array_type.element.common.type),
                          complete.array_type.header.common.bound_seq)
        raise ValueError(f"a type of kind {kind}, which has no class in Python")

    def _hint(self, type_id: Any) -> Any:
        """An annotation for a TypeIdentifier."""
        from cyclonedds_idl._typesupport.DDS import XTypes as xt
        from cyclonedds_idl._xt_builder import XTInterpreter

        kind = type_id.discriminator
        if kind == xt.TK_NONE:
            return None
        if kind in XTInterpreter._simple_mappings:
            return XTInterpreter._simple_mappings[kind]
        if kind in (xt.TI_STRING8_SMALL, xt.TI_STRING8_LARGE):
            bound = type_id.value.bound
            return str if bound in (0, UNBOUNDED) else typing.Annotated[str, idl_types.bounded_str(bound)]
        if kind in (xt.TI_PLAIN_SEQUENCE_SMALL, xt.TI_PLAIN_SEQUENCE_LARGE):
            return _sequence(self._hint(type_id.value.element_identifier), type_id.value.bound)
        if kind in (xt.TI_PLAIN_ARRAY_SMALL, xt.TI_PLAIN_ARRAY_LARGE):
            return _array(self._hint(type_id.value.element_identifier), type_id.value.array_bound_seq)
        return self.of(_serialized(type_id))

    def _struct(self, identifier: bytes, described: Any) -> Any:
        from cyclonedds_idl._typesupport.DDS import XTypes as xt

        base_id = described.header.base_type
        base = None if base_id.discriminator == xt.TK_NONE else self.of(_serialized(base_id))
        if base is not None and not (isinstance(base, type) and issubclass(base, IdlStruct)):
            raise ValueError("a struct whose base is none")
        short, name = _names(described.header.detail)
        numbers = dict(base.__idl__.member_ids) if base is not None else {}
        annotations: dict[str, dict[str, Any]] = {}
        for one in described.member_seq:
            attribute = _attribute(one.detail.name)
            if attribute in numbers:
                raise ValueError(f"two members are called {attribute!r}")
            numbers[attribute] = one.common.member_id
            annotations[attribute] = _annotations(one.common.member_flags, one.detail, attribute)
        if base is not None:
            annotations = {**base.__idl_field_annotations__, **annotations}
        cls = make_idl_struct(short, name, dict.fromkeys(map(_member_name, described.member_seq), typing.Any),
                              field_annotations=annotations, bases=() if base is None else (base,))
        self._begin(identifier, short, cls, described.struct_flags, numbers)
        for one in described.member_seq:
            hint = self._hint(one.common.member_type_id)
            cls.__annotations__[_attribute(one.detail.name)] = (
                typing.Optional[hint] if one.common.member_flags.IS_OPTIONAL else hint)  # noqa: UP045  what it reads
        if base is not None:
            base.__idl__.populate()
        return cls

    def _begin(self, identifier: bytes, short: str, cls: Any, flags: Any, numbers: dict[str, int]) -> None:
        """The class may be found among its own members from here on."""
        cls.__idl__.member_ids = numbers
        _extend(cls, flags)
        if flags.IS_NESTED:
            cls.__idl_annotations__["nested"] = True
        if flags.IS_AUTOID_HASH:
            cls.__idl_annotations__["autoid"] = "hash"
        self._made[identifier] = self.names[short] = cls

    def _union(self, identifier: bytes, described: Any) -> Any:
        short, name = _names(described.header.detail)
        switch = self._hint(described.discriminator.common.type_id)
        annotations: dict[str, dict[str, Any]] = {}
        numbers: dict[str, int] = {}
        cases: dict[str, Any] = {}
        for one in described.member_seq:
            attribute = _attribute(one.detail.name, RESERVED)
            if attribute in numbers:
                raise ValueError(f"two cases are called {attribute!r}")
            numbers[attribute] = one.common.member_id
            annotations[attribute] = _annotations(one.common.member_flags, one.detail, attribute)
            labels = [_label(switch, label) for label in one.common.label_seq]
            is_else = one.common.member_flags.IS_DEFAULT or not labels
            # Until its type is known. Each has one of its own: of equal annotations `typing` makes one.
            unknown: Any = type(attribute, (), {})
            cases[attribute] = idl_types.default(unknown) if is_else else idl_types.case(labels, unknown)
        fields: Any = {attribute: typing.Annotated[typing.Any, case] for attribute, case in cases.items()}
        cls = make_idl_union(
            short, name, fields,
            discriminator=switch, field_annotations=annotations,
            discriminator_is_key=bool(described.discriminator.common.member_flags.IS_KEY))
        self._begin(identifier, short, cls, described.union_flags, numbers)
        for one, case in zip(described.member_seq, cases.values(), strict=True):
            case.subtype = self._hint(one.common.type_id)
        return cls

    def _enum(self, described: Any) -> Any:
        short, name = _names(described.header.detail)
        literals = {_checked(one.detail.name, "a literal"): one.common.value for one in described.literal_seq}
        if not literals or len(literals) != len(described.literal_seq) or any(map(keyword.iskeyword, literals)):
            raise ValueError(f"enum {name} has no literals, twice the same, or one that is a word of Python")
        cls: Any = make_idl_enum(short, name, literals)
        for one in described.literal_seq:
            if one.common.flags.IS_DEFAULT:
                cls.__idl_enum_default_value__ = one.common.value
        if described.header.common.bit_bound != 32:
            cls.__idl_annotations__["bit_bound"] = described.header.common.bit_bound
        _extend(cls, described.enum_flags)
        self.names[short] = cls
        return cls

    def _bitmask(self, described: Any) -> Any:
        short, name = _names(described.header.detail)
        flags = {_attribute(one.detail.name): one.common.position for one in described.flag_seq}
        bound = described.header.common.bit_bound
        if not flags or len(flags) != len(described.flag_seq) or not 0 <= max(flags.values()) < bound <= 64:
            raise ValueError(f"bitmask {name} has no flags, twice the same, or one beyond its {bound} bits")
        namespace = {attribute: {"position": position} for attribute, position in flags.items()}
        cls: Any = make_idl_bitmask(short, name, list(flags), field_annotations=namespace) if bound == 32 else (
            _wide_bitmask(short, name, list(flags), namespace, bound))
        _extend(cls, described.bitmask_flags)
        self.names[short] = cls
        return cls


def _types_in(complete: Any) -> tuple[list[Any], int]:
    """TypeIdentifiers of what a type object directly consists of; how many of each, if it is an array."""
    from cyclonedds_idl._typesupport.DDS import XTypes as xt

    kind = complete.discriminator
    if kind == xt.TK_STRUCTURE:
        described = complete.struct_type
        return [described.header.base_type, *(one.common.member_type_id for one in described.member_seq)], 1
    if kind == xt.TK_UNION:
        return [one.common.type_id for one in complete.union_type.member_seq], 1
    if kind == xt.TK_ALIAS:
        return [complete.alias_type.body.common.related_type], 1
    if kind == xt.TK_SEQUENCE:
        return [complete.sequence_type.element.common.type], 1
    if kind == xt.TK_ARRAY:
        array = complete.array_type
        return [array.element.common.type], math.prod(array.header.common.bound_seq)
    return [], 1


def _wide_bitmask(short: str, name: str, flags: list[str], annotations: dict[str, Any], bound: int) -> Any:
    """make_idl_bitmask() for other sizes than 32 bits, which its class must know when it is made."""
    from cyclonedds_idl import IdlBitmask
    from cyclonedds_idl._main import IdlBitmaskMeta

    namespace: Any = IdlBitmaskMeta.__prepare__(short, (IdlBitmask,), typename=name)
    namespace.setdefault("__annotations__", {}).update(dict.fromkeys(flags, bool))
    namespace["__idl_field_annotations__"] = annotations
    namespace["__idl_annotations__"]["bit_bound"] = bound
    return dataclasses.dataclass(IdlBitmaskMeta(short, (IdlBitmask,), namespace))


def _member_name(described: Any) -> str:
    return _attribute(described.detail.name)


def _label(switch: Any, label: int) -> Any:
    """A label as the class of the discriminator has it."""
    if isinstance(switch, type) and hasattr(switch, "__idl_enum_default_value__"):
        return switch(label)
    if switch is bool:
        return bool(label)
    return chr(label) if switch == idl_types.char else label


def _annotations(flags: Any, detail: Any, attribute: str) -> dict[str, Any]:
    said: dict[str, Any] = {
        name: True for name, flag in (("must_understand", flags.IS_MUST_UNDERSTAND), ("key", flags.IS_KEY),
                                      ("external", flags.IS_EXTERNAL)) if flag}
    if attribute != detail.name:
        said["name"] = detail.name
    builtin = detail.ann_builtin
    if builtin is not None and builtin.hash_id is not None:
        said["hash_id"] = builtin.hash_id
    return said


def _extend(cls: Any, flags: Any) -> None:
    for name in ("final", "appendable", "mutable"):
        if getattr(flags, f"IS_{name.upper()}"):
            cls.__idl_annotations__["extensibility"] = name


def _sequence(element: Any, bound: int) -> Any:
    return typing.Annotated[typing.Any, idl_types.sequence(element, None if bound in (0, UNBOUNDED) else bound)]


def _array(element: Any, bounds: list[int]) -> Any:
    for bound in reversed(bounds):
        element = typing.Annotated[typing.Any, idl_types.array(element, bound)]
    return element


__all__ = ["MAPPING_BYTES_MAX", "TypeInfo", "class_of", "classes_of", "identifier_bytes", "identifier_of", "type_info"]
