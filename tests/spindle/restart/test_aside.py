"""Goal: everything of one topic is put aside, of one node or all, and nothing else; or nothing at all.
Method: directories with files of these names."""

from __future__ import annotations

from pathlib import Path

import pytest

from spindle.errors import JournalError
from spindle.journal.errors import JournalBusy
from spindle.journal.files import OsFiles
from spindle.restart.aside import set_aside

OURS = ("a-1-000001.mcap", "a-1-000002.mcap.torn", "a-1.standing", "a-1.standing.new", "a-12-000001.mcap",
        "a-1-000001.mcap.forked")
OTHERS = ("a-b-1-000001.mcap", "aa-1-000001.mcap", "a%2D1-1-000001.mcap", "b-1.standing", "a-1")


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    directory = tmp_path / "journals"
    directory.mkdir()
    for name in (*OURS, *OTHERS):
        (directory / name).write_text(name)
    return directory


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()


def test_all_of_a_topic_goes(journals: Path, tmp_path: Path) -> None:
    moved = set_aside(journals, tmp_path / "aside", "a")
    assert {one.node_id: len(one.names) for one in moved} == {1: 5, 12: 1}
    assert names(tmp_path / "aside") == set(OURS) and names(journals) == set(OTHERS)
    with pytest.raises(JournalError, match="there is nothing of topic 'a'"):
        set_aside(journals, tmp_path / "aside", "a")


def test_one_node(journals: Path, tmp_path: Path) -> None:
    set_aside(journals, tmp_path / "aside", "a", 12)
    assert names(tmp_path / "aside") == {"a-12-000001.mcap"}


def test_what_is_open_stays_and_so_does_the_rest(journals: Path, tmp_path: Path) -> None:
    files = OsFiles()
    lock = files.lock(journals / "a-12.lock")
    assert lock is not None
    with pytest.raises(JournalBusy, match="stop node 12"):
        set_aside(journals, tmp_path / "aside", "a")
    assert not names(tmp_path / "aside") and set(OURS) <= names(journals)
    files.close(lock)
    set_aside(journals, tmp_path / "aside", "a")


def test_nothing_is_replaced(journals: Path, tmp_path: Path) -> None:
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / OURS[0]).write_text("older")
    with pytest.raises(JournalError, match="is there already"):
        set_aside(journals, tmp_path / "aside", "a")
    assert (tmp_path / "aside" / OURS[0]).read_text() == "older" and set(OURS) <= names(journals)
    with pytest.raises(JournalError, match="can't be looked at"):
        set_aside(tmp_path / "none", tmp_path / "aside", "a")
