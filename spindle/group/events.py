"""What a session tells its application about the group.

Rules: an event is a hint to look again, never the only source: a listener that was added late, or missed events because
its callback was slow (kind MISSED), asks the session for the present state and is right again.
"""

from __future__ import annotations

import dataclasses

from spindle.group.endpoints import Endpoint
from spindle.group.topics import TopicInfo

ENDPOINT_ADDED = "endpoint_added"  # `endpoint`, a reader or writer, was announced in the group, or anew
ENDPOINT_REMOVED = "endpoint_removed"  # `endpoint` was withdrawn, or its application or node has gone
ANNOUNCED = "announced"  # the same of an `endpoint` that is a topic or participant, see spindle.group.endpoints
WITHDRAWN = "withdrawn"  # it has gone
TOPIC_ADDED = "topic_added"  # `topic` was declared
TOPIC_REMOVED = "topic_removed"  # `topic` was deleted
VIEW = "view"  # `view` was installed
MISSED = "missed"  # events were dropped because a callback was slow: ask endpoints(), topics() and view() again
TURNED = "turned"  # another node serves the session, and its readers and writers go on; `text` says which and why
GONE = "gone"  # the node has stopped or died, `text` says why; always the last event, the session is over


@dataclasses.dataclass(frozen=True)
class ViewInfo:
    """One view of the group. `node_ids[r]` is the node of rank r; `my_rank` is the rank of the session's own node.

    group_id: of the whole chain of views; a group that forms anew has another.
    """

    view_id: int
    node_ids: tuple[int, ...]
    my_rank: int
    group_id: int = 0

    @property
    def ranks(self) -> dict[int, int]:
        """Rank of each node id."""
        return {node_id: rank for rank, node_id in enumerate(self.node_ids)}


@dataclasses.dataclass(frozen=True)
class Event:
    """One event: its kind (see the constants of this module) and what it is about."""

    kind: str
    endpoint: Endpoint | None = None
    view: ViewInfo | None = None
    topic: TopicInfo | None = None
    text: str = ""
