"""Regions of nodes over TCP keep the promise of regions, whatever a peer sends."""

from __future__ import annotations

import os

import pytest

from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.tcp import TcpPart
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.regions.conformance import BOUND_S, RegionConformance, word
from tests.spindle_core.fabric.regions.nodes import Node
from tests.support import wait_until


class TcpNode(Node):
    def __init__(self) -> None:
        super().__init__()
        self.part = TcpPart(self.regions)


def connect(a: TcpNode, b: TcpNode) -> None:
    one, other = connection()
    a.numbers[b] = a.part.connect(one.detach())
    b.numbers[a] = b.part.connect(other.detach())


def make_nodes(n: int) -> list[TcpNode]:
    nodes = [TcpNode() for _ in range(n)]
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            connect(a, b)
    return nodes


class TestTcp(RegionConformance):
    make_nodes = staticmethod(make_nodes)


def test_a_list_leaves_in_one_call():
    """A chain of ten requests: one system call to send it, one to answer it."""
    a, b = make_nodes(2)
    memory, mine = Mapping.create("memory", 4096), Mapping.create("mine", 4096)
    _, region = b.open(memory, a, atomics=True)
    asker, requests = Asker(), RequestList()
    for k in range(10):
        requests.fetch_add(region, 0, 1, found=mine, found_offset=8 * k)
    before = a.part.statistics()["send_calls"], b.part.statistics()["send_calls"]
    a.regions.post(asker, requests)
    wait_until(lambda: (b.regions.progress(), a.regions.progress(), asker.take())[2], BOUND_S)
    after = a.part.statistics()["send_calls"], b.part.statistics()["send_calls"]
    assert [x - y for x, y in zip(after, before, strict=True)] == [1, 1]


def test_who_sleeps_is_woken_by_what_comes():
    """wait() comes back for a request, a completion and a message; without any of them it waits its time."""
    a, b = make_nodes(2)
    memory = Mapping.create("memory", 4096)
    _, region = b.open(memory, a, atomics=True)
    assert not b.regions.wait(0.0)
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 1)
    a.regions.post(asker, requests)
    assert b.regions.wait(BOUND_S) and word(memory) == 1
    assert a.regions.wait(BOUND_S) and [one[1] for one in asker.take()] == ["done"]
    a.regions.send(a.number(b), b"hello")
    assert b.regions.wait(BOUND_S) and b.regions.receive() == (b.number(a), b"hello")
    assert not b.regions.wait(0.0)


def test_a_peer_that_goes_is_told_of():
    """The other end closes: what is on the way completes as `cut`, failures() says why, and the number is used again
    after forget_peer()."""
    a, b = make_nodes(2)
    memory = Mapping.create("memory", 4096)
    _, region = b.open(memory, a, atomics=True)
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 1, cookie=4)
    a.regions.post(asker, requests)
    b.regions.close()
    found = wait_until(lambda: (a.regions.progress(), asker.take())[1], BOUND_S)
    assert found == [(4, "cut", 0, a.number(b))]
    wait_until(lambda: (a.regions.progress(), a.regions.failures())[1], BOUND_S)
    assert a.regions.failures()[a.number(b)] in ("the connection was closed", "the network broke the connection")
    number = a.number(b)
    a.regions.forget_peer(number)
    assert a.regions.failures() == {}
    other = TcpNode()
    connect(a, other)
    assert a.number(other) == number


def test_who_falls_asleep_when_a_peer_goes_has_something_to_do():
    """What was on the way completes in that last look, and nothing else would wake whoever waits for it."""
    a, b = make_nodes(2)
    memory = Mapping.create("memory", 4096)
    _, region = b.open(memory, a, atomics=True)
    asker, requests = Asker(), RequestList()
    requests.fetch_add(region, 0, 1, cookie=4)
    a.regions.post(asker, requests)
    b.regions.close()
    assert a.regions.wait(BOUND_S)
    assert asker.take() == [(4, "cut", 0, a.number(b))]


@pytest.mark.parametrize("wrong", ["file", "closed"])
def test_what_is_no_socket_is_refused(wrong):
    """A descriptor that can't be waited for: an error, the descriptor is closed, no number is lost."""
    node = TcpNode()
    if wrong == "file":
        fd = os.open("/dev/null", os.O_RDONLY)
    else:
        one, other = os.pipe()
        os.close(other)
        os.close(one)
        fd = one
    with pytest.raises(OSError):
        node.part.connect(fd)
    with pytest.raises(OSError):
        os.fstat(fd)
    one, other = connection()
    assert node.part.connect(one.detach()) == 0
    other.close()
