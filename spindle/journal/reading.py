"""Reading journals back: which files belong together, and the messages in them.

Rules: messages come in the order in which they were delivered, each checked by CRC before it is handed out. A journal
that a node is writing meanwhile can be read; what is there when its end is reached is the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mcap.opcode import Opcode

from spindle.errors import JournalError
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import (
    MESSAGE,
    MESSAGE_FIXED,
    RECORD,
    TAG_MAX,
    TAG_SHIFT,
    WRITER_MASK,
    CommitLayout,
    Damage,
    parse_channel,
    timestamp_of,
)
from spindle.journal.names import file_safe, parse
from spindle.journal.recovery import corrupt_error, open_scan
from spindle.journal.scan import State

Channels = dict[int, tuple[int, int]]  # channel id -> (sender, writer with tag and type, see TAG_SHIFT)
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclasses.dataclass(slots=True)
class JournalMessage:
    """One message as it was delivered."""

    topic: str
    sender: int  # node id
    writer: int  # number of the writer on the sending node; beyond 16 bits: see spindle.journal.format
    view_id: int  # in which it was delivered
    sequence: int  # sequence number in the delivery order, 64 bits
    index: int  # place in the node's delivery log of that life
    position: int  # place in the journal, over all files
    log_time: int  # delivery at the node, UTC ns
    publish_time: int  # the writer's timestamp, UTC ns; log_time if it had none
    payload: bytes
    tag: int = 0  # what it was written with; 0: an ordinary message
    key: int = 0  # of what it is about; 0: of nothing in particular, or its topic has no keys

    @property
    def source_ns(self) -> int:
        """The timestamp that it came with, UTC; 0: none."""
        return timestamp_of(self.log_time, self.publish_time)


class JournalFiles(NamedTuple):
    """The files of one journal in a directory, oldest first."""

    stem: str  # the topic in file-safe form
    node_id: int
    paths: list[Path]


def find_journals(
    path: Path | str, topic: str | None = None, node_id: int | None = None, files: Files | None = None
) -> list[JournalFiles]:
    """The journals at `path`, a directory or one file; only those of `topic` and `node_id` if given.

    Raises JournalError if there is none.
    """
    path, files = Path(path), files or OsFiles()
    if path.is_file() or parse(path.name) is not None:
        parts = parse(path.name)
        return [JournalFiles(parts.stem if parts else path.stem, parts.node_id if parts else -1, [path])]
    found: dict[tuple[str, int], list[tuple[int, Path]]] = {}
    try:
        names = files.names(path)
    except OSError as error:
        raise JournalError(f"cannot read journals in {path}: {error.strerror}") from error
    for name in names:
        parts = parse(name)
        if parts is None or (topic is not None and parts.stem != file_safe(topic)):
            continue
        if node_id is None or parts.node_id == node_id:
            found.setdefault((parts.stem, parts.node_id), []).append((parts.number, path / name))
    if not found:
        wanted = (f" of topic {topic!r}" if topic else "") + (f" of node {node_id}" if node_id is not None else "")
        raise JournalError(f"there is no journal{wanted} in {path} (files are called <topic>-<node>-<number>.mcap)")
    return [JournalFiles(stem, node, [one for _, one in sorted(paths)])
            for (stem, node), paths in sorted(found.items())]


def one_journal(
    path: Path | str, topic: str | None = None, node_id: int | None = None, files: Files | None = None
) -> JournalFiles:
    """The only journal at `path`; JournalError that lists them if there are several to choose from."""
    found = find_journals(path, topic, node_id, files)
    if len(found) > 1:
        listed = ", ".join(f"{one.stem} of node {one.node_id}" for one in found[:10])
        raise JournalError(f"{path} holds {len(found)} journals ({listed}{', ...' if len(found) > 10 else ''}); "
                           "choose one by topic and node, or name one file")
    return found[0]


def read(
    path: Path | str,
    *,
    topic: str | None = None,
    node_id: int | None = None,
    skip_damaged: bool = False,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Iterator[JournalMessage]:
    """The messages of one journal, oldest first. `path` is its directory or one file of it.

    topic, node_id  which journal, where the directory holds several
    skip_damaged    go on behind damage with the next whole commit; `position` shows what is missing
    progress        called with bytes read and bytes in all, now and then
    Raises JournalError if there is no such journal, JournalCorrupt where it is damaged before its end (after all
    messages before the damage). A torn tail is the end.
    """
    files = files or OsFiles()
    journal = one_journal(path, topic, node_id, files)
    sizes = [one.stat().st_size for one in journal.paths] if progress else []
    for place, one in enumerate(journal.paths):
        step = step_of(progress, sizes, place) if progress else None
        try:
            handle = files.open(one)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and len(journal.paths) > 1:
                continue  # gone since it was listed: a running node keeps only so many files
            raise JournalError(f"cannot read {one}: {error.strerror}") from error
        try:
            scan = open_scan(files, handle, one)
            channels: Channels = {}
            for layout, body in scan.commits(skip_damaged, step):
                add_channels(channels, layout)
                yield from messages_of(scan.head.topic, layout, body, channels, strict=not skip_damaged)
            if scan.state is State.CORRUPT and not skip_damaged:
                raise corrupt_error(scan)
        except Damage as damage:
            scan.damage = damage
            raise corrupt_error(scan) from None
        finally:
            files.close(handle)


def step_of(progress: Progress, sizes: Sequence[int], place: int) -> Callable[[int], None]:
    """What reports the bytes read of the file at `place` as progress over all files."""
    before, total = sum(sizes[:place]), sum(sizes)
    return lambda done: progress(before + done, total)


def add_channels(channels: Channels, layout: CommitLayout) -> None:
    """Take the channels that a commit introduces into `channels`."""
    for record in layout.channel_records:
        channel, sender, writer = parse_channel(record, layout.offset)
        channels[channel] = (sender, writer)


def messages_of(
    topic: str, layout: CommitLayout, body: bytes, channels: Channels, strict: bool = True
) -> Iterator[JournalMessage]:
    """The messages of one commit whose CRC was checked. Raises Damage where they contradict their commit.

    Behind damage the commit that introduced a writer may be lost; unless `strict`, sender and writer are -1 then.
    """
    record = layout.record
    base = sequence = record.sequence
    offset = sum(map(len, layout.channel_records))
    for place in range(record.count):
        if offset + MESSAGE.size > len(body):
            raise Damage(layout.offset, "a chunk holds fewer messages than its commit says")
        opcode, length, channel, low, log_time, published = MESSAGE.unpack_from(body, offset)
        end = offset + RECORD.size + length
        if opcode != Opcode.MESSAGE or length < MESSAGE_FIXED or end > len(body):
            raise Damage(layout.offset, f"message {place} of a commit is malformed")
        sender, writer = channels.get(channel, (-1, -1))
        if strict and sender < 0:
            raise Damage(layout.offset, f"message {place} of a commit is of an unknown writer")
        following = base + ((low - base) & 0xFFFFFFFF)
        if place and following <= sequence:
            raise Damage(layout.offset, f"the sequence number of message {place} of a commit does not rise")
        sequence = following
        tag, writer = (0, writer) if writer < 0 else (writer >> TAG_SHIFT & TAG_MAX, writer & WRITER_MASK)
        yield JournalMessage(topic, sender, writer, record.view_id, sequence, record.index + place,
                             record.position + place, log_time, published, body[offset + MESSAGE.size : end], tag,
                             layout.keys[place] if layout.keys else 0)
        offset = end
    if offset != len(body) or sequence != record.last_sequence:
        raise Damage(layout.offset, "a chunk holds more than its commit says")
