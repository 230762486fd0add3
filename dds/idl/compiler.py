"""Writes Python source that encodes and decodes one IdlStruct, straight through.

Why: the library interprets a tree of machines per sample, 11 us for a small struct; here members of fixed size that lie
together become one struct.Struct call, so the same struct takes well below 1 us.

How: members are gathered into groups of fixed-size items. Where a group starts at a position known when compiling, its
format holds the padding; behind something of variable length the padding depends on the position modulo 8, and the
group becomes a table of eight formats. A string is its length at the end of one group, its bytes, and its final zero as
the first padding byte of the next group.

Rules: encode(sample) gives exactly the bytes of the library's serialize(), or raises anything at all: then the caller
lets the library say what is wrong. decode(view) takes a memoryview of bytes, checks every length against the end, and
raises Evolved where the bytes are valid but written by another version of the type, which the library can read.
Only for little-endian machines.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

from dds.idl.layout import (
    Array,
    Blob,
    Enumeration,
    FixedBytes,
    Node,
    OptionalValue,
    Primitive,
    PrimitiveArray,
    PrimitiveSequence,
    Sequence,
    Struct,
    Text,
    align,
)
from spindle.client.numbers import bytes_of, numbers_of

_SIZES = {"b": 1, "h": 2, "i": 4, "q": 8, "B": 1, "H": 2, "I": 4, "Q": 8, "f": 4, "d": 8, "?": 1, "x": 1, "s": 1}


class Evolved(Exception):
    """Valid for another version of the type; for the library."""


@dataclasses.dataclass
class _Item:
    """A fixed-size part of a group. `count` items of `code`; `name` is what is packed, or the target when unpacking."""

    code: str
    name: str = ""
    count: int = 1

    @property
    def format(self) -> str:
        return self.code if self.count == 1 and self.code != "s" else f"{self.count}{self.code}"


class _Writer:
    """Source under construction: lines with indentation, constants, and the group that is being gathered."""

    def __init__(self, alignment_max: int) -> None:
        self.alignment_max = alignment_max
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"Evolved": Evolved}
        self.indent = 1
        self.group: list[_Item] = []
        self.position: int | None = 0  # of the group's start, if known
        self.numbers = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        self.numbers += 1
        return f"{prefix}{self.numbers}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.fresh(prefix)
        self.constants[name] = value
        return name

    def format_at(self, start: int, trailing: int = 1) -> str:
        """struct format of the group when it starts at `start`; the next thing is aligned to `trailing`."""
        parts, at = ["<"], start
        for item in self.group:
            size = _SIZES[item.code]
            aligned = align(at, min(size, self.alignment_max))
            parts.append("x" * (aligned - at) + item.format)
            at = aligned + size * item.count
        parts.append("x" * (align(at, trailing) - at))
        return "".join(parts)

    def source(self, name: str, argument: str, head: list[str]) -> Callable[[Any], Any]:
        text = "\n".join([f"def {name}({argument}):", *("    " + one for one in head), *self.lines])
        namespace = dict(self.constants)
        exec(compile(text, f"<{name} of {self.constants['_cls'].__name__}>", "exec"), namespace)
        function: Callable[[Any], Any] = namespace[name]
        function.__doc__ = text  # for people who want to look
        return function


# ---- encoding

class _Encoder(_Writer):
    def flush(self, trailing: int = 1) -> None:
        """Emit the gathered group, padded so that what follows is aligned to `trailing`."""
        start = self.position
        values = ", ".join(("*" if item.count > 1 and item.code != "s" else "") + item.name
                           for item in self.group if item.code != "x")
        if start is not None:
            fmt = struct.Struct(self.format_at(start, trailing))
            if fmt.size:
                if not values:
                    self.line(f"add({fmt.pack()!r})")
                else:
                    self.line(f"add({self.constant('S', fmt.pack)}({values}))")
                self.position = start + fmt.size
        elif self.group == [_Item("x")] and trailing == 1:
            self.line('add(b"\\0"); n += 1')
        elif self.group or trailing > 1:
            table = [struct.Struct(self.format_at(k, trailing)) for k in range(8)]
            name = self.constant("T", tuple((one.pack, one.size) for one in table))
            self.line(f"pack, size = {name}[n & 7]; add(pack({values})); n += size")
        self.group = []

    def forget_position(self) -> None:
        """From here on the position is in the variable n."""
        if self.position is not None:
            self.line(f"n = {self.position}")
            self.position = None

    def raw(self, name: str, size: str) -> None:
        """Emit a bytes-like `name` of variable `size`, behind the flushed group."""
        self.flush()
        self.forget_position()
        self.line(f"add({name}); n += {size}")

    def open_header(self) -> tuple[str, str]:
        """Emit a 4-byte size to be filled in by close_header."""
        self.flush(trailing=4)
        self.forget_position()
        place, start = self.fresh("i"), self.fresh("m")
        self.line(f'{place} = len(p); add(b""); n += 4; {start} = n')
        return place, start

    def close_header(self, opened: tuple[str, str]) -> None:
        self.flush()
        place, start = opened
        self.line(f"p[{place}] = {self.constant('U', struct.Struct('<I').pack)}(n - {start})")

    def node(self, node: Node, value: str) -> None:
        if isinstance(node, Primitive):
            self.group.append(_Item("b", f"ord({value})") if node.code == "c" else _Item(node.code, value))
        elif isinstance(node, Enumeration):
            name = self.fresh("v")
            self.line(f"{name} = {value}")
            self.group.append(_Item(node.code, f"({name} if {name}.__class__ is int else {name}.value)"))
        elif isinstance(node, Text):
            text = self.fresh("s")
            if node.bound is not None:
                name = self.fresh("v")
                self.line(f"{name} = {value}")
                self.line(f"if len({name}) > {node.bound}: raise ValueError")
                value = name
            self.line(f"{text} = {value}.encode()")
            self.group.append(_Item("I", f"len({text}) + 1"))
            self.raw(text, f"len({text})")
            self.group.append(_Item("x"))
        elif isinstance(node, Blob):
            name = self.fresh("v")
            self.line(f"{name} = bytes_of({value})")
            self.constants["bytes_of"] = _bytes_of
            self.group.append(_Item("I", f"len({name})"))
            self.raw(name, f"len({name})")
        elif isinstance(node, FixedBytes):
            name = self.fresh("v")
            self.line(f"{name} = bytes_of({value})")
            self.line(f"if len({name}) != {node.length}: raise ValueError")
            self.constants["bytes_of"] = _bytes_of
            self.group.append(_Item("s", name, node.length))
        elif isinstance(node, PrimitiveArray):
            name = self.fresh("v")
            self.line(f"{name} = {value}")
            self.line(f"if len({name}) != {node.length}: raise ValueError")
            self.group.append(_Item(node.code, name if node.length > 1 else f"{name}[0]", node.length))
        elif isinstance(node, PrimitiveSequence):
            self.primitive_sequence(node, value)
        elif isinstance(node, (Array, Sequence)):
            self.elements(node, value)
        elif isinstance(node, OptionalValue):
            name = self.fresh("v")
            self.line(f"{name} = {value}")
            self.flush()
            self.forget_position()
            self.line(f"if {name} is None:")
            self.line('    add(b"\\0"); n += 1')
            self.line("else:")
            self.indent += 1
            self.line('add(b"\\1"); n += 1')
            self.node(node.value, name)
            self.flush()
            self.indent -= 1
        elif isinstance(node, Struct):
            self.struct(node, value)
        else:
            raise AssertionError(node)

    def primitive_sequence(self, node: PrimitiveSequence, value: str) -> None:
        name, packed, size = self.fresh("v"), self.fresh("d"), _SIZES[node.code]
        self.line(f"{name} = {value}")
        if node.bound is not None:
            self.line(f"if len({name}) > {node.bound}: raise ValueError")
        self.constants["pack_sequence"] = _pack_sequence
        self.line(f"{packed} = pack_sequence({name}, {node.code!r}, {size})")
        self.group.append(_Item("I", f"len({packed}) // {size}" if size > 1 else f"len({packed})"))
        self.flush()
        self.forget_position()
        if min(size, self.alignment_max) > 4:
            self.line(f'if {packed} and n & 7: add(b"\\0\\0\\0\\0"); n += 4')
        self.line(f"add({packed}); n += len({packed})")

    def elements(self, node: Array | Sequence, value: str) -> None:
        name, element = self.fresh("v"), self.fresh("e")
        self.line(f"{name} = {value}")
        if isinstance(node, Array):
            self.line(f"if len({name}) != {node.length}: raise ValueError")
        elif node.bound is not None:
            self.line(f"if len({name}) > {node.bound}: raise ValueError")
        header = self.open_header() if node.header else None
        if isinstance(node, Sequence):
            self.group.append(_Item("I", f"len({name})"))
        self.flush()
        self.forget_position()
        self.line(f"for {element} in {name}:")
        self.indent += 1
        self.node(node.element, element)
        self.flush()
        self.indent -= 1
        if header:
            self.close_header(header)

    def struct(self, node: Struct, value: str) -> None:
        header = self.open_header() if node.delimited else None
        for name, member in node.members:
            attribute = f"{value}.{name}"
            if isinstance(member, Struct):
                local = self.fresh("v")
                self.line(f"{local} = {attribute}")
                attribute = local
            self.node(member, attribute)
        if header:
            self.close_header(header)


def _bytes_of(value: Any) -> Any:
    """`value` as something whose length is its size in bytes; lists of small ints too."""
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, (list, tuple)):
        return bytes(value)
    return memoryview(value).cast("B")


def _pack_sequence(value: Any, code: str, size: int) -> Any:
    """The elements of `value` in little endian. Takes what has a fitting buffer (bytes, array, NumPy) as it is."""
    if value.__class__ is list and code != "?":
        return bytes_of(value, code)
    if isinstance(value, (list, tuple)):
        return struct.pack(f"<{len(value)}{code}", *value)
    try:
        view = memoryview(value)
    except TypeError:
        return struct.pack(f"<{len(value)}{code}", *value)
    if view.ndim == 1 and view.c_contiguous and view.itemsize == size and (
            view.format == code or (code in "qQ" and view.format == {"q": "l", "Q": "L"}[code])):
        return view.cast("B")
    return struct.pack(f"<{len(value)}{code}", *value)


def compile_encoder(layout: Struct, header: bytes, alignment_max: int) -> Callable[[Any], bytes]:
    """encode(sample) -> bytes, with the 4-byte encapsulation `header` in front."""
    w = _Encoder(alignment_max)
    w.constants["_cls"] = layout.cls
    w.struct(layout, "o")
    w.flush()
    w.line('return b"".join(p)')
    return w.source("encode", "o", [f"p = [{header!r}]; add = p.append"])


# ---- decoding

class _Decoder(_Writer):
    def flush(self) -> None:
        targets = ", ".join(item.name for item in self.group if item.code != "x")
        wide = [item for item in self.group if item.count > 1 and item.code != "s"]
        if wide:  # one target for many values: slice them out of the tuple
            targets, place, after = self.fresh("u"), 0, []
            for item in self.group:
                if item.code == "x":
                    continue
                count = 1 if item.code == "s" else item.count
                after.append(f"{item.name} = list({targets}[{place}:{place + count}])" if count > 1
                             else f"{item.name} = {targets}[{place}]")
                place += count
        else:
            after = []
            targets += "," if targets else ""
        start = self.position
        if start is not None:
            fmt = struct.Struct(self.format_at(start))
            if fmt.size:
                if targets:
                    self.line(f"{targets} = {self.constant('S', fmt.unpack_from)}(b, {start + 4})")
                self.position = start + fmt.size
        elif self.group == [_Item("x")]:
            self.line("n += 1")
        elif self.group:
            table = [struct.Struct(self.format_at(k)) for k in range(8)]
            name = self.constant("T", tuple((one.unpack_from, one.size) for one in table))
            self.line(f"unpack, size = {name}[n & 7]")
            if targets:
                self.line(f"{targets} = unpack(b, n + 4)")
            self.line("n += size")
        for one in after:
            self.line(one)
        self.group = []

    def forget_position(self) -> None:
        if self.position is not None:
            self.line(f"n = {self.position}")
            self.position = None

    def length(self) -> str:
        """Read a 4-byte count and stand behind it, with the position in n."""
        name = self.fresh("l")
        self.group.append(_Item("I", name))
        self.flush()
        self.forget_position()
        return name

    def open_header(self) -> str:
        size, end = self.length(), self.fresh("m")
        self.line(f"{end} = n + {size}")
        self.line(f"if {end} > end: raise ValueError('a part longer than the sample')")
        return end

    def close_header(self, end: str) -> None:
        self.flush()
        self.line(f"if n != {end}: raise Evolved")

    def node(self, node: Node, target: str) -> None:
        """Emit code after which `target`, a local name, holds the value (at the latest after the next flush)."""
        if isinstance(node, Primitive):
            if node.code == "c":
                self.group.append(_Item("b", target))
                self.flush()
                self.line(f"{target} = chr({target})")
            else:
                self.group.append(_Item(node.code, target))
        elif isinstance(node, Enumeration):
            values = self.constant("E", {one.value: one for one in node.cls})
            self.group.append(_Item(node.code, target))
            self.flush()
            self.line(f"{target} = {values}.get({target}, {target})")
        elif isinstance(node, Text):
            length = self.length()
            self.line(f"if not {length}: raise ValueError('a string without its final zero')")
            self.line(f"{target} = str(b[n + 4:n + 3 + {length}], 'utf-8'); n += {length} - 1")
            self.group.append(_Item("x"))
        elif isinstance(node, Blob):
            length = self.length()
            self.line(f"{target} = bytes(b[n + 4:n + 4 + {length}]); n += {length}")
        elif isinstance(node, FixedBytes):
            self.group.append(_Item("s", target, node.length))
        elif isinstance(node, PrimitiveArray):
            self.group.append(_Item(node.code, target, node.length))
            if node.length == 1:
                self.flush()
                self.line(f"{target} = [{target}]")
        elif isinstance(node, PrimitiveSequence):
            size, count = _SIZES[node.code], self.length()
            if min(size, self.alignment_max) > 4:
                self.line(f"if {count}: n = (n + 7) & -8")
            self.line(f"if {count} * {size} > end - n: raise ValueError('a sequence longer than the sample')")
            if node.code == "?":
                self.line(f"{target} = [one != 0 for one in b[n + 4:n + 4 + {count}]]; n += {count}")
            else:
                self.constants["numbers_of"] = numbers_of
                self.line(f"{target} = numbers_of(b[n + 4:n + 4 + {count} * {size}], {node.code!r}); "
                          f"n += {count} * {size}")
        elif isinstance(node, (Array, Sequence)):
            self.elements(node, target)
        elif isinstance(node, OptionalValue):
            self.flush()
            self.forget_position()
            flag = self.constant("F", struct.Struct("<?").unpack_from)
            self.line(f"{target}, = {flag}(b, n + 4); n += 1")
            self.line(f"if not {target}:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
            self.node(node.value, target)
            self.flush()
            self.indent -= 1
        elif isinstance(node, Struct):
            self.struct(node, target)
        else:
            raise AssertionError(node)

    def elements(self, node: Array | Sequence, target: str) -> None:
        end = self.open_header() if node.header else None
        count: str | int
        if isinstance(node, Sequence):
            count = self.length()
            self.line(f"if {count} > end - n: raise ValueError('a sequence longer than the sample')")
        else:
            count = node.length
            self.flush()
            self.forget_position()
        element = self.fresh("e")
        self.line(f"{target} = []; append_{target} = {target}.append")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.node(node.element, element)
        self.flush()
        self.line(f"append_{target}({element})")
        self.indent -= 1
        if end:
            self.close_header(end)

    def struct(self, node: Struct, target: str) -> None:
        end = self.open_header() if node.delimited else None
        targets = []
        for name, member in node.members:
            local = self.fresh("v")
            self.node(member, local)
            targets.append((name, local))
        self.flush()
        if end:
            self.close_header(end)
        cls = self.constant("C", node.cls)
        if _takes_members_in_order(node):
            arguments = ", ".join(local for _, local in targets)
        else:
            arguments = ", ".join(f"{name}={local}" for name, local in targets)
        self.line(f"{target} = {cls}({arguments})")


def _takes_members_in_order(node: Struct) -> bool:
    """True if the class has the constructor that dataclass makes, with the members in this order."""
    params = getattr(node.cls, "__dataclass_params__", None)
    if params is None or not params.init or "__dataclass_fields__" not in node.cls.__dict__:
        return False
    fields = dataclasses.fields(node.cls)
    return all(one.init and not one.kw_only for one in fields) and (
        [one.name for one in fields] == [name for name, _ in node.members])


def compile_decoder(layout: Struct, header: bytes, alignment_max: int) -> Callable[[memoryview], Any]:
    """decode(view of bytes) -> sample. Raises Evolved, ValueError, struct.error, UnicodeDecodeError."""
    w = _Decoder(alignment_max)
    w.constants["_cls"] = layout.cls
    w.struct(layout, "o")
    if w.position is None:
        w.line("if n > end: raise ValueError('the sample is truncated')")
    w.line("return o")
    head = w.constant("H", struct.Struct("<I").unpack_from)
    number = int.from_bytes(header, "little")  # compared as a number, which a slice of the view would take longer for
    return w.source("decode", "b", [f"if {head}(b)[0] != {number}: raise Evolved", "end = len(b) - 4"])
