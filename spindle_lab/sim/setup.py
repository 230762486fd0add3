"""What a run has before its first event."""

from __future__ import annotations

import dataclasses

from spindle.group.topics import TopicSpec
from spindle_core.engine import Switches


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run has before its first event."""

    topics: tuple[TopicSpec, ...]
    fabric: str = "shared"
    late: bool = True  # copied rows: a write carries what the row holds when it arrives
    fences: bool = True  # ... and a node that is suspected writes no more into copies of its row
    joins: bool = True  # ... and what waits on its way takes along what is posted later
    ahead: bool = True  # ... and what need not wait for the rest has a way of its own
    push_bytes: int = 4096  # ... and of larger batches the members see the beginning before the end
    range_cost: int = 64  # ... and so many unused bytes are written along rather than a further write be posted
    suspect_timeout_ns: int = 100_000_000
    inbox_slots: int = 4
    small_logs: bool = False  # a slow reader soon has the group wait
    switches: Switches = dataclasses.field(default_factory=Switches)
