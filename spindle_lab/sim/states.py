"""When two moments of two runs are the same: for exhaustive simulation, which follows each state once.

Everything that decides what can happen next is part of a state: rows as each node sees them and what its core knows,
its machine, what waits on its connections. So is what the checker holds against later deliveries. Not part of it are
addresses, times and counters, which differ between runs that come to the same.

Rules: what is not known here is an error, so that nothing new in a node is left out by oversight.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from typing import TYPE_CHECKING, Any

from spindle.group.view import Member, View
from spindle_core.digest import epoch_state
from spindle_core.epoch import Epoch
from spindle_lab.sim.node import Life
from spindle_lab.sim.tables import WatchedTable

if TYPE_CHECKING:
    from spindle_lab.sim.world import World

PLAIN = (int, str, bytes, bool, type(None), float)
# Of a life: what is in the digest of its epoch, never changes in such a run, or is added by itself.
NOT_OF_A_LIFE = frozenset((
    "world", "engine", "bell", "watch", "preparation", "view", "epoch", "table", "next_epoch", "next_look_ns",
    "sleeps_until_ns", "readers", "writers", "direct", "links", "peers", "me", "clock_skew_ns"))


def world_state(world: World, *more: Any) -> int:
    """A number that is equal for equal states and, but for chance, for no others; `more` is part of the state."""
    parts: list[Any] = list(more)
    numbers = {id(link): number for number, link in enumerate(world.lives[0].links)}
    for life in world.lives:
        for link in life.links:
            numbers.setdefault(id(link), len(numbers))
    for life in world.lives:
        parts.append(_life(life, numbers))
        for link in life.links:
            if link.a is life:
                parts.append((numbers[id(link)], plain(link.to_a), plain(link.to_b), link.a_talks, link.b_talks))
    for key, sequence in world.check.sequences.items():
        places = tuple(sequence.places.items())
        parts.append((key, tuple(sequence.entries), places, sequence.final, sequence.trim))
    parts.append(plain(world.check.trims))
    return hash(tuple(parts))


def epoch_key(life: Life) -> int:
    """A number for all that a pass over the predicates of a node reads."""
    assert life.epoch is not None
    return hash((life.number, epoch_state(life.epoch)))


def _life(life: Life, numbers: dict[int, int]) -> Any:
    own = tuple((name, plain(value)) for name, value in life.__dict__.items() if name not in NOT_OF_A_LIFE)
    readers = tuple((topic_id, reader.delivered, reader.log.delivered, len(reader.backlog))
                    for topic_id, reader in life.readers.items())
    peers = tuple((node_id, numbers[id(link)]) for node_id, link in life.peers.items())
    view_id = life.view.view_id if life.view is not None else -1
    return view_id, epoch_state(life.epoch) if life.epoch is not None else b"", own, readers, peers


def plain(value: Any) -> Any:
    """As nested tuples that compare by value. Sets have no order, everything else keeps its own."""
    if isinstance(value, PLAIN):
        return value.name if isinstance(value, enum.Enum) else value
    if isinstance(value, (tuple, list, deque)):
        return tuple(map(plain, value))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(plain, value)))
    if isinstance(value, dict):
        return tuple((plain(key), plain(one)) for key, one in value.items())
    if isinstance(value, (View, Member)):
        return value    # compares by value already
    if isinstance(value, Life):
        return value.number
    if isinstance(value, Epoch):
        return value.epoch, value.my_rank
    if isinstance(value, WatchedTable):
        return ()       # its rows are in the digest
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) or type(value).__module__.startswith("spindle.membership"):
        fields = value.__dict__ if hasattr(value, "__dict__") else {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return type(value).__name__, tuple((name, plain(one)) for name, one in fields.items())
    raise TypeError(f"{type(value)} in a simulated node: say in states.py what of it is part of its state")
