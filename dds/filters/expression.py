"""Expressions that fit a type: checked once, and made into Python functions that decide about samples.

Why source text: a tree that is walked for every sample costs several times what one function costs. The text is made
of what this module writes, of the type's own member names, and of names for constants; nothing that a user wrote gets
into it.

Rules: what can't be compared is refused when the expression is made, and a parameter when it is set: a number with a
text, a label that the enumeration doesn't have, LIKE of a number. Whole numbers and floating point numbers compare as
numbers, a boolean with TRUE, FALSE, 0 and 1, a char with a text of one character, an enumeration by its labels or
numbers.
"""

from __future__ import annotations

import dataclasses
import decimal
import enum
import math
import numbers
import re
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dds.filters.content import Undecided
from dds.filters.fields import HELPERS, NUMBERS, TEXTS, Member, Place, header, member
from dds.filters.syntax import (
    PARAMETERS_MAX,
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    ExpressionError,
    Field,
    Literal,
    Operand,
    Parameter,
    parse,
    parse_literal,
)
from spindle.errors import give_way

if TYPE_CHECKING:
    from dds.codecs.types import Codec

NUMBER_BITS_MAX = 128  # of a parameter that is a whole number

_OPERATORS = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclasses.dataclass(frozen=True)
class _Use:
    """What an operand that is no field is compared with; what it may be depends on that."""

    member: Member
    field: Field
    like: bool


class Expression:
    """An expression of DDS's SQL for the samples of one codec.

    Raises ExpressionError if `text` is none, or doesn't fit the type. `parameters_count` is how many parameters it
    needs exactly, `has_order` whether it ends with ORDER BY.
    """

    def __init__(self, text: str, codec: Codec) -> None:
        self.text = text
        self._query = parse(text)
        self._codec = codec
        self._fields: dict[Field, Member] = {}
        self._uses: list[tuple[Operand, _Use]] = []
        if self._query.condition is not None:
            self._check(self._query.condition)
        for field in self._query.order:
            self._member(field)
        self.has_order = bool(self._query.order)
        self.parameters_count = max(
            (one.number for one, _ in self._uses if isinstance(one, Parameter)), default=-1) + 1
        for one, use in self._uses:
            if isinstance(one, Literal):
                _value(str(one), one.value, use)
        self._from_sample = self._write_for_samples()
        self._from_payload = self._write_for_payloads()
        self._key = self._write_key()

    def bind(self, parameters: Sequence[Any] = ()) -> BoundExpression:
        """The expression with these parameters: each a Python value, or a str with what could stand in the expression,
        text and labels in quotes. Raises ExpressionError if they are too few, too many, or don't fit."""
        given = parameters
        if len(given) > PARAMETERS_MAX:
            raise ExpressionError(f"{len(given)} parameters are given; {PARAMETERS_MAX} are allowed, %0 to "
                                  f"%{PARAMETERS_MAX - 1}")
        if len(given) != self.parameters_count:  # DDS 1.4, 2.2.2.3.3: their number fits that of the tokens
            raise ExpressionError(f"the expression {self.text!r} needs {self.parameters_count} parameters, "
                                  f"{len(given)} are given")
        values = []
        for one, use in self._uses:
            if isinstance(one, Literal):
                values.append(_value(str(one), one.value, use))
            elif isinstance(one, Parameter):
                values.append(_value(str(one), _parameter(one, given[one.number], use), use))
        from_payload = None if self._from_payload is None else self._from_payload(*values)
        return BoundExpression(self._from_sample(*values), from_payload, self._key)

    # --- checking

    def _member(self, field: Field) -> Member:
        if field not in self._fields:
            self._fields[field] = member(self._codec, field)
        return self._fields[field]

    def _check(self, condition: Condition) -> None:
        if not isinstance(condition, Comparison):
            for part in condition.parts:
                self._check(part)
            return
        left, right, like = condition.left, condition.right, condition.relation == "LIKE"
        if like and not isinstance(left, Field):
            raise ExpressionError(f"{left} LIKE {right}: the field comes first")
        if isinstance(left, Field) and isinstance(right, Field):
            one, other = self._member(left), self._member(right)
            if like or not _comparable(one, other):
                raise ExpressionError(f"{left} {condition.relation} {right}: "
                                      f"{_article(one.kind)} can't be compared with {_article(other.kind)} like that")
            return
        field, constant = (left, right) if isinstance(left, Field) else (right, left)
        assert isinstance(field, Field)
        found = self._member(field)
        if like and found.kind != "text":
            raise ExpressionError(f"{field} LIKE {constant}: LIKE compares text, {field} is {_article(found.kind)}")
        self._uses.append((constant, _Use(found, field, like)))

    # --- writing

    def _write_for_samples(self) -> Callable[..., Any]:
        names = {field: one.accessor for field, one in self._fields.items()}
        getters = {f"get{place}": _getter(one.accessor) for place, one in enumerate(self._fields.values())}
        for place, (field, one) in enumerate(self._fields.items()):
            if one.optional:
                names[field] = f"get{place}(sample)"
        return _function("sample", self._arguments(), [], self._source(names), getters)

    def _write_for_payloads(self) -> Callable[..., Any] | None:
        if self._query.condition is None:
            return lambda: lambda payload: True
        used = [field for field in self._fields if self._is_in_condition(field)]
        places = [self._fields[field].place for field in used]
        if not used or any(place is None for place in places):
            return None
        names = {field: f"field{number}" for number, field in enumerate(used)}
        lines, constants = _unpacking([place for place in places if place is not None])
        begin = header(self._codec)
        if begin:
            constants["BEGIN"] = begin
            lines.insert(0, f"if sample[:{len(begin)}] != BEGIN: return None")
        if self._codec.kind == "numpy":
            lines.insert(0, f"if len(sample) != {self._codec.size_max}: return None")
        return _function("sample", self._arguments(), lines, self._source(names), constants)

    def _is_in_condition(self, field: Field) -> bool:
        def names(condition: Condition) -> bool:
            if isinstance(condition, Comparison):
                return field in (condition.left, condition.right)
            return any(names(part) for part in condition.parts)

        return self._query.condition is not None and names(self._query.condition)

    def _write_key(self) -> Callable[[Any], Any] | None:
        """What ORDER BY sorts by. Where a field is missing the sample comes last, and before those the ones whose field
        is no number: comparing with NaN is always false, which would leave all others in no order."""
        getters = [_getter(self._fields[field].accessor) for field in self._query.order]
        if not getters:
            return None

        def key(sample: Any) -> Any:
            return [(2, 0) if value is None else (1, 0) if value != value else (0, value)
                    for value in (get(sample) for get in getters)]

        return key

    def _arguments(self) -> list[str]:
        return [f"constant{number}" for number in range(len(self._uses))]

    def _source(self, names: dict[Field, str]) -> str:
        if self._query.condition is None:
            return "True"
        self._next_constant = 0
        return self._source_of(self._query.condition, names)

    def _source_of(self, condition: Condition, names: dict[Field, str]) -> str:
        if isinstance(condition, (AllOf, AnyOf)):
            parts = [self._source_of(part, names) for part in condition.parts]
            return f"({(' and ' if isinstance(condition, AllOf) else ' or ').join(parts)})"
        present, sides = [], []
        for side, operand in (("left", condition.left), ("right", condition.right)):
            if not isinstance(operand, Field):
                sides.append(f"constant{self._next_constant}")
                self._next_constant += 1
            elif self._fields[operand].optional:
                present.append(f"({side} := {names[operand]}) is not None")
                sides.append(side)
            else:
                sides.append(names[operand])
        if condition.relation == "LIKE":
            text = f"{'not ' if condition.negated else ''}{sides[1]}({sides[0]})"
        else:
            text = f"{sides[0]} {_OPERATORS[condition.relation]} {sides[1]}"
            text = f"not {text}" if condition.negated else text
        return f"({' and '.join([*present, text])})"


class BoundExpression:
    """An expression with its parameters. See `dds.filters.content.Content`.

    order  sort key of a sample, None without ORDER BY
    """

    def __init__(self, from_sample: Callable[[Any], Any], from_payload: Callable[[Any], Any] | None,
                 order: Callable[[Any], Any] | None) -> None:
        self._from_sample = from_sample
        self._from_payload = from_payload
        self.order = order

    def of_sample(self, sample: Any) -> bool:
        try:
            return bool(self._from_sample(sample))
        except Exception as error:  # a record whose text is none, say; samples of other programs may hold anything
            give_way(error)
            raise Undecided(f"it has not the values that its type promises: {error}") from error

    def of_payload(self, payload: bytes) -> bool | None:
        if self._from_payload is None:
            return None
        try:
            verdict: bool | None = self._from_payload(payload)
            return verdict
        except (struct.error, UnicodeDecodeError):
            return None  # not a sample; whoever decodes it says so

    @property
    def knows_payloads(self) -> bool:
        """True if it decides without decoding."""
        return self._from_payload is not None


# --- values

def _parameter(parameter: Parameter, given: Any, use: _Use) -> Any:
    """The value of a parameter; text is read as a part of the expression, as DDS has it."""
    if not isinstance(given, str):
        return given
    try:
        return parse_literal(given)
    except ExpressionError:
        shown = repr(given) if len(given) <= 60 else f"{given[:60]!r}..."
        raise ExpressionError(f"parameter {parameter}, {shown}, is no value to compare {use.field} with: write a "
                              "number as 12.5, and text or a label in quotes, as \"'text'\"") from None


def _value(name: str, value: Any, use: _Use) -> Any:
    """`value` as it is compared with the field: a bool, int, float or str. Raises ExpressionError if it can't be."""
    kind = use.member.kind
    value = value.name if isinstance(value, enum.Enum) and kind == "enumeration" else _plain(name, value)
    fits: bool
    if kind in NUMBERS:
        fits = _is_number(value)
    elif kind == "boolean":
        fits = isinstance(value, bool) or (_is_number(value) and value in (0, 1))
    elif kind == "enumeration":
        labels = use.member.labels or {}
        if isinstance(value, str) and value not in labels:
            raise ExpressionError(f"{use.field} is compared with {value!r}: its labels are {', '.join(labels)}")
        value = labels[value] if isinstance(value, str) else value
        fits = _is_number(value)
    else:
        fits = isinstance(value, str) and (kind == "text" or len(value) == 1)
    if not fits:
        raise ExpressionError(f"{use.field} is compared with {name}" + (f" = {value!r}" if name[0] == "%" else "")
                              + f": {_article(kind)} can't be compared with that")
    return _like(value) if use.like else value


def _plain(name: str, value: Any) -> Any:
    """`value` as a type of Python's own, if it is a number: comparing it then costs little, and raises nothing."""
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "shape", None) == ():  # NumPy's scalars compare by rules of their own
        value = item()
    if isinstance(value, (bool, str)) or not isinstance(value, (numbers.Real, decimal.Decimal)):
        return value
    if not isinstance(value, (int, float)):
        try:
            whole = math.floor(value)
            value = whole if value == whole else float(value)
        except (ValueError, ArithmeticError):  # not a number, or infinite
            value = float(value)
    if isinstance(value, int) and abs(value) >> NUMBER_BITS_MAX:
        raise ExpressionError(f"{name} has {value.bit_length():,} bits; {NUMBER_BITS_MAX} are allowed")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _like(pattern: str) -> Callable[[str], bool]:
    """What LIKE means: % is any text, _ any one character.

    Why not one regular expression: with many % it would try every way to spread the text over them. Taking the first
    place for each part between two % is enough, because what is left for the next part is longest then.
    """
    parts = [(re.compile(re.escape(part).replace("_", "."), re.DOTALL), len(part)) for part in pattern.split("%")]
    if len(parts) == 1:
        whole = parts[0][0]
        return lambda text: whole.fullmatch(text) is not None
    (first, first_size), *middle, (last, last_size) = parts
    middle = [(part, size) for part, size in middle if size]

    def decide(text: str) -> bool:
        place, end = first_size, len(text) - last_size
        if end < place or not first.match(text) or not last.match(text, end):
            return False
        for part, _ in middle:
            found = part.search(text, place, end)
            if found is None:
                return False
            place = found.end()
        return True

    return decide


def _comparable(one: Member, other: Member) -> bool:
    return (one.kind in NUMBERS and other.kind in NUMBERS) or (one.kind in TEXTS and other.kind in TEXTS) or (
        one.kind == other.kind and one.labels == other.labels)


def _article(kind: str) -> str:
    return {"integer": "a whole number", "float": "a number", "enumeration": "an enumeration"}.get(kind, f"a {kind}")


# --- source text

def _getter(accessor: str) -> Callable[[Any], Any]:
    """sample -> the value, None where the sample lacks it."""
    get: Callable[[Any], Any] = _function("sample", [], [], accessor, {})()

    def value(sample: Any) -> Any:
        try:
            return get(sample)
        except (AttributeError, IndexError, TypeError):  # an element beyond the end, a member of what is None
            return None

    return value


def _unpacking(places: list[Place]) -> tuple[list[str], dict[str, Any]]:
    """Lines that unpack the values of `places` from `sample` into field0, field1, ..., and the constants they need."""
    lines: list[str] = []
    constants: dict[str, Any] = {}
    order = sorted((number for number, place in enumerate(places) if place.code), key=lambda n: places[n].offset)
    form, targets, at = "<", "", 0
    for number in [*order, -1]:
        if targets and (number < 0 or places[number].offset < at):  # the end, or a field that shares bytes with another
            name = f"unpack{len(constants)}"
            constants[name] = struct.Struct(form).unpack_from
            lines.append(f"{targets}= {name}(sample)")
            form, targets, at = "<", "", 0
        if number >= 0:
            place = places[number]
            form += f"{place.offset - at}x{place.code}"
            at = place.offset + struct.calcsize("<" + place.code)
            targets += f"field{number}, "
    for number, place in enumerate(places):
        if not place.code:  # a CDR string: its length, then its bytes and a zero
            constants["unpack_size"] = struct.Struct("<I").unpack_from
            begin = place.offset + 4
            lines.append(f"size, = unpack_size(sample, {place.offset})")
            lines.append(f"if {begin} + size > len(sample): return None")
            lines.append(f"field{number} = str(sample[{begin}:{begin - 1} + size], 'utf-8')")
        elif place.convert != "{}":
            lines.append(f"field{number} = {place.convert.format(f'field{number}')}")
    return lines, constants


def _function(argument: str, constants: list[str], lines: list[str], result: str, names: dict[str, Any]
              ) -> Callable[..., Any]:
    """A function that takes the constants and returns the function of `argument` whose lines and result these are."""
    text = "\n".join([
        f"def make({', '.join(constants)}):", f"    def decide({argument}):", *("        " + one for one in lines),
        f"        return {result}", "    return decide"])
    namespace = {**HELPERS, **names}
    exec(compile(text, "<expression>", "exec"), namespace)
    made: Callable[..., Any] = namespace["make"]
    return made


__all__ = ["BoundExpression", "Expression"]
