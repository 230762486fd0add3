"""Goal: two nodes' pools get connected whatever fails on the way, and whoever begins; and as often as it must be.

Method: two pools in one process, between which the test moves each message itself (pair.py): on one host, and over TCP.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from spindle.errors import ConnectionEnded, WireError
from spindle.pool import neighbours
from spindle.pool.lives import life_of
from spindle.proto import node_pb2 as pb
from spindle.transport.network import DataHello
from spindle_core.memory import Mapping
from tests.spindle.links.group import descriptors_of
from tests.spindle.pool.pair import Side, pair, result_of, settle
from tests.support import seeds

pytestmark = pytest.mark.parametrize("local", [True, False], ids=["shm", "tcp"])
Body = Callable[[Side, Side], Awaitable[None]]


def run(local: bool, body: Body) -> None:
    problems: list[dict[str, object]] = []

    async def inside() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with pair(local) as sides:
            await asyncio.wait_for(body(*sides), 60)

    gc.collect()
    before = descriptors_of(os.getpid())
    with patch.object(neighbours.LOG, "disabled", True):  # records keep errors, and these what they came through
        asyncio.run(inside())
    assert problems == []
    gc.collect()  # pools refer to each other's parts
    assert descriptors_of(os.getpid()) == before


async def works(one: Side, two: Side) -> None:
    """Each finds what the other one offers."""
    for side, other in ((one, two), (two, one)):
        memory = Mapping.create("table", 64)
        await other.pool.do(lambda other=other, memory=memory: other.pool.exports.offer("table", memory))
        assert await settle((one, two), asyncio.ensure_future(side.finds("table")))
        await other.pool.do(lambda other=other: other.pool.exports.end("table", 0))


@pytest.mark.parametrize("who", ["one", "two", "both"])
def test_whoever_begins_both_are_connected_with_one_offer_each(local: bool, who: str) -> None:
    async def body(one: Side, two: Side) -> None:
        begin = {"one": [one], "two": [two], "both": [one, two]}[who]
        reaches = [asyncio.ensure_future(side.reach()) for side in begin]
        said: list[str] = []
        while one.said or two.said or not all(task.done() for task in reaches):
            for side in (one, two):
                if side.other.said:
                    said.append(f"{side.other.node_id} {side.other.said[0][0].WhichOneof('body')}")
                side.hear()
            await asyncio.sleep(0.0005)
        lives = [life_of(side.other.node_id, side.other.incarnation) for side in (one, two)]
        assert {task.result() for task in reaches} <= set(lives)
        assert sorted(line for line in said if "offer" in line) == ["1 link_offer", "2 link_offer"]
        await works(one, two)

    run(local, body)


@pytest.mark.parametrize("seed", seeds(12, quick=4))
def test_they_come_together_again_whatever_has_happened(local: bool, seed: int) -> None:
    """Reaching that is given up, answers that come late, connections that fail or are cut while others are being made,
    in any order: when nothing fails any more, they are connected."""
    rng = random.Random(seed)

    async def body(one: Side, two: Side) -> None:
        reaches: list[asyncio.Future[int]] = []
        with patch.object(neighbours, "REACH_TIMEOUT_S", 0.005):
            for _ in range(150):
                side = rng.choice((one, two))
                what = rng.random()
                if what < 0.2:
                    reaches.append(asyncio.ensure_future(side.reach()))
                elif what < 0.75:
                    side.hear()
                elif what < 0.8:
                    side.cut()
                elif what < 0.83:
                    one.refused = 1
                elif what < 0.86 and local:  # what a node tells whose connection has failed
                    if (known := side.neighbours._known.get(side.other.node_id)) is not None:
                        side.neighbours._not_connected(known, OSError("no memory"))
                else:
                    await asyncio.sleep(rng.choice((0, 0.001, 0.006)))
            one.refused = 0
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
            await asyncio.sleep(0)
        assert not one.said and not two.said  # and they don't go on telling each other of it
        await works(one, two)

    run(local, body)


@pytest.mark.slow
def test_a_stranger_uses_up_no_token(local: bool) -> None:
    """Whoever reaches the listener may send a greeting in another one's name; it must not keep that one out."""
    if local:
        pytest.skip("there is no data connection")

    async def body(one: Side, two: Side) -> None:
        reach = asyncio.ensure_future(two.reach())
        await asyncio.sleep(0)
        one.hear()
        two.hear()
        hello = DataHello(0, 1, one.incarnation, 2, 0, 0, 0)
        assert two.neighbours.token_for(hello) == two.neighbours.token_for(hello) != None  # noqa: E711
        assert two.neighbours.token_for(DataHello(0, 1, 7, 2, 0, 0, 0)) is None
        assert two.neighbours.token_for(DataHello(0, 1, one.incarnation, 3, 0, 0, 0)) is None
        await settle((one, two), reach)
        assert two.neighbours.token_for(hello) is None  # a token is for one connection
        await works(one, two)

    run(local, body)


@pytest.mark.slow
def test_an_end_that_was_noticed_late_ends_no_newer_connection(local: bool) -> None:
    """The one notices at once that the data connection has ended, and makes another; then the other one hears of the
    end of the first."""
    async def body(one: Side, two: Side) -> None:
        await settle((one, two), asyncio.ensure_future(one.reach()))
        await settle((one, two), asyncio.ensure_future(two.reach()))
        old = two.neighbours._known[1]
        one.neighbours.lost(one.neighbours._known[2], "cut")
        await settle((one, two), asyncio.ensure_future(one.reach()))
        new = two.neighbours._known[1]
        assert new is not old
        two.neighbours.lost(old, "cut")
        assert two.neighbours._known[1] is new
        await works(one, two)

    run(local, body)


def test_an_offer_that_makes_no_sense_is_an_error(local: bool) -> None:
    async def body(one: Side, two: Side) -> None:
        grant, peer = bytes(neighbours.GRANT_BYTES), one.connected[2]
        event = os.eventfd(0)
        for offer in (pb.LinkOffer(), pb.LinkOffer(directory=grant, attempt=1, token=b"short"),
                      pb.LinkOffer(directory=grant[1:], attempt=1, token=bytes(32))):
            with pytest.raises(WireError, match="makes an offer for links that makes no sense"):
                one.neighbours.heard_offer(peer, offer, [os.dup(event)])
        os.close(event)
        await works(one, two)

    run(local, body)


def test_an_answer_to_what_was_given_up_is_passed_over(local: bool) -> None:
    """The one gives up before it hears the answer, says so, and begins anew."""
    async def body(one: Side, two: Side) -> None:
        with patch.object(neighbours, "REACH_TIMEOUT_S", 0.005):
            first = asyncio.ensure_future(one.reach())
            await asyncio.sleep(0)
            two.hear()
            await asyncio.wait({first})
            assert isinstance(result_of(first), ConnectionEnded)
        second = asyncio.ensure_future(one.reach())
        await asyncio.sleep(0)
        one.hear()
        assert one.neighbours._known[2].theirs is None
        two.hear()
        assert 1 not in two.neighbours._known
        await settle((one, two), second)
        await works(one, two)

    run(local, body)


@pytest.mark.parametrize("steps", range(16))
def test_what_is_on_its_way_when_a_node_stops_leaves_no_descriptor(local: bool, steps: int) -> None:
    """Either pool has stopped, and the other one goes on for a while; after each step of the two."""
    async def body(one: Side, two: Side) -> None:
        for stopped in (one, two):
            async with pair(local) as sides:
                reach = asyncio.ensure_future(sides[0].reach())
                for _ in range(steps):
                    await asyncio.sleep(0)
                    for side in sides:
                        side.hear()
                side = sides[0 if stopped is one else 1]
                side.pool.stop()
                side.neighbours.close(ConnectionEnded("over"))
                await asyncio.sleep(0.002)
                side.other.hear()
                await asyncio.sleep(0)
            await asyncio.wait({reach})
            result_of(reach)

    run(local, body)


def test_what_is_handed_over_in_place_of_a_region_is_closed(local: bool) -> None:
    """An eventfd, a socket, a file, nothing, two at once: who waits is told, and nothing stays open."""
    if not local:
        pytest.skip("nothing is handed over")

    async def body(one: Side, two: Side) -> None:
        life = await settle((one, two), asyncio.ensure_future(one.reach()))
        for fds in ([os.eventfd(0)], [socket.socket().detach()], [os.open(__file__, os.O_RDONLY)], [], list(os.pipe())):
            asked = asyncio.ensure_future(one.neighbours._have_mapped(life, 77))
            await asyncio.sleep(0)
            one.neighbours.heard_mapped(one.connected[2], pb.LinkMapped(key=77), fds)
            with pytest.raises(ConnectionEnded):
                await asked

    run(local, body)


def test_a_region_that_was_not_handed_over_in_time_is_asked_for_anew(local: bool) -> None:
    """The answer to the first wish never comes; whoever wants it later does not wait for that one for ever."""
    if not local:
        pytest.skip("nothing is handed over")

    async def body(one: Side, two: Side) -> None:
        life = await settle((one, two), asyncio.ensure_future(one.reach()))
        with patch.object(neighbours, "REACH_TIMEOUT_S", 0.005), pytest.raises(ConnectionEnded, match="handed over"):
            await one.neighbours._have_mapped(life, 77)
        assert one.said.popleft()[0].WhichOneof("body") == "link_map"
        one.neighbours.lacking(life, 77)
        await asyncio.sleep(0)
        assert one.said.popleft()[0].WhichOneof("body") == "link_map"
        one.neighbours.heard_mapped(one.connected[2], pb.LinkMapped(key=77), [])

    run(local, body)
