"""Goal: whatever a source sends, only the bytes of a sample get into its memory, and who waits is told what was wrong.

Method: a reader on one end of a socket, and on the other the test, which sends what a source shouldn't.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from spindle.errors import NoResources, SampleMissing, SampleUnfit
from spindle.large import memory
from spindle.large import reader as reading
from spindle.large.filling import Filling
from spindle.large.pieces import (
    DATA,
    FIRST,
    LACKING,
    PIECE,
    PIECE_MAX,
    QUESTION,
    UNWANT,
    WANT,
    WANT_FIRST,
    WANTED_MAX,
    WHY_MAX,
)
from spindle.large.reader import Fetch, Reader
from tests.spindle.large.group import content_of, pattern
from tests.spindle.links.group import descriptors_of

SIZE = 5000


class Source:
    """The other end of a reader's connection."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.reader = Reader(theirs.detach(), 3)
        self.fillings: list[Filling] = []

    def want(self, size: int = SIZE, large_id: int = 7, first: bool = False) -> tuple[Fetch, Filling]:
        filling = Filling(large_id, size, "images", lambda _: None)
        self.fillings.append(filling)
        return self.reader.want(filling, first), filling

    def question(self) -> tuple[int, ...]:
        what, zero, *rest = QUESTION.unpack(self.sock.recv(QUESTION.size, socket.MSG_WAITALL))
        assert zero == 0
        return (what, *rest)

    def send(self, what: int, number: int, at: int, content: bytes, length: int = -1) -> None:
        self.sock.sendall(PIECE.pack(what, len(content) if length < 0 else length, number, at) + content)

    def close(self) -> None:
        self.sock.close()
        self.reader.close("over")
        for filling in self.fillings:
            filling.end("over")


def run(body: Callable[[Source], Awaitable[None]]) -> None:
    gc.collect()  # what other tests have left goes before, and not meanwhile
    before = descriptors_of(os.getpid())

    async def inside() -> None:
        source = Source()
        try:
            await asyncio.wait_for(body(source), 20)
        finally:
            source.close()

    asyncio.run(inside())
    assert not Counter(descriptors_of(os.getpid())) - Counter(before)


def test_what_can_not_be_closed_is_filled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody takes for the sample what isn't in the memory that the next source fills."""
    filling = Filling(7, SIZE, "images", lambda _: None)
    assert filling.give_to("one") == 0 and filling.fill("one", memoryview(pattern(SIZE)))

    def fails(fd: int) -> tuple[int, bool]:
        os.close(fd)
        raise SampleUnfit("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "close", fails)
        with pytest.raises(SampleUnfit):
            filling.complete()
    assert not filling.whole and filling.give_to("another") == 0
    assert filling.fill("another", memoryview(pattern(SIZE, 1)))
    filling.complete()
    assert content_of(filling.open(), SIZE) == pattern(SIZE, 1)
    filling.end("over")


def test_pieces_become_the_sample() -> None:
    async def body(source: Source) -> None:
        (fetch, filling), (other, other_filling) = source.want(), source.want(large_id=8, first=True)
        assert source.question() == (WANT, 1, 7, SIZE, 0)
        assert source.question() == (WANT_FIRST, 2, 8, SIZE, 0)
        source.reader.hurry(fetch)
        assert source.question() == (FIRST, 1, 7, SIZE, 0)
        content = pattern(SIZE)
        source.send(DATA, 1, 0, content[:1000])
        source.send(DATA, 2, 0, content)
        source.send(DATA, 1, 1000, content[1000:])
        await asyncio.wait({fetch.done, other.done})
        assert content_of(filling.open()) == content_of(other_filling.open()) == content
        source.reader.unwant(fetch)
        source.reader.hurry(fetch)  # it is over
        third, _ = source.want()
        assert source.question() == (WANT, 3, 7, SIZE, 0)
        source.reader.unwant(third)
        assert source.question() == (UNWANT, 3, 7, SIZE, 0)

    run(body)


@pytest.mark.parametrize(("at", "length"), [(1, 100), (0, SIZE + 1), (1 << 63, 100)])
def test_bytes_of_another_place_end_the_connection(at: int, length: int) -> None:
    async def body(source: Source) -> None:
        fetch, filling = source.want()
        source.send(DATA, 1, at, bytes(length))
        with pytest.raises(SampleMissing, match=f"node 3 sent bytes {at} to {at + length} of a large sample of 5000"):
            await fetch.done
        assert filling.reached == 0
        with pytest.raises(SampleMissing, match="node 3 sent bytes"):
            source.want()

    run(body)


def test_more_than_the_sample_has_ends_the_connection() -> None:
    async def body(source: Source) -> None:
        fetch, filling = source.want()
        source.send(DATA, 1, 0, bytes(SIZE - 1))
        source.send(DATA, 1, SIZE - 1, bytes(2))
        with pytest.raises(SampleMissing, match="sent bytes 4999 to 5001 of a large sample of 5000, where 4999"):
            await fetch.done
        assert filling.reached == SIZE - 1 and not filling.whole

    run(body)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "length"), [(0, 1), (3, 1), (DATA, 0), (DATA, PIECE_MAX + 1), (LACKING, WHY_MAX + 1)])
def test_what_is_no_piece_ends_the_connection(what: int, length: int) -> None:
    async def body(source: Source) -> None:
        fetch, _ = source.want()
        source.send(what, 1, 0, b"", length)
        with pytest.raises(SampleMissing, match="node 3 sent what is no piece"):
            await fetch.done

    run(body)


@pytest.mark.slow
@pytest.mark.parametrize("content", [
    b"", b"SP", PIECE.pack(DATA, 1000, 1, 0), PIECE.pack(DATA, 1000, 1, 0) + bytes(999)])
def test_an_end_in_the_middle(content: bytes) -> None:
    """What has come counts: the next source goes on behind it."""
    async def body(source: Source) -> None:
        fetch, filling = source.want()
        source.sock.sendall(content)
        source.sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(SampleMissing, match="node 3 has closed the data connection"):
            await fetch.done
        assert filling.reached in (0, 999)

    run(body)


def test_a_refusal_is_of_one_sample() -> None:
    async def body(source: Source) -> None:
        (fetch, _), (other, filling) = source.want(), source.want(large_id=8)
        source.send(LACKING, 1, 0, "no such \udcff".encode("utf-8", "surrogateescape"))
        with pytest.raises(SampleMissing, match="node 3 doesn't give it: no such \ufffd"):
            await fetch.done
        source.send(LACKING, 99, 0, b"of what?")
        source.send(DATA, 99, 0, b"passed over")
        source.send(DATA, 2, 0, pattern(SIZE))
        await other.done
        assert content_of(filling.open()) == pattern(SIZE)

    run(body)


def test_a_source_that_comes_too_late_fills_nothing() -> None:
    """Another one has taken over, from where this one had stopped."""
    async def body(source: Source) -> None:
        fetch, filling = source.want()
        source.send(DATA, 1, 0, pattern(1000))
        while filling.reached < 1000:
            await asyncio.sleep(0.001)
        other = object()
        assert filling.give_to(other) == 1000
        source.send(DATA, 1, 1000, b"x" * 100)
        while source.reader.received < 1100:
            await asyncio.sleep(0.001)
        assert filling.reached == 1000
        assert filling.fill(other, memoryview(pattern(SIZE)[1000:]))
        assert content_of_unsealed(filling) == pattern(SIZE)
        assert not fetch.done.done()

    run(body)


def content_of_unsealed(filling: Filling) -> bytes:
    filling.complete()
    return content_of(filling.open())


def test_memory_that_runs_out_is_this_nodes_failure() -> None:
    async def body(source: Source) -> None:
        fetch, _ = source.want()
        with patch.object(os, "pwrite", side_effect=OSError(12, "Cannot allocate memory")):
            source.send(DATA, 1, 0, pattern(SIZE))
            with pytest.raises(NoResources, match="a large sample of 5000 bytes needs memory"):
                await fetch.done
        other, filling = source.want(large_id=8)
        source.send(DATA, 2, 0, pattern(SIZE))
        await other.done
        assert filling.whole

    run(body)


def test_places_beyond_32_bits() -> None:
    """The last piece of the largest sample; the memory before it is a hole."""
    async def body(source: Source) -> None:
        filling = Filling(7, memory.SIZE_MAX, "images", lambda _: None)
        filling.reached = memory.SIZE_MAX - 100
        source.fillings.append(filling)
        fetch = source.reader.want(filling, False)
        assert source.question() == (WANT, 1, 7, memory.SIZE_MAX, memory.SIZE_MAX - 100)
        source.send(DATA, 1, memory.SIZE_MAX - 100, pattern(100))
        await fetch.done
        fd = filling.open()
        assert os.pread(fd, 200, memory.SIZE_MAX - 100) == pattern(100)
        memory.check(fd, memory.SIZE_MAX)
        os.close(fd)

    run(body)


def test_so_many_are_wanted_of_one_node_and_no_more() -> None:
    async def body(source: Source) -> None:
        for _ in range(WANTED_MAX):
            source.reader._fetches[len(source.reader._fetches) + 10] = None  # type: ignore[assignment]
        with pytest.raises(SampleMissing, match=f"{WANTED_MAX} large samples are wanted of node 3"):
            source.want()
        source.reader._fetches.clear()

    run(body)


def test_a_source_that_reads_no_questions_ends_the_connection() -> None:
    async def body(source: Source) -> None:
        fetch, _ = source.want()
        with pytest.raises(SampleMissing, match="the data connection to node 3 broke"):
            while True:
                source.reader.hurry(fetch)
                if fetch.done.done():
                    fetch.done.result()
                await asyncio.sleep(0)

    run(body)


def test_a_connection_that_nobody_needs_is_given_up() -> None:
    async def body(source: Source) -> None:
        fetch, _ = source.want()
        assert source.reader.lasts()
        source.send(LACKING, 1, 0, b"no")
        await asyncio.wait({fetch.done})
        while source.reader.lasts() and source.reader._thread.is_alive():
            source.reader._used_s = 0.0
            await asyncio.sleep(0.01)
        assert not source.reader.lasts()
        with pytest.raises(SampleMissing, match="was given up: nobody needs it"):
            source.want()

    with patch.object(reading, "LOOK_S", 0.01):
        run(body)
