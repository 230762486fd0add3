"""What an endpoint announces of itself: its Qos, and its type as far as another program needs it.

An IDL type goes as its XTypes identifiers and its type objects, a NumPy record as its dtype, a protobuf message as the
files that describe it; all but the dtype compressed. So a program that has never heard of a type can read it.

Rules: nodes take announcements of ENDPOINT_BYTES_MAX. A description that doesn't fit beside the Qos is left out, and
that it was left out is said. What comes from other programs is bounded and checked before it is used, and used only
when somebody asks.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from typing import TYPE_CHECKING, Any

from dds.qos import Qos

if TYPE_CHECKING:
    from dds.codecs.types import Codec

DESCRIPTION_BYTES_MAX = 64 << 10  # of one type, not compressed


@dataclasses.dataclass(frozen=True)
class AnnouncedType:
    """The type of a reader or writer.

    kind         "idl", "numpy" or "protobuf"; empty for bytes, and for programs that say nothing of it
    identifier   equal for equal types; of IDL types the TypeIdentifier, see dds.idl.typeobjects
    minimal      of IDL types, without names
    description  IDL: a TypeMapping; NumPy: the dtype as JSON; protobuf: a FileDescriptorSet; empty if it isn't known
    left_out     bytes of a description that was too large to be announced
    keys         named by the topic, for NumPy and protobuf
    cls          the program's own class, for its own types
    """

    kind: str = ""
    name: str = ""
    identifier: bytes = b""
    minimal: bytes = b""
    description: bytes = b""
    left_out: int = 0
    keys: tuple[str, ...] = ()
    cls: Any = dataclasses.field(default=None, compare=False)


NOTHING = AnnouncedType()


def type_of(codec: Codec) -> AnnouncedType:
    """The type of a program's own reader or writer."""
    info = getattr(codec, "info", None)
    if info is not None:
        return AnnouncedType("idl", codec.type_name, info.identifier, info.minimal, info.mapping, cls=codec.data_type)
    if codec.kind == "numpy":
        return AnnouncedType("numpy", codec.type_name, codec.type_hash, description=json.dumps(
            _dtype_text(codec.data_type), separators=(",", ":")).encode(), keys=_keys(codec), cls=codec.data_type)
    if hasattr(codec.data_type, "DESCRIPTOR"):
        from dds.codecs.schemas import files_of

        return AnnouncedType("protobuf", codec.type_name, codec.type_hash, description=files_of(codec.data_type),
                             keys=_keys(codec), cls=codec.data_type)
    return NOTHING


def _keys(codec: Any) -> tuple[str, ...]:
    return tuple(codec.keys)


def encode(said: dict[str, Any], codec: Codec, room: int, with_schema: bool = False) -> bytes:
    """An announcement of what is `said`, and of the type, in at most `room` bytes if they leave any. `with_schema`: for
    nodes, which put that into their files; if it fits."""
    whole = dict(said)
    own = type_of(codec)
    if own.kind:
        about: dict[str, Any] = {"kind": own.kind, "name": own.name, "id": own.identifier.hex()}
        whole["of"] = about
        if own.minimal:
            about["minimal"] = own.minimal.hex()
        if own.keys:
            about["keys"] = list(own.keys)
        import base64
        import zlib

        text = base64.b85encode(zlib.compress(own.description, 9)).decode()
        if with_schema and (schema := _schema(codec.data_type, own.description)):
            encoded = _json({**whole, "of": {**about, "is": text, "schema": schema}})
            if len(encoded) <= room and len(own.description) <= DESCRIPTION_BYTES_MAX:
                return encoded
        encoded = _json({**whole, "of": {**about, "is": text}})
        if len(encoded) <= room and len(own.description) <= DESCRIPTION_BYTES_MAX:
            return encoded
        about["left_out"] = len(text)
    return _json(whole)


def _schema(data_type: Any, description: bytes) -> dict[str, Any]:
    """What other tools need to decode samples; empty for a type that can't be described to them."""
    from dds.codecs.schemas import schema_of
    from spindle.group.schemas import said_of

    try:
        return said_of(schema_of(data_type), description)
    except ValueError:
        return {}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode(announced: bytes) -> tuple[Qos, AnnouncedType]:
    """The policies that an endpoint has said, and its type; nothing of what can't be understood, whatever that is."""
    try:
        whole = json.loads(announced)
        qos = Qos.fromdict(whole["qos"])
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return Qos(), NOTHING
    try:
        about = whole.get("of")
        return qos, NOTHING if about is None else _decoded(about)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return qos, NOTHING


def _decoded(about: dict[str, Any]) -> AnnouncedType:
    kind, name = str(about["kind"]), str(about["name"])
    identifier, minimal = bytes.fromhex(about["id"]), bytes.fromhex(about.get("minimal", ""))
    keys = tuple(map(str, about.get("keys", ())))
    text, left_out = str(about.get("is", "")), int(about.get("left_out", 0))
    description = b""
    if text:
        import base64
        import zlib

        unpack = zlib.decompressobj()
        try:
            description = unpack.decompress(base64.b85decode(text), DESCRIPTION_BYTES_MAX)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if not unpack.eof:
            description, left_out = b"", len(text)
    return AnnouncedType(kind, name, identifier, minimal, description, left_out, keys)


# --- NumPy

_SCALAR = re.compile(r"[<>|=]?([biufcSUV][0-9]{1,9}|[Mm]8(\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)")


def _dtype_text(dtype: Any) -> Any:
    """The dtype in values that JSON knows."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"of": _dtype_text(base), "shape": list(shape)}
    if dtype.names is None:
        return dtype.str
    return {"names": list(dtype.names), "formats": [_dtype_text(dtype.fields[name][0]) for name in dtype.names],
            "offsets": [dtype.fields[name][1] for name in dtype.names], "itemsize": dtype.itemsize}


def dtype_of(announced: AnnouncedType) -> Any:
    """The numpy.dtype of an announced type. Raises ValueError."""
    try:
        return _dtype(json.loads(announced.description))
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError, MemoryError) as error:
        raise ValueError(f"{announced.name}: this is no dtype: {error}") from None


def _dtype(said: Any) -> Any:
    import numpy as np

    if isinstance(said, str):
        # NumPy's own reader of such texts evaluates some, and dies of others: "M8[s/0]" divides by zero in C.
        if not _SCALAR.fullmatch(said):
            raise ValueError(f"{said[:40]!r} is no type of a number, a text or a time")
        dtype = np.dtype(said)
    elif "of" in said:
        dtype = np.dtype((_dtype(said["of"]), tuple(map(int, said["shape"]))))
    else:
        dtype = np.dtype({"names": [str(name) for name in said["names"]],
                          "formats": [_dtype(one) for one in said["formats"]],
                          "offsets": [int(one) for one in said["offsets"]], "itemsize": int(said["itemsize"])})
    if dtype.hasobject:
        raise ValueError("a dtype with Python objects")
    return dtype


# --- protobuf

def message_class_of(announced: AnnouncedType) -> Any:
    """The class of an announced protobuf type; one of its own, whatever the program knows by that name. Raises
    ValueError."""
    return _message_class(announced.name, announced.description)


@functools.lru_cache(maxsize=64)
def _message_class(name: str, description: bytes) -> Any:
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        for one in FileDescriptorSet.FromString(description).file:
            pool.Add(one)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: this describes no message: {error}") from None


__all__ = ["DESCRIPTION_BYTES_MAX", "NOTHING", "AnnouncedType", "decode", "dtype_of", "encode", "message_class_of",
           "type_of"]
