"""Goal: pools of two nodes with RDMA get connected over it and beside it whatever fails on the way; no end that was
made for a connection stays when nobody needs it.

Method: as in test_neighbours.py, with a stand-in for the devices (device.py).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from spindle.errors import ConnectionEnded
from spindle.pool import neighbours
from spindle.proto import node_pb2 as pb
from spindle_core.memory import Mapping
from tests.spindle.links.group import descriptors_of
from tests.spindle.pool.device import Device, Network
from tests.spindle.pool.pair import Side, pair, result_of, settle

Body = Callable[[Side, Side, Network], Awaitable[None]]


def run(body: Body, seed: int = 0) -> None:
    problems: list[dict[str, object]] = []

    async def inside() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        network = Network(seed)
        try:
            async with pair(False, network) as sides:
                await asyncio.wait_for(body(*sides, network), 60)
        finally:
            await network.close()

    gc.collect()
    before = descriptors_of(os.getpid())
    with patch.object(neighbours.LOG, "disabled", True):  # records keep errors, and these what they came through
        asyncio.run(inside())
    assert problems == []
    gc.collect()
    assert descriptors_of(os.getpid()) == before


async def ends_of(side: Side) -> tuple[int, int]:
    """How many ends its device has, and how many of these nobody has taken yet."""
    device = side.pool.rdma
    assert isinstance(device, Device)
    return await side.pool.do(lambda: (len(device.ends), len(side.pool._prepared)))


async def works(one: Side, two: Side) -> None:
    """Each finds what the other one offers."""
    for side, other in ((one, two), (two, one)):
        memory = Mapping.create("table", 64)
        await other.pool.do(lambda other=other, memory=memory: other.pool.exports.offer("table", memory, atomics=True))
        assert await settle((one, two), asyncio.ensure_future(side.finds("table")))
        await other.pool.do(lambda other=other: other.pool.exports.end("table", 0))


@pytest.mark.parametrize("who", ["one", "two", "both"])
def test_whoever_begins_both_have_one_end_each(who: str) -> None:
    async def body(one: Side, two: Side, network: Network) -> None:
        begin = {"one": [one], "two": [two], "both": [one, two]}[who]
        for task in [asyncio.ensure_future(side.reach()) for side in begin]:
            await settle((one, two), task)
        await works(one, two)
        for side in (one, two):
            assert await ends_of(side) == (1, 0)

    run(body)


@pytest.mark.parametrize(("what", "node"), [("prepare_rdma", 1), ("prepare_rdma", 2), ("connect_rdma", 1),
                                            ("connect_rdma", 2)])
def test_links_do_without_where_one_device_never_has_room(what: str, node: int) -> None:
    """One more attempt at most, without the device, and nothing of it stays."""
    async def body(one: Side, two: Side, network: Network) -> None:
        side = (one, two)[node - 1]
        with patch.object(side.pool, what, side_effect=OSError("the device has no more")):
            await settle((one, two), asyncio.ensure_future(two.reach()))
            assert one.neighbours._known[2].attempt <= 2
            await works(one, two)
        for each in (one, two):
            assert await ends_of(each) == (0, 0)

    run(body)


@pytest.mark.parametrize("seed", range(20))
def test_they_come_together_again_whatever_has_happened(seed: int) -> None:
    rng = random.Random(seed)

    async def body(one: Side, two: Side, network: Network) -> None:
        reaches: list[asyncio.Future[int]] = []
        with patch.object(neighbours, "REACH_TIMEOUT_S", 0.005):
            for _ in range(200):
                side = rng.choice((one, two))
                what = rng.random()
                if what < 0.2:
                    reaches.append(asyncio.ensure_future(side.reach()))
                elif what < 0.7:
                    side.hear()
                elif what < 0.75:
                    side.cut()
                elif what < 0.78:
                    one.refused = 1
                elif what < 0.82:
                    network.fails = rng.choice((0.0, 0.3, 1.0))
                elif what < 0.85:
                    side.neighbours._without_rdma.clear()
                elif what < 0.88:
                    if (known := side.neighbours._known.get(side.other.node_id)) is not None:
                        side.neighbours._not_connected(known, OSError("no memory"))
                else:
                    await asyncio.sleep(rng.choice((0, 0.001, 0.006)))
            one.refused, network.fails = 0, 0.0
            for task in reaches:
                await asyncio.wait({task})
                assert isinstance(result_of(task), (int, ConnectionEnded)), result_of(task)
        for side in (one, two):
            for _ in range(3):  # the first ones may meet what is left of the past
                try:
                    await settle((one, two), asyncio.ensure_future(side.finds("none")))
                    break
                except ConnectionEnded:
                    pass
        for _ in range(20):
            one.hear(), two.hear()
            await asyncio.sleep(0.001)
        assert not one.said and not two.said
        await works(one, two)
        numbers = [await ends_of(side) for side in (one, two)]
        assert numbers in ([(0, 0), (0, 0)], [(1, 0), (1, 0)]), numbers

    run(body, seed)


@pytest.mark.parametrize("steps", range(0, 24, 2))
def test_what_is_on_its_way_when_a_node_stops_leaves_nothing(steps: int) -> None:
    """Either pool has stopped; the other one goes on, and gives its end back when it hears of it."""
    async def body(_one: Side, _two: Side, network: Network) -> None:
        for stopped in (0, 1):
            async with pair(False, network) as sides:
                reach = asyncio.ensure_future(sides[0].reach())
                for _ in range(steps):
                    await asyncio.sleep(0)
                    for side in sides:
                        side.hear()
                side = sides[stopped]
                side.pool.stop()
                side.neighbours.close(ConnectionEnded("over"))
                await asyncio.sleep(0.002)
                side.other.neighbours.gone(side.other.connected[side.node_id])
                while side.other.tasks:
                    await asyncio.wait(set(side.other.tasks))
                assert await ends_of(side.other) == (0, 0)
            await asyncio.wait({reach})
            result_of(reach)

    run(body)


def test_an_answer_before_the_question_is_passed_over() -> None:
    """Numbers of attempts can be guessed; this node's end of the connection is not even made by then."""
    async def body(one: Side, two: Side, network: Network) -> None:
        reaching = asyncio.ensure_future(one.reach())
        while 2 not in one.neighbours._known:
            await asyncio.sleep(0)
        known = one.neighbours._known[2]
        assert not known.offered
        one.neighbours.heard_offer(one.connected[2], pb.LinkOffer(
            directory=bytes(32), attempt=known.attempt, token=bytes(32), rdma_address=b"anywhere"), [])
        assert known.theirs is None
        await settle((one, two), reaching)
        await works(one, two)
        assert await ends_of(one) == await ends_of(two) == (1, 0)

    run(body)
