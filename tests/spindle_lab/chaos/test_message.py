"""Goal: a message tells who sent it, and any change of its bytes shows. Method: hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_lab.chaos.message import SIZE_MAX, SIZE_MIN, Damaged, Stamp, decode, encode, size_of

STAMPS = st.builds(Stamp, st.integers(0, 9), st.integers(0, 65535), st.integers(0, 2**32 - 1), st.integers(0, 2**40))
SIZES = st.integers(SIZE_MIN, SIZE_MAX)


@given(STAMPS, SIZES)
def test_what_is_encoded_is_decoded(stamp: Stamp, size: int) -> None:
    payload = encode(stamp, size)
    assert len(payload) == size and decode(payload) == stamp


@given(STAMPS, SIZES, st.data())
def test_any_changed_byte_shows(stamp: Stamp, size: int, data: st.DataObject) -> None:
    payload = bytearray(encode(stamp, size))
    payload[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        decode(bytes(payload))


@given(STAMPS, SIZES, st.data())
def test_a_cut_message_shows(stamp: Stamp, size: int, data: st.DataObject) -> None:
    with pytest.raises(Damaged):
        decode(encode(stamp, size)[: data.draw(st.integers(0, size - 1))])


def test_sizes_are_possible_and_include_both_ends() -> None:
    sizes = {size_of(epoch, number) for epoch in range(5) for number in range(2000)}
    assert min(sizes) == SIZE_MIN and max(sizes) == SIZE_MAX
