"""What the membership machine needs of the rows of an epoch.

Why a protocol: `spindle_core.engine.Epoch` is one such table, a test's plain memory another.

Rules: a node sets only its own row; columns only grow. What one node wrote before a push is seen by another no later
than what it pushed afterwards; the machine relies on areas being visible before the columns that speak of them, and on
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Area = Literal["proposal", "trim"]


class Table(Protocol):
    """The control columns of one epoch, as seen from one node."""

    @property
    def my_rank(self) -> int:
        """Rank of the own row."""

    @property
    def n_rows(self) -> int:
        """Members of the view."""

    def get(self, rank: int, column: str) -> int:
        """A column of anybody's row, as far as it has become visible here."""

    def set(self, column: str, value: int) -> None:
        """A column of the own row; never lower than before."""

    def write_area(self, area: Area, data: bytes) -> None:
        """Replaces an area of the own row. ValueError if `data` is larger than the area."""

    def read_area(self, rank: int, area: Area) -> bytes:
        """An area of anybody's row. ValueError if it is not whole at the moment."""

    def frozen_counts(self, rank: int, topic_id: int) -> Sequence[int]:
        """Messages that the member has received of each sender, by sender rank, as it froze them at its wedge."""

    def frozen_topics(self, rank: int) -> Sequence[int]:
        """Numbers of the topics for which that member has frozen any count above zero."""

    def push(self) -> None:
        """Makes what was set and written visible to the others, in that order, and rings them."""
