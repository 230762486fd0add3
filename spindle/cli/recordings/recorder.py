"""Reads topics into a recording, in their orders, and goes on at the next node when its own goes away.

What a recording has: of each topic all that was said in it, samples as their writers encoded them, ends of instances
and writers beside them on channels of their own. The topics of an order group have one order, which the file keeps;
otherwise each topic has its own, and they are merged by the times at which the node delivered them.

Rules: one thread reads all topics, and waits for none of them to be opened, here or at the next node. What is at hand
is sorted by time before it is written, and the times of one order never fall. A message is on a channel of its topic's
type; what a type isn't known of within TYPE_WAIT_S has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dds.dynamic import types_of
from dds.messages.contents import ENDS, GONE, SAMPLE, Said
from dds.messages.inline_qos import NOTHING
from dds.messages.order_groups import channel_in, is_group
from spindle.cli.common import Target, is_like, note
from spindle.cli.ports import OPAQUE_TYPE, READER_QOS, announcement
from spindle.cli.recordings.opening import Opened, Opening
from spindle.cli.recordings.times import Timeline
from spindle.cli.recordings.tracks import OPAQUE, UNKNOWN, Kind, Track, kind_of
from spindle.errors import AccessDenied, GroupSilent, NoDaemon, NodeStopped, SpindleError, TopicMismatch, TopicUnknown
from spindle.group.levels import Level
from spindle.journal.recording import places_in_set
from spindle.locks import Latch

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
END_S = 2.0  # at most, for what is being opened when it begins or ends, or the node has gone
RETRY_S = 5.0  # until a topic that could not be opened is tried again, where nothing happens


class Recorder:
    """See the module. A context manager.

    patterns  names of topics, or patterns with * and ?; those that come later are recorded, too
    tracks    topics that are read, by name
    stop()    ends run() soon; may be called from a signal handler
    """

    _program, _word = "spindle record", "recorded"

    def __init__(self, target: Target, session: Session, patterns: Sequence[str], writer: RecordingWriter,
                 keep_all: bool, history: bool, again: bool) -> None:
        self._target, self._session, self._patterns, self._writer = target, session, patterns, writer
        self._keep_all, self._history, self._again = keep_all, history, again
        self.tracks: dict[str, Track] = {}
        self._channels: dict[tuple[Any, ...], int] = {}
        self._left: list[Session] = []  # of nodes that have gone, whose logs are still being read
        self._first: Session | None = session  # that who has made this closes
        self._stopping = False
        self._told: Session | None = None  # that was said to have gone
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._news = Latch()
        self._opening = Opening(self._rouse)
        self._refused: dict[str, Exception] = {}  # topics that could not be opened, and why
        self._retry_s = 0.0  # when they are tried again
        self._there: set[str] = set()  # topics that are to be recorded, recorded or not
        self._groups_seen: set[str] = set()
        self._lost: dict[str, int] = {}  # of topics that are others by now
        self.topics: set[str] = set()  # of which messages were recorded
        self._times = Timeline(*clocks())
        self.untold: set[str] = set()  # of these, those with messages whose type nobody has said
        self._listen()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._opening.close()
        for track in self.tracks.values():
            with contextlib.suppress(SpindleError, OSError):
                track.handle.close()
        for session in {*self._left, self._session}:
            if session is not self._first:
                session.close()
        wake, self._wake = self._wake, -1
        os.close(wake)

    def stop(self) -> None:
        self._stopping = True
        self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is over
            os.eventfd_write(self._wake, 1)

    @property
    def lost(self) -> dict[str, int]:
        """Messages that were overwritten before they were read, by topic."""
        lost = {name: track.lost + self._lost.get(name, 0) for name, track in self.tracks.items()}
        return {name: count for name, count in {**self._lost, **lost}.items() if count}

    @property
    def left_out(self) -> dict[str, str]:
        """Topics that were recorded at a node that has gone, and are not at the present one, each with the reason."""
        if self._session.gone:
            return {}
        return {name: str(self._refused.get(name, "it is still being opened there"))
                for name, track in self.tracks.items() if track.session is not self._session}

    @property
    def unopened(self) -> list[str]:
        """Topics that are being opened still, and of which nothing was recorded."""
        return [name for name in self._opening.names() if name not in self.tracks and name not in self._refused]

    @property
    def lacking(self) -> dict[str, str]:
        """Topics of which nothing was recorded, as they could not be opened to the end, each with the reason; without
        those that this program may not read."""
        return {name: str(error) for name, error in self._refused.items()
                if name not in self.tracks and self._may_be_opened(name)}

    @property
    def refused(self) -> int:
        """Messages that made no sense."""
        return sum(track.contents.refused for track in self.tracks.values())

    # --- which topics

    def _listen(self) -> None:
        def heard(_: object) -> None:
            self._news.set()
            self._rouse()

        self._news.set()
        self._session.add_listener(heard)

    def missing(self) -> list[str]:
        """Patterns that no topic is like so far."""
        known = {*self._there, *(name for track in self.tracks.values() for name in track.names.values())}
        return [like for like in self._patterns if not any(is_like(name, (like,)) for name in known)]

    def look(self) -> None:
        """Begin to open what is there by now, and isn't open at the present node; take_up() has what comes of it."""
        self._news.clear()
        self._retry_s = time.monotonic() + RETRY_S
        session = self._session
        for info in session.topics():
            name = info.spec.name
            track = self.tracks.get(name)
            if track is not None and track.session is session:
                self._learn(track)
            elif track is None and self._may_be_opened(name) and (self._wants_track(info) or self._may_keep(info)):
                self._opening.begin(name, session, Track(info), functools.partial(self._reader, session, info))
        for name, track in self.tracks.items():
            self._open_next(name, track)

    def _open_next(self, name: str, track: Track) -> None:
        """At the present node, if it was read at one that has gone, and all of that is read."""
        session, after = self._session, track.after
        if track.session is not session and after is not None and track.is_read and self._may_be_opened(name):
            self._opening.begin(name, session, track, functools.partial(
                self._next_reader, session, track.info, after, dict(track.places)))

    def _may_be_opened(self, name: str) -> bool:
        return not isinstance(self._refused.get(name), AccessDenied)

    def take_up(self) -> None:
        """Read what has been opened. Raises AccessDenied and others for a topic that was named."""
        behind_holes = []
        for one in self._opening.take(self._session):
            track: Track = one.track
            moves = self.tracks.get(one.name) is track
            if one.error is not None:
                self._refuse(one, moves)
                continue
            assert one.handle is not None
            if self._refused.pop(one.name, None) is not None:
                note(f"{one.name} is {self._word} from now on")
            if not moves:
                self._begin(one)
            elif not one.handle.continued and track.handle.log.read_on():
                one.close()  # this node can't fill in what is missing there: what is behind it comes first
                track.after, track.is_read = None, False
            else:
                if not one.handle.continued:
                    behind_holes.append(one.name)
                with contextlib.suppress(SpindleError, OSError):
                    track.handle.close()
                track.goes_on(one.session, one.handle)
        if behind_holes:
            note(f"something may be missing in between of {', '.join(behind_holes)}")
        for session in [one for one in self._left if not any(track.session is one for track in self.tracks.values())]:
            self._left.remove(session)
            session.close()

    def _begin(self, one: Opened) -> None:
        """It is read from now on."""
        assert one.handle is not None
        one.track.begin(one.session, one.handle)
        self.tracks[one.name] = one.track
        self._learn(one.track)
        if is_group(one.track.info.spec) and not self._wants(one.name) and not any(
                map(self._wants, one.track.names.values())):
            self.tracks.pop(one.name).handle.close()

    def begin(self) -> None:
        """Open what is there, or almost all: nothing waits for a topic that takes long."""
        self.look()
        self._opening.settle((), END_S)
        self.take_up()

    def _refuse(self, one: Opened, moves: bool) -> None:
        """A topic could not be opened: it is tried again when something happens, unless the rules forbid it."""
        assert one.error is not None
        if self._session.gone:
            return  # the node's last word, which may be any
        if not isinstance(one.error, (SpindleError, OSError)):
            raise one.error
        if moves and isinstance(one.error, TopicMismatch):
            note(f"{one.name} is another topic at node {one.session.node_id}, and recorded as that from here on")
            self._lost[one.name] = self._lost.get(one.name, 0) + one.track.lost
            with contextlib.suppress(SpindleError, OSError):
                self.tracks.pop(one.name).handle.close()
            self._news.set()
            return
        named = one.name in self._patterns and not isinstance(one.error, TopicUnknown)
        if named and (not moves or isinstance(one.error, AccessDenied)):
            raise one.error
        if str(one.error) != str(self._refused.get(one.name)):
            note(f"{one.name} is not recorded: {one.error}")
        self._refused[one.name] = one.error

    def _wants(self, name: str) -> bool:
        return is_like(name, self._patterns)

    def _wants_track(self, info: TopicInfo) -> bool:
        if self._wants(info.spec.name):
            self._there.add(info.spec.name)
            return True
        if not is_group(info.spec):
            return False
        channels = [channel_in(one.endpoint) for one in self._session.endpoints(info.spec.name)]
        wanted = {one.topic for one in channels if one is not None and self._wants(one.topic)}
        self._there |= wanted
        return bool(wanted)

    def _may_keep(self, info: TopicInfo) -> bool:
        """Whether this order group may keep samples of a topic that is wanted, and that nobody has open: who reads it
        knows. Once of each."""
        if not self._history or not is_group(info.spec) or not info.spec.level.keeps_history or (
                info.spec.name in self._groups_seen):
            return False
        self._groups_seen.add(info.spec.name)
        return True

    def _reader(self, session: Session, info: TopicInfo, **more: Any) -> ReaderHandle:
        keeps = info.spec.level.keeps_history
        more.setdefault("from_history", self._history and keeps)
        handle = session.open_reader(info.spec.name, keep_all=self._keep_all, guid=os.urandom(16),
                                     endpoint=announcement(READER_QOS), **more)
        handle.log.goes_on = self._again
        return handle

    def _next_reader(self, session: Session, info: TopicInfo, after: Position, places: dict[int, Position]
                     ) -> ReaderHandle:
        """A reader at the next node, that goes on where the last one stood."""
        session.declare_topic(info.spec)
        earlier = [one for group, one in places.items() if group != after.group_id]
        return self._reader(session, info, after=after, earlier=earlier,
                            from_history=info.spec.level is not Level.UNORDERED)

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
            if self._stands_still() and not self._move(end):
                break
            try:
                self._look_and_take_up()
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
            if not had:
                self._sleep(FLUSH_S if end is None else min(FLUSH_S, max(0.0, end - now)))
        if not self._stopping or count is None:  # all that is there by now, and nothing of what still comes
            self._opening.settle(self._refused, END_S)  # whose readers others may see already
            self.take_up()
            pending = max((int(track.handle.log.pending) for track in self.tracks.values()), default=0)
            for _ in range(1 + pending // TAKE_MAX):
                self._pass(None if count is None else max(0, count - self._writer.messages))

    def _look_and_take_up(self) -> None:
        if self._is_left:
            return
        if self._news.is_set() or (self._refused and time.monotonic() >= self._retry_s):
            self.look()
        self.take_up()

    @property
    def _is_left(self) -> bool:
        """The node has gone, of which a reader may know before its session does."""
        return self._session.gone or any(track.after is not None and track.session is self._session
                                         for track in self.tracks.values())

    def _stands_still(self) -> bool:
        """True if the node has gone, and all that had come is read. Raises what is said of its end if this shall not go
        on."""
        if not self._is_left:
            return False
        self._opening.settle((), END_S)  # the node has answered, or its end is the answer
        self.take_up()
        for track in self.tracks.values():
            if track.after is None:
                track.leave()
        if not all(track.is_read for track in self.tracks.values()):
            return False
        if not self._again:
            raise self._ended()
        return True

    def _ended(self) -> SpindleError:
        said = self._session.end_error
        return NodeStopped(str(said) if said is not None else f"node {self._session.node_id} has gone away")

    def _pass(self, count: int | None) -> bool:
        """Take what is there, and write it by time. True if there was anything."""
        read = [(track, *pair) for track in self.tracks.values() for pair in self._take(track)]
        self._times.look(*clocks())
        taken: list[tuple[int, Track, bytes, MessageInfo]] = []
        for track, payload, info in read:
            track.last_time = max(track.last_time, self._times.at(info.reception_timestamp))
            taken.append((track.last_time, track, payload, info))
        for at, track, payload, info in sorted(taken, key=lambda one: one[0]):
            whole = track.contents.take(payload, info)
            for unit in [whole] if any(said.in_set for said in whole) else [[said] for said in whole]:
                if count is not None and count <= 0:
                    return True
                written = self._write(track, unit, info, at)
                if count is not None:
                    count -= written
        return bool(read)

    def _take(self, track: Track) -> list[tuple[bytes, MessageInfo]]:
        pairs: list[tuple[bytes, MessageInfo]] = []
        try:
            pairs = track.handle.log.take_pairs(TAKE_MAX)
            if not pairs and track.after is None:
                track.handle.log.wait(0.0)
        except ConnectionError:
            if track.after is None:
                track.leave()
                return []
        if not pairs and track.after is not None and not track.is_read:
            track.is_read = True
            self._news.set()  # it is to be opened at the next node
        return pairs

    def _sleep(self, timeout_s: float) -> None:
        """Until there may be something to take, or news, or stop()."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        by_ring = {}
        for track in self.tracks.values():
            if track.after is not None:
                continue
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
        writer = 0 if not keyed else said.writer if said.kind == GONE else track.writers.name(said.writer)
        key = (track.info.spec.name, topic, kind.key, said.kind, said.inline, writer, place)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._writer.channel(
                topic, kind.schema if said.kind == SAMPLE else None,
                self._metadata(track, topic, kind, said, writer, place))
        self._writer.add(channel, info.sequence, at, said.source_ns or at, said.payload)
        self.topics.add(topic)
        if said.kind in ENDS:
            track.writers.end(said)
        if kind is UNKNOWN and said.kind == SAMPLE:
            self.untold.add(topic)

    def _metadata(self, track: Track, topic: str, kind: Kind, said: Said, writer: int, place: str) -> dict[str, str]:
        spec = track.info.spec
        found = {"level": spec.level.name.lower(), "size_max": str(spec.size_max)}
        if topic != spec.name:
            found["order"] = spec.name
        if kind.said:
            found["type"] = kind.said
        if said.kind != SAMPLE:
            found["what"] = said.kind
        if writer:
            found["writer"] = f"{writer:x}"
        if place:
            found["set"] = place
        if said.inline != NOTHING:
            found["lifespan"], found["strength"] = str(said.inline.lifespan), str(said.inline.strength)
            found["partitions"] = "\n".join(said.inline.partitions)
        return found

    # --- the next node

    def _move(self, end: float | None) -> bool:
        """Attach to the next node that serves; look() opens all topics there. False if there is none until `end` or
        stop()."""
        old = self._session
        if self._told is not old:
            self._told = old
            note(f"node {old.node_id} has gone away; this goes on at the next node of the host")
        while not self._stopping and (end is None or time.monotonic() < end):
            session = self._attach()
            if session is not None:
                self._left.append(old)
                self._session = session
                try:
                    self._refused.clear()  # this node may have other rules
                    self._listen()
                    self._arrive()
                    note(f"goes on at node {session.node_id}")
                    return True
                except (SpindleError, OSError):
                    if not session.gone:
                        raise
                    self._left.pop()
                    self._session = old
                    session.close()
            time.sleep(PAUSE_S)
        return False

    def _arrive(self) -> None:
        """At the next node."""

    def _attach(self) -> Session | None:
        for target in dict.fromkeys((self._target, dataclasses.replace(self._target, node=None))):
            try:
                return target.attach(self._program, ATTEMPT_S)
            except AccessDenied:
                raise
            except (NoDaemon, GroupSilent, OSError):
                continue
        return None


def clocks() -> tuple[int, int]:
    """The wall clock, UTC ns, and one that nobody sets."""
    return time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def progress_of(writer: RecordingWriter, recorder: Recorder, begun_s: float) -> Iterator[str]:
    """Lines for a terminal, one whenever it is asked for."""
    from spindle.cli.common import bytes_text, duration_text

    while True:
        yield (f"{writer.messages:,} messages of {len(recorder.topics)} topics, {bytes_text(writer.bytes)}, "
               f"{duration_text(time.monotonic() - begun_s)}; Ctrl-C ends")


__all__ = ["Recorder", "progress_of"]
