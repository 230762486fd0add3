"""What a page is told of the group, made of what a session tells: plain values, fit for JSON.

`Look` is one look at the node; it is never changed after it was made, so that threads may share it. `state()` is what
changes seldom, `figures()` what changes always. Both show a viewer only the topics that he may see.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spindle.cockpit.matching import End
from spindle.group.endpoints import Endpoint
from spindle.group.holding import holders

SILENT_S = 0.5  # a node sends some twenty heartbeats a suspect timeout, so this silence is worth a word

MaySee = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class TopicFigures:
    """Of one topic at one moment. delivered None: nobody reads it at the node, and no other tells; `at`: another node
    does."""

    delivered: int | None = None
    rate: float = 0.0
    bytes_s: float = 0.0
    behind: int = 0
    median_s: float | None = None
    late_s: float | None = None  # 99 of 100 are not later
    at: int | None = None

    def row(self) -> list[Any]:
        """As short as it can be said."""
        return [self.delivered, _short(self.rate), _short(self.bytes_s), self.behind, _short(self.median_s),
                _short(self.late_s), self.at]


@dataclasses.dataclass(frozen=True)
class Look:
    """What there was at a moment.

    number     of this look, from 1
    version    grows whenever state() may have changed
    time_s     UTC
    status     as Session.status() tells, and of topics that nobody reads at the node what another one tells
    node       id, domain_id, pid, embedded, beside_node of the session
    endpoints, ends, apart   announced in the group, and what doesn't go together (matching)
    by_topic   endpoints by topic: of many topics each has few
    figures    by topic
    missing    members that were lost and haven't come back: node id -> {"time", "why"}
    gone       why there is no node to look at; empty if there is
    """

    number: int
    version: int
    time_s: float
    status: dict[str, Any]
    node: dict[str, Any]
    endpoints: tuple[Endpoint, ...] = ()
    ends: tuple[End, ...] = ()
    apart: tuple[dict[str, Any], ...] = ()
    counters: dict[str, int] = dataclasses.field(default_factory=dict)
    figures: dict[str, TopicFigures] = dataclasses.field(default_factory=dict)
    missing: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    gone: str = ""
    by_topic: Mapping[str, Sequence[Endpoint]] = dataclasses.field(default_factory=dict)


def _short(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else float(f"{value:.4g}")


def whole(look: Look) -> dict[str, str]:
    """Is the group whole? `level` is "good", "warn" or "bad"; `title` and `text` say it in words."""
    if look.gone:
        return {"level": "bad", "title": "no node", "text": look.gone}
    members = look.status.get("members", [])
    lost = [one for one in members if not one.get("live", True)]
    silent = [one for one in members if one.get("live", True) and one.get("silent_s", 0) >= SILENT_S]
    expected = len((look.status.get("settings") or {}).get("contacts") or ())
    count = f"{len(members)} {'node' if len(members) == 1 else 'nodes'}"
    if lost:
        return {"level": "bad", "title": "a member is lost", "text": f"{_nodes(lost)} is about to be left out"}
    if look.status.get("phase") not in (None, "stable"):
        return {"level": "warn", "title": "changing",
                "text": str(look.status.get("awaiting") or "a view change is under way")}
    if silent:
        longest_s = max(one["silent_s"] for one in silent)
        return {"level": "warn", "title": "a member is silent",
                "text": f"{_nodes(silent)} has given no sign of life for {longest_s:.1f} s"}
    if look.missing:
        ids = sorted(look.missing)
        named = f"node{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"
        return {"level": "warn", "title": "not whole",
                "text": f"{count} left: {named} {'have' if len(ids) > 1 else 'has'} not come back"}
    if expected > len(members):
        return {"level": "warn", "title": "not whole", "text": f"{len(members)} of the {expected} contacts are members"}
    return {"level": "good", "title": "whole", "text": f"{count}, all alive"}


def _nodes(members: list[dict[str, Any]]) -> str:
    return f"node{'s' if len(members) > 1 else ''} {', '.join(str(one['node_id']) for one in members)}"


def state(look: Look, may_see: MaySee, sees_all: bool) -> dict[str, Any]:
    """What changes seldom."""
    status = look.status
    by_topic: dict[str, tuple[list[Any], list[Any], set[str]]] = {}
    for one in look.ends:
        writers, readers, channels = by_topic.setdefault(one.topic, ([], [], set()))
        (writers if one.is_writer else readers).append(one.shown())
        channels.add(one.channel)
    topics = []
    for one in status.get("topics", ()):
        if may_see(one["name"]):
            writers, readers, channels = by_topic.get(one["name"], ([], [], set()))
            topics.append({
                "id": one["topic_id"], "name": one["name"], "type": one["type_name"], "level": one["level"],
                "size_max": one["size_max"], "window": one["window"], "members": one["members"],
                "senders": one["senders"], "writers": list(writers), "readers": list(readers),
                "channels": sorted(channels)})
    applications = status.get("applications", ())
    if not sees_all:
        applications = [{**one, **{kind: [topic for topic in one[kind] if may_see(topic)]
                                   for kind in ("writers", "readers")}} for one in applications]
        applications = [one for one in applications if one["writers"] or one["readers"]]
    return {
        "type": "state", "version": look.version, "gone": look.gone,
        "node": {**look.node, **{key: status.get(key) for key in ("name", "view_id", "group_id", "phase", "awaiting")},
                 "started": look.time_s - status.get("uptime_s", 0.0)},
        "settings": {key: value for key, value in (status.get("settings") or {}).items() if key != "contacts"},
        "members": [{key: one.get(key) for key in ("node_id", "pid", "name", "endpoint", "fabric", "live")}
                    | {"since": one["since_ns"] / 1e9} for one in status.get("members", ())],
        "missing": [{"node_id": node, **about} for node, about in sorted(look.missing.items())],
        "topics": sorted(topics, key=lambda one: one["name"]),
        "applications": [{key: one.get(key) for key in ("name", "pid", "uid", "address", "writers", "readers")}
                         for one in applications],
        "incompatible": [one for one in look.apart if may_see(one["topic"])],
    }


def figures(look: Look, before: Look | None, may_see: MaySee) -> dict[str, Any]:
    """What changes always; of topics only what has changed since the look `before`, if it is told of one."""
    known = before.figures if before is not None else {}
    shown = {one["name"]: one["topic_id"] for one in look.status.get("topics", ()) if may_see(one["name"])}
    rows = {str(shown[name]): found.row() for name, found in look.figures.items()
            if name in shown and known.get(name) != found}
    return {
        "type": "figures", "number": look.number, "version": look.version, "time": look.time_s, "whole": whole(look),
        "silent": [one.get("silent_s", 0) for one in look.status.get("members", ())],
        "counters": list(look.counters.values()), "topics": rows, "all": before is None,
        "held": held(look, may_see), "waits": waits(look, may_see),
    }


def held(look: Look, may_see: MaySee) -> list[dict[str, Any]]:
    """Topics whose writers wait for somebody, and for whom."""
    found = []
    for topic in look.status.get("topics", ()):
        if "stability" not in topic or not may_see(topic["name"]):
            continue
        for one in holders(topic, look.by_topic.get(topic["name"], ())):
            found.append({"topic": topic["name"], "node": one.node_id, "behind": one.behind, "received": one.receives,
                          "readers": [f"{name} (process {pid})" if pid else name for name, pid in one.readers],
                          "text": str(one)})
    return found


def waits(look: Look, may_see: MaySee) -> list[dict[str, str]]:
    """Topics whose history isn't whole here yet, and what that waits for."""
    return [{"topic": one["name"], "text": one["waits_for"]} for one in look.status.get("topics", ())
            if one.get("waits_for") and may_see(one["name"])]


def topic_detail(look: Look, name: str) -> dict[str, Any]:
    """What only the page of one topic shows."""
    topic: dict[str, Any] = next((one for one in look.status.get("topics", ()) if one["name"] == name), {})
    return {"type": "detail", "topic": name, "stability": topic.get("stability"),
            **{key: topic[key] for key in ("keys", "keys_over", "kept_bytes", "given_up", "limited", "oldest_index",
                                           "delivered") if key in topic}}


def storage(status: Mapping[str, Any], may_see: MaySee, beside_node: bool) -> dict[str, Any]:
    """Journals, and the disks that they are on, as far as this host has them."""
    journals = [{**one["journal"], "topic": one["name"]} for one in status.get("topics", ())
                if isinstance(one.get("journal"), dict) and may_see(one["name"])]
    disks: dict[int, dict[str, Any]] = {}
    for one in journals:
        folder = os.path.dirname(one["path"])
        try:
            if beside_node:
                device, found = os.stat(folder).st_dev, os.statvfs(folder)
                disks[device] = {"path": folder, "size": found.f_blocks * found.f_frsize,
                                 "free": found.f_bavail * found.f_frsize}
        except OSError:
            continue  # the node may see it, and this user not
    return {"type": "storage", "journals": journals, "disks": list(disks.values())}


__all__ = ["Look", "TopicFigures", "figures", "state", "storage", "topic_detail", "whole"]
