"""What goes through the two topics of a service: requests and replies. After DDS-RPC 1.0, 7.5.1 (the basic mapping).

A request names its caller (guid of the client and a number that counts its calls: DDS-RPC's SampleIdentity) and the
server that is to carry it out; every server of the service sees it, one of them does it. A reply names the request that
it belongs to; every client of the service sees it, one of them takes it.

Why the arguments travel as bytes: DDS-RPC makes a union of all operations the topic's type, so that two programs must
have the very same service. Here each operation carries the signature of its own types, and a program that knows more
operations than its peer can still call those that both know.

Rules: an identity is 16 bytes. A message of any other program may carry anything; who gets one believes nothing of it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, TypeAlias

from dds.idl import IdlStruct
from dds.idl.types import array, int32, int64, uint8

ID_BYTES = 16
ROOM = 1024  # bytes of a request or reply beside the arguments or the result, at most
NOBODY = bytes(ID_BYTES)

if TYPE_CHECKING:
    Bytes16: TypeAlias = bytes
    Long: TypeAlias = int
    Short: TypeAlias = int
else:
    Bytes16, Long, Short = array[uint8, ID_BYTES], int64, int32


class Code(enum.IntEnum):
    """What became of a call. DDS-RPC 1.0, 7.5.1.1.1 (RemoteExceptionCode_t), and what it lacks."""

    OK = 0
    UNSUPPORTED = 1  # not used
    INVALID_ARGUMENT = 2  # not carried out: the arguments don't fit
    OUT_OF_RESOURCES = 3  # not carried out: the queue is full
    UNKNOWN_OPERATION = 4  # not carried out: there is no such operation
    UNKNOWN_EXCEPTION = 5  # the operation raised an exception that nobody has declared
    DECLARED_EXCEPTION = 6  # ... that is declared
    OVERTAKEN = 7  # to nobody in particular: requests may have been lost at this server
    RESULT_LOST = 8  # carried out, but there is no result that could be sent


@dataclasses.dataclass
class Request(IdlStruct, typename="dds::rpc::Request"):
    """One call.

    client, number  its identity
    server          which server is to do it; NOBODY = every one (ordered services)
    timeout         ns that its caller waits, from when it was written
    signature       of the operation's types
    """

    client: Bytes16
    number: Long
    server: Bytes16
    timeout: Long
    signature: Bytes16
    operation: str
    arguments: bytes


@dataclasses.dataclass
class Reply(IdlStruct, typename="dds::rpc::Reply"):
    """What became of one call.

    client, number  of the call
    error           name of the exception's class
    body            the result; for an exception what it says or its fields; for other codes a text
    """

    client: Bytes16
    number: Long
    code: Short
    error: str
    body: bytes


@dataclasses.dataclass(frozen=True)
class Announcement:
    """What the endpoints of a client or server say of themselves in their user data.

    role      "client" or "server"
    id        16 bytes
    instance  name of a server among those of its service
    """

    role: str
    id: bytes
    instance: str = ""

    def encode(self) -> bytes:
        return json.dumps({"rpc": self.role, "id": self.id.hex(), "instance": self.instance}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Announcement | None:
        """None for what no client or server says."""
        try:
            said = json.loads(data)
            one = cls(said["rpc"], bytes.fromhex(said["id"]), said["instance"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return one if len(one.id) == ID_BYTES and isinstance(one.role, str) and isinstance(one.instance, str) else None


__all__ = ["ID_BYTES", "NOBODY", "Announcement", "Bytes16", "Code", "Long", "Reply", "Request", "Short"]
