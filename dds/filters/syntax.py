"""The text of a filter or query expression, as a tree. DDS 1.4, annex B.

    altitude > 3000 AND (phase = 'CLIMB' OR NOT engines[0].n1 BETWEEN %0 AND %1) ORDER BY altitude

- fields: members by name, of structs in structs by a.b, of arrays and sequences by a[0]; a name that is a word of this
  language, or has other characters than letters, digits and _, stands in double quotes: "not"
- literals: whole numbers (also 0x1F), floating point numbers, 'text' (a ' in it is written ''), TRUE and FALSE; the
  label of an enumeration stands in quotes like text
- parameters: %0 to %99
- comparisons: = <> != < <= > >= LIKE (% any text, _ any one character), BETWEEN ... AND ..., NOT BETWEEN
- AND, OR, NOT and parentheses; words in capitals may also be written small
- ORDER BY fields: in queries only

Why a library parses: lark tells where a text is wrong and what could stand there.

Rules: nothing here knows a type. NOT is worked into the comparisons, so that a field that a sample lacks (an element
beyond a sequence's end, an optional member) makes every comparison of it false, negated or not, as SQL's NULL does.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

EXPRESSION_MAX = 8192  # characters
DEPTH_MAX = 64  # of parentheses and NOTs within each other
PARAMETERS_MAX = 100
DIGITS_MAX = 40  # of a whole number; 2**128 has 39

GRAMMAR = r"""
query: [condition] [_ORDER_BY field ("," field)*]
?condition: conjunction (_OR conjunction)* -> any_of
?conjunction: negation (_AND negation)* -> all_of
?negation: _NOT negation -> negated
    | operand RELATION operand -> comparison
    | field _BETWEEN value _AND value -> between
    | field _NOT _BETWEEN value _AND value -> not_between
    | "(" condition ")" -> nested
?operand: field | value
field: NAME (("." NAME) | ("[" PLACE "]"))*
value: FLOAT -> float_value
    | INTEGER -> integer_value
    | TEXT -> text_value
    | TRUTH -> truth_value
    | PARAMETER -> parameter
literal: FLOAT -> float_value
    | INTEGER -> integer_value
    | TEXT -> text_value
    | TRUTH -> truth_value

_ORDER_BY.3: /order\s+by\b/i
_AND.2: /and\b/i
_OR.2: /or\b/i
_NOT.2: /not\b/i
_BETWEEN.2: /between\b/i
TRUTH.2: /(true|false)\b/i
RELATION: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">" | /like\b/i
PARAMETER: /%\d{1,2}(?!\d)/
FLOAT.2: /[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?/
INTEGER: /[+-]?(0[xX][0-9a-fA-F]+|\d+)/
PLACE: /\d+/
TEXT: /[`'](?:[^']|'')*'/
NAME: /[^\W\d]\w*|"[^"\n]+"/
%ignore /\s+/
"""

WORDS = {
    "_ORDER_BY": "ORDER BY", "_AND": "AND", "_OR": "OR", "_NOT": "NOT", "_BETWEEN": "BETWEEN", "TRUTH": "TRUE or FALSE",
    "RELATION": "a comparison (= <> < <= > >= LIKE)", "PARAMETER": "a parameter (%0)", "FLOAT": "a number",
    "INTEGER": "a number", "TEXT": "'text'", "NAME": "a field", "PLACE": "a number", "LPAR": "(", "RPAR": ")",
    "LSQB": "[", "RSQB": "]", "DOT": ".", "COMMA": ",", "$END": "the end"}


class ExpressionError(ValueError):
    """The text is no expression, or doesn't fit the type; the message says where and why."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A path to a member: names of members and places in arrays."""

    path: tuple[str | int, ...]

    def __str__(self) -> str:
        return "".join(f"[{step}]" if isinstance(step, int) else f".{_quoted(step)}" for step in self.path)[1:]


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.lower() not in ("not", "true", "false") else f'"{name}"'


@dataclasses.dataclass(frozen=True)
class Literal:
    value: int | float | str | bool

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value).upper() if isinstance(self.value, bool) else str(self.value)


@dataclasses.dataclass(frozen=True)
class Parameter:
    number: int

    def __str__(self) -> str:
        return f"%{self.number}"


Operand = Field | Literal | Parameter


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`relation` is one of = <> < <= > >= LIKE; `negated` = the opposite, but still false where a field is missing."""

    left: Operand
    relation: str
    right: Operand
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class AllOf:
    parts: tuple[Condition, ...]


@dataclasses.dataclass(frozen=True)
class AnyOf:
    parts: tuple[Condition, ...]


Condition = Comparison | AllOf | AnyOf


@dataclasses.dataclass(frozen=True)
class Query:
    """An expression: None as `condition` means all samples; `order` are the fields of ORDER BY."""

    condition: Condition | None
    order: tuple[Field, ...] = ()


def parse(text: str) -> Query:
    """The tree of an expression. Raises ExpressionError."""
    if not isinstance(text, str):
        raise TypeError(f"an expression must be a str, not {text!r}")
    if len(text) > EXPRESSION_MAX:
        raise ExpressionError(f"the expression has {len(text):,} characters; {EXPRESSION_MAX:,} are allowed")
    query: Query = _parse(text, "query")
    return query


def parse_literal(text: str) -> int | float | str | bool:
    """The value of a parameter that is written as annex B wants it: text in quotes. Raises ExpressionError."""
    literal: Literal = _parse(text, "literal")
    return literal.value


def _parse(text: str, start: str) -> Any:
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, VisitError

    try:
        return _parser().parse(text, start=start)
    except VisitError as error:
        raise error.orig_exc from None
    except UnexpectedInput as error:
        names = error.allowed if isinstance(error, UnexpectedCharacters) else getattr(error, "accepts", None)
        names = names or getattr(error, "expected", ())
        expected = sorted({WORDS.get(name, name) for name in names or ()})
        ended = getattr(getattr(error, "token", None), "type", "") == "$END"
        place = len(text) if ended or error.pos_in_stream is None else error.pos_in_stream
        found = repr(text[place:place + 20]) if place < len(text.rstrip()) else "its end"
        raise ExpressionError(f"the expression {_shown(text, place)} is wrong at character {place + 1}: {found} stands "
                              f"where this may stand: {', '.join(expected)}") from None


def _shown(text: str, place: int) -> str:
    """The part of a text around `place` that fits a line."""
    if len(text) <= 60:
        return repr(text)
    begin = max(0, min(place - 30, len(text) - 60))
    return f"{'...' if begin else ''}{text[begin:begin + 60]!r}{'...' if begin + 60 < len(text) else ''}"


@functools.lru_cache(maxsize=1)
def _parser() -> Any:
    from lark import Lark, Transformer, v_args

    @v_args(inline=True)
    class Build(Transformer):
        """Makes the tree while the text is being parsed. Conditions come as (condition, depth)."""

        def float_value(self, token: Any) -> Literal:
            return Literal(float(token))

        def integer_value(self, token: Any) -> Literal:
            return Literal(whole_number(token))

        def text_value(self, token: Any) -> Literal:
            return Literal(str(token[1:-1]).replace("''", "'"))

        def truth_value(self, token: Any) -> Literal:
            return Literal(token.lower() == "true")

        def parameter(self, token: Any) -> Parameter:
            return Parameter(int(token[1:]))

        def field(self, *steps: Any) -> Field:
            return Field(tuple(whole_number(step) if step.type == "PLACE" else step.strip('"') for step in steps))

        def comparison(self, left: Operand, relation: Any, right: Operand) -> Any:
            if not isinstance(left, Field) and not isinstance(right, Field):
                raise ExpressionError(f"{left} {relation} {right} compares no field of the sample")
            name = "<>" if relation == "!=" else str(relation).upper()
            return Comparison(left, name, right), 0

        def between(self, field: Field, low: Operand, high: Operand) -> Any:
            return AllOf((Comparison(field, ">=", low), Comparison(field, "<=", high))), 0

        def not_between(self, field: Field, low: Operand, high: Operand) -> Any:
            return negation(self.between(field, low, high)[0]), 0

        def nested(self, inner: Any) -> Any:
            return self._deeper(*inner)

        def negated(self, inner: Any) -> Any:
            return self._deeper(negation(inner[0]), inner[1])

        def _deeper(self, condition: Condition, depth: int) -> Any:
            if depth >= DEPTH_MAX:
                raise ExpressionError(f"the expression has more than {DEPTH_MAX} parentheses or NOTs within each other")
            return condition, depth + 1

        def all_of(self, *parts: Any) -> Any:
            return self._together(AllOf, parts)

        def any_of(self, *parts: Any) -> Any:
            return self._together(AnyOf, parts)

        def _together(self, kind: type[AllOf] | type[AnyOf], parts: tuple[Any, ...]) -> Any:
            if len(parts) == 1:
                return parts[0]
            return kind(tuple(part[0] for part in parts)), max(part[1] for part in parts)

        def query(self, condition: Any, *order: Any) -> Query:
            return Query(condition and condition[0], tuple(one for one in order if one is not None))

    return Lark(GRAMMAR, parser="lalr", transformer=Build(), start=["query", "literal"], maybe_placeholders=True)


def whole_number(text: str) -> int:
    """The value of digits, also hexadecimal ones behind 0x. Raises ExpressionError if they are too many."""
    if len(text) > DIGITS_MAX:
        raise ExpressionError(f"the number {text[:10]}... has {len(text):,} digits; {DIGITS_MAX} are allowed")
    return int(text, 16) if "x" in text.lower() else int(text)


def negation(condition: Condition) -> Condition:
    """The opposite, by De Morgan's laws down to the comparisons."""
    if isinstance(condition, Comparison):
        return dataclasses.replace(condition, negated=not condition.negated)
    parts = tuple(negation(part) for part in condition.parts)
    return AnyOf(parts) if isinstance(condition, AllOf) else AllOf(parts)


__all__ = ["AllOf", "AnyOf", "Comparison", "ExpressionError", "Field", "Literal", "Parameter", "Query", "parse",
           "parse_literal"]
