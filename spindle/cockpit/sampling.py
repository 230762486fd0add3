"""Live samples of topics: read by one thread, kept for a moment, given to whoever watches.

Why one reader for all who watch a topic: a browser must cost the node no more than a program does. It keeps the newest
only and acknowledges nothing, so that no writer ever waits for a page.

Rules: a topic is read while somebody watches it, and at most FEEDS_MAX are. Each is opened on a thread of its own: one
that takes long, as a logged topic that waits for nodes that are away, keeps no other from being shown. What a feed
keeps is bounded in samples and in bytes; a watcher that was too slow is told how many it has missed. Samples of a type
come through the DDS layer, others as bytes; what is shown of either are values that JSON knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spindle.cockpit.matching import ends
from spindle.errors import SpindleError, TopicMismatch

if TYPE_CHECKING:
    from dds import DataReader, DomainParticipant
    from dds.dynamic import TopicType
    from spindle.client import Session

FEEDS_MAX = 32
KEPT_MAX = 500  # samples of a feed
TAKE_MAX = 256  # at a time; between two times the reader keeps so many, the newest
SAMPLE_BYTES_MAX = 16 << 10  # of one sample as JSON; of larger ones only the beginning is shown
POLL_S = 0.05
RETRY_S = 1.0  # for a feed that can't be read at the moment
ORDER_GROUP = "order group"  # the type of a node's topic that holds several of the DDS layer
OPAQUE = "bytes"
LOG = logging.getLogger("spindle.cockpit")


@dataclasses.dataclass(frozen=True)
class Source:
    """What is watched: a topic, within the node's topic `order` (an order group; empty for none), as delivered at a
    node (0: that of the session)."""

    topic: str
    order: str = ""
    node: int = 0

    @property
    def node_topic(self) -> str:
        """Whose rules count."""
        return self.order or self.topic


class Feed:
    """One source, while it is watched. `rows` are (number, JSON text of a row); `state` says why there are none."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows: deque[tuple[int, str]] = deque(maxlen=KEPT_MAX)
        self.count = 0  # samples read
        self.lost = 0  # samples that were overwritten before they were read
        self.state = "opening"
        self.type_text = ""
        self.watchers = 0
        self.reader: _Reader | None = None
        self.opening: _Opening | None = None
        self.retry_s = 0.0

    def add(self, row: dict[str, Any]) -> None:
        text = json.dumps(row, separators=(",", ":"), default=str)
        if len(text) > SAMPLE_BYTES_MAX:
            text = json.dumps({**row, "value": None, "cut": text[:1000], "size": len(text)})
        self.count += 1
        self.rows.append((self.count, text))

    def after(self, number: int, limit: int) -> tuple[list[str], int, int]:
        """Rows behind this number, the newest `limit` of them; the number of the last; how many were skipped."""
        last = self.count
        found = [text for at, text in list(self.rows) if number < at <= last][-limit:]
        return found, last, max(0, last - number - len(found))


class _Reader:
    """What a feed reads from: `take()` gives rows, and how many samples were lost ever."""

    def __init__(self, close: Callable[[], None], take: Callable[[], tuple[list[dict[str, Any]], int]]) -> None:
        self.close = close
        self.take = take


class _Opening:
    """A reader that is being opened by `opens()` on a thread, which calls done() behind it. `result` is one or an
    error, None before."""

    def __init__(self, opens: Callable[[], _Reader], done: Callable[[], object]) -> None:
        self.result: _Reader | Exception | None = None
        self._opens, self._done = opens, done
        self._lock = threading.Lock()
        self._over = False
        threading.Thread(target=self._run, name="spindle cockpit opens", daemon=True).start()

    def _run(self) -> None:
        result: _Reader | Exception
        try:
            result = self._opens()
        except Exception as error:  # raised where it is taken
            result = error
        with self._lock:
            self.result = result
            over = self._over
        if over and isinstance(result, _Reader):
            _aside(result.close)
        self._done()

    def give_up(self) -> None:
        """Nobody takes it any more."""
        with self._lock:
            self._over = True
            result = self.result
        if isinstance(result, _Reader):
            _aside(result.close)


class Sampling:
    """All feeds of a cockpit. `attach(node)` gives a session with that node (0: any), for this thread alone."""

    def __init__(self, attach: Callable[[int], Session], participant: Callable[[int], DomainParticipant]) -> None:
        self._attach = attach
        self._participant = participant
        self._feeds: dict[Source, Feed] = {}
        self._places: dict[int, _Place] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def watch(self, source: Source) -> Feed:
        """From now on it is read. Raises SpindleError if too many are."""
        with self._lock:
            feed = self._feeds.get(source)
            if feed is None:
                if len(self._feeds) >= FEEDS_MAX:
                    raise SpindleError(f"{FEEDS_MAX} topics are watched already, which is the limit of this cockpit")
                feed = self._feeds[source] = Feed(source)
            feed.watchers += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spindle cockpit samples", daemon=True)
                self._thread.start()
        self._wake.set()
        return feed

    def leave(self, feed: Feed) -> None:
        """One watcher less."""
        with self._lock:
            feed.watchers -= 1
            if feed.watchers <= 0 and self._feeds.get(feed.source) is feed:
                del self._feeds[feed.source]
        self._wake.set()

    def close(self) -> None:
        """Ends the thread and everything that it has open. Idempotent."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5.0)

    # --- on the thread

    def _run(self) -> None:
        open_: dict[Source, Feed] = {}
        try:
            while not self._ended:
                with self._lock:
                    wanted = dict(self._feeds)
                for source, feed in list(open_.items()):
                    if wanted.get(source) is not feed:
                        self._close(feed)
                        del open_[source]
                for source, feed in wanted.items():
                    open_[source] = feed
                    self._serve(feed)
                for node in [node for node in self._places if all(one.node != node for one in open_)]:
                    _aside(self._places.pop(node).close)
                self._wake.wait(POLL_S if open_ else None)
                self._wake.clear()
        finally:
            for feed in open_.values():
                self._close(feed)
            for place in self._places.values():
                _aside(place.close)

    def _close(self, feed: Feed) -> None:
        reader, feed.reader = feed.reader, None
        opening, feed.opening = feed.opening, None
        if reader is not None:
            _aside(reader.close)
        if opening is not None:
            opening.give_up()

    def _serve(self, feed: Feed) -> None:
        now_s = time.monotonic()
        try:
            if feed.reader is None and not self._opened(feed, now_s):
                return
            assert feed.reader is not None
            rows, feed.lost = feed.reader.take()
            for row in rows:
                feed.add(row)
        except Exception as error:  # whatever keeps one topic from being read: it is shown, and tried again
            if not isinstance(error, (SpindleError, OSError)) and type(error).__module__.partition(".")[0] != "dds":
                LOG.exception("topic %r can't be read for a page", feed.source.topic)
            self._close(feed)
            feed.state = str(error)
            feed.retry_s = time.monotonic() + RETRY_S
            place = self._places.get(feed.source.node)
            if place is not None and place.gone:
                _aside(self._places.pop(feed.source.node).close)

    def _opened(self, feed: Feed, now_s: float) -> bool:
        """Whether it has a reader by now. Raises whatever kept it from having one."""
        if feed.opening is None:
            if now_s >= feed.retry_s:
                place = self._places.get(feed.source.node)
                if place is None:
                    place = self._places[feed.source.node] = _Place(feed.source.node, self._attach, self._participant)
                feed.opening = _Opening(functools.partial(self._open, feed, place), self._wake.set)
            return False
        result = feed.opening.result
        if result is None:
            return False
        feed.opening = None
        if isinstance(result, Exception):
            raise result
        feed.reader, feed.state = result, ""
        return True

    @staticmethod
    def _open(feed: Feed, place: _Place) -> _Reader:
        source = feed.source
        infos = {one.spec.name: one for one in place.session.topics()}
        info = infos.get(source.node_topic)
        if info is None:
            raise SpindleError(f"there is no topic {source.node_topic!r} now")
        if info.spec.type_name == OPAQUE and not source.order:
            feed.type_text = OPAQUE
            return _opaque_reader(place.session, source.topic)
        from dds.dynamic import types_of

        found = [one for one in types_of(place.session, source.node_topic, source.topic if source.order else "", True)]
        of = next((one for one in found if not one.reason), None)
        if of is None:
            raise TopicMismatch(found[0].reason if found else "nobody who has it open says what its type is")
        feed.type_text = of.name
        return _typed_reader(place.participant, source, of, _fitting(place.session, source))


def _aside(close: Callable[[], None]) -> None:
    """Closes what may be at a node that hangs, which nobody waits for."""
    def work() -> None:
        with contextlib.suppress(Exception):  # its node may be gone
            close()

    threading.Thread(target=work, name="spindle cockpit closes", daemon=True).start()


class _Place:
    """What is open at one node: a session, and a participant once a topic with a type is read."""

    def __init__(self, node: int, attach: Callable[[int], Session], participant: Callable[[int], DomainParticipant]
                 ) -> None:
        self._node = node
        self._attach, self._new_participant = attach, participant
        self._session: Session | None = None
        self._participant: DomainParticipant | None = None
        self._lock = threading.RLock()
        self._over = False

    @property
    def gone(self) -> bool:
        return self._session is not None and self._session.gone

    @property
    def session(self) -> Session:
        with self._lock:
            if self._over:
                raise SpindleError("nobody watches this any more")
            if self._session is None:
                self._session = self._attach(self._node)
            return self._session

    @property
    def participant(self) -> DomainParticipant:
        with self._lock:
            if self._participant is None:
                self._participant = self._new_participant(self._node or self.session.node_id)
            return self._participant

    def close(self) -> None:
        with self._lock, contextlib.suppress(Exception):
            if self._participant is not None:
                self._participant.close()
        with self._lock:
            self._over = True
            if self._session is not None:
                self._session.close()


def _about(info: Any) -> dict[str, Any]:
    return {"time": info.source_timestamp / 1e9, "late": (info.reception_timestamp - info.source_timestamp) / 1e9,
            "node": getattr(info, "node", getattr(info, "sender", 0)), "sequence": info.sequence, "view": info.view_id}


def _opaque_reader(session: Session, topic: str) -> _Reader:
    # announced, so that everybody's listings show who reads; as one that keeps the last and makes no effort
    endpoint = json.dumps({"qos": {"History": {"kind": "KeepLast", "depth": TAKE_MAX},
                                   "Reliability": {"kind": "BestEffort"}}}).encode()
    reader = session.open_reader(topic, keep_all=False, from_history=False, guid=os.urandom(16), endpoint=endpoint)
    skipped = 0

    def take() -> tuple[list[dict[str, Any]], int]:
        nonlocal skipped
        log = reader.log
        skipped += log.skip_to_last(TAKE_MAX)
        rows = [{**_about(info), "value": _text(payload), "bytes": len(payload)}
                for payload, info in log.take_pairs(TAKE_MAX)]
        return rows, skipped + log.lost

    return _Reader(reader.close, take)


def _text(payload: bytes) -> Any:
    """JSON if it is that, else text, else hexadecimal."""
    try:
        text = payload[:SAMPLE_BYTES_MAX].decode()
    except UnicodeDecodeError:
        return payload[:SAMPLE_BYTES_MAX // 4].hex(" ")
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text, parse_constant=str, parse_float=_number)
    return text


def _number(text: str) -> Any:
    """What JSON has no number for, as text: browsers know no infinity there."""
    number = float(text)
    return number if math.isfinite(number) else text


def _fitting(session: Session, source: Source) -> list[Any]:
    """Policies of a reader that hears all writers there are: who owns is heard, and no partition is left out."""
    from dds import Policy
    from dds.policy.policies import partitions

    writers = [one for one in ends(session.endpoints(everything=True))
               if one.is_writer and one.topic == source.node_topic and one.channel == source.topic]
    found: list[Any] = []
    if any(one.qos[Policy.Ownership] == Policy.Ownership.Exclusive for one in writers):
        found.append(Policy.Ownership.Exclusive)
    if any(partitions(one.qos) for one in writers):
        found.append(Policy.Partition(["", "*"]))
    return found


def _typed_reader(within: DomainParticipant, source: Source, of: TopicType, fitting: list[Any]) -> _Reader:
    import dds

    topic: Any = dds.Topic(within, source.topic, of.data_type, keys=of.keys, order=source.order)
    # of instances what stands is shown at once, else only what comes from now on
    stands = _is_keyed(of) and topic.spec is not None and topic.spec.level >= 2
    durability = dds.Policy.Durability.TransientLocal if stands else dds.Policy.Durability.Volatile
    reader: DataReader[Any] = dds.DataReader(within, topic, qos=dds.Qos(
        dds.Policy.Reliability.BestEffort, dds.Policy.History.KeepLast(TAKE_MAX), durability, *fitting))

    def take() -> tuple[list[dict[str, Any]], int]:
        return list(_rows(of, reader.take(TAKE_MAX))), reader.get_sample_lost_status().total_count

    def close() -> None:
        reader.close()
        topic.close()

    return _Reader(close, take)


def _is_keyed(of: TopicType) -> bool:
    if hasattr(of.data_type, "__idl__"):
        from dds.idl.members import members

        return any(one.key for one in members(of.data_type))
    return bool(of.keys)


def _rows(of: TopicType, samples: list[Any]) -> Iterator[dict[str, Any]]:
    from dds import InstanceState, InvalidSample
    from dds.codecs.json_samples import to_plain

    for sample in samples:
        info = sample.sample_info
        row = _about(info)
        if isinstance(sample, InvalidSample):
            disposed = info.instance_state == InstanceState.NotAliveDisposed
            row["ended"] = "disposed" if disposed else "no writers"
            sample = sample.key_sample
        row["instance"] = info.instance_handle
        row["value"] = to_plain(of.data_type, sample)
        yield row


__all__ = ["Feed", "Sampling", "Source"]
