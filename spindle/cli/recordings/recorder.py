"""Reads topics into a recording, in their orders, and goes on at the next node when its own goes away.

What a recording has: of each topic all that was said in it, samples as their writers encoded them, ends of instances
and writers beside them on channels of their own. The topics of an order group have one order, which the file keeps;
otherwise each topic has its own, and they are merged by the times at which the node delivered them.

Rules: one thread reads all topics. What is at hand is sorted by time before it is written, and the times of one order
never fall. A message is on a channel of its topic's type; what a type isn't known of within TYPE_WAIT_S has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dds.codecs.schemas import schema_of
from dds.codecs.types import codec_for
from dds.dynamic import TopicType, types_of
from dds.messages import announced
from dds.messages.contents import ENDS, SAMPLE, Contents, Said
from dds.messages.inline_qos import NOTHING
from dds.messages.order_groups import channel_in, is_group
from spindle.cli.common import Target, is_like, note
from spindle.cli.ports import OPAQUE_TYPE, READER_QOS, announcement
from spindle.errors import AccessDenied, GroupSilent, NoDaemon, SpindleError, TopicUnknown
from spindle.group.levels import Level
from spindle.group.schemas import MessageSchema
from spindle.journal.recording import places_in_set

if TYPE_CHECKING:
    from spindle.client import ReaderHandle, Session
    from spindle.group.position import Position
    from spindle.group.topics import TopicInfo
    from spindle.journal.recording import RecordingWriter
    from spindle_core.message import MessageInfo

TAKE_MAX = 512  # messages of one topic at a time
FLUSH_S = 0.5
SYNC_S = 1.0
TYPE_WAIT_S = 1.0
ATTEMPT_S = 1.0  # for one node to answer
PAUSE_S = 0.2  # between two looks for a node
TYPE_BYTES_MAX = 1 << 20  # of a type's description in a channel's metadata


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type as a recording has it. `key` tells types of one topic apart."""

    key: bytes
    schema: MessageSchema | None
    said: str
    keyed: bool


OPAQUE = Kind(b"", schema_of(bytes), "", False)
UNKNOWN = Kind(b"?", None, "", False)


class Track:
    """A topic of the node that is being read: a topic, or an order group with several."""

    def __init__(self, info: TopicInfo, handle: ReaderHandle) -> None:
        self.info = info
        self.last_time = 0
        self.begin(handle)
        self.names: dict[int, str] = {}  # of an order group: topics by channel number
        self.kinds: dict[str, dict[bytes, Kind]] = {}  # types of each topic by the marks of their payloads
        self.looked_s = 0.0
        self.since: dict[str, float] = {}  # when a type was first missing

    def begin(self, handle: ReaderHandle) -> None:
        """It is read by this handle; of what was read before nothing counts any more."""
        self.handle = handle
        self.contents = Contents()
        self.lost_before = 0
        self.places: dict[int, Position] = {}  # how far it was in each group that it has left
        self.after: Position | None = None  # where the next node's reader goes on; the log has nothing later

    @property
    def lost(self) -> int:
        return self.lost_before + int(self.handle.log.lost)


class Recorder:
    """See the module. A context manager.

    patterns  names of topics, or patterns with * and ?; those that come later are recorded, too
    stop()    ends run() soon; may be called from a signal handler
    """

    def __init__(self, target: Target, session: Session, patterns: Sequence[str], writer: RecordingWriter,
                 keep_all: bool, history: bool, again: bool) -> None:
        self._target, self._session, self._patterns, self._writer = target, session, patterns, writer
        self._keep_all, self._history, self._again = keep_all, history, again
        self.tracks: dict[str, Track] = {}
        self._channels: dict[tuple[Any, ...], int] = {}
        self._open = contextlib.ExitStack()
        self._stopping = False
        self._told: Session | None = None  # that was said to have gone
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._news = threading.Event()
        self._refused: dict[str, SpindleError] = {}  # topics that could not be opened, and why
        self.topics: set[str] = set()  # of which messages were recorded
        self.untold: set[str] = set()  # of these, those with messages whose type nobody has said
        self._listen()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(None, None, None)
        os.close(self._wake)

    def stop(self) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    @property
    def lost(self) -> dict[str, int]:
        """Messages that were overwritten before they were read, by topic."""
        return {name: track.lost for name, track in self.tracks.items() if track.lost}

    @property
    def refused(self) -> int:
        """Messages that made no sense."""
        return sum(track.contents.refused for track in self.tracks.values())

    # --- which topics

    def _listen(self) -> None:
        def heard(_: object) -> None:
            self._news.set()
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)

        self._news.set()
        self._session.add_listener(heard)

    def missing(self) -> list[str]:
        """Patterns that no topic is like so far."""
        known = {*self.tracks, *(name for track in self.tracks.values() for name in track.names.values())}
        return [like for like in self._patterns if not any(is_like(name, (like,)) for name in known)]

    def look(self) -> None:
        """Open what is there by now. Raises AccessDenied for a topic that was named, SpindleError."""
        self._news.clear()
        for info in self._session.topics():
            name = info.spec.name
            if name in self.tracks:
                self._learn(self.tracks[name])
            elif not isinstance(self._refused.get(name), AccessDenied) and self._wants_track(info):
                try:
                    track = Track(info, self._reader(self._session, info))
                except SpindleError as error:
                    if self._session.gone or (name in self._patterns and not isinstance(error, TopicUnknown)):
                        raise
                    if str(error) != str(self._refused.get(name)):
                        note(f"{name} is not recorded: {error}")
                    self._refused[name] = error  # unless the rules forbid it, it is tried again when something happens
                    continue
                if self._refused.pop(name, None) is not None:
                    note(f"{name} is recorded from now on")
                self._open.enter_context(track.handle)
                self.tracks[name] = track
                self._learn(track)

    def _wants(self, name: str) -> bool:
        return is_like(name, self._patterns)

    def _wants_track(self, info: TopicInfo) -> bool:
        if self._wants(info.spec.name):
            return True
        if not is_group(info.spec):
            return False
        channels = [channel_in(one.endpoint) for one in self._session.endpoints(info.spec.name)]
        return any(one is not None and self._wants(one.topic) for one in channels)

    def _reader(self, session: Session, info: TopicInfo, **more: Any) -> ReaderHandle:
        keeps = info.spec.level.keeps_history
        more.setdefault("from_history", self._history and keeps)
        handle = session.open_reader(info.spec.name, keep_all=self._keep_all, guid=os.urandom(16),
                                     endpoint=announcement(READER_QOS), **more)
        handle.log.goes_on = self._again
        return handle

    # --- types

    def _learn(self, track: Track) -> None:
        """What is said of the types of a topic, or of those in an order group. Of a node that has gone nothing more."""
        try:
            self._ask(track)
        except (SpindleError, OSError):
            if not self._session.gone:
                raise

    def _ask(self, track: Track) -> None:
        name = track.info.spec.name
        track.looked_s = time.monotonic()
        if not is_group(track.info.spec):
            self._learn_topic(track, name, "")
            return
        said = [*(one.endpoint for one in self._session.endpoints(name)), *self._session.types(name)]
        for one in said:
            channel = channel_in(one)
            if channel is not None:
                track.names[channel.number] = channel.topic
                if channel.type_name == OPAQUE_TYPE:
                    track.kinds.setdefault(channel.topic, {})[b""] = OPAQUE
        for topic in set(track.names.values()):
            self._learn_topic(track, topic, topic)

    def _learn_topic(self, track: Track, topic: str, within: str) -> None:
        kinds = track.kinds.setdefault(topic, {})
        for one in types_of(self._session, track.info.spec.name, within):
            mark = one.schema.mark if one.data_type is not None and hasattr(one.data_type, "__idl__") else b""
            if mark not in kinds and one.data_type is not None:
                kinds[mark] = kind_of(one)

    def _kind(self, track: Track, topic: str, said: Said) -> Kind | None:
        """The type of a sample; None if it may become known in a moment."""
        if track.info.spec.type_name == OPAQUE_TYPE:
            return OPAQUE
        for attempt in range(2):
            kinds = track.kinds.get(topic, {})
            found = kinds.get(said.payload[2:4]) or kinds.get(b"") or (
                next(iter(kinds.values()), None) if said.payload[2:4] == b"\0\0" else None)
            if found is not None:
                return found
            if attempt == 0 and (time.monotonic() - track.looked_s > TYPE_WAIT_S / 10):
                self._learn(track)
        first = track.since.setdefault(topic, time.monotonic())
        return UNKNOWN if time.monotonic() - first >= TYPE_WAIT_S or not said.payload else None

    # --- reading

    def run(self, duration_s: float | None, count: int | None, shown: Callable[[], None]) -> None:
        """Record until stop(), or so long, or so many messages. `shown` is called now and then. Raises NodeGone if the
        node goes and it shall not go on; JournalError if the disk refuses; SpindleError."""
        end = None if duration_s is None else time.monotonic() + duration_s
        flushed = synced = time.monotonic()
        while not self._stopping and (count is None or self._writer.messages < count):
            if self._news.is_set() and not self._moving:
                try:
                    self.look()
                except (SpindleError, OSError):
                    if not self._again or not self._session.gone:
                        raise
            had = self._pass(None if count is None else count - self._writer.messages)
            now = time.monotonic()
            if now - flushed >= FLUSH_S:
                sync = now - synced >= SYNC_S
                self._writer.flush(sync)
                flushed, synced = now, now if sync else synced
            shown()
            if end is not None and now >= end:
                break
            if self._moving and not any(track.handle.log.pending for track in self.tracks.values()):
                self._move(end)
            elif not had:
                self._sleep(FLUSH_S if end is None else min(FLUSH_S, max(0.0, end - now)))
        if not self._stopping or count is None:  # all that is there by now, and nothing of what still comes
            pending = max((int(track.handle.log.pending) for track in self.tracks.values()), default=0)
            for _ in range(1 + pending // TAKE_MAX):
                self._pass(None if count is None else max(0, count - self._writer.messages))

    @property
    def _moving(self) -> bool:
        return any(track.after is not None for track in self.tracks.values())

    def _pass(self, count: int | None) -> bool:
        """Take what is there, and write it by time. True if there was anything."""
        taken: list[tuple[int, int, Track, bytes, MessageInfo]] = []
        for track in self.tracks.values():
            for payload, info in self._take(track):
                track.last_time = max(track.last_time, info.reception_timestamp)
                taken.append((track.last_time, len(taken), track, payload, info))
        taken.sort(key=lambda one: one[:2])
        for at, _, track, payload, info in taken:
            whole = track.contents.take(payload, info)
            for unit in [whole] if any(said.in_set for said in whole) else [[said] for said in whole]:
                if count is not None and count <= 0:
                    return True
                written = self._write(track, unit, info, at)
                if count is not None:
                    count -= written
        return bool(taken)

    def _take(self, track: Track) -> list[tuple[bytes, MessageInfo]]:
        try:
            pairs: list[tuple[bytes, MessageInfo]] = track.handle.log.take_pairs(TAKE_MAX)
            if not pairs and track.after is None:
                track.handle.log.wait(0.0)
            return pairs
        except ConnectionError:
            if not self._again or track.after is not None:
                raise
            try:
                track.after = track.handle.freeze()
            except SpindleError:  # killed while it changed the log: its rest can't be read
                track.after = track.handle.position
            return []

    def _sleep(self, timeout_s: float) -> None:
        """Until there may be something to take, or news, or stop()."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        by_ring = {}
        for track in self.tracks.values():
            log = track.handle.log
            if log.arm():
                return
            by_ring[log.fileno()] = log
            poll.register(log.fileno(), select.POLLIN)
        for handle, _ in poll.poll(timeout_s * 1000):
            if handle == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            else:
                by_ring[handle].clear()

    # --- writing

    def _write(self, track: Track, unit: Sequence[Said], info: MessageInfo, at: int) -> int:
        """A coherent set, or what stands by itself. How much of it was recorded: it may be of topics in the group that
        aren't wanted, and the rest of a set is one, too."""
        wanted = [(said, topic) for said in unit if (topic := self._topic_of(track, said)) is not None]
        for (said, topic), place in zip(wanted, places_in_set(len(wanted)), strict=True):
            self._add(track, said, topic, place, info, at)
        return len(wanted)

    def _topic_of(self, track: Track, said: Said) -> str | None:
        """The topic that it is of; None if it isn't to be recorded."""
        if said.channel and said.channel not in track.names:
            self._learn(track)
        topic = track.info.spec.name if not said.channel else track.names.get(
            said.channel, f"{track.info.spec.name}/{said.channel:016x}")
        if said.channel and not self._wants(topic) and not self._wants(track.info.spec.name):
            return None
        if said.kind in ENDS and not any(kind.keyed for of in track.kinds.values() for kind in of.values()):
            return None  # it ends no instance
        return topic

    def _add(self, track: Track, said: Said, topic: str, place: str, info: MessageInfo, at: int) -> None:
        """Write one thing, with its `place` in a set."""
        kind: Kind | None = UNKNOWN if said.kind in ENDS else self._kind(track, topic, said)
        while kind is None:
            self._news.clear()
            self._news.wait(TYPE_WAIT_S / 10)
            self._news.set()
            track.looked_s = 0.0
            kind = self._kind(track, topic, said)
        keyed = kind.keyed or said.kind != SAMPLE
        key = (track.info.spec.name, topic, kind.key, said.kind, said.inline, said.writer if keyed else 0, place)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._writer.channel(
                topic, kind.schema if said.kind == SAMPLE else None,
                self._metadata(track, topic, kind, said, keyed, place))
        self._writer.add(channel, info.sequence, at, said.source_ns or at, said.payload)
        self.topics.add(topic)
        if kind is UNKNOWN and said.kind == SAMPLE:
            self.untold.add(topic)

    def _metadata(self, track: Track, topic: str, kind: Kind, said: Said, keyed: bool, place: str) -> dict[str, str]:
        spec = track.info.spec
        found = {"level": spec.level.name.lower(), "size_max": str(spec.size_max)}
        if topic != spec.name:
            found["order"] = spec.name
        if kind.said:
            found["type"] = kind.said
        if said.kind != SAMPLE:
            found["what"] = said.kind
        if keyed:
            found["writer"] = f"{said.writer:x}"
        if place:
            found["set"] = place
        if said.inline != NOTHING:
            found["lifespan"], found["strength"] = str(said.inline.lifespan), str(said.inline.strength)
            found["partitions"] = "\n".join(said.inline.partitions)
        return found

    # --- the next node

    def _move(self, end: float | None) -> None:
        """Open all readers at the next node that serves."""
        old = self._session
        if self._told is not old:
            self._told = old
            note(f"node {old.node_id} has gone away; this goes on at the next node of the host")
        for track in self.tracks.values():
            if track.after is None:
                try:
                    track.after = track.handle.freeze()
                except SpindleError:
                    track.after = track.handle.position
            track.places |= {one.group_id: one for one in track.handle.passed(track.after)}
        while not self._stopping and (end is None or time.monotonic() < end):
            session: Session | None = None
            try:
                session = self._attach()
                if session is not None:
                    if self._open_at(session):
                        old.close()
                    return
            except (NoDaemon, OSError, TimeoutError, ConnectionError, GroupSilent):
                pass
            except SpindleError:
                if session is None or not session.gone:  # else it was the last word of a node that goes, too
                    raise
            time.sleep(PAUSE_S)

    def _attach(self) -> Session | None:
        for target in dict.fromkeys((self._target, dataclasses.replace(self._target, node=None))):
            try:
                return target.attach("spindle record", ATTEMPT_S)
            except AccessDenied:
                raise
            except (NoDaemon, OSError):
                continue
        return None

    def _open_at(self, session: Session) -> bool:
        """False if there is still something to be read of the last node's logs."""
        opened: dict[str, ReaderHandle] = {}
        try:
            for name, track in self.tracks.items():
                assert track.after is not None
                session.declare_topic(track.info.spec)
                earlier = [one for group, one in track.places.items() if group != track.after.group_id]
                opened[name] = self._reader(session, track.info, after=track.after, earlier=earlier,
                                            from_history=track.info.spec.level is not Level.UNORDERED)
        except BaseException:
            session.close()
            raise
        unread = [self.tracks[name] for name, handle in opened.items()
                  if not handle.continued and self.tracks[name].handle.log.read_on()]
        if unread:  # this node can't fill in what is missing there: what is behind it comes first
            session.close()
            for track in unread:
                track.after = None
            return False
        self._open.enter_context(session)
        missing = [name for name, handle in opened.items() if not handle.continued]
        for name, handle in opened.items():
            track = self.tracks[name]
            assert track.after is not None
            track.places[track.after.group_id] = track.after
            track.lost_before += int(track.handle.log.lost)
            track.handle, track.after = self._open.enter_context(handle), None
        self._session = session
        self._refused.clear()  # this node may have other rules
        self._listen()
        note(f"goes on at node {session.node_id}" + (
            f"; something may be missing in between of {', '.join(missing)}" if missing else ""))
        return True


def kind_of(one: TopicType) -> Kind:
    """A type that is announced, as a recording has it."""
    codec = codec_for(one.data_type, keys=one.keys)
    said = announced.encode({"qos": {}}, codec, TYPE_BYTES_MAX).decode()
    try:
        schema: MessageSchema | None = one.schema
    except ValueError:
        schema = None
    return Kind(one.announced.identifier, schema, said, codec.key_of is not None)


def progress_of(writer: RecordingWriter, recorder: Recorder, begun_s: float) -> Iterator[str]:
    """Lines for a terminal, one whenever it is asked for."""
    from spindle.cli.common import bytes_text, duration_text

    while True:
        yield (f"{writer.messages:,} messages of {len(recorder.topics)} topics, {bytes_text(writer.bytes)}, "
               f"{duration_text(time.monotonic() - begun_s)}; Ctrl-C ends")


__all__ = ["Kind", "Recorder", "kind_of", "progress_of"]
