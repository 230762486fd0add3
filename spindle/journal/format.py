"""The journal's file format: standard MCAP, arranged so that the file is whole after every write.

    magic, Header, Schema, Metadata "spindle.journal"        the head, written once
    { Chunk, Message Index..., [Metadata "spindle.keys",] Metadata "spindle.commit" }   one group commit
    padding | DataEnd, Footer, magic                         while it is being written (live)
    DataEnd, Summary, Summary Offsets, Footer, magic         once it is closed

Why padding: an MCAP file must end with a footer, and a file that grows at its end has none until the write is through.
So the file always extends beyond its data: a record of a private opcode (0x80, which readers skip) covers the unused
bytes up to a footer that is already there. A commit is written inside the padding, and becomes visible by one write of
nine bytes, which turn the padding's record header into the chunk's. Those nine bytes never cross a sector. The process
may be killed between any two writes, and the `mcap` library still reads a whole file that ends with a whole commit.

Why a commit record: MCAP has a CRC for a chunk's content, none for what is around it. The commit record's `crc` covers
the chunk's header, the indexes and itself; the chunk's own CRC covers the rest. The record also holds what MCAP has no
field for. Of each message:

    sender, writer   metadata of its channel: there is one channel per writer (and type that it has written), all with
                     the topic's name. The number of a writer on a host without a node has 48 bits; the low 16 are what
                     its messages carry as writer
    tag              metadata of its channel, missing if it is 0. Tagged messages have channels of their own, without
                     schema, because what they hold need not be a sample
    type             the schema of its channel; 0 if its payload is of none of the types that the head has
    view id          `view` of its commit; a commit never spans two views
    sequence number  `sequence` of its commit, moved on to the next number whose low 32 bits are the message's sequence
    index            place in the node's delivery log: `index` of its commit plus its place in the chunk. Where a later
                     life goes on with a file, the index goes on, too
    key              of a topic whose messages have keys: in the Metadata record "spindle.keys" of its commit, as 16 hex
                     digits for each message, in their order. Without that record all are 0
    position         place in this journal, over all files: `position` of its commit plus its place in the chunk
    log_time         time of delivery at this node, never falling within a file, so that reading by time keeps the order
    publish_time     the writer's timestamp, or log_time if it had none

A file's head may have `relayed`: pairs "writer:timestamp" in hex, of writers on hosts without a node, as far as the
files before it go (see `spindle.journal.relays`). What writers have said of the types of their samples is there, too:
in "type." with the type's key in hex (`spindle.group.types`), as base64. A file has at least the types of its own
samples; when one comes that it lacks, it ends, and the next one begins. Readers of the format that don't know these
pass over them.

Schemas are those that the writers say along with their types (`spindle.group.schemas`), with ids from 1; a file whose
writers have said none has one with the type's name alone. What MCAP has no place for is in the head: "message_encoding"
and "mark" of the first, with a dot and its id behind it of each other. Format 1 has one schema, format 2 several.

Rules: other integers in Metadata are decimal text. `crc` is the last value, eight hex digits, over all bytes from the
start of the file (head) or commit up to itself, the chunk's content left out. Records of other kinds, compression and
attachments don't occur. Source: MCAP specification, version 0.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

from mcap.data_stream import ReadDataStream, RecordBuilder
from mcap.exceptions import McapError
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

from spindle import __version__
from spindle.group.schemas import MessageSchema
from spindle.group.types import key_of

FORMATS = ("1", "2")  # of what this module lays down beyond MCAP itself: with one schema, and with several
LIBRARY = f"spindle {__version__}"
MAGIC = b"\x89MCAP0\r\n"
PADDING = 0x80  # opcode of the record that covers unused bytes
HEAD_NAME = "spindle.journal"
COMMIT_NAME = "spindle.commit"
KEYS_NAME = "spindle.keys"
TYPE_PREFIX = "type."  # of the names of types in a head
KEY_DIGITS = 16
SECTOR = 512  # bytes a disk writes whole or not at all
PAGE = 4096  # bytes the kernel copies without looking for signals
CHANNELS_MAX = 65_000  # channel ids have 16 bits
TAG_SHIFT = 48  # where a channel's writer goes together with the tag of its messages, the tag is above so many bits
WRITER_MASK = (1 << TAG_SHIFT) - 1
TAG_MAX = 0xFF
TYPE_SHIFT = 56  # and above so many bits stands which type: its schema's id less 1. Of tagged messages that is 0
NO_TYPE = 0xFF  # the channel has no schema
SEQUENCE_SPAN = 1 << 32  # sequence numbers of one commit lie closer together than this
HEAD_RECORD_MAX = 64 << 20  # bytes; a head record that claims more is damaged
COMMIT_RECORD_MAX = 4096  # bytes, likewise
PACKED_BYTES = 32 << 10  # of records that are packed at a time, in a fraction of a millisecond
U64_MAX = (1 << 64) - 1  # of a time, a number, a place

RECORD = struct.Struct("<BQ")  # opcode, bytes of content
CHUNK = struct.Struct("<BQQQQIIQ")  # opcode, bytes of content, start, end, uncompressed size, crc, 0, size; then data
CHUNK_FIXED = CHUNK.size - RECORD.size  # bytes of a chunk's content before its data
MESSAGE = struct.Struct("<BQHIQQ")  # opcode, bytes of content, channel, sequence, log time, publish time; then payload
MESSAGE_FIXED = MESSAGE.size - RECORD.size
INDEX = struct.Struct("<BQHI")  # opcode, bytes of content, channel, bytes of entries; then (log time, offset) pairs
INDEX_ENTRY = 16  # bytes


class Damage(ValueError):
    """Bytes are not what this format says. `offset` is where in the file, `reason` what is wrong."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {offset:,}")
        self.offset = offset
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Head:
    """What a file says of itself and of where it stands in its journal."""

    topic: str
    type_name: str
    type_hash: str  # hex
    node_id: int
    number: int  # of the file within the journal, from 1
    file_id: str  # random, 16 hex digits; a commit carries it, so bytes of another file are never taken for its own
    position: int  # of the first message
    group: str  # life of the group; order numbers of different groups don't compare; "" = unknown, unlike all others
    last_view: int  # of the last message before this file; -1 if there is none
    last_sequence: int
    created_ns: int  # UTC
    schemas: tuple[MessageSchema, ...]  # of its types, at least one
    relayed: tuple[tuple[int, int], ...] = ()  # of the files before this one, see `spindle.journal.relays`
    types: tuple[bytes, ...] = ()  # of the samples in this file, and perhaps of others; see `spindle.group.types`

    def type_of(self, payload: bytes) -> int:
        """Which of the schemas an untagged message is of, as channels have it; NO_TYPE if it is of none."""
        return next((place for place, one in enumerate(self.schemas) if one.fits(payload)), NO_TYPE)


@dataclasses.dataclass(frozen=True)
class CommitRecord:
    """What a commit says of its messages. Numbers are those of the first message, but for `last_sequence`."""

    view_id: int
    sequence: int
    last_sequence: int
    index: int
    position: int
    count: int  # messages
    channels: int  # new Channel records, which stand before the messages in the chunk
    length: int  # bytes from the chunk's record header to this record


@dataclasses.dataclass(frozen=True)
class CommitLayout:
    """Where the parts of a commit lie in the file; all a summary needs of it. Offsets from the start of the file."""

    offset: int  # of the chunk's record header
    body_size: int
    body_crc: int
    start_time: int  # log time of the first message, ns
    end_time: int  # of the last
    index_offsets: dict[int, int]  # channel id -> its Message Index record
    index_length: int  # bytes of all of them
    counts: dict[int, int]  # channel id -> messages
    channel_records: list[bytes]  # the new ones, whole
    record_length: int  # bytes of the commit record
    record: CommitRecord
    keys_length: int = 0  # bytes of the record with the keys, just before the commit record; 0: there is none
    keys: tuple[int, ...] = ()  # of the messages; empty if all are 0

    @property
    def chunk_length(self) -> int:
        """Bytes of the chunk with its record header."""
        return CHUNK.size + self.body_size

    @property
    def record_offset(self) -> int:
        """Where the commit record begins."""
        return self.offset + self.record.length

    @property
    def end(self) -> int:
        """Where the commit ends and the next record begins."""
        return self.record_offset + self.record_length


def encode(record: Any) -> bytes:
    """Bytes of one record of `mcap.records`."""
    builder = RecordBuilder()
    record.write(builder)
    data: bytes = builder.end()
    return data


LIVE_TRAILER = encode(DataEnd(0)) + encode(Footer(0, 0, 0)) + MAGIC
FOOTER_SIZE = len(encode(Footer(0, 0, 0)))


def timestamp_of(log_time: int, publish_time: int) -> int:
    """The timestamp that a message came with, UTC ns; 0: it had none. (One that is to the nanosecond when it was
    delivered counts as none, too.)"""
    return publish_time if publish_time != log_time else 0


def padding_header(offset: int, file_size: int) -> bytes:
    """Record header at `offset` for the padding of a live file of `file_size` bytes."""
    return RECORD.pack(PADDING, file_size - len(LIVE_TRAILER) - offset - RECORD.size)


def crosses_sector(offset: int) -> bool:
    """True if a record header at `offset` would not lie within one sector."""
    return offset % SECTOR > SECTOR - RECORD.size


def _sealed(name: str, values: dict[str, str], offset: int, crc: int) -> bytes:
    """A Metadata record for `offset` that ends with its CRC (continuing `crc`) and not just before a sector's end."""
    data = encode(Metadata(name, {**values, "crc": "00000000"}))
    if crosses_sector(offset + len(data)):
        data = encode(Metadata(name, {**values, "pad": "", "crc": "00000000"}))
    return data[:-8] + b"%08x" % zlib.crc32(data[:-8], crc)


def check_seal(data: bytes, crc: int, offset: int) -> None:
    """Raise Damage unless the Metadata record `data` ends with its CRC; `crc` is that of what it covers before it."""
    if data[-8:] != b"%08x" % zlib.crc32(data[:-8], crc):
        raise Damage(offset, "the checksum does not match")


def parse_metadata(data: bytes, name: str, offset: int) -> dict[str, str]:
    """Values of the whole Metadata record `data`; Damage unless it is well-formed and called `name`."""
    try:
        metadata = Metadata.read(ReadDataStream(BytesIO(data[RECORD.size :])))
    except (McapError, struct.error, UnicodeDecodeError) as error:
        raise Damage(offset, f"a Metadata record is malformed ({error})") from None
    if metadata.name != name:
        raise Damage(offset, f"a Metadata record is called {metadata.name[:40]!r} instead of {name!r}")
    return metadata.metadata


def encode_head(head: Head) -> bytes:
    """The file from its magic to the end of the Metadata record "spindle.journal"."""
    data = MAGIC + encode(Header(profile="", library=LIBRARY))
    for number, one in enumerate(head.schemas, 1):
        data += encode(Schema(id=number, name=one.name, encoding=one.encoding, data=one.data))
    values = {
        "format": FORMATS[len(head.schemas) > 1],
        "topic": head.topic,
        "type": head.type_name,
        "type_hash": head.type_hash,
        "node": str(head.node_id),
        "number": str(head.number),
        "file": head.file_id,
        "position": str(head.position),
        "group": head.group,
        "last_view": str(head.last_view),
        "last_sequence": str(head.last_sequence),
        "created": str(head.created_ns),
    }
    for number, one in enumerate(head.schemas, 1):
        behind = f".{number}" if number > 1 else ""
        values[f"message_encoding{behind}"] = one.message_encoding
        if one.mark:
            values[f"mark{behind}"] = one.mark.hex()
    if head.relayed:
        values["relayed"] = " ".join(f"{writer:x}:{source_ns:x}" for writer, source_ns in head.relayed)
    for said in head.types:
        values[TYPE_PREFIX + key_of(said).hex()] = b64encode(said).decode()
    return data + _sealed(HEAD_NAME, values, len(data), zlib.crc32(data))


def parse_head(values: dict[str, str], schema_records: Sequence[bytes], offset: int) -> Head:
    """Head from the values of its Metadata record and its Schema records, all of them already checked by CRC."""
    if values.get("format") not in FORMATS:
        raise Damage(offset, f"the journal has format {values.get('format')!r}; this Spindle reads "
                             f"{' and '.join(map(repr, FORMATS))}: read it with the version that wrote it")
    try:
        return Head(
            topic=values["topic"],
            type_name=values["type"],
            type_hash=values["type_hash"],
            node_id=int(values["node"]),
            number=int(values["number"]),
            file_id=values["file"],
            position=int(values["position"]),
            group=values["group"],
            last_view=int(values["last_view"]),
            last_sequence=int(values["last_sequence"]),
            created_ns=int(values["created"]),
            schemas=tuple(_parse_schema(values, number, data) for number, data in enumerate(schema_records, 1)),
            relayed=tuple(_parse_relayed(values.get("relayed", ""))),
            types=tuple(b64decode(one, validate=True) for name, one in values.items() if name.startswith(TYPE_PREFIX)),
        )
    except (KeyError, ValueError, struct.error, McapError) as error:
        raise Damage(offset, f"the journal's head is malformed ({error!r})") from None


def _parse_schema(values: dict[str, str], number: int, data: bytes) -> MessageSchema:
    """Raises what parse_head() expects."""
    schema = Schema.read(ReadDataStream(BytesIO(data[RECORD.size :])))
    behind = f".{number}" if number > 1 else ""
    return MessageSchema(schema.name, schema.encoding, schema.data, values[f"message_encoding{behind}"],
                         bytes.fromhex(values.get(f"mark{behind}", "")))


def _parse_relayed(text: str) -> Iterator[tuple[int, int]]:
    """Raises ValueError."""
    for one in text.split():
        writer, source_ns = one.split(":")
        yield int(writer, 16), int(source_ns, 16)


def encode_channel(head: Head, channel_id: int, sender: int, writer: int) -> bytes:
    """The Channel record of the messages of one writer, `writer` on node `sender`, with one tag or type: see TAG_SHIFT
    and TYPE_SHIFT."""
    tag, type_ = writer >> TAG_SHIFT & TAG_MAX, writer >> TYPE_SHIFT
    metadata = {"sender": str(sender), "writer": str(writer & WRITER_MASK)}
    known = not tag and type_ != NO_TYPE
    return encode(
        Channel(
            id=channel_id,
            topic=head.topic,
            message_encoding=head.schemas[type_].message_encoding if known else "",
            schema_id=type_ + 1 if known else 0,
            metadata={**metadata, "tag": str(tag)} if tag else metadata,
        )
    )


def parse_channel(data: bytes, offset: int) -> tuple[int, int, int]:
    """(channel id, sender, writer with tag and type) of the whole Channel record `data`."""
    try:
        channel = Channel.read(ReadDataStream(BytesIO(data[RECORD.size :])))
        writer, tag = int(channel.metadata["writer"]), int(channel.metadata.get("tag", "0"))
        if not 0 <= writer <= WRITER_MASK or not 0 <= tag <= TAG_MAX:
            raise ValueError(f"writer {writer} with tag {tag}")
        if channel.schema_id > NO_TYPE:
            raise ValueError(f"schema {channel.schema_id}")
        type_ = 0 if tag else NO_TYPE if not channel.schema_id else channel.schema_id - 1
        return channel.id, int(channel.metadata["sender"]), type_ << TYPE_SHIFT | tag << TAG_SHIFT | writer
    except (McapError, struct.error, ValueError, KeyError) as error:
        raise Damage(offset, f"a Channel record is malformed ({error!r})") from None


def encode_keys(keys: Sequence[int]) -> bytes:
    """The record with the keys of a commit's messages; empty if all are 0."""
    if not any(keys):
        return b""
    return encode(Metadata(KEYS_NAME, {"keys": "".join(f"{key:0{KEY_DIGITS}x}" for key in keys)}))


def parse_keys(data: bytes, offset: int) -> tuple[int, ...]:
    """The keys in the whole record `data`; Damage if it is malformed."""
    text = parse_metadata(data, KEYS_NAME, offset).get("keys", "")
    try:
        packed = bytes.fromhex(text)
        return struct.unpack(f">{len(packed) // 8}Q", packed)
    except (ValueError, struct.error):
        raise Damage(offset, "the keys of a commit are malformed") from None


def encode_commit_record(head: Head, record: CommitRecord, offset: int, crc: int) -> bytes:
    """The commit record at `offset`; `crc` is that of the commit's chunk header and indexes."""
    values = {
        "file": head.file_id,
        "view": str(record.view_id),
        "sequence": str(record.sequence),
        "last_sequence": str(record.last_sequence),
        "index": str(record.index),
        "position": str(record.position),
        "count": str(record.count),
        "channels": str(record.channels),
        "length": str(record.length),
    }
    return _sealed(COMMIT_NAME, values, offset, crc)


def parse_commit_record(values: dict[str, str], head: Head, offset: int) -> CommitRecord:
    """What the values of a commit record say; Damage if they make no sense or belong to another file."""
    if values.get("file") != head.file_id:
        raise Damage(offset, "a commit belongs to another file")
    try:
        record = CommitRecord(
            view_id=int(values["view"]),
            sequence=int(values["sequence"]),
            last_sequence=int(values["last_sequence"]),
            index=int(values["index"]),
            position=int(values["position"]),
            count=int(values["count"]),
            channels=int(values["channels"]),
            length=int(values["length"]),
        )
    except (KeyError, ValueError) as error:
        raise Damage(offset, f"a commit record is malformed ({error!r})") from None
    if record.count < 1 or min(record.view_id, record.sequence, record.index, record.position, record.channels) < 0:
        raise Damage(offset, "a commit record counts less than nothing")
    if max(record.view_id, record.sequence, record.last_sequence, record.index, record.position,
           record.count) > U64_MAX:
        raise Damage(offset, "a commit record counts further than 64 bits")
    return record


class Pile:
    """Records that are gathered one by one and wanted all at once, packed meanwhile. Index records are much alike: of
    the 140 to 160 bytes that there are of each commit 35 to 45 are left."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._last = bytearray()

    def add(self, data: bytes) -> None:
        self._last += data
        if len(self._last) >= PACKED_BYTES:
            self._packed.append(zlib.compress(self._last, 1))
            self._last = bytearray()

    def __bytes__(self) -> bytes:
        return b"".join([*map(zlib.decompress, self._packed), self._last])


class Summary:
    """Gathers, commit by commit, what a closed file says about itself after its data."""

    def __init__(self, head_bytes: bytes, schema_records: Sequence[bytes], head_record_length: int) -> None:
        self._schemas = schema_records
        self._channels: list[bytes] = []
        self._chunks = Pile()  # Chunk Index records, ready to be written
        self._metadata = Pile()  # Metadata Index records, likewise
        self._counts: dict[int, int] = {}
        self._start_time = 0
        self._end_time = 0
        self._keyed = 0  # commits with keys
        self.commits = 0
        self.messages = 0
        self._add_metadata(HEAD_NAME, len(head_bytes) - head_record_length, head_record_length)

    @property
    def channels(self) -> int:
        """Channel records so far."""
        return len(self._channels)

    @property
    def times(self) -> tuple[int, int]:
        """Log times of the first and the last message, ns; zeros if there is none."""
        return self._start_time, self._end_time

    def _add_metadata(self, name: str, offset: int, length: int) -> None:
        self._metadata.add(encode(MetadataIndex(offset=offset, length=length, name=name)))

    def add(self, layout: CommitLayout) -> None:
        """Take in the next commit."""
        self._chunks.add(encode(ChunkIndex(
            message_start_time=layout.start_time,
            message_end_time=layout.end_time,
            chunk_start_offset=layout.offset,
            chunk_length=layout.chunk_length,
            message_index_offsets=layout.index_offsets,
            message_index_length=layout.index_length,
            compression="",
            compressed_size=layout.body_size,
            uncompressed_size=layout.body_size,
        )))
        if layout.keys_length:
            self._add_metadata(KEYS_NAME, layout.record_offset - layout.keys_length, layout.keys_length)
            self._keyed += 1
        self._add_metadata(COMMIT_NAME, layout.record_offset, layout.record_length)
        self._channels += layout.channel_records
        for channel, count in layout.counts.items():
            self._counts[channel] = self._counts.get(channel, 0) + count
        self._start_time = self._start_time if self.commits else layout.start_time
        self._end_time = layout.end_time
        self.commits += 1
        self.messages += layout.record.count

    def closing(self, offset: int) -> bytes:
        """Everything from DataEnd, at `offset`, to the end of the file."""
        statistics = Statistics(
            attachment_count=0,
            channel_count=len(self._channels),
            channel_message_counts=self._counts,
            chunk_count=self.commits,
            message_count=self.messages,
            message_end_time=self._end_time,
            message_start_time=self._start_time,
            metadata_count=self.commits + self._keyed + 1,
            schema_count=len(self._schemas),
        )
        groups = (
            (Opcode.SCHEMA, b"".join(self._schemas)),
            (Opcode.CHANNEL, b"".join(self._channels)),
            (Opcode.STATISTICS, encode(statistics)),
            (Opcode.CHUNK_INDEX, bytes(self._chunks)),
            (Opcode.METADATA_INDEX, bytes(self._metadata)),
        )
        data_end = encode(DataEnd(0))
        start = position = offset + len(data_end)
        offsets = []
        for opcode, data in groups:
            if data:
                offsets.append(encode(SummaryOffset(group_opcode=opcode, group_start=position, group_length=len(data))))
                position += len(data)
        summary = b"".join([data for _, data in groups] + offsets)
        # The CRC goes over the summary and the footer up to itself, which is its last four bytes.
        footer = encode(Footer(summary_start=start, summary_offset_start=position, summary_crc=0))
        crc = zlib.crc32(footer[:-4], zlib.crc32(summary))
        footer = footer[:-4] + struct.pack("<I", crc)
        return data_end + summary + footer + MAGIC
