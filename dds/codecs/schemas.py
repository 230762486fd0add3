"""Schemas of topics' types, for tools that know MCAP or Foxglove and not Spindle.

    schema_of(Hello)             "cdr" with "omgidl": the class as IDL, all types in it before their first use
    schema_of(numpy.dtype(...))  "ros1" with "ros1msg": see below
    schema_of(a protobuf class)  "protobuf": a FileDescriptorSet
    schema_of(bytes)             no schema: payloads are what was written

Payloads stand in logs, journals and recordings as their codec made them, so a schema describes those very bytes.

Why ROS 1 for NumPy records: its messages are fields one behind the other, little-endian, without alignment or header,
and arrays of a fixed length have none either. So a record with fixed fields is such a message already, byte for byte.
What ROS 1 has no word for is said in what it has: padding, and fields in the other byte order, as uint8[n]; text of
fixed size as uint8[n] or uint32[n]; times as int64; complex numbers as two floats; half floats as uint16. A comment
says each time what the bytes are.

Rules: the same type gives the same schema, in every program. Types come from other programs, too: what has no schema
raises ValueError, and nothing else.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

from spindle.group.schemas import MessageSchema

_WORDS = {"b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
          "u4": "uint32", "u8": "uint64", "f4": "float32", "f8": "float64"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_PACKAGE = "numpy"


@functools.lru_cache(maxsize=256)
def schema_of(data_type: Any) -> MessageSchema:
    """The schema of a topic's type: `bytes`, an IDL class, a NumPy dtype or a protobuf message class. Raises TypeError
    for what is none of these, ValueError for one that can't be described."""
    if data_type is bytes:
        return MessageSchema("bytes")
    if hasattr(data_type, "__idl__"):
        return _of_idl(data_type)
    if isinstance(data_type, type) and hasattr(data_type, "DESCRIPTOR"):
        return MessageSchema(data_type.DESCRIPTOR.full_name, "protobuf", files_of(data_type), "protobuf")
    numpy = sys.modules.get("numpy")  # who has a dtype has imported it
    if numpy is not None and isinstance(data_type, numpy.dtype):
        return _of_dtype(data_type)
    raise TypeError(f"{data_type!r} is no type of a topic")


def _of_idl(cls: Any) -> MessageSchema:
    from dds.idl.codec import codec_of
    from dds.idl.members import type_name
    from dds.idl.printer import idl_text

    try:
        text = idl_text(cls, plain=True) + "\n"
        return MessageSchema(type_name(cls), "omgidl", text.encode(), "cdr", codec_of(cls).mark)
    except (TypeError, KeyError, AttributeError, RecursionError, UnicodeError) as error:
        raise ValueError(f"{cls.__name__} can't be said in IDL: {error}") from None


def files_of(cls: Any) -> bytes:
    """The file that describes a protobuf message, behind those that it needs: a FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found: dict[str, Any] = {}

    def add(file: Any) -> None:
        if file.name not in found:
            for one in file.dependencies:
                add(one)
            found[file.name] = file

    add(cls.DESCRIPTOR.file)
    files = FileDescriptorSet()
    for one in found.values():
        one.CopyToProto(files.file.add())
    return files.SerializeToString(deterministic=True)


# --- NumPy

def _of_dtype(dtype: Any) -> MessageSchema:
    from hashlib import blake2b

    parts: list[tuple[str, str]] = []  # of records in the record: name and definition
    try:
        text = _record(dtype, "Record", parts) if dtype.names is not None else _field(dtype, "value", "Record", parts)
    except RecursionError:
        raise ValueError("a dtype of too many records in records") from None
    digest = blake2b(repr((text, parts)).encode(), digest_size=4).hexdigest()
    rule = "=" * 80
    whole = [text, *(f"{rule}\nMSG: {_PACKAGE}/{name}\n{definition}" for name, definition in parts)]
    # The name says which record it is: tools remember types by their names.
    return MessageSchema(f"{_PACKAGE}/Record_{digest}", "ros1msg", "".join(whole).encode(), "ros1")


def _record(dtype: Any, name: str, parts: list[tuple[str, str]]) -> str:
    """The definition of a record: its fields in the order of their bytes, and what is between them."""
    fields = sorted(((dtype.fields[one][1], one) for one in dtype.names), key=lambda one: one[0])
    lines: list[str] = []
    at, taken = 0, set[str]()
    for offset, field in fields:
        part = dtype.fields[field][0]
        if not part.itemsize:
            continue
        if offset < at:
            return f"# fields of {_comment(str(dtype.names))} lie over each other\nuint8[{dtype.itemsize}] data\n"
        if offset > at:
            lines.append(f"uint8[{offset - at}] padding_{at}\n")
        at = offset + part.itemsize
        said = _legal(field, taken)
        taken.add(said)
        lines.append(_field(part, said, name, parts, "" if said == field else f"field {_comment(field)}"))
    if at < dtype.itemsize:
        lines.append(f"uint8[{dtype.itemsize - at}] padding_{at}\n")
    return "".join(lines)


def _legal(field: str, taken: set[str]) -> str:
    """A name that ROS allows, and no other field has."""
    said = field if _NAME.match(field) else "f_" + re.sub(r"[^A-Za-z0-9_]", "_", field)
    while said in taken or said.startswith("padding_"):
        said = "f_" + said
    return said


def _comment(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _field(dtype: Any, name: str, within: str, parts: list[tuple[str, str]], note: str = "") -> str:
    """The line of a field, with a comment where its type doesn't say all."""
    count, notes = 1, [note] if note else []
    if dtype.subdtype is not None:
        dtype, shape = dtype.subdtype
        for length in shape:
            count *= length
        if len(shape) > 1:
            notes.append(f"shape {'x'.join(map(str, shape))}, the last index first")
    if dtype.names is not None:
        word = f"{within}_{name}"
        parts.append((word, ""))
        place = len(parts) - 1
        parts[place] = (word, _record(dtype, word, parts))
    else:
        word, each, says = _scalar(dtype)
        count *= each
        if says:
            notes.append(says)
    return f"{word}{f'[{count}]' if count != 1 else ''} {name}{'  # ' + '; '.join(notes) if notes else ''}\n"


def _scalar(dtype: Any) -> tuple[str, int, str]:
    """ROS's word, how many of them, and what they mean if that isn't plain."""
    kind, size = dtype.kind, dtype.itemsize
    if kind in "OV" or (not dtype.isnative and size > 1 and kind not in "S"):
        return "uint8", size, f"the bytes of a {dtype.str}"
    if (word := _WORDS.get(f"{kind}{size}")) is not None:
        return word, 1, ""
    if kind == "S":
        return "uint8", size, "text, filled up with zeros"
    if kind == "U":
        return "uint32", size // 4, "text as code points, filled up with zeros"
    if kind == "c" and size in (8, 16):
        return f"float{size * 4}", 2, "real and imaginary part"
    if kind in "mM":
        return "int64", 1, f"numpy {dtype.str[1:]}"
    if kind == "f" and size == 2:
        return "uint16", 1, "bits of a half float"
    return "uint8", size, f"the bytes of a {dtype.str}"


__all__ = ["files_of", "schema_of"]
