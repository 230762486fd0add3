"""Where a reader stands in a topic's order, so that it can go on at another node, or at the next life of its own.

Why not an index: indices count what one node's log has had; the order itself is the same at every node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Position:
    """The first place in the order of a topic that a reader has not had: it has had every message before.

    group_id   of the group that agreed on the order
    view_id, sequence  as its messages carry them; the sequence number is that of the last message had, and one
    """

    group_id: int
    view_id: int
    sequence: int

    @property
    def place(self) -> tuple[int, int]:
        return self.view_id, self.sequence


def places(ends: Sequence[Position], group_id: int, place: tuple[int, int]) -> list[Position]:
    """The positions of a reader that stands at `place` in a group's log: where it has been in each earlier group that
    the topic's journals outlived, then where it stands. `ends`: where the orders of those groups end, in their order.

    Why: a later group may have gone on from the same journals without ever knowing of the one in between.
    """
    been = [end for end in ends if end.place <= place]
    now = next((end.group_id for end in ends if end.place > place), group_id)
    return [*been, Position(now, *place)]


def farthest(been: Sequence[Position]) -> list[Position]:
    """One position for each group: the farthest where `been` has several of one group."""
    found: dict[int, Position] = {}
    for one in been:
        if one.group_id not in found or found[one.group_id].place < one.place:
            found[one.group_id] = one
    return list(found.values())


def elsewhere(been: Sequence[Position], after: Position) -> list[Position]:
    """The farthest of these in each group but that of `after`, where their reader stands now."""
    return [one for one in farthest(been) if one.group_id != after.group_id]
