"""The journal file that is being written: made, appended to, synced, closed.

Why each write is where it is: see `spindle.journal.format`. In short, a commit is first written into the padding,
where nobody looks, and then shown by one write of nine bytes; growing and closing do the same. So a process that dies
at any point leaves a whole file, and a machine that dies leaves at worst one torn commit at the end, which nobody was
told of.

Rules: after an error of any operation the object must only be `abandon`ed: nothing is retried, nothing is closed
cleanly. One thread uses it.
"""

from __future__ import annotations

import itertools
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mcap.opcode import Opcode

from spindle.journal.errors import JournalError
from spindle.journal.files import Files
from spindle.journal.format import (
    CHANNELS_MAX,
    CHUNK,
    CHUNK_FIXED,
    INDEX,
    INDEX_ENTRY,
    LIVE_TRAILER,
    MESSAGE,
    MESSAGE_FIXED,
    RECORD,
    SEQUENCE_SPAN,
    TAG_SHIFT,
    TYPE_SHIFT,
    U64_MAX,
    CommitLayout,
    CommitRecord,
    Head,
    Summary,
    encode_channel,
    encode_commit_record,
    encode_head,
    encode_keys,
    padding_header,
)
from spindle.journal.growing import RESERVE_MIN, GrowingFile, NoRoom, begin, round_up
from spindle.journal.names import UNFINISHED_SUFFIX, file_name
from spindle.journal.relays import Relays, identity_of

# Limits of a file that a later life may go on with: each opening reads it whole, and keeps 35 to 45 bytes about each of
# its commits in memory, or 150 of the last few hundred.
GO_ON_BYTES, GO_ON_COMMITS = 4 << 20, 1024


class Info(Protocol):
    """What the journal needs to know of a message; `spindle_core.reader.MessageInfo` has it."""

    @property
    def source_timestamp(self) -> int: ...  # UTC ns, 0 = none
    @property
    def reception_timestamp(self) -> int: ...  # UTC ns
    @property
    def sender(self) -> int: ...  # node id
    @property
    def writer(self) -> int: ...
    @property
    def relay(self) -> int: ...  # not 0: of a writer on a host without a node
    @property
    def tag(self) -> int: ...  # 0: an ordinary message
    @property
    def key(self) -> int: ...  # of what it is about; 0: of nothing in particular
    @property
    def sequence(self) -> int: ...
    @property
    def view_id(self) -> int: ...
    @property
    def index(self) -> int: ...  # dense count in the node's delivery log


Pair = tuple[bytes, Info]


class Whole(NamedTuple):
    """What a closed file was found to be, up to its last commit: all that going on with it takes."""

    path: Path
    head: Head
    head_bytes: bytes
    end: int  # of the last commit
    last: CommitLayout
    summary: Summary
    relays: Relays
    channels: dict[tuple[int, int], int]  # (sender, writer) -> channel id

    @property
    def small(self) -> bool:
        """True if it is worth going on with. What a restart reads whole, and what is known of closed files, stays
        small by that."""
        return self.end < GO_ON_BYTES and self.summary.commits < GO_ON_COMMITS and len(self.channels) < CHANNELS_MAX


class JournalFile(GrowingFile):
    """A live file. Made by `create` or `go_on`."""

    def __init__(self, files: Files, handle: int, path: Path, head: Head, head_bytes: bytes, size: int) -> None:
        super().__init__(files, handle, path, len(head_bytes), size)
        self.head = head
        self._summary = _summary_of(head_bytes)
        self._channels: dict[tuple[int, int], int] = {}  # (sender, writer) -> channel id
        self._log_time = 0
        self.position = head.position  # of the next message
        self.relays = Relays(head.relayed)  # up to the last message
        self.last = (head.last_view, head.last_sequence)  # view and sequence number of the last message, here or before
        self._index_next: int | None = None  # after go_on(): the index in the file that the next commit begins with
        self._head_bytes = head_bytes
        self._tells_types = any(one.mark for one in head.schemas)
        self._last_layout: CommitLayout | None = None
        self._index_shift = 0  # from the delivery log's index of a message to the file's

    @classmethod
    def create(cls, files: Files, directory: Path, head: Head) -> JournalFile:
        """Make file `head.number` of the journal in `directory`: on the disk, under its name, when this returns."""
        path = directory / file_name(head.topic, head.node_id, head.number)
        unfinished = path.with_name(path.name.removesuffix(".mcap") + UNFINISHED_SUFFIX)
        data = encode_head(head)
        handle, size = begin(files, unfinished, data)
        try:
            files.rename(unfinished, path)
            files.sync_directory(directory)
        except BaseException:
            files.close(handle)
            raise
        return cls(files, handle, path, head, data, size)

    @classmethod
    def go_on(cls, files: Files, whole: Whole) -> JournalFile:
        """Turn a closed file into a live one again, to be appended to: what `finish` does, backwards. On the disk when
        this returns. A process that dies meanwhile leaves the file whole, closed or live."""
        handle = files.open(whole.path, writable=True)
        try:
            size = round_up(files.size(handle) + RESERVE_MIN)
            # Longer first, up to another footer; then the padding that leads there, over the beginning of the summary.
            files.write(handle, [LIVE_TRAILER], size - len(LIVE_TRAILER))
            files.allocate(handle, 0, size)
            files.sync(handle)
            files.write(handle, [padding_header(whole.end, size)], whole.end)
            files.sync(handle)
        except BaseException:
            files.close(handle)
            raise
        file = cls(files, handle, whole.path, whole.head, whole.head_bytes, size)
        record = whole.last.record
        file.end, file._summary, file.relays = whole.end, whole.summary, whole.relays
        file._channels, file._log_time = dict(whole.channels), whole.last.end_time
        file.position = record.position + record.count
        file.last = (record.view_id, record.last_sequence)
        file._index_next, file._last_layout = record.index + record.count, whole.last
        return file

    @property
    def messages(self) -> int:
        """Messages in this file."""
        return self._summary.messages

    @property
    def commits(self) -> int:
        """Commits in this file."""
        return self._summary.commits

    @property
    def channels(self) -> int:
        """Writers that this file has messages of."""
        return len(self._channels)

    def append(self, run: Sequence[Pair]) -> None:
        """Write one commit, not yet synced. All of `run` (at least one message) belongs to one view, its sequence
        numbers rise by less than SEQUENCE_SPAN over all, its indexes by one each. Raises JournalError if they don't,
        OSError if the disk refuses; after NoRoom the same may be tried again."""
        first = run[0][1]
        view_id, first_sequence, first_index = first.view_id, first.sequence, first.index
        parts: list[bytes] = []
        channel_records: list[bytes] = []
        entries: dict[int, list[int]] = {}
        # Channels stand before all messages of the chunk, so a reader finds them without walking it.
        fresh: list[tuple[int, int]] = []
        relayed: dict[int, int] = {}  # channel of a writer on a host without a node -> timestamp of its last message
        writers: dict[int, int] = {}  # channel -> identity of that writer
        for key in dict.fromkeys(self._channel_of(payload, info) for payload, info in run):
            if key not in self._channels:
                self._channels[key] = len(self._channels) + 1
                fresh.append(key)
                channel_records.append(encode_channel(self.head, self._channels[key], *key))
            if identity := identity_of(key[1]):
                relayed[self._channels[key]], writers[self._channels[key]] = 0, identity
        offset = sum(map(len, channel_records))
        parts += channel_records
        log_time = self._log_time
        start_time = -1
        index, sequence = first_index, first_sequence - 1
        pack, opcode = MESSAGE.pack, int(Opcode.MESSAGE)
        for payload, info in run:
            if info.sequence <= sequence or info.index != index or info.view_id != view_id:
                raise _out_of_order(self.head.topic, info, view_id, sequence, index)
            sequence = info.sequence
            index += 1
            log_time = max(log_time, min(info.reception_timestamp, U64_MAX))
            if start_time < 0:
                start_time = log_time
            published = info.source_timestamp
            if not 0 < published <= U64_MAX:
                published = log_time
            channel = self._channels[self._channel_of(payload, info)]
            if relayed and channel in relayed and info.source_timestamp:
                relayed[channel] = published  # what a node says in its name has none, and says nothing of how far it is
            size = len(payload)
            parts.append(pack(opcode, MESSAGE_FIXED + size, channel, sequence & 0xFFFFFFFF, log_time, published))
            parts.append(payload)
            entries.setdefault(channel, []).extend((log_time, offset))
            offset += MESSAGE.size + size
        if (view_id, first_sequence) <= self.last:
            raise _out_of_order(self.head.topic, first, *self.last, first_index)
        if sequence - first_sequence >= SEQUENCE_SPAN:
            raise JournalError(f"journal of topic {self.head.topic!r}: one commit spans sequence numbers "
                               f"{first_sequence} to {sequence}; this is a defect of Spindle, please report it")
        body = b"".join(parts)
        crc = zlib.crc32(body)
        chunk = CHUNK.pack(Opcode.CHUNK, CHUNK_FIXED + len(body), start_time, log_time, len(body), crc, 0, len(body))
        indexes = b"".join(index_record(channel, pairs) for channel, pairs in entries.items())
        if self._index_next is not None:
            self._index_shift, self._index_next = self._index_next - first_index, None
        index_start = self.end + len(chunk) + len(body)
        keys = tuple(info.key for _, info in run)
        keys_record = encode_keys(keys)
        record = CommitRecord(view_id=view_id, sequence=first_sequence, last_sequence=sequence,
                              index=first_index + self._index_shift,
                              position=self.position, count=len(run), channels=len(channel_records),
                              length=len(chunk) + len(body) + len(indexes) + len(keys_record))
        seal = encode_commit_record(self.head, record, self.end + record.length,
                                    zlib.crc32(keys_record, zlib.crc32(indexes, zlib.crc32(chunk))))
        layout = CommitLayout(
            offset=self.end, body_size=len(body), body_crc=crc, start_time=start_time, end_time=log_time,
            index_offsets=_index_offsets(entries, index_start), index_length=len(indexes),
            counts={channel: len(pairs) // 2 for channel, pairs in entries.items()},
            channel_records=channel_records, record_length=len(seal), record=record, keys_length=len(keys_record),
            keys=keys if keys_record else (),
        )
        try:
            self.show(chunk, [body, indexes, keys_record, seal], layout.end)
        except NoRoom:  # the next attempt brings its channels again
            for key in fresh:
                del self._channels[key]
            raise
        self._summary.add(layout)
        self._last_layout = layout
        for channel, published in relayed.items():
            self.relays.note(writers[channel], published)
        self.position += len(run)
        self.last, self._log_time = (view_id, sequence), log_time

    def _channel_of(self, payload: bytes, info: Info) -> tuple[int, int]:
        """Sender and writer, with the tag or type of the message, as channels have it."""
        writer = info.relay << 16 | info.writer
        if info.tag:
            return info.sender, info.tag << TAG_SHIFT | writer
        return info.sender, (self.head.type_of(payload) << TYPE_SHIFT if self._tells_types else 0) | writer

    @property
    def whole(self) -> Whole | None:
        """What going on with it takes, once it is closed; None without a commit."""
        if self._last_layout is None:
            return None
        return Whole(self.path, self.head, self._head_bytes, self.end, self._last_layout, self._summary, self.relays,
                     self._channels)

    def close(self) -> None:
        """Finish the file with its summary, on the disk when this returns."""
        self.end_with(self._summary.closing(self.end))


def _summary_of(head_bytes: bytes) -> Summary:
    """An empty summary for a file that begins with `head_bytes`, as encode_head() made them."""
    offset = 8
    records = []
    while offset < len(head_bytes):
        _, length = RECORD.unpack_from(head_bytes, offset)
        records.append(head_bytes[offset : offset + RECORD.size + length])
        offset += RECORD.size + length
    return Summary(head_bytes, records[1:-1], len(records[-1]))


def index_record(channel: int, pairs: list[int]) -> bytes:
    """Message Index record of `channel`; `pairs` is log time, offset, log time, offset..."""
    table = array("Q", pairs)
    if sys.byteorder != "little":
        table.byteswap()
    data = table.tobytes()
    return INDEX.pack(Opcode.MESSAGE_INDEX, INDEX.size - RECORD.size + len(data), channel, len(data)) + data


def _index_offsets(entries: dict[int, list[int]], start: int) -> dict[int, int]:
    """Where the index record of each channel begins, if the first begins at `start`."""
    offsets = {}
    for channel, pairs in entries.items():
        offsets[channel] = start
        start += INDEX.size + len(pairs) // 2 * INDEX_ENTRY
    return offsets


def _out_of_order(topic: str, info: Info, view_id: int, sequence: int, index: int) -> JournalError:
    return JournalError(
        f"journal of topic {topic!r}: after view {view_id}, sequence {sequence} the message with index {index} should "
        f"follow, but view {info.view_id}, sequence {info.sequence}, index {info.index} did; nothing more is written, "
        "so that the journal holds no gap. This is a defect of Spindle, please report it"
    )


def unpack_index(data: bytes) -> tuple[int, ...]:
    """Log time, offset, log time, offset... of a whole Message Index record."""
    return struct.unpack_from(f"<{(len(data) - INDEX.size) // 8}Q", data, INDEX.size)


def runs(batch: Sequence[Pair]) -> Iterator[list[Pair]]:
    """`batch` cut so that each part fits one commit: one view, sequence numbers within SEQUENCE_SPAN."""
    if not batch:
        return
    first: Info = batch[0][1]
    last: Info = batch[-1][1]
    if first.view_id == last.view_id and last.sequence - first.sequence < SEQUENCE_SPAN:
        yield list(batch)
        return
    for _, same_view in itertools.groupby(batch, key=lambda pair: pair[1].view_id):
        run: list[Pair] = []
        for pair in same_view:
            if run and pair[1].sequence - run[0][1].sequence >= SEQUENCE_SPAN:
                yield run
                run = []
            run.append(pair)
        yield run
