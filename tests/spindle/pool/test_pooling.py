"""Goal: the thread of a node's pool does what it is asked, tells whoever waits, keeps no memory of others for long, and
ends without leaving anything.

Method: a pool by itself, and two of one host that are connected (pair.py).
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from spindle.errors import NodeStopped
from spindle.pool import pooling as poolings
from spindle.pool.lives import life_of, node_of
from spindle.pool.pooling import Pooling
from spindle_core.errors import RdmaUnavailable
from spindle_core.links.user import LinkUser
from spindle_core.memory import Mapping
from tests.spindle.links.group import descriptors_of, mappings_of
from tests.spindle.pool.pair import Scarce, pair, settle


def run(body: Callable[[Pooling], Awaitable[None]]) -> None:
    """With a pool of its own; what the loop had to complain of, and what is left open, fails the test."""
    problems: list[dict[str, object]] = []

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        pool = Pooling(life_of(1, 5), loop, 0.0, *[lambda *_: None] * 5)
        pool.start()
        try:
            await asyncio.wait_for(body(pool), 30)
        finally:
            pool.stop()
            pool.stop()

    gc.collect()
    before = descriptors_of(os.getpid())
    asyncio.run(inside())
    gc.collect()
    assert problems == [] and descriptors_of(os.getpid()) == before
    assert not any(thread.name == "spindle links" for thread in threading.enumerate())


@pytest.mark.parametrize(("node", "incarnation"), [(1, 1), (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF), (7, 1 << 31)])
def test_a_life_is_of_one_node_and_one_start(node: int, incarnation: int) -> None:
    assert node_of(life_of(node, incarnation)) == node
    assert 0 < life_of(node, incarnation) < 1 << 63
    assert life_of(node, incarnation) != life_of(node, incarnation + 1)


def test_work_is_done_on_the_thread_in_order_and_its_errors_come_back() -> None:
    async def body(pool: Pooling) -> None:
        done: list[int] = []
        names = await asyncio.gather(*(pool.do(lambda number=number: (
            done.append(number), threading.current_thread().name)[1]) for number in range(100)))
        assert done == list(range(100)) and set(names) == {"spindle links"}
        with pytest.raises(ZeroDivisionError):
            await pool.do(lambda: 1 // 0)
        with pytest.raises(KeyError):
            await pool.ask(lambda answer: {}["none"])
        assert await pool.ask(lambda answer: answer("found", "why")) == ("found", "why")

    run(body)


def test_who_waits_when_the_node_stops_is_told() -> None:
    async def body(pool: Pooling) -> None:
        asks = [asyncio.ensure_future(pool.ask(lambda answer: None)) for _ in range(3)]
        asks[2].cancel()  # before its work has begun
        given_up = asyncio.ensure_future(pool.ask(lambda answer: None))
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.sleep(0)
        begun = time.monotonic()
        pool.stop()
        assert time.monotonic() - begun < 1
        for one in asks[:2]:
            with pytest.raises(NodeStopped):
                await one
        with pytest.raises(NodeStopped):
            await pool.do(lambda: None)

    run(body)


def test_who_gives_up_waiting_leaves_the_thread_alone() -> None:
    """Also where the answer comes later."""
    async def body(pool: Pooling) -> None:
        hold, later = threading.Event(), []
        waits = [asyncio.ensure_future(one) for one in (
            pool.do(lambda: hold.wait(10)), pool.do(lambda: 1), pool.do(lambda: 1 // 0), pool.ask(later.append))]
        await asyncio.sleep(0.01)
        for one in waits:
            one.cancel()
        await asyncio.wait(waits)
        hold.set()
        await pool.do(lambda: later[0]("late", ""))
        assert await pool.do(lambda: 5) == 5

    run(body)


def test_a_defect_of_the_thread_is_told_to_who_waits() -> None:
    told: list[str] = []

    async def body(pool: Pooling) -> None:
        ask = asyncio.ensure_future(pool.ask(lambda answer: None))
        await pool.do(lambda: None)
        with patch.object(pool.exports, "advance", side_effect=ArithmeticError("defect")):
            pool.driver.call()
            with pytest.raises(NodeStopped):
                await ask
        with pytest.raises(NodeStopped):
            await pool.do(lambda: None)

    with patch.object(poolings.LOG, "exception", told.append):
        run(body)
    assert told == ["the thread of links has ended by a defect; links of this node are over"]


def test_memory_of_another_node_is_let_go_when_nobody_uses_it() -> None:
    """Soon, not when many others have been mapped; who has a link to it keeps it."""
    async def inside() -> None:
        async with pair(local=True) as (one, two):
            await settle((one, two), asyncio.ensure_future(one.reach()))
            life = life_of(2, 22)
            memory = Mapping.create("theirs", 4096)
            key = await two.pool.do(lambda: two.pool.exports.offer("theirs", memory))
            await settle((one, two), asyncio.ensure_future(one.neighbours._have_mapped(life, key)))
            assert await one.pool.do(lambda: one.pool.mapping_of(life, key))
            assert mappings_of(os.getpid()).count("theirs") == 2
            with patch.object(poolings, "MAPPED_S", 0.0):
                while mappings_of(os.getpid()).count("theirs") > 1:
                    one.pool.driver.call()
                    await asyncio.sleep(0.001)
            assert not await one.pool.do(lambda: one.pool.mapping_of(life, key))
            await settle((one, two), asyncio.ensure_future(one.neighbours._have_mapped(life, key)))
            assert await one.pool.do(lambda: one.pool.mapping_of(life, key))

    asyncio.run(asyncio.wait_for(inside(), 30))


@pytest.mark.parametrize("ends", [False, True])
def test_a_region_that_is_mapped_no_more_when_it_is_opened_is_mapped_again(ends: bool) -> None:
    """Or has ended by then, and is said not to be there. Method: it is looked up anew when it has been mapped, and by
    then others have taken its place."""
    async def inside() -> None:
        async with pair(local=True) as (one, two):
            await settle((one, two), asyncio.ensure_future(one.reach()))
            memory = Mapping.create("theirs", 4096)
            await two.pool.do(lambda: two.pool.exports.offer("theirs", memory))
            link = await one.pool.do(lambda: one.pool.pool.open_link(life_of(2, 22)))
            mine = Mapping.create("mine", 64)
            await one.pool.do(lambda: link.add_buffer(mine))
            user = LinkUser(link.user_page, link.pool_page)
            mine.view()[:6] = b"theirs"
            mapped = one.pool.mapped
            one.pool.finder._beside.clear()  # as while the entry is being written: the lookup takes time
            times = []

            def mapped_late(life: int, key: int, memory: Mapping) -> None:
                times.append(key)
                if len(times) == 1:
                    one.pool.finder._cache.clear()
                    if ends:
                        two.pool.exports.directory.remove("theirs")
                mapped(life, key, memory)

            async def found() -> None:
                while not user.news:
                    one.pool.driver.call()
                    await asyncio.sleep(0.001)

            with patch.object(poolings, "MAPPED_MAX", 0), patch.object(one.pool, "mapped", mapped_late):
                user.find(6, 0, cookie=7)
                await settle((one, two), asyncio.ensure_future(found()))
            assert [seen[:2] for seen in user.take()] == [(7, "nobody" if ends else "done")]
            assert len(times) == 2 - ends
            await one.pool.do(lambda: one.pool.forget(link))

    asyncio.run(asyncio.wait_for(inside(), 30))


@pytest.mark.slow
def test_it_sleeps_while_nobody_wants_anything() -> None:
    async def body(pool: Pooling) -> None:
        await asyncio.sleep(0.05)
        begun = time.process_time()
        await asyncio.sleep(1.0)
        assert time.process_time() - begun < 0.2

    run(body)


@pytest.mark.parametrize("room", range(4))
def test_links_do_without_a_device_that_takes_no_memory(room: int) -> None:
    """Two memories are the pool's own: its directory and what lookups read into. Where there is no room for them links
    go without the device; where there is none for more, what is offered is refused and all else goes on."""

    async def body() -> None:
        pool = Pooling(life_of(1, 5), asyncio.get_running_loop(), 0.0, *[lambda *_: None] * 5,
                       lambda regions: Scarce(regions, room))
        pool.start()
        try:
            assert (pool.rdma is None) == (room < 2)
            memory = Mapping.create("table", 64)
            offered = pool.do(lambda: pool.exports.offer("table", memory))
            if room == 2:
                with pytest.raises(RdmaUnavailable):
                    await offered
            else:
                await offered
            entry, why = await asyncio.wait_for(
                pool.ask(lambda answer: pool.finder.look_up(pool.life, "table", 0, answer)), 10)
            assert (entry is None) == (room == 2), why
        finally:
            pool.stop()

    with patch.object(poolings.LOG, "disabled", True):
        asyncio.run(body())
