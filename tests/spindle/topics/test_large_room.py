"""Goal: room for large samples goes to who asks first, and none stays with who has died, hangs, or waits no more.

Method: the room alone, on a loop, with memory that is never filled; programs in tests/dds/test_large.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spindle.errors import NoResources
from spindle.topics import large_room
from spindle.topics.large_room import LargeRoom

CAPACITY = 1000
SLOW, OTHER, THIRD = "slow", "other", "third"  # programs


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_room, "FILL_S", 0.05)


def run(body: Callable[[LargeRoom], Awaitable[None]]) -> None:
    async def inside() -> None:
        await asyncio.wait_for(body(LargeRoom(CAPACITY)), 20)

    asyncio.run(inside())


def test_who_comes_first_is_served_first() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 900, 0, OTHER)
        assert await room.take("u", 900, 0, OTHER)  # of another topic
        waiting = [asyncio.ensure_future(room.take("t", size, 10, OTHER)) for size in (500, 200, 200)]
        await asyncio.sleep(0)
        assert not await room.take("t", 1, 0, OTHER)  # there would be room, but others are before it
        room.give("t", 900)
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert room.used == 900 + 900

    run(body)


def test_one_that_is_larger_than_all_goes_alone() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 5000, 0, OTHER)
        assert not await room.take("t", 1, 0.01, OTHER)
        room.give("t", 5000)
        assert await room.take("t", 1, 0, OTHER)

    run(body)


def test_memory_that_is_not_filled_goes_to_who_waits() -> None:
    """Not before its time, and not to the program that has it."""

    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 900, 0, SLOW)
        memory = room.begin("t", 900, SLOW, -1)
        assert not await room.take("t", 200, 0.2, SLOW)
        assert await room.take("t", 200, 10, OTHER)
        assert not memory.counts and room.used == 200
        with pytest.raises(NoResources, match="this program has been filling a sample of 900 bytes"):
            room.check(SLOW)
        room.check(OTHER)
        with pytest.raises(NoResources, match="others got its room: write the sample again"):
            room.filled(memory)
        room.check(SLOW)
        assert room.used == 200

    run(body)


def test_nobody_waits_and_nothing_is_taken() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 900, 0, SLOW)
        memory = room.begin("t", 900, SLOW, -1)
        await asyncio.sleep(0.1)
        assert await room.take("t", 100, 0, OTHER)
        assert memory.counts
        room.filled(memory)
        assert room.used == 1000

    run(body)


def test_what_is_filled_late_counts_where_there_is_room() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 600, 0, SLOW)
        memory = room.begin("t", 600, SLOW, -1)
        assert await room.take("t", 600, 10, OTHER)
        room.give("t", 600)
        room.filled(memory)
        assert room.used == 600
        room.give("t", 600)
        assert room.used == 0

    run(body)


def test_late_memory_that_is_dropped_gives_nothing_back_twice() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 900, 0, SLOW)
        memory = room.begin("t", 900, SLOW, -1)
        assert await room.take("t", 900, 10, OTHER)
        room.dropped(memory)
        assert room.used == 900
        room.check(SLOW)

    run(body)


def test_of_several_only_what_is_late_is_taken() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 300, 0, SLOW)
        first = room.begin("t", 300, SLOW, -1)
        await asyncio.sleep(0.1)
        assert await room.take("t", 300, 0, THIRD)
        second = room.begin("t", 300, THIRD, -1)
        assert await room.take("t", 600, 10, OTHER)
        assert (first.counts, second.counts) == (False, True)

    run(body)


def test_who_stops_waiting_has_nothing() -> None:
    """Whenever that is: also when there is room for it in that moment."""

    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 900, 0, OTHER)
        for given in (False, True):
            waiting = asyncio.ensure_future(room.take("t", 500, 10, OTHER))
            behind = asyncio.ensure_future(room.take("t", 100, 10, OTHER))
            await asyncio.sleep(0)
            if given:
                room.give("t", 900)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await behind
            room.give("t", 100)
        assert room.used == 0

    run(body)


def test_who_waits_when_the_node_stops_is_told() -> None:
    async def body(room: LargeRoom) -> None:
        assert await room.take("t", 900, 0, OTHER)
        waiting = asyncio.ensure_future(room.take("t", 500, 10, OTHER))
        await asyncio.sleep(0)
        room.stop()
        with pytest.raises(NoResources, match="the node stops"):
            await waiting

    run(body)
