"""Goal: a replay plays what it is told to, and says so if that is nothing or can't be. Method: replays of a few rows,
also with figures as people mistype them."""

from __future__ import annotations

import math
import time

import pytest
from flight_data import FlightRow
from replay import AT_MAX, SPEED_MIN, Replay, nanoseconds

ROWS = [FlightRow(1000.0 + second) for second in range(5)]


def played(**options: float) -> list[float]:
    return [row.time for row, _ in Replay(ROWS, **options).plan()]


def test_rows_outside_are_left_out() -> None:
    assert played() == [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    assert played(start=1, duration=2) == [1001.0, 1002.0]
    assert played(start=4, duration=math.inf) == [1004.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 99_999_999.0}, "from second 99999999 on: the recording ends in its second 4"),
        ({"start": 4.5}, "the recording ends in its second 4"),
        ({"start": 1.5, "duration": 0.1}, "nothing was heard within 0.1 s"),
        ({"start": math.nan}, "start must not be negative"),
        ({"start": math.inf}, "start must not be negative"),
        ({"duration": math.nan}, "duration positive"),
        ({"duration": 0.0}, "duration positive"),
        ({"speed": math.nan}, "speed must be a positive number"),
        ({"speed": 1e-300}, "speed must be a positive number"),
        ({"speed": math.inf}, "speed must be a positive number"),
        ({"at": math.nan}, "begins at a Unix time"),
        ({"at": math.inf}, "begins at a Unix time"),
        ({"at": -1.0}, "begins at a Unix time"),
    ],
)
def test_what_can_not_be_played_is_named(options: dict[str, float], words: str) -> None:
    """It ended with 0 and no word, or with a traceback."""
    with pytest.raises(ValueError, match=words):
        played(**options)


def test_an_empty_recording_is_named() -> None:
    with pytest.raises(ValueError, match="the recording is empty"):
        list(Replay([]).plan())


def test_the_latest_time_due_is_one_that_a_sample_can_have() -> None:
    """Goal: the slowest replay of a whole day that begins as late as may be."""
    rows = [FlightRow(0.0), FlightRow(86_400.0)]
    *_, (_, due_ns) = Replay(rows, speed=SPEED_MIN, at=AT_MAX).plan()
    assert due_ns < 1 << 63
    assert nanoseconds(time.time()) > 0


def test_what_is_due_in_years_is_waited_for_until_it_is_stopped() -> None:
    """A wait for as long would be refused (a thread's wait has an end, and so has a time in C)."""
    replay = Replay(ROWS, at=AT_MAX)
    replay.stop()
    assert list(replay) == []
