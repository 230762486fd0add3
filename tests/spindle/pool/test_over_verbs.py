"""Links between nodes whose RDMA devices reach each other: reads, writes and messages go over the device, atomics by a
data connection beside it.

Needs an RDMA device: `make rdma-test ARGS=links` runs it on a guest that has one in software. Nodes of one process,
each with a runtime directory of its own, so that they reach each other over the device alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spindle.client import embed
from spindle.client.session import Session
from spindle.errors import LinkError
from spindle.links import Links
from spindle.pool.lives import node_of
from spindle.pool.pooling import Pooling
from tests.spindle.on_guest import BOUND_S, config_of
from tests.spindle_core.fabric.verbs_peers import needs_verbs
from tests.spindle_core.links.test_verbs import packets, queue_pairs
from tests.support import wait_until

pytestmark = needs_verbs

READS = 500
ADDS = 300


@contextmanager
def group(directory: Path, of: int = 2) -> Iterator[dict[int, Session]]:
    with ExitStack() as stack:
        with ThreadPoolExecutor(of) as starting:
            made = list(starting.map(lambda k: embed(config=config_of(directory, k, of)), range(1, of + 1)))
        for session in made:
            stack.enter_context(session)
        yield {session.node_id: session for session in made}


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pooling]:
    """Those that nodes make."""
    made: list[Pooling] = []
    begin = Pooling.start

    def start(pool: Pooling) -> None:
        made.append(pool)
        begin(pool)

    monkeypatch.setattr(Pooling, "start", start)
    return made


def work_requests(pools: list[Pooling]) -> int:
    return sum(pool.rdma.statistics()["work_requests"] for pool in pools if pool.rdma is not None)


def test_links_go_over_the_device(tmp_path: Path, pools: list[Pooling]) -> None:
    """Two queue pairs for all links between two nodes, made for the first one; each read of 64 bytes is a work request
    and two packets; calls go that way too."""
    with group(tmp_path) as sessions:
        one, two = Links(sessions[1]), Links(sessions[2])
        without = queue_pairs()
        with two.offer("table", 4096, writer=1) as table, one.open(2) as link, two.listen(7) as port:
            seen = link.region("table", change=True)
            assert queue_pairs() == without + 2
            table.view[8:16] = b"abcdefgh"
            seen.write(16, b"from afar")
            assert seen.read(8, 17) == b"abcdefghfrom afar" and bytes(table.view[16:25]) == b"from afar"
            asked, sent = work_requests(pools), packets()
            for _ in range(READS):
                assert seen.read(8, 64)[:8] == b"abcdefgh"
            assert READS <= work_requests(pools) - asked < 1.1 * READS  # the lease is renewed once a second
            assert packets() - sent >= 2 * READS
            print(f"{READS} reads: {work_requests(pools) - asked} work requests, {packets() - sent} packets")

            def serve() -> None:
                message = port.receive(timeout_s=BOUND_S)
                assert message is not None
                port.answer(message, message.data[::-1])

            server = threading.Thread(target=serve)
            server.start()
            asked = work_requests(pools)
            assert link.call(7, b"nothing but") == b"tub gnihton"
            server.join()
            assert work_requests(pools) > asked
            more = [one.open(2) for _ in range(20)]
            assert queue_pairs() == without + 2
            for other in more:
                other.close()


def test_a_link_that_talks_much_gets_queue_pairs_of_its_own(tmp_path: Path, pools: list[Pooling]) -> None:
    """Two more, as long as it talks; atomics go by the data connection as before."""
    with group(tmp_path) as sessions:
        one = Links(sessions[1])
        with Links(sessions[2]).offer("table", 1 << 20), one.open(2) as idle, \
                Links(sessions[2]).offer("words", 64, atomics=True):
            before = queue_pairs()
            link = one.open(2, memory=2 << 20)
            table, words = link.region("table"), link.region("words", change=True)

            def talk() -> bool:
                for _ in range(20):
                    table.read(0, 1 << 20)
                return queue_pairs() == before + 2

            wait_until(talk, BOUND_S)
            for k in range(20):
                assert words.fetch_add(8, 1) == k and words.read(8, 1) == bytes([k + 1])
            assert idle.region("words").read(8, 1) == bytes([20])
            wait_until(lambda: queue_pairs() == before, BOUND_S)  # nobody talks any more
            assert table.read(0, 8) == bytes(8)
            link.close()


def test_a_region_that_ends_under_many_reads_cuts_nobody(tmp_path: Path, pools: list[Pooling]) -> None:
    """One link reads 512 MiB of a region, more than goes within a lease, and that ends; another link goes on."""
    size = 16 << 20
    with group(tmp_path) as sessions:
        one, two = Links(sessions[1]), Links(sessions[2])
        big = two.offer("big", size)
        with two.offer("small", 64), one.open(2, timeout_s=BOUND_S) as other:
            flood = one.open(2, memory=size)
            seen, small = flood.region("big"), other.region("small")
            for _ in range(4):
                for _ in range(8):
                    flood.user.read(seen.handle, 0, size, flood.buffer)
                flood.user.submit()
            big.end()
            ending = pools[1].exports if node_of(pools[1].life) == 2 else pools[0].exports
            while ending._ending:
                assert small.read(0, 8) == bytes(8)
            assert small.read(0, 8) == bytes(8)
            flood.close()


def test_words_are_changed_from_near_and_far(tmp_path: Path, pools: list[Pooling]) -> None:
    """A program of the owner's node and one of the other add to the same word at once, and the other one reads it over
    the device in between: nothing is lost, and what it reads includes what it has added."""
    with group(tmp_path) as sessions, Links(sessions[2]).offer("words", 64, atomics=True) as words:
        found: list[Any] = []

        def add(number: int) -> None:
            with Links(sessions[number]).open(2) as link:
                region = link.region("words", change=True)
                for k in range(ADDS):
                    before = region.fetch_add(8, 1)
                    if int.from_bytes(region.read(8, 8), "little") <= before:
                        found.append((number, k))

        threads = [threading.Thread(target=add, args=(number,)) for number in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not found and int.from_bytes(words.view[8:16], "little") == 2 * ADDS
        assert work_requests(pools) >= ADDS


def test_a_node_that_is_started_anew_is_reached_anew(tmp_path: Path, pools: list[Pooling]) -> None:
    with group(tmp_path, 3) as sessions:
        one = Links(sessions[1])
        link = one.open(3)
        Links(sessions[3]).offer("first", 64)
        seen = link.region("first")
        assert seen.read(0, 8) == bytes(8)
        before = queue_pairs()
        sessions[3].close()
        wait_until(lambda: queue_pairs() < before, BOUND_S)  # those of its view and of its links
        with pytest.raises(LinkError) as error:
            seen.read(0, 8)
        assert error.value.status == "cut"
        link.close()
        with embed(config=config_of(tmp_path, 3, 3)) as again:
            Links(again).offer("second", 64)
            with one.open(3) as other:
                asked = work_requests(pools)
                assert other.region("second").read(0, 8) == bytes(8)
                assert work_requests(pools) > asked


@pytest.mark.parametrize("what, node", [("prepare_rdma", 1), ("prepare_rdma", 2), ("connect_rdma", 1),
                                        ("connect_rdma", 2)])
def test_links_do_without_where_a_device_has_no_more(tmp_path: Path, pools: list[Pooling],
                                                     monkeypatch: pytest.MonkeyPatch, what: str, node: int) -> None:
    """No queue pair is to be had at one node, or it can't be connected: links go over TCP alone."""
    can = getattr(Pooling, what)

    def fail(pool: Pooling, *arguments: Any) -> Any:
        if node_of(pool.life) == node:
            raise OSError("the device has no more")
        return can(pool, *arguments)

    with group(tmp_path) as sessions:
        monkeypatch.setattr(Pooling, what, fail)
        without = queue_pairs()
        with Links(sessions[2]).offer("words", 64, atomics=True), Links(sessions[1]).open(2) as link:
            words = link.region("words", change=True)
            assert words.fetch_add(8, 5) == 0 and words.read(8, 1) == b"\x05"
        assert queue_pairs() == without
