"""Interrupting what the calling thread does, as a signal handler that raises does.

Python runs signal handlers where a function of Python's begins and behind a call of one in C. So here is an exception
that comes at the first of these places, at the second, ..., each time anew, until a run ends without.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """What the handler raises."""


class Alarm(Exception):
    """The same of a class as programs make them for a time that is over."""


def interrupted_everywhere(act: Callable[[], Any], check: Callable[[BaseException], None],
                           kind: type[BaseException] = Interrupt, at_most: int = 100_000) -> int:
    """Calls act(), which is to be interrupted by a `kind`, and then check(what it has raised), until it raises nothing.
    How often it was interrupted; AssertionError if it does not come to an end."""

    def handler(*_: object) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR2, handler)  # so that it is one
    try:
        for at in range(at_most):
            error = _interrupted(act, at, handler)
            if error is None:
                return at
            check(error)
    finally:
        signal.signal(signal.SIGUSR2, before)
    raise AssertionError(f"it was interrupted at {at_most} places and has not ended")


def _interrupted(act: Callable[[], Any], at: int, handler: Callable[[], None]) -> BaseException | None:
    places = itertools.count()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and not _is_resumed(frame, event) and not _is_finalizer(frame) and (
                next(places) == at):
            sys.setprofile(None)
            handler()

    try:
        sys.setprofile(look)
        try:
            act()
        finally:
            sys.setprofile(None)
    except BaseException as error:  # as the program would see it
        if not isinstance(error, Exception) and not isinstance(error, Interrupt):
            raise
        return error
    return None


def _is_resumed(frame: FrameType, event: str) -> bool:
    """A generator goes on: perhaps it is closed by who forgets it, which no handler interrupts."""
    return event == "call" and bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _is_finalizer(frame: FrameType | None) -> bool:
    """What is raised in one, or in what the garbage collector calls, Python prints and forgets."""
    of_collector = {getattr(one, "__code__", None) for one in gc.callbacks}
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code not in of_collector and (
            frame.f_globals.get("__name__") not in ("weakref", "_weakrefset")):
        frame = frame.f_back
    return frame is not None
