"""Goal: a topic's specification is checked when made, and differences are told with both sides.

Method: values at and beyond the limits.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.errors import ConfigError, TopicMismatch
from spindle.group.codec import spec_from_wire, spec_to_wire
from spindle.group.levels import Level
from spindle.group.topics import (
    RING_BYTES,
    SIZE_MAX_DEFAULT,
    SLOT_OVERHEAD,
    TIMING_WORD,
    WINDOW_CHOSEN_MAX,
    WINDOW_CHOSEN_MIN,
    TopicSpec,
    check_name,
    choose_window,
    ring_bytes,
)

TABLE = TopicSpec("topic", level=Level.VOLATILE, timing=bytes([0, TIMING_WORD, *[0] * 254]),
                  effects=bytes([1, *[0] * 255]))
RANKS = bytes([14, *[0] * 253, 254, 255])


@pytest.mark.parametrize("values", [
    {"name": ""}, {"name": "x" * 256}, {"name": "a\nb"}, {"name": "a\udcfc"}, {"name": "t", "type_name": ""},
    {"name": "t", "level": 4},
    {"name": "t", "size_max": -1}, {"name": "t", "size_max": (64 << 20) + 1}, {"name": "t", "window": 65537},
    {"name": "t", "history_depth": -1}, {"name": "t", "departure": 256}, {"name": "t", "type_hash": bytes(65)},
])
def test_impossible_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TopicSpec(**values)


@pytest.mark.parametrize("name, says", [
    ("", "topic name '' has 0 bytes in UTF-8, but must have 1 to 255"),
    ("ü" * 128, f"topic name '{'ü' * 40}'... has 256 bytes in UTF-8, but must have 1 to 255"),
])
def test_a_name_of_another_length_is_refused_with_its_length(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_name("topic name", name)
    assert str(raised.value) == says
    check_name("topic name", "ü" * 127)


def test_level_is_a_level_whatever_number_it_came_as() -> None:
    assert TopicSpec("t", level=2).level is Level.VOLATILE  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value", "shown"), [
    ("type_name", "B", "'B'"), ("type_hash", b"\x01", "01"), ("level", Level.LOGGED, "LOGGED"), ("size_max", 7, "7"),
    ("window", 9, "9"), ("departure", 3, "3"),
])
def test_difference_names_both_sides(field: str, value: Any, shown: str) -> None:
    agreed = TopicSpec("t", "A").with_window()
    with pytest.raises(TopicMismatch) as caught:
        agreed.check_same(dataclasses.replace(TopicSpec("t", "A"), **{field: value}))
    assert field in str(caught.value) and shown in str(caught.value) and "'t'" in str(caught.value)


def test_open_sizes_and_history_are_taken_from_the_first() -> None:
    TopicSpec("t", size_max=7, window=5, history_depth=3, departure=3).check_same(TopicSpec("t"))


def test_a_refusal_says_the_way_out() -> None:
    """Names that differ say enough without the hashes. A logged topic can't be deleted."""
    wanted = TopicSpec("t", "numpy(x:f8)", type_hash=b"1" * 16)
    for level, hint in ((Level.ATOMIC, True), (Level.LOGGED, False)):
        agreed = TopicSpec("t", "numpy(x:f4)", type_hash=b"2" * 16, level=level, size_max=8)
        with pytest.raises(TopicMismatch, match=r"f4.*f8") as caught:
            agreed.check_same(dataclasses.replace(wanted, level=level))
        assert ("can be declared anew" in str(caught.value)) == hint and "type_hash" not in str(caught.value)


def test_what_is_left_open_is_filled_in() -> None:
    """Method: own wish, then the node's, then the general default."""
    assert TopicSpec("t").with_window().size_max == SIZE_MAX_DEFAULT
    assert TopicSpec("t").with_window(100, 9) == TopicSpec("t", size_max=100, window=9)
    assert TopicSpec("t", size_max=7, window=5).with_window(100, 9) == TopicSpec("t", size_max=7, window=5)
    assert TopicSpec("t", size_max=7).with_window().window == choose_window(7)


@given(st.integers(1, 64 << 20))
def test_chosen_window_keeps_the_ring_in_cache_and_leaves_no_slot_of_it_out(size_max: int) -> None:
    window = choose_window(size_max)
    assert WINDOW_CHOSEN_MIN <= window <= WINDOW_CHOSEN_MAX
    assert window == WINDOW_CHOSEN_MIN or ring_bytes(window, size_max) < 2 * RING_BYTES
    assert ring_bytes(window, size_max) == window * (size_max + SLOT_OVERHEAD)
    assert window == WINDOW_CHOSEN_MAX or ring_bytes(window, size_max) >= RING_BYTES


def test_limits_travel_in_the_declaration() -> None:
    spec = dataclasses.replace(TABLE, samples_max=1 << 40, keys_max=7, cleanup_ns=(1 << 63) - 1, ranks=RANKS)
    assert spec_from_wire(spec_to_wire(spec)) == spec


@pytest.mark.parametrize(("more", "what"), [
    ({"samples_max": 1, "effects": b""}, "limits for its keys"), ({"keys_max": -1}, "out of range"),
    ({"cleanup_ns": 1 << 63}, "out of range"), ({"cleanup_ns": 1, "timing": b""}, "takes timing"),
    ({"effects": bytes([1] * 256)}, "must have no effect"), ({"effects": bytes([64, *[0] * 255])}, "bits 0xbf"),
    ({"ranks": RANKS, "effects": b""}, "effects must be said"), ({"ranks": RANKS[:255]}, "256 numbers"),
    ({"ranks": bytes([3]) + RANKS[1:]}, "0, 4 to 16, 253"), ({"ranks": bytes(256)}, "once each 254 and 255"),
    ({"ranks": RANKS[::-1]}, "of tags without effects"),
    ({"ranks": RANKS, "effects": bytes([129, *[0] * 255])}, "both ranks")])
def test_a_declaration_that_contradicts_itself(more: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        dataclasses.replace(TABLE, **more)


@pytest.mark.parametrize(("wanted", "says"), [
    ("a:f8,b:f8,c:i4", "(field b is f4 there, f8 here; the group has no field c)"),
    ("a:f8", "(you have no field b)"), ("b:f4,a:f8", "(the fields are in another order)"),
    ("x" * 20 + "...", "'. Use the same"),
])
def test_records_are_compared_field_by_field(wanted: str, says: str) -> None:
    agreed = TopicSpec("t", "numpy(a:f8,b:f4)", size_max=12, window=1)
    with pytest.raises(TopicMismatch) as caught:
        agreed.check_same(TopicSpec("t", f"numpy({wanted})"))
    assert f"'numpy(a:f8,b:f4)' in the group, you want 'numpy({wanted})" in str(caught.value)
    assert says in str(caught.value)
