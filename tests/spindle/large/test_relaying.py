"""Goal: a sample is passed on while it comes, over each network once, and goes on when whoever passes it on fails.

Method: real nodes, of which the first gets the bytes of a sample from the test, piece by piece.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spindle.errors import SampleMissing
from spindle.large.bringing import _Bring
from spindle.large.filling import Filling
from spindle.large.routes import BLOCK, sources_for
from spindle.node.node import Node
from tests.spindle.large.group import TOPIC, bring, crash, pattern, run_on_hosts, until

SIZE = 9 * BLOCK + 5
CONTENT = pattern(SIZE)


class Source:
    """A sample that is on its way to a node, from the test."""

    def __init__(self, node: Node, large_id: int, size: int = SIZE) -> None:
        self.node = node
        self.filling = Filling(large_id, size, TOPIC, node.large._more)
        self.filling.give_to(self)
        self.bring = _Bring(self.filling, [], False)
        self.bring.task = asyncio.ensure_future(asyncio.sleep(0, -1))
        node.large.bringing._under_way[large_id] = self.bring

    def comes(self, count: int) -> None:
        """So many bytes more."""
        at = self.filling.reached
        assert self.filling.fill(self, memoryview(CONTENT)[at : at + count])

    def whole(self) -> None:
        """All of it has come."""
        self.comes(SIZE)
        self.filling.complete()
        self.node.large.store.put(self.filling.large_id, self.filling.open(), SIZE, TOPIC)
        self.end()

    def end(self, why: str = "") -> None:
        self.node.large.bringing._under_way.pop(self.filling.large_id, None)
        self.filling.end(why)
        if why:
            self.node.large.handing.failed(self.filling.large_id, why)


@contextmanager
def source_at(node: Node, large_id: int = 7) -> Iterator[Source]:
    source = Source(node, large_id)
    try:
        yield source
    finally:
        source.end()


def reached(node: Node, large_id: int = 7) -> int:
    found = node.large.bringing.find(large_id)
    return 0 if found is None else found.reached


def received(node: Node, source: int) -> int:
    """Bytes that it has read from that node."""
    assert node.large.ways is not None
    return sum(reader.received for reader in node.large.ways._readers.values() if reader.node_id == source)


@pytest.mark.slow
def test_it_is_passed_on_while_it_comes(runtime_dir: Path) -> None:
    hosts = [[1], [2], [3]]

    async def body(one: Node, two: Node, three: Node) -> None:
        with source_at(one) as source:
            brings = [asyncio.ensure_future(bring(node, 7, SIZE, sources_for(node.node_id, 1, hosts)))
                      for node in (two, three)]
            source.comes(BLOCK)
            await until(lambda: reached(three) == BLOCK)
            source.comes(10)
            await until(lambda: reached(three) == BLOCK + 10)
            source.whole()
            assert await asyncio.gather(*brings) == [CONTENT, CONTENT]
        assert (received(two, 1), received(three, 2), received(three, 1)) == (SIZE, SIZE, 0)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
def test_a_host_gets_it_once(runtime_dir: Path) -> None:
    hosts = [[1], [2, 3, 4]]

    async def body(one: Node, *others: Node) -> None:
        with source_at(one) as source:
            brings = [asyncio.ensure_future(bring(node, 7, SIZE, sources_for(node.node_id, 1, hosts)))
                      for node in others]
            source.comes(BLOCK)
            await until(lambda: reached(others[0]) == BLOCK)
            source.whole()
            assert await asyncio.gather(*brings) == [CONTENT] * 3
        assert [received(node, 1) for node in others] == [SIZE, 0, 0]

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["crashes", "leaves", "is cast out", "gives up"])
@pytest.mark.parametrize("hosts", [[[1], [2], [3]], [[1], [2, 3]]], ids=["of another host", "of the own host"])
def test_when_the_source_fails_the_next_one_goes_on(runtime_dir: Path, hosts: list[list[int]], how: str) -> None:
    """Without the bytes that are there being sent again, where it passed them on."""
    async def body(one: Node, two: Node, three: Node) -> None:
        with source_at(one) as source:
            brings = [asyncio.ensure_future(bring(node, 7, SIZE, sources_for(node.node_id, 1, hosts)))
                      for node in (two, three)]
            source.comes(5 * BLOCK)
            await until(lambda: reached(two if len(hosts) == 2 else three) == 5 * BLOCK)
            if how == "crashes":
                await crash(two)
            elif how == "leaves":
                await two.stop()
            elif how == "is cast out":
                three.large.gone(three._peers.connected[2])  # as it is told then
            else:
                brings[0].cancel()
            if len(hosts) == 3:
                await until(lambda: any(reader.node_id == 1 for reader in three.large.ways._readers.values()))
            source.whole()
            assert await brings[1] == CONTENT
            assert received(three, 1) == (4 * BLOCK + 5 if len(hosts) == 3 else SIZE)
            await asyncio.gather(brings[0], return_exceptions=True)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [[[1], [2], [3]], [[1, 2, 3]]], ids=["hosts", "one host"])
def test_a_source_that_hangs_is_given_up(runtime_dir: Path, hosts: list[list[int]]) -> None:
    """It has begun, and lives, but nothing of it comes any more."""
    async def body(one: Node, two: Node, three: Node) -> None:
        three.large.bringing._silence_s = three.large.handing._silence_s = 1.0
        with source_at(one) as source, source_at(two) as hangs:
            hangs.comes(2 * BLOCK)
            want = asyncio.ensure_future(bring(three, 7, SIZE, [2, 1]))
            source.whole()
            assert await want == CONTENT
            if len(hosts) == 3:
                assert received(three, 2) == 2 * BLOCK

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [[[1], [2]], [[1, 2]]], ids=["hosts", "one host"])
def test_when_all_have_failed_the_error_says_how(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(one: Node, two: Node) -> None:
        two.large.bringing._silence_s = two.large.handing._silence_s = 0.2
        with source_at(one):
            with pytest.raises(SampleMissing, match=r"node 1 has (sent nothing of|come no further with) it for 0\.2"):
                await bring(two, 7, SIZE, [1])
        with source_at(one) as source:
            two.large.bringing._silence_s = two.large.handing._silence_s = 30.0
            await until(lambda: not one.large.handing._asked)  # what was given up
            want = asyncio.ensure_future(bring(two, 7, SIZE, [1]))
            await until(lambda: one.large.handing._asked or (one.large.ways and any(
                wanted.source is source.filling
                for giver in one.large.ways._givers.values() for wanted in tuple(giver._wanted))))
            source.end("node 9 has gone")
            with pytest.raises(SampleMissing, match="node 1 doesn't give it: node 9 has gone"):
                await want

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
def test_as_long_as_something_comes_all_are_asked_again(runtime_dir: Path) -> None:
    """The only source stops and goes on: what is there is not fetched again."""
    async def body(one: Node, two: Node) -> None:
        two.large.bringing._silence_s = 1.5
        with source_at(one) as source:
            want = asyncio.ensure_future(bring(two, 7, SIZE, [1]))
            source.comes(BLOCK)
            await until(lambda: reached(two) == BLOCK)
            numbers = next(iter(two.large.ways._readers.values()))
            await until(lambda: numbers._numbers == 2)
            source.whole()
            assert await want == CONTENT
            assert received(two, 1) == SIZE

    run_on_hosts(runtime_dir, [[1], [2]], body)


@pytest.mark.slow
def test_one_that_has_nothing_yet_holds_up_no_other(runtime_dir: Path) -> None:
    """They share a connection; and the one that is urgent is given first."""
    async def body(one: Node, two: Node) -> None:
        with source_at(one, 7) as waits, source_at(one, 8) as comes:
            first = asyncio.ensure_future(bring(two, 7, SIZE, [1]))
            await until(lambda: one.large.ways._givers and next(iter(one.large.ways._givers.values()))._wanted)
            second = asyncio.ensure_future(bring(two, 8, SIZE, [1]))
            giver = next(iter(one.large.ways._givers.values()))
            await until(lambda: len(giver._wanted) == 2)
            comes.whole()
            assert await second == CONTENT
            third = asyncio.ensure_future(bring(two, 9, SIZE, [1], urgent=True))
            await until(lambda: [wanted.large_id for wanted in giver._wanted] == [9, 7])
            fourth = asyncio.ensure_future(two.large.bring(7, SIZE, TOPIC, [1], urgent=True))
            await until(lambda: [wanted.large_id for wanted in giver._wanted] == [7, 9])
            third.cancel()
            await until(lambda: [wanted.large_id for wanted in giver._wanted] == [7])
            waits.whole()
            assert await first == CONTENT
            os.close((await fourth).fd)

    run_on_hosts(runtime_dir, [[1], [2]], body)


@pytest.mark.slow
def test_so_much_is_brought_at_once_and_no_more(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        two.large.bringing._turns.bytes_max = 2 * SIZE
        sources = [Source(one, large_id) for large_id in range(1, 6)]
        try:
            wants = [asyncio.ensure_future(bring(two, large_id, SIZE, [1])) for large_id in range(1, 6)]
            for source in sources:
                source.comes(BLOCK)
            await until(lambda: reached(two, 2) == BLOCK)
            assert (reached(two, 1), reached(two, 3), two.large.bringing._turns.bytes_taken) == (BLOCK, 0, 2 * SIZE)
            again = asyncio.ensure_future(two.large.bring(5, SIZE, TOPIC, [1], urgent=True))
            await until(lambda: reached(two, 5) == BLOCK)
            assert (reached(two, 3), two.large.bringing._turns.bytes_taken) == (0, 3 * SIZE)
            for source in sources:
                source.whole()
            assert await asyncio.gather(*wants) == [CONTENT] * 5
            os.close((await again).fd)
            assert two.large.bringing._turns.bytes_taken == 0
        finally:
            for source in sources:
                source.end()

    run_on_hosts(runtime_dir, [[1], [2]], body)
