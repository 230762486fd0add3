"""Goal: the benchmarks' receiver finds everything that can be wrong with a delivery, and nothing that isn't.

Method: payloads made by the benchmark's own sender, handed over in order, with gaps, twice, torn, and in another order;
latencies against a clock that is read on both sides.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_lab.bench.tally import Tally, fill_payload, make_payloads, monotonic_ns


def taken(counts: list[int], payloads: list[bytes]) -> dict[str, object]:
    tally = Tally(counts)
    tally.take_list(payloads)
    return tally.result()


@given(size=st.integers(16, 300), count=st.integers(1, 20))
def test_every_size_is_filled_and_checked(size: int, count: int) -> None:
    """Goal: the sum of a whole payload is as promised at every size. Method: property over sizes and counts."""
    result = taken([count], make_payloads(0, 0, count, size, 0))
    assert (result["delivered"], result["corrupt"], result["lost"], result["missing"]) == (count, 0, 0, 0)
    assert result["bytes"] == size * count
    assert result["end_ns"] != 0


@given(size=st.integers(17, 300), data=st.data())
def test_a_changed_byte_is_found(size: int, data: st.DataObject) -> None:
    """Goal: a torn payload is corrupt. Method: one byte behind the head, anywhere, with another value."""
    payload = bytearray(make_payloads(3, 7, 1, size, 0)[0])
    place = data.draw(st.integers(16, size - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    assert taken([0, 0, 0, 8], [bytes(payload)])["corrupt"] == 1


def test_gaps_and_repeats_are_counted() -> None:
    """Goal: lost and misordered messages are told apart. Method: a gap of two, then an old message again."""
    payloads = make_payloads(0, 0, 6, 64, 0)
    assert taken([6], [payloads[0], payloads[3]])["lost"] == 2
    result = taken([6], [payloads[0], payloads[1], payloads[0]])
    assert (result["lost"], result["misordered"], result["missing"]) == (0, 1, 3)


def test_order_is_in_the_hash() -> None:
    """Goal: the same messages in another order hash differently. Method: two senders, two interleavings."""
    a, b = make_payloads(0, 0, 2, 64, 0), make_payloads(1, 0, 2, 64, 0)
    one = taken([2, 2], [a[0], b[0], a[1], b[1]])
    assert one["order_hash"] == taken([2, 2], [a[0], b[0], a[1], b[1]])["order_hash"]
    assert one["order_hash"] != taken([2, 2], [a[0], b[0], b[1], a[1]])["order_hash"]


def test_what_comes_after_the_last_wanted_message_does_not_count() -> None:
    """Goal: a delayed sender's tail leaves no trace. Method: its messages around the other's last."""
    counted, delayed = make_payloads(0, 0, 2, 64, 0), make_payloads(1, 0, 3, 64, 0)
    short = taken([2, -1], [counted[0], delayed[0], counted[1]])
    assert short == {**taken([2, -1], [counted[0], delayed[0], counted[1], *delayed[1:]]),
                     "first_ns": short["first_ns"], "end_ns": short["end_ns"]}
    assert short["of_sender"] == [2, 1]


def test_latency_is_that_between_filling_and_taking() -> None:
    """Goal: sampled latencies lie between the clocks around them, within a bucket. Method: one sample in two."""
    tally = Tally([4])
    before = monotonic_ns()
    payloads = make_payloads(0, 0, 4, 64, 2)
    tally.take_list(payloads)
    most = monotonic_ns() - before
    result = tally.result()
    assert sum(result["latency_ns_counts"].values()) == 2
    assert all(int(ns) <= most * 1.01 + 1 for ns in result["latency_ns_counts"])
    assert result["latency_max_ns"] <= most


def test_filling_in_place_makes_the_same_payload() -> None:
    """Goal: loans and writes carry the same bytes. Method: both ways of filling, compared."""
    out = bytearray(100)
    fill_payload(out, 5, 9, False)
    assert bytes(out) == make_payloads(5, 9, 1, 100, 0)[0]


def test_sizes_below_the_head_are_refused() -> None:
    """Goal: a clear error. Method: 15 bytes."""
    with pytest.raises(ValueError, match="at least 16"):
        make_payloads(0, 0, 1, 15, 0)
    with pytest.raises(ValueError, match="at least 16"):
        fill_payload(bytearray(15), 0, 0, False)
