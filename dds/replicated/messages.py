"""What goes through the topic of a replicated object. All of it is in one order; what each entry means follows from
those before it, at every replica alike (`dds.replicated.machine`)."""

from __future__ import annotations

import dataclasses
import enum

from dds.idl import IdlStruct
from dds.rpc.messages import ID_BYTES, Bytes16, Long, Short

ROOM = 512  # bytes of an entry beside its body, at most
NONE = bytes(ID_BYTES)


class Kind(enum.IntEnum):
    """What an entry is for."""

    JOIN = 1  # its origin has come, and reads
    GENESIS = 2  # if there is no object yet, one begins here
    COMMAND = 3  # a method to be carried out
    LIVE = 4  # its origin has the state, and carries out commands
    WANT = 5  # its origin needs a snapshot
    SNAPSHOT = 6  # its origin takes the snapshot `number` of the state as it is here
    PIECE = 7  # part of that snapshot
    GONE = 8  # the replica in `body` is there no more
    CHECK = 9  # the digest of its origin's state after command `number`


@dataclasses.dataclass
class Entry(IdlStruct, typename="dds::replicated::Entry"):
    """One entry.

    origin   the replica that wrote it
    lineage  of the object that it is about: the replica with which that began; NONE where there is none yet
    number   of a command among those of its origin, of a snapshot, of the command that is checked
    part, parts  of a snapshot
    name     of the method
    body     arguments, piece, digest, id of a replica, or of a LIVE and a SNAPSHOT the signature of its class
    """

    kind: Short
    origin: Bytes16
    lineage: Bytes16
    number: Long = 0
    part: Short = 0
    parts: Short = 0
    name: str = ""
    body: bytes = b""


__all__ = ["ID_BYTES", "NONE", "Entry", "Kind"]
