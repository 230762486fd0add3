"""What `spindle top` shows, as figures: two looks at a node's counters and the rates between them.

Why apart from the drawing: rates can be checked without a terminal. Nothing here asks the node more than a status; the
counters are read from its mapped page.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from spindle.errors import SpindleError

if TYPE_CHECKING:
    from spindle.cli.common import Target
    from spindle.client import Session
    from spindle.group.topics import TopicInfo

RATE_COUNTERS = (
    "send_messages",
    "sent_bytes",
    "delivery_messages",
    "delivered_bytes",
    "nulls",
    "pushes",
    "posts",
    "rings",
    "sleeps",
    "stalls",
    "laps",
    "busy_laps",
    "delivery_blocked",
)


@dataclasses.dataclass(frozen=True)
class Look:
    """A node at one moment.

    delivered   messages delivered, by topic, as far as the node tells
    cpu_s       time used by the node's process; None if /proc doesn't show it
    infos       the group's topics
    behind      messages that are received somewhere and that the slowest member has yet to deliver, by topic
    """

    time_s: float
    counters: dict[str, int]
    delivered: dict[str, int]
    cpu_s: float | None
    infos: tuple[TopicInfo, ...] = ()
    behind: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rates:
    """What happened at a node between two looks, per second.

    per_s        the counters of RATE_COUNTERS
    topics       messages delivered, by topic
    batches      mean messages in one batch: send, receive, delivery (0 if there was none)
    lap_s        mean time of a pass that found work; lap_max_s the longest since the node started
    busy         part of the time spent in passes that found work
    cpu          cores used by the node's process, None if unknown
    behind       messages that the slowest member of a topic had yet to deliver at the second look, by topic
    """

    node: int
    interval_s: float
    per_s: dict[str, float]
    topics: dict[str, float]
    batches: dict[str, float]
    lap_s: float
    lap_max_s: float
    busy: float
    cpu: float | None
    behind: dict[str, int] = dataclasses.field(default_factory=dict)


def look(session: Session) -> Look:
    """Read a node's counters and ask for its status. Raises SpindleError if the node has gone."""
    infos = tuple(session.topics())
    topics = session.status().get("topics", ())
    delivered = {str(one["name"]): int(one["delivered"]) for one in topics if isinstance(one.get("delivered"), int)}
    behind = {str(one["name"]): count for one in topics if (count := _behind(one)) is not None}
    cpu_s = cpu_seconds(session.node_pid) if session.beside_node else None
    return Look(time.monotonic(), session.counters().snapshot(), delivered, cpu_s, infos, behind)


def _behind(topic: dict[str, Any]) -> int | None:
    """Of a topic's part of a node's status; None if it isn't a member, or the topic has no order."""
    numbers = topic.get("stability") or {}
    received, delivered = numbers.get("received"), numbers.get("delivered")
    if not received or not delivered or topic.get("level") == "unordered":
        return None
    return max(0, max(received) - min(delivered))


def rates(node: int, before: Look, after: Look) -> Rates:
    """The rates between two looks at one node. Counters that went back (a new life of the node) count as 0."""
    interval = max(after.time_s - before.time_s, 1e-9)

    def grown(name: str) -> int:
        return max(0, after.counters.get(name, 0) - before.counters.get(name, 0))

    batches = {}
    for kind in ("send", "receive", "delivery"):
        count = grown(f"{kind}_batches")
        batches[kind] = grown(f"{kind}_messages") / count if count else 0.0
    laps = grown("busy_laps")
    cpu = None
    if before.cpu_s is not None and after.cpu_s is not None:
        cpu = max(0.0, after.cpu_s - before.cpu_s) / interval
    return Rates(
        node=node,
        interval_s=interval,
        per_s={name: grown(name) / interval for name in RATE_COUNTERS},
        topics={
            name: max(0, count - before.delivered.get(name, 0)) / interval for name, count in after.delivered.items()
        },
        batches=batches,
        lap_s=grown("busy_ns") * 1e-9 / laps if laps else 0.0,
        lap_max_s=after.counters.get("lap_ns_max", 0) * 1e-9,
        busy=grown("busy_ns") * 1e-9 / interval,
        cpu=cpu,
        behind=after.behind,
    )


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process; None if it is not visible."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watched:
    """One node under observation: attached, looked at, and attached again when it was away. A node of another host is
    found by the target's address; its id is known once it has answered, and 0 until then."""

    def __init__(self, target: Target, node: int = 0) -> None:
        self.node = node
        self.state = ""  # why there are no figures; empty if there are
        self.last: Look | None = None
        self.rates: Rates | None = None
        self.history: list[float] = []  # messages delivered per second, newest last
        self._target = dataclasses.replace(target, node=node or None)
        self._session: Session | None = None

    def look(self, history_max: int) -> None:
        """Look again. A node that doesn't answer is shown as such, it ends nothing."""
        try:
            if self._session is None:
                self._session = self._target.attach("spindle top", timeout_s=1.0)
                self.node = self._session.node_id
            now = look(self._session)
        except (SpindleError, OSError) as error:  # OSError: a TimeoutError of a node that hangs
            self.close()
            at = f"{self._target.nodes}: " if self._target.nodes else ""
            self.state = at + str(error).partition(": ")[0]
            return
        self.state = ""
        if self.last is not None:
            self.rates = rates(self.node, self.last, now)
            self.history = [*self.history, self.rates.per_s["delivery_messages"]][-history_max:]
        self.last = now

    def close(self) -> None:
        """Detach. Idempotent."""
        session, self._session = self._session, None
        self.last = self.rates = None
        if session is not None:
            session.close()


def as_object(one: Watched) -> dict[str, Any]:
    """A watched node's rates for JSON."""
    if one.rates is None:
        return {"node": one.node, "state": one.state or "no figures yet"}
    return dataclasses.asdict(one.rates)
