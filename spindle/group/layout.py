"""How the topics of a view become subgroups of the core, and what they may take.

Why one subgroup per topic: members of a subgroup order and acknowledge each other's messages, so a topic costs only the
nodes that read or write it, and topics never wait for each other.

Rules: the core knows rows by rank; here node ids become ranks. Topics without members have no subgroup. The order of
subgroups is that of topic ids, the same at every member: the rows' layout depends on it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from spindle.errors import TopicLimit
from spindle.group.topics import ring_bytes

if TYPE_CHECKING:
    from spindle.group.topics import TopicSpec
    from spindle.group.view import Topic, View
    from spindle_core.engine import SubgroupSpec

RING_BYTES_MAX = 4 << 30  # of one sender of one topic
ROW_BYTES_MAX = 64 << 30  # all rings of a row; address space, touched only as far as used


def sender_bytes(spec: TopicSpec) -> int:
    """Memory of one sender's ring, bytes (an upper bound)."""
    return ring_bytes(spec.window, spec.size_max)


def check_memory(topics: tuple[Topic, ...], spec: TopicSpec) -> None:
    """Raise TopicLimit if `spec`, its window chosen, cannot be added to `topics`."""
    ring = sender_bytes(spec)
    if ring > RING_BYTES_MAX:
        raise TopicLimit(f"topic {spec.name!r} needs {ring} bytes for each sender (window {spec.window} of "
                         f"{spec.size_max} bytes), limit {RING_BYTES_MAX}; choose a smaller window or size_max")
    row = ring + sum(sender_bytes(topic.spec) for topic in topics)
    if row > ROW_BYTES_MAX:
        raise TopicLimit(f"with topic {spec.name!r} the rings of one node need {row} bytes, limit {ROW_BYTES_MAX}; "
                         "choose smaller windows or fewer topics")


def subgroups_of(view: View) -> list[SubgroupSpec]:
    """What Engine.new_epoch takes: one entry for each topic that has members, by topic id."""
    node_ids = view.node_ids
    found = [topic.placed(node_ids, _subgroup) for topic in view.topics if topic.members]
    return sorted(found, key=_topic_id)


_topic_id = operator.attrgetter("topic_id")


def _subgroup(topic: Topic, node_ids: tuple[int, ...]) -> SubgroupSpec:
    from spindle_core.engine import SubgroupSpec

    return SubgroupSpec(
        topic_id=topic.topic_id,
        members=tuple(node_ids.index(node_id) for node_id in topic.members),
        senders=tuple(node_ids.index(node_id) for node_id in topic.senders),
        window=topic.spec.window,
        size_max=topic.spec.size_max,
        level=int(topic.spec.level),
        keyed=bool(topic.spec.effects),
    )
