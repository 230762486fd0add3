"""Reading a journal file without trusting it: every byte that matters is checked before it is used.

Why not the `mcap` library's reader: it believes lengths, skips what it doesn't know and ends where the file ends. Here
the question is exactly where the good data ends, and whether what follows is a crash's torn tail or damage.

Verdicts, in `Scan.state`:
  live      whole; ends with padding and a footer, as a node leaves it that is running or was killed
  closed    whole; ends with a summary
  torn      the bytes after the last whole commit make no sense, and no whole commit follows: what a crash can leave.
            No message that was acknowledged is in them, unless the file was damaged or cut short at its end later
  corrupt   damage with good data behind it: no crash does that, and nothing may be cut off silently

Rules: nothing here writes. Reading goes by `Files.read` and not by a mapping, because a file may be cut short by its
writer while it is being read.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mcap.opcode import Opcode

from spindle.journal.errors import NotAJournal
from spindle.journal.files import Files
from spindle.journal.format import (
    CHUNK,
    CHUNK_FIXED,
    COMMIT_NAME,
    COMMIT_RECORD_MAX,
    FOOTER_SIZE,
    HEAD_NAME,
    HEAD_RECORD_MAX,
    INDEX,
    INDEX_ENTRY,
    KEYS_NAME,
    LIVE_TRAILER,
    MAGIC,
    MESSAGE,
    PADDING,
    RECORD,
    CommitLayout,
    CommitRecord,
    Damage,
    Head,
    Summary,
    check_seal,
    parse_channel,
    parse_commit_record,
    parse_head,
    parse_keys,
    parse_metadata,
)
from spindle.journal.names import parse

METADATA_NAME = slice(RECORD.size + 4, RECORD.size + 4 + 64)  # where its name begins, in a record
CHUNK_OPCODE = bytes([Opcode.CHUNK])
SEARCH_BLOCK = 4 << 20  # bytes read at a time when looking for commits behind damage
DATA_END_CONTENT = 4  # bytes


class State(str, enum.Enum):
    """What a file is found to be; see the module's text."""

    LIVE = "live"  # whole, not closed
    CLOSED = "closed"  # whole, with its summary
    TORN = "torn"  # a tail that a crash left unfinished
    CORRUPT = "corrupt"  # damaged before its end


class Scan:
    """One file, read commit by commit.

    The constructor reads the head (raises Damage, or NotAJournal if the file was never a journal). Iterating
    `commits()` to its end fills in the rest:

    head, summary       what the file says of itself; what its whole commits add up to
    end                 where the whole commits end
    state, damage       the verdict, and what was found at `end` if it is TORN or CORRUPT
    body_end            where the file's own last record ends, if it is whole; `size` may be larger (see format)
    first, last         layouts of the first and the last whole commit, or None
    """

    def __init__(self, files: Files, handle: int, path: Path) -> None:
        self._files = files
        self._handle = handle
        self.path = path
        self.size = files.size(handle)
        self.state = State.LIVE
        self.damage: Damage | None = None
        self.first: CommitLayout | None = None
        self.last: CommitLayout | None = None
        self.skipped: list[tuple[int, int]] = []  # damaged stretches (from, to) that salvaging jumped over
        self._read_head()
        self.end = self.body_end = len(self.head_bytes)

    def _read_head(self) -> None:
        try:
            begin = self._files.read(self._handle, len(MAGIC), 0)
        except IsADirectoryError:
            raise self._foreign("is not a journal, but a directory") from None
        if begin != MAGIC:
            raise self._foreign("is not a journal: it does not begin as an MCAP file does")
        offset, parts = len(MAGIC), [MAGIC]
        follows = {Opcode.HEADER: (Opcode.SCHEMA,), Opcode.SCHEMA: (Opcode.SCHEMA, Opcode.METADATA)}
        wanted: tuple[int, ...] = (Opcode.HEADER,)
        while wanted:
            found, data = self.record(offset, HEAD_RECORD_MAX)
            if found not in wanted:
                # Our own head always has these three in this order; anything else is somebody else's file.
                raise self._foreign(
                    f"is an MCAP file, but not a journal of Spindle (or its head is damaged: the record at byte "
                    f"{offset} has opcode {found:#04x} instead of {int(wanted[-1]):#04x})")
            offset += len(data)
            parts.append(data)
            wanted = follows.get(Opcode(found), ())
        start = offset - len(parts[-1])
        if HEAD_NAME.encode() not in parts[-1][:64]:
            raise self._foreign("is an MCAP file, but not a journal of Spindle")
        check_seal(parts[-1], zlib.crc32(b"".join(parts[:-1])), start)
        self.head: Head = parse_head(parse_metadata(parts[-1], HEAD_NAME, start), parts[2:-1], start)
        self.head_bytes = b"".join(parts)
        self.summary = Summary(self.head_bytes, parts[2:-1], len(parts[-1]))

    def _foreign(self, what: str) -> NotAJournal:
        """With the way out, if the file has a journal's name: then its node takes it for one."""
        way_out = "" if parse(self.path.name) is None else (
            ". If it was one, put back a copy. `spindle journal repair --topic TOPIC "
            f"{self.path.parent}` moves it away: the node then gets what it lacks from the others")
        return NotAJournal(f"{self.path} {what}{way_out}")

    def record(self, offset: int, content_max: int) -> tuple[int, bytes]:
        """Opcode and bytes of the whole record at `offset`; Damage if it doesn't fit into the file or the limit."""
        header = self._files.read(self._handle, RECORD.size, offset)
        if len(header) < RECORD.size:
            raise Damage(offset, "the file ends within a record")
        opcode, length = RECORD.unpack(header)
        if length > content_max:
            raise Damage(offset, f"a record with opcode {opcode:#04x} claims {length:,} bytes")
        data = self._files.read(self._handle, RECORD.size + length, offset)
        if len(data) < RECORD.size + length:
            raise Damage(offset, "the file ends within a record")
        return opcode, data

    def commits(
        self, salvage: bool = False, progress: Callable[[int], None] | None = None
    ) -> Iterator[tuple[CommitLayout, bytes]]:
        """The whole commits in order, each with its chunk's content. Then the verdict stands.

        salvage   go on behind damage with the next whole commit (its position says what is missing)
        progress  called with the number of bytes read so far, once per commit
        """
        whole = True  # nothing was jumped over before the next commit
        while True:
            header = self._files.read(self._handle, RECORD.size, self.end)
            try:
                if header[:1] != CHUNK_OPCODE:
                    self._check_trailer(header)
                    return
                layout, body = self._commit(self.end)
                if whole:
                    self._check_follows(layout.record)
            except Damage as damage:
                if self._moved_on(header):
                    continue
                if self.damage is None:
                    self.damage = damage
                following = self._judge(damage)
                if not salvage or following is None:
                    return
                self.skipped.append((self.end, following))
                self.end = following
                whole = False
                continue
            whole = True
            self.end = self.body_end = layout.end
            self.first = self.first or layout
            self.last = layout
            self.summary.add(layout)
            if progress is not None:
                progress(self.end)
            yield layout, body

    def _moved_on(self, header: bytes) -> bool:
        """True if a running writer changed the file since `header` was read at `end`, so that it must be read anew."""
        size = self._files.size(self._handle)
        changed = size != self.size or self._files.read(self._handle, RECORD.size, self.end) != header
        self.size = size
        return changed

    @property
    def next_position(self) -> int:
        """Position of the message after the last whole commit."""
        return self.last.record.position + self.last.record.count if self.last else self.head.position

    def _check_follows(self, record: CommitRecord) -> None:
        """Raise Damage unless the commit at `end` goes on exactly where the last one ended."""
        if record.position != self.next_position:
            raise Damage(self.end, f"message {self.next_position:,} of the journal should follow, "
                                   f"but {record.position:,} does")
        before = self.last.record if self.last else None
        order = (before.view_id, before.last_sequence) if before else (self.head.last_view, self.head.last_sequence)
        if (record.view_id, record.sequence) <= order:
            raise Damage(self.end, f"the order falls back from view {order[0]}, sequence {order[1]} to view "
                                   f"{record.view_id}, sequence {record.sequence}")
        if before and record.index != before.index + before.count:
            raise Damage(self.end, f"index {before.index + before.count} should follow, but {record.index} does")

    def run(self, progress: Callable[[int], None] | None = None) -> Scan:
        """Read all commits, keep none; returns self with its verdict."""
        for _ in self.commits(progress=progress):
            pass
        return self

    def _commit(self, offset: int) -> tuple[CommitLayout, bytes]:
        """Read and check the commit at `offset`, whatever its place in the order."""
        header = self._files.read(self._handle, CHUNK.size, offset)
        if len(header) < CHUNK.size:
            raise Damage(offset, "the file ends within a chunk")
        opcode, length, start_time, end_time, size, crc, compression, data_size = CHUNK.unpack(header)
        if opcode != Opcode.CHUNK or compression or size != data_size or length != CHUNK_FIXED + size:
            raise Damage(offset, "a chunk's header is damaged")
        if offset + CHUNK.size + size > self.size:
            raise Damage(offset, "the file ends within a chunk")
        body = self._files.read(self._handle, size, offset + CHUNK.size)
        if len(body) < size:
            raise Damage(offset, "the file ends within a chunk")
        if zlib.crc32(body) != crc:
            raise Damage(offset, "a chunk's checksum does not match")
        cursor = offset + CHUNK.size + size
        seal = zlib.crc32(header)
        index_offsets: dict[int, int] = {}
        counts: dict[int, int] = {}
        index_start = cursor
        while True:
            opcode, data = self.record(cursor, max(size, COMMIT_RECORD_MAX))  # nor are keys longer than their messages
            if opcode != Opcode.MESSAGE_INDEX:
                break
            if len(data) < INDEX.size:
                raise Damage(cursor, "a message index is damaged")
            _, _, channel, entries = INDEX.unpack_from(data)
            if entries != len(data) - INDEX.size or entries % INDEX_ENTRY or channel in counts:
                raise Damage(cursor, "a message index is damaged")
            index_offsets[channel] = cursor
            counts[channel] = entries // INDEX_ENTRY
            seal = zlib.crc32(data, seal)
            cursor += len(data)
        index_end = cursor
        keys: tuple[int, ...] = ()
        if opcode == Opcode.METADATA and data[METADATA_NAME].startswith(KEYS_NAME.encode()):
            keys = parse_keys(data, cursor)
            seal = zlib.crc32(data, seal)
            cursor += len(data)
            opcode, data = self.record(cursor, COMMIT_RECORD_MAX)
        if opcode != Opcode.METADATA:
            raise Damage(cursor, f"a record with opcode {opcode:#04x} stands where a commit should end")
        check_seal(data, seal, offset)
        record = parse_commit_record(parse_metadata(data, COMMIT_NAME, cursor), self.head, cursor)
        if record.length != cursor - offset or sum(counts.values()) != record.count or len(keys) not in (
                0, record.count):
            raise Damage(offset, "a commit does not agree with its chunk")
        channel_records = _leading_channels(body, record.channels, offset)
        if record.count * MESSAGE.size > size - sum(map(len, channel_records)):
            raise Damage(offset, "a chunk holds fewer messages than its commit says")
        layout = CommitLayout(
            offset=offset,
            body_size=size,
            body_crc=crc,
            start_time=start_time,
            end_time=end_time,
            index_offsets=index_offsets,
            index_length=index_end - index_start,
            counts=counts,
            channel_records=channel_records,
            record_length=len(data),
            record=record,
            keys_length=cursor - index_end,
            keys=keys,
        )
        return layout, body

    def _check_trailer(self, header: bytes) -> None:
        """Check what follows the last commit, beginning with the record header `header`; sets `state`, `body_end`."""
        if len(header) < RECORD.size:
            raise Damage(self.end, "the file ends without a footer")
        opcode, length = RECORD.unpack(header)
        if opcode == PADDING:
            trailer = self.end + RECORD.size + length
            if length > self.size or self._files.read(self._handle, len(LIVE_TRAILER), trailer) != LIVE_TRAILER:
                raise Damage(self.end, "the padding does not lead to a footer")
            self.body_end = trailer + len(LIVE_TRAILER)
            self.state = State.LIVE
        elif opcode == Opcode.DATA_END:
            closing = self.summary.closing(self.end)
            if self.damage is None and self._files.read(self._handle, len(closing), self.end) != closing:
                raise Damage(self.end, "the summary does not agree with the data")
            self.body_end = self.end + len(closing)
            self.state = State.CLOSED if self.damage is None else State.CORRUPT
        else:
            raise Damage(self.end, f"a record with opcode {opcode:#04x} stands where a chunk or the end should be")
        # A file that was just being extended or closed may be longer, up to another footer: whole all the same.
        if self.size != self.body_end:
            tail = self.size - len(LIVE_TRAILER)
            if tail < self.body_end or self._read_exactly(tail, len(LIVE_TRAILER)) != LIVE_TRAILER:
                raise Damage(self.end, "the file does not end with its footer")

    def _read_exactly(self, offset: int, size: int) -> bytes:
        data = self._files.read(self._handle, size, offset)
        if len(data) < size:
            raise Damage(offset, "the file ends within a record")
        return data

    def _judge(self, damage: Damage) -> int | None:
        """Decide whether `damage` at `end` is a torn tail; returns where the next whole commit begins, if any does."""
        following = self._find_commit(self.end)  # whole in itself, but out of place, counts too
        corrupt = following is not None or (damage.offset < self._closing_start())
        self.state = State.CORRUPT if corrupt or self.state is State.CORRUPT else State.TORN
        return following

    def _closing_start(self) -> int:
        """Where the intact summary of a closed file begins, or 0 if there is none."""
        tail = self._files.read(self._handle, FOOTER_SIZE + len(MAGIC), max(0, self.size - FOOTER_SIZE - len(MAGIC)))
        if len(tail) < FOOTER_SIZE + len(MAGIC) or tail[-len(MAGIC) :] != MAGIC:
            return 0
        opcode, length, start, _, crc = struct.unpack_from("<BQQQI", tail)
        footer_offset = self.size - len(tail)
        if opcode != Opcode.FOOTER or length != 20 or not 0 < start <= footer_offset:
            return 0
        summary = self._files.read(self._handle, footer_offset - start, start)
        if zlib.crc32(tail[: FOOTER_SIZE - 4], zlib.crc32(summary)) != crc:
            return 0
        return int(start) - RECORD.size - DATA_END_CONTENT

    def _find_commit(self, offset: int) -> int | None:
        """Start of the first whole commit of this file from `offset` on that holds messages not seen so far.

        Finds the commit records by their name, so it also works where a damaged length leads nowhere.
        """
        name = COMMIT_NAME.encode()
        lead = RECORD.size + 4  # from the start of the commit record to its name
        block_start = offset
        while block_start < self.size:
            block = self._files.read(self._handle, SEARCH_BLOCK + len(name) - 1, block_start)
            found = block.find(name)
            while found >= 0:
                start = self._commit_of_record(block_start + found - lead, offset)
                if start is not None:
                    return start
                found = block.find(name, found + 1)
            block_start += SEARCH_BLOCK
        return None

    def _commit_of_record(self, record_offset: int, low: int) -> int | None:
        """Start of the commit that the bytes at `record_offset` end, if they do."""
        try:
            if record_offset < low:
                return None
            opcode, data = self.record(record_offset, COMMIT_RECORD_MAX)
            if opcode != Opcode.METADATA:
                return None
            record = parse_commit_record(parse_metadata(data, COMMIT_NAME, record_offset), self.head, record_offset)
            start = record_offset - record.length
            if start < low or record.position < self.next_position:
                return None  # older bytes of this file, perhaps published on the topic itself
            self._commit(start)
        except Damage:
            return None
        return start


def _leading_channels(body: bytes, count: int, offset: int) -> list[bytes]:
    """The `count` Channel records that `body` begins with."""
    records, cursor = [], 0
    for _ in range(count):
        if cursor + RECORD.size > len(body):
            raise Damage(offset, "a chunk holds fewer channels than its commit says")
        opcode, length = RECORD.unpack_from(body, cursor)
        data = body[cursor : cursor + RECORD.size + length]
        if opcode != Opcode.CHANNEL or len(data) < RECORD.size + length:
            raise Damage(offset, "a chunk holds fewer channels than its commit says")
        parse_channel(data, offset)
        records.append(data)
        cursor += len(data)
    return records
