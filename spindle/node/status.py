"""What a node says about itself, for `spindle status`, the metrics and tests. Fit for JSON."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from spindle import __version__
from spindle.group.view import fabric_between
from spindle.topics.journals import running

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Topic
    from spindle.node.changes import Changes
    from spindle.topics.table import TopicTable
    from spindle_core.delivery import DeliveryLog
    from spindle_core.epoch import Epoch


def status_of(config: NodeConfig, changes: Changes, started_s: float) -> dict[str, Any]:
    """See Node.status."""
    machine, view = changes.machine, changes.view
    return {
        "node_id": machine.me.node_id,
        "domain_id": config.domain_id,
        "name": machine.me.name,
        "incarnation": machine.me.incarnation,
        "release": __version__,
        "uptime_s": time.monotonic() - started_s,
        "phase": machine.phase.value,
        "awaiting": machine.awaiting(),
        "view_id": view.view_id if view is not None else -1,
        "group_id": f"{view.group_id:016x}" if view is not None else "",
        "settings": dataclasses.asdict(view.settings) if view is not None else {},
        "members": [
            {"node_id": member.node_id, "pid": member.pid, "uid": member.uid, "name": member.name,
             "address": member.address, "endpoint": member.endpoint, "since_ns": member.incarnation,
             "fabric": "" if member == machine.me else fabric_between(machine.me, member), **_life(changes, rank)}
            for rank, member in enumerate(view.members if view is not None else ())
        ],
        "topics": [_topic(topic, changes.epoch, changes.topics) for topic in (view.topics if view is not None else ())],
        "large": changes.topics.larges.status(),
        **_process(changes),
    }


def figures_of(changes: Changes, started_s: float) -> dict[str, Any]:
    """See Node.figures."""
    view, topics = changes.view, []
    for topic in view.topics if view is not None else ():
        local = changes.topics.local.get(topic.spec.name)
        if local is None or not local.member:
            continue
        found: dict[str, Any] = {"name": topic.spec.name, "level": topic.spec.level.name.lower(),
                                 "window": topic.spec.window}
        if local.log is not None:
            found["delivered"], found["figures"] = local.log.delivered, _figures(local.log)
        if changes.epoch is not None and changes.epoch.has_topic(topic.topic_id):
            found["stability"] = changes.epoch.stability(topic.topic_id)
        topics.append(found)
    return {"node_id": changes.machine.me.node_id, "view_id": view.view_id if view is not None else -1,
            "uptime_s": time.monotonic() - started_s, **_process(changes), "topics": topics}


def _process(changes: Changes) -> dict[str, Any]:
    """The node's counters, and the processor time of its process."""
    return {"counters": changes.engine.counters.snapshot(), "cpu_s": time.process_time()}


def _figures(log: DeliveryLog) -> dict[str, Any]:
    """What was delivered live since the log was made, and how long after it was written; see spindle/group/figures."""
    from spindle_core.delivery import LATENCY_LIMITS_NS

    messages, size, latencies = log.figures()
    bounds = (*LATENCY_LIMITS_NS, "inf")
    return {"messages": messages, "bytes": size, "latencies": {str(bounds[at]): n for at, n in latencies.items()}}


def _life(changes: Changes, rank: int) -> dict[str, Any]:
    """Whether the member takes part in the installed view, and for how long it has given no sign of life."""
    live = changes.machine.live_ranks()
    return {"live": rank in live or not live, "silent_s": round(changes.liveness.silent_s(rank), 3)}


def _topic(topic: Topic, epoch: Epoch | None, topics: TopicTable) -> dict[str, Any]:
    spec = topic.spec
    found: dict[str, Any] = {
        "name": spec.name, "topic_id": topic.topic_id, "type_name": spec.type_name, "level": spec.level.name.lower(),
        "size_max": spec.size_max, "window": spec.window, "members": list(topic.members),
        "senders": list(topic.senders),
    }
    if not topic.is_declared:
        found["waits_for"] = "its next declaration, which says what it is"
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
        found["figures"] = _figures(local.log)
    found |= local.table_figures()
    if epoch is not None and epoch.has_topic(topic.topic_id):
        found["stability"] = epoch.stability(topic.topic_id)
    if (journal := running(local.journal_task)) is not None:
        found["journal"] = journal.status()
    return found
