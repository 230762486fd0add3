"""Who holds the logged topics that a node has no part in.

Why: when all holders of a topic have gone, the nodes that are left begin it anew unless one of them knows better. So
every node finds out, and writes down, who has the messages that are acknowledged as persisted.

Rules:
- Members are asked whenever they change; those that say that they are whole are the holders. One that isn't whole yet
  acknowledges nothing, so nothing is lost without it.
- Who is asked and answers that it is no member any more has a journal all the same: what its standing says counts.
- A member that had its part before this node came, and vanishes without an answer, may have been whole. Of later ones
  this node is told before they begin (`spindle.restart.restorer`: record), or their donor is such a member.
- A node that joins asks everybody about the topics that have no members then: somebody may have had one until then.
- What was found is in memory before it is on a disk that may fail: `completed` adds it to what this node says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.group.levels import Level
from spindle.restart.chain import Holders, Standing, Successor, Summary, known_of, knows

if TYPE_CHECKING:
    from spindle.group.view import Topic, View


@dataclasses.dataclass
class _Asked:
    """Who was asked in a view: the members, or all others if there was no member. `old`: who has been a member since
    before this node came, and has not answered in an earlier view."""

    view_id: int
    nodes: tuple[int, ...]
    old: frozenset[int] = frozenset()
    serving: dict[int, bool] = dataclasses.field(default_factory=dict)  # the answers

    def all_serve(self, nodes: tuple[int, ...]) -> bool:
        return self.nodes == nodes and all(self.serving.get(one) for one in nodes)

    def silent(self, view: View) -> bool:
        """True if one of `old` has gone with this view and has not answered."""
        return any(view.rank_of(one) is None for one in self.old - self.serving.keys())

    def may_hold(self) -> tuple[int, ...]:
        """Those that say that they are whole, or may be."""
        return tuple(one for one in self.nodes if self.serving.get(one, one in self.old))


class Witness:
    """See the module. ask(node id, topic, view id) asks a node for its summary; note(topic, successor) has it written
    down."""

    def __init__(self, node_id: int, ask: Callable[[int, str, int], None],
                 note: Callable[[str, Successor], None]) -> None:
        self._node_id, self._ask, self._note = node_id, ask, note
        self._asked: dict[str, _Asked] = {}
        self._found: dict[str, Successor] = {}  # the newest
        self._joining = True

    def view_changed(self, view: View) -> None:
        """A view is installed."""
        for topic in view.topics:
            if topic.spec.level is Level.LOGGED:
                self._look_at(topic, view)
        self._joining = False

    def _look_at(self, topic: Topic, view: View) -> None:
        name = topic.spec.name
        asked = self._asked.get(name)
        if asked is not None and asked.silent(view):
            self._has_found(name, Successor(Holders(asked.view_id, asked.may_hold())))
            asked = None
            del self._asked[name]
        if self._node_id in topic.members:
            self._asked.pop(name, None)
        elif topic.donor is not None:
            if asked is None or not asked.all_serve(topic.members):
                unheard = asked.old - asked.serving.keys() if asked is not None else frozenset()
                old = frozenset(topic.members) - set(topic.fresh) if self._joining else unheard
                self._ask_all(name, _Asked(view.view_id, topic.members, old))
        elif self._joining:
            self._ask_all(name, _Asked(view.view_id, tuple(one for one in view.node_ids if one != self._node_id)))

    def _ask_all(self, topic: str, asked: _Asked) -> None:
        self._asked[topic] = asked
        for node_id in asked.nodes:
            self._ask(node_id, topic, asked.view_id)

    def heard(self, topic: str, node_id: int, view_id: int, summary: Summary) -> None:
        """An answer, perhaps to another question of this node."""
        asked = self._asked.get(topic)
        if asked is None or asked.view_id != view_id or node_id not in asked.nodes:
            return
        asked.serving[node_id] = summary.serving
        whole = tuple(one for one in asked.nodes if asked.serving.get(one))
        if whole and len(asked.serving) == len(asked.nodes):
            self._has_found(topic, Successor(Holders(view_id, whole)))
        elif not summary.serving:
            for known in known_of({node_id: summary.standing})[-1:]:
                self._has_found(topic, known)

    def _has_found(self, topic: str, successor: Successor) -> None:
        before = self._found.get(topic)
        if before is None or before.holders.view_id < successor.holders.view_id:
            self._found[topic] = successor
            self._note(topic, successor)

    def wanted(self, topic: str, successor: Successor) -> bool:
        """True while nothing newer has been found."""
        return self._found.get(topic) == successor

    def completed(self, topic: str, summary: Summary) -> Summary:
        """What this node says of the topic, with what it has found and could not write down yet."""
        return dataclasses.replace(summary, standing=self._with_found(topic, summary.standing))

    def _with_found(self, topic: str, standing: Standing) -> Standing:
        found = self._found.get(topic)
        return standing if found is None or knows(standing, found.holders) else dataclasses.replace(
            standing, successor=found)
