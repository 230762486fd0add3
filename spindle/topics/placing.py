"""Where in a topic's order readers begin, and whether they go on without a gap."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spindle.group.position import Position
from spindle.restart.chain import NOTHING, Life, Order, place_in

if TYPE_CHECKING:
    from spindle.group.topics import TopicSpec
    from spindle_core.delivery import Cursor


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where in the order a reader begins, and whether it goes on without a gap from where it was."""

    view_id: int
    sequence: int
    continued: bool


def ends_of(lives: Sequence[Life]) -> tuple[Position, ...]:
    """Where the order of each life but the last ends, for whoever has had all of it."""
    return tuple(
        Position(life.group_id, later.after[0], later.after[1] + 1)
        for life, later in itertools.pairwise(lives) if later.after != NOTHING)


def place_of(lives: tuple[Life, ...], group_id: int, position: Position) -> Order | None:
    """The place in the order of a log that this group's lives made; None if that was another order."""
    place = place_in(lives, position.group_id, position.place)
    return position.place if place is None and position.group_id == group_id else place


def is_whole(cursor: Cursor, spec: TopicSpec, entered: int) -> bool:
    """True if nothing is missing between the place that a reader goes on from and the oldest message for it. entered:
    the view with which the node became a member."""
    from spindle_core.delivery import KEPT_BEFORE, KEPT_WHOLE

    if cursor.kept == KEPT_WHOLE:  # since the node became a member, if the log has been there since
        return spec.level.keeps_history and entered <= cursor.after[0]
    return bool(cursor.kept == KEPT_BEFORE)
