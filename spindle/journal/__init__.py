"""Logged storage: what was delivered on a topic, kept on disk as standard MCAP files.

    format    what is in a file and why
    live      the file being written
    scan      reading a file without trusting it
    recovery  taking up what an earlier life of the node left
    relays    how far writers on hosts without a node have got
    writer    `Journal`: the thread of one logged topic
    tools     info, verify, export, read: for people and scripts

Import this only where a journal is opened or read: it needs the `mcap` library, which a node without logged topics
never loads.
"""

from __future__ import annotations

from spindle.journal.directory import check_directory
from spindle.journal.errors import JournalBusy, JournalCorrupt, JournalError, JournalWriteFailed, NotAJournal
from spindle.journal.recovery import Recovery
from spindle.journal.writer import FSYNC_MODES, Journal

__all__ = [
    "FSYNC_MODES",
    "Journal",
    "JournalBusy",
    "JournalCorrupt",
    "JournalError",
    "JournalWriteFailed",
    "NotAJournal",
    "Recovery",
    "check_directory",
]
