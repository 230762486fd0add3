"""Directories of a configuration, looked at before a node starts."""

from __future__ import annotations

import os
from pathlib import Path

from spindle.errors import JournalError


def check_journal_dir(directory: Path) -> None:
    """A slip in [journal] dir is told at the start, not with the first logged topic. What may pass (a full disk, a file
    system that isn't mounted yet) is no reason not to start. Raises JournalError."""
    existing = directory
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise JournalError(f"no journals can be kept in {directory}: {existing} is no directory; choose another "
                           "[journal] dir")
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise JournalError(f"no journals can be kept in {directory}: uid {os.geteuid()} may not write in {existing}; "
                           "give it that right, or choose another [journal] dir")


__all__ = ["check_journal_dir"]
