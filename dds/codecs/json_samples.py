"""Samples as JSON, and back: for people, logs and shells.

A struct is an object with its members' names in IDL, a union {"discriminator": ..., "value": ...}, an enumeration its
literal's name (a number that has none stays a number), a bit mask the list of its flags, octets a base64 text, an
optional member without a value null. NumPy records likewise; protobuf messages by protobuf's own JSON mapping.

Rules: what is read back must be whole: an error names the member by its path, what it has, and what was expected.
Numbers that JSON doesn't have (nan, infinities) are the texts "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable
from typing import Any

_RANGES = {name: (-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in (
    ("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64), ("wchar", 16))} | {
    name: (0, (1 << bits) - 1) for name, bits in (
        ("octet", 8), ("uint8", 8), ("uint16", 16), ("uint32", 32), ("uint64", 64))}
WHOLE_MAX = 16384  # elements: what fits a slot of the usual size is always shown whole
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127
_ODD_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(data_type: Any, sample: Any, most: int = 0) -> Any:
    """A sample of a topic's type as values that json.dumps() knows. most: of arrays, sequences and octets with more
    than WHOLE_MAX elements only so many, and a text that says how many there are; 0 = all. Protobuf messages are whole.
    """
    if hasattr(data_type, "__idl__"):
        return _plain_idl(data_type, sample, most)
    if hasattr(data_type, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(getattr(sample, "message", sample), preserving_proto_field_name=True,
                             always_print_fields_with_no_presence=True)
    if data_type is bytes:
        return _octets(sample, most)
    return _plain_numpy(getattr(sample, "value", sample), most)


def from_plain(data_type: Any, plain: Any) -> Any:
    """A sample of a topic's type for what json.loads() gave. Raises ValueError, which names the member."""
    if hasattr(data_type, "__idl__"):
        return _sample_idl(data_type, plain, "")
    if hasattr(data_type, "DESCRIPTOR"):
        from google.protobuf.json_format import ParseDict, ParseError

        try:
            return ParseDict(plain, data_type())
        except ParseError as error:
            raise ValueError(str(error)) from None
    if data_type is bytes:
        return _from_base64(plain, "")
    import numpy as np

    return np.array(_sample_numpy(data_type, plain, ""), dtype=data_type)[()]


def _wrong(path: str, has: Any, wanted: str) -> ValueError:
    shown = repr(has) if len(repr(has)) <= 60 else repr(has)[:57] + "..."
    return ValueError(f"{f'member {path}' if path else 'the sample'} is {shown}, expected {wanted}")


def _within(path: str, name: str | int) -> str:
    return f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}" if path else name


def _octets(value: Any, most: int = 0) -> str:
    if most and len(value) > WHOLE_MAX:
        return f"{base64.b64encode(bytes(value[:most])).decode()}... ({len(value)} octets)"
    return base64.b64encode(bytes(value)).decode()


def _listed(values: Any, plain: Callable[[Any], Any], most: int) -> list[Any]:
    if most and len(values) > WHOLE_MAX:
        return [*map(plain, values[:most]), f"... ({len(values)} elements)"]
    return [plain(one) for one in values]


def _from_base64(plain: Any, path: str) -> bytes:
    import binascii

    if isinstance(plain, list) and all(isinstance(one, int) and 0 <= one < 256 for one in plain):
        return bytes(plain)
    try:
        if isinstance(plain, str):
            return base64.b64decode(plain, validate=True)
    except binascii.Error:
        pass
    raise _wrong(path, plain, "octets in base64, or a list of numbers from 0 to 255")


def _plain_float(value: float) -> Any:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float(plain: Any, path: str, largest: float = sys.float_info.max) -> float:
    """`largest`: of the member; what is beyond it would become an infinity, or be no number of the type at all."""
    if isinstance(plain, str) and plain in _ODD_FLOATS:
        return _ODD_FLOATS[plain]
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise _wrong(path, plain, "a number")
    if abs(plain) > largest and plain not in (math.inf, -math.inf):
        raise _wrong(path, plain, f"a number from {-largest:g} to {largest:g}")
    return float(plain)


def _whole(plain: Any, path: str, kind: str) -> int:
    low, high = _RANGES[kind]
    if isinstance(plain, bool) or not isinstance(plain, int) or not low <= plain <= high:
        raise _wrong(path, plain, f"{kind}, a whole number from {low} to {high}")
    return plain


def _checked_object(plain: Any, path: str, names: list[str], needed: list[str], of: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise _wrong(path, plain, f"an object with the members of {of}: {', '.join(names)}")
    unknown = [name for name in plain if name not in names]
    if unknown:
        raise ValueError(f"{of} has no member {_within(path, unknown[0])}; it has {', '.join(names)}")
    missing = [name for name in needed if name not in plain]
    if missing:
        raise ValueError(f"member {_within(path, missing[0])} of {of} is missing")
    return plain


# --- IDL

def _plain_idl(hint: Any, value: Any, most: int = 0) -> Any:
    from cyclonedds_idl import types as idl_types

    from dds.idl import members as idl

    hint = idl.bare(hint)[0]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _octets(value, most)
    if idl.is_struct(hint):
        return {one.name: _plain_idl(one.hint, getattr(value, one.attribute), most) for one in idl.members(hint)}
    if idl.is_union(hint):
        label, content = value.get()
        found = _case_of(hint, label)
        return {"discriminator": _plain_idl(idl.discriminator(hint), label),
                "value": None if found is None else _plain_idl(found.hint, content, most)}
    if idl.is_enum(hint):
        return getattr(value, "name", value)
    if idl.is_bitmask(hint):
        return [name for name in hint.__idl_positions__ if getattr(value, name)]
    if isinstance(value, float):
        return _plain_float(value)
    if isinstance(value, dict):
        return {str(key): _plain_idl(None, one, most) for key, one in value.items()}
    if isinstance(hint, (idl_types.sequence, idl_types.array)):
        return _listed(value, lambda one: _plain_idl(hint.subtype, one, most), most)
    if isinstance(value, (list, tuple)):
        inner = getattr(hint, "__args__", (None,))[0]
        return _listed(value, lambda one: _plain_idl(inner, one, most), most)
    return value


def _case_of(union: Any, label: Any) -> Any:
    """The case of a union that a discriminator selects; None if there is none."""
    from dds.idl import members as idl

    cases = idl.members(union)
    number = idl.number_of(label)
    return next((one for one in cases if number in one.labels), next((one for one in cases if one.default), None))


def _sample_idl(hint: Any, plain: Any, path: str) -> Any:
    import typing

    from cyclonedds_idl import types as idl_types

    from dds.idl import members as idl

    hint, optional = idl.bare(hint)
    if hint is None or (plain is None and optional):
        return None
    kind = idl.primitive(hint)
    if kind == "boolean":
        if not isinstance(plain, bool):
            raise _wrong(path, plain, "true or false")
        return plain
    if kind in _RANGES:
        return _whole(plain, path, kind)
    if kind in ("float", "double"):
        return _float(plain, path, _FLOAT32_MAX if kind == "float" else sys.float_info.max)
    if kind == "char":
        if not isinstance(plain, str) or len(plain) != 1 or ord(plain) > 127:
            raise _wrong(path, plain, "one character")
        return plain
    if hint is str or isinstance(hint, idl_types.bounded_str):
        most = getattr(hint, "max_length", None)
        if not isinstance(plain, str) or (most is not None and len(plain) > most):
            raise _wrong(path, plain, "text" if most is None else f"text of at most {most} characters")
        return plain
    if hint is bytes:
        return _from_base64(plain, path)
    if idl.is_struct(hint):
        return _struct(hint, plain, path)
    if idl.is_union(hint):
        of = idl.text(hint)
        said = _checked_object(plain, path, ["discriminator", "value"], ["discriminator"], of)
        label = _sample_idl(idl.discriminator(hint), said["discriminator"], _within(path, "discriminator"))
        found = _case_of(hint, label)
        return hint(discriminator=label, value=None if found is None else _sample_idl(
            found.hint, said.get("value"), _within(path, "value")))
    if idl.is_enum(hint):
        for one in hint:
            if plain == one.name or (plain == one.value and not isinstance(plain, bool)):
                return one
        if isinstance(plain, int) and not isinstance(plain, bool) and idl.extensibility(hint) != "final":
            return _whole(plain, path, "uint32")  # a literal of a later version
        raise _wrong(path, plain, f"one of {', '.join(one.name for one in hint)}")
    if idl.is_bitmask(hint):
        if not isinstance(plain, list) or any(one not in hint.__idl_positions__ for one in plain):
            raise _wrong(path, plain, f"a list of flags of {', '.join(hint.__idl_positions__)}")
        return hint(**{name: name in plain for name in hint.__idl_positions__})
    if isinstance(hint, (idl_types.sequence, idl_types.array)):
        return _elements(hint, plain, path)
    if typing.get_origin(hint) is list:
        if not isinstance(plain, list):
            raise _wrong(path, plain, "a list")
        return [_sample_idl(typing.get_args(hint)[0], one, _within(path, k)) for k, one in enumerate(plain)]
    raise ValueError(f"member {path} is of type {idl.text(hint)}, which JSON has no form for")


def _struct(hint: Any, plain: Any, path: str) -> Any:
    from dds.idl import members as idl

    members = idl.members(hint)
    said = _checked_object(plain, path, [one.name for one in members],
                           [one.name for one in members if not one.optional], idl.text(hint))
    return hint(**{one.attribute: None if said.get(one.name) is None and one.optional else _sample_idl(
        one.hint, said[one.name], _within(path, one.name)) for one in members})


def _elements(hint: Any, plain: Any, path: str) -> Any:
    from dds.idl import members as idl

    if isinstance(plain, str) and idl.primitive(idl.bare(hint.subtype)[0]) in ("octet", "uint8"):
        plain = list(_from_base64(plain, path))
    length, most = getattr(hint, "length", None), getattr(hint, "max_length", None)
    if not isinstance(plain, list) or (length is not None and len(plain) != length) or (
            most is not None and len(plain) > most):
        raise _wrong(path, plain, "a list" if length is None and most is None else
                     f"a list of {length} elements" if most is None else f"a list of at most {most} elements")
    return [_sample_idl(hint.subtype, one, _within(path, k)) for k, one in enumerate(plain)]


# --- NumPy

def _plain_numpy(value: Any, most: int = 0) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray) and value.shape:
        return _listed(value, lambda one: _plain_numpy(one, most), most)
    names = getattr(value, "dtype", np.dtype(object)).names
    if names:
        return {name: _plain_numpy(value[name], most) for name in names}
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float):
        return _plain_float(plain)
    if isinstance(plain, complex):
        return [_plain_float(plain.real), _plain_float(plain.imag)]
    if isinstance(plain, bytes):
        return plain.decode("latin-1") if value.dtype.kind == "S" else _octets(plain, most)
    return plain if plain is None or isinstance(plain, (bool, int, str)) else str(value)


def _sample_numpy(dtype: Any, plain: Any, path: str) -> Any:
    import numpy as np

    if dtype.subdtype is not None:
        base, (length, *rest) = dtype.subdtype
        if not isinstance(plain, list) or len(plain) != length:
            raise _wrong(path, plain, f"a list of {length} elements")
        inner = np.dtype((base, tuple(rest))) if rest else base
        return [_sample_numpy(inner, one, _within(path, k)) for k, one in enumerate(plain)]
    if dtype.names:
        said = _checked_object(plain, path, list(dtype.names), list(dtype.names), "the record")
        return tuple(_sample_numpy(dtype.fields[name][0], said[name], _within(path, name)) for name in dtype.names)
    convert: dict[str, Callable[[], Any]] = {
        "f": lambda: _float(plain, path, float(np.finfo(dtype).max)),
        "i": lambda: _whole(plain, path, f"int{dtype.itemsize * 8}"),
        "u": lambda: _whole(plain, path, f"uint{dtype.itemsize * 8}")}
    if dtype.kind in convert:
        return convert[dtype.kind]()
    if dtype.kind == "b":
        if not isinstance(plain, bool):
            raise _wrong(path, plain, "true or false")
        return plain
    if dtype.kind in "SU":
        most = dtype.itemsize // (4 if dtype.kind == "U" else 1)
        if not isinstance(plain, str) or len(plain) > most:
            raise _wrong(path, plain, f"text of at most {most} characters")
        if dtype.kind == "U":
            return plain
        try:
            return plain.encode("latin-1")
        except UnicodeEncodeError:
            raise _wrong(path, plain, "text in Latin-1, of which a character takes a byte") from None
    if dtype.kind == "V":
        octets = _from_base64(plain, path)
        if len(octets) != dtype.itemsize:
            raise _wrong(path, plain, f"{dtype.itemsize} octets in base64")
        return octets
    if dtype.kind == "c" and isinstance(plain, list) and len(plain) == 2:
        largest = float(np.finfo(dtype).max)
        return complex(_float(plain[0], path, largest), _float(plain[1], path, largest))
    try:
        return dtype.type(plain)
    except (TypeError, ValueError) as error:
        raise _wrong(path, plain, f"{dtype} ({error})") from None


__all__ = ["from_plain", "to_plain"]
