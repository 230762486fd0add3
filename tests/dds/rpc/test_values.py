"""Goal: every annotated type of the table goes through its bytes and back; what isn't of the type is refused with the
name of the field; bytes of others raise nothing but ValueError.

Method: values of each type, and Hypothesis for foreign bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dds.idl import IdlStruct
from dds.idl.types import array, bounded_str, int32
from dds.rpc.values import Fields


@dataclass
class Point(IdlStruct):
    x: float
    y: float


VALUES = [
    (bool, True), (int, -(1 << 63)), (float, 1.5), (str, "höhe"), (bytes, b"\0\xff"), (int32, -7), (Point, Point(1, 2)),
    (bounded_str[4], "four"), (array[int32, 3], [1, 2, 3]),
    (list[int], [3, 1]), (Sequence[str], ["a", ""]), (tuple[int, ...], (4, 5)), (tuple[int, str], (1, "one")),
    (set[int], {5, 1, 3}), (frozenset[str], frozenset("ab")), (dict[str, int], {"b": 1, "a": 2}),
    (Mapping[int, list[Point]], {1: [Point(0, 1)], 2: []}), (int | None, None), (int | None, 0),
    (list[dict[str, tuple[int, bytes]]], [{"k": (1, b"v")}, {}]), (Point | None, Point(3, 4)),
    (set[tuple[int, str]], {(2, "b"), (1, "a"), (1, "b")}), (frozenset[int | None], frozenset([None, 3, 1])),
    (set[frozenset[tuple[int, int]]], {frozenset([(1, 2), (3, 4)]), frozenset([(1, 2)]), frozenset()}),
    (dict[str, set[int]], {"s": {2, 1}}), (list[int | None], [1, None]),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=[str(one[0]) for one in VALUES])
def test_there_and_back(annotation: object, value: object) -> None:
    fields = Fields("Test", {"first": annotation, "second": annotation})
    back = fields.decode(fields.encode((value, value)))
    assert back == [value, value] and all(type(one) is type(value) for one in back)


def test_equal_sets_have_equal_bytes_and_dictionaries_keep_their_order() -> None:
    """Goal: the state of a replicated object has one form; the order of a dictionary belongs to its state."""
    sets = Fields("Test", {"one": set[int]})
    assert sets.encode(({1 << 40, 3, 7},)) == sets.encode(({7, 3, 1 << 40},))
    rows = Fields("Test", {"one": set[tuple[str, int | None]]})
    given = [("a", None), ("b", 2), ("a", 1), ("b", None), ("", 5)]
    assert rows.encode((set(given),)) == rows.encode((set(reversed(given)),))
    pairs = Fields("Test", {"one": dict[str, int]})
    assert list(pairs.decode(pairs.encode(({"z": 1, "a": 2},)))[0]) == ["z", "a"]


def test_no_fields_are_no_bytes() -> None:
    empty = Fields("Test", {})
    assert empty.encode(()) == b"" and empty.decode(b"") == []
    with pytest.raises(ValueError, match="none are expected"):
        empty.decode(b"x")


@pytest.mark.parametrize(("annotation", "value"), [
    (int, "1"), (int, 1.5), (int, 1 << 63), (int, None), (str, b"x"), (list[int], "12"), (list[int], 1),
    (list[int], ["x"]), (dict[str, int], [1]), (tuple[int, str], (1,)), (Point, (1.0, 2.0)), (int | None, "x"),
    (set[int], 3)])
def test_a_value_of_another_type_is_refused_by_name(annotation: object, value: object) -> None:
    with pytest.raises(TypeError, match="wrong"):
        Fields("Test", {"right": int, "wrong": annotation}).encode((1, value))


@pytest.mark.parametrize("annotation", [object, int | str, None, dict, list, type, "int"])
def test_a_type_without_cdr_is_refused_by_name(annotation: object) -> None:
    with pytest.raises(TypeError, match="field"):
        Fields("Test", {"field": annotation})


def test_signatures_tell_types_and_names_apart() -> None:
    made = [{"a": int}, {"b": int}, {"a": float}, {"a": int, "b": int}, {"a": list[int]}, {}]
    assert len({Fields("Test", one).signature for one in made}) == len(made)
    assert Fields("Test", {"a": int}).signature == Fields("Test", {"a": int}).signature


FOREIGN = Fields("Test", {"a": dict[str, list[Point | None]], "b": tuple[int, str], "c": set[bytes]})
SAMPLE = FOREIGN.encode(({"k": [None, Point(1, 2)]}, (1, "x"), {b"y"}))


@given(st.binary(max_size=200) | st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)).map(
    lambda at: SAMPLE[: at[0]] + bytes([at[1]]) + SAMPLE[at[0] + 1:]))
def test_foreign_bytes_raise_nothing_but_value_errors(data: bytes) -> None:
    try:
        FOREIGN.decode(data)
    except ValueError:
        pass
