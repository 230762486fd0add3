"""What a member tells another one so that both become peers over verbs: opaque to whoever carries it.

Little-endian: a magic number with the version of the format, the rank of the member that it is of, the ends of its
connections (queue pair, that for what goes ahead, that of the reader which they are connected to, first packet number,
LID, GID), what these can do, the places and keys of its copy of the reader's row and of the connection's page, and a
CRC-32 of everything before.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAGIC = b"SPV4"
BODY = struct.Struct("<4sHIIIIHBB16sHBQQIQQI")
CRC = struct.Struct("<I")
SIZE = BODY.size + CRC.size


@dataclass(frozen=True)
class Memory:
    """A registered range: `address` in its owner's process, `size` in bytes, `key` to reach it with."""

    address: int
    size: int
    key: int


@dataclass(frozen=True)
class Address:
    """One end of a connection. `mtu` as verbs number it; `rings` and `reads`: that this end takes at once; `ahead`: the
    queue pair for what need not wait (0: it has none, everything goes one way); `there`: the queue pair of the other
    side that `queue_pair` is connected to from before (0: none); `page`: where the other side says which epochs are
    over."""

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
    ahead: int = 0
    there: int = 0
    page: Memory = Memory(0, 0, 0)

    def pack(self) -> bytes:
        data = BODY.pack(
            MAGIC, self.rank, self.queue_pair, self.ahead, self.there, self.packet, self.lid, self.link_layer,
            self.mtu, self.gid, self.rings, self.reads, self.row.address, self.row.size, self.row.key,
            self.page.address, self.page.size, self.page.key)
        return data + CRC.pack(zlib.crc32(data))

    @classmethod
    def parse(cls, data: bytes) -> Address:
        """ValueError if these bytes are no address of this version."""
        if len(data) != SIZE or data[:4] != MAGIC:
            raise ValueError(f"{len(data)} bytes that are no verbs address of this version: run the same release on"
                             " all nodes")
        if CRC.unpack_from(data, BODY.size)[0] != zlib.crc32(data[: BODY.size]):
            raise ValueError("a verbs address that was damaged on its way")
        (_, rank, queue_pair, ahead, there, packet, lid, link_layer, mtu, gid, rings, reads, row, row_size, row_key,
         page, page_size, page_key) = BODY.unpack_from(data)
        return cls(rank, queue_pair, packet, lid, link_layer, mtu, gid, rings, reads, Memory(row, row_size, row_key),
                   ahead, there, Memory(page, page_size, page_key))
