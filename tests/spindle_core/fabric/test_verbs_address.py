"""Addresses of the verbs fabric: what was packed is read again, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_core.fabric.verbs_address import Address, Memory

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
MEMORY = st.builds(Memory, U64, U64, U32)
ADDRESS = st.builds(Address, U16, U32, U32, U16, st.integers(0, 2), st.integers(1, 5),
                    st.binary(min_size=16, max_size=16), U16, st.integers(1, 16), MEMORY, U32, U32, MEMORY)


@given(ADDRESS)
def test_what_was_packed_is_read_again(address: Address) -> None:
    assert Address.parse(address.pack()) == address


@given(ADDRESS, st.data())
def test_a_damaged_address_is_refused(address: Address, data: st.DataObject) -> None:
    """Any byte changed, cut off or added."""
    whole = address.pack()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(st.sampled_from([
        whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :], whole[:at], whole + b"\0"]))
    with pytest.raises(ValueError, match="verbs address"):
        Address.parse(damaged)


@given(st.binary(max_size=600))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with pytest.raises(ValueError):
        Address.parse(data)
    with pytest.raises(ValueError):
        Address.parse(b"SPV1" + data)
