"""A scripted life of a journal on a recording disk, for the tests that crash it.

Two lives of a node: in the first, commits of many sizes, a view change, growth of the file; it is closed or just
stops. The second recovers and goes on in a new file, or in the same one.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

from spindle.group.schemas import MessageSchema
from spindle.journal.format import Head
from spindle.journal.live import JournalFile
from spindle.journal.reading import JournalMessage
from spindle.journal.recovery import Recovery, recover
from spindle.journal.tools import read
from tests.spindle.journal.fakes import SPEC, FakeInfo, MemoryFiles, messages

DIRECTORY = Path("/journal")
SCHEMA = MessageSchema("AirData", "ros2idl", b"struct AirData { double mach; };", "cdr")


@dataclasses.dataclass
class Life:
    """What was done: all messages in order, and for each length of the trace how many of them had been acknowledged."""

    files: MemoryFiles
    sent: list[tuple[bytes, FakeInfo]]
    acknowledged: list[tuple[int, int]]  # (length of the trace, messages acknowledged from then on)

    def acknowledged_at(self, length: int) -> int:
        return max((count for at, count in self.acknowledged if at <= length), default=0)


def head_after(recovery: Recovery, number_in_id: int) -> Head:
    """Head of the next file after `recovery`, the same in every run."""
    return Head(
        topic=SPEC.name, type_name=SPEC.type_name, type_hash=SPEC.type_hash.hex(), node_id=1, number=recovery.number,
        file_id=f"{number_in_id:016x}", position=recovery.position, group="life", last_view=recovery.last_view,
        last_sequence=recovery.last_sequence, created_ns=1, schemas=(SCHEMA,),
    )


def batches(sizes: list[int], size: int) -> list[list[tuple[bytes, FakeInfo]]]:
    """Commits of so many messages each; the view changes in the middle."""
    made, index, sequence = [], 0, 0
    for place, count in enumerate(sizes):
        view_id = 3 + (2 * place >= len(sizes))
        if 2 * place >= len(sizes) > 2 * (place - 1):
            sequence = 0
        batch = messages(count, start=index, view_id=view_id, sequence=sequence, size=size)
        index += count
        sequence = batch[-1][1].sequence
        made.append(batch)
    return made


def live_through(
    sizes: list[int], second: list[int], size: int = 60, close_first: bool = True, sync_last: bool = True,
    same_file: bool = False,
) -> Life:
    """Both lives: commits of `sizes` messages, then, after a recovery, of `second`. The last commit of the first life
    is left unsynced, and so not acknowledged, unless `sync_last`."""
    files = MemoryFiles()
    life = Life(files, [], [])
    all_batches = batches(sizes + second, size)
    groups = (all_batches[: len(sizes)], all_batches[len(sizes) :])
    for number, group in enumerate(groups):
        recovery = recover(files, DIRECTORY, SPEC.name, 1)
        if same_file and recovery.whole is not None:
            file = JournalFile.go_on(files, recovery.whole)
        else:
            file = JournalFile.create(files, DIRECTORY, head_after(recovery, number + 1))
        for batch in group:
            file.append(batch)
            life.sent += batch
            if number or sync_last or batch is not group[-1]:
                file.sync()
                life.acknowledged.append((len(files.trace), len(life.sent)))
        if close_first or number:
            file.close()
        else:
            file.abandon()
    return life


def is_prefix(got: list[JournalMessage], sent: list[tuple[bytes, FakeInfo]]) -> bool:
    """True if `got` is exactly the beginning of what was sent, in every field."""
    return len(got) <= len(sent) and all(
        (one.payload, one.sender, one.writer, one.sequence, one.view_id, one.index, one.position, one.log_time,
         one.publish_time, one.topic)
        == (payload, info.sender, info.writer, info.sequence, info.view_id, info.index, position,
            info.reception_timestamp, info.source_timestamp, SPEC.name)
        for position, one, (payload, info) in zip(itertools.count(), got, sent, strict=False)
    )


def read_all(files: MemoryFiles) -> list[JournalMessage]:
    """All messages of the journal on this disk."""
    if not any(name.endswith(".mcap") for name in files.names_to_files):
        return []
    return list(read(DIRECTORY, files=files))
