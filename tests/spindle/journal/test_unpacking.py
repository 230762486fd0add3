"""Goal: a chunk is what it says, or it is refused: no few bytes of a hostile file become many, and nothing is left out.
Method: chunks that lie, of each compression."""

from __future__ import annotations

import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from mcap.records import Chunk

from spindle.journal.unpacking import CHUNK_MAX, unpacked

PACKED = {
    "": lambda data: data, "zstd": zstandard.compress, "lz4": lz4.frame.compress,
    "zstd without a size": zstandard.ZstdCompressor(write_content_size=False).compress,
    "zstd twice": lambda data: zstandard.compress(data[:5]) + zstandard.compress(data[5:]),
    "lz4 twice": lambda data: lz4.frame.compress(data[:5]) + lz4.frame.compress(data[5:]),
}


def chunk(compression: str, data: bytes, size: int, crc: int = 0) -> Chunk:
    return Chunk(compression=compression.split()[0] if compression else "", data=data, message_start_time=0,
                 message_end_time=0, uncompressed_crc=crc, uncompressed_size=size)


@pytest.mark.parametrize("compression", PACKED)
def test_it_has_what_it_says(compression: str) -> None:
    data = bytes(range(256)) * 10
    packed = PACKED[compression](data)
    assert unpacked(chunk(compression, packed, len(data), zlib.crc32(data))) == data
    assert unpacked(chunk(compression, packed, len(data))) == data
    assert unpacked(chunk(compression, PACKED[compression](b""), 0)) == b""
    for wrong, says in ((chunk(compression, packed, len(data), 1), "its checksum does not match"),
                        (chunk(compression, packed, len(data) - 1), "claims 2,559 bytes, and has more"),
                        (chunk(compression, packed, len(data) + 1), "claims 2,561 bytes, and has 2,560"),
                        (chunk(compression, packed, CHUNK_MAX + 1), "are the most")):
        with pytest.raises(ValueError, match=says):
            unpacked(wrong)


@pytest.mark.parametrize("compression", [one for one in PACKED if one])
def test_it_becomes_no_more_than_it_says(compression: str) -> None:
    """Bombs: 64 MiB of zeros in a few kB."""
    packed = PACKED[compression](bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="claims 1,000 bytes, and has more"):
            unpacked(chunk(compression, packed, 1000))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", ["zstd", "lz4", "brotli"])
def test_what_is_not_packed_as_it_says(compression: str) -> None:
    with pytest.raises(ValueError, match=r"can't be unpacked|'brotli' is not known|and has 0"):
        unpacked(chunk(compression, b"no frame at all", 100))


def test_the_largest_sample_has_a_place() -> None:
    assert CHUNK_MAX > 4 << 30
