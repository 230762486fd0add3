"""What the talkers publish: every message says who sent it, in which life, as which one, and proves that it is whole.

Why all of that in the payload: the checker must not believe the system that it examines. What the samples' own infos
say is compared with what the payload says.

Rules: an *epoch* here is one life of one writer, unique in a run; numbers of an epoch count from 0 without gaps, and a
write that timed out is tried again with the same number. The content follows from epoch and number, so that a retry
sends the same bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

HEADER = struct.Struct("<4sHHIIQ")  # magic, topic number, node of the sender, epoch, size of the whole message, number
CRC = struct.Struct("<I")
MAGIC = b"chs1"
SIZE_MIN = HEADER.size + CRC.size
SIZE_MAX = 2048

_FILLING = bytes((i * 167 + (i >> 8) * 59) & 0xFF for i in range(3 * SIZE_MAX))


class Damaged(ValueError):
    """A payload that no talker has written."""


class Stamp(NamedTuple):
    """What a message says of itself."""

    topic: int
    node: int
    epoch: int
    number: int


def encode(stamp: Stamp, size: int) -> bytes:
    """The message of `size` bytes, SIZE_MIN to SIZE_MAX."""
    start = (stamp.epoch * 31 + stamp.number * 17) % SIZE_MAX
    head = HEADER.pack(MAGIC, stamp.topic, stamp.node, stamp.epoch, size, stamp.number)
    body = head + _FILLING[start : start + size - SIZE_MIN]
    return body + CRC.pack(zlib.crc32(body))


def decode(payload: bytes) -> Stamp:
    """What a payload says of itself. Raises Damaged."""
    if len(payload) < SIZE_MIN:
        raise Damaged(f"a message of {len(payload)} bytes: {payload.hex()}")
    body, (crc,) = payload[: -CRC.size], CRC.unpack_from(payload, len(payload) - CRC.size)
    magic, topic, node, epoch, size, number = HEADER.unpack_from(payload)
    if magic != MAGIC or size != len(payload) or crc != zlib.crc32(body):
        raise Damaged(f"a message of {len(payload)} bytes that begins with {payload[:SIZE_MIN].hex()}")
    return Stamp(topic, node, epoch, number)


def size_of(epoch: int, number: int, largest: int = SIZE_MAX) -> int:
    """The size that message `number` of `epoch` has: mostly small, sometimes the least or the largest possible."""
    draw = (epoch * 2654435761 + number * 40503) >> 3
    if draw % 97 == 0:
        return largest
    if draw % 89 == 0:
        return SIZE_MIN
    return SIZE_MIN + draw % min(200, largest - SIZE_MIN + 1)


__all__ = ["SIZE_MAX", "SIZE_MIN", "Damaged", "Stamp", "decode", "encode", "size_of"]
