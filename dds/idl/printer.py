"""A class as IDL 4.2, with the annotations that decide how its samples are encoded."""

from __future__ import annotations

import re
from typing import Any

from cyclonedds_idl import types as idl_types

from dds.idl.members import (
    bare,
    bit_bound,
    discriminator,
    extensibility,
    is_bitmask,
    is_enum,
    is_struct,
    is_union,
    members,
    number_of,
    primitive,
    type_name,
)

_ARRAY_WITHIN = re.compile(r"\][>,]")  # an array in a sequence


def idl_text(cls: type[Any], plain: bool = False) -> str:
    """The class and all types in it, each before its first use, in their modules. `plain`: for tools that know IDL
    without bit masks, which become the numbers that they are in payloads; ValueError for what such IDL has no word
    for."""
    found: dict[str, Any] = {}
    _gather(cls, found, set())
    parts: list[tuple[tuple[str, ...], str]] = []
    for name, one in found.items():
        text = _definition(name, one)
        if plain and is_bitmask(one):
            text = _bits(name, one)
        elif plain and _ARRAY_WITHIN.search(text):
            raise ValueError(f"{name} has a sequence of arrays: name the array by a typedef")
        parts.append((tuple(name.split("::")[:-1]), text))
    lines: list[str] = []
    open_modules: tuple[str, ...] = ()
    for modules, text in parts:
        if modules != open_modules:
            lines += _closed(open_modules)
            lines += [f"{'  ' * depth}module {module} {{" for depth, module in enumerate(modules)]
            open_modules = modules
        elif lines:
            lines.append("")
        lines += [f"{'  ' * len(modules)}{line}" if line else "" for line in text.split("\n")]
    return "\n".join([*lines, *_closed(open_modules)])


def _bits(name: str, one: Any) -> str:
    """A bit mask as a number (DDS-XTypes 1.3, 7.2.2.4.1.2)."""
    size = next(size for size in (8, 16, 32, 64) if bit_bound(one) <= size)
    flags = ", ".join(f"{flag} {place}" for flag, place in one.__idl_positions__.items())
    return f"// bits: {flags}\ntypedef uint{size} {name.split('::')[-1]};"


def _closed(modules: tuple[str, ...]) -> list[str]:
    return [f"{'  ' * depth}}};" for depth in range(len(modules) - 1, -1, -1)]


def _gather(hint: Any, found: dict[str, Any], seen: set[int]) -> None:
    """What must be defined for this type, in that order."""
    if isinstance(hint, idl_types.typedef):
        _gather(hint.subtype, found, seen)
        found.setdefault(hint.name.replace(".", "::"), hint)
        return
    if hasattr(hint, "inner"):
        _gather(hint.inner, found, seen)
        return
    if isinstance(hint, (idl_types.sequence, idl_types.array, idl_types.case, idl_types.default)):
        _gather(hint.subtype, found, seen)
        return
    if not isinstance(hint, type) or not hasattr(hint, "__idl_typename__") or id(hint) in seen:
        return
    seen.add(id(hint))
    if is_struct(hint) or is_union(hint):
        from cyclonedds_idl._type_normalize import get_extended_type_hints

        if is_union(hint):
            _gather(discriminator(hint), found, seen)
        for one in get_extended_type_hints(hint).values():
            _gather(one, found, seen)
    found.setdefault(type_name(hint), hint)


def _definition(name: str, one: Any) -> str:
    short = name.split("::")[-1]
    if isinstance(one, idl_types.typedef):
        return f"typedef {_declared(one.subtype, short)};"
    if is_enum(one):
        bits = f"@bit_bound({bit_bound(one)})\n" if bit_bound(one) != 32 else ""
        default = one.__idl_enum_default_value__
        literals = [f"  {'@default_literal ' if literal.value == default else ''}@value({literal.value}) {literal.name}"
                    for literal in one]
        return f"@{extensibility(one)}\n{bits}enum {short} {{\n" + ",\n".join(literals) + "\n};"
    if is_bitmask(one):
        flags = [f"  @position({place}) {flag}" for flag, place in one.__idl_positions__.items()]
        return f"@bit_bound({bit_bound(one)})\nbitmask {short} {{\n" + ",\n".join(flags) + "\n};"
    return _union(short, one) if is_union(one) else _struct(short, one)


def _struct(short: str, one: Any) -> str:
    from cyclonedds_idl._type_normalize import get_extended_type_hints

    hints = get_extended_type_hints(one)
    base = one.__base__ if is_struct(one.__base__) and hasattr(one.__base__, "__idl_type_annotations__") else None
    inherited = set(get_extended_type_hints(base)) if base is not None else set()
    lines, expected = [], 0
    for member in members(one):
        number = f"@id({member.number}) " if member.number != expected else ""
        expected = member.number + 1
        if member.attribute in inherited:
            continue
        said = "".join(f"@{name} " for name, there in (("key", member.key), ("optional", member.optional),
                                                       ("must_understand", member.must_understand)) if there)
        lines.append(f"  {said}{number}{_declared(hints[member.attribute], member.name)};")
    head = f"struct {short}{f' : {type_name(base)}' if base is not None else ''}"
    return f"@{extensibility(one)}\n{head} {{\n" + "".join(f"{line}\n" for line in lines) + "};"


def _union(short: str, one: Any) -> str:
    from cyclonedds_idl._type_normalize import get_extended_type_hints

    switch = discriminator(one)
    hints = get_extended_type_hints(one)
    lines = []
    for member in members(one):
        hint = hints[member.attribute]
        for label in getattr(hint, "labels", ()):
            # By the discriminator: of two annotations, one with True and one with 1, `typing` makes one.
            says = label.name if is_enum(switch) else str(bool(label)).upper() if switch is bool else (
                repr(label) if isinstance(label, str) else str(int(number_of(label))))
            lines.append(f"    case {says}:")
        if member.default:
            lines.append("    default:")
        lines.append(f"      {_declared(hint.subtype, member.name)};")
    key = "@key " if one.__idl_discriminator_is_key__ else ""
    return f"@{extensibility(one)}\nunion {short} switch ({key}{_name(switch)}) {{\n" + "".join(
        f"{line}\n" for line in lines) + "};"


def _declared(hint: Any, name: str) -> str:
    """A declaration, where an array's lengths stand behind the name."""
    lengths = ""
    if hasattr(hint, "inner"):
        hint = hint.inner
    while isinstance(hint, idl_types.array):
        lengths += f"[{hint.length}]"
        hint = hint.subtype
    return f"{_name(hint)} {name}{lengths}"


def _name(hint: Any) -> str:
    if hasattr(hint, "__idl_typename__"):
        return type_name(hint)
    if hint is str:
        return "string"
    if isinstance(hint, idl_types.bounded_str):
        return f"string<{hint.max_length}>"
    if isinstance(hint, idl_types.sequence):
        return f"sequence<{_name(hint.subtype)}{f', {hint.max_length}' if hint.max_length else ''}>"
    if isinstance(hint, idl_types.array):  # of a sequence's elements; IDL would want a typedef
        return f"{_name(hint.subtype)}[{hint.length}]"
    if hint is None:
        return "void"
    return "sequence<octet>" if hint is bytes else primitive(bare(hint)[0]) or str(getattr(hint, "__name__", hint))


__all__ = ["idl_text"]
