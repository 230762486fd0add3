"""Goal: a merge of ordered streams gives the same sequence to everybody. Method: hypothesis makes streams and any
interleaving of their arrival; the merged sequence must depend on the streams alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge import Merge, Waiting

Streams = list[list[int]]

streams = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=3)


def merged(of: Streams, order: list[int]) -> tuple[list[tuple[int, int]], Merge[int]]:
    """Feeds the streams' times in the given order of streams. Returns what came out as (stream, position)."""
    merge: Merge[int] = Merge(len(of))
    places = [0] * len(of)
    out: list[tuple[int, int]] = []
    for stream in order:
        out += merge.push(stream, of[stream][places[stream]], places[stream])
        places[stream] += 1
    return out, merge


@given(streams, st.data())
def test_the_order_of_arrival_never_matters(of: Streams, data: st.DataObject) -> None:
    """Goal: two nodes agree as far as both have got. Method: two random interleavings of the same streams; equal in the
    end, and at any moment one's output is a prefix of the other's."""
    arrivals = [stream for stream, times in enumerate(of) for _ in times]
    one = data.draw(st.permutations(arrivals))
    two = data.draw(st.permutations(arrivals))
    full_one, merge_one = merged(of, one)
    full_two, merge_two = merged(of, two)
    assert full_one == full_two
    assert merge_one.backlog == merge_two.backlog == len(arrivals) - len(full_one)
    cut = data.draw(st.integers(0, len(two)))
    part, _ = merged(of, two[:cut])
    assert full_one[: len(part)] == part


@given(streams, st.data())
def test_streams_keep_their_order_and_keys_their_rule(of: Streams, data: st.DataObject) -> None:
    """Goal: the documented key (running maximum of time, stream, position). Method: compare with a sort by that key."""
    keys = []
    for stream, times in enumerate(of):
        watermark = 0
        for position, time_ns in enumerate(times):
            watermark = max(watermark, time_ns)
            keys.append((watermark, stream, position))
    out, merge = merged(of, data.draw(st.permutations([stream for stream, times in enumerate(of) for _ in times])))
    assert out == [(stream, position) for _, stream, position in sorted(keys)][: len(out)]
    assert merge.late == sum(a < max(times[:i], default=0) for times in of for i, a in enumerate(times))


@given(streams)
def test_closing_every_stream_lets_all_out(of: Streams) -> None:
    """Goal: nothing stays behind. Method: an empty sample beyond all times at the end of each stream."""
    closed = [[*times, 100] for times in of]
    out, _ = merged(closed, [stream for stream, times in enumerate(closed) for _ in times])
    everything = {(s, p) for s, times in enumerate(of) for p in range(len(times))}
    assert {one for one in out if one[1] < len(of[one[0]])} == everything


@given(streams.filter(lambda of: len(of) > 1))
def test_the_silence_that_is_named_is_what_holds_the_merge(of: Streams) -> None:
    """Goal: `waiting_for` tells what would let it go on. Method: push just that; the backlog must go."""
    _, merge = merged(of, [stream for stream, times in enumerate(of) for _ in times])
    waiting = merge.waiting_for()
    assert bool(waiting) == (merge.backlog > 0)
    held = merge.backlog
    out = [one for stream, time_ns in waiting for one in merge.push(stream, time_ns, -1)]
    assert sum(position >= 0 for _, position in out) == held


def test_a_silent_stream_holds_back_and_is_named() -> None:
    """Goal: nothing is let out while another stream could still be earlier. Method: one stream only."""
    merge: Merge[str] = Merge(2)
    assert merge.push(0, 5, "a") == []
    assert merge.push(0, 9, "b") == []
    assert merge.waiting_for() == [Waiting(1, 10)]
    assert merge.push(1, 7, "c") == [(0, "a"), (1, "c")]
    assert merge.push(1, 9, "d") == [(0, "b")], "the tie goes to the lower stream, then its own must wait for stream 0"


def test_impossible_arguments_are_refused() -> None:
    """Goal: no silent nonsense. Method: no streams; a negative time."""
    with pytest.raises(ValueError, match="at least one stream"):
        Merge(0)
    with pytest.raises(ValueError, match="negative"):
        Merge[int](1).push(0, -1, 0)
