"""What a member tells another one so that both become peers over verbs: opaque to whoever carries it.

Little-endian: a magic number with the version of the format, the size of it all, the rank of the member that it is of,
the ends of its connections (queue pair, that for what goes ahead, first packet number, LID, GID), what these can
do, the place and key of its copy of the reader's row, the memories that it has registered, and a CRC-32 of everything
before.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAGIC = b"SPV2"
HEAD = struct.Struct("<4sHHIIIHBB16sHBBQQI")
MEMORY = struct.Struct("<QQI")
CRC = struct.Struct("<I")
MEMORIES_MAX = 16
SIZE_MAX = HEAD.size + MEMORIES_MAX * MEMORY.size + CRC.size


@dataclass(frozen=True)
class Memory:
    """A registered range: `address` in its owner's process, `size` in bytes, `key` to reach it with."""

    address: int
    size: int
    key: int


@dataclass(frozen=True)
class Address:
    """One end of a connection. `mtu` as verbs number it; `rings` and `reads`: that this end takes at once; `ahead`: the
    queue pair for what need not wait (0: it has none, everything goes one way)."""

    rank: int
    queue_pair: int
    packet: int
    lid: int
    link_layer: int
    mtu: int
    gid: bytes
    rings: int
    reads: int
    row: Memory
    memories: tuple[Memory, ...] = ()
    ahead: int = 0

    def pack(self) -> bytes:
        size = HEAD.size + len(self.memories) * MEMORY.size + CRC.size
        data = HEAD.pack(
            MAGIC, size, self.rank, self.queue_pair, self.ahead, self.packet, self.lid, self.link_layer, self.mtu,
            self.gid, self.rings, self.reads, len(self.memories), self.row.address, self.row.size, self.row.key,
        ) + b"".join(MEMORY.pack(m.address, m.size, m.key) for m in self.memories)
        return data + CRC.pack(zlib.crc32(data))

    @classmethod
    def parse(cls, data: bytes) -> Address:
        """ValueError if these bytes are no address of this version."""
        if len(data) < HEAD.size + CRC.size or len(data) > SIZE_MAX or data[:4] != MAGIC:
            raise ValueError(f"{len(data)} bytes that are no verbs address of this version: run the same release on"
                             " all nodes")
        (_, size, rank, queue_pair, ahead, packet, lid, link_layer, mtu, gid, rings, reads, n, row, row_size,
         row_key) = HEAD.unpack_from(data)
        if size != len(data) or size != HEAD.size + n * MEMORY.size + CRC.size:
            raise ValueError(f"a verbs address of {len(data)} bytes that says {size} for {n} memories")
        if CRC.unpack_from(data, size - CRC.size)[0] != zlib.crc32(data[: size - CRC.size]):
            raise ValueError("a verbs address that was damaged on its way")
        memories = tuple(Memory(*MEMORY.unpack_from(data, HEAD.size + k * MEMORY.size)) for k in range(n))
        return cls(rank, queue_pair, packet, lid, link_layer, mtu, gid, rings, reads, Memory(row, row_size, row_key),
                   memories, ahead)
