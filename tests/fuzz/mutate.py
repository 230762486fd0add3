"""Changing protobuf messages as messages, so that the fuzzer need not guess lengths and tags of nested fields.

Rules: what comes out depends on nothing but the input and the seed, so libFuzzer can repeat it.
"""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tests.fuzz.target import Cutter, Target, in_blocks

NUMBERS = (0, 1, 2, 3, 5, 9, 127, 128, 255, 256, 257, 4096, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40,
           2**63 - 1, 2**63, 2**64 - 1)
FRACTIONS = (0.0, -0.0, 0.5, -1.0, 1e-300, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "t", "plain", "mine", "x" * 128, "x" * 256, "\0", "é", "/nowhere", "TopicUnknown", "ConnectionEnded", "\n")
CPP = FieldDescriptor
BITS = {CPP.CPPTYPE_INT32: (31, True), CPP.CPPTYPE_UINT32: (32, False), CPP.CPPTYPE_INT64: (63, True),
        CPP.CPPTYPE_UINT64: (64, False)}


def changed(target: Target, data: bytes, seed: int) -> bytes | None:
    """The input with one message in it changed; None if there is none."""
    rng = random.Random(seed)
    if target.message is None:
        return None
    if target.prefix is None:
        return _message(target.message(b""), data, rng)
    head, blocks = data[: target.prefix], list(Cutter(data[target.prefix :]).blocks())
    kind = target.message(head)
    if kind is None:
        return None
    what, place = rng.randrange(8), rng.randrange(len(blocks) + 1)
    if what == 0 or not blocks:
        blocks.insert(place, _message(kind, b"", rng) or b"")
    elif what == 1:
        blocks.insert(place, rng.choice(blocks))
    elif what == 2:
        del blocks[place % len(blocks)]
    elif what == 3:
        rng.shuffle(blocks)
    else:
        place %= len(blocks)
        blocks[place] = _message(kind, blocks[place], rng) or blocks[place]
    return head + in_blocks(blocks)


def _message(kind: Any, data: bytes, rng: random.Random) -> bytes | None:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    for _ in range(rng.randint(1, 3)):
        _change(message, rng, 0)
    return bytes(message.SerializeToString(deterministic=True))


def _change(message: Message, rng: random.Random, depth: int) -> None:
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    set_already = [field for field, _ in message.ListFields()]
    field = rng.choice(set_already if set_already and rng.random() < 0.6 else fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(getattr(message, field.name), field, rng, depth)
    elif field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        _change_list(getattr(message, field.name), field, rng, depth)
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        if depth < 6:
            _change(child, rng, depth + 1)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), rng))


def _change_list(items: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    if len(items) and rng.random() < 0.3:
        del items[rng.randrange(len(items))]
    elif field.message_type is not None:
        if not len(items) or (len(items) < 20 and rng.random() < 0.4):
            child = items.add()
            if len(items) > 1 and rng.random() < 0.5:
                child.CopyFrom(rng.choice(list(items)[:-1]))
        _change(items[rng.randrange(len(items))], rng, depth + 1)
    elif len(items) and rng.random() < 0.5:
        place = rng.randrange(len(items))
        items[place] = _value(field, items[place], rng)
    else:
        items.append(rng.choice(list(items)) if len(items) and rng.random() < 0.5 else _value(field, None, rng))


def _change_map(items: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    known = sorted(items)  # a map's own order is not the same in every process
    if known and rng.random() < 0.3:
        del items[rng.choice(known)]
        return
    key = rng.choice(known) if known and rng.random() < 0.5 else _value(key_field, rng.choice(known or [None]), rng)
    if value_field.message_type is not None:
        if depth < 6:
            _change(items[key], rng, depth + 1)  # asking for it makes it
    else:
        items[key] = _value(value_field, items.get(key), rng)


def _value(field: FieldDescriptor, old: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind in BITS:
        bits, signed = BITS[kind]
        number = rng.choice(NUMBERS) if rng.random() < 0.7 or old is None else int(old) + rng.choice((-1, 1, 7, 256))
        number %= 2**bits
        return number - 2**bits if signed and rng.random() < 0.3 else number
    if kind == CPP.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == CPP.CPPTYPE_ENUM:
        return rng.choice(NUMBERS[:6])
    if kind in (CPP.CPPTYPE_FLOAT, CPP.CPPTYPE_DOUBLE):
        return rng.choice(FRACTIONS)
    if kind == CPP.CPPTYPE_STRING and field.type == CPP.TYPE_STRING:
        return rng.choice(TEXTS)
    return rng.randbytes(rng.choice((0, 1, 8, 16, 17, 65)))
