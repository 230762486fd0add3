"""Views: who is in the group, and which topics it has, from one membership change to the next.

Why one value for all of it: members agree on a view as a whole (its bytes are what they acknowledge), so whatever two
nodes must see alike (ranks, subgroups, topic ids, who gives history to whom) is in it or follows from it.

Rules: a view is immutable. Ranks are positions in `members`; who stays keeps the order, joiners come last, so the
lowest rank is the oldest member. Members and senders of a topic are node ids in rank order. A topic without
members may be deleted, and another topic then get its id: no epoch has both, as an epoch has only topics with members.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from spindle.group.settings import UNSAID, Settings
from spindle.group.topics import TopicInfo, TopicSpec

Placed = TypeVar("Placed")
VIEW_FLOOR_MAX = 1 << 56  # ids of views have 64 bits in the core
SHM, VERBS, TCP = "shm", "verbs", "tcp"  # fabrics, the fastest first
NODES_MAX = 256  # members of a view; the core's row has room for as many suspicions


@dataclasses.dataclass(frozen=True)
class Member:
    """One node in one of its lives. `address` is the path of its socket; pid and uid are for people and checks.

    view_floor: the views that it is a member of have at least this id, because its journals know of all lower ones.
    host: alike for nodes that reach each other's sockets on one host; endpoint: host:port for the others, or empty;
    fabrics: the names of those by which it can be reached; rdma_network: alike where RDMA devices reach each other.
    """

    node_id: int
    incarnation: int
    address: str
    pid: int = 0
    uid: int = 0
    name: str = ""
    view_floor: int = 0
    host: bytes = b""
    endpoint: str = ""
    fabrics: tuple[str, ...] = (SHM,)
    rdma_network: str = ""

    @property
    def life(self) -> tuple[int, int]:
        """Node id and incarnation: what tells one life of a node from the next."""
        return self.node_id, self.incarnation

    def __str__(self) -> str:
        return f"node {self.node_id} (pid {self.pid})"


def fabric_between(one: Member, other: Member) -> str:
    """The fastest fabric by which both can be reached from each other; "" if there is none."""
    common = set(one.fabrics) & set(other.fabrics)
    if SHM in common and one.host == other.host:
        return SHM
    if VERBS in common and one.rdma_network == other.rdma_network != "":
        return VERBS
    return TCP if TCP in common and one.endpoint and other.endpoint else ""


class Renewal(enum.IntEnum):
    """What of a logged topic's journals counts.

    NONE      all of them
    AWAITED   nothing any more: the next declaration says what the topic is, and until then nobody can open it
    DECLARED  what came in this group after that declaration
    """

    NONE = 0
    AWAITED = 1
    DECLARED = 2


@dataclasses.dataclass(frozen=True)
class Topic:
    """A topic in a view: its agreed specification (window chosen), id, and its subgroup.

    fresh: members that were not in this subgroup in the view before; they get its history, if it has any to give.
    born: state of the view after which it was declared: tells it from an earlier topic of its name or number.
    Invariants: senders and fresh are parts of members; a topic whose definition is awaited has none.
    """

    spec: TopicSpec
    topic_id: int
    members: tuple[int, ...] = ()
    senders: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    born: tuple[int, int] = (0, 0)
    renewal: Renewal = Renewal.NONE

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.spec, self.topic_id, self.members, self.senders, self.fresh, self.born, self.renewal))

    def __hash__(self) -> int:
        """Computed once: caches look topics up at every view change."""
        return self._hash

    def placed(self, node_ids: tuple[int, ...], place: Callable[[Topic, tuple[int, ...]], Placed]) -> Placed:
        """The result of `place(topic, node_ids)`, `node_ids` by rank. It is kept: from one view to the next nearly all
        topics stay what they were."""
        known = self.__dict__.get("_placed")
        if known is None or known[0] != node_ids:
            known = self.__dict__["_placed"] = node_ids, place(self, node_ids)
        made: Placed = known[1]
        return made

    @property
    def born_as(self) -> tuple[str, tuple[int, int]]:
        """Name and `born`: no other topic of the group ever has the same."""
        return self.spec.name, self.born

    @property
    def donor(self) -> int | None:
        """Node id of the member that gives the history to the fresh ones; None if nobody has any."""
        if not self.spec.level.keeps_history:
            return None
        return next((node_id for node_id in self.members if node_id not in self.fresh), None)

    @property
    def is_declared(self) -> bool:
        """False if the next declaration is to say what it is."""
        return self.renewal is not Renewal.AWAITED

    @property
    def renewed_since(self) -> int | None:
        """Of a topic that has been declared anew: its messages are of later views than this. Else None."""
        return self.born[0] if self.renewal is Renewal.DECLARED else None

    @property
    def info(self) -> TopicInfo:
        return TopicInfo(self.spec, self.topic_id, self.members, self.senders, not self.is_declared)


def different(topics: Sequence[Topic], others: Sequence[Topic]) -> list[Topic]:
    """Those of `topics` that aren't among `others`. What stays as it is from one view to the next is the same object,
    so this costs little however many topics there are."""
    same = set(map(id, others))
    return [topic for topic in topics if id(topic) not in same]


@dataclasses.dataclass(frozen=True)
class View:
    """View number `view_id` of the group that was formed as `group_id` (random, told apart from earlier groups).

    revision: how often its topics have changed since it was installed, in ways that move nothing in shared memory: the
    members are the same, and so is every topic that anybody has a part in.
    """

    group_id: int
    view_id: int
    members: tuple[Member, ...] = ()
    topics: tuple[Topic, ...] = ()
    settings: Settings = UNSAID
    revision: int = 0

    @functools.cached_property
    def node_ids(self) -> tuple[int, ...]:
        """Node ids by rank."""
        return tuple(member.node_id for member in self.members)

    @property
    def state(self) -> tuple[int, int]:
        """View id and revision: grows with every change."""
        return self.view_id, self.revision

    def revises(self, other: View) -> bool:
        """True if this is a later revision of that view, and not another view."""
        return (self.group_id, self.view_id) == (other.group_id, other.view_id) and self.revision > other.revision

    def rank_of(self, node_id: int) -> int | None:
        """Rank of a node, None if it is not a member."""
        return self._ranks.get(node_id)

    @functools.cached_property
    def _ranks(self) -> dict[int, int]:
        return {node_id: rank for rank, node_id in enumerate(self.node_ids)}

    def member(self, node_id: int) -> Member | None:
        rank = self._ranks.get(node_id)
        return self.members[rank] if rank is not None else None

    @functools.cached_property
    def topics_by_name(self) -> dict[str, Topic]:
        return {topic.spec.name: topic for topic in self.topics}

    @property
    def topic_count(self) -> int:
        """Of different names."""
        return len(self.topics_by_name)

    def topic(self, name: str) -> Topic | None:
        return self.topics_by_name.get(name)

    def declares(self, name: str) -> bool:
        """True if the topic can be opened."""
        topic = self.topics_by_name.get(name)
        return topic is not None and topic.is_declared

    def has_role(self, node_id: int, name: str, member: bool, sender: bool) -> bool:
        """True if the node's part in the topic is exactly this."""
        topic = self.topic(name)
        if topic is None:
            return not member and not sender
        return (node_id in topic.members) == member and (node_id in topic.senders) == sender
