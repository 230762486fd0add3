"""The ragged trim: how many messages of each sender an epoch keeps (design: Membership 6).

Why the least over the live members: it is the most that all of them can deliver. And it is never less than what any
member, dead or live, has delivered: a message is delivered only when all members of the view have received it, so each
live member's frozen counts include it (property T2).

Rules: a topic that isn't named keeps nothing. So the cost of a view change depends on the topics that had messages in
its epoch, not on all that there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spindle.group.view import View
from spindle.membership.table import Table

Trims = dict[int, tuple[int, ...]]  # by topic id: messages kept of each sender, by sender rank


def least_frozen(view: View, table: Table, live: Sequence[int]) -> Trims:
    """Per subgroup and sender the least count that a live member has frozen, where that isn't zero for all senders. A
    topic whose members are all gone keeps nothing."""
    among = set(live)
    active = {topic_id for rank in live for topic_id in table.frozen_topics(rank)}
    trims: Trims = {}
    for topic in view.topics:
        if topic.topic_id in active:
            ranks = [rank for rank in map(view.rank_of, topic.members) if rank is not None and rank in among]
            frozen = [table.frozen_counts(rank, topic.topic_id) for rank in ranks]
            least = tuple(min(counts) for counts in zip(*frozen, strict=True))
            if any(least):
                trims[topic.topic_id] = least
    return trims


def fits(view: View, table: Table, node_id: int, view_id: int, trims: Mapping[int, tuple[int, ...]]) -> bool:
    """True if the trim is one of `view` and keeps only messages that this member has received (property T3)."""
    if view_id != view.view_id:
        return False
    known = {topic.topic_id: topic for topic in view.topics if topic.topic_id in trims}
    for topic_id, trim in trims.items():
        topic = known.get(topic_id)
        if topic is None or len(trim) != len(topic.senders):
            return False
        if node_id in topic.members:
            frozen = table.frozen_counts(table.my_rank, topic_id)
            if any(kept > got for kept, got in zip(trim, frozen, strict=True)):
                return False
    return True
