"""Goal: a link that talks much gets a data connection of its own, and gives it up; whatever goes wrong with that hurts
nobody else, and nothing of it is left.

Method: two pools of different hosts in one process (pair.py), with real data connections between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from spindle.errors import ConnectionEnded
from spindle.pool import dedicated
from spindle.pool.lives import life_of
from spindle.proto import node_pb2 as pb
from spindle_core.links.user import LinkUser
from spindle_core.memory import Mapping
from tests.spindle.links.group import descriptors_of
from tests.spindle.pool.pair import Side, pair, settle

BOUND_S = 20.0
PART = 64 << 10  # bytes of a read: a hundred of them are much


class Talk:
    """A user of side `one` that reads a region of the other one."""

    def __init__(self, one: Side, two: Side) -> None:
        self.one, self.two = one, two
        self.read = 0

    async def begin(self) -> None:
        life = await until_done((self.one, self.two), self.one.reach())
        self.memory = Mapping.create("user", PART)
        region = Mapping.create("region", PART)
        region.view()[:8] = b"found it"
        await self.two.pool.do(lambda: self.two.pool.exports.offer("region", region))
        await self.open(life)

    async def open(self, life: int) -> None:
        pool, self.read = self.one.pool, 0
        self.link = await pool.do(lambda: pool.pool.open_link(life))
        self.user = LinkUser(self.link.user_page, self.link.pool_page)
        self.buffer = await pool.do(lambda: self.link.add_buffer(self.memory))
        self.handle, why = await pool.ask(lambda answer: pool.finder.open(self.link, "region", 0, answer))
        assert self.handle >= 0, why
        await pool.do(lambda: self.link.renew(self.handle, 1 << 62))

    async def some(self) -> None:
        """A few reads, and what the nodes have to say meanwhile."""
        for _ in range(8):
            self.user.read(self.handle, 0, PART, self.buffer, cookie=self.read)
            self.user.submit()
            self.read += 1
        self.one.pool.driver.call()
        done: list[tuple[Any, ...]] = []

        def all_done() -> bool:
            done.extend(self.user.take())
            return len(done) == 8 or self.user.broken

        await until((self.one, self.two), all_done)
        if self.user.broken or [status for _, status, _ in done] != ["done"] * 8:
            raise ConnectionEnded(f"{self.user.broken}: {done}")
        assert [cookie for cookie, _, _ in done] == list(range(self.read - 8, self.read))
        assert bytes(self.memory.view()[:8]) == b"found it"

    async def until_it_has_its_own(self) -> None:
        shared = self.one.pool.pool.connections(self.link.node)[0]

        async def talk() -> None:
            while self.link.peer == shared:
                await self.some()

        await asyncio.wait_for(talk(), BOUND_S)

    async def close(self) -> None:
        await self.one.pool.do(lambda: self.one.pool.forget(self.link))


async def until(sides: tuple[Side, Side], condition: Callable[[], object]) -> None:
    """Lets everything through until it holds."""
    async def look() -> None:
        while not condition():
            for one in sides:
                one.hear()
            await asyncio.sleep(0.0005)

    await asyncio.wait_for(look(), BOUND_S)


async def until_done(sides: tuple[Side, Side], work: Awaitable[Any]) -> Any:
    return await settle(sides, asyncio.ensure_future(work))


def counts(sides: tuple[Side, Side]) -> list[int]:
    """Connections that each pool has to the other one."""
    return [len(one.pool.pool.connections(life_of(one.other.node_id, one.other.incarnation))) for one in sides]


@contextlib.asynccontextmanager
async def talking() -> AsyncIterator[tuple[Talk, tuple[Side, Side]]]:
    async with pair(local=False) as sides:
        talk = Talk(*sides)
        await talk.begin()
        yield talk, sides


def run(body: Callable[[Talk, tuple[Side, Side]], Awaitable[None]]) -> None:
    """What is left open fails the test."""
    async def inside() -> None:
        async with talking() as (talk, sides):
            await body(talk, sides)
            await talk.close()

    gc.collect()
    before = descriptors_of(os.getpid())
    asyncio.run(inside())
    gc.collect()
    assert descriptors_of(os.getpid()) == before


def test_who_talks_much_gets_its_own_and_gives_it_up() -> None:
    """With the order of its requests kept; another link stays on the shared one. It is given up when the link closes,
    at both nodes."""
    async def body(talk: Talk, sides: tuple[Side, Side]) -> None:
        one, _ = sides
        quiet = await one.pool.do(lambda: one.pool.pool.open_link(talk.link.node))
        await talk.until_it_has_its_own()
        await until(sides, lambda: counts(sides) == [2, 2])
        assert quiet.peer == one.pool.pool.connections(talk.link.node)[0] != talk.link.peer
        for _ in range(20):
            await talk.some()
        await talk.close()
        await until(sides, lambda: counts(sides) == [1, 1])
        await one.pool.do(lambda: one.pool.forget(quiet))
        assert not any(one.neighbours.dedicated._given.get(talk.link.node) for one in sides)

    run(body)


def test_where_none_is_to_be_had_it_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedicated, "GIVEN_MAX", 0)

    async def body(talk: Talk, sides: tuple[Side, Side]) -> None:
        one, _ = sides
        asked: list[int] = []
        wanted = one.pool._on_wanted
        one.pool._on_wanted = lambda life: (asked.append(life), wanted(life))
        while not asked:
            await talk.some()
        shared = talk.link.peer
        looks = set()
        while len(looks) < 6:
            await talk.some()
            looks.add(one.pool._look_at_use_ns)
        assert talk.link.peer == shared and counts(sides) == [1, 1]
        assert len(asked) == 1  # it asks again, but not at once

    run(body)


@pytest.mark.parametrize("who", ["who has asked for it", "who has given it"])
def test_it_is_lost_and_the_shared_one_goes_on(who: str) -> None:
    """Its link is cut, as by any end of a connection; the next one gets another."""
    async def body(talk: Talk, sides: tuple[Side, Side]) -> None:
        one, two = sides
        await talk.until_it_has_its_own()
        await until(sides, lambda: counts(sides) == [2, 2])
        whose = next(iter(one.pool._more))
        if who == "who has given it":
            await two.pool.do(lambda: two.pool.drop_more((False, life_of(1, 11), whose[2])))
        else:
            await one.pool.do(lambda: one.pool.drop_more(whose))
        with pytest.raises(ConnectionEnded, match="connection"):
            while True:
                await talk.some()
        await until(sides, lambda: counts(sides) == [1, 1])
        await talk.close()
        await talk.open(life_of(2, 22))
        await talk.until_it_has_its_own()

    run(body)


def test_a_node_that_goes_takes_them_along() -> None:
    async def body(talk: Talk, sides: tuple[Side, Side]) -> None:
        one, two = sides
        await talk.until_it_has_its_own()
        one.neighbours.gone(one.connected[2])
        two.neighbours.gone(two.connected[1])
        await until(sides, lambda: counts(sides) == [0, 0])
        assert not one.pool._more and not two.pool._more

    run(body)


def test_what_makes_no_sense_changes_nothing() -> None:
    """Numbers that are none, that are in use, answers and ends of what nobody has asked for."""
    async def body(talk: Talk, sides: tuple[Side, Side]) -> None:
        one, two = sides
        await talk.until_it_has_its_own()
        await until(sides, lambda: counts(sides) == [2, 2])
        number = next(iter(one.pool._more))[2]
        peer = two.connected[1]
        for message in (pb.LinkMore(number=0), pb.LinkMore(number=1), pb.LinkMore(number=number),
                        pb.LinkMore(number=99, rdma_address=b"nowhere"),
                        pb.LinkMore(number=99, step=pb.LinkMore.ANSWER, token=b"x"),
                        pb.LinkMore(number=99, step=pb.LinkMore.OVER),
                        pb.LinkMore(number=99, step=pb.LinkMore.OVER, mine=True)):
            two.neighbours.dedicated.heard(peer, message)
        for _ in range(10):
            await talk.some()
        assert counts(sides) == [2, 2]

    run(body)
