"""Goal: between nodes whose RDMA devices reach each other the bytes of large samples go over the devices, and over TCP
where a device fails.

Needs an RDMA device: `make rdma-test ARGS=links` runs it on a guest that has one in software. Nodes of one process,
each with a runtime directory of its own, so that they reach each other over the device alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from spindle.large.reader import Reader
from spindle.large.routes import BLOCK
from spindle.node.node import Node
from spindle.pool.service import NodeLinks
from tests.spindle.large.group import TOPIC, bring, pattern, sealed
from tests.spindle.on_guest import group, until
from tests.spindle_core.fabric.verbs_peers import needs_verbs
from tests.spindle_core.links.test_verbs import queue_pairs

pytestmark = needs_verbs

SIZE = 37 * BLOCK + 5
SUSPECT_TIMEOUT_S = 2.0


def put(node: Node, number: int) -> bytes:
    """A sample that this node has."""
    content = pattern(SIZE, number)
    node.large.store.put(number, sealed(content), SIZE, TOPIC)
    return content


def reader_of(node: Node) -> Reader:
    return next(iter(node.large.ways._readers.values()))  # type: ignore[union-attr]


async def ready(reading: Node, giving: Node) -> None:
    """A connection is there, and the way beside it: a first sample has come over either."""
    content = put(giving, 99)
    assert await bring(reading, 99, SIZE, [giving.node_id]) == content
    await until(lambda: any(giver._ready for giver in giving.large.ways._givers.values()))  # type: ignore[union-attr]


def read(node: Node) -> tuple[int, int]:
    """Over TCP, over RDMA."""
    found = node.large_samples.status()
    return found["read_over_tcp"], found["read_over_rdma"]


def test_the_bytes_go_over_the_device(tmp_path: Path) -> None:
    """One queue pair at each end, which goes with the connection; no byte by TCP."""

    async def run() -> None:
        async with group(tmp_path, 2, SUSPECT_TIMEOUT_S) as (one, two):
            before = queue_pairs()
            await ready(two, one)
            assert queue_pairs() == before + 2
            by_tcp, by_rdma = read(two)
            for number in range(1, 5):
                content = put(one, number)
                assert await bring(two, number, SIZE, [1]) == content
            assert read(two) == (by_tcp, by_rdma + 4 * SIZE) and read(one) == (0, 0)
            reader_of(two).close("it is given up")
            await until(lambda: queue_pairs() == before)
            content = put(one, 7)
            assert await bring(two, 7, SIZE, [1]) == content
            assert sum(read(two)) == by_tcp + by_rdma + 5 * SIZE

    asyncio.run(run())


def test_what_comes_is_passed_on_while_it_comes(tmp_path: Path) -> None:
    """A chain of three, each of which reads from the one before it."""

    async def run() -> None:
        async with group(tmp_path, 3, SUSPECT_TIMEOUT_S) as (one, two, three):
            await ready(two, one)
            await ready(three, two)
            found = [read(two)[1], read(three)[1]]
            content = put(one, 1)
            both = await asyncio.gather(bring(two, 1, SIZE, [1]), bring(three, 1, SIZE, [2, 1]))
            assert both == [content, content]
            assert [read(two)[1] - found[0], read(three)[1] - found[1]] == [SIZE, SIZE]

    asyncio.run(run())


def test_a_way_that_breaks_under_a_sample(tmp_path: Path) -> None:
    """The reader's end is broken: who gives finds out when its device has tried long enough, and goes on over TCP."""

    async def run() -> None:
        async with group(tmp_path, 2, SUSPECT_TIMEOUT_S) as (one, two):
            await ready(two, one)
            by_rdma = read(two)[1]
            content = put(one, 1)
            bringing = asyncio.ensure_future(bring(two, 1, SIZE, [1]))
            await until(lambda: read(two)[1] > by_rdma)
            landing = reader_of(two)._landing
            assert landing is not None
            landing._regions.cut(landing._peer)
            assert await bringing == content
            assert by_rdma < read(two)[1] < by_rdma + SIZE
            content = put(one, 2)
            assert await bring(two, 2, SIZE, [1]) == content

    asyncio.run(run())


@pytest.mark.parametrize("node_id", [1, 2])
def test_a_device_that_has_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node_id: int) -> None:
    """At the one end or the other: all comes over TCP."""
    make = NodeLinks._make_rdma

    def fail(links: NodeLinks, *arguments: Any, **bounds: int) -> Any:
        if links._me.node_id == node_id:
            raise OSError("the device has no more")
        return make(links, *arguments, **bounds)

    async def run() -> None:
        async with group(tmp_path, 2, SUSPECT_TIMEOUT_S) as (one, two):
            monkeypatch.setattr(NodeLinks, "_make_rdma", fail)
            before = queue_pairs()
            content = put(one, 1)
            assert await bring(two, 1, SIZE, [1]) == content
            assert read(two) == (SIZE, 0)
            await until(lambda: queue_pairs() == before)

    asyncio.run(run())
