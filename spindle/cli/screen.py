"""What fills the terminal until q is pressed, and the figures that more than one such screen has."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from spindle.cli.common import console, count_text, duration_text, interrupted_by_signals

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spindle.group.figures import Latencies

NOTHING = "[dim]-[/]"
QUITS = (b"q", b"Q", b"\x04")  # the last is Ctrl-D
ESCAPE = b"\x1b"  # alone: arrow keys, and wheels of mice, send it with more behind


def watch(interval: float, look: Callable[[], None], screen: Callable[[], RenderableType]) -> int:
    """Looks every `interval` seconds and shows what `screen` gives, until q; the exit code. Ctrl-Z gives the terminal
    back as it was, and `fg` fills it again."""
    with interrupted_by_signals() as asked, _stops() as to_stop:
        due = time.monotonic()
        while True:
            with ends() as ended, shower() as show:
                while not to_stop():
                    look()
                    show(screen())
                    due = max(due + interval, time.monotonic())
                    if asked() or ended(due):
                        return 0
            _stop()


@contextlib.contextmanager
def _stops() -> Iterator[Callable[[], bool]]:
    """A function that says, once for each, whether Ctrl-Z was pressed (SIGTSTP), which stops nothing by itself
    meanwhile: what has filled the terminal gives it back first. Where it was ignored before, as by shells that can't
    continue what is stopped, it stays so."""
    came: list[int] = []
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield lambda: False
        return

    def asked() -> bool:
        found = bool(came)
        came.clear()
        return found

    signal.signal(signal.SIGTSTP, lambda number, _: came.append(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _stop() -> None:
    """Stop this process as Ctrl-Z does; returns when it is continued."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        # To this thread: one sent to the process may reach another thread, and this one run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, before)


@contextlib.contextmanager
def shower() -> Iterator[Callable[[RenderableType], None]]:
    """What shows a screen in the place of the last; on a terminal that can't do that, below it."""
    out = console()
    if out.is_dumb_terminal:
        yield lambda screen: out.print(screen, "")
        return
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda screen: live.update(screen, refresh=True)


@contextlib.contextmanager
def ends() -> Iterator[Callable[[float], bool]]:
    """A function that waits until a time (monotonic), and says at once if a key is pressed that ends the screen, or the
    terminal has gone. Signals are heeded at once, also one that comes as the wait begins."""
    with _rung_by_signals() as bell:
        def rung(until: float, fds: Sequence[int] = ()) -> set[int]:
            found = _readable([bell, *fds], until)
            if bell in found:
                os.read(bell, 64)  # their handlers have run by now, and raised, unless that was forgotten
            return found - {bell}

        if not sys.stdin.isatty():
            yield lambda until: bool(rung(until))
            return
        import termios
        import tty

        fd = sys.stdin.fileno()
        saved = termios.tcgetattr(fd)

        def ended(until: float) -> bool:
            while rung(until, [fd]):
                try:
                    typed = os.read(fd, 64)
                except OSError:
                    return True
                if not typed or typed == ESCAPE or typed[:1] in QUITS:
                    return True
            return False

        try:
            tty.setcbreak(fd)
        except termios.error as error:
            raise click.ClickException(
                "this program runs in the background of its terminal, and nobody can bring it to the front any more: "
                "start it anew, or take --once, which prints one measurement") from error
        try:
            yield ended
        finally:
            with contextlib.suppress(termios.error):  # it has gone
                termios.tcsetattr(fd, termios.TCSADRAIN, saved)


@contextlib.contextmanager
def _rung_by_signals() -> Iterator[int]:
    """A descriptor that can be read from a signal on: its handler in Python runs between two steps of the interpreter,
    and so after a wait that begins just then."""
    bell, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        before = signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        try:
            yield bell
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(bell)
        os.close(end)


def _readable(fds: list[int], until: float) -> set[int]:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)}


def rate_text(value: float | None) -> str:
    return count_text(value) if value else NOTHING


def latency_text(latencies: Latencies, part: float) -> str:
    """The time within which this part of the messages was delivered."""
    value = latencies.within_s(part)
    if value is None:
        return NOTHING
    return "> 18 min" if value == float("inf") else duration_text(value)


__all__ = ["NOTHING", "latency_text", "rate_text", "watch"]
