"""Interrupting what the calling thread does, as a signal handler that raises does.

Python runs signal handlers where a function of Python's begins and behind a call of one in C. So here is an exception
that comes at the first of these places, at the second, ..., each time anew, until a run ends without.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any


class Interrupt(BaseException):
    """What the handler raises."""


class Alarm(Exception):
    """The same of a class as programs make them for a time that is over."""


def interrupted_everywhere(act: Callable[[], Any], check: Callable[[BaseException], None],
                           kind: type[BaseException] = Interrupt, at_most: int = 100_000) -> int:
    """Calls act(), which is to be interrupted by a `kind`, and then check(what it has raised), until it raises nothing.
    How often it was interrupted; AssertionError if it does not come to an end."""
    for at in range(at_most):
        error = _interrupted(act, at, kind)
        if error is None:
            return at
        check(error)
    raise AssertionError(f"it was interrupted at {at_most} places and has not ended")


def _interrupted(act: Callable[[], Any], at: int, kind: type[BaseException]) -> BaseException | None:
    places = itertools.count()

    def handler(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_return") and next(places) == at:
            sys.setprofile(None)
            raise kind

    try:
        sys.setprofile(handler)
        try:
            act()
        finally:
            sys.setprofile(None)
    except BaseException as error:  # as the program would see it
        if not isinstance(error, Exception) and not isinstance(error, Interrupt):
            raise
        return error
    return None
