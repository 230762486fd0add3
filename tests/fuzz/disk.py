"""Fuzz targets: journals and the standings beside them, whose bytes a disk, a crash or somebody else may have changed.

Why checksums are made right here: behind a CRC a fuzzer finds nothing by chance. An input is a list of edits of good
files, after which every seal and every chunk's checksum is computed anew, so that what is reached is the parsing of
values that lie; and the same without, which is what damage looks like.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import zlib
from collections.abc import Iterator

from spindle.errors import JournalError
from spindle.journal.errors import JournalCorrupt, NotAJournal
from spindle.journal.format import CHUNK, COMMIT_NAME, FOOTER_SIZE, HEAD_NAME, MAGIC, RECORD
from spindle.journal.live import JournalFile
from spindle.journal.recovery import Recovery, recover
from spindle.journal.tools import Status, info, read, verify
from spindle.restart.chain import Holders, Life, Standing, Successor
from spindle.restart.ledger import decode, encode, ledger_path
from tests.fuzz.target import Cutter, target
from tests.spindle.journal.fakes import SPEC, FakeInfo, MemoryFiles
from tests.spindle.journal.scripted import DIRECTORY, batches, head_after, is_prefix, read_all

NAME = "flight%2Fair%20data-1-000001.mcap"
RAW, RESEALED, EDITED = range(3)  # what the first byte of an input says


def _make(closed: bool) -> tuple[bytes, list[tuple[bytes, FakeInfo]]]:
    files = MemoryFiles()
    file = JournalFile.create(files, DIRECTORY, head_after(Recovery(), 1))
    made = batches([1, 3, 2], 30)
    for batch in made:
        file.append(batch)
        file.sync()
    if closed:
        file.close()
        return files.content()[NAME], [pair for batch in made for pair in batch]
    # The unused rest of a live file is a megabyte of zeros: cut to what tells the same.
    whole = files.content()[NAME]
    end, trailer = file.end, whole[whole.rindex(RECORD.pack(0x0F, 4)) :]
    return whole[:end] + RECORD.pack(0x80, 100) + bytes(100) + trailer, [pair for batch in made for pair in batch]


logging.getLogger("spindle.journal").setLevel(logging.ERROR)  # every torn tail is worth a line, but not here
GOOD = [_make(closed) for closed in (False, True)]


def _inputs() -> Iterator[bytes]:
    for number, (data, _) in enumerate(GOOD):
        yield bytes([RAW]) + data
        yield bytes([RESEALED]) + data
        for at in range(0, len(data), 97):
            yield bytes([EDITED, number, 1]) + at.to_bytes(2, "little") + b"\x01\x00\xff"
        yield bytes([EDITED, number, 0]) + b"\x50\x03\x00\x05"


@target(_inputs, size_max=8192)
def journal(data: bytes) -> None:
    """Journal files: never more than was written, never an error but ours, and corrupt ones are not touched."""
    cutter = Cutter(data)
    kind, sent = cutter.number() % 3, None
    if kind == EDITED:
        good, sent = GOOD[cutter.number() % 2]
        seal = cutter.number() % 2
        content = _edited(good, cutter)
        if seal:
            content, sent = resealed(content), None
    else:
        content = resealed(cutter.rest) if kind == RESEALED else cutter.rest
    report = verify(DIRECTORY, files=MemoryFiles.of({NAME: content}))
    info(DIRECTORY, files=MemoryFiles.of({NAME: content}))
    got = _read(content, skip_damaged=False)
    salvaged = _read(content, skip_damaged=True)
    files = MemoryFiles.of({NAME: content})
    try:
        recovery = recover(files, DIRECTORY, SPEC.name, 1)
    except (JournalCorrupt, NotAJournal):
        assert report.status is Status.CORRUPT
        assert files.content() == {NAME: content}, "a corrupt file must not be touched"
        recovery = None
    if sent is None:
        return  # right checksums over nonsense: `verify` looks deeper than a start of the node
    # Whoever can't make checksums right can't make messages either.
    assert len(got) <= report.messages and is_prefix(got, sent)
    assert all(message.payload == sent[message.position][0] for message in salvaged)
    if recovery is not None:
        assert report.status is not Status.CORRUPT
        assert verify(DIRECTORY, files=MemoryFiles.of({NAME: files.content()[NAME]})).status is Status.OK
        assert [one.payload for one in read_all(files)] == [one.payload for one in got]
        again = recover(files, DIRECTORY, SPEC.name, 1)
        assert again == dataclasses.replace(recovery, torn_path=None, torn_bytes=0)


def _read(content: bytes, skip_damaged: bool) -> list:
    got = []
    try:
        for message in read(DIRECTORY, files=MemoryFiles.of({NAME: content}), skip_damaged=skip_damaged):
            got.append(message)
    except JournalError:
        pass
    return got


def _edited(good: bytes, cutter: Cutter) -> bytes:
    content = bytearray(good)
    while cutter.rest:
        at = min(cutter.number(2), len(content))
        what, size = cutter.number(), cutter.number() % 64
        some = cutter.take(min(size, len(cutter.rest)))
        if what % 4 == 0:
            content[at : at + len(some)] = some
        elif what % 4 == 1:
            content[at:at] = some
        elif what % 4 == 2:
            del content[at : at + size]
        else:
            del content[at:]
    return bytes(content)


def resealed(content: bytes) -> bytes:
    """The same file with every checksum made right, as far as its records can be followed."""
    data = bytearray(content)
    offset = commit = len(MAGIC)
    crc, head, summary = zlib.crc32(bytes(data[:offset])), True, 0
    while offset + RECORD.size <= len(data):
        opcode, length = RECORD.unpack_from(data, offset)
        end = offset + RECORD.size + length
        if end > len(data):
            break
        if opcode == 0x06 and length >= CHUNK.size - RECORD.size:
            commit = offset
            struct.pack_into("<I", data, offset + 33, zlib.crc32(bytes(data[offset + CHUNK.size : end])))
            crc = zlib.crc32(bytes(data[offset : offset + CHUNK.size]))
        elif opcode == 0x0C and _is_sealed(data[offset:end]):
            data[end - 8 : end] = b"%08x" % zlib.crc32(bytes(data[offset : end - 8]), crc)
            head = False
        elif opcode == 0x0F:
            summary = end
        elif opcode == 0x02 and summary and end - offset == FOOTER_SIZE:
            tail = zlib.crc32(bytes(data[summary : end - 4]))
            if summary != offset:
                struct.pack_into("<I", data, end - 4, tail)
        elif head or commit:
            crc = zlib.crc32(bytes(data[offset:end]), crc)
        offset = end
    return bytes(data)


def _is_sealed(record: bytearray) -> bool:
    return HEAD_NAME.encode() in record[:64] or COMMIT_NAME.encode() in record[:64]


STANDINGS = (
    Standing(),
    Standing((Life("00ff.3", 3), Life("00ff.9", 9, (8, 5))), Holders(9, (1, 5)), True, None, 9),
    Standing((Life("00ff.3", 3),), Holders(3, (1,)), False, Successor(Holders(11, (5,)), (1, 5)), 8),
)


def _standings() -> Iterator[bytes]:
    for one in STANDINGS:
        whole = encode(one, SPEC.name, 1)
        yield b"\0" + whole
        yield b"\1" + whole.partition(b"\n")[0]
    yield b"\1" + b"[" * 3000


@target(_standings)
def standing(data: bytes) -> None:
    """The file that says who held a topic: read back as it was written, or refused as damaged; with its checksum made
    right if the first byte is odd."""
    path = ledger_path(DIRECTORY, SPEC.name, 1)
    content, seal = data[1:], data[:1] and data[0] % 2
    if seal:
        content += b"\n%08x\n" % zlib.crc32(content)
    try:
        found = decode(content, path)
    except JournalCorrupt as error:
        assert str(path) in str(error)
        return
    assert decode(encode(found, SPEC.name, 1), path) == found
    assert seal or found in STANDINGS


__all__ = ["journal", "standing"]
