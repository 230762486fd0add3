"""What a node says about itself, for `spindle status`, the metrics and tests. Fit for JSON."""

from __future__ import annotations

import dataclasses
import time
import weakref
from typing import TYPE_CHECKING, Any

from spindle.group.view import fabric_between
from spindle_core.errors import CoreError

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Topic
    from spindle.node.changes import Changes
    from spindle.topics.local_topic import LocalTopic
    from spindle.topics.table import TopicTable
    from spindle_core.epoch import Epoch
    from spindle_core.log_figures import LogFigures


class Figures:
    """How large and how late the messages of this node's topics are, since somebody has first asked for it."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[LocalTopic, LogFigures] = weakref.WeakKeyDictionary()

    def of(self, local: LocalTopic) -> dict[str, Any]:
        """`seen` messages with together `seen_bytes`, and by their `latencies` (see spindle_core.log_figures)."""
        from spindle_core.log_figures import LogFigures

        if local.log is None:
            return {}
        figures = self._of.get(local)
        try:
            if figures is None or figures.log is not local.log.mapping:
                figures = self._of[local] = LogFigures(local.log.mapping)
            figures.scan()
        except (ValueError, CoreError):  # closed just now, or damaged, which its readers say
            return {}
        return {"seen": figures.count, "seen_bytes": figures.size_sum, "latencies": figures.latencies()}


def status_of(config: NodeConfig, changes: Changes, started_s: float, figures: Figures | None = None) -> dict[str, Any]:
    """See Node.status."""
    machine, view = changes.machine, changes.view
    return {
        "node_id": machine.me.node_id,
        "domain_id": config.domain_id,
        "name": machine.me.name,
        "incarnation": machine.me.incarnation,
        "uptime_s": time.monotonic() - started_s,
        "phase": machine.phase.value,
        "awaiting": machine.awaiting(),
        "view_id": view.view_id if view is not None else -1,
        "group_id": f"{view.group_id:016x}" if view is not None else "",
        "settings": dataclasses.asdict(view.settings) if view is not None else {},
        "members": [
            {"node_id": member.node_id, "pid": member.pid, "uid": member.uid, "name": member.name,
             "address": member.address, "endpoint": member.endpoint, "since": member.incarnation / 1e9,
             "fabric": "" if member == machine.me else fabric_between(machine.me, member), **_life(changes, rank)}
            for rank, member in enumerate(view.members if view is not None else ())
        ],
        "topics": [_topic(topic, changes.epoch, changes.topics, figures)
                   for topic in (view.topics if view is not None else ())],
    }


def _life(changes: Changes, rank: int) -> dict[str, Any]:
    """Whether the member takes part in the installed view, and for how long it has given no sign of life."""
    live = changes.machine.live_ranks()
    return {"live": rank in live or not live, "silent_s": round(changes.liveness.silent_s(rank), 3)}


def _topic(topic: Topic, epoch: Epoch | None, topics: TopicTable, figures: Figures | None) -> dict[str, Any]:
    spec = topic.spec
    found: dict[str, Any] = {
        "name": spec.name, "topic_id": topic.topic_id, "type_name": spec.type_name, "level": spec.level.name.lower(),
        "size_max": spec.size_max, "window": spec.window, "members": list(topic.members),
        "senders": list(topic.senders),
    }
    local = topics.local.get(spec.name)
    if local is None or not local.member:
        return found
    found["writers"] = sum(not topics.timekeeper.is_voice(one) for one in local.writers)
    found["readers"] = len(local.readers)
    found["types"] = len(local.types.said)
    found["waits_for_history"] = local.busy
    found["waits_for"] = local.catching_up.awaiting() if local.catching_up is not None else ""
    if local.log is not None:
        found["delivered"], found["oldest_index"] = local.log.delivered, local.log.oldest_index
    if figures is not None:
        found |= figures.of(local)
    found |= local.table_figures()
    if epoch is not None and epoch.has_topic(topic.topic_id):
        found["stability"] = epoch.stability(topic.topic_id)
    task = local.journal_task
    if task is not None and task.done() and not task.cancelled() and task.exception() is None:
        found["journal"] = task.result().status()
    return found
