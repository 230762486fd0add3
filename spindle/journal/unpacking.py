"""What a chunk of an MCAP file holds, whoever wrote it.

Why not the library's: it lets a decompressor make as much as the compressed bytes say, so a small file could take all
memory; it takes bytes of a compression that it doesn't know for records; and it doesn't ask whether there is as much as
the chunk claims.
"""

from __future__ import annotations

import zlib

from mcap.records import Chunk

from spindle.group.topics import LARGE_SAMPLE_MAX

CHUNK_MAX = LARGE_SAMPLE_MAX + (64 << 20)  # bytes; the largest sample, with what a recording has in one chunk with it


def unpacked(chunk: Chunk) -> bytes:
    """Its records, checked by its size and CRC. Raises ValueError; no more than it claims is ever unpacked."""
    size = chunk.uncompressed_size
    if size > CHUNK_MAX:
        raise ValueError(f"it claims {size:,} bytes; {CHUNK_MAX:,} are the most")
    data = _decompressed(chunk, size)
    if len(data) != size:
        raise ValueError(f"it claims {size:,} bytes, and has {'more' if len(data) > size else f'{len(data):,}'}")
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        raise ValueError("its checksum does not match")
    return data


def _decompressed(chunk: Chunk, size: int) -> bytes:
    """Up to `size` + 1 bytes. Raises ValueError."""
    try:
        if chunk.compression == "zstd":
            return _zstd(chunk.data, size + 1)
        if chunk.compression == "lz4":
            return _lz4(chunk.data, size + 1)
    except MemoryError:
        raise ValueError(f"there is no memory for its {size:,} bytes") from None
    except Exception as error:  # what a decompressor raises is its own affair
        raise ValueError(f"it can't be unpacked: {type(error).__name__}: {error}") from None
    if chunk.compression:
        raise ValueError(f"its compression {chunk.compression[:40]!r} is not known here")
    return chunk.data


def _zstd(packed: bytes, most: int) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
        data: bytes = reader.read(most)
    return data


def _lz4(packed: bytes, most: int) -> bytes:
    import lz4.frame

    parts, got = [], 0
    while packed and got < most:
        unpacker = lz4.frame.LZ4FrameDecompressor()
        parts.append(unpacker.decompress(packed, max_length=most - got))
        got += len(parts[-1])
        packed = unpacker.unused_data if unpacker.eof else b""
    return b"".join(parts)


__all__ = ["CHUNK_MAX", "unpacked"]
