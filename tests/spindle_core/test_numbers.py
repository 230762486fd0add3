"""Lists of numbers from bytes, and back.

Goal: the same as the struct module, for every code and value; what doesn't fit is refused, also when it comes late.
Method: hypothesis draws lists; the struct module is the reference.
"""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_core.numbers import bytes_of, numbers_of

WHOLE = {"b": (-1 << 7, 1 << 7), "h": (-1 << 15, 1 << 15), "i": (-1 << 31, 1 << 31), "q": (-1 << 63, 1 << 63),
         "B": (0, 1 << 8), "H": (0, 1 << 16), "I": (0, 1 << 32), "Q": (0, 1 << 64)}


@pytest.mark.parametrize("code", [*WHOLE, "f", "d"])
def test_as_struct_does_it(code: str) -> None:
    values = (st.floats(width=32 if code == "f" else 64) if code in "fd" else
              st.integers(WHOLE[code][0], WHOLE[code][1] - 1))

    @given(st.lists(values, max_size=300))
    def run(numbers: list[float]) -> None:
        packed = struct.pack(f"<{len(numbers)}{code}", *numbers)
        assert bytes_of(numbers, code) == packed
        got = numbers_of(packed, code)
        assert [type(one) for one in got] == [type(one) for one in struct.unpack(f"<{len(numbers)}{code}", packed)]
        assert all(one == number or (math.isnan(one) and math.isnan(number))
                   for one, number in zip(got, numbers, strict=True))

    run()


@pytest.mark.parametrize("code", WHOLE)
def test_the_first_numbers_that_do_not_fit(code: str) -> None:
    low, end = WHOLE[code]
    assert numbers_of(bytes_of([low, end - 1], code), code) == [low, end - 1]
    for number in (low - 1, end, 1 << 70, -1 << 70):
        with pytest.raises(OverflowError):
            bytes_of([0] * 10 + [number], code)


@pytest.mark.parametrize("code", [*WHOLE, "d"])
@pytest.mark.parametrize("value", ["1", None, b"1", 1j])
def test_what_is_no_number(code: str, value: object) -> None:
    with pytest.raises(TypeError):
        bytes_of([1, value], code)


def test_floats_are_no_whole_numbers() -> None:
    with pytest.raises(TypeError):
        bytes_of([1.0], "i")
    assert bytes_of([1, True], "d") == struct.pack("<2d", 1, 1)


def test_a_double_that_is_no_float() -> None:
    with pytest.raises(OverflowError):
        bytes_of([1e300], "f")
    assert bytes_of([math.inf], "f") == struct.pack("<f", math.inf)


def test_places_that_are_not_aligned() -> None:
    data = memoryview(b"x" + struct.pack("<3d", 1, 2, 3))[1:]
    assert numbers_of(data, "d") == [1, 2, 3]


def test_what_are_not_whole_numbers() -> None:
    assert numbers_of(b"", "q") == [] == numbers_of(b"", "B")
    with pytest.raises(ValueError, match="not whole"):
        numbers_of(b"1234567", "q")
    for code in "?cxs":
        with pytest.raises(ValueError, match="no code"):
            numbers_of(b"", code)
        with pytest.raises(ValueError, match="no code"):
            bytes_of([], code)


@pytest.mark.parametrize("code", ["B", "i"])
def test_a_number_that_changes_its_list(code: str) -> None:
    class Sly(int):
        pass

    numbers: list[object] = [1] * 100

    class Cutting:
        def __index__(self) -> int:
            numbers.clear()
            return 1

    numbers[0] = Cutting()
    with pytest.raises(ValueError, match="changed"):
        bytes_of(numbers, code)
    assert bytes_of([Sly(3)], "B") == b"\3"
