"""One node with peers on its host and on others: each pair keeps the promise by its own way."""

from __future__ import annotations

from typing import Any

import pytest

from spindle_core.fabric.regions.regions import Part, Regions
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.tcp import TcpPart
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric.regions.conformance import RegionConformance, word
from tests.spindle_core.fabric.regions.nodes import Node
from tests.spindle_core.fabric.regions.test_shm import ShmNode, connect


class MixedNode(ShmNode):
    """With the ways `shm` and `tcp`."""

    def __init__(self) -> None:
        super().__init__()
        self.tcp = TcpPart(self.regions)

    def mapped(self, owner: Node, memory: Mapping) -> Mapping | None:
        return super().mapped(owner, memory) if self.regions.part_of(self.number(owner)) == "shm" else None


def make_nodes(n: int) -> list[Any]:
    """Every other pair is on one host."""
    nodes = [MixedNode() for _ in range(n)]
    for i, a in enumerate(nodes):
        for k, b in enumerate(nodes[i + 1 :]):
            if k % 2:
                connect(a, b)
            else:
                one, other = connection()
                a.numbers[b] = a.tcp.connect(one.detach())
                b.numbers[a] = b.tcp.connect(other.detach())
    return nodes


class TestMixed(RegionConformance):
    make_nodes = staticmethod(make_nodes)


def test_one_word_is_changed_by_both_ways():
    """Peers of one host and of another add to the same word: nothing is lost, since both are atomic against the owner's
    processor, and the object says so."""
    a, b, c = nodes = make_nodes(3)
    assert [a.regions.part_of(a.number(other)) for other in (b, c)] == ["tcp", "shm"]
    assert a.regions.atomic_with_owner
    memory = Mapping.create("owned", 4096)
    key, from_b = a.open(memory, b, atomics=True, with_owner=True)
    reached = {b: from_b, c: c.reach(a, key)}
    askers = {b: Asker(), c: Asker()}
    for _ in range(100):
        for node in (b, c):
            requests = RequestList()
            requests.fetch_add(reached[node], 0, 1)
            node.regions.post(askers[node], requests)
    values = [one[2] for node in (b, c) for one in TestMixed().completions(nodes, askers[node], 100)]
    assert sorted(values) == list(range(200)) and word(memory) == 200


class DevicePart(Part):
    """A way whose atomics are a device's, as its capabilities say by saying nothing; it notes what it knows."""

    def __init__(self, regions: Regions, name: str) -> None:
        self.known: list[Mapping] = []
        super().__init__(regions, name)

    def know(self, memory: Mapping) -> None:
        if memory not in self.known:
            self.known.append(memory)

    def let_go(self, memory: Mapping) -> None:
        self.known.remove(memory)


def test_a_way_knows_memory_as_long_as_it_has_users():
    """Two users of one memory: the way is told when the first comes, and lets go of it with the last."""
    regions = Regions()
    part, memory = DevicePart(regions, "device"), Mapping.create("local", 4096)
    regions.know(memory)
    regions.know(memory)
    regions.let_go(memory)
    assert part.known == [memory]
    regions.let_go(memory)
    assert part.known == []
    with pytest.raises(KeyError):
        regions.let_go(memory)


def test_atomics_that_are_not_atomic_together_are_refused():
    """Where one way's atomics are a device's alone, no region is open to the atomics of several ways, whichever came
    first; a region of plain reads is."""
    regions = Regions()
    DevicePart(regions, "device")
    memory = Mapping.create("owned", 4096)
    with pytest.raises(ValueError, match="processor"):
        regions.register(memory, atomics=True, with_owner=True)
    key = regions.register(memory, atomics=True)
    with pytest.raises(ValueError, match="atomic"):
        TcpPart(regions)
    regions.deregister(key)
    TcpPart(regions)
    with pytest.raises(ValueError, match="device, tcp"):
        regions.register(memory, atomics=True)
    regions.register(memory)
