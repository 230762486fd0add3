"""What a reader has lost by being overtaken in its log."""

from __future__ import annotations

from typing import Any


class Losses:
    """Counts what a reader lost by being overtaken: not what KeepLast(depth) would have replaced anyway."""

    __slots__ = ("_log", "_seen", "depth", "found")

    def __init__(self, log: Any, depth: int) -> None:
        """`depth` 0 = every sample that was overtaken is lost."""
        self._log = log
        self.depth = depth
        self._seen = 0
        self.found = 0  # lost samples that no status tells of yet

    def look(self) -> None:
        """Call it when the reader stands where it goes on, before it takes."""
        overtaken = self._log.lost - self._seen
        if overtaken:
            self._seen += overtaken
            self.found += min(overtaken, max(0, self.depth - self._log.pending)) if self.depth else overtaken


__all__ = ["Losses"]
