"""Times and names as people type them."""

from __future__ import annotations

import re
from datetime import datetime

import click

SPAN_MAX_S = 1e10  # three centuries
_FRACTION = re.compile(r"(?<=:\d\d)\.(\d+)")
_SPAN = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)\Z")


class Span(click.ParamType):
    """Seconds: 90, 1.5, 1:30, 2:00:00."""

    name = "span"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = span(str(value))
        if found is None:
            self.fail(f"{value!r} is no time: write seconds (90, 1.5), or minutes and hours as 1:30 or 2:00:00", param,
                      ctx)
        return found


class Moment(click.ParamType):
    """Seconds, as a float; or a moment, UTC ns, as an int: 2026-11-25T19:00:00 (local time), ...Z, 19:00:00 today.

    of_day: a time of day is one, and not a span.
    """

    name = "moment"

    def __init__(self, of_day: bool = False) -> None:
        self._of_day = of_day

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | int:
        if isinstance(value, (float, int)):
            return value
        text = str(value).strip()
        if self._of_day and text.count(":"):
            if (found := moment(f"{datetime.now().date().isoformat()}T{text}")) is not None:
                return found
        seconds = span(text.removeprefix("+"))
        if seconds is not None:
            return seconds
        at = moment(text)
        if at is None:
            self.fail(f"{value!r} is no time: write seconds (90, 1:30), or a moment as 2026-11-25T19:00:00, with Z "
                      "for UTC", param, ctx)
        return at


def span(text: str) -> float | None:
    """Seconds; None for what is none."""
    found = _SPAN.match(text.strip())
    if not found:
        return None
    hours, minutes, seconds = found.groups()
    if (minutes is not None and float(seconds) >= 60) or (hours is not None and float(minutes) >= 60):
        return None
    total = float(hours or 0) * 3600 + float(minutes or 0) * 60 + float(seconds)
    return total if total < SPAN_MAX_S else None


def moment(text: str) -> int | None:
    """UTC ns; None for what is none. Without a zone it is local time."""
    if text.endswith(("Z", "z")):
        text = text[:-1] + "+00:00"
    try:  # until Python 3.11 a fraction has 3 digits or 6
        at = datetime.fromisoformat(_FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", text, count=1))
        return int(at.timestamp()) * 10**9 + at.microsecond * 1000
    except (ValueError, OverflowError):  # the year 1 has no moment everywhere
        return None


class Renaming(click.ParamType):
    """OLD=NEW."""

    name = "old=new"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        old, _, new = str(value).partition("=")
        if not old or not new:
            self.fail(f"{value!r} is no renaming: write OLD=NEW", param, ctx)
        return old, new


__all__ = ["Moment", "Renaming", "Span", "moment", "span"]
