"""Reading MCAP files to play them again: recordings, journals, and files of other programs, in the order of time.

Why not the library's reader: it needs a file that ends as it should. What is to be played may have been cut off with
its recorder's machine, or be written at this moment. So the index in the file is used if there is one; otherwise the
file is read through once, up to where it makes no sense any more, and `problem` says so.

Rules: messages come by log_time, equal ones by their place in the file; so whoever wrote them with times that never
fall gets his order back. A chunk is checked by its CRC before anything of it is used. Of a journal's several files the
later follow the earlier, whatever their clocks said.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, Metadata, Schema

from spindle.errors import JournalError
from spindle.group.schemas import MessageSchema
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import FORMATS, HEAD_NAME, MAGIC, MESSAGE, MESSAGE_FIXED, PADDING, RECORD
from spindle.journal.names import parse
from spindle.journal.recording import RECORDING_FORMAT, RECORDING_NAME
from spindle.journal.unpacking import unpacked

CHUNK_TIMES = struct.Struct("<QQ")  # with which the content of a chunk begins
LOOSE_BYTES = 1 << 20  # of messages outside of chunks that are read at a time
RECORDING, JOURNAL, OTHER = "recording", "journal", "MCAP file"
# What the library raises for records that make no sense.
NONSENSE = (McapError, struct.error, ValueError, OverflowError, MemoryError)

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class NotPlayable(JournalError):
    """This is no MCAP file, or one of a version that isn't known here."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlayedChannel:
    """A channel of a file. `schema` None: the file says none."""

    file: PlayedFile
    topic: str
    message_encoding: str
    schema: MessageSchema | None
    metadata: dict[str, str]


@dataclasses.dataclass(slots=True)
class PlayedMessage:
    channel: PlayedChannel
    sequence: int
    log_time: int  # UTC ns
    publish_time: int
    payload: bytes


@dataclasses.dataclass(frozen=True)
class _Part:
    """A chunk, or a run of messages outside of chunks."""

    offset: int
    length: int
    start: int  # log times
    end: int
    is_chunk: bool


class PlayedFile:
    """One MCAP file.

    kind      RECORDING, JOURNAL or OTHER
    about     what a recording's or journal's head says
    channels  all of them, by id
    counts    messages by channel id
    problem   why its end is missing, if it is; else empty
    times     log times of the first and the last message; zeros if there is none
    Raises NotPlayable; JournalError if it can't be read.
    """

    def __init__(self, path: Path | str, files: Files | None = None, progress: Callable[[int], None] | None = None
                 ) -> None:
        self.path, self._files = Path(path), files or OsFiles()
        self.kind, self.problem = OTHER, ""
        self.damaged: set[int] = set()  # where chunks begin that messages() has skipped
        self.about: dict[str, str] = {}
        self.channels: dict[int, PlayedChannel] = {}
        self.counts: dict[int, int] = {}
        self._schemas: dict[int, MessageSchema] = {}
        self._parts: list[_Part] = []
        try:
            self._handle = self._files.open(self.path)
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            self.size = self._files.size(self._handle)
            self._stream = _Stream(self._files, self._handle, self.size, self.path)
            self._check_magic()
            self._read_beginning()
            if not self._read_summary():
                self._read_through(progress)
        except BaseException:
            self.close()
            raise
        self.times = (min(one.start for one in self._parts), max(one.end for one in self._parts)) if self._parts else (
            0, 0)

    def close(self) -> None:
        """Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._files.close(handle)

    # --- what is there

    def _check_magic(self) -> None:
        begins = self._stream.at(0, len(MAGIC))
        if begins == MAGIC:
            return
        if begins[:5] == MAGIC[:5] and begins[6:] == MAGIC[6:]:
            raise NotPlayable(f"{self.path} is an MCAP file of version {begins[5:6].decode(errors='replace')!r}; this "
                              "Spindle reads version '0'")
        raise NotPlayable(f"{self.path} is no MCAP file: it begins with {begins[:8]!r}")

    def _read_beginning(self) -> None:
        """What the first records say of the file: whose it is."""
        offset = len(MAGIC)
        for _ in range(1 + 256):
            opcode, length = self._record(offset)
            if opcode == Opcode.METADATA:
                said = self._parsed(Metadata, offset, length)
                if said.name in (RECORDING_NAME, HEAD_NAME):
                    self._take_about(said)
            if opcode not in (Opcode.HEADER, Opcode.SCHEMA, Opcode.METADATA):
                return
            offset += RECORD.size + length

    def _take_about(self, said: Metadata) -> None:
        self.kind = RECORDING if said.name == RECORDING_NAME else JOURNAL
        known = ("1", RECORDING_FORMAT) if self.kind == RECORDING else FORMATS
        if said.metadata.get("format") not in known:
            raise NotPlayable(f"{self.path} is a {self.kind} of format {said.metadata.get('format')!r}; this Spindle "
                              f"reads {' and '.join(map(repr, known))}: play it with the version that wrote it")
        self.about = said.metadata

    def _record(self, offset: int) -> tuple[int, int]:
        """Opcode and length of the content; (0, 0) where the file ends within a record, or makes no sense."""
        header = self._stream.at(offset, RECORD.size)
        if len(header) < RECORD.size:
            return 0, 0
        opcode, length = RECORD.unpack(header)
        return (opcode, length) if offset + RECORD.size + length <= self.size else (0, 0)

    def _parsed(self, kind: Any, offset: int, length: int) -> Any:
        data = self._stream.at(offset + RECORD.size, length)
        try:
            return kind.read(ReadDataStream(BytesIO(data)))
        except NONSENSE as error:
            raise JournalError(f"{self.path}: the {kind.__name__} record at byte {offset:,} is malformed "
                               f"({str(error) or type(error).__name__})") from None

    def _read_summary(self) -> bool:
        """True if the file has a summary that says where all messages are."""
        from mcap.reader import SeekingReader

        try:
            summary = SeekingReader(self._stream).get_summary()  # type: ignore[arg-type]
        except NONSENSE:
            return False
        if summary is None or summary.statistics is None:
            return False
        if summary.statistics.message_count and not summary.chunk_indexes:
            return False
        said = {*summary.statistics.channel_message_counts, *itertools.chain.from_iterable(
            one.message_index_offsets for one in summary.chunk_indexes)}
        if not said <= summary.channels.keys() or len(summary.channels) < summary.statistics.channel_count or any(
                one.schema_id and one.schema_id not in summary.schemas for one in summary.channels.values()):
            return False  # who wrote it didn't repeat them there, which he needn't
        for schema in summary.schemas.values():
            self._take_schema(schema)
        for channel in summary.channels.values():
            self._take_channel(channel)
        self.counts = dict(summary.statistics.channel_message_counts)
        self._parts = [_Part(one.chunk_start_offset, one.chunk_length, one.message_start_time, one.message_end_time,
                             True) for one in summary.chunk_indexes]
        return True

    def _read_through(self, progress: Callable[[int], None] | None) -> None:
        """Find the messages without a summary, up to where the file ends or makes no sense. A chunk that is damaged
        between others that aren't is damage within the file: who reads it hears of that."""
        offset = len(MAGIC)
        loose: list[int] = []  # offset, start, end of a run of messages
        broken: list[tuple[int, int]] = []  # offset and length of chunks, behind which nothing whole came yet
        problem = ""  # of the first of them
        while True:
            opcode, length = self._record(offset)
            end = offset + RECORD.size + length
            if loose and (opcode != Opcode.MESSAGE or end - loose[0] > LOOSE_BYTES):
                self._add(_Part(loose[0], offset - loose[0], loose[1], loose[2], False), broken)
                loose = []
            if opcode in (Opcode.DATA_END, Opcode.FOOTER):
                self.problem = problem if broken else ""
                return
            if opcode == 0:
                self.problem = problem if broken else (f"it ends at byte {offset:,}, in the middle of a record: "
                                                       "whoever wrote it did not come to its end")
                return
            try:
                if opcode == Opcode.CHUNK:
                    part = _Part(offset, RECORD.size + length, *self._chunk_times(offset, length), True)
                    for _ in self._walk(part):
                        pass
                    self._add(part, broken)
                elif opcode == Opcode.SCHEMA:
                    self._take_schema(self._parsed(Schema, offset, length))
                elif opcode == Opcode.CHANNEL:
                    self._take_channel(self._parsed(Channel, offset, length))
                elif opcode == Opcode.MESSAGE:
                    channel, time = self._message_at(offset, length)
                    loose = [loose[0], min(loose[1], time), max(loose[2], time)] if loose else [offset, time, time]
                    self.counts[channel] = self.counts.get(channel, 0) + 1
                elif opcode != PADDING and opcode > 0x0F and opcode < PADDING:
                    raise JournalError(f"a record has the unknown opcode {opcode:#04x}")
            except JournalError as error:
                problem = problem if broken else f"it makes no sense from byte {offset:,} on: {error}"
                if opcode != Opcode.CHUNK:
                    self.problem = problem
                    return
                broken.append((offset, RECORD.size + length))
            offset = end
            if progress is not None:
                progress(offset)

    def _add(self, part: _Part, broken: list[tuple[int, int]]) -> None:
        """A part that is whole, and the broken ones before it, whose times nobody knows."""
        self._parts += [_Part(offset, length, part.start, part.start, True) for offset, length in broken]
        self._parts.append(part)
        broken.clear()

    def _chunk_times(self, offset: int, length: int) -> tuple[int, int]:
        if length < CHUNK_TIMES.size:
            raise JournalError(f"{self.path}: the chunk at byte {offset:,} has no times")
        start, end = CHUNK_TIMES.unpack(self._stream.at(offset + RECORD.size, CHUNK_TIMES.size))
        return start, end

    def _message_at(self, offset: int, length: int) -> tuple[int, int]:
        """Channel and log time."""
        if length < MESSAGE_FIXED:
            raise JournalError(f"{self.path}: the message at byte {offset:,} ends within its head")
        _, _, channel, _, log_time, _ = MESSAGE.unpack(self._stream.at(offset, MESSAGE.size))
        return channel, log_time

    def _take_schema(self, one: Schema) -> None:
        self._schemas[one.id] = MessageSchema(one.name, one.encoding, one.data)

    def _take_channel(self, one: Channel) -> None:
        if one.id not in self.channels:
            self.channels[one.id] = PlayedChannel(self, one.topic, one.message_encoding,
                                                  self._schemas.get(one.schema_id), one.metadata)

    # --- the messages

    def messages(self, since: int = 0, until: int = 1 << 64, skip_damaged: bool = False) -> Iterator[PlayedMessage]:
        """Those with since <= log_time < until, in their order. Raises JournalError where the file is damaged, unless
        that is to be skipped."""
        parts = sorted((one for one in self._parts if one.end >= since and one.start < until),
                       key=lambda one: (one.start, one.offset))
        heap: list[tuple[int, int, int, PlayedMessage]] = []
        following = 0
        while heap or following < len(parts):
            if following < len(parts) and (not heap or parts[following].start <= heap[0][0]):
                part = parts[following]
                following += 1
                try:
                    found = [one for one in self._read(part) if since <= one[0] < until]
                except JournalError:
                    if not skip_damaged:
                        raise
                    self.damaged.add(part.offset)
                    continue
                if len(heap) > len(found):
                    for one in found:
                        heapq.heappush(heap, one)
                else:
                    heap += found
                    heapq.heapify(heap)
                continue
            yield heapq.heappop(heap)[3]

    def _read(self, part: _Part) -> list[tuple[int, int, int, PlayedMessage]]:
        found = []
        for place, (channel, sequence, log_time, published, payload) in enumerate(self._walk(part, again=True)):
            known = self.channels.get(channel)
            if known is None:
                raise JournalError(f"{self.path}: a message at byte {part.offset:,} is on the unknown channel "
                                   f"{channel}")
            found.append((log_time, part.offset, place, PlayedMessage(known, sequence, log_time, published, payload)))
        return found

    def _walk(self, part: _Part, again: bool = False) -> Iterator[tuple[int, int, int, int, bytes]]:
        """The messages of a part: channel, sequence, log time, publish time, payload. Takes its schemas and channels
        and counts messages, unless `again`. Raises JournalError."""
        body = self._body(part)
        at = 0
        while at < len(body):
            if at + RECORD.size > len(body):
                raise JournalError(f"{self.path}: the chunk at byte {part.offset:,} ends within a record")
            opcode, length = RECORD.unpack_from(body, at)
            end = at + RECORD.size + length
            if end > len(body) or (opcode == Opcode.MESSAGE and length < MESSAGE_FIXED):
                raise JournalError(f"{self.path}: the chunk at byte {part.offset:,} ends within a record")
            if opcode == Opcode.MESSAGE:
                _, _, channel, sequence, log_time, published = MESSAGE.unpack_from(body, at)
                if not again:
                    self.counts[channel] = self.counts.get(channel, 0) + 1
                yield channel, sequence, log_time, published, body[at + MESSAGE.size : end]
            elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL) and not again:
                try:
                    content = ReadDataStream(BytesIO(body[at + RECORD.size : end]))
                    if opcode == Opcode.SCHEMA:
                        self._take_schema(Schema.read(content))
                    else:
                        self._take_channel(Channel.read(content))
                except NONSENSE as error:
                    raise JournalError(f"{self.path}: the chunk at byte {part.offset:,} is malformed "
                                       f"({str(error) or type(error).__name__})") from None
            at = end

    def _body(self, part: _Part) -> bytes:
        if not part.is_chunk:
            return self._stream.at(part.offset, part.length)
        opcode, length = self._record(part.offset)
        if opcode != Opcode.CHUNK:
            raise JournalError(f"{self.path}: there is no chunk at byte {part.offset:,}")
        chunk = self._parsed(Chunk, part.offset, length)
        try:
            return unpacked(chunk)
        except ValueError as error:
            raise JournalError(f"{self.path}: the chunk at byte {part.offset:,} is damaged: {error}") from None


class _Stream:
    """An open file, also as the library wants it. Raises JournalError where it can't be read."""

    def __init__(self, files: Files, handle: int, size: int, path: Path) -> None:
        self._files, self._handle, self._size, self._path, self._at = files, handle, size, path, 0

    def at(self, offset: int, count: int) -> bytes:
        """Up to so many bytes from there; fewer only at the end of the file. (Offsets of a file may be any number.)"""
        try:
            return self._files.read(self._handle, max(0, min(count, self._size - offset)), offset) if (
                offset < self._size) else b""
        except OSError as error:
            raise JournalError(f"cannot read {self._path} at byte {offset:,}: {error.strerror}") from error

    def read(self, count: int = -1) -> bytes:
        data = self.at(self._at, self._size - self._at if count < 0 else count)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        if self._at < 0:
            raise ValueError("before the file's beginning")
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True


def open_all(paths: Iterable[Path | str], files: Files | None = None, progress: Progress | None = None
             ) -> list[list[PlayedFile]]:
    """The files at these paths, each a file or a directory of MCAP files. Those of one journal stand in one list, in
    their order. Raises JournalError, also if there is none."""
    found: dict[Any, list[tuple[int, Path]]] = {}
    for given in map(Path, paths):
        several = sorted(one for one in given.glob("*.mcap") if not one.is_dir()) if given.is_dir() else [given]
        if not several:
            raise JournalError(f"there is no MCAP file in {given}")
        for path in several:
            if path.exists() and not path.is_file():
                raise JournalError(f"{path} is no regular file: it is read at several places, which a pipe can't do. "
                                   "Write what comes out of it into a file first")
            parts = parse(path.name)
            key = (path.parent, parts.stem, parts.node_id) if parts and given.is_dir() else path
            place = (parts.number if parts else 0, path)
            if place not in found.setdefault(key, []):  # named twice, it is played once
                found[key].append(place)
    sizes = {path: path.stat().st_size if path.exists() else 0 for one in found.values() for _, path in one}
    total, before = sum(sizes.values()), 0
    opened: list[list[PlayedFile]] = []
    try:
        for one in found.values():
            opened.append([])
            for _, path in sorted(one):
                step = (lambda done, before=before: progress(before + done, total)) if progress else None
                opened[-1].append(PlayedFile(path, files, step))
                before += sizes[path]
    except BaseException:
        close_all(opened)
        raise
    return opened


def close_all(opened: Iterable[Sequence[PlayedFile]]) -> None:
    for one in opened:
        for file in one:
            file.close()


def merged(opened: Sequence[Sequence[PlayedFile]], since: int = 0, until: int = 1 << 64, skip_damaged: bool = False
           ) -> Iterator[PlayedMessage]:
    """The messages of all of them by time."""
    return heapq.merge(*(_chained(one, since, until, skip_damaged) for one in opened), key=lambda one: one.log_time)


def _chained(files: Sequence[PlayedFile], since: int, until: int, skip_damaged: bool) -> Iterator[PlayedMessage]:
    """Those of one journal's files, one behind the other."""
    last = 0
    for file in files:
        for message in file.messages(since, until, skip_damaged):
            last = message.log_time = max(last, message.log_time)
            yield message


__all__ = ["JOURNAL", "OTHER", "RECORDING", "NotPlayable", "PlayedChannel", "PlayedFile", "PlayedMessage", "close_all",
           "merged", "open_all"]
