"""What a topic in a file is, and what it is to be played onto: its *lane*.

Recordings say all of it in their channels. Journals say the types of their samples in their heads, and have messages as
their topic's log had them. Files of other programs have schemas: messages of ROS 2 become IDL types, those of protobuf
what they are. Of what isn't known here a lane says why; it can be played as bytes.

What is to be said comes in *units*: a coherent set, or one thing alone. A set of a recording of which a part is missing
is left out, and counted: its file was cut off within it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dds.codecs.types import codec_for
from dds.dynamic import data_type_of
from dds.idl.codec import mark_of
from dds.internal import dds_infinity
from dds.matching.consistency import LENIENT, inconsistency
from dds.messages import announced
from dds.messages.announced import NOTHING, AnnouncedType
from dds.messages.contents import DISPOSED, ENDS, SAMPLE, UNREGISTERED, Contents, Said
from dds.messages.inline_qos import NOTHING as NO_INLINE
from dds.messages.inline_qos import InlineQos
from dds.messages.operations import PACKET
from dds.messages.order_groups import TYPE_NAME, channel_in
from dds.messages.packets import SET_SAMPLES_MAX
from spindle.errors import JournalError, TopicMismatch
from spindle.group.schemas import OPAQUE
from spindle.group.topics import SIZE_MAX_LIMIT, TopicSpec
from spindle.journal.playing import JOURNAL, RECORDING, PlayedChannel, PlayedFile, PlayedMessage
from spindle.journal.recording import SET_FIRST, SET_LAST, SET_MORE

if TYPE_CHECKING:
    from dds.codecs.types import Codec

KINDS = (SAMPLE, DISPOSED, UNREGISTERED, *ENDS)


@dataclasses.dataclass(frozen=True)
class Form:
    """A type that samples in a file have.

    data_type  None: it isn't known here; `reason` says why
    type       as it was announced; of NOTHING if nobody announced it
    encoding   of the payloads, for people
    """

    name: str
    data_type: Any
    keys: tuple[str, ...] = ()
    type: AnnouncedType = NOTHING
    reason: str = ""
    encoding: str = ""

    @property
    def mark(self) -> bytes:
        """Of its payloads; empty if they have none."""
        return mark_of(self.type.identifier) if self.type.kind == "idl" else b""

    def codec(self) -> Codec:
        return codec_for(self.data_type, keys=self.keys)


BYTES = Form("bytes", bytes, encoding="bytes")


def conflict(forms: Iterable[Form], grouped: bool) -> str:
    """Why one topic can't have all of these types that are known here; empty if it can. grouped: of an order group,
    where the group agrees on no type of it."""
    for one, other in itertools.combinations([form for form in forms if form.data_type is not None], 2):
        why, back = (inconsistency(of.type, by.type, LENIENT) for of, by in ((one, other), (other, one)))
        if one.type.kind == other.type.kind == "idl":
            apart = bool(why and back)  # else who has the more general one understands both
        else:
            apart = not grouped and not _is_same(one.codec(), other.codec())
        if apart:
            return f"{one.name} and {other.name}" + (
                f" (who reads the first doesn't understand who writes the second: {why})" if why else "")
    return ""


def _is_same(one: Codec, other: Codec) -> bool:
    """Whether a group takes both for the type of one topic."""
    try:
        TopicSpec("same", one.type_name, one.type_hash).check_same(TopicSpec("same", other.type_name, other.type_hash))
    except TopicMismatch:
        return False
    return True


@dataclasses.dataclass(eq=False)
class Lane:
    """A topic in the files. level, size_max: of a topic that is declared for it; "" and 0 if the file doesn't say.
    has_sets: some of its samples may be coherent sets."""

    topic: str
    order: str = ""
    level: str = ""
    size_max: int = 0
    forms: list[Form] = dataclasses.field(default_factory=list)
    messages: int = 0
    has_sets: bool = False
    sources: set[str] = dataclasses.field(default_factory=set)

    @property
    def reason(self) -> str:
        """Why it can't be played with its types; empty if it can."""
        return next((one.reason for one in self.forms if one.data_type is None), "")


@dataclasses.dataclass(slots=True)
class Played:
    """One thing to be said again."""

    lane: Lane
    form: Form
    kind: str
    payload: bytes
    writer: int  # 0: unknown
    inline: InlineQos
    log_time: int
    source_ns: int


Unit = list[Played]


class Lanes:
    """Those of some files, and what their messages are. torn: sets that were left out."""

    def __init__(self, files: Iterable[PlayedFile], as_bytes: bool = False) -> None:
        self._as_bytes = as_bytes
        self.lanes: dict[str, Lane] = {}
        self._contents: dict[tuple[str, str], Contents] = {}
        self._of_channel: dict[PlayedChannel, Callable[[PlayedMessage], Iterator[Unit]]] = {}
        self._sets: dict[tuple[PlayedFile, str], Unit] = {}  # whose end hasn't come yet, by order
        self.torn = 0
        for file in files:
            prepare = {RECORDING: self._recorded, JOURNAL: self._journal}.get(file.kind, self._other)
            for number, channel in file.channels.items():
                try:
                    self._of_channel[channel] = prepare(channel, file.counts.get(number, 0))
                except (ValueError, KeyError) as error:
                    raise JournalError(f"{file.path}: the channel of topic {channel.topic!r} says nonsense: {error}"
                                       ) from None

    @property
    def refused(self) -> int:
        """Messages that made no sense."""
        return sum(one.refused for one in self._contents.values())

    def take(self, message: PlayedMessage) -> Iterator[Unit]:
        """What the next message says. (Of a set that isn't complete yet, nothing.)"""
        return self._of_channel[message.channel](message)

    def all(self, messages: Iterable[PlayedMessage]) -> Iterator[Unit]:
        """What all of them say."""
        for message in messages:
            yield from self.take(message)
        self.torn += len(self._sets)
        self._sets.clear()

    def _in_set(self, one: Played, place: str, file: PlayedFile) -> Unit | None:
        """The set that has its last message with this one."""
        key = file, one.lane.order or one.lane.topic
        if place == SET_FIRST:
            self.torn += key in self._sets
            self._sets[key] = [one]
            return None
        unit = self._sets.get(key)
        if unit is None or len(unit) >= SET_SAMPLES_MAX:
            self._sets.pop(key, None)
            self.torn += place == SET_LAST
            return None
        unit.append(one)
        return self._sets.pop(key) if place == SET_LAST else None

    def _lane(self, topic: str, file: PlayedFile, count: int) -> Lane:
        lane = self.lanes.setdefault(topic, Lane(topic))
        lane.messages += count
        lane.sources.add(file.path.name)
        return lane

    def _form(self, lane: Lane, form: Form) -> Form:
        if form.data_type is None and self._as_bytes:
            form = BYTES
        if form not in lane.forms:
            lane.forms.append(form)
        return form

    # --- recordings

    def _recorded(self, channel: PlayedChannel, count: int) -> Callable[[PlayedMessage], Iterator[Unit]]:
        said = channel.metadata
        kind, place = said.get("what", SAMPLE), said.get("set", "")
        lane = self._lane(channel.topic, channel.file, count if kind == SAMPLE else 0)
        if kind not in KINDS:
            raise ValueError(f"something is {kind!r}")
        if place not in ("", SET_FIRST, SET_MORE, SET_LAST):
            raise ValueError(f"something is the {place!r} of a set")
        writer = int(said.get("writer", "0"), 16)
        inline = InlineQos(int(said.get("lifespan", "0")), int(said.get("strength", "0")),
                           tuple(filter(None, said.get("partitions", "").split("\n"))))
        lane.order, lane.level = said.get("order", ""), said.get("level", "")
        lane.has_sets |= bool(place)
        lane.size_max = max(lane.size_max, min(int(said.get("size_max", "0")), SIZE_MAX_LIMIT))
        if "type" in said:
            form = self._form(lane, announced_form(said["type"].encode()))
        elif kind in ENDS or channel.message_encoding == OPAQUE:
            form = BYTES
        else:
            form = self._form(lane, foreign_form(channel))
        if kind == SAMPLE:
            form = self._form(lane, form)

        def play(message: PlayedMessage) -> Iterator[Unit]:
            one = Played(lane, form, kind, message.payload, writer, inline, message.log_time, source_of(message))
            unit = self._in_set(one, place, channel.file) if place else [one]
            if unit is not None:
                yield unit

        return play

    # --- journals

    def _journal(self, channel: PlayedChannel, count: int) -> Callable[[PlayedMessage], Iterator[Unit]]:
        about, file = channel.file.about, channel.file
        grouped = about.get("type") == TYPE_NAME
        types: dict[int, list[AnnouncedType]] = {}
        names: dict[int, str] = {}
        for name, text in about.items():
            if name.startswith("type."):
                told = b64decode(text)
                of = channel_in(told)
                names.update({of.number: of.topic} if of is not None else {})
                types.setdefault(of.number if of is not None else 0, []).append(announced.decode(told)[1])
        contents = self._contents.setdefault((about.get("topic", ""), about.get("node", "")), Contents())
        forms: dict[tuple[int, bytes], Form] = {}
        sender, writer = int(channel.metadata["sender"]), int(channel.metadata["writer"])
        tag = int(channel.metadata.get("tag", "0"))
        if not grouped:
            self._lane(channel.topic, file, 0 if tag & 0x1F and not tag & 4 else count)

        def form_of(lane: Lane, number: int, payload: bytes) -> Form:
            mark = payload[2:4]
            form = forms.get((number, mark))
            if form is None:
                form = forms[number, mark] = self._form(lane, self._journal_form(about, types.get(number, []), mark))
            return form

        def lane_of(said: Said) -> Lane:
            topic = channel.topic if not said.channel else names.get(
                said.channel, f"{channel.topic}/{said.channel:016x}")
            lane = self.lanes.get(topic) or self._lane(topic, file, 0)
            lane.level, lane.order = "logged", channel.topic if said.channel else ""
            lane.has_sets |= tag == PACKET
            return lane

        for number in names if grouped else (0,):  # writers are opened before the first message
            lane = lane_of(Said(SAMPLE, b"", 0, number, 0, 0, NO_INLINE))
            for one in types.get(number, [] if grouped or tag else [NOTHING]):
                form_of(lane, number, b"\0\0" + mark_of(one.identifier) if one.kind == "idl" else b"")

        def play(message: PlayedMessage) -> Iterator[Unit]:
            whole: Unit = []
            for said in contents.take(message.payload, _Info(message, sender, writer, tag)):
                lane = lane_of(said)
                form = BYTES if said.kind in ENDS else form_of(lane, said.channel, said.payload)
                lane.messages += bool(said.channel and said.kind == SAMPLE)
                one = Played(lane, form, said.kind, said.payload, said.writer, said.inline, message.log_time,
                             said.source_ns)
                if said.in_set:
                    whole.append(one)
                else:
                    yield [one]
            if whole:
                yield whole

        return play

    def _journal_form(self, about: dict[str, str], types: Sequence[AnnouncedType], mark: bytes) -> Form:
        if about.get("type") == "bytes":
            return BYTES
        for one in types:
            if one.kind != "idl" or mark == mark_of(one.identifier) or (mark == b"\0\0" and len(types) == 1):
                return form_of_announced(one)
        return Form(about.get("type", ""), None, reason=f"the journal doesn't say what {about.get('type')} is")

    # --- files of others

    def _other(self, channel: PlayedChannel, count: int) -> Callable[[PlayedMessage], Iterator[Unit]]:
        lane = self._lane(channel.topic, channel.file, count)
        form = self._form(lane, foreign_form(channel))

        def play(message: PlayedMessage) -> Iterator[Unit]:
            yield [Played(lane, form, SAMPLE, message.payload, 0, NO_INLINE, message.log_time, source_of(message))]

        return play


class _Info:
    """A journal's message as the log had it."""

    def __init__(self, message: PlayedMessage, sender: int, writer: int, tag: int) -> None:
        self.sender, self.writer, self.relay, self.tag = sender, writer & 0xFFFF, writer >> 16, tag
        self.source_timestamp = source_of(message)
        self.reception_timestamp = message.log_time
        self.sequence, self.view_id, self.index = message.sequence, 0, 0


def source_of(message: PlayedMessage) -> int:
    """When it was written, UTC ns; 0: it doesn't say. So it is where other tools have written a time that no sample can
    have, as the greatest number there is for a time that they don't know."""
    at = message.publish_time
    return at if at != message.log_time and at < dds_infinity else 0


def announced_form(said: bytes) -> Form:
    """The type that a channel of a recording says."""
    one = announced.decode(said)[1]
    if not one.kind:
        name = ""
        try:
            name = str(json.loads(said)["of"]["name"])
        except (ValueError, KeyError, TypeError):
            pass
        return Form(name, None, reason=f"its type {name!r} is described in a way that isn't known here")
    return form_of_announced(one)


def form_of_announced(one: AnnouncedType) -> Form:
    try:
        return Form(one.name, data_type_of(one), one.keys, one, encoding={"idl": "cdr"}.get(one.kind, one.kind))
    except ValueError as error:
        return Form(one.name, None, one.keys, one, str(error))


def foreign_form(channel: PlayedChannel) -> Form:
    """The type of a channel that Spindle has not written, from its schema."""
    schema, encoding = channel.schema, channel.message_encoding
    name, kind = (schema.name, schema.encoding) if schema is not None else ("", "")
    try:
        if (encoding, kind) == ("cdr", "ros2msg"):
            from spindle.cli.recordings.rosmsg import class_of_message

            assert schema is not None
            cls = class_of_message(name, schema.data)
            return Form(name, cls, type=announced.type_of(codec_for(cls)), encoding="cdr")
        if (encoding, kind) == ("protobuf", "protobuf"):
            assert schema is not None
            one = AnnouncedType("protobuf", name, description=schema.data)
            cls = announced.message_class_of(one)
            return Form(name, cls, type=announced.type_of(codec_for(cls)), encoding="protobuf")
    except (ValueError, TypeError) as error:
        return Form(name, None, reason=f"{name}: {error}", encoding=encoding)
    said = f"{encoding or 'unknown'} with {kind or 'no'} schema"
    return Form(name, None, reason=f"the encoding is {said}, of which no topic can be made", encoding=encoding)


__all__ = ["BYTES", "Form", "Lane", "Lanes", "Played", "Unit", "conflict", "source_of"]
