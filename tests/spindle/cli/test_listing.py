"""Goal: a table shows every cell whole, whatever the width, and in few lines where there is room.

Method: listings printed on consoles of chosen widths; then commands on real terminals, looked at for what was cut.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios

import pytest
from rich.console import Console

from spindle.cli.listing import Column, Listing
from spindle.group.topics import Level, TopicSpec
from tests.spindle.cli.support import spawn
from tests.spindle.stand_in import StandInNode

TOPIC, TYPE = "flight/attitude/primary", "numpy(time_since_start:f8,altitude_feet:f4,vertical_speed:f4)"
CELLS = (TOPIC, "logged", "", "1,024", TYPE, "-")
COLUMNS = [Column("topic"), Column("level"), Column("none"), Column("messages", right=True), Column("type", folds=True),
           Column("late")]


def shown(listing: Listing, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(listing)
    return out.getvalue().splitlines()


def listing(*more: str) -> Listing:
    made = Listing(COLUMNS, "Title")
    made.add_row(*CELLS)
    for name in more:
        made.add_row(name, "atomic", "", "7")
    return made


def test_the_forms() -> None:
    """From wide to narrow, each where the one before doesn't fit any more."""
    title, head, row = shown(listing(), 125)
    assert title == "Title" and head.split() == ["topic", "level", "none", "messages", "type", "late"]
    assert row.split() == [TOPIC, "logged", "1,024", TYPE, "-"] and head.index("type") == row.index(TYPE)
    assert row.index("1,024") + 5 == head.index("messages") + 8, "figures end where their head does"

    _, head, row = shown(listing(), 112)
    assert "none" not in head and row.endswith("-")

    _, head, row, more = shown(listing(), 90)
    assert more.strip() and row.index("numpy") == more.index(more.strip()) and row.endswith("-")

    _, head, row, below = shown(listing(), 72)
    assert "type" not in head and below == f"    type  {TYPE}"

    name, *rest = shown(listing(), 45)[1:]
    assert name == TOPIC and rest[0] == "    level logged  messages 1,024"
    assert "late" not in "".join(rest), "what says nothing is left out"


@pytest.mark.parametrize("width", range(1, 130, 3))
def test_nothing_is_cut_and_nothing_is_wider(width: int) -> None:
    lines = shown(listing("日本語" * 9, "x" * 140), width)
    assert all(len(line.encode("utf-16-le")) // 2 <= max(width, INDENTED) for line in lines)
    text = re.sub(r"\s", "", "".join(lines))
    if width > 20:
        for cell in (TOPIC, "日本語" * 9, "x" * 140, "1,024", "logged"):
            assert cell in text, cell


INDENTED = 13  # the narrowest line of names and values: an indent, a name, and a character


def test_names_may_fold_but_stay_in_front() -> None:
    made = Listing([Column("topic", folds=True), Column("rate", right=True), Column("members", folds=True)])
    made.add_row("flight/air_data/airspeed", "1.2k", "1 2 3")
    assert shown(made, 36)[1:] == ["flight/air_data/       1.2k  1 2 3", "airspeed"]
    made.add_row("x", "1", "1 " * 40)
    assert shown(made, 36)[1].startswith("flight/air_data/airspeed  1.2k")


def test_breaks_where_words_end() -> None:
    made = Listing([Column(""), Column("what", folds=True)])
    made.add_row("it", "one, two, three, four, five, six, seven, eight")
    assert shown(made, 32)[1:] == ["it  one, two, three, four, five,", "    six, seven, eight"]


def test_no_header_no_names() -> None:
    made = Listing([Column("name"), Column("value", folds=True)])
    made.show_header = False
    made.add_row("type", "x " * 50)
    assert not any("value" in line or "name" in line for width in (20, 60, 200) for line in shown(made, width))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120, 180])
@pytest.mark.parametrize("words", [["status"], ["topics"], ["topics", TOPIC], ["ls"]], ids=" ".join)
def test_commands_on_a_terminal(stand_in: StandInNode, columns: int, words: list[str]) -> None:
    spec = TopicSpec(TOPIC, TYPE, level=Level.LOGGED)
    stand_in.call(lambda: stand_in.declare_topic(spec))
    with stand_in.session("app " * 12) as session:
        session.open_writer(TOPIC, guid=b"w" * 16)
        session.open_reader(TOPIC, keep_all=True, from_history=False, guid=b"r" * 16)
        text = on_terminal(columns, *words)
    assert "…" not in text and TOPIC in text
    assert all(len(line) <= columns for line in text.splitlines())


def on_terminal(columns: int, *words: str) -> str:
    """What a command prints on a terminal of so many columns, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    seen = b""
    with spawn(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:
            pass  # the command has ended
        assert process.wait(10) == 0, seen
    os.close(ours)
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode().replace("\r\n", "\n")
