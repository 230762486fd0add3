"""What has happened, as a time line: the events of the node's log, and what this process has seen itself.

Rules: bounded; entries have numbers that only grow. Views that changed no member are one entry, which says how many
they were: each time a topic comes or goes there is one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

KEPT_MAX = 500
FROM_LOG = {  # by event: (kind for the page, level)
    "view-installed": ("view", "info"), "member-lost": ("lost", "bad"), "member-silent": ("silent", "warn"),
    "node-starts": ("start", "info"), "node-leaves": ("leave", "warn"), "node-left": ("leave", "info"),
}
LEVELS = {"debug": "info", "info": "info", "warning": "warn", "error": "bad", "critical": "bad"}


class Happenings:
    """The time line of one cockpit. take() is for one thread; any may say() something, and ask what is there."""

    def __init__(self) -> None:
        self.entries: deque[dict[str, Any]] = deque(maxlen=KEPT_MAX)
        self.missing: dict[int, dict[str, Any]] = {}  # members that were lost and haven't come back
        self._number = 0
        self._lock = threading.Lock()
        self._members: tuple[int, ...] | None = None  # of the last view that was told

    def say(self, kind: str, level: str, text: str, time_s: float | None = None, **more: Any) -> None:
        """Adds an entry. `topic` among `more`: who may not see that topic isn't shown it."""
        with self._lock:
            self._number += 1
            self.entries.append({"number": self._number, "time": time.time() if time_s is None else time_s,
                                 "kind": kind, "level": level, "text": text, **more})

    def after(self, number: int) -> list[dict[str, Any]]:
        """Entries behind this number, the oldest first."""
        with self._lock:
            return [one for one in self.entries if one["number"] > number]

    def take(self, told: list[dict[str, Any]]) -> None:
        """What Session.happenings() tells, in its order."""
        for one in told:
            kind, level = FROM_LOG.get(one["event"], (one["event"] or "log", LEVELS.get(one["level"], "info")))
            if kind == "view":
                self._view(one)
                continue
            if kind == "lost" and isinstance(one.get("member"), int):
                self.missing[one["member"]] = {"time": one["time"], "why": one.get("why", "")}
                self.say(kind, level, f"node {one['member']} was lost: {one.get('why', '')}", one["time"],
                         nodes=[one["member"]])
                continue
            self.say(kind, level, one["text"], one["time"], log=one["event"] not in FROM_LOG)

    def anew(self) -> None:
        """Another node tells from here on, or another life of it."""
        self._members = None

    def _view(self, one: dict[str, Any]) -> None:
        try:
            members = tuple(int(node) for node in str(one.get("members", "")).split())
        except ValueError:
            return
        before, self._members = self._members, members
        view = one.get("view", 0)
        for node in members:
            self.missing.pop(node, None)
        if before == members:
            last = self.entries[-1] if self.entries else None
            if last is not None and last["kind"] == "revised":
                self.entries.pop()
                first = last["first"]
            else:
                first = view
            self.say("revised", "info", f"view {view}: the same members" if first == view else
                     f"views {first} to {view}: the same members", one["time"], first=first)
            return
        ids = " ".join(map(str, members))
        if before is None:
            self.say("view", "good", f"view {view}: nodes {ids}", one["time"], view=view, members=list(members))
            return
        joined, left = sorted(set(members) - set(before)), sorted(set(before) - set(members))
        changes = [*(f"node {node} joined" for node in joined),
                   *(f"node {node} {'is left out' if node in self.missing else 'left'}" for node in left)]
        lost = any(node in self.missing for node in left)
        self.say("view", "bad" if lost else "good" if joined else "warn",
                 f"view {view}: {', '.join(changes)}; nodes {ids} are members", one["time"], view=view,
                 members=list(members), nodes=[*joined, *left])


__all__ = ["Happenings"]
