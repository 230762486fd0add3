"""Goal: what is told of latencies is true of the messages. Method: counts as nodes give them, and logs of the core."""

from __future__ import annotations

from spindle.group.figures import Latencies, behind


def test_a_part_of_the_messages() -> None:
    found = Latencies.of({"latencies": {"2048": 50, "1024": 49, "inf": 1}})
    assert found.count == 100
    assert found.within_s(0.5) == 2048e-9 and found.within_s(0.49) == 1024e-9
    assert found.within_s(1.0) == float("inf")
    assert Latencies().within_s(0.5) is None and Latencies.of(None).count == 0


def test_what_came_since() -> None:
    before, after = Latencies.of({"latencies": {"1024": 5}}), Latencies.of({"latencies": {"1024": 7, "2048": 1}})
    assert after.since(before).counts == ((1024, 2), (2048, 1))
    assert before.since(after) == before  # made anew in between
    assert (before + after).counts == ((1024, 12), (2048, 1))


def test_how_far_the_slowest_is_behind() -> None:
    numbers = {"received": [10, 12], "delivered": [10, 7]}
    assert behind({"level": "atomic", "stability": numbers}) == 5
    assert behind({"level": "unordered", "stability": numbers}) is None
    assert behind({"name": "elsewhere"}) is None
