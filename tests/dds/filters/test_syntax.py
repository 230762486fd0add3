"""The grammar of expressions.

Goal: what DDS 1.4, annex B allows is understood; anything else is refused with the place and what may stand there.
"""

import pytest

from dds.filters.syntax import (
    DEPTH_MAX,
    DIGITS_MAX,
    EXPRESSION_MAX,
    AllOf,
    AnyOf,
    Comparison,
    ExpressionError,
    Field,
    Literal,
    Parameter,
    Query,
    parse,
    parse_literal,
)

A, B = Field(("a",)), Field(("b",))


def condition(text):
    return parse(text).condition


@pytest.mark.parametrize(("text", "left", "relation", "right"), [
    ("a = 1", A, "=", Literal(1)),
    ("a<>-1", A, "<>", Literal(-1)),
    ("a != 0x1F", A, "<>", Literal(31)),
    ("a >= 1.5e3", A, ">=", Literal(1500.0)),
    ("a <= .5", A, "<=", Literal(0.5)),
    ("a < 1e2", A, "<", Literal(100.0)),
    ("%12 > a", Parameter(12), ">", A),
    ("a = 'it''s'", A, "=", Literal("it's")),
    ("a = `left'", A, "=", Literal("left")),
    ("a = true", A, "=", Literal(True)),
    ("a LIKE 'x%'", A, "LIKE", Literal("x%")),
    ("a like %3", A, "LIKE", Parameter(3)),
    ("a.b[2].c = b", Field(("a", "b", 2, "c")), "=", B),
    ("order = 1", Field(("order",)), "=", Literal(1)),
    ("android = 1", Field(("android",)), "=", Literal(1)),
    ("länge = 1", Field(("länge",)), "=", Literal(1)),
    ('"not" = 1', Field(("not",)), "=", Literal(1)),
    ('a."wing area".true = 1', Field(("a", "wing area", "true")), "=", Literal(1)),
    ("a = 'x\ny'", A, "=", Literal("x\ny")),
])
def test_a_comparison(text, left, relation, right):
    assert condition(text) == Comparison(left, relation, right)


def test_and_binds_closer_than_or_and_not_closest():
    one, two, three = (Comparison(Field((name,)), "=", Literal(1)) for name in "abc")
    assert condition("a=1 or b=1 and c=1") == AnyOf((one, AllOf((two, three))))
    assert condition("(a=1 or b=1) and c=1") == AllOf((AnyOf((one, two)), three))
    not_one = Comparison(A, "=", Literal(1), negated=True)
    assert condition("not a=1 and b=1") == AllOf((not_one, two))
    assert condition("NOT (a=1 AND b=1)") == AnyOf((not_one, Comparison(B, "=", Literal(1), negated=True)))
    assert condition("not not a=1") == one


def test_between_includes_its_ends():
    low, high = Comparison(A, ">=", Literal(1)), Comparison(A, "<=", Parameter(0))
    assert condition("a between 1 and %0") == AllOf((low, high))
    assert condition("a between 1 and %0 and b=1") == AllOf((AllOf((low, high)), Comparison(B, "=", Literal(1))))
    assert condition("a not between 1 and %0") == condition("not a between 1 and %0")


def test_fields_are_shown_as_they_are_written():
    for text in ('a."wing area"[2]."true"', "a.b", '"not"'):
        assert str(condition(f"{text} = 1").left) == text


def test_order_and_nothing():
    assert parse("") == parse("  \n ") == Query(None)
    assert parse("ORDER BY a, b.c") == Query(None, (A, Field(("b", "c"))))
    assert parse("a=1 order  by b") == Query(Comparison(A, "=", Literal(1)), (B,))


@pytest.mark.parametrize(("text", "place", "expected"), [
    ("a = 1 b", "character 7: 'b' stands", "AND, OR, ORDER BY, the end"),
    ("a >", "character 4: its end stands", "a parameter (%0)"),
    ("a = %100", "character 5: '%100' stands", "a number"),
    ("a = 'open", "character 5", "'text'"),
    ("(a = 1", "character 7: its end", ")"),
    ("a = 1)", "character 6: ')'", "the end"),
    ("a LIKE b c", "character 10", "AND"),
    ('a."b = 1', "character 3", "a field"),
    ("1 BETWEEN a AND b", "character 3", "a comparison"),
    ("; drop table a", "character 1", "a field"),
])
def test_what_is_wrong_is_said_with_its_place(text, place, expected):
    with pytest.raises(ExpressionError) as raised:
        parse(text)
    assert place in str(raised.value) and expected in str(raised.value)


@pytest.mark.parametrize("text", ["1 = 2", "%0 = 1", "'a' < 'b'"])
def test_a_comparison_needs_a_field(text):
    with pytest.raises(ExpressionError, match="compares no field"):
        parse(text)


def test_limits_have_their_number_in_the_message():
    assert parse("a = '" + "x" * (EXPRESSION_MAX - 6) + "'")
    with pytest.raises(ExpressionError, match="8,193 characters; 8,192 are allowed"):
        parse("a = '" + "x" * (EXPRESSION_MAX - 5) + "'")
    for opening, closing in (("(", ")"), ("not ", ""), ("not (", ")")):
        levels = DEPTH_MAX // len(opening.split())
        assert parse(opening * levels + "a=1" + closing * levels)
        with pytest.raises(ExpressionError, match=f"more than {DEPTH_MAX} parentheses"):
            parse(opening * (levels + 1) + "a=1" + closing * (levels + 1))
    assert parse(f"a = {'9' * DIGITS_MAX}")
    for text in (f"a = {'9' * 5000}", f"a = 0x{'f' * 5000}", f"a[{'9' * 5000}] = 1", f"a = {'9' * (DIGITS_MAX + 1)}"):
        with pytest.raises(ExpressionError, match=f"digits; {DIGITS_MAX} are allowed"):
            parse(text)
    with pytest.raises(ExpressionError, match=f"more than {DEPTH_MAX} parentheses"):
        parse("(" * 4000 + "a=1" + ")" * 4000)
    with pytest.raises(TypeError):
        parse(b"a = 1")  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), ("-2.5", -2.5), ("'a b'", "a b"), ("TRUE", True), (" 0x10 ", 16), ("''", "")])
def test_literals(text, value):
    assert parse_literal(text) == value


@pytest.mark.parametrize("text", ["abc", "", "%1", "1 2", "a = 1"])
def test_what_is_no_literal(text):
    with pytest.raises(ExpressionError):
        parse_literal(text)
