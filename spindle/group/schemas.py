"""Schemas: how the payloads of a topic are to be decoded, said in the terms of MCAP and of Foxglove.

Why in the group's values: the layer above knows types and makes schemas of them (`dds.codecs.schemas`); nodes put them
into files. A node knows no types: a writer that says what its type is (`spindle.group.types`) says the schema along
with it, and a node takes it as it stands.

Rules: what comes from programs is bounded, and only ever handed on. Whatever can't be understood counts as not said.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b85decode, b85encode
from typing import Any

SCHEMA_BYTES_MAX = 256 << 10  # of one schema's text, not compressed
WORD_BYTES_MAX = 1024  # of a name or an encoding
OPAQUE = "application/octet-stream"  # message encoding of what only its writers and readers understand


@dataclasses.dataclass(frozen=True)
class MessageSchema:
    """How the payloads of a type are to be decoded.

    name              the type's full name
    encoding          of `data`: "omgidl", "protobuf", "ros1msg"...; "" if there is no description
    data              the description; empty if `encoding` is
    message_encoding  of the payloads: "cdr", "protobuf", "ros1"...
    mark              of IDL types: bytes 2 and 3 of their payloads, which tell the types of one topic apart; else empty
    """

    name: str
    encoding: str = ""
    data: bytes = b""
    message_encoding: str = OPAQUE
    mark: bytes = b""

    def fits(self, payload: bytes) -> bool:
        """False if the payload is of another type. Payloads without a mark may be of any."""
        return not self.mark or payload[2:4] in (self.mark, NO_MARK)


NO_MARK = b"\0\0"


def said_of(schema: MessageSchema, description: bytes = b"") -> dict[str, Any]:
    """The schema in values that JSON knows. Left out where it is the `description` that stands beside it."""
    said: dict[str, Any] = {"name": schema.name, "is": schema.encoding, "of": schema.message_encoding}
    if schema.mark:
        said["mark"] = schema.mark.hex()
    if schema.data and schema.data != description:
        import zlib

        said["text"] = b85encode(zlib.compress(schema.data, 9)).decode()
    return said


def schema_in(said: bytes) -> MessageSchema | None:
    """The schema that a writer says along with its type; None if it says none, or nonsense."""
    try:
        about = json.loads(said)["of"]
        one = about["schema"]
        text = one["text"] if "text" in one else about["is"]
        words = name, encoding, message_encoding = str(one["name"]), str(one["is"]), str(one["of"])
        if not all(word.isprintable() and len(word.encode()) <= WORD_BYTES_MAX for word in words):
            return None
        mark = bytes.fromhex(one.get("mark", ""))
        data = _unpacked(text)
        return MessageSchema(name, encoding, data, message_encoding, mark) if len(mark) in (0, 2) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _unpacked(text: str) -> bytes:
    """Raises ValueError."""
    import zlib

    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(b85decode(text), SCHEMA_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpack.eof:
        raise ValueError(f"a schema of more than {SCHEMA_BYTES_MAX} bytes")
    return data


__all__ = ["NO_MARK", "OPAQUE", "SCHEMA_BYTES_MAX", "MessageSchema", "said_of", "schema_in"]
