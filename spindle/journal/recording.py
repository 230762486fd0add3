"""Recordings: MCAP files of several topics, in the order in which they were delivered.

    magic, Header, Metadata "spindle.recording"
    { Chunk (schemas, channels, messages), Message Index..., [padding] }
    padding | DataEnd, Footer, magic                         while it is being written
    [Metadata "spindle.end",] DataEnd, Summary, ..., magic   once it is closed

A recording is a whole MCAP file after each write (`spindle.journal.growing`): whoever is killed while recording leaves
a file that any reader reads up to its last chunk, without an index.

Channels say in their metadata what MCAP has no field for; `spindle.journal.playing` reads it. Of a message:

    log_time      when its node delivered it; never falls among the messages of one order, so that who reads by time
                  (and, among equal times, by place in the file) has the agreed order
    publish_time  the writer's timestamp, or log_time if it had none
    sequence      the low 32 bits of its sequence number in its order

A coherent set has one place in its order, so its messages follow each other and have one log_time. Channels say in
their metadata, as `set`, that their messages are the first of one, the last, or more of it; who doesn't ask sees
messages of the same topics. A set whose last message is missing was cut off with the file.

Rules: chunks begin where the header of their record lies in one sector; a record of the private opcode 0x80 covers what
is left out for that. Compression is MCAP's: "", "lz4" or "zstd".
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from mcap.opcode import Opcode
from mcap.records import (
    Channel,
    ChunkIndex,
    DataEnd,
    Footer,
    Header,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
    SummaryOffset,
)

from spindle.errors import JournalError
from spindle.group.schemas import MessageSchema
from spindle.journal.directory import reason_of
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import (
    CHANNELS_MAX,
    LIBRARY,
    MAGIC,
    MESSAGE,
    MESSAGE_FIXED,
    PADDING,
    RECORD,
    U64_MAX,
    Pile,
    crosses_sector,
    encode,
)
from spindle.journal.growing import GrowingFile, begin
from spindle.journal.live import index_record
from spindle.journal.names import is_of_journal

RECORDING_NAME = "spindle.recording"
END_NAME = "spindle.end"
RECORDING_FORMAT = "2"  # since 2, channels say which messages are coherent sets
SET_FIRST, SET_MORE, SET_LAST = "first", "more", "last"
CHUNK_BYTES = 1 << 20  # of messages, uncompressed, that end a chunk
COMPRESSIONS = ("zstd", "lz4", "none")
CHUNK_HEAD = struct.Struct("<QQQII")  # start, end, uncompressed size, crc, length of the compression's name


def places_in_set(count: int) -> list[str]:
    """What the channels of a set's messages say, in their order; of a single message nothing."""
    return [SET_FIRST, *[SET_MORE] * (count - 2), SET_LAST] if count > 1 else [""] * count


class RecordingExists(JournalError):
    """There is a file of this name already."""


@dataclasses.dataclass
class _Chunk:
    """The one that is being filled."""

    parts: list[bytes] = dataclasses.field(default_factory=list)
    size: int = 0
    messages: int = 0
    start: int = U64_MAX
    end: int = 0
    entries: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # by channel: log time, offset...

    def add(self, data: bytes) -> None:
        self.parts.append(data)
        self.size += len(data)


class RecordingWriter:
    """Writes one recording. For one thread.

    about        what the file says of itself, beside its format
    compression  one of COMPRESSIONS
    Raises RecordingExists unless `replace`, JournalError if the file can't be made. After the first error of a write
    nothing more is written; what was flushed before stays whole.
    """

    def __init__(self, path: Path | str, about: Mapping[str, str], compression: str = "zstd", replace: bool = False,
                 files: Files | None = None) -> None:
        self.path = Path(path)
        self._files = files or OsFiles()
        self._compression = "" if compression == "none" else compression
        self._schemas: list[bytes] = []
        self._channels: list[bytes] = []
        self._schema_ids: dict[MessageSchema, int] = {}
        self._chunk = _Chunk()
        self._chunk_indexes, self._metadata_indexes = Pile(), Pile()
        self._counts: dict[int, int] = {}
        self._times = U64_MAX, 0
        self._chunks = self.messages = self.bytes = 0
        self._lock = -1
        head = MAGIC + encode(Header(profile="", library=LIBRARY))
        said = encode(Metadata(RECORDING_NAME, {"format": RECORDING_FORMAT, **about}))
        self._metadata_indexes.add(encode(MetadataIndex(offset=len(head), length=len(said), name=RECORDING_NAME)))
        self._metadata = 1
        data = _settled(head + said)
        try:
            if not replace and self.path.name in self._files.names(self.path.parent):
                raise RecordingExists(f"{self.path} exists already; name another file, or replace it with --force")
            if is_of_journal(self.path):
                raise JournalError(f"{self.path} is a file of a journal, and journals are never replaced: name another "
                                   "one")
            self._lock = self._take_lock()
            handle, size = begin(self._files, self.path, data)
            self._file = GrowingFile(self._files, handle, self.path, len(data), size)
            self._files.sync_directory(self.path.parent)
        except OSError as error:
            self._unlock()
            if isinstance(error, JournalError):
                raise
            raise self._failed(error, "") from error  # of a file that was never begun nothing is whole

    def _take_lock(self) -> int:
        """Of the file itself: of two that write into one file, each would destroy what the other has recorded. -1 where
        the file system has no locks, or the file can't be made, which is said next. Raises JournalError."""
        try:
            lock = self._files.lock(self.path)
        except OSError:
            return -1
        if lock is None:
            raise JournalError(f"{self.path} is being written by another recorder: end that first, or name another file"
                               )
        return lock

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            self._files.close(lock)

    @property
    def size(self) -> int:
        """Bytes that are in the file."""
        return self._file.end

    def channel(self, topic: str, schema: MessageSchema | None, metadata: Mapping[str, str]) -> int:
        """A new channel; its id. Raises JournalError if a file can have no more."""
        if len(self._channels) >= CHANNELS_MAX:
            raise JournalError(f"{self.path}: a recording has at most {CHANNELS_MAX} channels; record fewer topics")
        schema_id = 0
        if schema is not None:
            schema_id = self._schema_ids.get(schema, 0)
            if not schema_id:
                schema_id = self._schema_ids[schema] = len(self._schema_ids) + 1
                self._schemas.append(encode(Schema(id=schema_id, name=schema.name, encoding=schema.encoding,
                                                   data=schema.data)))
                self._chunk.add(self._schemas[-1])
        number = len(self._channels) + 1
        self._channels.append(encode(Channel(
            id=number, topic=topic, message_encoding="" if schema is None else schema.message_encoding,
            schema_id=schema_id, metadata=dict(metadata))))
        self._chunk.add(self._channels[-1])
        return number

    def add(self, channel: int, sequence: int, log_time: int, publish_time: int, payload: bytes) -> None:
        """Take in the next message. Raises JournalError if the disk refuses. A publish time that MCAP can't say, before
        1970, becomes the log time: that it had none."""
        chunk = self._chunk
        publish_time = publish_time if 0 <= publish_time <= U64_MAX else log_time
        chunk.entries.setdefault(channel, []).extend((log_time, chunk.size))
        chunk.add(MESSAGE.pack(Opcode.MESSAGE, MESSAGE_FIXED + len(payload), channel, sequence & 0xFFFFFFFF, log_time,
                               publish_time))
        chunk.add(payload)
        chunk.messages += 1
        chunk.start, chunk.end = min(chunk.start, log_time), max(chunk.end, log_time)
        self.messages += 1
        self.bytes += len(payload)
        if chunk.size >= CHUNK_BYTES:
            self.flush()

    def flush(self, sync: bool = False) -> None:
        """Have all that was added in the file, and with `sync` on the disk."""
        try:
            if self._chunk.messages:
                self._write(self._chunk)
                self._chunk = _Chunk()
            if sync:
                self._file.sync()
        except OSError as error:
            raise self._failed(error) from error

    def _write(self, chunk: _Chunk) -> None:
        body = b"".join(chunk.parts)
        packed, name = _packed(body, self._compression), self._compression.encode()
        content = CHUNK_HEAD.pack(chunk.start, chunk.end, len(body), zlib.crc32(body), len(name)) + name
        content += struct.pack("<Q", len(packed))
        head = RECORD.pack(Opcode.CHUNK, len(content) + len(packed)) + content
        offset = self._file.end
        cursor = offset + len(head) + len(packed)
        indexes, offsets = [], {}
        for channel, pairs in chunk.entries.items():
            offsets[channel] = cursor
            indexes.append(index_record(channel, pairs))
            cursor += len(indexes[-1])
            self._counts[channel] = self._counts.get(channel, 0) + len(pairs) // 2
        gap = _gap(cursor)
        self._file.show(head, [packed, *indexes, gap], cursor + len(gap))
        self._chunk_indexes.add(encode(ChunkIndex(
            message_start_time=chunk.start, message_end_time=chunk.end, chunk_start_offset=offset,
            chunk_length=len(head) + len(packed), message_index_offsets=offsets,
            message_index_length=sum(map(len, indexes)), compression=self._compression,
            compressed_size=len(packed), uncompressed_size=len(body))))
        self._times = min(self._times[0], chunk.start), max(self._times[1], chunk.end)
        self._chunks += 1

    def close(self, about: Mapping[str, str] | None = None) -> None:
        """Write what is left and the summary, on the disk when this returns. `about`: what is to be said at the end.
        Raises JournalError."""
        self.flush()
        try:
            said = encode(Metadata(END_NAME, dict(about))) if about else b""
            if said:
                self._metadata_indexes.add(encode(MetadataIndex(
                    offset=self._file.end, length=len(said), name=END_NAME)))
                self._metadata += 1
            self._file.end_with(said + self._closing(self._file.end + len(said)))
            self._unlock()
        except OSError as error:
            raise self._failed(error) from error

    def abandon(self) -> None:
        """Leave the file as it is: whole, without a summary. Idempotent."""
        self._file.abandon()
        self._unlock()

    def _closing(self, offset: int) -> bytes:
        """Everything from DataEnd, at `offset`, to the end of the file."""
        statistics = Statistics(
            attachment_count=0, channel_count=len(self._channels), channel_message_counts=self._counts,
            chunk_count=self._chunks, message_count=sum(self._counts.values()), message_end_time=self._times[1],
            message_start_time=min(self._times), metadata_count=self._metadata, schema_count=len(self._schemas))
        data_end = encode(DataEnd(0))
        start = position = offset + len(data_end)
        groups, offsets = [], []
        for opcode, data in ((Opcode.SCHEMA, b"".join(self._schemas)), (Opcode.CHANNEL, b"".join(self._channels)),
                             (Opcode.STATISTICS, encode(statistics)), (Opcode.CHUNK_INDEX, bytes(self._chunk_indexes)),
                             (Opcode.METADATA_INDEX, bytes(self._metadata_indexes))):
            if data:
                groups.append(data)
                offsets.append(encode(SummaryOffset(group_opcode=opcode, group_start=position,
                                                    group_length=len(data))))
                position += len(data)
        summary = b"".join(groups + offsets)
        footer = encode(Footer(summary_start=start, summary_offset_start=position, summary_crc=0))[:-4]
        return data_end + summary + footer + struct.pack("<I", zlib.crc32(footer, zlib.crc32(summary))) + MAGIC

    def _failed(self, error: OSError, rest: str = ". What it has up to here is whole") -> JournalError:
        return JournalError(f"cannot write the recording {self.path}: "
                            f"{reason_of(error, self.path, self._files)}{rest}")


def _gap(offset: int) -> bytes:
    """What goes before a record at `offset` so that its header lies in one sector."""
    if not crosses_sector(offset):
        return b""
    size = next(size for size in range(RECORD.size) if not crosses_sector(offset + RECORD.size + size))
    return RECORD.pack(PADDING, size) + bytes(size)


def _settled(data: bytes) -> bytes:
    return data + _gap(len(data))


def _packed(body: bytes, compression: str) -> bytes:
    if compression == "zstd":
        import zstandard

        packed: bytes = zstandard.compress(body)
    elif compression == "lz4":
        import lz4.frame

        packed = lz4.frame.compress(body)
    else:
        return body
    return packed


__all__ = ["COMPRESSIONS", "END_NAME", "RECORDING_FORMAT", "RECORDING_NAME", "SET_FIRST", "SET_LAST",
           "SET_MORE", "RecordingExists", "RecordingWriter", "places_in_set"]
