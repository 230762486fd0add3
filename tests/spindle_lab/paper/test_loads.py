"""Goal: the loads move what they say, all of it, and refuse what does not fit.

Method: two threads on whatever processors there are; counts, not times.
"""

from __future__ import annotations

import pytest

from spindle_core.memory import Mapping
from spindle_lab.paper import loads, measure, stands

SIZE, STRIDE, WINDOW = 100, 192, 8


def ring() -> Mapping:
    return Mapping.create("test", WINDOW * STRIDE)


def test_everybody_takes_what_was_filled() -> None:
    """Method: one ring, which is copied; both are read. What is read and was not filled would raise."""
    here, there = ring(), ring()
    places = stands.words(16)
    (fills, takes), (no_fills, other_takes) = stands.together(
        lambda: loads.payload_turns([here], [], [here], SIZE, STRIDE, WINDOW, WINDOW, 10, places, 2, 0),
        lambda: loads.payload_turns([], [(here, there)], [there], SIZE, STRIDE, WINDOW, WINDOW, 10, places, 2, 1),
    )
    assert [len(times) for times in (fills, takes, no_fills, other_takes)] == [10] * 4
    assert bytes(there.view()) == bytes(here.view())
    assert all(ns > 0 for ns in fills + takes + other_takes)


def test_a_slot_that_nobody_fills_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="before it was filled"):
        loads.payload_turns([], [], [ring()], SIZE, STRIDE, WINDOW, WINDOW, 2, stands.words(8), 1, 0)


@pytest.mark.parametrize(("size", "stride", "batch"), [(8, STRIDE, 4), (SIZE, 64, 4), (SIZE, STRIDE, WINDOW + 1)])
def test_what_does_not_fit_is_refused(size: int, stride: int, batch: int) -> None:
    with pytest.raises(ValueError, match="slots of 16 bytes"):
        loads.payload_turns([], [], [], size, stride, WINDOW, batch, 1, stands.words(8), 1, 0)
    with pytest.raises(ValueError, match="are used"):
        loads.payload_turns([ring()], [], [], SIZE, 8192, WINDOW, 4, 1, stands.words(8), 1, 0)


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("crossed", [False, True])
def test_streams_bring_all_bytes(nodes: int, crossed: bool) -> None:
    """Goal: what is counted is what was posted after the first round through the ring, give or take what was on its way
    then; what was sent is received."""
    moved = measure.streams(nodes, measure.LONG, crossed)
    posted = measure.STREAM_POSTS * measure.LONG * nodes * (nodes - 1)
    slack = 2 * measure.STREAM_RING * nodes * (nodes - 1)
    assert posted - slack < moved["sent"] < posted + slack
    assert posted - slack < moved["received"] < posted + slack
    assert all(moved[name] > 0 for name in ("sends", "receives", "leave_ns", "take_ns"))


def test_a_stream_needs_a_ring_of_whole_posts() -> None:
    with stands.two_ends(8192) as (fabric, _):
        with pytest.raises(ValueError, match="multiple"):
            loads.stream_passes([fabric], [], 3000, 8192, 8192, 10, stands.words(16), 2)
        with pytest.raises(ValueError, match="are used"):
            loads.stream_passes([fabric], [], 4096, 65536, 8192, 100, stands.words(16), 2)
        with pytest.raises(ValueError, match="more rounds"):
            loads.stream_passes([fabric], [], 4096, 8192, 8192, 2, stands.words(16), 2)
