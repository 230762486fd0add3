"""Goal: a node gets the bytes of a large sample whatever happens to those that it asks first, and once.

Method: real nodes, on one host and on several; the test puts samples into some of their stores.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from spindle.errors import ConfigError, SampleMissing, SampleUnfit
from spindle.large import giver, handing, memory
from spindle.node.node import Node
from tests.spindle.large.group import TOPIC, bring, content_of, pattern, run_on_hosts, sealed, until

KINDS = {"one host": [[1, 2, 3]], "hosts": [[1], [2], [3]]}
kinds = pytest.mark.parametrize("hosts", KINDS.values(), ids=KINDS.keys())
SIZE = 3_000_001


@pytest.mark.slow
@kinds
def test_all_get_the_bytes(runtime_dir: Path, hosts: list[list[int]]) -> None:
    content = pattern(SIZE)

    async def body(one: Node, two: Node, three: Node) -> None:
        one.large.store.put(7, sealed(content), SIZE, TOPIC)
        assert await asyncio.gather(bring(two, 7, SIZE, [1]), bring(three, 7, SIZE, [2, 1])) == [content, content]
        same = os.fstat(one.large.store.find(7).fd).st_ino == os.fstat(three.large.store.find(7).fd).st_ino
        assert same == (len(hosts) == 1), "on a host it is the same memory"

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("size", [1, 255, 4096, (1 << 20) + 1])
def test_of_any_size(runtime_dir: Path, hosts: list[list[int]], size: int) -> None:
    async def body(one: Node, two: Node, _three: Node) -> None:
        one.large.store.put(7, sealed(pattern(size)), size, TOPIC)
        assert await bring(two, 7, size, [1]) == pattern(size)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_many_at_once(runtime_dir: Path, hosts: list[list[int]]) -> None:
    """From two sources, to each other, too."""
    async def body(one: Node, two: Node, three: Node) -> None:
        for large_id in range(1, 41):
            (one, two)[large_id % 2].large.store.put(large_id, sealed(pattern(100_000, large_id)), 100_000, TOPIC)
        tasks = {(node.node_id, large_id): asyncio.ensure_future(bring(node, large_id, 100_000, sources))
                 for node, sources in ((one, [2, 3]), (two, [1, 3]), (three, [1, 2])) for large_id in range(1, 41)}
        for (_, large_id), task in tasks.items():
            assert await task == pattern(100_000, large_id)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_several_who_want_one_share_the_way(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(one: Node, two: Node, _three: Node) -> None:
        wants = [asyncio.ensure_future(two.large.bring(7, SIZE, TOPIC, [1])) for _ in range(3)]
        await until(lambda: two.large.bringing.find(7))
        with pytest.raises(SampleUnfit, match=f"has {SIZE} bytes here, not 9"):
            await two.large.bring(7, 9, TOPIC, [1])
        wants.pop().cancel()
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        fds = [one.fd for one in await asyncio.gather(*wants)]
        assert len(set(fds)) == 2 and [content_of(fd, SIZE) for fd in fds] == [pattern(SIZE)] * 2
        assert two.large.bringing.find(7) is None  # it is the caller's to keep

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_who_has_made_memory_may_use_it_again(runtime_dir: Path, hosts: list[list[int]]) -> None:
    """Goal: of a sample that came over the network this is who brought it; of one that was handed over, its giver."""
    async def body(one: Node, two: Node, _three: Node) -> None:
        closed, _ = memory.close(memory.make_closable(SIZE))
        one.large.store.put(7, closed, SIZE, TOPIC)
        apart = len(hosts) > 1
        fd, again = await two.large.bring(7, SIZE, TOPIC, [1])
        assert again == apart and memory.is_closed(fd)
        two.large.spare.keep(TOPIC, two.large.bringing, fd, memory.capacity_of(SIZE), 0.0)
        one.large.store.drop(7)
        one.large.store.put(8, sealed(pattern(SIZE)), SIZE, TOPIC)
        with patch.object(memory, "make_closable", side_effect=AssertionError("there is memory")):
            assert await bring(two, 8, SIZE, [1]) == pattern(SIZE)
        assert two.large.spare.bytes_kept == (0 if apart else memory.capacity_of(SIZE))

    run_on_hosts(runtime_dir, hosts, body, large_capacity=4 * SIZE)


@pytest.mark.slow
def test_where_other_users_may_attach_all_is_sealed(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        fd, again = await two.large.bring(7, SIZE, TOPIC, [1])
        assert memory.is_sealed(fd) and not again
        os.close(fd)

    run_on_hosts(runtime_dir, [[1], [2]], body, allow_uids=(65534,))


@pytest.mark.slow
@kinds
def test_what_nobody_wants_any_more_is_brought_no_more(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(one: Node, two: Node, _three: Node) -> None:
        for steps in range(6):  # before it has begun, and after
            want = asyncio.ensure_future(two.large.bring(7, SIZE, TOPIC, [1]))
            for _ in range(steps):
                await asyncio.sleep(0)
            want.cancel()
            with pytest.raises(asyncio.CancelledError):
                await want
            assert two.large.bringing.find(7) is None
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        assert await bring(two, 7, SIZE, [1]) == pattern(SIZE)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_what_is_here_is_brought_from_nowhere(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(one: Node, _two: Node, _three: Node) -> None:
        one.large.store.put(7, sealed(b"bytes"), 5, TOPIC)
        fd, again = await one.large.bring(7, 5, TOPIC, [])
        assert content_of(fd) == b"bytes" and not again
        with pytest.raises(SampleUnfit, match="has 5 bytes here, not 6"):
            await one.large.bring(7, 6, TOPIC, [])
        with pytest.raises(ConfigError, match="1 to 4294967296 bytes"):
            await one.large.bring(8, (4 << 30) + 1, TOPIC, [])

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_who_has_it_not_says_so_and_the_next_one_is_asked(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        two.large.store.put(7, sealed(b"x"), 1, TOPIC)
        assert await bring(three, 7, SIZE, [2, 9, 1]) == pattern(SIZE)
        with pytest.raises(SampleMissing, match=r"'images' can't be had \(100 bytes, id 0x8\): node 2 doesn't give it: "
                                                "it hasn't heard of it; node 9 is not connected") as error:
            await three.large.bring(8, 100, TOPIC, [2, 9])
        assert not error.value.refused, "node 9 may have it"
        with pytest.raises(SampleMissing, match=r"node 2 doesn't give it: it hasn't heard of it$") as error:
            await three.large.bring(8, 100, TOPIC, [2])
        assert error.value.refused
        with pytest.raises(SampleMissing, match="nobody is known to have them") as error:
            await three.large.bring(8, 100, TOPIC, [])
        assert error.value.refused

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_nobody_waits_for_who_has_let_go_of_it(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[list[int]]) -> None:
    """Of a history: what was delivered doesn't come any more."""
    monkeypatch.setattr(handing, "UNKNOWN_S", 3600.0)
    monkeypatch.setattr(giver, "UNKNOWN_S", 3600.0)

    async def body(one: Node, two: Node, three: Node) -> None:
        with pytest.raises(SampleMissing, match=r"node 1 doesn't give it: it ha.*node 2 doesn't give it: it ha"):
            await three.large.bring(7, SIZE, TOPIC, [1, 2], delivered=True)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_a_source_that_hears_of_it_a_moment_later_gives_it(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(one: Node, two: Node, _three: Node) -> None:
        want = asyncio.ensure_future(bring(two, 7, SIZE, [1]))
        await until(lambda: one.large.handing._asked or (one.large.ways and any(
            giver._wanted for giver in one.large.ways._givers.values())))
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        assert await want == pattern(SIZE)

    run_on_hosts(runtime_dir, hosts, body)


@pytest.mark.slow
@kinds
def test_a_source_without_the_ability_is_passed_over(runtime_dir: Path, hosts: list[list[int]]) -> None:
    async def body(_one: Node, two: Node, _three: Node) -> None:
        two._peers.connected[1].abilities = 0
        with pytest.raises(SampleMissing, match="node 1 runs a release without large samples"):
            await two.large.bring(7, 100, TOPIC, [1])

    run_on_hosts(runtime_dir, hosts, body)
