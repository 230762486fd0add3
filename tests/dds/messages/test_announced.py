"""Goal: what another program announces may be anything; it is nothing then, and ends no program that looks at it.

Method: announcements that are nearly right. What NumPy dies of is tried in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dds.messages.announced import NOTHING, AnnouncedType, _dtype_text, decode, dtype_of
from dds.messages.order_groups import channel_in


@pytest.mark.parametrize("of", [
    b'{"kind":"idl","name":"n","id":"","left_out":Infinity}', b'{"kind":"idl","name":"n","id":"","left_out":NaN}',
    b'{"kind":"idl","name":"n","id":"","is":"\\ud800"}', b'{"kind":"idl","name":"n","id":"0"}', b"[1]", b'"idl"', b"7"])
def test_a_type_that_makes_no_sense_is_none(of: bytes) -> None:
    assert decode(b'{"qos":{},"of":' + of + b"}")[1] == NOTHING


@pytest.mark.parametrize("said", [
    b'{"topic":"\\ud800","type":"","hash":""}', b'{"topic":"a","type":"\\udfff","hash":""}',
    b'{"topic":"a","type":"","hash":"0"}', b'{"topic":"a"}', b"[]", b"7"])
def test_a_topic_of_a_group_that_makes_no_sense_is_none(said: bytes) -> None:
    assert channel_in(said) is None


def test_a_small_description_of_a_huge_type_is_refused_at_once() -> None:
    """A struct that has another one twice, 13 deep, has 8,191 structs in it: each level doubles them."""
    from cyclonedds_idl import make_idl_struct

    from dds.idl.typeobjects import class_of, type_info

    cls = make_idl_struct("Level0", "Level0", {"number": int})
    for level in range(1, 13):
        cls = make_idl_struct(f"Level{level}", f"Level{level}", {"one": cls, "other": cls})
    info = type_info(cls)
    assert info is not None and len(info.mapping) < 2000
    with pytest.raises(ValueError, match="4,096 members"):
        class_of(info.identifier, info.mapping)


def test_the_room_for_nested_arrays_is_known_at_once() -> None:
    """Method: 10**12 structs in arrays of arrays, and few enough of them to be counted one by one."""
    from dds.idl.layout import Array, Node, Primitive, Struct, size_max

    pair = Struct(object, [("wide", Primitive("d")), ("narrow", Primitive("B"))], False)

    def room(*counts: int) -> int | None:
        element: Node = pair
        for count in counts:
            element = Array(element, count, False)
        return size_max(element, 1, 8)

    assert [room(count) for count in range(1, 40)] == [17 + 16 * (count - 1) for count in range(1, 40)]
    assert room(10**4, 10**4, 10**4) == 17 + 16 * (10**12 - 1)


def numpy_type(description: bytes) -> AnnouncedType:
    return AnnouncedType("numpy", "Fix", description=description)


@pytest.mark.parametrize("said", [
    b'"f8,,"', b'"=,"', b'"(2,)f8"', b'"O"', b'""', b'"\\ud800"', b'{"of":"<f8","shape":[1e999]}', b'{"of":"<f8"}',
    b'{"names":["a"],"formats":[],"offsets":[],"itemsize":-5}', b"[]", b"null", b"7", b"{"])
def test_a_dtype_that_is_none_is_a_value_error(said: bytes) -> None:
    with pytest.raises(ValueError):
        dtype_of(numpy_type(said))


@pytest.mark.slow
def test_no_announced_dtype_ends_the_program_that_looks_at_it() -> None:
    """A division by zero in NumPy's C code is a signal, which no `except` sees."""
    program = ("from dds.messages.announced import AnnouncedType, dtype_of\n"
               "for said in (b'\"M8[s/0]\"', b'\"m8[0s/0]\"', b'\"M8[0s]\"'):\n"
               "    try:\n"
               "        dtype_of(AnnouncedType('numpy', 'Fix', description=said))\n"
               "    except ValueError:\n"
               "        print('refused')\n")
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout.split()) == (0, ["refused"] * 3), found.stderr


@pytest.mark.parametrize("dtype", [
    np.dtype([("a", ">i2"), ("b", "?"), ("c", "S5"), ("d", "<U3"), ("e", "f2"), ("f", "c16"), ("g", "V3")]),
    np.dtype([("at", "M8[ns]"), ("for", "m8[25us]"), ("any", "M8"), ("long", "g"), ("inner", [("x", "f4", (2, 3))])]),
])
def test_a_dtype_comes_back(dtype: np.dtype) -> None:
    import json

    assert dtype_of(numpy_type(json.dumps(_dtype_text(dtype)).encode())) == dtype
