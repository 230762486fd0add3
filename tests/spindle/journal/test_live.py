"""Goal: the arithmetic of the live file holds at every place a commit can end at: no record header that is switched
crosses a sector, nothing is written over the footer at the file's end, and the file is what MCAP says it is.
Method: sweeps over payload and name lengths, checked with the `mcap` library and our own reader after every write."""

from __future__ import annotations

import dataclasses
import io
import tracemalloc

import pytest
from mcap.reader import make_reader
from mcap.records import MessageIndex
from mcap.stream_reader import StreamReader

from spindle.group.schemas import MessageSchema
from spindle.journal.format import CHUNK, LIVE_TRAILER, PACKED_BYTES, SECTOR, crosses_sector
from spindle.journal.live import JournalFile
from spindle.journal.reading import read
from spindle.journal.recovery import Recovery, recover
from spindle.journal.tools import verify
from tests.spindle.journal.fakes import SPEC, Change, FakeInfo, MemoryFiles
from tests.spindle.journal.scripted import DIRECTORY, SCHEMA, batches, head_after, live_through

NAME = "flight%2Fair%20data-1-000001.mcap"


def message(index: int, size: int) -> list[tuple[bytes, FakeInfo]]:
    return [(bytes(size), FakeInfo(1, 1, 1, 1, index, 1, index))]


class CheckedFiles(MemoryFiles):
    """A disk that looks, after each change, whether the journal file is whole, as the death of the process would
    leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.checking = False

    def _do(self, change: Change) -> None:
        super()._do(change)
        if self.checking:
            data = self.content()[NAME]
            list(make_reader(io.BytesIO(data), validate_crcs=True).iter_messages())
            report = verify(DIRECTORY, files=MemoryFiles.of({NAME: data}))
            assert report.ok, (change[:3], report.problems)

    def write(self, handle: int, buffers: object, offset: int) -> None:
        super().write(handle, buffers, offset)  # type: ignore[arg-type]
        data = self.trace[-1][3]
        if len(data) == 9:
            assert offset // SECTOR == (offset + 8) // SECTOR, "the nine bytes that show a commit cross a sector"


def test_no_switched_header_crosses_a_sector() -> None:
    for size in range(2 * SECTOR):
        files = CheckedFiles()
        head = dataclasses.replace(head_after(Recovery(), 1), schemas=(MessageSchema("T", "x", bytes(size)),))
        file = JournalFile.create(files, DIRECTORY, head)
        assert not crosses_sector(file.end)
        file.append(message(0, size))
        file.append(message(1, 3))
        assert not crosses_sector(file.end)
        if size % 37 == 0:
            assert verify(DIRECTORY, files=files).ok


def test_keys_come_back_with_their_messages() -> None:
    """Of commits with keys and without; and a commit whose keys are another's is damage."""
    files = CheckedFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    files.checking = True
    keys = [[0], [(1 << 64) - 1], [1, 0, 3], [0, 0], list(range(200))]
    for number, some in enumerate(keys):
        start = sum(map(len, keys[:number]))
        file.append([(b"%d" % key, FakeInfo(1, 1, 1, 1, start + place, 1, start + place, key=key))
                     for place, key in enumerate(some)])
    file.close()
    assert [one.key for one in read(DIRECTORY, files=files)] == [key for some in keys for key in some]
    data = files.content()[NAME]
    assert data.count(b"spindle.keys") == 2 * 3, "each with an entry in the summary"
    changed = data.replace(b"%016x" % 3, b"%016x" % 4, 1)
    assert changed != data and not verify(DIRECTORY, files=MemoryFiles.of({NAME: changed})).ok


@pytest.mark.parametrize("step", ["commit", "close", "recover"])
def test_the_footer_at_the_end_is_never_overwritten_in_place(step: str) -> None:
    """The last commit ends at each byte near the end of the room that the file has."""
    probe = JournalFile.create(MemoryFiles(), DIRECTORY, head_after(Recovery(), 1))
    probe.append(message(0, 0))
    empty_end = probe.end
    closing = len(probe._summary.closing(probe.end))
    room = probe.size - len(LIVE_TRAILER) - empty_end
    for spare in range(-30, 90):
        files = CheckedFiles()
        file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
        files.checking = True
        file.append(message(0, room - spare - (closing if step != "commit" else 0)))
        file.append(message(1, 5)) if step == "commit" else None
        if step == "close":
            file.close()
        elif step == "recover":
            file.abandon()
            recover(files, DIRECTORY, SPEC.name, 1)
        assert verify(DIRECTORY, files=MemoryFiles.of(files.content())).ok


def test_a_file_of_many_commits_keeps_little_in_memory_until_it_is_closed() -> None:
    """Method: 3,000 commits of four writers, whose index records have 150 bytes each. The closed file is compared with
    what its scan gathers, and read by the library."""
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    for number in range(1000):  # what is allocated once
        append_of(file, number)
    tracemalloc.start()
    try:
        for number in range(1000, 3000):
            append_of(file, number)
        kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/spindle/journal/format.py")])
    finally:
        tracemalloc.stop()
    assert sum(one.size for one in kept.statistics("filename")) < 2000 * 60 + 2 * PACKED_BYTES
    file.close()
    data = files.content()[NAME]
    assert verify(DIRECTORY, files=MemoryFiles.of({NAME: data})).ok
    summary = make_reader(io.BytesIO(data), validate_crcs=True).get_summary()
    assert summary is not None and len(summary.chunk_indexes) == 3000
    assert len(summary.metadata_indexes) == 3001 and len(list(read(DIRECTORY, files=files))) == 3000


def append_of(file: JournalFile, number: int) -> None:
    file.append([(b"x" * (number % 7), FakeInfo(1, 1, 1, number % 4, number, 1, number))])


def test_the_mcap_library_finds_everything_in_a_closed_file() -> None:
    life = live_through([5, 7, 30], [2])
    data = life.files.content()[NAME]
    sent = life.sent[:42]
    reader = make_reader(io.BytesIO(data), validate_crcs=True)
    summary = reader.get_summary()
    assert summary is not None and summary.statistics is not None
    assert summary.statistics.message_count == 42 and summary.statistics.chunk_count == 3
    assert summary.statistics.channel_count == len(summary.channels) == len({(i.sender, i.writer) for _, i in sent})
    assert {channel.topic for channel in summary.channels.values()} == {SPEC.name}
    schema = summary.schemas[1]
    assert (schema.name, schema.encoding, schema.data) == (SCHEMA.name, SCHEMA.encoding, SCHEMA.data)
    for (_, channel, found), (payload, info) in zip(reader.iter_messages(), sent, strict=True):
        assert found.data == payload and found.sequence == info.sequence
        assert (found.log_time, found.publish_time) == (info.reception_timestamp, info.source_timestamp)
        assert channel.metadata == {"sender": str(info.sender), "writer": str(info.writer)}
        assert channel.message_encoding == "cdr"
    names = [one.name for one in reader.iter_metadata()]
    assert names == ["spindle.journal"] + ["spindle.commit"] * 2 + ["spindle.keys", "spindle.commit"]
    # By time, as a player does that seeks.
    middle = sent[20][1].reception_timestamp
    assert len(list(reader.iter_messages(starting_at=middle))) == 22
    assert [found.data for _, _, found in reader.iter_messages(reverse=True)] == [payload for payload, _ in sent[::-1]]


def test_message_indexes_point_at_their_messages() -> None:
    """The Python library doesn't use them, other readers (Foxglove) do."""
    life = live_through([20, 30], [1])
    data = life.files.content()[NAME]
    summary = make_reader(io.BytesIO(data)).get_summary()
    assert summary is not None
    seen = 0
    for chunk in summary.chunk_indexes:
        body_start = chunk.chunk_start_offset + CHUNK.size
        length = 0
        for channel, offset in chunk.message_index_offsets.items():
            index = next(StreamReader(io.BytesIO(data[offset:]), skip_magic=True).records)
            assert isinstance(index, MessageIndex) and index.channel_id == channel
            length += 15 + 16 * len(index.records)
            for log_time, place in index.records:
                found = next(StreamReader(io.BytesIO(data[body_start + place :]), skip_magic=True).records)
                assert (found.channel_id, found.log_time) == (channel, log_time)  # type: ignore[attr-defined]
                seen += 1
        assert length == chunk.message_index_length
    assert seen == 50


def test_files_grow_in_few_steps() -> None:
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    for batch in batches([100] * 60, 1000):
        file.append(batch)
    assert file.size < 2 * file.end + (8 << 20)
    assert sum(change[0] == "write" and change[3] == LIVE_TRAILER for change in files.trace) < 10
    file.close()
    assert len(files.content()[NAME]) < file.end + 60 * 400 + 2000
