"""What fills the terminal until q is pressed, and the figures that more than one such screen has."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spindle.cli.common import console, count_text, duration_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spindle.group.figures import Latencies

NOTHING = "[dim]-[/]"
ENDS = ("q", "Q", "\x1b")


def watch(interval: float, look: Callable[[], None], screen: Callable[[], RenderableType]) -> int:
    """Looks every `interval` seconds and shows what `screen` gives, until q; the exit code."""
    from rich.live import Live

    out = console()
    with keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while True:
            look()
            live.update(screen(), refresh=True)
            due = max(due + interval, time.monotonic())
            if pressed(due) in ENDS:
                return 0


@contextlib.contextmanager
def keys() -> Iterator[Any]:
    """A function that waits until a time (monotonic) for a key and returns it, "" if there was none."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import os
    import termios
    import tty

    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)

    def pressed(until: float) -> str:
        ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        return os.read(fd, 64).decode(errors="replace")[:1] if ready else ""

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _no_key(until: float) -> str:
    time.sleep(max(0.0, until - time.monotonic()))
    return ""


def rate_text(value: float | None) -> str:
    return count_text(value) if value else NOTHING


def latency_text(latencies: Latencies, part: float) -> str:
    """The time within which this part of the messages was delivered."""
    value = latencies.within_s(part)
    if value is None:
        return NOTHING
    return "> 18 min" if value == float("inf") else duration_text(value)


__all__ = ["NOTHING", "keys", "latency_text", "rate_text", "watch"]
