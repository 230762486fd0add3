"""Goal: rates and latencies are those of the last moments, whatever a topic does in between; histories have an end.

Method: figures as nodes tell them, at chosen times.
"""

from __future__ import annotations

from typing import Any

import pytest

from spindle.cockpit.happenings import KEPT_MAX, Happenings
from spindle.cockpit.rates import HISTORY_MAX, History, TopicRates


def figures(messages: int, size: int = 0, latencies: dict[str, int] | None = None) -> dict[str, Any]:
    return {"messages": messages, "bytes": size, "latencies": latencies or {}}


def test_rates_are_over_the_last_second_at_any_number_of_looks() -> None:
    one = TopicRates()
    for step in range(21):
        one.update(step / 5, figures(20 * step, 2000 * step))
    assert one.rate == pytest.approx(100) and one.bytes_s == pytest.approx(10_000)
    for step in range(21, 28):
        one.update(step / 5, figures(400, 40_000))
    assert one.rate == 0 and one.bytes_s == 0


def test_a_log_that_was_made_anew_begins_anew() -> None:
    one = TopicRates()
    one.update(0.0, figures(1000, 1000, {"1024": 1000}))
    one.update(1.0, figures(1100, 1100, {"1024": 1100}))
    assert one.rate == pytest.approx(100)
    one.update(2.0, figures(5, 5, {"2048": 5}))
    assert one.rate == 0
    one.update(3.0, figures(25, 25, {"2048": 25}))
    assert one.rate == pytest.approx(20)
    one.update(4.0, None)
    assert one.rate == 0 and one.median_s is None


def test_latencies_are_those_of_the_last_ten_seconds() -> None:
    one = TopicRates()
    one.update(0.0, figures(100, 0, {"1024": 100}))
    one.update(1.0, figures(200, 0, {"1024": 150, "2048": 50}))
    assert one.latencies.counts == ((1024.0, 50), (2048.0, 50))
    assert one.median_s == pytest.approx(1.024e-6) and one.late_s == pytest.approx(2.048e-6)
    for second in range(2, 14):
        one.update(float(second), figures(200, 0, {"1024": 150, "2048": 50}))
    assert one.latencies.count == 0 and one.median_s is None


def test_a_history_has_an_end_and_says_where_there_was_nothing() -> None:
    one = History(2)
    for second in range(5 * HISTORY_MAX):
        one.add(float(second), float(second), float("nan"))
    times, values, nothing = one.columns()
    assert len(times) == len(values) == len(nothing) == HISTORY_MAX
    assert times[-1] == 5 * HISTORY_MAX - 1 and set(nothing) == {None}


def view(number: int, members: str, at: float = 0.0) -> dict[str, Any]:
    return {"number": number, "event": "view-installed", "view": number, "members": members, "time": at,
            "level": "info", "text": ""}


def test_the_time_line_says_who_came_and_went_and_what_stayed_the_same_once() -> None:
    line = Happenings()
    line.take([view(0, "1"), view(1, "1 2"), view(2, "1 2"), view(3, "1 2"),
               {"number": 9, "event": "member-lost", "member": 2, "why": "it hangs", "time": 0.0, "level": "warning",
                "text": "node 1 goes on without node 2"}, view(4, "1")])
    assert [one["text"] for one in line.entries] == [
        "view 0: nodes 1", "view 1: node 2 joined; nodes 1 2 are members", "views 2 to 3: the same members",
        "node 2 was lost: it hangs", "view 4: node 2 is left out; nodes 1 are members"]
    assert set(line.missing) == {2}
    line.take([view(5, "1 2")])
    assert not line.missing


def test_the_time_line_is_bounded_and_its_numbers_grow() -> None:
    line = Happenings()
    for number in range(3 * KEPT_MAX):
        line.say("topic", "info", str(number), topic="t")
    assert len(line.after(0)) == KEPT_MAX and line.after(3 * KEPT_MAX - 2)[-1]["number"] == 3 * KEPT_MAX
    assert len(line.after(3 * KEPT_MAX - 2)) == 2
