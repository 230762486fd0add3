"""Goal: large samples cross by one-sided writes what can be crossed so, and the data connection when that breaks; each
byte once, in its place, whatever the other end says.

Method: the ends of blocks.py, and real readers and givers, over regions of TCP in place of a device. Over devices:
test_over_verbs.py.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import ConnectionEnded, SampleMissing, WireError
from spindle.large import giver as giving
from spindle.large.blocks import BLOCKS, SIZE, BlockWriter, Landing
from spindle.large.filling import Filling
from spindle.large.giver import Giver
from spindle.large.pieces import (
    ADDRESS,
    CARD_MAX,
    DATA,
    DELIVERED,
    LACKING,
    LANDED,
    LANDING,
    PIECE,
    QUESTION,
    READY,
    TAKEN,
    UNWANT,
    WANT,
)
from spindle.large.reader import Reader
from spindle.large.routes import BLOCK
from spindle.large.store import Store
from spindle_core.fabric.regions.regions import GRANT
from tests.spindle.large import one_sided
from tests.spindle.large.group import content_of, pattern, sealed
from tests.spindle.large.one_sided import Ways, no_way
from tests.spindle.links.group import descriptors_of, mappings_of
from tests.support import wait_until

MANY = (2 * BLOCKS + 3) * BLOCK + 17  # bytes: twice around a landing, and more


@pytest.fixture
def ways() -> Iterator[Ways]:
    with one_sided.ways() as made:
        yield made


# --- the two ends


@pytest.fixture
def ends(ways: Ways) -> Iterator[tuple[Landing, BlockWriter]]:
    landing = Landing(ways.landing)
    writer = BlockWriter(ways.writing, landing.card)
    landing.connect(writer.address)
    yield landing, writer
    writer.close()
    landing.close()


def completed(writer: BlockWriter, count: int) -> None:
    found = 0

    def look() -> bool:
        nonlocal found
        found += writer.completed()
        return found >= count

    wait_until(look)
    assert found == count


def test_what_is_written_lies_in_the_landing(ends: tuple[Landing, BlockWriter]) -> None:
    """In its order, round and round."""
    landing, writer = ends
    content = pattern(MANY)
    pieces = [content[at : at + BLOCK] for at in range(0, MANY, BLOCK)]
    got = b""
    for piece in pieces:
        writer.write(memoryview(piece))
        completed(writer, 1)
        with landing.block(len(piece)) as block:
            got += bytes(block)
        landing.taken += 1
        writer.took(1)
    assert got == content


def test_no_block_is_written_before_it_was_taken_out(ends: tuple[Landing, BlockWriter]) -> None:
    landing, writer = ends
    for k in range(BLOCKS):
        assert writer.room == BLOCKS - k
        writer.write(memoryview(bytes([k]) * BLOCK))
    assert writer.room == 0
    completed(writer, BLOCKS)
    writer.took(3)
    assert writer.room == 3
    for k in range(BLOCKS):
        assert landing.block(BLOCK) == bytes([k]) * BLOCK
        landing.taken += 1


def test_more_is_taken_than_landed(ends: tuple[Landing, BlockWriter]) -> None:
    _, writer = ends
    writer.write(memoryview(b"one"))
    with pytest.raises(WireError, match="1 blocks were taken, of 0"):
        writer.took(1)
    completed(writer, 1)
    with pytest.raises(WireError, match="2 blocks were taken, of 1"):
        writer.took(2)


@pytest.mark.parametrize("size", [0, BLOCK + 1])
def test_a_block_has_a_size(ends: tuple[Landing, BlockWriter], size: int) -> None:
    with pytest.raises(WireError, match=f"{size} bytes don't lie in a block"):
        ends[0].block(size)


def test_a_way_that_breaks(ways: Ways, ends: tuple[Landing, BlockWriter]) -> None:
    """Whoever writes hears of it, with what was on its way, and with the next write."""
    _, writer = ends
    with patch.object(ways, "driven", []):
        writer.write(memoryview(bytes(BLOCK)))
    ways.cut()
    with pytest.raises(ConnectionEnded, match="a write over RDMA was cut"):
        wait_until(writer.completed)
    with pytest.raises(ConnectionEnded, match="the way over RDMA is over"):
        writer.write(memoryview(bytes(BLOCK)))


@pytest.mark.parametrize("card", [b"", bytes(CARD_MAX), b"x" * 40])
def test_a_card_that_makes_no_sense(ways: Ways, card: bytes) -> None:
    with pytest.raises(ValueError):
        BlockWriter(ways.writing, card)


def test_a_landing_of_another_size(ways: Ways) -> None:
    """Its owner would have more written than there is."""
    landing = Landing(ways.landing)
    key, size, *rest = GRANT.unpack(landing.card[: GRANT.size])
    with pytest.raises(ValueError, match=f"a landing has {SIZE} bytes, not {SIZE - 1}"):
        BlockWriter(ways.writing, GRANT.pack(key, size - 1, *rest) + landing.card[GRANT.size:])
    landing.close()


def test_an_end_that_can_not_be_made_leaves_nothing(ways: Ways) -> None:
    landing = Landing(ways.landing)
    gc.collect()  # what other tests have left goes before, and not meanwhile
    before = descriptors_of(os.getpid())
    with one_sided.ways() as other, pytest.raises(OSError, match="no way leads there"), \
            patch.object(one_sided.TcpWay, "connect", side_effect=OSError("no way leads there")):
        BlockWriter(other.writing, landing.card)
    del other
    gc.collect()  # the error refers to it
    assert not Counter(descriptors_of(os.getpid())) - Counter(before)
    landing.close()


def test_an_end_takes_what_it_had_with_it() -> None:
    """Its device and its memory go when it does, not with the garbage: connections come and go."""
    gc.collect()
    before, mapped = descriptors_of(os.getpid()), mappings_of(os.getpid())
    gc.disable()
    try:
        def use() -> None:
            with one_sided.ways() as ways:
                landing = Landing(ways.landing)
                writer = BlockWriter(ways.writing, landing.card)
                writer.write(memoryview(b"one"))
                completed(writer, 1)
                writer.close()
                landing.close()

        use()
        assert not Counter(descriptors_of(os.getpid())) - Counter(before)
        assert not Counter(mappings_of(os.getpid())) - Counter(mapped)
    finally:
        gc.enable()


# --- a giver, whose asker is the test


class Asker:
    def __init__(self, ways: Ways, make_way: Any = None) -> None:
        self.store = Store()
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.landing = Landing(ways.landing)
        self.giver = Giver(theirs.detach(), 3, self.store.find, make_way or ways.writing)
        self.store.watchers.append(self.giver.changed)

    def say(self, what: int, number: int = 0, size: int = 0, at: int = 0, behind: bytes = b"") -> None:
        self.sock.sendall(QUESTION.pack(what, 0, number, 7, size, at) + behind)

    def answer(self) -> tuple[int, int, int, int, bytes]:
        """What, length, number, at which byte, and what follows."""
        what, length, number, at = PIECE.unpack(self.sock.recv(PIECE.size, socket.MSG_WAITALL))
        content = b""
        while what != LANDED and len(content) < length:
            content += self.sock.recv(length - len(content))
        return what, length, number, at, content

    def begin(self, ready: bool = True) -> None:
        self.say(LANDING, size=len(self.landing.card), behind=self.landing.card)
        what, _, _, _, address = self.answer()
        assert what == ADDRESS
        self.landing.connect(address)
        if ready:
            self.say(READY)

    def piece(self, number: int, at: int) -> tuple[int, bytes]:
        """The next one of a sample."""
        what, length, found, place, content = self.answer()
        assert (found, place) == (number, at)
        if what == LANDED:
            content = bytes(self.landing.block(length))
            self.landing.taken += 1
        return what, content

    def has_ended(self) -> bool:
        try:
            while self.sock.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()
        self.giver.close()
        self.store.close()
        self.landing.close()


@pytest.fixture
def asker(ways: Ways) -> Iterator[Asker]:
    made = Asker(ways)
    yield made
    made.close()


def test_it_writes_when_the_other_end_is_ready(asker: Asker) -> None:
    """Before that the bytes come over the connection."""
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    asker.say(WANT, 1, 100)
    assert asker.piece(1, 0) == (DATA, pattern(100))
    asker.begin(ready=False)
    asker.say(WANT, 2, 100)
    assert asker.piece(2, 0) == (DATA, pattern(100))
    asker.say(READY)
    asker.say(WANT, 3, 100)
    assert asker.piece(3, 0) == (LANDED, pattern(100))


def test_it_waits_for_room_and_sleeps_meanwhile(asker: Asker) -> None:
    asker.store.put(7, sealed(pattern(MANY)), MANY, "images")
    asker.begin()
    asker.say(WANT, 1, MANY)
    got = b""
    for _ in range(BLOCKS):
        got += asker.piece(1, len(got))[1]
    asker.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        asker.answer()
    asker.sock.settimeout(10)
    while len(got) < MANY:
        asker.say(TAKEN, 1)
        what, content = asker.piece(1, len(got))
        assert what == LANDED
        got += content
    assert got == pattern(MANY)
    wait_until(lambda: not asker.giver._wanted)


def test_what_can_not_be_had_is_said_though_there_is_no_room(asker: Asker) -> None:
    asker.store.put(7, sealed(pattern(MANY)), MANY, "images")
    asker.begin()
    asker.say(WANT, 1, MANY)
    for at in range(0, SIZE, BLOCK):
        asker.piece(1, at)
    asker.sock.sendall(QUESTION.pack(WANT, DELIVERED, 2, 99, 100, 0))
    what, _, number, _, why = asker.answer()
    assert (what, number, why) == (LACKING, 2, b"it hasn't heard of it")
    wait_until(lambda: len(asker.giver._wanted) == 1)
    assert asker.giver._pause_ms() is None  # it sleeps until blocks are taken out
    asker.say(TAKEN, BLOCKS)
    asker.piece(1, SIZE)


def test_what_has_not_landed_comes_over_the_connection(ways: Ways, asker: Asker) -> None:
    """The way breaks between two blocks; whatever was written may have landed or not."""
    asker.store.put(7, sealed(pattern(MANY)), MANY, "images")
    asker.store.put(8, sealed(pattern(100, 1)), 100, "images")
    asker.begin()
    asker.say(WANT, 1, MANY)
    asker.sock.sendall(QUESTION.pack(WANT, 0, 2, 8, 100, 0))
    got, ways_of = b"", Counter[int]()
    while len(got) < MANY:
        if len(got) == 5 * BLOCK:
            ways.cut()
        what, content = asker.piece(1, len(got))
        ways_of[what] += 1
        got += content
        if what == LANDED and len(got) <= 5 * BLOCK:
            asker.say(TAKEN, 1)
    assert got == pattern(MANY)
    assert ways_of[LANDED] >= 5 and ways_of[DATA] >= 1
    assert asker.piece(2, 0) == (DATA, pattern(100, 1))
    wait_until(lambda: not asker.giver._wanted)
    assert asker.giver._blocks is None
    asker.say(TAKEN, 1)  # said before it was known that the way is over
    asker.say(WANT, 3, MANY, at=MANY - 1)
    assert asker.piece(3, MANY - 1) == (DATA, pattern(MANY)[-1:])


def test_a_sample_whose_last_block_did_not_land_is_given_again(ways: Ways, asker: Asker) -> None:
    """All of it was written, and its memory let go."""
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    asker.begin()
    wait_until(lambda: asker.giver._ready)
    driven, ways.driven = ways.driven, []  # the owner's processor takes nothing now
    asker.say(WANT, 1, 100)
    wait_until(lambda: asker.giver._on_the_way)
    ways.cut()
    ways.driven = driven
    assert asker.piece(1, 0) == (DATA, pattern(100))
    asker.say(WANT, 1, 100)  # it knows that number no more
    assert asker.piece(1, 0) == (DATA, pattern(100))


def test_what_was_written_lands_though_its_source_drops_it(ways: Ways, asker: Asker) -> None:
    """All of it is on its way: nothing of it can be lacking any more."""
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    asker.begin()
    wait_until(lambda: asker.giver._ready)
    driven, ways.driven = ways.driven, []
    asker.say(WANT, 1, 100)
    wait_until(lambda: asker.giver._on_the_way)
    asker.store.drop(7)
    with patch.object(giving, "UNKNOWN_S", 0.01):
        asker.say(WANT, 2, 101)  # what it answers to that comes after it has looked for the first one again
        assert asker.answer()[:3:2] == (LACKING, 2)
    ways.driven = driven
    assert asker.piece(1, 0) == (LANDED, pattern(100))


def test_what_is_taken_back_is_not_given_again(ways: Ways, asker: Asker) -> None:
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    asker.begin()
    wait_until(lambda: asker.giver._ready)
    ways.driven = []
    asker.say(WANT, 1, 100)
    wait_until(lambda: asker.giver._on_the_way)
    asker.say(UNWANT, 1)
    wait_until(lambda: not asker.giver._wanted)
    ways.cut()
    asker.say(WANT, 2, 100)
    assert asker.piece(2, 0) == (DATA, pattern(100))


def test_a_node_that_has_no_way_says_so(ways: Ways) -> None:
    asker = Asker(ways, no_way)
    try:
        asker.store.put(7, sealed(pattern(100)), 100, "images")
        asker.say(LANDING, size=len(asker.landing.card), behind=asker.landing.card)
        assert asker.answer() == (ADDRESS, 0, 0, 0, b"")
        asker.say(READY)
        asker.say(WANT, 1, 100)
        assert asker.piece(1, 0) == (DATA, pattern(100))
    finally:
        asker.close()


def test_a_card_comes_in_parts(asker: Asker) -> None:
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    question = QUESTION.pack(LANDING, 0, 0, 0, len(asker.landing.card), 0) + asker.landing.card
    for at in range(0, len(question), 7):
        asker.sock.sendall(question[at : at + 7])
    assert asker.answer()[0] == ADDRESS


def test_what_makes_no_sense_ends_the_connection(ways: Ways) -> None:
    for wrong in ("a second landing", "a large card", "taken too often"):
        with one_sided.ways() as own:
            asker = Asker(own)
            asker.begin()
            if wrong == "a second landing":
                asker.say(LANDING, size=len(asker.landing.card), behind=asker.landing.card)
            elif wrong == "a large card":
                asker.say(LANDING, size=CARD_MAX + 1)
            else:
                asker.say(TAKEN, 1)
            assert asker.has_ended(), wrong
            asker.close()


# --- a reader, whose source is the test, or a giver


class Source:
    """The other end of a reader's connection: the test itself, or a giver."""

    def __init__(self, ways: Ways, make_way: Any = None, gives: bool = False) -> None:
        self.store, self.fillings = Store(), list[Filling]()
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.giver: Giver | None = None
        if gives:
            self.giver = Giver(self.sock.detach(), 2, self.store.find, ways.writing)
            self.store.watchers.append(self.giver.changed)
        self.reader = Reader(theirs.detach(), 3, make_way or ways.landing)

    async def bring(self, content: bytes, number: int = 7) -> bytes:
        self.store.put(number, sealed(content), len(content), "images")
        filling = Filling(number, len(content), "images", lambda _: None)
        self.fillings.append(filling)
        await self.reader.want(filling, False).done
        return content_of(filling.open(), len(content))

    def question(self) -> tuple[int, int, bytes]:
        """What, number, and what follows."""
        what, _, number, _, size, _ = QUESTION.unpack(self.sock.recv(QUESTION.size, socket.MSG_WAITALL))
        return what, number, self.sock.recv(size, socket.MSG_WAITALL) if what == LANDING else b""

    def close(self) -> None:
        self.sock.close()
        self.reader.close("over")
        if self.giver is not None:
            self.giver.close()
        self.store.close()
        for filling in self.fillings:
            filling.end("over")


def run(source_of: Callable[[], Source], body: Callable[[Source], Awaitable[None]]) -> None:
    async def inside() -> None:
        source = source_of()
        try:
            await asyncio.wait_for(body(source), 30)
        finally:
            source.close()

    asyncio.run(inside())


def test_samples_come_over_the_way(ways: Ways) -> None:
    async def body(source: Source) -> None:
        assert source.giver is not None
        while not source.giver._ready:
            await asyncio.sleep(0.001)
        for number, size in enumerate((MANY, 1, BLOCK, BLOCK + 1, 40 * BLOCK), 1):
            assert await source.bring(pattern(size, number), number) == pattern(size, number)
        assert source.reader.landed == source.reader.received == MANY + 42 * BLOCK + 2

    run(lambda: Source(ways, gives=True), body)


@pytest.mark.parametrize("after", [1, BLOCKS, 2 * BLOCKS + 1])
def test_a_sample_is_whole_when_the_way_breaks_under_it(ways: Ways, after: int) -> None:
    async def body(source: Source) -> None:
        assert source.giver is not None
        while not source.giver._ready:
            await asyncio.sleep(0.001)
        bringing = asyncio.ensure_future(source.bring(pattern(MANY)))
        while source.reader.landed < after * BLOCK:
            await asyncio.sleep(0)
        ways.cut()
        assert await bringing == pattern(MANY)
        assert source.reader.received == MANY
        assert await source.bring(pattern(MANY, 1), 8) == pattern(MANY, 1)

    run(lambda: Source(ways, gives=True), body)


def test_a_reader_without_a_way_does_without(ways: Ways) -> None:
    async def body(source: Source) -> None:
        assert await source.bring(pattern(MANY)) == pattern(MANY)
        assert (source.reader.landed, source.reader.received) == (0, MANY)

    run(lambda: Source(ways, no_way, gives=True), body)


def test_a_way_that_can_not_be_connected_is_not_used(ways: Ways) -> None:
    async def body(source: Source) -> None:
        with patch.object(one_sided.TcpWay, "connect", side_effect=OSError("no way leads there")):
            assert source.question()[0] == LANDING
            source.sock.sendall(PIECE.pack(ADDRESS, 3, 0, 0) + b"abc")
            while source.reader._landing is not None:
                await asyncio.sleep(0.001)
        source.sock.sendall(PIECE.pack(LANDED, 5, 1, 0))
        while not source.reader.ended:
            await asyncio.sleep(0.001)
        assert "what is no piece" in source.reader.ended

    run(lambda: Source(ways), body)


@pytest.mark.parametrize("answer", [PIECE.pack(LANDED, 0, 1, 0), PIECE.pack(LANDED, BLOCK + 1, 1, 0),
                                    PIECE.pack(ADDRESS, CARD_MAX + 1, 0, 0)])
def test_a_source_that_lies_about_blocks_is_left(ways: Ways, answer: bytes) -> None:
    async def body(source: Source) -> None:
        assert source.question()[0] == LANDING
        source.sock.sendall(answer)
        while not source.reader.ended:
            await asyncio.sleep(0.001)

    run(lambda: Source(ways), body)


def test_a_block_that_is_not_what_comes_next(ways: Ways) -> None:
    async def body(source: Source) -> None:
        assert source.question()[0] == LANDING
        filling = Filling(7, 100, "images", lambda _: None)
        source.fillings.append(filling)
        fetch = source.reader.want(filling, False)
        source.sock.sendall(PIECE.pack(LANDED, 10, fetch.number, 90))
        with pytest.raises(SampleMissing, match="sent bytes 90 to 100 of a large sample of 100, where 0 is next"):
            await fetch.done

    run(lambda: Source(ways), body)


def test_blocks_that_nobody_wants_any_more_make_room_too(ways: Ways) -> None:
    """What was taken back comes, and is passed over: a landing that is not emptied would end all that follows."""

    async def body(source: Source) -> None:
        assert source.giver is not None
        while not source.giver._ready:
            await asyncio.sleep(0.001)
        for number in range(1, 8):
            content = pattern(MANY, number)
            source.store.put(number, sealed(content), MANY, "images")
            filling = Filling(number, MANY, "images", lambda _: None)
            source.fillings.append(filling)
            fetch = source.reader.want(filling, False)
            before = source.reader.landed
            while source.reader.landed == before:
                await asyncio.sleep(0)
            source.reader.unwant(fetch)
        assert await source.bring(pattern(MANY, 9), 9) == pattern(MANY, 9)

    run(lambda: Source(ways, gives=True), body)
