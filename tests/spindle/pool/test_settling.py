"""Goal: the key of a region ends at a device only when no node that reaches it over RDMA has anything on the way.

Method: two pools with a stand-in for the devices (device.py), and the control connection in the test's hands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from spindle.pool import settling
from spindle.pool.lives import life_of
from spindle.proto import node_pb2 as pb
from spindle_core.links.exports import GRACE_NS, LEASE_NS
from spindle_core.memory import Mapping
from tests.spindle.pool.device import Network
from tests.spindle.pool.pair import Side, settle
from tests.spindle.pool.test_over_devices import run

LONG_AGO = -LEASE_NS - GRACE_NS  # a region that ended then may lose its key now


async def reached(one: Side, two: Side) -> Mapping:
    """Both are connected, and `two` offers a region."""
    await settle((one, two), asyncio.ensure_future(one.reach()))
    memory = Mapping.create("table", 64)
    await two.pool.do(lambda: two.pool.exports.offer("table", memory))
    return memory


async def until(condition: Callable[[], Any], *sides: Side) -> None:
    """Only these sides hear what the other one says."""
    for _ in range(20_000):
        if condition():
            return
        for side in sides:
            side.hear()
        await asyncio.sleep(0.0005)
    raise AssertionError("not within 10 s")


def test_a_key_ends_when_the_other_node_has_nothing_on_the_way() -> None:
    """What was posted before the question is waited for: here the read of a lookup, which nothing carries for now."""
    async def body(one: Side, two: Side, network: Network) -> None:
        await reached(one, two)
        network.open.clear()
        looking = asyncio.ensure_future(one.finds("another"))
        life = life_of(two.node_id, two.incarnation)
        [peer] = one.pool.pool.connections(life)
        await until(lambda: len(set(one.pool.regions.on_the_way(peer))) == 2)
        await two.pool.do(lambda: two.pool.exports.end("table", LONG_AGO))
        await until(lambda: one.pool._settling, one)
        for _ in range(20):
            await asyncio.sleep(0.005)
            two.hear()
            assert [ending.ended for ending in two.pool.exports._ending] == [False]
        network.open.set()
        await until(lambda: not two.pool.exports._ending, one, two)
        assert not await looking

    run(body)


def test_who_does_not_say_so_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "PATIENCE_S", 0.05)

    async def body(one: Side, two: Side, network: Network) -> None:
        await reached(one, two)
        await two.pool.do(lambda: two.pool.exports.end("table", LONG_AGO))
        await until(lambda: not two.pool.exports._ending)  # nobody lets the other one hear
        assert one.node_id not in two.neighbours._known
        await settle((one, two), asyncio.ensure_future(one.reach()))

    run(body)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_nobody_waits_for_a_node_that_has_gone(when: str) -> None:
    async def body(one: Side, two: Side, network: Network) -> None:
        await reached(one, two)
        if when == "before":
            two.neighbours.gone(two.connected[1])
        await two.pool.do(lambda: two.pool.exports.end("table", LONG_AGO))
        if when == "meanwhile":
            await until(lambda: [said for said, _ in two.said if said.HasField("link_settle")])
            two.neighbours.gone(two.connected[1])
        await until(lambda: not two.pool.exports._ending)

    run(body)


def test_answers_that_nobody_has_asked_for_change_nothing() -> None:
    async def body(one: Side, two: Side, network: Network) -> None:
        await reached(one, two)
        for number in (0, 1, 2):
            two.neighbours.settling.heard(two.connected[1], pb.LinkSettle(number=number, settled=True))
        await two.pool.do(lambda: two.pool.exports.end("table", LONG_AGO))
        await until(lambda: not two.pool.exports._ending, one, two)

    run(body)


def test_a_node_that_stops_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "PATIENCE_S", 3600.0)

    async def body(one: Side, two: Side, network: Network) -> None:
        await reached(one, two)
        await two.pool.do(lambda: two.pool.exports.end("table", LONG_AGO))
        await until(lambda: [said for said, _ in two.said if said.HasField("link_settle")])

    run(body)  # and ends both
