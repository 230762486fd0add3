"""Tables for people that lose nothing on a narrow terminal.

Why not rich's own: it shortens every column until all fit, so at 80 columns neither names nor numbers can be read.

Rules: no cell is ever cut. A listing takes the first of these forms that fits the width: one line a row; the same
without columns that are empty; without spare ones, the last first; long texts folded in their columns, in two lines;
long texts on lines of their own below their row; each row as a paragraph of names and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP = 2
INDENT = 4
BREAKS = " ,/"  # a text is broken behind one of these, if that is possible
NOTHING = ("", "-")  # cells that a paragraph leaves out


@dataclass(frozen=True)
class Column:
    """`folds`: may be broken into several lines; `right`: figures, aligned at their ends; `spare`: left out where there
    is no room for it."""

    head: str
    right: bool = False
    folds: bool = False
    spare: bool = False


class Listing:
    """Rows of cells in rich's markup; printed by a rich console."""

    def __init__(self, columns: Sequence[Column], title: str | None = None) -> None:
        self.columns = tuple(columns)
        self.title = title
        self.show_header = True
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str) -> None:
        """One row; cells that are left out are empty."""
        texts = [Text.from_markup(cell) for cell in cells]
        self._rows.append(texts + [Text() for _ in self.columns[len(texts):]])

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, style="bold cyan")
        for line in self._lines(options.max_width):
            line.rstrip()
            line.no_wrap, line.overflow = True, "ignore"
            yield line

    def _lines(self, width: int) -> Iterator[Text]:
        natural = [self._natural(at) for at in range(len(self.columns))]
        everything = list(range(len(self.columns)))
        if _total(natural) <= width:
            return self._grid(everything, natural)
        used = [at for at in everything if at == 0 or any(row[at].cell_len for row in self._rows)]
        for spare in [None, *(at for at in reversed(used) if self.columns[at].spare)]:
            used = [at for at in used if at != spare]
            if _total(natural[at] for at in used) <= width:
                return self._grid(used, natural)
        fixed = [at for at in used if not self.columns[at].folds]
        folding = [at for at in used if self.columns[at].folds]
        room = width - sum(natural[at] + GAP for at in fixed) - GAP * (len(folding) - 1)
        if folding and room > 0:
            widths = _shared(natural, folding, room)
            if all(len(_folded(row[at], widths[at])) <= 2 for row in self._rows for at in folding):
                return self._grid(used, widths)
        kept = [at for at in used if at == 0 or at in fixed]
        if _total(natural[at] for at in kept) <= width:
            return self._grid(kept, natural, [at for at in folding if at != 0], width)
        return self._paragraphs(used, width)

    def _natural(self, at: int) -> int:
        head = len(self.columns[at].head) if self.show_header else 0
        return max([head, *(row[at].cell_len for row in self._rows)])

    def _grid(self, shown: Sequence[int], widths: Sequence[int], below: Sequence[int] = (), width: int = 0
              ) -> Iterator[Text]:
        """A line for each row, or more where cells are folded; the columns in `below` under their rows."""
        if self.show_header:
            yield self._line([Text(self.columns[at].head, "dim") for at in shown], shown, widths)
        for row in self._rows:
            parts = [_folded(row[at], widths[at]) for at in shown]
            for n in range(max(map(len, parts))):
                yield self._line([part[n] if n < len(part) else Text() for part in parts], shown, widths)
            for at in below:
                if row[at].cell_len:
                    yield from self._named(at, row[at], width)

    def _line(self, cells: Sequence[Text], shown: Sequence[int], widths: Sequence[int]) -> Text:
        line = Text()
        for at, cell in zip(shown, cells, strict=True):
            space = " " * (widths[at] - cell.cell_len)
            line.append_text(Text(space) + cell if self.columns[at].right else cell + Text(space))
            line.append(" " * GAP)
        return line

    def _named(self, at: int, cell: Text, width: int) -> Iterator[Text]:
        """A cell on lines of its own, below its row."""
        head = self.columns[at].head + " " * GAP if self.show_header and self.columns[at].head else ""
        for n, part in enumerate(_folded(cell, width - INDENT - len(head))):
            yield Text(" " * INDENT) + Text(head if n == 0 else " " * len(head), "dim") + part

    def _paragraphs(self, shown: Sequence[int], width: int) -> Iterator[Text]:
        """Each row as its first cell, and below it the others with their names, as many on a line as fit."""
        for row in self._rows:
            yield from _folded(row[shown[0]], width)
            line = Text(" " * INDENT)
            for at in shown[1:]:
                if row[at].plain in NOTHING:
                    continue
                head = self.columns[at].head + " " if self.show_header and self.columns[at].head else ""
                pair = Text(head, "dim") + row[at]
                if line.cell_len > INDENT and line.cell_len + pair.cell_len > width:
                    yield line
                    line = Text(" " * INDENT)
                if INDENT + pair.cell_len > width:
                    yield from self._named(at, row[at], width)
                else:
                    line += pair + Text(" " * GAP)
            if line.cell_len > INDENT:
                yield line


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * (len(found) - 1)


def _shared(natural: Sequence[int], folding: Sequence[int], room: int) -> list[int]:
    """Widths in which the columns in `folding` share `room`, the short ones first as much as they need."""
    widths = list(natural)
    left = sorted(folding, key=lambda at: natural[at])
    while left:
        at = left.pop(0)
        widths[at] = min(natural[at], room // (len(left) + 1))
        room -= widths[at]
    return widths


def _folded(cell: Text, width: int) -> list[Text]:
    """A cell in lines of at most `width`, or of one character if that is wider."""
    lines = []
    while cell.cell_len > max(width, 1) and len(cell) > 1:
        end = len(cell)
        while end > 1 and cell[:end].cell_len > width:
            end -= max(1, (cell[:end].cell_len - width) // 2)
        end = max(end, 1)
        end = max((cell.plain.rfind(one, 0, end) + 1 for one in BREAKS), default=0) or end
        lines.append(cell[:end])
        cell = cell[end + len(cell.plain[end:]) - len(cell.plain[end:].lstrip(" ")):]
    return [*lines, cell]


__all__ = ["Column", "Listing"]
