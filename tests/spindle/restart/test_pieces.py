"""Goal: a history comes out of its chunks as it went in, whatever its messages are; chunks are small, and what waits of
one history is bounded at both ends, also if the other end lies.

Method: hypothesis makes messages and, of right chunks, wrong ones; the two ends of a window talk without a connection.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle.errors import WireError
from spindle.proto import node_pb2 as pb
from spindle.restart.pieces import (
    CHUNK_BYTES,
    CHUNK_COST_MAX,
    CHUNK_MESSAGES,
    ENTRY_SIZE,
    Cutter,
    Gatherer,
    Message,
    cost,
)
from spindle.restart.streams import AHEAD_BYTES, Refused, Stream, Unavailable, Window

SIZE_MAX = 5 * CHUNK_BYTES
sizes = st.one_of(st.integers(0, 200), st.integers(CHUNK_BYTES - 2, CHUNK_BYTES + 2), st.integers(0, SIZE_MAX))


def message(number: int, size: int) -> Message:
    return Message(bytes([number % 251]) * size, number, 2 * number, 3, 4, 5, 6, number % 2, number % 256)


def cut(messages: list[Message]) -> list[pb.HistoryChunk]:
    left = iter(messages)
    cutter = Cutter(lambda: next(left, None))
    chunks, last = [], False
    while not last:
        chunk = pb.HistoryChunk()
        last = chunk.last = not cutter.fill(chunk)
        chunks.append(pb.HistoryChunk.FromString(chunk.SerializeToString()))
    return chunks


@settings(max_examples=60, deadline=None)
@given(st.lists(sizes, max_size=12))
def test_a_history_comes_out_of_its_chunks_as_it_went_in(of_sizes: list[int]) -> None:
    messages = [message(number, size) for number, size in enumerate(of_sizes)]
    gatherer = Gatherer("t", SIZE_MAX)
    got: list[Message] = []
    for chunk in cut(messages):
        assert sum(len(one.payload) for one in chunk.messages) <= CHUNK_BYTES and cost(chunk) <= CHUNK_COST_MAX
        got += gatherer.take(chunk)
    assert got == messages and not gatherer.partial


def test_the_entry_of_a_large_sample_may_come_in_pieces() -> None:
    """Goal: a chunk that ends in the middle of an entry is a chunk like any other. Method: little room is left for
    it."""
    entry = message(1, ENTRY_SIZE)._replace(large=True)
    messages = [message(0, CHUNK_BYTES - 10), entry, message(2, 5)]
    gatherer = Gatherer("t", CHUNK_BYTES)
    chunks = cut(messages)
    assert [len(one.payload) for one in chunks[0].messages] == [CHUNK_BYTES - 10, 10]
    assert [one for chunk in chunks for one in gatherer.take(chunk)] == messages


def test_small_messages_are_many_to_a_chunk_but_not_more_than_may_be() -> None:
    chunks = cut([message(number, 1) for number in range(3 * CHUNK_MESSAGES)])
    assert [len(chunk.messages) for chunk in chunks] == [CHUNK_MESSAGES] * 3 + [0]


def test_a_source_that_has_nothing_for_a_while_goes_on_in_the_middle() -> None:
    ready: list[Message] = []
    cutter, gatherer = Cutter(lambda: ready.pop(0) if ready else None), Gatherer("t", SIZE_MAX)
    got: list[Message] = []
    for number in range(5):
        ready.append(message(number, CHUNK_BYTES + 5))
        more = True
        while more:
            chunk = pb.HistoryChunk()
            more = cutter.fill(chunk)
            got += gatherer.take(chunk)
    assert got == [message(number, CHUNK_BYTES + 5) for number in range(5)]


@pytest.mark.parametrize("wrong, what", [
    ([pb.HistoryMessage(payload=b"x" * 11)], "more than 10 bytes"),
    ([pb.HistoryMessage(payload=b"x", missing=10)], "more than 10 bytes"),
    ([pb.HistoryMessage(payload=b"x", missing=2**64 - 1)], "more than 10 bytes"),
    ([pb.HistoryMessage(payload=b"x", missing=5), pb.HistoryMessage(payload=b"y", missing=5)], "5 bytes are missing"),
    ([pb.HistoryMessage(payload=b"x", missing=5), pb.HistoryMessage(payload=b"y" * 6)], "5 bytes are missing"),
    ([pb.HistoryMessage(payload=b"x", missing=5), pb.HistoryMessage(missing=5)], "5 bytes are missing"),
    ([pb.HistoryMessage(payload=b"x", writer_id=1 << 16)], "writer beyond"),
    ([pb.HistoryMessage(payload=b"x", tag=256)], "tag beyond 255"),
    ([pb.HistoryMessage(payload=b"x", missing=5)], "in the middle"),
])
def test_pieces_that_make_no_message_are_refused(wrong: list[pb.HistoryMessage], what: str) -> None:
    with pytest.raises(WireError, match=what):
        Gatherer("t", 10).take(pb.HistoryChunk(messages=wrong, last=True))


def stream_of(told: list[pb.HistoryMore]) -> Stream:
    return Stream(4, 1, told.append, lambda _: None)


def test_a_history_is_never_further_ahead_than_said() -> None:
    """The giver sends whenever it may, the receiver takes one chunk after the other. What waits is bounded."""

    async def body() -> None:
        chunks = cut([message(number, 50_000) for number in range(300)])
        window, told = Window(), []
        ahead_max = taken = sent = 0
        stream = stream_of(told)

        async def give() -> None:
            nonlocal sent
            for chunk in chunks:
                await window.room()
                window.sent(chunk)
                sent += cost(chunk)
                stream.put(chunk)

        giving = asyncio.ensure_future(give())
        with stream:
            for _ in chunks:
                chunk = await asyncio.wait_for(stream.take(), 5)
                for _ in range(3):
                    await asyncio.sleep(0)
                ahead_max = max(ahead_max, sent - taken)
                taken += cost(chunk)
                while told:
                    window.took(told.pop(0).taken)
        await giving
        assert AHEAD_BYTES <= ahead_max <= AHEAD_BYTES + CHUNK_COST_MAX + AHEAD_BYTES // 4
        assert not told  # it has come whole: nothing has to be stopped

    asyncio.run(body())


def test_who_leaves_a_history_stops_it_and_who_lies_about_it_is_refused() -> None:
    async def body() -> None:
        told: list[pb.HistoryMore] = []
        chunk = cut([message(1, CHUNK_BYTES)])[0]
        with stream_of(told) as stream:
            stream.put(chunk)
            await stream.take()
        assert [more.stop for more in told] == [True]

        with stream_of([]) as stream, pytest.raises(WireError, match="came at once"):
            for _ in range(20):
                stream.put(chunk)
        with pytest.raises(WireError, match="of 0 that were sent"):
            Window().took(1)

        told.clear()
        with pytest.raises(Refused, match="node 4: no disk"), stream_of(told) as stream:
            stream.put(pb.HistoryChunk(problem="no disk"))
            await stream.take()
        assert not told
        with pytest.raises(Unavailable, match="is gone"), stream_of(told) as stream:
            stream.put(None)
            await stream.take()

    asyncio.run(body())
