"""A grid of coloured characters and what a terminal must be sent to show it. Plain ANSI, 256 colours, no library."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import NamedTuple

BLACK, WHITE, GREY, DARK = 16, 231, 245, 236
RED, AMBER, GREEN, CYAN, MAGENTA, YELLOW = 196, 214, 46, 51, 213, 226

HOME = "\x1b[H"
ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""Alternate screen, cursor hidden: what was on the terminal comes back on LEAVE."""
LEAVE = "\x1b[?25h\x1b[?1049l"


def stops() -> Callable[[], bool]:
    """From now on Ctrl-Z stops nothing by itself: what this gives says, once for each, that it was pressed, and who
    fills the terminal leaves it and calls stop(). Where it was ignored before it stays so."""
    came: list[int] = []

    def asked() -> bool:
        found = bool(came)
        came.clear()
        return found

    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, lambda number, _: came.append(number))
    return asked


def stop() -> None:
    """Stops this process as Ctrl-Z does; returns when it is continued."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    # To this thread: one sent to the process may reach another thread, and this one run on for a moment.
    signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


class Cell(NamedTuple):
    """One character with its colours (palette of 256)."""

    character: str = " "
    foreground: int = WHITE
    background: int = BLACK


class Screen:
    """`height` rows of `width` cells; writing outside is cut off, so that a caller need not clip."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._rows: list[list[Cell]] = [[Cell()] * width for _ in range(height)]

    def cell(self, row: int, column: int) -> Cell:
        return self._rows[row][column]

    def put(self, row: int, column: int, text: str, ink: int = WHITE, background: int | None = None) -> None:
        """Writes text from (row, column) to the right. Background None: what is there stays."""
        if not 0 <= row < self.height:
            return
        cells = self._rows[row]
        for place, character in enumerate(text, column):
            if 0 <= place < self.width:
                cells[place] = Cell(character, ink, cells[place].background if background is None else background)

    def put_right(self, row: int, column_end: int, text: str, ink: int = WHITE, background: int | None = None) -> None:
        """Writes text so that it ends before `column_end`."""
        self.put(row, column_end - len(text), text, ink, background)

    def put_pixels(self, row: int, column: int, upper: int, lower: int) -> None:
        """Two colours in one cell, one above the other: a cell is about twice as high as wide, so these are squares."""
        if 0 <= row < self.height and 0 <= column < self.width:
            self._rows[row][column] = Cell(" " if upper == lower else "▄", lower, upper)

    def to_text(self) -> str:
        """The characters alone, trailing blanks cut."""
        return "\n".join("".join(cell.character for cell in row).rstrip() for row in self._rows)

    def to_ansi(self) -> str:
        """The whole grid for a terminal, from the upper left corner, without a line feed after the last row."""
        lines: list[str] = []
        for row in self._rows:
            parts: list[str] = []
            foreground = background = -1
            for cell in row:
                if cell.background != background:
                    background = cell.background
                    parts.append(f"\x1b[48;5;{background}m")
                if cell.foreground != foreground and cell.character != " ":
                    foreground = cell.foreground
                    parts.append(f"\x1b[38;5;{foreground}m")
                parts.append(cell.character)
            lines.append("".join(parts) + "\x1b[0m")
        return HOME + "\r\n".join(lines)
