"""Goal: times are taken as people type them, and what is none is said."""

from __future__ import annotations

import pytest

from spindle.cli.recordings.words import moment, span


@pytest.mark.parametrize("text, seconds", [
    ("90", 90), ("1.5", 1.5), ("1:30", 90), ("2:00:00", 7200), ("", None), ("1:", None),
    ("1:60", None), ("26:99", None), ("1:60:00", None), ("90:00", 5400), ("nan", None), ("inf", None),
    ("9" * 400, None), ("9" * 400 + ":00", None)])
def test_spans(text: str, seconds: float | None) -> None:
    assert span(text) == seconds


def test_moments() -> None:
    assert moment("1970-01-01T00:01:00.5Z") == 60_500_000_000
    assert moment("1970-01-01T00:01:00.123456789+00:00") == 60_123_456_000
    assert moment("1970-01-01T00:01:00.1234Z") == 60_123_400_000 and moment("1970-01-01T00:01:00Z") == 60_000_000_000
    assert moment("0001-01-01") is None and moment("today") is None
