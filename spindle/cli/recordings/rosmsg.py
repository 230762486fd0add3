"""Types of ROS 2 bags: the definitions that bags in MCAP carry (schema encoding "ros2msg") as IDL classes.

A definition is the text of a .msg file, followed by those of all types in it, each behind a line of "=" and one that
says "MSG: package/Name". In ROS 2 a type package/msg/Name has the name package::msg::dds_::Name_ on the wire of DDS,
and so it has here: programs that know it by that name read what is played.

Rules: constants, defaults and comments are passed over. wstring has no place in topics: ValueError, as for nonsense.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from dds.idl import make_idl_struct
from dds.idl import types as idl

_WORDS: dict[str, Any] = {
    "bool": bool, "byte": idl.uint8, "char": idl.uint8, "int8": idl.int8, "uint8": idl.uint8, "int16": idl.int16,
    "uint16": idl.uint16, "int32": idl.int32, "uint32": idl.uint32, "int64": idl.int64, "uint64": idl.uint64,
    "float32": idl.float32, "float64": idl.float64, "string": str}
_sequence: Any = idl.sequence
_array: Any = idl.array
_bounded_str: Any = idl.bounded_str
_TYPE = re.compile(r"(?P<base>[A-Za-z][\w/]*)(?:<=(?P<bound>\d+))?(?P<array>\[(?P<most><=)?(?P<length>\d*)\])?\Z")
_RULE = re.compile(r"^=+[ \t]*\r?$", re.MULTILINE)
DEPTH_MAX = 32
EMPTY = "structure_needs_at_least_one_member"


@functools.lru_cache(maxsize=256)
def class_of_message(name: str, definition: bytes) -> type[Any]:
    """The class of a message `package/msg/Name`. Raises ValueError."""
    main, *others = _RULE.split(definition.decode())
    texts = {_full(name, ""): main}
    for text in others:
        said, _, rest = text.lstrip().partition("\n")
        if not said.startswith("MSG:"):
            raise ValueError(f"the definition of {name} has a part that doesn't say of what it is")
        texts[_full(said[4:].strip(), "")] = rest
    return _class(_full(name, ""), texts, {}, 0)


def _full(name: str, package: str) -> str:
    """package/Name of a type, as it is named within a package."""
    parts = [part for part in name.split("/") if part]
    if len(parts) == 3 and parts[1] == "msg":
        parts = [parts[0], parts[2]]
    if len(parts) == 1:
        parts = [package, *parts]
    if len(parts) != 2 or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise ValueError(f"{name!r} is no name of a message")
    return "/".join(parts)


def _class(name: str, texts: dict[str, str], made: dict[str, type[Any]], depth: int) -> type[Any]:
    if name in made:
        return made[name]
    if name not in texts:
        raise ValueError(f"there is no definition of {name}")
    if depth > DEPTH_MAX:
        raise ValueError(f"messages within messages more than {DEPTH_MAX} deep")
    package, short = name.split("/")
    fields: dict[str, Any] = {}
    for line in texts[name].splitlines():
        words = line.partition("#")[0].split(None, 2)
        if len(words) < 2 or "=" in words[1] or (words[2:3] and words[2].startswith("=") and _is_constant(line)):
            continue
        fields[words[1]] = _hint(words[0], package, texts, made, depth)
    cls: type[Any] = make_idl_struct(short, f"{package}.msg.dds_.{short}_", fields or {EMPTY: idl.uint8})
    made[name] = cls
    return cls


def _is_constant(line: str) -> bool:
    return re.match(r"\s*[\w/<>=\[\]]+\s+[A-Z][A-Z0-9_]*\s*=", line) is not None


def _hint(text: str, package: str, texts: dict[str, str], made: dict[str, type[Any]], depth: int) -> Any:
    found = _TYPE.match(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no type of a field")
    base, bound = found["base"], found["bound"]
    if base == "wstring":
        raise ValueError("it has a wstring, which topics can't have")
    hint = _WORDS[base] if base in _WORDS else _class(_full(base, package), texts, made, depth + 1)
    if bound is not None:
        hint = _bounded_str[int(bound)]
    if not found["array"]:
        return hint
    if found["most"]:
        return _sequence[hint, int(found["length"])]
    return _array[hint, int(found["length"])] if found["length"] else _sequence[hint]


__all__ = ["class_of_message"]
