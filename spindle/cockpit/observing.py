"""Looks at the node, again and again, on a thread of its own.

Rules: a look is one request to the node; readers, writers and topics are asked for when an event says that they have
changed. While nobody watches, it looks once a second, for the histories. A node that goes away is looked for until
there is one again: the same, or, if none was named, another one of the host.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spindle.cockpit import matching
from spindle.cockpit.happenings import Happenings
from spindle.cockpit.picture import SILENT_S, Look, TopicFigures
from spindle.cockpit.rates import History, TopicRates
from spindle.errors import ProtocolMismatch, SpindleError
from spindle.group.events import ENDPOINT_ADDED, ENDPOINT_REMOVED, GONE, TOPIC_ADDED, TOPIC_REMOVED, VIEW, Event
from spindle.group.figures import behind

if TYPE_CHECKING:
    from spindle.client import Session

IDLE_S = 1.0  # between looks while nobody watches
RETRY_S = 0.25  # between attempts to attach
ENDPOINTS_EVERY_S = 5.0  # also without an event, which may have been missed
ELSEWHERE_EVERY_S = 1.0  # of topics that nobody reads at the node
MISSING_S = 86_400.0  # a member that was lost is missed for so long, then it was meant to go
SETTLE_S = 0.05  # after an event, for the others that come with it
ENDPOINTS_PAUSE_S = 0.5  # at least so long between two listings of endpoints: programs may come and go very fast
LOG = logging.getLogger("spindle.cockpit")


class Observer:
    """`attach` gives a session; `on_look` is called with each look, on this thread, which must not be kept.

    watched  somebody does: set it to look `hz` times a second
    """

    def __init__(self, attach: Callable[[], Session], on_look: Callable[[Look], None], hz: float = 5.0) -> None:
        self.watched = threading.Event()
        self.happenings = Happenings()
        self.history = History(2)  # of the node: messages and bytes delivered per second
        self.counters = None  # type: History | None
        self.rates: dict[str, TopicRates] = {}
        self.session: Session | None = None
        self._attach = attach
        self._on_look = on_look
        self._interval_s = 1.0 / hz
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._dirty = True  # endpoints may have changed
        self._thread = threading.Thread(target=self._run, name="spindle cockpit looks", daemon=True)
        self._reset()

    def _reset(self) -> None:
        self._look: Look | None = None
        self._version = self._number = 0
        self._endpoints_s = self._second_s = self._told_s = 0.0
        self._told = 0
        self._silent: set[int] = set()
        self._state_key: Any = None
        self._elsewhere_s = 0.0
        self._elsewhere: dict[str, dict[str, Any]] = {}  # topics that nobody reads at this node, as another tells

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and the session. Idempotent."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        if self.session is not None:
            self.session.close()

    def look_now(self) -> None:
        """Something has changed by what somebody did: don't wait for the next look."""
        self._wake.set()

    # --- on the thread

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self.session is None:
                    self._find()
                else:
                    self._on_look(self._see(self.session))
                    self._pause()
            except (SpindleError, OSError) as error:  # OSError: a TimeoutError of a node that hangs
                self._lose(str(error))
            except Exception as error:  # a defect: it is told, and looking goes on
                LOG.exception("the cockpit's look at the node failed; please report this")
                self._lose(f"the cockpit failed: {error}")

    def _pause(self) -> None:
        if self._wake.wait(self._interval_s if self.watched.is_set() else IDLE_S):
            self._wake.clear()
            self._ended.wait(SETTLE_S)

    def _find(self) -> None:
        self.session = None
        session = self._attach()
        again = self._number > 0
        self._told, self._dirty = 0, True
        self.happenings.anew()
        session.add_listener(self._heard)
        self.session = session
        if again:
            self.happenings.say("attached", "good", f"the cockpit looks at node {session.node_id}")

    def _lose(self, why: str) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.happenings.say("gone", "bad", f"the node that the cockpit looks at has gone: {why}")
            session.close()
        before = self._look
        self._number += 1
        self._version += 1
        look = Look(self._number, self._version, time.time(), {} if before is None else before.status,
                    {} if before is None else before.node, gone=why)
        self._look = None
        self._on_look(look)
        self._ended.wait(RETRY_S)

    def _heard(self, event: Event) -> None:
        """On a thread of the session."""
        if event.kind in (VIEW, GONE):
            self._told_s = 0.0
            self._wake.set()
        elif event.kind in (TOPIC_ADDED, TOPIC_REMOVED):
            assert event.topic is not None
            name = event.topic.spec.name
            word = "declared" if event.kind == TOPIC_ADDED else "deleted"
            self.happenings.say("topic", "info", f"topic {name} was {word}", topic=name)
        if event.kind in (ENDPOINT_ADDED, ENDPOINT_REMOVED) or event.kind not in (VIEW, GONE):
            self._dirty = True

    def _see(self, session: Session) -> Look:
        now_s, utc_s = time.monotonic(), time.time()
        status = session.status()
        counters = session.counters().snapshot()
        before = self._look
        endpoints, ends, apart = (before.endpoints, before.ends, before.apart) if before is not None else ((), (), ())
        by_topic: Any = {} if before is None else before.by_topic
        due = now_s - self._endpoints_s >= (ENDPOINTS_PAUSE_S if self._dirty else ENDPOINTS_EVERY_S)
        if due or before is None:
            self._dirty, self._endpoints_s = False, now_s
            listed = tuple(session.endpoints(everything=True))
            if listed != endpoints:
                endpoints, ends = listed, tuple(matching.ends(listed))
                apart = tuple(matching.incompatible(ends))
                by_topic = {}
                for one in listed:
                    by_topic.setdefault(one.topic, []).append(one)
        if now_s - self._told_s >= 1.0 or before is None or status.get("view_id") != before.status.get("view_id"):
            self._told_s = now_s
            self._take_happenings(session)
        self._notice_silence(status)
        self._fill_in(session, status, now_s)
        figures = self._figures(now_s, status)
        if now_s - self._second_s >= 1.0:
            self._second_s = now_s
            self._add_history(utc_s, counters, figures)
        self._number += 1
        key = self._key_of(status, endpoints)
        if key != self._state_key:
            self._state_key, self._version = key, self._version + 1
        self._look = Look(
            self._number, self._version, utc_s, status,
            {"id": session.node_id, "domain": session.domain_id, "pid": session.node_pid, "embedded": session.embedded,
             "beside": session.beside_node}, endpoints, ends, apart, counters, figures,
            {node: about for node, about in self.happenings.missing.items() if utc_s - about["time"] < MISSING_S},
            by_topic=by_topic)
        return self._look

    def _take_happenings(self, session: Session) -> None:
        told = session.happenings(self._told)
        if told:
            self._told = told[-1]["number"]
            self.happenings.take(told)

    def _key_of(self, status: dict[str, Any], endpoints: tuple[Any, ...]) -> Any:
        """Alike as long as picture.state() is."""
        return (
            id(endpoints), status.get("view_id"), status.get("phase"), status.get("awaiting"),
            tuple((one["node_id"], one["pid"], one.get("live")) for one in status.get("members", ())),
            tuple((one["topic_id"], one["name"], tuple(one["members"]), tuple(one["senders"]))
                  for one in status.get("topics", ())),
            tuple((one["name"], one["pid"], tuple(one["writers"]), tuple(one["readers"]))
                  for one in status.get("applications", ())), tuple(self.happenings.missing))

    def _notice_silence(self, status: dict[str, Any]) -> None:
        silent = {one["node_id"]: one["silent_s"] for one in status.get("members", ())
                  if one.get("silent_s", 0) >= SILENT_S}
        for node in silent.keys() - self._silent:
            self.happenings.say("silent", "warn", f"node {node} has given no sign of life for {silent[node]:.1f} s",
                                nodes=[node])
        for node in self._silent - silent.keys():
            if any(one["node_id"] == node for one in status.get("members", ())):
                self.happenings.say("alive", "good", f"node {node} gives signs of life again", nodes=[node])
        self._silent = set(silent)

    def _fill_in(self, session: Session, status: dict[str, Any], now_s: float) -> None:
        """Of topics that nobody reads at this node, what another one tells of them: `at` says which. All members are
        asked at once, and not at every look: that costs each of them something."""
        lacking = [one for one in status.get("topics", ()) if "delivered" not in one and one["members"]]
        if not lacking:
            self._elsewhere = {}
            return
        if now_s - self._elsewhere_s >= ELSEWHERE_EVERY_S and self.watched.is_set():
            self._elsewhere_s = now_s
            try:
                nodes = session.group_status(figures=True)
            except ProtocolMismatch:
                nodes = []  # an earlier release
            self._elsewhere = {}
            for node in nodes:
                for topic in node.get("topics", ()):
                    if "delivered" in topic:
                        self._elsewhere.setdefault(topic["name"], {**topic, "at": node["node_id"]})
        for one in lacking:
            found = self._elsewhere.get(one["name"])
            if found is not None and found["at"] in one["members"]:
                one.update({key: found[key] for key in ("delivered", "figures", "stability", "at")
                            if key in found and key not in one})

    def _figures(self, now_s: float, status: dict[str, Any]) -> dict[str, TopicFigures]:
        found, rates = {}, {}
        for topic in status.get("topics", ()):
            name = topic["name"]
            rates[name] = one = self.rates.get(name) or TopicRates()
            if topic.get("at") is None or now_s == self._elsewhere_s:  # else it is as at the last look
                one.update(now_s, topic.get("figures"))
            found[name] = TopicFigures(
                topic.get("delivered"), one.rate, one.bytes_s, behind(topic) or 0,
                one.median_s, one.late_s, topic.get("at"))
        self.rates = rates  # another object: others read the old one meanwhile
        return found

    def _add_history(self, utc_s: float, counters: dict[str, int], figures: dict[str, TopicFigures]) -> None:
        nan = float("nan")
        for name, one in figures.items():
            self.rates[name].history.add(utc_s, nan if one.delivered is None else one.rate, one.bytes_s,
                                         nan if one.median_s is None else one.median_s)
        self.history.add(utc_s, sum(one.rate for one in figures.values()), sum(one.bytes_s for one in figures.values()))
        if self.counters is None:
            self.counters = History(len(counters))
        self.counters.add(utc_s, *counters.values())


__all__ = ["Observer"]
