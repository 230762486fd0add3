"""Goal: damaged files are never accepted as whole, never crash a reader, and are told apart from torn tails.
Method: property tests that flip bits, overwrite, cut and extend good files, live and closed; some cases by hand."""

from __future__ import annotations

import dataclasses
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.opcode import Opcode

from spindle.errors import JournalError
from spindle.journal.errors import JournalCorrupt, NotAJournal
from spindle.journal.format import (
    CHUNK,
    INDEX,
    INDEX_ENTRY,
    LIVE_TRAILER,
    RECORD,
    encode_commit_record,
    padding_header,
)
from spindle.journal.live import JournalFile
from spindle.journal.recovery import Recovery, recover
from spindle.journal.scan import Scan, State
from spindle.journal.tools import JournalMessage, Status, export, info, read, verify
from tests.spindle.journal.fakes import SPEC, FakeInfo, MemoryFiles, messages
from tests.spindle.journal.scripted import DIRECTORY, batches, head_after, is_prefix, read_all

SIZES = [1, 4, 2, 6, 3]
NAME = "flight%2Fair%20data-1-000001.mcap"


def make(closed: bool, size: int = 60) -> tuple[bytes, list[tuple[bytes, FakeInfo]], list[int]]:
    """A file, the messages in it, and where its commits begin (and the last one ends)."""
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    starts = []
    made = batches(SIZES, size)
    for batch in made:
        starts.append(file.end)
        file.append(batch)
        file.sync()
    starts.append(file.end)
    if closed:
        file.close()
    return files.content()[NAME], [pair for batch in made for pair in batch], starts


FILES = {closed: make(closed) for closed in (True, False)}


def read_what_is_there(files: MemoryFiles, skip_damaged: bool = False) -> list[JournalMessage]:
    got = []
    try:
        for message in read(DIRECTORY, files=files, skip_damaged=skip_damaged):
            got.append(message)
    except JournalError:
        pass
    return got


def check(data: bytes, closed: bool) -> Status:
    """The property: no exception but ours, prefixes only, whole only if all is there. Returns the verdict."""
    _, sent, _ = FILES[closed]
    report = verify(DIRECTORY, files=MemoryFiles.of({NAME: data}))
    info(DIRECTORY, files=MemoryFiles.of({NAME: data}))
    got = read_what_is_there(MemoryFiles.of({NAME: data}))
    assert is_prefix(got, sent)
    if report.ok:
        assert len(got) == len(sent)
    files = MemoryFiles.of({NAME: data})
    try:
        recover(files, DIRECTORY, SPEC.name, 1)
    except (JournalCorrupt, NotAJournal):
        assert report.status is Status.CORRUPT
        assert files.content() == {NAME: data}, "a corrupt file must not be touched"
    else:
        assert report.status is not Status.CORRUPT
        assert is_prefix(read_all(files), sent)
    for message in read_what_is_there(MemoryFiles.of({NAME: data}), skip_damaged=True):
        assert is_prefix([message], []) or message.payload == sent[message.position][0]
    return report.status


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "live"])
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_flipped_bits_are_noticed(closed: bool, data: st.DataObject) -> None:
    good, _, starts = FILES[closed]
    flips = data.draw(st.lists(st.integers(0, starts[-1] * 8 - 1), min_size=1, max_size=3, unique=True))
    bad = bytearray(good)
    for flip in flips:
        bad[flip // 8] ^= 1 << flip % 8
    assert check(bytes(bad), closed) is not Status.OK


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "live"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_overwritten_cut_and_extended_files(closed: bool, data: st.DataObject) -> None:
    bad = bytearray(FILES[closed][0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(bad)))
        kind = data.draw(st.sampled_from(["overwrite", "cut", "remove", "insert", "repeat"]))
        some = data.draw(st.binary(min_size=1, max_size=64))
        if kind == "overwrite":
            bad[at : at + len(some)] = some
        elif kind == "cut":
            del bad[at:]
        elif kind == "remove":
            del bad[at : at + len(some)]
        elif kind == "insert":
            bad[at:at] = some
        else:
            bad[at:at] = bad[max(0, at - 500) : at]
    check(bytes(bad), closed)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_files_of_something_else(noise: bytes, with_head: bool) -> None:
    """A file that was never a journal, or nothing but a head and noise."""
    good, _, starts = FILES[False]
    data = (good[: starts[0]] if with_head else good[:8]) + noise
    report = verify(DIRECTORY, files=MemoryFiles.of({NAME: data}))
    assert not report.ok and report.messages == 0
    assert read_what_is_there(MemoryFiles.of({NAME: data})) == []


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "live"])
def test_every_cut_is_a_torn_tail(closed: bool) -> None:
    """A file cut short anywhere behind its head keeps its whole commits, and recovers to them."""
    good, sent, starts = FILES[closed]
    for cut in range(starts[0], starts[-1], 7):
        files = MemoryFiles.of({NAME: good[:cut]})
        report = verify(DIRECTORY, files=files)
        whole = sum(size for size, end in zip(SIZES, starts[1:], strict=True) if end <= cut)
        assert report.status is Status.TORN and report.messages == whole, cut
        recovery = recover(files, DIRECTORY, SPEC.name, 1)
        assert recovery.position == whole
        lost = cut - max(start for start in starts if start <= cut)
        assert recovery.torn_bytes <= lost and (recovery.torn_bytes > 0) == (lost > 0)
        assert is_prefix(read_all(files), sent) and len(read_all(files)) == whole


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "live"])
@pytest.mark.parametrize("commit", range(len(SIZES)))
def test_damage_in_the_middle_is_refused_and_in_a_live_tail_cut(closed: bool, commit: int) -> None:
    good, sent, starts = FILES[closed]
    before = sum(SIZES[:commit])
    for at in range(starts[commit], starts[commit + 1], 13):
        bad = bytearray(good)
        bad[at] ^= 0xFF
        files = MemoryFiles.of({NAME: bytes(bad)})
        report = verify(DIRECTORY, files=files)
        tail = commit == len(SIZES) - 1 and not closed
        assert report.status is (Status.TORN if tail else Status.CORRUPT), at
        assert report.messages == before
        if tail:
            assert recover(files, DIRECTORY, SPEC.name, 1).position == before
            continue
        with pytest.raises(JournalCorrupt, match="damaged before its end") as caught:
            recover(files, DIRECTORY, SPEC.name, 1)
        assert starts[commit] <= caught.value.offset < starts[commit + 1]
        assert f"byte {caught.value.offset:,}" in str(caught.value) and "spindle journal repair" in str(caught.value)
        assert files.content() == {NAME: bytes(bad)}
        assert len(read_what_is_there(files)) == before
        salvaged = read_what_is_there(files, skip_damaged=True)
        assert [one.position for one in salvaged] == [
            place for place in range(len(sent)) if not before <= place < before + SIZES[commit]
        ]


def test_a_repair_leaves_damage_in_the_middle_alone() -> None:
    good, _, starts = FILES[False]
    bad = bytearray(good)
    bad[starts[2] + 60] ^= 1
    files = MemoryFiles.of({NAME: bytes(bad)})
    report = verify(DIRECTORY, repair=True, files=files)
    assert report.status is Status.CORRUPT and not report.files[0].repaired
    assert files.content()[NAME] == bytes(bad)


def test_a_repair_cuts_a_torn_tail_and_keeps_it() -> None:
    good, _, starts = FILES[False]
    cut = starts[-1] - 11
    files = MemoryFiles.of({NAME: good[:cut]})
    report = verify(DIRECTORY, repair=True, files=files)
    assert report.ok and report.files[0].repaired and report.files[0].torn_bytes == cut - starts[-2]
    assert files.content()[NAME + ".torn"] == good[starts[-2] : cut]
    again = verify(DIRECTORY, files=files)
    assert again.ok and again.files[0].closed and not again.files[0].repaired


def test_a_torn_tail_full_of_old_commits_is_still_a_torn_tail() -> None:
    """A message may hold a piece of the journal itself, even its newest commits; that is no sign of good data."""
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    made = batches([2, 2, 2], 50)
    file.append(made[0])
    file.append(made[1])
    piece = bytes(files.content()[NAME][: file.end])
    start = file.end
    file.append([(piece, made[2][0][1])])
    cut = files.content()[NAME][: file.end - 5]
    report = verify(DIRECTORY, files=MemoryFiles.of({NAME: cut}))
    assert report.status is Status.TORN and report.messages == 4 and report.files[0].data_end == start


def test_commits_of_another_file_are_not_accepted() -> None:
    """The stale tail of an older log: good commits, but of a file with another id."""
    good, _, starts = FILES[False]
    files = MemoryFiles()
    other = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 2))
    for batch in batches(SIZES, 60):
        other.append(batch)
    foreign = files.content()[NAME]
    assert starts[-1] == other.end
    spliced = good[: starts[3]] + foreign[starts[3] :]
    report = verify(DIRECTORY, files=MemoryFiles.of({NAME: spliced}))
    assert report.status is Status.TORN and report.messages == sum(SIZES[:3])


def test_a_commit_twice_or_missing_is_damage() -> None:
    good, _, starts = FILES[False]
    twice = good[: starts[3]] + good[starts[2] : starts[3]] + good[starts[3] :]
    without = good[: starts[2]] + good[starts[3] :]
    without_last_but_one = good[: starts[3]] + good[starts[4] :]
    for bad in (twice, without, without_last_but_one):
        report = verify(DIRECTORY, files=MemoryFiles.of({NAME: bad}))
        assert report.status is Status.CORRUPT


@pytest.mark.parametrize("back", [1, 3])
def test_a_place_in_the_order_never_comes_again(back: int) -> None:
    """A file that somebody wrote who did not look: its second commit begins with the last place of the first, or
    earlier. Everything else about it is right."""
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    first = messages(4)
    last = first[-1][1].sequence
    file.append(first)
    file.last = file.last[0], 0
    file.append(messages(4, start=4, sequence=last - back))
    file.close()
    report = verify(DIRECTORY, files=MemoryFiles.of(files.content()))
    assert report.status is not Status.OK and "falls back" in str(report), report


def test_a_place_beyond_64_bits_is_damage() -> None:
    """Goal: whoever reads on may rely on it that a place in the order fits 64 bits."""
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    file.append(messages(4))
    file.append(messages(4, start=4, view_id=1 << 64))
    file.close()
    report = verify(DIRECTORY, files=MemoryFiles.of(files.content()))
    assert report.status is not Status.OK and "further than 64 bits" in str(report), report


def test_a_commit_that_counts_more_than_its_chunk_holds_is_damage() -> None:
    """A commit of one message that says a hundred, in its indexes too, with the checksums to match. Goal: whoever
    reads on may rely on it that the messages counted have room in the chunk."""
    good, _, (start, end, *_) = FILES[False]
    files = MemoryFiles.of({NAME: good})
    scan = Scan(files, files.open(DIRECTORY / NAME), DIRECTORY / NAME)
    layout, body = next(scan.commits())
    (channel,) = layout.index_offsets
    head = good[start : start + CHUNK.size]
    index = INDEX.pack(Opcode.MESSAGE_INDEX, INDEX.size - RECORD.size + 100 * INDEX_ENTRY, channel, 100 * INDEX_ENTRY)
    index += bytes(100 * INDEX_ENTRY)
    record = dataclasses.replace(layout.record, count=100, length=CHUNK.size + len(body) + len(index))
    seal = encode_commit_record(scan.head, record, start + record.length, zlib.crc32(index, zlib.crc32(head)))
    data = good[: start + CHUNK.size] + body + index + seal
    assert layout.record.count == 1 and layout.end == end
    size = len(data) + RECORD.size + 100 + len(LIVE_TRAILER)
    forged = data + padding_header(len(data), size) + bytes(100) + LIVE_TRAILER
    files = MemoryFiles.of({NAME: forged})
    scan = Scan(files, files.open(DIRECTORY / NAME), DIRECTORY / NAME).run()
    assert scan.state is State.TORN and "fewer messages than" in str(scan.damage), scan.damage


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "live"])
def test_bytes_behind_the_end_are_not_whole(closed: bool) -> None:
    """The `mcap` library looks for the footer at the very end, so nothing may follow it."""
    good, sent, _ = FILES[closed]
    files = MemoryFiles.of({NAME: good + b"something"})
    assert verify(DIRECTORY, files=files).status is Status.TORN
    assert verify(DIRECTORY, repair=True, files=files).messages == len(sent)
    assert verify(DIRECTORY, files=files).ok


def test_random_noise_of_all_sizes() -> None:
    draw = random.Random(7)
    for size in range(0, 3000, 61):
        data = draw.randbytes(size) + LIVE_TRAILER
        report = verify(DIRECTORY, files=MemoryFiles.of({NAME: data}))
        assert report.status is Status.CORRUPT and "not a journal" in report.problems[0]


def test_export_ends_with_the_error(tmp_path: pytest.TempPathFactory) -> None:
    good, _, starts = FILES[True]
    bad = bytearray(good)
    bad[starts[1] + 70] ^= 4
    files = MemoryFiles.of({NAME: bytes(bad)})
    out = tmp_path / "out.jsonl"  # type: ignore[operator]
    with pytest.raises(JournalCorrupt):
        export(DIRECTORY, out, files=files)
    assert len(out.read_text().splitlines()) == SIZES[0]
    assert export(DIRECTORY, out, files=files, skip_damaged=True) == sum(SIZES) - SIZES[1]
