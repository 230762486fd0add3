"""Shows topics to Foxglove, live: a server of its WebSocket protocol, by the `foxglove-sdk` package.

Why beside the recorder: both take apart what is in a node's topics, learn their types, and go on at the next node. A
recorder reads all topics into a file; a bridge has a channel for each topic whose type is known, and reads those that
somebody looks at.

Rules: it is a reader like any other, with the rights of its user, and holds nobody up: who is slower than the writers
loses samples, here or at the client. Clients can change nothing. One thread reads and shows; the server's threads only
note who has come and gone.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dds.messages.contents import SAMPLE, Said
from spindle.cli.common import Target, is_like, note
from spindle.cli.ports import OPAQUE_TYPE
from spindle.cli.recordings.opening import Opened
from spindle.cli.recordings.recorder import Recorder
from spindle.cli.recordings.tracks import OPAQUE, UNKNOWN, Kind, Track, kind_of
from spindle.errors import AccessDenied, ListenError, NodeStopped, SpindleError, TopicUnknown
from spindle.group.schemas import OPAQUE as OCTETS

if TYPE_CHECKING:
    from spindle.client import Event, Session
    from spindle_core.message import MessageInfo

IDLE_S = 0.5  # between two looks whether the node is there
# Messages that may wait for a client; for one more its oldest goes. Fewer where they are large: a client that reads
# nothing costs this memory.
BACKLOG_MAX, BACKLOG_MIN, BACKLOG_BYTES = 1024, 64, 256 << 20
BYTES_SHOWN_MAX = 64 << 10  # of a sample of bytes, which travels as JSON
READY_S = 10.0  # for the first look
PAUSE_S = 0.2  # before a node is asked again

# Samples of topics without a type, as JSON: what Foxglove has no other word for.
BYTES_NAME = "spindle.Bytes"
BYTES_SCHEMA = {
    "title": BYTES_NAME,
    "description": "A sample of a topic of bytes: as text if it is text, else in base64.",
    "type": "object",
    "properties": {
        "size": {"type": "integer", "description": "bytes of the sample"},
        "text": {"type": "string"},
        "base64": {"type": "string", "contentEncoding": "base64"},
        "cut": {"type": "boolean", "description": f"only the first {BYTES_SHOWN_MAX} bytes are here"},
    },
    "required": ["size"],
}


def as_json(payload: bytes) -> bytes:
    """A sample of bytes, as BYTES_SCHEMA says."""
    shown: dict[str, Any] = {"size": len(payload)}
    if len(payload) > BYTES_SHOWN_MAX:
        shown["cut"] = True
        payload = payload[:BYTES_SHOWN_MAX]
    try:
        shown["text"] = payload.decode()
    except UnicodeDecodeError:
        shown["base64"] = base64.b64encode(payload).decode()
    return json.dumps(shown, separators=(",", ":")).encode()


@dataclasses.dataclass
class Channel:
    """A topic with one of its types, as clients see it. `channel` is the SDK's."""

    channel: Any
    plain: bool  # its samples are bytes, and become JSON

    def show(self, payload: bytes, at: int) -> None:
        if self.channel.has_sinks():
            self.channel.log(as_json(payload) if self.plain else payload, log_time=at)


class Lookers:
    """Which clients look at which channels; the server calls this on threads of its own."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._looking: dict[int, set[int]] = {}  # clients by channel

    def on_subscribe(self, client: Any, channel: Any) -> None:
        with self._lock:
            self._looking.setdefault(channel.id, set()).add(client.id)
        self._changed()

    def on_unsubscribe(self, client: Any, channel: Any) -> None:
        with self._lock:
            clients = self._looking.get(channel.id, set())
            clients.discard(client.id)
            if not clients:
                self._looking.pop(channel.id, None)
        self._changed()

    def at(self) -> set[int]:
        """Channels that somebody looks at."""
        with self._lock:
            return set(self._looking)


class NoFile:
    """In the place of a recorder's file."""

    messages = 0

    def flush(self, sync: bool) -> None:
        pass


class Bridge(Recorder):
    """See the module. A context manager, as a Recorder is.

    serve()   begins to listen. Raises ListenError.
    follow()  shows topics until stop()
    shown     messages that were given to the server
    """

    _program, _word = "spindle foxglove", "shown"

    def __init__(self, target: Target, session: Session, patterns: Sequence[str], history: bool, again: bool) -> None:
        self._known: dict[str, Track] = {}  # by the node's name; also those that nobody looks at
        self._shows: dict[str, dict[tuple[str, bytes], Channel]] = {}  # by that, then topic and type
        self._server: Any = None
        self.shown = 0
        self._changed: SimpleQueue[str] = SimpleQueue()  # topics of the node about which there is news; "": all
        self._looked_inside: set[str] = set()
        self._absent: set[str] = set()  # topics that were there at the last node, and may come again
        self._lookers = Lookers(self._heard)
        super().__init__(target, session, patterns, NoFile(), False, history, again)  # type: ignore[arg-type]
        self._first = None
        import foxglove

        logging.getLogger("foxglove.context").addFilter(_is_news)
        self._context = foxglove.Context()

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.stop()
        for track in self.tracks.values():
            with contextlib.suppress(SpindleError):
                track.handle.close()
        with contextlib.suppress(SpindleError):
            self._session.close()
        super().__exit__(*error)

    def _listen(self) -> None:
        def heard(event: Event) -> None:
            self._changed.put(event.endpoint.topic if event.endpoint is not None else (
                event.topic.spec.name if event.topic is not None else ""))
            self._heard()

        self._changed.put("")
        self._refused.clear()
        self._news.set()
        try:
            self._session.add_listener(heard)
        except (SpindleError, OSError):
            if not self._again or not self._session.gone:
                raise  # else who looks next finds that it has gone

    def _heard(self) -> None:
        self._news.set()
        self._rouse()

    # --- the server

    def serve(self, host: str, port: int, certificate: bytes | None = None, key: bytes | None = None) -> int:
        """Begin to listen; the port."""
        import foxglove

        lookers: Any = self._lookers  # the SDK asks for a class, and needs but some methods
        try:
            self._server = foxglove.start_server(
                name=f"Spindle, domain {self._session.domain_id}", host=host, port=port, capabilities=[],
                server_listener=lookers, supported_encodings=[],
                context=self._context, message_backlog_size=self._backlog(), tls_cert=certificate, tls_key=key)
        except Exception as error:  # the SDK raises classes of its own, and says what it was in words
            raise ListenError(
                f"can't listen at {host}:{port}: {error}. --listen takes another address or port") from None
        return int(self._server.port)

    def _backlog(self) -> int:
        largest = max((track.info.spec.size_max for track in self._known.values()), default=1)
        return max(BACKLOG_MIN, min(BACKLOG_MAX, BACKLOG_BYTES // max(1, largest)))

    # --- what there is

    def look(self) -> None:
        """Have a channel for each topic and type that is known by now, and read those that are looked at."""
        self._news.clear()
        changed = {self._changed.get() for _ in range(self._changed.qsize())}
        try:
            self._look(changed)
        except (SpindleError, TimeoutError):
            self._changed.put("")
            self._news.set()
            raise

    def _look(self, changed: set[str]) -> None:
        there = {info.spec.name: info for info in self._session.topics() if self._wants_track(info)}
        self._absent -= there.keys()
        for name, track in list(self._known.items()):
            if name not in there and name in self._absent:
                continue
            if name not in there or there[name].spec != track.info.spec:
                self._forget(name)
        for name, info in there.items():
            if not self._may_be_opened(name):
                continue
            if name not in self._known:
                self._known[name] = Track(info)
            elif not changed & {name, ""}:
                continue
            self._learn(self._known[name])
            self._advertise(name, self._known[name])
        self._read_what_is_looked_at()

    def _learn_topic(self, track: Track, topic: str, within: str) -> None:
        """What is said of a topic's type now. Types that nobody has any more go, where the topic keeps no samples of
        them. Of what only keeps samples, whose writers have gone, the node learns by becoming a member for a moment:
        once."""
        from dds.dynamic import types_of

        name, keeps = track.info.spec.name, track.info.spec.level.keeps_history
        inside = keeps and not track.kinds.get(topic) and name not in self._looked_inside
        if inside:
            self._looked_inside.add(name)
        fresh: dict[bytes, Kind] = {}
        for one in types_of(self._session, name, within, inside):
            if one.data_type is None:
                continue
            try:
                kind = kind_of(one)
            except (TypeError, ValueError) as error:  # what another program says of its type makes no sense
                note(f"{topic}: its type {one.name} is not shown: {error}")
                continue
            fresh.setdefault(kind.schema.mark if kind.schema is not None else b"", kind)
        kinds = track.kinds.setdefault(topic, {})
        if fresh and not keeps:
            kinds.clear()
        kinds.update(fresh)

    def _advertise(self, name: str, track: Track) -> None:
        """Channels for the types that are known, and for no others."""
        if track.info.spec.type_name == OPAQUE_TYPE:
            track.kinds[name] = {b"": OPAQUE}
        shows = self._shows.setdefault(name, {})
        wanted = {(topic, kind.key): kind for topic, of in track.kinds.items() for kind in of.values()
                  if kind.schema is not None and (topic == name or self._wants(topic) or self._wants(name))}
        for gone in set(shows) - set(wanted):
            shows.pop(gone).channel.close()
        for key, kind in wanted.items():
            if key not in shows:
                shows[key] = self._channel(track, key[0], kind)

    def _channel(self, track: Track, topic: str, kind: Kind) -> Channel:
        import foxglove

        schema = kind.schema
        assert schema is not None
        plain = schema.message_encoding == OCTETS
        if plain:
            said = foxglove.Schema(name=BYTES_NAME, encoding="jsonschema", data=json.dumps(BYTES_SCHEMA).encode())
        else:
            said = foxglove.Schema(name=schema.name, encoding=schema.encoding, data=schema.data)
        spec = track.info.spec
        about = {"level": spec.level.name.lower()}
        if topic != spec.name:
            about["order"] = spec.name
        if schema.mark:
            about["version"] = schema.mark.hex()  # channels that are alike in all would be one
        return Channel(foxglove.Channel(topic, schema=said, message_encoding="json" if plain else
                                        schema.message_encoding, context=self._context, metadata=about), plain)

    def absent(self) -> list[str]:
        """Patterns that no topic is like so far."""
        known = {*self._known, *(topic for track in self._known.values() for topic in track.names.values())}
        return [like for like in self._patterns if not any(is_like(name, (like,)) for name in known)]

    def _forget(self, name: str) -> None:
        """A topic that is gone, or is another one now."""
        self._close(name)
        self._known.pop(name, None)
        self._looked_inside.discard(name)
        for show in self._shows.pop(name, {}).values():
            show.channel.close()

    # --- reading

    def _read_what_is_looked_at(self) -> None:
        looking = self._lookers.at()
        for name, track in list(self._known.items()):
            wanted = name not in self._absent and any(
                show.channel.id() in looking for show in self._shows.get(name, {}).values())
            if not wanted:
                self._close(name)
            elif name in self.tracks:
                self._open_next(name, track)
            else:
                self._opening.begin(name, self._session, track, functools.partial(
                    self._reader, self._session, track.info))

    def take_up(self) -> None:
        super().take_up()
        for name, track in list(self.tracks.items()):
            if self._known.get(name) is not track:  # it is another one by now
                self._close(name)

    def _begin(self, one: Opened) -> None:
        super()._begin(one)
        self._news.set()  # perhaps nobody looks at it any more

    def _refuse(self, one: Opened, moves: bool) -> None:
        import foxglove

        error = one.error
        if self._session.gone or not isinstance(error, (SpindleError, OSError)):
            super()._refuse(one, moves)
            return
        text = f"{one.name} is not shown: {error}"
        if str(error) != str(self._refused.get(one.name)):
            note(text)
            if self._server is not None:
                self._server.publish_status(text, foxglove.StatusLevel.Warning, None)
        if isinstance(error, TopicUnknown):
            self._forget(one.name)
            return
        self._refused[one.name] = error
        if isinstance(error, AccessDenied):
            self._forget(one.name)

    def _close(self, name: str) -> None:
        track = self.tracks.pop(name, None)
        if track is not None:
            with contextlib.suppress(SpindleError):
                track.handle.close()
            del track.handle  # its descriptors; the topic stays known

    def follow(self) -> None:
        """Show until stop(). Raises what the node said last, or NodeStopped, if it goes and this shall not go on;
        AccessDenied where it would go on."""
        while not self._stopping:
            try:
                self.go_on()
                self._look_and_take_up()
                if not self._pass(None):
                    self._sleep(IDLE_S)
            except AccessDenied:
                raise
            except (SpindleError, OSError) as error:
                if isinstance(error, NodeStopped) or self._session.gone:  # its last word may be any
                    if not self._again:
                        raise
                    if not self._session.gone:
                        time.sleep(PAUSE_S)
                elif isinstance(error, TimeoutError):  # a node, or a group, that is busy with something else
                    note(f"{error}; asking again")
                    time.sleep(PAUSE_S)
                else:
                    raise

    @property
    def node_gone(self) -> bool:
        return self._session.gone

    def go_on(self) -> None:
        """If the node has gone, at the next one, as soon as there is one and what had come is shown. Raises as
        follow()."""
        if self._stands_still():
            self._move(None)

    def _ended(self) -> SpindleError:
        return self._session.end_error or super()._ended()

    def _arrive(self) -> None:
        """A bridge declares nothing: in a group that has begun anew programs say what a topic is. Until they do its
        channel stays, and so do the clients."""
        there = {info.spec.name: info.spec for info in self._session.topics()}
        self._absent = self._known.keys() - there.keys()
        for name, track in list(self.tracks.items()):
            if there.get(name) != track.info.spec:
                self._close(name)

    def _write(self, track: Track, unit: Sequence[Said], info: MessageInfo, at: int) -> int:
        return sum(self._show(track, said, info.reception_timestamp) for said in unit)  # as the clock says

    def _show(self, track: Track, said: Said, at: int) -> bool:
        if said.kind != SAMPLE:
            return False  # the end of an instance: Foxglove has no word for it
        name = track.info.spec.name
        if said.channel and said.channel not in track.names:
            self._learn(track)
            self._advertise(name, track)
        topic = name if not said.channel else track.names.get(said.channel, "")
        kind = self._kind(track, topic, said)
        if kind is None or kind is UNKNOWN:
            return False  # nobody has said its type yet: then nobody can look at it either
        show = self._shows.get(name, {}).get((topic, kind.key))
        if show is None:
            self._advertise(name, track)
            return False
        show.show(said.payload, at)
        self.shown += 1
        return True


def _is_news(record: logging.LogRecord) -> bool:
    """False for the SDK's warning that a topic has two channels: one for each version of its type is meant."""
    return "use a unique topic for each channel" not in record.getMessage()


def ready(bridge: Bridge) -> None:
    """Look once before clients come, so that they find the channels there. Raises as follow()."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            bridge.look()
            return
        except (SpindleError, OSError) as error:
            if bridge.node_gone:
                bridge.go_on()
                deadline = time.monotonic() + READY_S
            elif not isinstance(error, TimeoutError) or time.monotonic() > deadline:
                raise


__all__ = ["BYTES_SCHEMA", "Bridge", "as_json", "ready"]
