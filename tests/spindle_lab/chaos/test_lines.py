"""Goal: a line delays, loses and limits as it is told, and never changes the order.

Method: frames and times that the test chooses; no clock, no namespace.
"""

from __future__ import annotations

import random

import pytest

from spindle_lab.chaos.lines import NS, WAITING_BYTES_MIN, Line, Transit

MS = NS // 1000


def drain(transit: Transit) -> list[tuple[int, bytes]]:
    """All that is under way, with the times when it arrives."""
    found = []
    while (due_ns := transit.next_ns) is not None:
        assert transit.leave(due_ns - 1) is None
        frame = transit.leave(due_ns)
        assert frame is not None
        found.append((due_ns, frame))
    assert transit.held_bytes == 0
    return found


def test_a_frame_is_as_late_as_the_line_is_long() -> None:
    transit = Transit(Line(delay_s=0.05))
    for number in range(3):
        transit.enter(b"%d" % number, number * MS)
    assert transit.held_bytes == 3 and transit.passed == 0
    assert drain(transit) == [(50 * MS, b"0"), (51 * MS, b"1"), (52 * MS, b"2")] and transit.passed == 3


@pytest.mark.parametrize("seed", range(20))
def test_jitter_changes_no_order_and_stays_within_its_bounds(seed: int) -> None:
    draw, transit, now_ns, entered = random.Random(seed), Transit(Line(0.01, 0.02), str(seed)), 0, {}
    for number in range(500):
        now_ns += draw.randrange(2 * MS)
        frame = number.to_bytes(4, "little")
        entered[frame] = now_ns
        transit.enter(frame, now_ns)
    left = drain(transit)
    assert [frame for _, frame in left] == list(entered) and left == sorted(left, key=lambda one: one[0])
    late_ms = [(due_ns - entered[frame]) / MS for due_ns, frame in left]
    assert min(late_ms) >= 10 and max(late_ms) <= 30 and max(late_ms) - min(late_ms) > 5


def test_the_share_that_is_lost() -> None:
    transit = Transit(Line(loss=0.1), "any")
    for _ in range(10_000):
        transit.enter(b"x", 0)
    assert 800 < transit.lost < 1200 and len(drain(transit)) + transit.lost == 10_000


def test_a_slow_line_sends_one_after_the_other_and_drops_what_is_too_much() -> None:
    transit, frame = Transit(Line(delay_s=0.1, rate=1_000_000)), bytes(1000)
    for _ in range(3):
        transit.enter(frame, 0)
    assert [due_ns // MS for due_ns, _ in drain(transit)] == [101, 102, 103]
    transit.enter(frame, NS)  # it is free again: nothing to wait for
    assert drain(transit) == [(NS + 101 * MS, frame)]
    for _ in range(1000):
        transit.enter(frame, 2 * NS)
    assert 200 <= transit.passed + len(drain(transit)) - 4 <= 405 and transit.overrun >= 795
    slow = Transit(Line(rate=1000))
    for _ in range(1000):
        slow.enter(frame, 0)
    assert WAITING_BYTES_MIN <= slow.held_bytes <= WAITING_BYTES_MIN + 2000


def test_a_change_keeps_the_order_and_holds_nothing_back() -> None:
    transit = Transit(Line(delay_s=10.0, rate=1000))
    transit.enter(bytes(1000), 0)
    transit.enter(bytes(1000), 0)
    transit.change(Line(delay_s=0.01), MS)
    transit.enter(b"x", 2 * MS)
    assert [(due_ns // MS, len(frame)) for due_ns, frame in drain(transit)] == [(11, 1000), (11, 1000), (12, 1)]
    transit.enter(b"x", 20 * MS)
    transit.change(Line(delay_s=5.0), 21 * MS)
    transit.enter(b"y", 21 * MS)
    assert drain(transit) == [(30 * MS, b"x"), (5021 * MS, b"y")]


def test_only_lines_that_lose_or_are_slow_count_packets() -> None:
    assert Line(loss=0.1).counts_packets and Line(rate=1.0).counts_packets and not Line(1.0, 1.0).counts_packets
    for wrong in ({"delay_s": -1.0}, {"loss": 1.1}, {"rate": -1.0}, {"jitter_s": -0.1}):
        with pytest.raises(ValueError, match="may be negative"):
            Line(**wrong)
    assert str(Line(0.05, 0.01, 0.01, 2e6)) == "50 ms late, up to 10 ms more, 1.0% lost, 2000 kB/s"
