"""Messages that carry their info: bytes in every respect, with something behind the payload."""

from __future__ import annotations

import copy
import gc
import pickle
import sys

import pytest

from spindle_core.delivery import DeliveryLog
from spindle_core.message import MessageInfo, message_info, message_type
from tests.spindle_core.logs import add_reader

Message = message_type("Message", __name__, "about", "For these tests.")


class Info(MessageInfo):
    """A layer above's info."""


def taken(payloads: list[bytes], info_type: type = Info) -> list[bytes]:
    log = DeliveryLog(1 << 20)
    reader, _ = add_reader(log)
    for k, payload in enumerate(payloads):
        assert log.append(payload, 3, k, 1, 100 + k)
    return reader.take(len(payloads), Message, info_type)


def test_a_message_is_bytes_in_every_respect() -> None:
    """Goal: what takes bytes takes messages: equality, hash, slices, buffers, copies and pickles (as plain bytes).

    Method: every size around the alignment of the hidden part; neighbours are freed in between.
    """
    payloads = [bytes([k % 256]) * k for k in range(70)] + [b"x" * 100_000]
    for message, payload in zip(taken(payloads), payloads, strict=True):
        assert type(message) is Message and isinstance(message, bytes)
        assert message == payload and hash(message) == hash(payload) and len(message) == len(payload)
        assert bytes(memoryview(message)) == payload and message[:3] == payload[:3] and message + b"" == payload
        for other in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message)), bytes(message)):
            assert type(other) is bytes and other == payload
    assert Message.__name__ == "Message" and Message.__module__ == __name__ and "tests" in (Message.__doc__ or "")


def test_the_info_is_made_on_demand_of_the_readers_type() -> None:
    """Goal: the info outlives log and reader, is of the type the reader chose, and new at every call."""
    messages = taken([b"", b"a", b"bc"])
    gc.collect()
    for k, message in enumerate(messages):
        info = message.about  # type: ignore[attr-defined]
        assert type(info) is Info and info is not message_info(message)
        assert (info.index, info.sender, info.source_timestamp) == (k, 3, 100 + k)
    assert type(taken([b"x"], MessageInfo)[0].about) is MessageInfo  # type: ignore[attr-defined]


def test_messages_come_from_readers_only() -> None:
    """Goal: there is no message without its hidden part. Method: every other way to make one, or to ask one for it."""
    for make in (lambda: Message(b"x"), lambda: bytes.__new__(Message, b"x"), lambda: Message.fromhex("00")):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        type("Sub", (Message,), {})
    for other in (b"x", None, Message):
        with pytest.raises(TypeError, match="carries no info"):
            message_info(other)


def test_nothing_leaks() -> None:
    """Goal: a message holds one reference to its type and one to its info's type, and gives both back."""

    class Own(MessageInfo):
        """Counted."""

    gc.collect()
    before = sys.getrefcount(Message), sys.getrefcount(Own)
    messages = taken([b"x"] * 100, Own)
    infos = [message_info(m) for m in messages]
    assert sys.getrefcount(Own) >= before[1] + 100
    del messages, infos
    gc.collect()
    assert (sys.getrefcount(Message), sys.getrefcount(Own)) == before


def test_memory_that_serves_again_is_of_the_right_size() -> None:
    """Goal: messages of all sizes, made and freed in any order, don't share memory. Method: those of one size go, then
    some of another; then more of the first live at once than were kept ready, with contents of their own."""
    for first, other in ((1000, 8), (8, 1000), (10_000, 20_000), (20_000, 10_000)):
        for _ in range(3):
            del_me = taken([bytes([1]) * first] * 3)
            del del_me
            del_me = taken([bytes([2]) * other] * 30)
            del del_me
            payloads = [bytes([k]) * first for k in range(20)] + [bytes([k]) * other for k in range(20, 40)]
            assert taken(payloads) == payloads
    many = taken([b"x" * 500] * 300)
    assert many == [b"x" * 500] * 300
    del many
    alternating = [b"%d" % k * (1 + 99 * (k % 2)) for k in range(1000)]
    assert taken(alternating) == alternating


def test_a_message_does_not_lie_in_memory_of_a_shorter_one() -> None:
    """Method: of many short messages, which lie side by side, every other one goes; then long ones are made, and the
    short ones that are left are looked at. So many others, that live on, that no other memory is kept ready."""
    short = taken([b"%03d" % k * 8 for k in range(60)])
    others = [taken([b"y" * 3000] * 300), taken([b"y" * 500] * 300)]
    left = short[::2]
    del short
    long = taken([bytes([k]) * 2000 for k in range(30)])
    assert left == [b"%03d" % k * 8 for k in range(0, 60, 2)]
    assert long == [bytes([k]) * 2000 for k in range(30)]
    assert all(map(len, others))
