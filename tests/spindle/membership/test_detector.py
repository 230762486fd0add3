"""The detector of members that hang, driven with times and heartbeats that are made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.membership.detector import LOST, Detector

MS = 1_000_000
TIMEOUT = 2000 * MS


def run(detector: Detector, start_ns: int, until_ns: int, beats: dict[int, int], alive: set[int]) -> int | None:
    """Looks in time from start to end; those who are alive beat before every look. The time of the first accusation."""
    now = start_ns
    while now <= until_ns:
        for rank in alive:
            beats[rank] += 1
        if detector.late(now, beats):
            return now
        now += detector.wait_ns()
    return None


def test_a_silent_member_is_named_after_the_timeout_and_not_before() -> None:
    """Goal: one member beats, one stands still. Method: look in time; only the silent one is named, within the timeout
    and two intervals, and again at every later look."""
    detector = Detector(TIMEOUT)
    beats = {1: 0, 2: 0}
    detector.restart(0)
    at = run(detector, detector.interval_ns, 10 * TIMEOUT, beats, {1})
    assert at is not None and TIMEOUT <= at <= TIMEOUT + 2 * detector.interval_ns
    assert detector.silent_ns(2) >= TIMEOUT and detector.silent_ns(1) == 0
    assert detector.late(at + MS, beats) == [2] and detector.lost() == set()
    run(detector, at + 2 * MS, LOST * TIMEOUT, beats, {1})
    while detector.silent_ns(2) < LOST * TIMEOUT:
        assert detector.lost() == set()
        at += detector.interval_ns
        beats[1] += 1
        assert detector.late(at, beats) == [2]
    assert detector.lost() == {2}


def test_the_own_stall_accuses_nobody() -> None:
    """Goal: S12, a node that was stopped does not take its own absence for the others'. Method: everybody's heartbeat
    stands still over a gap of a hundred timeouts; afterwards everybody has the whole timeout again."""
    detector = Detector(TIMEOUT)
    beats = {1: 5, 2: 7}
    detector.restart(0)
    assert detector.late(50 * MS, beats) == []
    assert detector.late(100 * TIMEOUT, beats) == []
    assert detector.stalled
    at = run(detector, 100 * TIMEOUT + 50 * MS, 200 * TIMEOUT, beats, set())
    assert at is not None and at >= 101 * TIMEOUT


def test_a_short_stall_counts_as_a_late_look() -> None:
    """Goal: a loaded machine still finds the hung one, only later. Method: every look comes three intervals late, which
    is too little for a stall; the silent member is named after as many looks as two intervals each make a timeout."""
    detector = Detector(TIMEOUT)
    beats = {3: 1}
    detector.restart(0)
    looks, now = 0, 0
    while not detector.late(now, beats):
        looks, now = looks + 1, now + 4 * detector.interval_ns
        assert looks < 100
    assert looks == TIMEOUT // (2 * detector.interval_ns)  # after the first, which only learns the heartbeat


def test_a_new_epoch_gives_everybody_the_whole_timeout() -> None:
    """Goal: who installs last is not accused of it. Method: a member is nearly late, the epoch changes, and its row
    stays at zero; it is named one timeout after the change."""
    detector = Detector(TIMEOUT)
    beats = {1: 0}
    detector.restart(0)
    assert run(detector, 0, TIMEOUT - 100 * MS, beats, set()) is None
    detector.restart(TIMEOUT - 100 * MS)
    at = run(detector, TIMEOUT - 100 * MS, 10 * TIMEOUT, beats, set())
    assert at is not None and at >= 2 * TIMEOUT - 100 * MS


def test_who_is_not_watched_any_more_is_forgotten() -> None:
    """Goal: a suspect is named no more. Method: leave its rank out, then watch it again: its count begins anew."""
    detector = Detector(TIMEOUT)
    detector.restart(0)
    at = run(detector, 0, 10 * TIMEOUT, {1: 0}, set())
    assert at is not None
    assert detector.late(at + 50 * MS, {}) == []
    assert detector.silent_ns(1) == 0
    assert detector.late(at + 100 * MS, {1: 0}) == []


def test_a_clock_that_goes_back_stands_still() -> None:
    """Goal: a jump back does no harm. Method: look an hour earlier than before; nobody is named, later looks count."""
    detector = Detector(TIMEOUT)
    hour = 3600 * 1000 * MS
    detector.restart(hour)
    assert detector.late(hour, {1: 0}) == []
    assert detector.late(0, {1: 0}) == []
    assert run(detector, 50 * MS, 10 * TIMEOUT, {1: 0}, set()) is not None


def test_intervals_fit_the_timeout() -> None:
    """Goal: looks are frequent enough for the shortest timeout and rare enough for the longest. Method: the limits."""
    assert Detector(50 * MS).interval_ns == 5 * MS
    assert Detector(TIMEOUT).interval_ns == 50 * MS
    assert Detector(60_000 * MS).interval_ns == 50 * MS
    with pytest.raises(ValueError):
        Detector(0)


@given(st.lists(st.tuples(st.integers(0, 5000 * MS), st.booleans()), max_size=60), st.integers(50 * MS, 5000 * MS))
def test_nobody_is_named_early(looks: list[tuple[int, bool]], timeout_ns: int) -> None:
    """Goal: whatever the pauses between looks, a member is named only when its heartbeat has stood still for the whole
    timeout. Method: random gaps and beats; compare with the true time since the last beat was seen."""
    detector = Detector(timeout_ns)
    detector.restart(0)
    now = beat = seen_at = 0
    for gap_ns, alive in looks:
        now += gap_ns
        if alive:
            beat, seen_at = beat + 1, now
        if detector.late(now, {1: beat}):
            assert now - seen_at >= timeout_ns
