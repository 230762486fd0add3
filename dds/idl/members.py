"""What XTypes says of a class: its extensibility, its members with their ids, and each kind of type in words.

Why here: the library keeps these facts in annotations, type hints and defaults that are said nowhere. Who compares
types, converts between them, prints them or builds them asks this module.

Rules: a struct's members include those of its bases, in their order (DDS-XTypes 1.3, 7.2.2.4.5). `hint` is a type as
the library has it once typedefs and Optional are taken off it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import reprlib
import typing
from typing import Any

from cyclonedds_idl import IdlBitmask, IdlEnum, IdlStruct, IdlUnion
from cyclonedds_idl import types as idl_types

PRIMITIVES: dict[Any, str] = {
    bool: "boolean", idl_types.byte: "octet", idl_types.int8: "int8", idl_types.int16: "int16",
    idl_types.int32: "int32", idl_types.int64: "int64", int: "int64", idl_types.uint8: "uint8",
    idl_types.uint16: "uint16", idl_types.uint32: "uint32", idl_types.uint64: "uint64", idl_types.float32: "float",
    idl_types.float64: "double", float: "double", idl_types.char: "char", idl_types.wchar: "wchar"}

_FAILED = re.compile(r"Failed to encode member (\w+), ")
_SHORT = reprlib.Repr()


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a struct, or a case of a union.

    name    in IDL; `attribute` is the one in Python, which differs for Python's keywords
    labels  of a union's case, as whole numbers or booleans, () for the default
    """

    name: str
    attribute: str
    number: int
    hint: Any
    optional: bool = False
    key: bool = False
    must_understand: bool = False
    labels: tuple[Any, ...] = ()
    default: bool = False


class Unencodable(ValueError):
    """A sample of the right type with a value that the type can't have. Programs get a ValueError with its topic."""


def bare(hint: Any) -> tuple[Any, bool]:
    """A hint without typedefs and Optional, and whether it had Optional."""
    from cyclonedds_idl._type_normalize import WrapOpt

    optional = False
    while isinstance(hint, (WrapOpt, idl_types.typedef)):
        optional = optional or isinstance(hint, WrapOpt)
        hint = hint.inner if isinstance(hint, WrapOpt) else hint.subtype
    return hint, optional


def is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, IdlStruct)


def is_union(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, IdlUnion)


def is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, IdlEnum)


def is_bitmask(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, IdlBitmask)


def primitive(hint: Any) -> str:
    """IDL's name of a primitive type; empty for all others."""
    return PRIMITIVES.get(hint, "") if isinstance(hint, typing.Hashable) else ""


def type_name(cls: Any) -> str:
    """The name of a class in IDL, with :: between modules."""
    return str(cls.__idl_typename__).replace(".", "::")


def extensibility(cls: Any) -> str:
    """"final" (the library's default), "appendable" or "mutable"."""
    return str(cls.__idl_annotations__.get("extensibility", "final"))


def bit_bound(cls: Any) -> int:
    """Bits of an enumeration or bit mask."""
    return int(cls.__idl_annotations__.get("bit_bound", 32))


def members(cls: Any) -> list[Member]:
    """The members of a struct in their order, or the cases of a union."""
    from cyclonedds_idl._type_normalize import get_extended_type_hints

    cls.__idl__.populate()
    listed = cls.__idl_annotations__.get("keylist") or ()
    found = []
    for attribute, hint in get_extended_type_hints(cls).items():
        said = cls.__idl_field_annotations__.get(attribute, {})
        is_case = isinstance(hint, (idl_types.case, idl_types.default))
        bared, optional = bare(hint.subtype if is_case else hint)
        found.append(Member(
            said.get("name", attribute), attribute, cls.__idl__.get_member_id(attribute), bared, optional,
            bool(said.get("key")) or attribute in listed, bool(said.get("must_understand")),
            tuple(map(number_of, hint.labels)) if isinstance(hint, idl_types.case) else (),
            isinstance(hint, idl_types.default)))
    return found


def key_members(cls: Any) -> list[Member]:
    """Those that make up the key, by their ids; of a struct within a key without any of its own: all."""
    found = members(cls)
    return sorted([one for one in found if one.key] or found, key=lambda one: one.number)


def discriminator(cls: Any) -> Any:
    """The type of a union's discriminator, bare."""
    return bare(cls.__idl_discriminator__)[0]


def number_of(label: Any) -> Any:
    """A label of a case or an enumeration as a number; characters and booleans stay."""
    return label.value if isinstance(label, enum.Enum) else label


def text(hint: Any) -> str:
    """The type in IDL's words, for people."""
    hint = bare(hint)[0]
    if hint is str:
        return "string"
    if isinstance(hint, idl_types.bounded_str):
        return f"string<{hint.max_length}>"
    if isinstance(hint, idl_types.sequence):
        return f"sequence<{text(hint.subtype)}{f', {hint.max_length}' if hint.max_length else ''}>"
    if isinstance(hint, idl_types.array):
        return f"{text(hint.subtype)}[{hint.length}]"
    if hint is bytes:
        return "sequence<octet>"
    for kind, says in ((is_struct, "struct"), (is_union, "union"), (is_enum, "enum"), (is_bitmask, "bitmask")):
        if kind(hint):
            return f"{says} {type_name(hint)}"
    return primitive(hint) or str(getattr(hint, "__name__", hint))


def default_of(hint: Any, optional: bool = False) -> Any:
    """What a member has that a writer's type lacks: none, 0, "", the first literal and so on (DDS-XTypes 1.3,
    7.2.2.4.4.4.7; the library's own default_initialize)."""
    hint, inner = bare(hint)
    if optional or inner:
        return None
    if hint is str or isinstance(hint, idl_types.bounded_str):
        return ""
    if hint is bytes:
        return b""
    if hint == idl_types.char:
        return "\0"
    if isinstance(hint, idl_types.array):
        if primitive(bare(hint.subtype)[0]) in ("octet", "uint8"):
            return bytes(hint.length)
        return [default_of(hint.subtype) for _ in range(hint.length)]
    if isinstance(hint, idl_types.sequence) or typing.get_origin(hint) is list:
        return []
    if typing.get_origin(hint) is dict:
        return {}
    if is_struct(hint):
        return hint(**{one.attribute: default_of(one.hint, one.optional) for one in members(hint)})
    if is_union(hint):
        default = next((one for one in members(hint) if one.default), None)
        return hint(discriminator=hint.__idl_default_discriminator__,
                    value=None if default is None else default_of(default.hint, default.optional))
    if is_enum(hint):
        return hint(hint.__idl_enum_default_value__)
    if is_bitmask(hint):
        return hint.from_mask(0)
    return False if hint is bool else 0.0 if primitive(hint) in ("float", "double") else 0


def unencodable(sample: Any, error: BaseException) -> str:
    """What of a sample the library could not encode, in words: the member that it names in its errors, each of which
    was raised from that of a part."""
    path, value, hint = "", sample, type(sample)
    cause: BaseException | None = error
    while cause is not None and (found := _FAILED.match(str(cause))):
        listed, within = bare(hint)[0], ""  # which element it was, the library doesn't say
        while isinstance(listed, (idl_types.sequence, idl_types.array)) or typing.get_origin(listed) is list:
            listed = bare(listed.subtype if hasattr(listed, "subtype") else typing.get_args(listed)[0])[0]
            within += "[]"
        one = {} if not is_struct(listed) else {member.attribute: member for member in members(listed)}
        if found[1] not in one:
            break
        if within:
            value = next((part for part in _elements(value)
                          if str(cause) == f"{found[0]}value is {getattr(part, found[1], None)}"), None)
        path += f"{within}.{found[1]}"
        value, hint = getattr(value, found[1], None), one[found[1]].hint
        cause = cause.__cause__
    if not path:
        return str(error)
    return f"{path[1:]} is {_SHORT.repr(value)}, which is no {text(hint)}"


def _elements(value: Any) -> list[Any]:
    """Of sequences in sequences, too."""
    if isinstance(value, (list, tuple)):
        return [part for one in value for part in _elements(one)]
    return [value]
