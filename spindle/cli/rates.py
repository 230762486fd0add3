"""What `spindle top` and `spindle topics --watch` show, as figures: two looks at each node of the group, and the rates
between them.

Why apart from the drawing: rates can be checked without a terminal. One node is asked, and asks the others; what they
say are counters, which cost them nothing to keep.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spindle.cli.common import ATTACH_TIMEOUT_S
from spindle.errors import NoDaemon, SpindleError
from spindle.group.figures import Latencies, behind
from spindle.group.holding import Holder, holders, stuck

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
NO_LATENCIES = Latencies()
PARTS = {"half": 0.5, "most": 0.99, "all": 1.0}  # of the messages, whose latency is shown
ATTACH_AGAIN_S = 1.0  # for a node to answer, while others are shown


@dataclasses.dataclass(frozen=True)
class TopicLook:
    """A topic at a node: `messages` and `bytes` delivered live, `behind` what its slowest member has yet to deliver."""

    messages: int = 0
    bytes: int = 0
    latencies: Latencies = NO_LATENCIES
    behind: int | None = None

    @classmethod
    def of(cls, topic: Mapping[str, Any]) -> TopicLook:
        figures = topic.get("figures") or {}
        return cls(int(figures.get("messages", 0)), int(figures.get("bytes", 0)), Latencies.of(figures), behind(topic))


@dataclasses.dataclass(frozen=True)
class Look:
    """A node at one moment. `cpu_s`: time used by its process; `topics`: those that it is a member of."""

    time_s: float
    counters: dict[str, int]
    topics: dict[str, TopicLook]
    cpu_s: float | None = None

    @classmethod
    def of(cls, figures: Mapping[str, Any], time_s: float) -> Look:
        return cls(time_s, dict(figures.get("counters", {})),
                   {str(one["name"]): TopicLook.of(one) for one in figures.get("topics", ())}, figures.get("cpu_s"))


@dataclasses.dataclass(frozen=True)
class TopicRates:
    """A topic at a node between two looks: deliveries per second, and their latencies."""

    messages: float
    bytes: float
    latencies: Latencies
    behind: int | None


@dataclasses.dataclass(frozen=True)
class Rates:
    """What happened at a node between two looks, per second.

    per_s        the counters of RATE_COUNTERS
    topics       by topic
    batches      mean messages in one batch: send, receive, delivery (0 if there was none)
    lap_s        mean time of a pass that found work; lap_max_s the longest since the node started
    busy         part of the time spent in passes that found work
    cpu          cores used by the node's process, None if unknown
    """

    node: int
    interval_s: float
    per_s: dict[str, float]
    topics: dict[str, TopicRates]
    batches: dict[str, float]
    lap_s: float
    lap_max_s: float
    busy: float
    cpu: float | None

    @property
    def latencies(self) -> Latencies:
        """Of all topics."""
        return sum((topic.latencies for topic in self.topics.values()), Latencies())


def rates(node: int, before: Look, after: Look) -> Rates:
    """The rates between two looks at one node. Counters that went back (a new life of the node) count as 0."""
    interval = max(after.time_s - before.time_s, 1e-9)

    def grown(name: str) -> int:
        return max(0, after.counters.get(name, 0) - before.counters.get(name, 0))

    def topic(name: str, now: TopicLook) -> TopicRates:
        then = before.topics.get(name, TopicLook())
        if now.messages < then.messages:  # its log was made anew
            then = TopicLook()
        return TopicRates((now.messages - then.messages) / interval, (now.bytes - then.bytes) / interval,
                          now.latencies.since(then.latencies), now.behind)

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
        topics={name: topic(name, now) for name, now in after.topics.items()},
        batches=batches,
        lap_s=grown("busy_ns") * 1e-9 / laps if laps else 0.0,
        lap_max_s=after.counters.get("lap_ns_max", 0) * 1e-9,
        busy=grown("busy_ns") * 1e-9 / interval,
        cpu=cpu,
    )


class Watched:
    """One node under observation. `state` says why there are no figures; empty if there are."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.state = ""
        self.last: Look | None = None
        self.rates: Rates | None = None
        self.history: list[float] = []  # messages delivered per second, newest last

    def take(self, look: Look, history_max: int) -> None:
        self.state = ""
        if self.last is not None:
            self.rates = rates(self.node, self.last, look)
            self.history = [*self.history, self.rates.per_s["delivery_messages"]][-history_max:]
        self.last = look

    def lost(self, state: str) -> None:
        """It doesn't answer. That ends nothing."""
        self.last = self.rates = None
        self.state = state


class Watching:
    """All nodes of a group, or one, as seen through any of them: attached, and attached again when that was away.

    nodes     by id
    state     why nobody answers; empty while somebody does
    infos     the group's topics
    slowest   by topic, nodes for which half of what may be in flight waited at the last two looks
    held_up   whom topics wait for that don't go on, by topic
    """

    def __init__(self, target: Target, name: str, history_max: int = 0, alone: bool = False) -> None:
        """`alone`: only the node that is attached to."""
        self.nodes: dict[int, Watched] = {}
        self.state = ""
        self.infos: tuple[TopicInfo, ...] = ()
        self.slowest: dict[str, list[int]] = {}
        self.held_up: dict[str, list[Holder]] = {}
        self._topics: dict[tuple[int, str], Mapping[str, Any]] = {}  # as each node has told of them last
        self._target, self._name, self._history_max, self._alone = target, name, history_max, alone
        self._session: Session | None = None
        self._begun = False

    def look(self) -> None:
        """Look again. Raises SpindleError where there is nobody from the beginning."""
        try:
            if self._session is None:
                self._session = self._target.attach(self._name, ATTACH_AGAIN_S if self._begun else ATTACH_TIMEOUT_S)
            said = self._session.group_status(figures=True)
            self.infos = tuple(self._session.topics())
            self._find_slow(said)
        except (SpindleError, OSError) as error:  # OSError: a TimeoutError of a node that hangs
            self.close()
            if not self._begun:
                raise
            self.state = str(error).partition(": ")[0]
            for node in self.nodes.values():
                node.lost(self.state)
            return
        self._begun, self.state, now = True, "", time.monotonic()
        if self._alone:
            said = [one for one in said if one["node_id"] == self._session.node_id]
        known = {int(one["node_id"]) for one in said}
        self.nodes = {node: self.nodes.get(node) or Watched(node) for node in sorted(known)}
        for one in said:
            node = self.nodes[int(one["node_id"])]
            if "error" in one:
                node.lost(str(one["error"]).partition(": ")[0])
            else:
                node.take(Look.of(one, now), self._history_max)

    def _find_slow(self, said: Iterable[Mapping[str, Any]]) -> None:
        """Endpoints are asked for only where a topic is held up."""
        assert self._session is not None
        before, self._topics = self._topics, {
            (int(one["node_id"]), str(topic["name"])): topic for one in said for topic in one.get("topics", ())}
        self.slowest, self.held_up = {}, {}
        for (node, name), topic in self._topics.items():
            then = before.get((node, name))
            found = holders(topic, ())
            if then is None or not found:
                continue
            slow = {one.node_id for one in found} & {one.node_id for one in holders(then, ())}
            if slow:
                self.slowest.setdefault(name, sorted(slow))
            if name not in self.held_up and stuck(then, topic, ()):
                self.held_up[name] = stuck(then, topic, self._session.endpoints(name, everything=True))

    def check_any(self) -> None:
        """Raises NoDaemon if no node has figures."""
        if all(node.last is None for node in self.nodes.values()):
            raise NoDaemon(self.state or next((node.state for node in self.nodes.values()), "there is no node"))

    def of_topic(self, name: str) -> dict[int, TopicRates]:
        """The rates of a topic, by node."""
        return {node.node: node.rates.topics[name] for node in self.nodes.values()
                if node.rates is not None and name in node.rates.topics}

    def close(self) -> None:
        """Detach. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


@dataclasses.dataclass(frozen=True)
class Whole:
    """A topic over all nodes: `messages` and `bytes` a second at the node that delivers the fastest, latencies of all
    nodes' deliveries, `behind` as the nodes agree at the least."""

    messages: float
    bytes: float
    latencies: Latencies
    behind: int | None

    @classmethod
    def of(cls, parts: Iterable[TopicRates]) -> Whole:
        listed = list(parts)
        lags = [one.behind for one in listed if one.behind is not None]
        return cls(max((one.messages for one in listed), default=0.0), max((one.bytes for one in listed), default=0.0),
                   sum((one.latencies for one in listed), Latencies()), min(lags, default=None))


def latency_object(latencies: Latencies) -> dict[str, float | int | None]:
    """For JSON: seconds within which half, 99% and all of the messages were delivered; None where there were none, or
    it took longer than is counted."""
    found: dict[str, float | int | None] = {"count": latencies.count}
    for name, part in PARTS.items():
        value = latencies.within_s(part)
        found[f"{name}_s"] = None if value is None or value == float("inf") else value
    return found


def topic_object(topic: TopicRates | Whole) -> dict[str, Any]:
    """For JSON."""
    return {"messages": topic.messages, "bytes": topic.bytes, "behind": topic.behind,
            "latency": latency_object(topic.latencies)}


def as_object(one: Watched) -> dict[str, Any]:
    """A watched node's rates for JSON."""
    if one.rates is None:
        return {"node": one.node, "state": one.state or "no figures yet"}
    found = {name: getattr(one.rates, name) for name in (
        "node", "interval_s", "per_s", "batches", "lap_s", "lap_max_s", "busy", "cpu")}
    return {**found, "latency": latency_object(one.rates.latencies),
            "topics": {name: topic_object(topic) for name, topic in one.rates.topics.items()}}
