"""Filters on samples of many shapes.

Goal: an expression decides alike by the payload, by the sample, and as this file's own reading of SQL says; over
unions, enumerations, optional members, sequences in sequences, text of all kinds, numbers at the ends of 64 bits, NaN.
Method: hypothesis makes samples and expressions of three types; the oracle walks the tree of an expression over plain
values, with None for what a sample lacks.
"""

import math
import operator
import re
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dds.codecs.types import codec_for
from dds.filters.expression import Expression
from dds.filters.syntax import AllOf, Comparison, Condition, ExpressionError, Field, Literal, parse
from dds.idl import IdlEnum, IdlStruct, IdlUnion
from dds.idl import annotations as annotate
from dds.idl.types import array, case, char, default, float32, int8, int16, int32, int64, sequence, uint8, uint64

I64 = -(1 << 63), (1 << 63) - 1
U64_MAX = (1 << 64) - 1


class Phase(IdlEnum, default_val="CLIMB"):
    CLIMB = 0
    CRUISE = 5
    LANDING = 1000


@dataclass
class Leg(IdlStruct):
    number: int16
    names: sequence[str]


class Choice(IdlUnion, discriminator=int32):
    x: case[1, int64]
    text: case[[2, 3], str]
    leg: case[4, Leg]
    other: default[float]


class ByPhase(IdlUnion, discriminator=Phase):
    x: case[Phase.CLIMB, int32]
    text: case[Phase.CRUISE, str]


@dataclass
class Plain(IdlStruct):  # decided by the payload, but for what lies behind its text
    a: int64
    b: uint64
    f: float
    g: float32
    s: int8
    phase: Phase
    phases: array[Phase, 2]
    grid: array[array[int16, 2], 2]
    raw: array[uint8, 3]
    flag: bool
    c: char
    t: str
    behind: int32


@dataclass
@annotate.appendable
class Nested(IdlStruct):  # decided by the sample
    a: int64
    choice: Choice
    by_phase: ByPhase
    some: Optional[int32]  # noqa: UP045  as IDL types of older programs are written
    leg: Optional[Leg]  # noqa: UP045
    legs: sequence[Leg]
    deep: sequence[sequence[int32]]
    phases: sequence[Phase]
    t: str


RECORD = np.dtype([("a", "<i8"), ("b", "<u8"), ("f", "<f8"), ("g", "<f4"), ("s", "i1"), ("flag", "?"),
                   ("grid", "<i2", (2, 2)), ("big", ">i4"), ("t", "U4"), ("bytes", "S4"),
                   ("leg", [("number", "<u2"), ("name", "U2")])])

TEXT = st.text("ab%_'\"\\\n.*[ü\U0001f600", max_size=4)
WHOLE = st.one_of(st.integers(-3, 3), st.sampled_from([*I64, I64[0] + 1, I64[1] - 1, 1 << 53, (1 << 53) + 1]))
COUNT = st.one_of(st.integers(0, 3), st.sampled_from([U64_MAX, U64_MAX - 1, 1 << 63, (1 << 53) + 1]))
NUMBER = st.sampled_from([0.0, -0.0, 0.5, -1.5, 2.0, 2.0 ** 53, 2.0 ** 63, 2.0 ** 64, math.inf, -math.inf, math.nan])
SMALL = st.integers(-3, 3)
PHASE = st.sampled_from(list(Phase))
LEG = st.builds(Leg, SMALL, st.lists(TEXT, max_size=2))
PLAIN = st.builds(
    Plain, WHOLE, COUNT, NUMBER, NUMBER, SMALL, st.one_of(PHASE, st.integers(0, 9)), st.tuples(PHASE, PHASE).map(list),
    st.lists(st.lists(SMALL, min_size=2, max_size=2), min_size=2, max_size=2),
    st.binary(min_size=3, max_size=3), st.booleans(), st.sampled_from("ab'"), TEXT, SMALL)
CHOICE = st.one_of(
    st.builds(lambda x: Choice(x=x), WHOLE), st.builds(lambda d, t: Choice(discriminator=d, value=t),
                                                       st.sampled_from([2, 3]), TEXT),
    st.builds(lambda leg: Choice(leg=leg), LEG), st.builds(lambda d, f: Choice(discriminator=d, value=f),
                                                           st.sampled_from([0, -7, I64[0] >> 32]), NUMBER))
BY_PHASE = st.one_of(st.builds(lambda x: ByPhase(x=x), SMALL), st.builds(lambda t: ByPhase(text=t), TEXT))
NESTED = st.builds(
    Nested, WHOLE, CHOICE, BY_PHASE, st.none() | SMALL, st.none() | LEG, st.lists(LEG, max_size=2),
    st.lists(st.lists(SMALL, max_size=2), max_size=2), st.lists(PHASE, max_size=2), TEXT)


@st.composite
def records(draw: st.DrawFn) -> Any:
    one = np.zeros((), RECORD)
    text = st.text("ab%_'ü\U0001f600", max_size=4)
    for name, values in (("a", WHOLE), ("b", COUNT), ("f", NUMBER), ("g", NUMBER), ("s", SMALL), ("big", SMALL),
                         ("flag", st.booleans()), ("t", text), ("bytes", st.binary(max_size=4))):
        one[name] = draw(values)
    one["grid"] = draw(st.lists(SMALL, min_size=4, max_size=4).map(lambda four: [four[:2], four[2:]]))
    one["leg"] = (draw(st.integers(0, 3)), draw(st.text("ab%", max_size=2)))
    return one


# Fields by what they are compared with, of each type.
FIELDS: dict[Any, dict[str, list[str]]] = {
    Plain: {"number": ["a", "b", "f", "g", "s", "grid[1][0]", "grid[0][1]", "raw[2]", "behind"], "flag": ["flag"],
            "text": ["t", "c"], "phase": ["phase", "phases[0]", "phases[1]"]},
    Nested: {"number": ["a", "choice.x", "choice.other", "choice.leg.number", "choice.discriminator", "by_phase.x",
                        "some", "leg.number", "legs[0].number", "legs[1].number", "deep[0][0]", "deep[1][1]"],
             "text": ["t", "choice.text", "choice.leg.names[0]", "by_phase.text", "leg.names[1]", "legs[1].names[0]"],
             "phase": ["by_phase.discriminator", "phases[0]", "phases[1]"]},
    "record": {"number": ["a", "b", "f", "g", "s", "grid[1][0]", "big", "leg.number"], "flag": ["flag"],
               "text": ["t", "bytes", "leg.name"]},
}
RELATIONS = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


NUMBERS = st.one_of(
    WHOLE.map(str), COUNT.map(str), SMALL.map(lambda n: f"{n}.5"),
    st.sampled_from(["-9223372036854775809", "18446744073709551616", "9223372036854775807.0", "1.8446744073709552e19",
                     "0x7FFFFFFFFFFFFFFF", "-0x8000000000000000", "-0.0", "1e400", "-.5"]))
LABELS = st.sampled_from(["'CLIMB'", "'CRUISE'", "'LANDING'", "0", "5", "7", "-1", "1000"])
PATTERNS = st.text("ab%_'.*[ü\U0001f600", max_size=4).map(quoted)


def expressions(fields: dict[str, list[str]]) -> st.SearchStrategy[str]:
    kinds = {name: st.sampled_from(names) for name, names in fields.items()}
    constants = {"number": NUMBERS, "text": TEXT.map(quoted), "phase": LABELS,
                 "flag": st.sampled_from(["TRUE", "false", "0", "1"])}
    texts = st.sampled_from([one for one in fields["text"] if one != "c"])
    leaves = [st.builds("{} LIKE {}".format, texts, PATTERNS)]
    for kind, names in kinds.items():
        constant = constants[kind]
        fitting = st.sampled_from([one for one in fields[kind] if one != "c"])  # a char is one character
        leaves += [st.builds("{} {} {}".format, fitting, RELATIONS, constant),
                   st.builds("{} {} {}".format, constant, RELATIONS, fitting),
                   st.builds("{} {} {}".format, names, RELATIONS, names),
                   st.builds("{} {} {} AND {}".format, fitting, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), constant,
                             constant)]
    return st.recursive(st.one_of(*leaves), lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner), st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]),
                                                       inner)), max_leaves=4)


# --- the oracle

OPERATORS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
             ">=": operator.ge}


def plain(value: Any) -> Any:
    """An enumeration's number, a record's text and number as Python has them."""
    if isinstance(value, Phase):
        return value.value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value.item() if hasattr(value, "item") else value


def value_of(sample: Any, field: Field) -> Any:
    """What the sample has there, None if nothing."""
    value = sample
    for step in field.path:
        if value is None:
            return None
        if isinstance(step, int):
            value = value[step] if step < len(value) else None
        elif isinstance(value, IdlUnion):
            active, content = value.get()
            if step == "discriminator":
                value = active
            else:
                cases = value.__idl_cases__
                name = cases[active][0] if active in cases else (value.__idl_default__ or [None])[0]
                value = content if name == step else None
        elif isinstance(value, (np.void, np.ndarray)):
            value = value[step]
        else:
            value = getattr(value, step)
    return None if value is None else plain(value)


def like(text: str, pattern: str) -> bool:
    return re.fullmatch("".join(".*" if one == "%" else "." if one == "_" else re.escape(one) for one in pattern), text,
                        re.DOTALL) is not None


def expected(condition: Condition, sample: Any) -> bool:
    if not isinstance(condition, Comparison):
        parts = [expected(part, sample) for part in condition.parts]
        return all(parts) if isinstance(condition, AllOf) else any(parts)
    sides = []
    for one in (condition.left, condition.right):
        if isinstance(one, Literal):
            value = one.value
            sides.append(Phase[value].value if isinstance(value, str) and value in Phase.__members__ else value)
        else:
            assert isinstance(one, Field)
            sides.append(value_of(sample, one))
    if None in sides:
        return False
    found = like(*sides) if condition.relation == "LIKE" else OPERATORS[condition.relation](*sides)
    return bool(found) != condition.negated


def agree(data_type: Any, sample: Any, text: str, versions: tuple[int, ...] = (0,)) -> None:
    for version in versions:
        codec = codec_for(data_type, version)
        bound = Expression(text, codec).bind()
        payload = codec.encode(sample)
        condition = parse(text).condition
        assert condition is not None
        decoded = codec.decode(payload)
        says = expected(condition, decoded)
        assert bound.of_payload(payload) in (None, says), text
        assert bound.of_sample(decoded) == says, text


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(PLAIN, expressions(FIELDS[Plain]))
def test_plain_members(sample: Plain, text: str) -> None:
    agree(Plain, sample, text, (1, 2))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(NESTED, expressions(FIELDS[Nested]))
def test_what_a_sample_may_lack(sample: Nested, text: str) -> None:
    agree(Nested, sample, text)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(records(), expressions(FIELDS["record"]))
def test_records(sample: Any, text: str) -> None:
    agree(RECORD, sample, text)


def test_a_union_has_the_member_that_its_discriminator_says() -> None:
    def nested(choice: Choice) -> Nested:
        return Nested(0, choice, ByPhase(x=1), None, None, [], [], [], "")

    for choice, passes in (
            (Choice(x=5), ["choice.x = 5", "choice.discriminator = 1", "not choice.x = 6"]),
            (Choice(discriminator=3, value="it's"), ["choice.text = 'it''s'", "choice.discriminator = 3"]),
            (Choice(discriminator=9, value=0.5), ["choice.other < 1", "choice.discriminator > 4"])):
        for text in passes:
            agree(Nested, nested(choice), text)
            assert Expression(text, codec_for(Nested)).bind().of_sample(nested(choice)), text
    for text, why in (("choice.y = 1", "Choice has no field 'y'; it has discriminator, x, text, leg, other"),
                      ("choice = 1", "choice is a Choice, which can't be compared"),
                      ("choice[0] = 1", "has no elements"),
                      ("by_phase.discriminator = 'TAXI'", "its labels are CLIMB")):
        with pytest.raises(ExpressionError, match=re.escape(why)):
            Expression(text, codec_for(Nested))


def test_what_is_no_number_leaves_the_others_in_their_order() -> None:
    values = [3.0, math.nan, 1.0, math.nan, -math.inf, 2.0, math.inf]
    order = Expression("ORDER BY f", codec_for(RECORD)).bind().order
    records = np.zeros(len(values), RECORD)
    records["f"] = values
    found = [float(one["f"]) for one in sorted(records, key=order)]
    assert found[:5] == [-math.inf, 1.0, 2.0, 3.0, math.inf] and all(map(math.isnan, found[5:]))
    missing = Expression("ORDER BY choice.other", codec_for(Nested)).bind().order
    samples = [Nested(0, choice, ByPhase(x=1), None, None, [], [], [], "")
               for choice in (Choice(x=1), Choice(other=math.nan), Choice(other=2.0), Choice(other=1.0))]
    assert [samples.index(one) for one in sorted(samples, key=missing)] == [3, 2, 1, 0]
