"""Hosts with a pool each, for tests of links: over simulated ways, over TCP, on one host, or over an RDMA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spindle_core.fabric.regions.sim import SimWorld
from spindle_core.links.pool import Pool
from spindle_core.links.user import LinkUser
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions import test_shm, test_sim, test_tcp, test_verbs

LEASE_NS = 1_000_000_000
REQUESTS_AT = 192  # bytes of a user's page before its requests (layout.h)


class Host:
    """A node of `node` with its pool. `nodes[k]` is that of host k."""

    def __init__(self, number: int, node: Any) -> None:
        self.number, self.node = number, node
        self.id = 100 + number
        self.pool: Pool = None  # type: ignore[assignment]
        self.hosts: list[Host] = []

    def start(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        self.pool = Pool(self.node.regions, self.mapping_of)
        for other in hosts:
            if other is not self:
                self.pool.add_connection(other.id, self.node.number(other.node))

    def mapping_of(self, peer: int, key: int) -> Mapping | None:
        """As nodes of one host pass descriptors: what the owner has registered under the key."""
        owner = next(other for other in self.hosts if other is not self and self.node.number(other.node) == peer)
        memory = owner.node.regions.memory_of(key)
        return None if memory is None else self.node.mapped(owner.node, memory)


class Program:
    """A user with one link: its end, and its own memory."""

    def __init__(self, host: Host, to: Host | None, *, size: int = 1 << 20) -> None:
        self.host = host
        self.link = host.pool.open_link(None if to is None else to.id)
        self.user = LinkUser(self.link.user_page, self.link.pool_page)
        self.memory = Mapping.create("user", size)
        self.buffer = self.link.add_buffer(self.memory)

    def reach(self, owner: Host, memory: Mapping, lease_ns: int = 1 << 62, **rights: Any) -> int:
        """Opens a region of that host; the handle."""
        if rights.pop("writer", False):
            rights["writer"] = owner.node.number(self.host.node)
        key = owner.node.regions.register(memory, **rights)
        owner.node.opened[key] = memory
        return self.open(owner, key, lease_ns)

    def open(self, owner: Host, key: int, lease_ns: int = 1 << 62) -> int:
        grant = owner.node.regions.grant(key, owner.node.number(self.host.node))
        return self.link.open_region(grant, lease_ns, self.host.node.mapped(owner.node, owner.node.opened[key]))

    def say(self, data: bytes, at: int = 0, **to: Any) -> None:
        self.memory.view()[at : at + len(data)] = data
        self.user.send(len(data), self.buffer, at, **to)


def make_hosts(kind: str, n: int) -> list[Host]:
    makers: dict[str, Callable[[int], list[Any]]] = {
        "sim": test_sim.make_nodes, "tcp": test_tcp.make_nodes, "shm": test_shm.make_nodes,
        "verbs": test_verbs.make_nodes}
    hosts = [Host(k, node) for k, node in enumerate(makers[kind](n))]
    for host in hosts:
        host.start(hosts)
    return hosts


def world_of(hosts: list[Host]) -> SimWorld | None:
    return getattr(hosts[0].node, "world", None)


def step(hosts: list[Host], now_ns: int = 0) -> int:
    """One run of each pool, with its errands and all that the network does in between."""
    total = 0
    for host in hosts:
        total += host.pool.run(now_ns)
        host.pool.tidy()
        for link in host.pool.asked():
            link.answer("nobody")  # nothing is offered by name here
        if (world := world_of(hosts)) is not None:
            world.run()
    return total


def until(hosts: list[Host], condition: Callable[[], Any], now_ns: int = 0, rounds: int = 20_000) -> Any:
    """Drives the pools until it holds; time passes a little with each round."""
    for k in range(rounds):
        if found := condition():
            return found
        step(hosts, now_ns + k * 100_000)
    raise AssertionError(f"not within {rounds} rounds")


def completions(hosts: list[Host], program: Program, n: int, now_ns: int = 0) -> list[tuple]:
    found: list[tuple] = []

    def look() -> bool:
        found.extend(program.user.take())
        return len(found) >= n

    until(hosts, look, now_ns)
    return found


def second_connection(kind: str, a: Host, b: Host) -> int:
    """Connects two hosts once more, as one of them wants it; its number there."""
    numbers = a.node.numbers[b.node], b.node.numbers[a.node]
    {"sim": test_sim, "tcp": test_tcp, "shm": test_shm}[kind].connect(a.node, b.node)
    own = a.node.numbers[b.node]
    a.pool.add_connection(b.id, own)
    b.pool.add_connection(a.id, b.node.numbers[a.node])
    a.node.numbers[b.node], b.node.numbers[a.node] = numbers
    return own
