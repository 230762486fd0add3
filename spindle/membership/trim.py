"""The ragged trim: how many messages of each sender an epoch keeps (design: Membership 6).

Why the least over the live: it is the most that all of them can deliver. And it is never less than what anybody has
delivered, the dead included: a message is delivered when all members of the view have received it, so it counts among
what each of the live has frozen (property T2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spindle.group.view import View
from spindle.membership.table import Table

Trims = dict[int, tuple[int, ...]]  # by topic id: messages kept of each sender, by sender rank


def least_frozen(view: View, table: Table, live: Sequence[int]) -> Trims:
    """Per subgroup and sender the least count that a live member has frozen. A topic whose members are all gone keeps
    nothing."""
    among = set(live)
    trims: Trims = {}
    for topic in view.topics:
        if topic.senders:
            ranks = [rank for rank in map(view.rank_of, topic.members) if rank is not None and rank in among]
            frozen = [table.frozen_counts(rank, topic.topic_id) for rank in ranks]
            trims[topic.topic_id] = (
                tuple(min(counts) for counts in zip(*frozen, strict=True)) if frozen else (0,) * len(topic.senders))
    return trims


def fits(view: View, table: Table, node_id: int, view_id: int, trims: Mapping[int, tuple[int, ...]]) -> bool:
    """True if the trim is one of `view` and keeps nothing that this member has not received (property T3)."""
    if view_id != view.view_id:
        return False
    for topic in view.topics:
        if topic.senders and node_id in topic.members:
            frozen = table.frozen_counts(table.my_rank, topic.topic_id)
            trim = trims.get(topic.topic_id, ())
            if len(trim) != len(frozen) or any(kept > got for kept, got in zip(trim, frozen, strict=True)):
                return False
    return True
