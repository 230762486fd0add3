"""Regions of simulated nodes keep the promise, and the world does to them what networks and crashes do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest

from spindle_core.fabric.regions.regions import REQUESTS_IN_LIST, REQUESTS_TO_PEER
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.sim import SimPart, SimWorld
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.conformance import RegionConformance, put_word, word
from tests.spindle_core.fabric.regions.nodes import Node


class SimNode(Node):
    def __init__(self, world: SimWorld, name: int) -> None:
        super().__init__()
        self.world, self.name = world, name
        self.part = SimPart(self.regions, world, name)


def connect(a: SimNode, b: SimNode) -> None:
    a.numbers[b], b.numbers[a] = a.part.connect(b.part)


def make_nodes(n: int) -> list[SimNode]:
    world = SimWorld()
    nodes = [SimNode(world, k) for k in range(n)]
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            connect(a, b)
    return nodes


class TestSim(RegionConformance):
    make_nodes = staticmethod(make_nodes)

    @staticmethod
    def pump(nodes: list[Any]) -> None:
        nodes[0].world.run()


def opened(a: SimNode, b: SimNode, size: int = 4096, **rights: bool) -> tuple[Mapping, int]:
    memory = Mapping.private(size)
    return memory, b.open(memory, a, **rights)[1]


def test_a_read_is_torn_between_lines_and_never_within_one():
    """While the owner writes version after version, each read of 1 KB has whole lines, and some reads have two
    versions: who reads must find out by itself."""
    a, b = make_nodes(2)
    memory, region = opened(a, b)
    mine, rng, torn = Mapping.private(4096), random.Random(1), 0
    for version in range(1, 200):
        requests, asker = RequestList(), Asker()
        requests.read(region, 0, 1024, mine)
        a.regions.post(asker, requests)
        a.world.land(0, 1, n=rng.randrange(17))
        memory.view()[0:1024] = bytes([version]) * 1024
        a.world.land(0, 1)
        assert asker.take() == []
        a.world.answer(0, 1)
        assert [one[1] for one in asker.take()] == ["done"]
        lines = [bytes(mine.view()[k : k + 64]) for k in range(0, 1024, 64)]
        assert all(line == bytes([line[0]]) * 64 for line in lines)
        torn += len(set(lines)) > 1
    assert 0 < torn < 199


def test_a_long_write_is_seen_half_done_and_in_order():
    """Lines land in order; a short request behind the write lands after all of them."""
    a, b = make_nodes(2)
    memory, region = opened(a, b, writer=True)
    mine = Mapping.private(4096)
    mine.view()[0:1024] = b"\7" * 1024
    requests = RequestList()
    requests.write(region, 0, 1024, mine)
    requests.write(region, 2048, 8, mine)
    a.regions.post(Asker(), requests)
    for lines in range(16):
        assert bytes(memory.view()[0:1024]) == b"\7" * 64 * lines + bytes(1024 - 64 * lines)
        assert a.world.next_of(0, 1) == ("write", 64 * lines, 1024) and word(memory, 2048) == 0
        assert a.world.land(0, 1, n=1) == 1
    assert word(memory, 2048) == 0
    assert a.world.land(0, 1) == 1 and word(memory, 2048) != 0


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_late_writes_and_swaps_of_the_dead_land(how):
    """What a node had posted when it cut, or died, may still land: with the bytes as they were then. Its completion
    says `cut`, which promises nothing."""
    a, b = make_nodes(2)
    memory, region = opened(a, b, writer=True)
    words, swapped = opened(a, b, atomics=True)
    mine, world = Mapping.private(4096), a.world
    mine.view()[0:512] = b"\1" * 512
    asker, requests = Asker(), RequestList()
    requests.write(region, 0, 512, mine, cookie=1, signalled=True)
    requests.compare_swap(swapped, 0, 0, 99, cookie=2)
    a.regions.post(asker, requests)
    world.land(0, 1, n=3)
    if how == "cut":
        a.regions.cut(a.number(b))
        assert [one[:2] for one in asker.take()] == [(1, "cut"), (2, "cut")]
    else:
        a.regions.close()
        del a
    mine.view()[0:512] = bytes(512)
    assert word(words) == 0
    world.land(0, 1)
    assert bytes(memory.view()[0:512]) == b"\1" * 512 and word(words) == 99
    assert not world.waiting


def test_what_the_dead_posted_may_be_lost_from_the_end():
    """Of what a dead node had posted a first part lands and the rest never does; of one that lives nothing is lost."""
    a, b = make_nodes(2)
    words, region = opened(a, b, atomics=True)
    requests = RequestList()
    for _ in range(10):
        requests.fetch_add(region, 0, 1)
    a.regions.post(Asker(), requests)
    with pytest.raises(ValueError, match="loses"):
        a.world.lose(0, 1)
    a.regions.cut(a.number(b))
    assert a.world.lose(0, 1, n=4) == 4
    a.world.land(0, 1)
    assert word(words) == 6


def test_a_completion_is_lost_with_its_connection():
    """It has landed, and the connection breaks before the answer: `cut`, though it happened."""
    a, b = make_nodes(2)
    words, region = opened(a, b, atomics=True)
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 5, cookie=7)
    a.regions.post(asker, requests)
    a.world.land(0, 1)
    a.world.break_connection(0, 1)
    assert asker.take() == [(7, "cut", 0, a.number(b))] and word(words) == 5
    assert a.regions.failures() == {a.number(b): "the connection broke"}
    assert b.regions.failures() == {b.number(a): "the connection broke"}
    with pytest.raises(ConnectionError):
        a.regions.post(asker, requests)


def test_who_was_cut_by_the_owner_changes_nothing_more():
    """From the owner's cut on nothing of that peer lands, however much was posted; connected anew, it is somebody
    else: what it was granted before is nothing to the new number."""
    a, b = make_nodes(2)
    words, region = opened(a, b, atomics=True)
    owned, writable = opened(a, b, writer=True)
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 1)
    a.regions.post(asker, requests)
    number = b.number(a)
    b.regions.cut(number)
    a.world.run()
    assert word(words) == 0 and asker.take() == []
    b.regions.forget_peer(number)
    a.regions.forget_peer(a.number(b))
    assert [one[1] for one in asker.take()] == ["cut"]
    connect(a, b)
    assert b.number(a) == number
    key = next(key for key, memory in b.opened.items() if memory is owned)
    requests.clear()
    requests.write(a.reach(b, key), 0, 8, owned)
    with pytest.raises(ValueError, match="grant"):
        a.regions.post(asker, requests)
    with pytest.raises(ValueError, match="no such region"):
        requests.clear()
        requests.write(writable, 0, 8, owned)
        a.regions.post(asker, requests)


def test_a_key_that_ends_in_the_middle_of_a_write():
    """What has landed stays, what has not never does, and the writer is told."""
    a, b = make_nodes(2)
    memory, region = opened(a, b, writer=True)
    mine = Mapping.private(4096)
    mine.view()[0:640] = b"\1" * 640
    asker, requests = Asker(), RequestList()
    requests.write(region, 0, 640, mine, cookie=4)
    a.regions.post(asker, requests)
    a.world.land(0, 1, n=4)
    b.regions.deregister(next(iter(b.opened)))
    a.world.run()
    assert bytes(memory.view()[0:640]) == b"\1" * 256 + bytes(384)
    assert [one[:2] for one in asker.take()] == [(4, "ended")]


def test_exactly_so_many_requests_are_on_the_way():
    """Lists of 64, only the last of each signalled: the sixteenth fills the way to the peer, the next is refused whole,
    and all that was posted happens once."""
    a, b = make_nodes(2)
    words, region = opened(a, b, atomics=True)
    asker, requests = Asker(4096), RequestList()
    for _ in range(REQUESTS_IN_LIST):
        requests.fetch_add(region, 0, 1)
    for _ in range(REQUESTS_TO_PEER // REQUESTS_IN_LIST):
        a.regions.post(asker, requests)
    with pytest.raises(BlockingIOError):
        a.regions.post(asker, requests)
    a.world.run()
    assert len(asker.take()) == REQUESTS_TO_PEER // REQUESTS_IN_LIST and word(words) == REQUESTS_TO_PEER
    a.regions.post(asker, requests)


def test_each_failure_has_its_place_among_the_completions():
    """Lists of two on a region that has ended: each completes twice. As many are taken on as have room for that, and
    no completion is lost."""
    a, b = make_nodes(2)
    _, region = opened(a, b, atomics=True)
    b.regions.deregister(next(iter(b.opened)))
    asker, cookie = Asker(128), 0
    with pytest.raises(BlockingIOError):
        for cookie in range(0, 1000, 2):
            requests = RequestList()
            requests.fetch_add(region, 0, 1, cookie=cookie)
            requests.fetch_add(region, 0, 1, cookie=cookie + 1)
            a.regions.post(asker, requests)
    a.world.run()
    assert cookie == 128
    assert [one[:2] for one in asker.take()] == [(k, "after" if k % 2 else "ended") for k in range(128)]


def test_who_is_abandoned_gets_nothing():
    """Completions of an asker that has gone go nowhere, even if its memory is still there."""
    a, b = make_nodes(2)
    words, region = opened(a, b, atomics=True)
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 1)
    a.regions.post(asker, requests)
    a.regions.abandon(asker)
    a.world.run()
    assert asker.take() == [] and word(words) == 1


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_landing_and_answering_keeps_the_promise(seed):
    """Three nodes post random lists at each other while the world lands and answers in any order, keys end, and
    connections break. Each asker's completions come in its order, each signalled request exactly once; what is `done`
    happened, what is `ended` or `after` did not, and what is `cut` may have; the sums in the words say so."""
    rng = random.Random(seed)
    nodes = make_nodes(3)
    world = nodes[0].world
    words = {b: Mapping.private(4096) for b in nodes}
    keys, reached = {}, {}
    for b in nodes:
        others = [a for a in nodes if a is not b]
        keys[b], reached[others[0], b] = b.open(words[b], others[0], atomics=True)
        reached[others[1], b] = others[1].reach(b, keys[b])
    askers = {node: Asker() for node in nodes}
    expected: dict[Any, dict[Any, list[int]]] = {node: {} for node in nodes}
    asked = {b: {} for b in nodes}
    told: dict[Any, list[tuple]] = {node: [] for node in nodes}
    cookie = 0
    for _ in range(300):
        step = rng.random()
        if step < 0.4:
            a, b = rng.sample(nodes, 2)
            requests, signalled = RequestList(), []
            for k in range(n := rng.randrange(1, 6)):
                cookie += 1
                says = rng.random() < 0.5 or k == n - 1
                requests.fetch_add(reached[a, b], 0, 1 << 20, cookie=cookie, signalled=says)
                asked[b][cookie] = says
                if says:
                    signalled.append(cookie)
            try:
                a.regions.post(askers[a], requests)
                expected[a].setdefault(b, []).extend(signalled)
            except (ConnectionError, BlockingIOError, ValueError):
                for one in range(cookie - n + 1, cookie + 1):
                    del asked[b][one]
        elif step < 0.97:
            if waiting := sorted(world.waiting):
                way = rng.choice(waiting)
                (world.land if rng.random() < 0.6 else world.answer)(*way, n=rng.randrange(1, 4))
        elif step < 0.985:
            world.break_connection(*rng.sample(range(3), 2))
        else:
            b = rng.choice(nodes)
            if keys[b] is not None:
                b.regions.deregister(keys[b])
                keys[b] = None
        for node in nodes:
            told[node] += askers[node].take()
    world.run()
    for node in nodes:
        told[node] += askers[node].take()
        for b, cookies in expected[node].items():
            got = [one for one in told[node] if one[3] == node.number(b)]
            signalled = [one[0] for one in got if asked[b][one[0]]]
            assert signalled == cookies
            assert all(one[1] in ("ended",) for one in got if not asked[b][one[0]])
        assert askers[node].waiting == 0
    for b in nodes:
        statuses = [one[1] for node in nodes for one in told[node]
                    if node is not b and one[3] == node.number(b) and asked[b][one[0]]]
        happened = word(words[b]) >> 20
        assert statuses.count("done") <= happened <= len(asked[b])
        if not {"cut", "ended", "after"} & set(statuses):
            assert happened == len(asked[b])


def test_words_helpers():
    """A word is eight bytes, the lowest first, as processors here store it."""
    memory = Mapping.private(4096)
    put_word(memory, 1 << 56 | 2)
    assert bytes(memory.view()[0:8]) == b"\2\0\0\0\0\0\0\1" and word(memory) == 1 << 56 | 2


def test_what_waits_to_land_is_told():
    """Requests and a message in one direction: kind, bytes, lines, and whether the source hears of it, from any one
    on."""
    a, b = make_nodes(2)
    _, region = opened(a, b, atomics=True)
    mine, requests, asker = Mapping.private(4096), RequestList(), Asker()
    requests.read(region, 60, 100, mine)
    requests.fetch_add(region, 8, 1)
    a.regions.post(asker, requests)
    a.regions.send(a.number(b), b"hello")
    waits = [("read", 100, 3, False), ("add", 8, 1, True), ("message", 5, 1, False)]
    assert a.world.posted(0, 1) == waits and a.world.posted(0, 1, first=2) == waits[2:]
    a.world.land(0, 1, n=3)
    assert a.world.posted(0, 1) == waits[1:] and a.world.posted(1, 0) == []


def test_bytes_on_the_way_are_bounded():
    """Of long reads as many are on the way to a peer as have 256 MiB in all, or a single longer list; those that have
    completed, or were cut, don't count."""
    a, b = make_nodes(2)
    size = 64 << 20
    _, region = opened(a, b, size)
    mine, asker = Mapping.private(size), Asker()

    def post(reads: int) -> bool:
        requests = RequestList()
        for _ in range(reads):
            requests.read(region, 0, size, mine)
        try:
            a.regions.post(asker, requests)
        except BlockingIOError as error:
            assert "256 MiB" in str(error)
            return False
        return True

    assert [post(1) for _ in range(6)] == [True] * 4 + [False] * 2
    a.world.run()
    a.regions.progress()
    assert len(asker.take()) == 4
    assert post(8) and not post(1)
    a.regions.cut(a.number(b))
    assert [status for _, status, *_ in asker.take()] == ["cut"]


GARBAGE = """
import gc
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.sim import SimWorld
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.test_sim import SimNode, connect, opened

class Name:
    pass

gc.disable()
for _ in range(200):
    world, large = SimWorld(), Mapping.private(1 << 16)
    nodes = [SimNode(world, Name()) for _ in range(3)]
    for a in nodes:
        a.name.part, a.world = a.part, None       # the way is what holds on to the world, and to itself
        for b in nodes[:nodes.index(a)]:
            connect(a, b)
            memory, region = opened(a, b, size=1 << 16, writer=True)
            requests = RequestList()
            requests.write(region, 0, 1 << 16, large)
            requests.write(region, 0, 8, large)
            a.regions.post(Asker(), requests)
    del world, large, memory, requests
    gc.collect()                                  # now the world is behind its nodes in the collector's list
    del nodes, a, b
    gc.collect()
"""


def test_nodes_that_the_garbage_collector_takes_end_in_any_order():
    """With what they have posted of memory that has gone. (Freed memory holds no zeros here.)"""
    done = subprocess.run([sys.executable, "-c", GARBAGE], env={**os.environ, "MALLOC_PERTURB_": "165"}, check=False)
    assert done.returncode == 0
