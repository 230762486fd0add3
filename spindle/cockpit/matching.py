"""Who writes and reads each topic, as the DDS layer announces it, and which of them can't come together.

Why here: a node knows endpoints only as opaque bytes, and each program knows only what keeps its own apart. A page that
shows the group should say all of it. It is compared by the same functions as the programs compare by.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Any

from spindle.group.endpoints import PARTICIPANT, PORT, Endpoint

PAIRS_MAX = 200  # that are shown
TEXT_MAX = 200  # characters of a policy
_NANOSECONDS = re.compile(r"(\w*time|\w*duration|deadline|budget|\w*separation|\w*delay)=([0-9]{4,})")
INFINITE_NS = (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class End:
    """A reader or writer, as it is shown."""

    topic: str  # to the node
    channel: str  # to the DDS layer: another name only in an order group
    is_writer: bool
    node_id: int
    application: str
    name: str  # of its participant, if that has one
    pid: int
    type_name: str
    qos: Any

    def shown(self) -> dict[str, Any]:
        return {"node": self.node_id, "application": self.application, "name": self.name, "pid": self.pid,
                "type": self.type_name, "channel": self.channel if self.channel != self.topic else "",
                "qos": described(self.qos)}


@functools.lru_cache(maxsize=4096)
def _remote(endpoint: Endpoint) -> Any:
    from dds.matching.announcing import Remote

    return Remote(endpoint)


def described(qos: Any) -> list[str]:
    """The policies that differ from the defaults, a line each."""
    from dds.policy.policies import DEFAULT

    usual = set(map(repr, DEFAULT))
    return [_text(policy) for policy in qos if repr(policy) not in usual and policy.__scope__ != "EntityName"]


def ends(endpoints: Iterable[Endpoint]) -> list[End]:
    """All readers and writers, by topic and name; writers first."""
    listed = list(endpoints)
    names = {one.owner: _name(one) for one in listed if one.kind == PARTICIPANT}
    found = []
    for one in listed:
        if one.kind != PORT:
            continue
        remote = _remote(one)
        found.append(End(one.topic, remote.topic_name, one.is_writer, one.node_id, one.app_name,
                         names.get(one.owner, ""), one.pid, remote.type_name, remote.qos))
    return sorted(found, key=lambda one: (one.topic, not one.is_writer, one.channel, one.node_id, one.application))


def _name(participant: Endpoint) -> str:
    from dds.qos import Policy

    policy = _remote(participant).qos[Policy.EntityName]
    return "" if policy is None else str(policy.name)


def incompatible(found: Iterable[End]) -> list[dict[str, Any]]:
    """Pairs of a writer and a reader of one topic that a policy keeps apart: topic, writer, reader, policy, and what
    each says of it."""
    from dds.policy.policies import incompatible_policy, partitions, partitions_meet
    from dds.policy.table import TABLE
    from dds.qos import Policy

    by_channel: dict[tuple[str, str], tuple[list[End], list[End]]] = {}
    for one in found:
        by_channel.setdefault((one.topic, one.channel), ([], []))[not one.is_writer].append(one)
    apart: list[dict[str, Any]] = []
    for (topic, channel), (writers, readers) in by_channel.items():
        for writer in writers:
            for reader in readers:
                if len(apart) >= PAIRS_MAX:
                    return apart
                if not partitions_meet(partitions(writer.qos), partitions(reader.qos)):
                    continue
                number = incompatible_policy(writer.qos, reader.qos)
                if number:
                    scope = next(row.scope for row in TABLE if row.number == number)
                    kind = getattr(Policy, scope)
                    apart.append({"topic": topic, "channel": channel, "writer": writer.shown(),
                                  "reader": reader.shown(), "policy": scope, "offered": _text(writer.qos[kind]),
                                  "requested": _text(reader.qos[kind])})
    return apart


def _text(policy: Any) -> str:
    if policy is None:
        return "nothing"
    text = repr(policy).removeprefix("Policy.")
    if text.startswith(("Durability.", "Reliability.", "History.", "Ownership.", "Liveliness.", "DestinationOrder.")):
        text = text.partition(".")[2]  # what it is of is said beside it, or plain by its name
    text = _NANOSECONDS.sub(lambda found: f"{found[1]}={_duration(int(found[2]))}", text)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."


def _duration(ns: int) -> str:
    return "infinite" if ns == INFINITE_NS else f"{ns / 1e9:g} s" if ns >= 10**8 else f"{ns / 1e6:g} ms"


__all__ = ["End", "described", "ends", "incompatible"]
