"""Who holds a topic up: which node's readers, or which node, its writers wait for.

How it is known: every member's row says how far it has received and delivered, and all see all rows; announced readers
say where they are and whose they are. So any node can tell.

Rules: a member counts as behind if half of what the rings hold waits for it. Less is in flight at any moment. What one
has not received nobody may deliver, so who is behind in receiving is to blame for both.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from spindle.group.endpoints import HALTED, PORT, TOPIC, Endpoint


@dataclasses.dataclass(frozen=True)
class Holder:
    """A node that a topic waits for.

    behind   numbers of the topic's order that it has not received, or not delivered
    receives it has received them: its readers don't take
    journal  why the journal there writes nothing; empty if it does
    readers  (application, process id as its node sees it) of the readers there that may hold writers back, each once
    """

    node_id: int
    behind: int
    receives: bool
    readers: tuple[tuple[str, int], ...]
    journal: str = ""

    def __str__(self) -> str:
        if self.journal:
            return f"the journal of node {self.node_id}: {self.journal}"
        if not self.receives:
            return f"node {self.node_id}, which has not received {self.behind} messages"
        names = ", ".join(f"{name} (process {pid})" if pid else name for name, pid in self.readers)
        if not names:
            return f"node {self.node_id}, where {self.behind} messages are not delivered"
        which = "a reader of " if len(self.readers) == 1 else "a reader of one of "
        return f"{which}{names} at node {self.node_id}, which keeps all and has not taken"


def holders(topic: Mapping[str, Any], endpoints: Iterable[Endpoint], few: bool = False) -> list[Holder]:
    """Whom a topic waits for, the slowest first. `topic` is its part of a node's status; of a topic that the node isn't
    a member of, that says nothing, and nobody is found. few: whoever lacks one message is behind, because large ones
    hold all the memory that there is for them."""
    stability = topic.get("stability") or {}
    members, received, delivered = (stability.get(name) or [] for name in ("members", "received", "delivered"))
    if not members or not len(members) == len(received) == len(delivered):
        return []
    front = max(received)
    least = 1 if few else max(1, topic.get("window", 0) * len(stability.get("senders") or [0]) // 2)
    listed = list(endpoints)
    halted = {node: why for node, why in _halted(topic.get("name", ""), listed).items() if node in members}
    if halted:  # before its log is full, too: nothing else can help the writers
        behind = dict(zip(members, delivered, strict=True))
        return [Holder(node, front - behind[node], True, (), why) for node, why in sorted(halted.items())]
    found = [Holder(node, front - number, False, ()) for node, number in zip(members, received, strict=True)
             if front - number >= least]
    if not found and topic.get("level") != "unordered":
        found = [Holder(node, front - number, True, _may_hold(node, topic.get("name", ""), listed))
                 for node, number in zip(members, delivered, strict=True) if front - number >= least]
    return sorted(found, key=lambda one: (-one.behind, one.node_id))


def stuck(before: Mapping[str, Any], topic: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> list[Holder]:
    """Those that hold a topic up, and have got on by less than they are behind since an earlier look at it. At a moment
    the rings of a topic that goes on as fast as it can are full, too. A journal that has halted holds its topic up,
    however far that gets meanwhile."""
    found = []
    for one in holders(topic, endpoints):
        if one.journal:
            found.append(one)
            continue
        kind = "delivered" if one.receives else "received"
        earlier, now = (dict(zip(numbers["members"], numbers[kind], strict=False)) for numbers in (
            before.get("stability") or {"members": (), kind: ()}, topic["stability"]))
        if one.node_id in earlier and now[one.node_id] - earlier[one.node_id] < one.behind:
            found.append(one)
    return found


def _may_hold(node_id: int, topic: str, endpoints: Iterable[Endpoint]) -> tuple[tuple[str, int], ...]:
    found = [(one.app_name, one.pid) for one in endpoints
             if one.kind == PORT and not one.is_writer and one.topic == topic and one.node_id == node_id
             and _keeps_all(one.endpoint)]
    return tuple(dict.fromkeys(found))


def _halted(topic: str, endpoints: Iterable[Endpoint]) -> dict[int, str]:
    """By node: why its journal of the topic writes nothing."""
    found = {}
    for one in endpoints:
        if one.kind == TOPIC and one.topic == topic and one.app_name == "journal":
            try:
                found[one.node_id] = str(json.loads(one.endpoint)[HALTED])
            except (ValueError, KeyError, TypeError):
                pass
    return found


def _keeps_all(endpoint: bytes) -> bool:
    """False if a reader of the DDS layer says that it keeps the last samples only, or makes no effort."""
    try:
        qos = json.loads(endpoint)["qos"]
        return qos.get("History", {}).get("kind") != "KeepLast" and (
            qos.get("Reliability", {}).get("kind") != "BestEffort")
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # a reader of another layer doesn't say


__all__ = ["Holder", "holders", "stuck"]
