"""What can be wrong with a journal, told apart by class.

All are `spindle.errors.JournalError`, so that one `except` has them. Each takes its text alone, because an error also
travels to an application as class name and text; where it happened is in attributes for those who want to act on it.
"""

from __future__ import annotations

from pathlib import Path

from spindle.errors import JournalError

__all__ = ["JournalBusy", "JournalCorrupt", "JournalError", "JournalWriteFailed", "NotAJournal"]


class JournalBusy(JournalError):
    """Another node, or a repair, holds the journal."""


class NotAJournal(JournalError):
    """The file is no journal of Spindle: another kind of file, or an MCAP file that somebody else wrote."""


class JournalCorrupt(JournalError):
    """A journal is damaged in a way that no crash explains: good data follows the damage.

    path, offset  the file, and the byte in it where the damage begins
    """

    def __init__(self, message: str, path: Path | None = None, offset: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class JournalWriteFailed(JournalError):
    """Writing, growing or syncing a journal failed; nothing that comes later is acknowledged."""
