"""Samples of a writer's type as samples of a reader's, where the reader's is assignable from it.

How: one function for each pair of types, made once. Members go together by their ids, cases by the discriminator,
literals by their number. What the writer's type lacks gets its default (`dds.idl.members.default_of`); a number that
the reader's enumeration has no literal for stays a number; so the library's own decoding does with either.

Rules: a value that the reader's type can't hold, because its bound is smaller, makes the sample one that can't be had
(try_construct DISCARD, DDS-XTypes 1.3, 7.2.4.5.1): ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclonedds_idl import types as idl_types

from dds.idl.members import bare, default_of, discriminator, is_bitmask, is_enum, is_struct, is_union, members

Convert = Callable[[Any], Any]


def conversion(reader: type[Any], writer: type[Any]) -> Convert:
    """sample of `writer` -> sample of `reader`, which must be assignable from it."""
    converted = _Conversions().of(reader, writer, reader.__name__)
    return converted if converted is not None else lambda sample: sample


class _Conversions:
    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Convert] = {}

    def of(self, reader: Any, writer: Any, path: str) -> Convert | None:
        """None where a value can stay what it is."""
        reader, writer = bare(reader)[0], bare(writer)[0]
        if is_struct(reader) or is_union(reader):
            pair = id(reader), id(writer)
            if pair not in self._made:
                later: list[Convert] = []
                self._made[pair] = lambda value: later[0](value)  # for a type that has itself among its members
                later.append(self._struct(reader, writer, path) if is_struct(reader) else
                             self._union(reader, writer, path))
                self._made[pair] = later[0]
            return self._made[pair]
        if is_enum(reader):
            literals = {one.value: one for one in reader}
            return lambda value: literals.get(getattr(value, "value", value), getattr(value, "value", value))
        if is_bitmask(reader):
            return lambda value: reader.from_mask(value.as_mask())
        if isinstance(reader, (idl_types.sequence, idl_types.array)):
            return self._elements(reader, self.of(reader.subtype, writer.subtype, f"{path}[]"), path)
        if isinstance(reader, idl_types.bounded_str):
            return _bounded(reader.max_length, "characters", path)
        return None

    def _elements(self, reader: Any, element: Convert | None, path: str) -> Convert | None:
        bound = getattr(reader, "max_length", None)
        check = None if bound is None else _bounded(bound, "elements", path)
        if element is None:
            return check

        def convert(values: Any) -> Any:
            return [element(one) for one in (values if check is None else check(values))]

        return convert

    def _optional(self, reader: Any, writer: Any, path: str, default: Any) -> Convert | None:
        """As of(), for a member that may have no value."""
        convert = self.of(reader, writer, path)
        if convert is None and default is None:
            return None
        return lambda value: (default() if default is not None else None) if value is None else (
            value if convert is None else convert(value))

    def _struct(self, reader: Any, writer: Any, path: str) -> Convert:
        theirs = {one.number: one for one in members(writer)}
        plain, changed, missing = [], [], []
        for one in members(reader):
            other = theirs.get(one.number)
            if other is None:
                missing.append((one.attribute, one.hint, one.optional))
                continue
            # A value that is there in one mutable type only sometimes, and in the other always.
            fill = None if one.optional or not other.optional else (lambda hint=one.hint: default_of(hint))
            name = f"{path}.{one.name}"
            convert = self._optional(one.hint, other.hint, name, fill) if other.optional else self.of(
                one.hint, other.hint, name)
            if convert is None:
                plain.append((one.attribute, other.attribute))
            else:
                changed.append((one.attribute, other.attribute, convert))

        def struct(value: Any) -> Any:
            return reader(**{to: getattr(value, name) for to, name in plain},
                          **{to: convert(getattr(value, name)) for to, name, convert in changed},
                          **{to: default_of(hint, optional) for to, hint, optional in missing})

        return struct

    def _union(self, reader: Any, writer: Any, path: str) -> Convert:
        switch = self.of(discriminator(reader), discriminator(writer), f"{path}.discriminator")
        mine, theirs = members(reader), members(writer)
        mine_else, theirs_else = (next((one for one in cases if one.default), None) for cases in (mine, theirs))
        mine_by, theirs_by = ({label: one for one in cases for label in one.labels} for cases in (mine, theirs))
        converts: dict[tuple[int, int], Convert | None] = {}
        for one in mine:
            for other in theirs:
                shared = set(one.labels) & set(other.labels) or (
                    one.default and (other.default or set(other.labels) - mine_by.keys())) or (
                    other.default and set(one.labels) - theirs_by.keys())
                if shared:
                    converts[one.number, other.number] = self.of(one.hint, other.hint, f"{path}.{one.name}")

        def union(value: Any) -> Any:
            label, content = value.get()
            if label is None:
                label = writer.__idl_default_discriminator__
            number = getattr(label, "value", label)
            one, other = mine_by.get(number, mine_else), theirs_by.get(number, theirs_else)
            if one is None or other is None:
                content = None if one is None else default_of(one.hint)
            else:
                convert = converts[one.number, other.number]
                content = content if convert is None or content is None else convert(content)
            return reader(discriminator=label if switch is None else switch(label), value=content)

        return union


def _bounded(bound: int, what: str, path: str) -> Convert:
    def check(value: Any) -> Any:
        if len(value) > bound:
            raise ValueError(f"{path} has {len(value)} {what}, the reader's type takes {bound}")
        return value

    return check


__all__ = ["conversion"]
