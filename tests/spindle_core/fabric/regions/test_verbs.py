"""Regions reached through an RDMA device keep the promise of regions, on a real kernel RDMA stack.

All of it needs an RDMA device: `make rdma-test` runs it on a guest that has one in software.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.conformance import BOUND_S, RegionConformance, word
from tests.spindle_core.fabric.regions.nodes import Node
from tests.spindle_core.fabric.verbs_peers import needs_verbs
from tests.support import wait_until

pytestmark = needs_verbs

TIGHT = {"depth": 32, "inline_max": 0}
LOCALS = 4096  # memories that requests of a node may use (verbs_way.pxd)
HASTY = {"ack_timeout": 10, "retries": 2}  # gives a peer up after some 10 ms


class VerbsNode(Node):
    def __init__(self, **more: Any) -> None:
        from spindle_core.fabric.regions.verbs import VerbsPart

        super().__init__()
        self.part = VerbsPart(self.regions, **more)


def connect(a: VerbsNode, b: VerbsNode) -> None:
    a.numbers[b], of_a = a.part.prepare()
    b.numbers[a], of_b = b.part.prepare()
    a.part.connect(a.numbers[b], of_b)
    b.part.connect(b.numbers[a], of_a)


def make_nodes(n: int, **more: Any) -> list[VerbsNode]:
    nodes = [VerbsNode(**more) for _ in range(n)]
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            connect(a, b)
    return nodes


class TestVerbs(RegionConformance):
    make_nodes = staticmethod(make_nodes)

    @staticmethod
    def pump(nodes: list[Any]) -> None:
        """What the device does takes its time: a moment without news, and nothing moves."""
        quiet = 0
        while quiet < 3:
            if sum([node.regions.progress() for node in nodes]):
                quiet = 0
            else:
                quiet += 1
                time.sleep(0.0003)

    def completions(self, nodes: list[Any], asker: Asker, n: int) -> list[tuple]:
        found: list[tuple] = []
        deadline = time.monotonic() + BOUND_S
        while len(found) < n:
            assert time.monotonic() < deadline, f"{len(found)} completions of {n}"
            for node in nodes:
                node.regions.progress()
            found += asker.take()
        return found

    def test_an_ended_key_fails_and_the_rest_of_its_list_does_not_happen(self) -> None:
        """Here the owner's device refuses: what is before it happened; the connection, which is of these two alone, is
        over, and says why. Who keeps the lease never gets there."""
        a, b, c = nodes = self.make_nodes(3)
        kept, gone = Mapping.create("memory", 4096), Mapping.create("memory", 4096)
        _, region = b.open(kept, a, atomics=True)
        key, ended = b.open(gone, a, atomics=True)
        _, of_c = c.open(Mapping.create("memory", 4096), a, atomics=True)
        b.regions.deregister(key)
        asker, requests = Asker(), RequestList()
        requests.fetch_add(region, 0, 1)
        requests.fetch_add(ended, 0, 1, cookie=5)
        requests.fetch_add(region, 0, 10, cookie=6)
        a.regions.post(asker, requests)
        assert [one[:2] for one in self.completions(nodes, asker, 1)] == [(6, "cut")]
        assert word(kept) == 1 and word(gone) == 0 and "refused" in a.regions.failures()[a.number(b)]
        requests.clear()
        requests.fetch_add(of_c, 0, 1, cookie=7)
        assert self.run(nodes, a, requests)[0][:2] == (7, "done")

    def test_keys_never_come_back(self) -> None:
        """A hundred registrations, one after the other: each key is new."""
        _, b = self.make_nodes(2)
        memory, keys = Mapping.create("owned", 4096), set()
        for _ in range(100):
            key = b.regions.register(memory, atomics=True)
            assert key not in keys
            keys.add(key)
            b.regions.deregister(key)
        assert b.regions.idle(memory)


class TestTightVerbs(TestVerbs):
    """The same with 32 work requests in the device, nothing inline."""

    make_nodes = staticmethod(lambda n: make_nodes(n, **TIGHT))


def test_a_list_is_one_doorbell_and_one_completion():
    """A compare-and-swap, a read behind it and ten writes: one doorbell, and only the last request is signalled."""
    a, b = make_nodes(2)
    memory, mine, owned = (Mapping.create("memory", 4096) for _ in range(3))
    _, region = b.open(memory, a, atomics=True)
    _, writable = b.open(owned, a, writer=True)
    before = a.part.statistics()
    requests = RequestList()
    requests.compare_swap(region, 0, 0, 9, found=mine, found_offset=64)
    requests.read(region, 0, 8, mine)
    for k in range(10):
        requests.write(writable, 8 * k, 8, mine, 1024)
    TestVerbs().run([a, b], a, requests)
    after = a.part.statistics()
    assert {name: after[name] - before[name] for name in after} == {
        "work_requests": 12, "doorbells": 1, "signalled": 1}
    assert word(mine) == 9


def test_who_does_not_answer_is_given_up():
    """A peer whose end is gone: what is on the way completes as `cut`, and failures() says so; others go on."""
    a, b, c = nodes = make_nodes(3, **HASTY)
    _, region = b.open(Mapping.create("memory", 4096), a, atomics=True)
    _, of_c = c.open(Mapping.create("memory", 4096), a, atomics=True)
    b.regions.cut(b.number(a))
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 1, cookie=1)
    a.regions.post(asker, requests)
    assert TestVerbs().completions([a, c], asker, 1)[0][:2] == (1, "cut")
    assert wait_until(lambda: a.regions.failures().get(a.number(b)), BOUND_S)
    requests.clear()
    requests.fetch_add(of_c, 0, 1, cookie=2)
    assert TestVerbs().run(nodes, a, requests)[0][:2] == (2, "done")


def test_a_number_is_used_again():
    """Twenty connections one after the other under one number, with requests on the way at each end: what completes of
    the old ones is nobody's, and memory registered once serves them all."""
    a, b = make_nodes(2)
    memory = Mapping.create("memory", 4096)
    key = b.regions.register(memory, atomics=True)
    b.opened[key] = memory
    number = a.number(b)
    for k in range(20):
        requests, asker = RequestList(), Asker()
        requests.fetch_add(a.reach(b, key), 0, 1, cookie=k)
        for _ in range(10):
            a.regions.post(asker, requests)
        if k % 2:
            TestVerbs().completions([a, b], asker, 10)
        a.regions.forget_peer(a.number(b))
        b.regions.forget_peer(b.number(a))
        if not k % 2:
            assert {one[1] for one in asker.take()} <= {"done", "cut"}
        connect(a, b)
        assert a.number(b) == number
    requests = RequestList()
    requests.fetch_add(a.reach(b, key), 0, 1, cookie=99)
    assert TestVerbs().run([a, b], a, requests)[0][:2] == (99, "done")
    assert word(memory) >= 101


def test_a_message_wakes_who_sleeps():
    """wait() comes back for a message and for a completion, and not before."""
    a, b = make_nodes(2)
    TestVerbs.pump([a, b])
    assert not b.regions.wait(0.0)
    a.regions.send(a.number(b), b"hello")
    assert b.regions.wait(BOUND_S)
    assert wait_until(lambda: (b.regions.progress(), b.regions.receive())[1], BOUND_S) == (b.number(a), b"hello")


def test_memory_that_was_let_go_makes_room():
    """A device knows a limited number of memories, which is told; those that were let go don't count, and those that
    stay are used as ever."""
    a, b = nodes = make_nodes(2)
    memory, stays = Mapping.create("owned", 4096), Mapping.create("stays", 4096)
    _, region = b.open(memory, a, writer=True)
    a.regions.know(stays)
    for _ in range(300):
        one = Mapping.create("local", 4096)
        a.regions.know(one)
        a.regions.let_go(one)
    many = [Mapping.private(4096) for _ in range(LOCALS)]
    with pytest.raises(ValueError, match=str(LOCALS)):
        for one in many:
            a.regions.know(one)
    memory.view()[0:8] = b"12345678"
    gone = many[:-1:3]
    for one in gone:
        a.regions.let_go(one)
    for one in [stays, many[1], many[LOCALS // 2 // 3 * 3 + 1], many[LOCALS - 2]]:
        requests = RequestList()
        requests.read(region, 0, 4096, one)
        assert TestVerbs().run(nodes, a, requests)[0][1] == "done" and bytes(one.view()[0:8]) == b"12345678"


def test_bad_numbers_and_addresses_are_refused():
    """Clear errors, with the limit."""
    from spindle_core.fabric.regions.regions import Regions
    from spindle_core.fabric.regions.verbs import VerbsPart

    for wrong, name in (({"depth": 4}, "depth"), ({"peers": 0}, "peers"), ({"retries": 9}, "retries")):
        with pytest.raises(ValueError, match=name):
            VerbsPart(Regions(), **wrong)
    node = VerbsNode(peers=1)
    peer, _ = node.part.prepare()
    with pytest.raises(ConnectionError, match="1 peers"):
        node.part.prepare()
    with pytest.raises(ValueError, match="address"):
        node.part.connect(peer, b"nonsense")
    with pytest.raises(ValueError, match="no end"):
        node.part.connect(7, b"")
    assert node.regions.receive() is None
