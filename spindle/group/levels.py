"""The four levels of a topic: how much is promised about delivery, and how much is kept.

| level     | delivered                            | kept                                                |
|-----------|--------------------------------------|-----------------------------------------------------|
| UNORDERED | when received, FIFO per sender       | no                                                  |
| ATOMIC    | when stable, the same order everywhere | no                                                |
| VOLATILE  | as atomic                            | in memory at each subscribing node, for late joiners |
| LOGGED    | as atomic                            | also appended to a journal on disk                  |

The numbers travel between nodes and into the core: they never change.
"""

from __future__ import annotations

import enum


class Level(enum.IntEnum):
    """Level of a topic; compare with `>=` to ask for "at least"."""

    UNORDERED = 0  # best effort: no total order, nothing kept
    ATOMIC = 1  # total order, all or nothing
    VOLATILE = 2  # atomic, and the history is kept in memory for late joiners
    LOGGED = 3  # volatile, and the history is appended to a journal on disk

    @property
    def ordered(self) -> bool:
        """True if every member delivers the same messages in the same order."""
        return self >= Level.ATOMIC

    @property
    def keeps_history(self) -> bool:
        """True if a late joiner is given what was delivered before."""
        return self >= Level.VOLATILE
