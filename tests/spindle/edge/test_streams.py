"""Streams over one connection, without input or output: what is said, what is refused, and that all agrees.

Method: two ends with queues between them, which hypothesis drives; and ends to which one says what breaks the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.edge.streams import (
    CREDIT_BYTES,
    PIECE_BYTES,
    Allowed,
    Ended,
    Opened,
    Received,
    Room,
    Streams,
    last_word,
)
from spindle.errors import AccessDenied, NodeStopped, SpindleError, WireError
from spindle.proto import edge_pb2 as eb
from spindle.transport.opening import STREAM_BYTES

ALLOWED = 3


class Pair:
    """An edge and a node; `pass_on` lets the next message to one of them arrive."""

    def __init__(self) -> None:
        self.queues: tuple[deque[bytes], deque[bytes]] = (deque(), deque())  # to the edge, to the node
        self.ends = (Streams(self.queues[1].append, opens=True),
                     Streams(self.queues[0].append, opens=False, allowed=ALLOWED))
        self.sent: dict[tuple[int, int], bytearray] = {}  # by the end that has sent it, and the stream
        self.got: dict[tuple[int, int], bytearray] = {}
        self.waiting: dict[tuple[int, int], int] = {}  # bytes that came and were not passed on
        self.alive: tuple[set[int], set[int]] = (set(), set())
        self.ended: dict[tuple[int, int], Any] = {}
        self.ends[1].allow()

    def open(self) -> None:
        edge = self.ends[0]
        if len(edge) < edge.allowed:
            self.alive[0].add(edge.open())

    def send(self, end: int, number: int, size: int) -> None:
        size = min(size, self.ends[end].room(number))
        if size and number in self.alive[end]:
            sent = self.sent.setdefault((end, number), bytearray())
            content = bytes((len(sent) + k) % 251 for k in range(size))
            sent += content
            self.ends[end].send(number, content)

    def pass_on(self, end: int) -> None:
        if not self.queues[end]:
            return
        happened = self.ends[end].take(self.queues[end].popleft())
        if isinstance(happened, Opened):
            self.alive[end].add(happened.stream)
        elif isinstance(happened, Received):
            assert happened.stream in self.alive[end]
            self.got.setdefault((end, happened.stream), bytearray()).extend(happened.content)
            key = end, happened.stream
            self.waiting[key] = self.waiting.get(key, 0) + len(happened.content)
            assert self.waiting[key] <= STREAM_BYTES
        elif isinstance(happened, Ended):
            self.alive[end].remove(happened.stream)
            self.ended[end, happened.stream] = happened.error

    def free(self, end: int, number: int) -> None:
        """What came has been passed on."""
        self.ends[end].passed(number, self.waiting.pop((end, number), 0))

    def close(self, end: int, number: int) -> None:
        if number in self.alive[end]:
            self.alive[end].remove(number)
            self.ends[end].close(number, NodeStopped("over") if end else None)

    def settle(self) -> None:
        while any(self.queues):
            for end in (0, 1):
                self.pass_on(end)


OPS = st.one_of(
    st.tuples(st.just("open")),
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 6), st.sampled_from([1, 1000, PIECE_BYTES])),
    st.tuples(st.just("pass_on"), st.integers(0, 1)),
    st.tuples(st.just("free"), st.integers(0, 1), st.integers(1, 6)),
    st.tuples(st.just("close"), st.integers(0, 1), st.integers(1, 6)))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(OPS, max_size=120))
def test_whatever_two_honest_ends_do_both_agree(operations: list[tuple[Any, ...]]) -> None:
    """Nothing is refused, nothing lost or out of order on a stream that lives, no window overrun, and in the end both
    have the same streams and room again."""
    pair = Pair()
    pair.settle()
    pair.open()
    pair.settle()
    for name, *arguments in operations:
        getattr(pair, name)(*arguments)
    pair.settle()
    assert pair.alive[0] == pair.alive[1] and len(pair.ends[0]) == len(pair.ends[1]) == len(pair.alive[0])
    for (end, number), sent in pair.sent.items():
        got = pair.got.get((1 - end, number), bytearray())
        assert sent.startswith(got) and (number not in pair.alive[end] or sent == got)
    for number in pair.alive[0]:
        for end in (0, 1):
            pair.free(end, number)
    pair.settle()
    for number in pair.alive[0]:
        assert all(end.room(number) for end in pair.ends)
    while len(pair.ends[0]) < ALLOWED:
        pair.open()
    pair.settle()
    assert len(pair.ends[1]) == ALLOWED


def test_a_window_is_used_up_and_granted_again() -> None:
    pair = Pair()
    pair.settle()
    pair.open()
    for _ in range(STREAM_BYTES // PIECE_BYTES):
        pair.send(0, 1, PIECE_BYTES)
    assert pair.ends[0].room(1) == 0
    pair.settle()
    pair.ends[1].passed(1, CREDIT_BYTES - 1)
    assert not pair.queues[0]  # not worth a message yet
    pair.ends[1].passed(1, 1)
    assert pair.ends[0].take(pair.queues[0].popleft()) == Room(1)
    assert pair.ends[0].room(1) == PIECE_BYTES


@pytest.mark.slow
def test_what_was_granted_is_what_was_passed_on() -> None:
    """Over many windows: nobody may have more on the way than one."""
    pair = Pair()
    pair.settle()
    pair.open()
    granted = passed = 0
    for _ in range(5 * STREAM_BYTES // PIECE_BYTES):
        pair.send(0, 1, PIECE_BYTES)
        while pair.queues[1]:
            pair.pass_on(1)
        passed += pair.waiting[1, 1]
        pair.free(1, 1)
        while pair.queues[0]:
            granted += eb.StreamFrame.FromString(pair.queues[0][0]).credit.bytes
            pair.pass_on(0)
        assert passed - CREDIT_BYTES < granted <= passed
    assert passed == 5 * STREAM_BYTES


def test_what_comes_after_our_end_is_nobodys() -> None:
    """It was on its way; it is counted and dropped, until the other end has answered."""
    pair = Pair()
    pair.settle()
    pair.open()
    pair.pass_on(1)
    pair.send(0, 1, 1000)
    pair.close(1, 1)
    assert pair.ends[1].take(pair.queues[1].popleft()) is None and len(pair.ends[1]) == 1
    pair.settle()
    assert len(pair.ends[0]) == len(pair.ends[1]) == 0


def test_a_reason_comes_along() -> None:
    pair = Pair()
    pair.settle()
    pair.open()
    pair.open()
    pair.settle()
    pair.close(1, 2)
    pair.settle()
    error = pair.ended[0, 2]
    assert isinstance(error, NodeStopped) and str(error) == "over"
    with pytest.raises(AccessDenied, match="you may not"):
        pair.ends[0].take(last_word(AccessDenied("you may not")))


def test_an_end_that_is_about_to_end_allows_no_more() -> None:
    pair = Pair()
    pair.settle()
    pair.ends[1].allow_no_more()
    assert pair.ends[0].take(pair.queues[0].popleft()) == Allowed(0) and pair.ends[0].allowed == 0


def frame(**body: Any) -> bytes:
    return eb.StreamFrame(**body).SerializeToString()


def data(stream: int, size: int) -> bytes:
    return frame(data=eb.Data(stream=stream, content=bytes(size)))


def flood(_: Streams) -> list[bytes]:
    return [data(1, PIECE_BYTES)] * (STREAM_BYTES // PIECE_BYTES) + [data(1, 1)]


def flood_the_closed(end: Streams) -> list[bytes]:
    end.close(1)
    return flood(end)


LIES: dict[str, tuple[Callable[[Streams], list[bytes]], str]] = {
    "nonsense": (lambda _: [b"\xff" * 9], "can't be read"),
    "a number left out": (lambda _: [frame(open=eb.Open(stream=3))], "after stream 1"),
    "a number again": (lambda _: [frame(open=eb.Open(stream=1))], "after stream 1"),
    "number nought": (lambda _: [frame(open=eb.Open())], "after stream 1"),
    "too many": (lambda _: [frame(open=eb.Open(stream=number)) for number in (2, 3, 4)], "beside 3 others, the limit"),
    "more than granted": (flood, "0 were left"),
    "more than granted, of one that is closed": (flood_the_closed, "0 were left"),
    "bytes for nobody": (lambda _: [data(2, 1)], "no such stream"),
    "bytes after the end": (lambda _: [frame(close=eb.Close(stream=1)), data(1, 1)], "no such stream"),
    "nothing as bytes": (lambda _: [data(1, 0)], "a piece of 0 bytes"),
    "a piece too long": (lambda _: [data(1, PIECE_BYTES + 1)], "the limits are 1 and"),
    "credit for nobody": (lambda _: [frame(credit=eb.Credit(stream=2, bytes=1))], "no such stream"),
    "credit for nothing sent": (lambda _: [frame(credit=eb.Credit(stream=1, bytes=1))], "though 0 are on the way"),
    "no credit": (lambda _: [frame(credit=eb.Credit(stream=1))], "credit for 0 bytes"),
    "credit without end": (lambda _: [frame(credit=eb.Credit(stream=1, bytes=(1 << 64) - 1))], "are on the way"),
    "an end twice": (lambda _: [frame(close=eb.Close(stream=1))] * 2, "no such stream"),
    "an end of nobody": (lambda _: [frame(close=eb.Close(stream=9))], "no such stream"),
    "streams allowed by the edge": (lambda _: [frame(allowed=eb.Allowed(streams=9))], "by the end that opens none"),
}


@pytest.mark.parametrize("lie", LIES)
def test_who_breaks_the_rules_is_refused(lie: str) -> None:
    """At a node, of an edge that has opened stream 1."""
    said: list[bytes] = []
    end = Streams(said.append, opens=False, allowed=3)
    end.take(frame(open=eb.Open(stream=1)))
    make, why = LIES[lie]
    *before, last = make(end)
    for one in before:
        end.take(one)
    with pytest.raises(WireError, match=why):
        end.take(last)


@pytest.mark.parametrize(("lie", "why"), [
    (frame(open=eb.Open(stream=1)), "may open none"),
    (frame(allowed=eb.Allowed(streams=7)), "once at first"),
    (data(1, 1), "no such stream")], ids=["opens", "allows again", "sends"])
def test_a_node_that_breaks_the_rules_is_refused(lie: bytes, why: str) -> None:
    end = Streams(lambda _: None, opens=True)
    assert end.take(frame(allowed=eb.Allowed(streams=1))) == Allowed(1)
    with pytest.raises(WireError, match=why):
        end.take(lie)


def test_allowed_comes_first_and_isnt_none() -> None:
    with pytest.raises(WireError, match="once at first"):
        Streams(lambda _: None, opens=True).take(frame(allowed=eb.Allowed()))


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.one_of(
    st.builds(lambda n: frame(open=eb.Open(stream=n)), st.integers(0, 5)),
    st.builds(data, st.integers(0, 5), st.sampled_from([0, 1, PIECE_BYTES])),
    st.builds(lambda n, size: frame(credit=eb.Credit(stream=n, bytes=size)), st.integers(0, 5),
              st.integers(0, 2 * STREAM_BYTES)),
    st.builds(lambda n: frame(close=eb.Close(stream=n, kind="?", text="x")), st.integers(0, 5)),
    st.binary(max_size=12)), max_size=60))
def test_whatever_comes_bounds_hold(bodies: list[bytes]) -> None:
    """It is taken, or refused with a WireError or as a last word; never anything else, and never more is kept."""
    end = Streams(lambda _: None, opens=False, allowed=2)
    came: dict[int, int] = {}
    for body in bodies:
        try:
            happened = end.take(body)
        except SpindleError:
            return
        if isinstance(happened, Received):
            came[happened.stream] = came.get(happened.stream, 0) + len(happened.content)
            assert came[happened.stream] <= STREAM_BYTES
        assert len(end) <= 2 and all(end.room(number) <= PIECE_BYTES for number in range(6))
