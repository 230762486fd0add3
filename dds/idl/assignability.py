"""Whether a reader of one type can read what a writer of another one writes, by the rules of DDS-XTypes 1.3, 7.2.4.4,
and in words what stands between them.

Why in words: "the types differ" helps nobody. The first difference is named, with the path of the member that has it,
and what each side says there.

Rules: a reader decodes by the writer's type, so every type counts as delimited, also an appendable one in XCDR1.
Everything here is about two classes of `dds.idl`, whoever made them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cyclonedds_idl import types as idl_types

from dds.idl.members import (
    Member,
    bare,
    bit_bound,
    discriminator,
    extensibility,
    is_bitmask,
    is_enum,
    is_struct,
    is_union,
    key_members,
    members,
    primitive,
    text,
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """What TypeConsistencyEnforcement asks for (7.6.3.4.1); `coercion` False = the types must be equal."""

    coercion: bool = True
    ignore_sequence_bounds: bool = True
    ignore_string_bounds: bool = True
    ignore_member_names: bool = False
    prevent_type_widening: bool = False


def difference(reader: type[Any], writer: type[Any], rules: Rules = Rules()) -> str:
    """The first thing that keeps the reader's type from being assignable from the writer's; "" if nothing does."""
    return _Comparison(rules).types(reader, writer, "")


def _at(path: str, what: str) -> str:
    return f"member {path}: {what}" if path else what


def _sides(path: str, writer: Any, reader: Any) -> str:
    return _at(path, f"{writer} at the writer, {reader} at the reader")


class _Comparison:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._exact = not rules.coercion
        self._open: set[tuple[int, int]] = set()

    def types(self, reader: Any, writer: Any, path: str, key: bool = False) -> str:
        reader, writer = bare(reader)[0], bare(writer)[0]
        if reader is None or writer is None:
            return "" if reader is writer else _sides(path, text(writer), text(reader))
        if isinstance(reader, type) and isinstance(writer, type):
            pair = id(reader), id(writer)
            if pair in self._open:
                return ""
            self._open.add(pair)
            try:
                for kind, compare in ((is_struct, self._structs), (is_union, self._unions), (is_enum, self._enums),
                                      (is_bitmask, self._bitmasks)):
                    if kind(reader) and kind(writer):
                        return compare(reader, writer, path, key)
            finally:
                self._open.discard(pair)
        if _is_text(reader) and _is_text(writer):
            ignored = self._rules.ignore_string_bounds and not key
            return self._bounds(getattr(reader, "max_length", None), getattr(writer, "max_length", None), ignored,
                                _sides(path, text(writer), text(reader)))
        if isinstance(reader, idl_types.sequence) and isinstance(writer, idl_types.sequence):
            ignored = self._rules.ignore_sequence_bounds and not key
            return self._bounds(reader.max_length, writer.max_length, ignored, _sides(path, text(writer), text(reader))
                                ) or self.types(reader.subtype, writer.subtype, f"{path}[]", key)
        if isinstance(reader, idl_types.array) and isinstance(writer, idl_types.array):
            if reader.length != writer.length:
                return _sides(path, text(writer), text(reader))
            return self.types(reader.subtype, writer.subtype, f"{path}[]", key)
        if primitive(reader) and primitive(reader) == primitive(writer):
            return ""
        return _sides(path, text(writer), text(reader))

    def _bounds(self, reader: int | None, writer: int | None, ignored: bool, says: str) -> str:
        if self._exact:
            return "" if reader == writer else says
        fits = reader is None or ignored or (writer is not None and writer <= reader)
        return "" if fits else says

    def _extensibility(self, reader: Any, writer: Any, path: str) -> str:
        has, wants = extensibility(writer), extensibility(reader)
        return "" if has == wants else _sides(path, f"{text(writer)} is {has}", f"{text(reader)} is {wants}")

    # --- structs

    def _structs(self, reader: Any, writer: Any, path: str, key: bool) -> str:
        mine, theirs = members(reader), members(writer)
        by_id = {one.number: one for one in theirs}
        both = [(one, by_id[one.number]) for one in mine if one.number in by_id]
        said = (self._extensibility(reader, writer, path) or self._names(mine, theirs, path)
                or self._only_at_one(mine, theirs, reader, path) or self._keys(reader, writer, path, key))
        if said:
            return said
        if not both and (mine or theirs):
            return _at(path, f"{text(writer)} of the writer and {text(reader)} of the reader have no member in common")
        if extensibility(reader) != "mutable" or self._exact:
            for place, (one, other) in enumerate(zip(mine, theirs, strict=False), 1):
                if one.number != other.number:
                    return _at(path, f"member {place} of the struct is {other.name} (id {other.number}) at the writer, "
                                     f"{one.name} (id {one.number}) at the reader, and order is part of the type")
            for one, other in both:
                if one.optional != other.optional:
                    return _sides(_path(path, one), *("optional" if side.optional else "not optional"
                                                      for side in (other, one)))
        for one, other in both:
            said = self.types(one.hint, other.hint, _path(path, one), (key or one.key) and one in key_members(reader))
            if said:
                return said
        return ""

    def _names(self, mine: list[Member], theirs: list[Member], path: str) -> str:
        """Names and ids must go together, unless names don't count."""
        if self._rules.ignore_member_names and not self._exact:
            return ""
        names, ids = {one.name: one for one in theirs}, {one.number: one for one in theirs}
        for one in mine:
            same_name, same_id = names.get(one.name), ids.get(one.number)
            if same_name is not None and same_name.number != one.number:
                return _sides(_path(path, one), f"id {same_name.number}", f"id {one.number}")
            if same_id is not None and same_id.name != one.name:
                return _at(path, f"the member with id {one.number} is called {same_id.name} at the writer, {one.name} "
                                 "at the reader")
        return ""

    def _only_at_one(self, mine: list[Member], theirs: list[Member], reader: Any, path: str) -> str:
        closed = extensibility(reader) == "final" or self._exact
        for here, there, where in ((mine, theirs, "reader"), (theirs, mine, "writer")):
            known = {one.number for one in there}
            for one in here:
                if one.number in known:
                    continue
                if closed:
                    why = f"{text(reader)} is final" if not self._exact else "the types must be equal"
                    return _at(path, f"only the {where} has a member {one.name}, and {why}")
                if one.must_understand and not one.optional:
                    return _at(path, f"only the {where} has the member {one.name}, which must be understood")
                if one.key:
                    return _at(path, f"only the {where} has the key member {one.name}")
                if where == "writer" and self._rules.prevent_type_widening:
                    return _at(path, f"only the writer has a member {one.name}, and the reader prevents type widening")
        return ""

    def _keys(self, reader: Any, writer: Any, path: str, key: bool) -> str:
        theirs = {one.number: one for one in members(writer)}
        for one in members(reader):
            other = theirs.get(one.number)
            if other is not None and one.key != other.key:
                return _sides(_path(path, one), *("a key" if side.key else "no key" for side in (other, one)))
        if key:  # all of it is key, or what it says is
            has, wants = ([one.name for one in key_members(cls)] for cls in (writer, reader))
            if has != wants:
                return _sides(path, f"its key is made of {', '.join(has)}", f"of {', '.join(wants)}")
        return ""

    # --- unions

    def _unions(self, reader: Any, writer: Any, path: str, key: bool) -> str:
        said = self._extensibility(reader, writer, path) or self.types(
            discriminator(reader), discriminator(writer), f"{path}.discriminator" if path else "discriminator", key)
        if said:
            return said
        if reader.__idl_discriminator_is_key__ != writer.__idl_discriminator_is_key__:
            return _sides(path, *("the discriminator is a key" if cls.__idl_discriminator_is_key__ else "it is none"
                                  for cls in (writer, reader)))
        said = self._names(members(reader), members(writer), path)
        if said:
            return said
        mine, mine_else = _cases(reader)
        theirs, theirs_else = _cases(writer)
        common = mine.keys() & theirs.keys()
        if not common and not (mine_else and theirs_else):
            return _at(path, f"{text(writer)} of the writer and {text(reader)} of the reader have no case in common")
        closed = self._exact or extensibility(reader) == "final"
        why = f"{text(reader)} may not differ" if closed else "it is part of the key"
        # Of a key nothing may be lost: a value for which the reader has no case is none there.
        lost = theirs.keys() - mine.keys() if key and mine_else is None else set()
        for label in mine.keys() ^ theirs.keys() if closed else lost:
            return _at(path, f"only the {'reader' if label in mine else 'writer'} has a case {label!r}, and {why}")
        if (mine_else is None) != (theirs_else is None) and (closed or (key and mine_else is None)):
            where = "writer" if mine_else is None else "reader"
            return _at(path, f"only the {where} has a default case, and {why}")
        for label in [*theirs, *(mine.keys() - theirs.keys()), None]:  # None: whatever neither has a case for
            one, other = mine.get(label, mine_else), theirs.get(label, theirs_else)
            if one is not None and other is not None:
                said = self.types(one.hint, other.hint, _path(path, one), key)
                if said:
                    return said
        return ""

    # --- enumerations and bit masks

    def _enums(self, reader: Any, writer: Any, path: str, key: bool) -> str:
        said = self._extensibility(reader, writer, path)
        if said:
            return said
        if bit_bound(reader) != bit_bound(writer):
            return _sides(path, f"{bit_bound(writer)} bits", f"{bit_bound(reader)} bits")
        mine = {one.name: one.value for one in reader}
        theirs = {one.name: one.value for one in writer}
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                return _sides(path, f"literal {name} is {theirs[name]}", f"it is {mine[name]}")
        if not self._rules.ignore_member_names or self._exact:
            values = {value: name for name, value in theirs.items()}
            for name, value in mine.items():
                if values.get(value, name) != name:
                    return _sides(path, f"literal {value} is called {values[value]}", f"{name}")
        if not set(mine.values()) & set(theirs.values()):
            return _at(path, f"{text(writer)} of the writer and {text(reader)} of the reader have no literal in common")
        only = set(mine) ^ set(theirs) if self._exact or extensibility(reader) == "final" else (
            set(theirs) - set(mine) if key else set())
        for name in sorted(only):
            where = "reader" if name in mine else "writer"
            why = "it is part of the key" if extensibility(reader) != "final" and key else f"{text(reader)} is final"
            return _at(path, f"only the {where} has a literal {name}, and "
                             f"{'the types must be equal' if self._exact else why}")
        return ""

    def _bitmasks(self, reader: Any, writer: Any, path: str, key: bool) -> str:
        if bit_bound(reader) != bit_bound(writer):
            return _sides(path, f"{bit_bound(writer)} bits", f"{bit_bound(reader)} bits")
        mine, theirs = reader.__idl_positions__, writer.__idl_positions__
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                return _sides(path, f"flag {name} is bit {theirs[name]}", f"it is bit {mine[name]}")
        if self._exact and mine.keys() != theirs.keys():
            return _sides(path, f"flags {', '.join(sorted(theirs))}", f"{', '.join(sorted(mine))}")
        return ""


def _cases(cls: Any) -> tuple[dict[Any, Member], Member | None]:
    """The case of each label, and the default one."""
    found = members(cls)
    labels = {label: one for one in found for label in one.labels}
    return labels, next((one for one in found if one.default), None)


def _path(path: str, one: Member) -> str:
    return f"{path}.{one.name}" if path else one.name


def _is_text(hint: Any) -> bool:
    return hint is str or isinstance(hint, idl_types.bounded_str)


__all__ = ["Rules", "difference"]
