"""Inline Qos: what a reader must know of a writer to judge a sample, sent along with the sample.

Why with each sample: what peers announce of an endpoint reaches each of them when it does, before or behind the first
samples. Whether a sample counts must not depend on that: with it in the message, every reader decides alike, also one
that reads a history whose writers are gone. (RTPS does the same for these policies, as inline Qos of DATA, 8.3.7.2.)

Where it is: behind the payload of a message with CARRIES_QOS in its tag. A writer whose policies ask for nothing sends
none.

Nodes keep the last samples of each key, and don't know what partitions are. So the key of a message is made of its
instance and of the partitions: who comes late to some finds there what was last written to these.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from hashlib import blake2b
from typing import Any

from dds.internal import dds_infinity
from dds.policy.policies import partitions
from dds.policy.table import PARTITIONS_MAX
from dds.qos import Policy, Qos

# Strength, bytes of the partitions' names in front of this, lifespan. That is last: nodes look for it there.
_FIXED = struct.Struct("<iHq")
_LENGTH = slice(-10, -8)
STRENGTH_PLACE = _FIXED.size  # bytes before the end, where nodes look for the strength
ROOM = 64  # bytes that a topic whose type has a largest sample leaves for it


@dataclasses.dataclass(frozen=True)
class InlineQos:
    """lifespan in ns, 0 = for ever; strength of the writer, for exclusive ownership; partitions it writes to."""

    lifespan: int = 0
    strength: int = 0
    partitions: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """What goes behind each payload; empty if there is nothing to say."""
        if self == NOTHING:
            return b""
        names = "\0".join(self.partitions).encode()
        return names + _FIXED.pack(self.strength, len(names), self.lifespan)

    @property
    def key_mask(self) -> int:
        """By exclusive or with the handle of an instance, and 0 for types without a key, the key of what is written to
        these partitions. Without partitions it is the handle itself."""
        if not self.partitions:
            return 0
        names = "\0".join(sorted(set(self.partitions))).encode()
        return int.from_bytes(blake2b(names, digest_size=8).digest(), "little") >> 1


NOTHING = InlineQos()


def of_writer(qos: Qos) -> InlineQos:
    """What a writer with this Qos says of itself."""
    lifespan, strength = qos[Policy.Lifespan], qos[Policy.OwnershipStrength]
    return InlineQos(
        0 if lifespan is None or lifespan.lifespan >= dds_infinity else lifespan.lifespan,
        0 if strength is None else strength.strength, partitions(qos))


def split(data: Any) -> tuple[Any, InlineQos]:
    """The payload and what came behind it; of a memoryview a view. ValueError for what no writer sends."""
    size = _size_in(data)
    return data[:-size], _decoded(bytes(data[-size:]))


def _size_in(data: Any) -> int:
    """Bytes of it behind a payload. Raises as split()."""
    if len(data) < _FIXED.size:
        raise ValueError(f"a message of {len(data)} bytes has no room for the inline Qos that it announces")
    size = _FIXED.size + int.from_bytes(data[_LENGTH], "little")
    if size > len(data):
        raise ValueError(f"a message of {len(data)} bytes announces {size} bytes of inline Qos")
    return size


def lifespan_of(data: bytes) -> int:
    """What is said of it behind a payload, ns; 0 = for ever. ValueError for what no writer sends."""
    return _decoded(bytes(data[-_size_in(data):])).lifespan


@functools.lru_cache(maxsize=256)
def _decoded(data: bytes) -> InlineQos:
    strength, length, lifespan = _FIXED.unpack(data[-_FIXED.size:])
    if length > PARTITIONS_MAX:
        raise ValueError(f"{length} bytes of partitions' names: {PARTITIONS_MAX} are the most")
    names = data[:length].decode()  # UnicodeDecodeError is a ValueError
    if lifespan < 0:
        raise ValueError(f"a lifespan of {lifespan} ns")
    return InlineQos(lifespan, strength, tuple(names.split("\0")) if length else ())


__all__ = ["NOTHING", "ROOM", "InlineQos", "lifespan_of", "of_writer", "split"]
