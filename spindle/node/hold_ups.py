"""Who holds a topic up, in the log: at the nodes whose writers wait, and at the one that they wait for.

Why: a reader that keeps all and doesn't take stops every writer of its topic, on every node, and nothing fails until
some write runs into its timeout. Whoever looks for the cause finds it here, also when it is over.

Rules: a topic counts as held up if the same node was behind at LOOKS looks in a row and got on too little in between
(`spindle.group.holding.stuck`). It is said once, again only after AGAIN_S, and that it goes on is said once, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from spindle.group.endpoints import Endpoint
from spindle.group.holding import Holder, holders, stuck
from spindle.logs import TOPIC_GOES_ON, TOPIC_HELD_UP, about
from spindle.topics.journals import running

if TYPE_CHECKING:
    from spindle.node.changes import Changes
    from spindle.topics.journals import Halts

EVERY_S = 1.0
LOOKS = 2
AGAIN_S = 60.0
LOG = logging.getLogger("spindle.node")


@dataclasses.dataclass
class _Topic:
    """before  what was seen of it at the last look; `looks`  in a row at which it was held up; `said_s`  when that was
    said last, `told`  that it was, and not yet that it goes on"""

    before: dict[str, Any]
    looks: int = 0
    said_s: float | None = None
    told: bool = False


class HoldUps:
    """Of one node. `start()` once the node is a member; `endpoints(topic, everything)` are the group's, and `halts` is
    told of the journals here at each look."""

    def __init__(self, node_id: int, changes: Changes, endpoints: Callable[[str, bool], Iterable[Endpoint]],
                 halts: Halts) -> None:
        self._node_id, self._changes, self._endpoints, self._halts = node_id, changes, endpoints, halts
        self._topics: dict[tuple[int, int, int], _Topic] = {}  # by number and birth
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look_again)

    def stop(self) -> None:
        """No more looks. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look_again)
        journals = {name: running(one.journal_task) for name, one in self._changes.topics.local.items()}
        self._halts.look({name: one for name, one in journals.items() if one is not None})
        self.look(asyncio.get_running_loop().time())

    def look(self, now_s: float) -> None:
        """At every topic that has writers somewhere and that this node is a member of."""
        view, epoch = self._changes.view, self._changes.epoch
        if view is None or epoch is None:
            return
        seen = {}
        for topic in view.topics:
            if not topic.senders or not epoch.has_topic(topic.topic_id):
                continue
            part = {"name": topic.spec.name, "level": topic.spec.level.name.lower(), "window": topic.spec.window,
                    "stability": epoch.stability(topic.topic_id)}
            key = (topic.topic_id, *topic.born)
            known = seen[key] = self._topics.get(key) or _Topic({})
            before, known.before = known.before, part
            self._judge(known, stuck(before, part, ()) if holders(part, ()) else [], now_s)
        self._topics = seen

    def _judge(self, topic: _Topic, found: list[Holder], now_s: float) -> None:
        name = topic.before["name"]
        if not found:
            topic.looks = 0
            if topic.told:
                topic.told = False
                LOG.info("topic %r goes on", name, extra=about(TOPIC_GOES_ON, topic=name))
            return
        topic.looks += 1
        if topic.looks < LOOKS or (topic.said_s is not None and now_s < topic.said_s + AGAIN_S):
            return
        local = self._changes.topics.local.get(name)
        if self._node_id not in {one.node_id for one in found} and (local is None or not local.writers):
            return
        topic.said_s, topic.told = now_s, True
        named = holders(topic.before, self._endpoints(name, True))  # also what nodes say of journals
        LOG.warning("topic %r is held up: its writers wait for %s", name, "; ".join(map(str, named)), extra=about(
            TOPIC_HELD_UP, topic=name, members=" ".join(str(one.node_id) for one in named)))


__all__ = ["HoldUps"]
