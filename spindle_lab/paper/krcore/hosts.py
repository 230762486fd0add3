"""Hosts of a run: the production pool of each, and who drives it when.

Two structures, with the same pool:

- KERNEL, the paper's: a program enters the kernel, which does the pool's work for it on the program's own thread. Each
  program has a connection of its own processor's, so nobody waits for another one's posts.
- DAEMON, this project's: a program stores what it wants where the pool sees it. One thread of the host drives the pool,
  one thing after the other, and all share its connections.

Programs are generators. They yield how many ns their thread is busy, or what they wait for: a function that returns
something true once it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from spindle_core.fabric.regions.regions import Regions
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.sim import SimPart
from spindle_core.links.exports import Exports
from spindle_core.links.finder import Finder
from spindle_core.links.link import Link
from spindle_core.links.pool import Pool
from spindle_core.links.user import LinkUser
from spindle_core.memory import Mapping
from spindle_lab.paper.krcore import costs
from spindle_lab.paper.krcore.network import Clock, Dcqp, Network

KERNEL, DAEMON = "kernel", "daemon"
Step = Generator[Any, Any, Any]
USER_BYTES = 1 << 16  # memory of a program for its requests


def post_ns(lists: int, requests: int) -> float:
    """The pool's work for so many lists of so many requests together."""
    return lists * costs.POOL_LIST.value + (requests - lists) * costs.POOL_REQUEST.value


class Host:
    """One node with its pool."""

    def __init__(self, net: Network, number: int, structure: str) -> None:
        self.net, self.number, self.structure = net, number, structure
        self.id = number + 1
        self.regions = Regions()
        self.part = SimPart(self.regions, net.world, number)
        self.pool = Pool(self.regions)
        self.exports = Exports(self.pool)
        self.finder = Finder(self.pool, self.id)
        self.dcqps: list[Dcqp] = []
        self.links = 0
        self._waiting: list[tuple[Step, Callable[[], Any]]] = []
        self._thread_free = 0.0
        self._called = self.found = False
        self._told = 0
        net.on_news[number] = self._news

    def connect(self, other: Host) -> int:
        """One more connection between the two; its number here."""
        here, there = self.part.connect(other.part)
        self.pool.add_connection(other.id, here)
        other.pool.add_connection(self.id, there)
        self.net.connected(self.number, other.number)
        return int(here)

    def meet(self, other: Host) -> None:
        """Each knows the other's directory."""
        for one, its in ((self, other), (other, self)):
            one.finder.add_node(its.id, its.regions.whole_grant(its.exports.key))

    # ---- programs ----

    def start(self, program: Step, at: float = 0.0) -> None:
        self.net.clock.at(at, lambda: self._go(program, None))

    def _go(self, program: Step, value: Any) -> None:
        try:
            what = program.send(value)
        except StopIteration:
            return
        if not callable(what):
            self.net.clock.at(self.net.clock.now + what, lambda: self._go(program, None))
        elif found := what():
            self._go(program, found)
        else:
            self._waiting.append((program, what))

    def _wake(self, at: float) -> None:
        """Those go on then for whom something has come."""
        waiting, self._waiting = self._waiting, []
        for program, what in waiting:
            found = what()
            if found:
                self.net.clock.at(at, lambda program=program, found=found: self._go(program, found))  # type: ignore[misc]
            else:
                self._waiting.append((program, what))

    # ---- the pool ----

    def enter(self, lists: int = 0, requests: int = 0) -> Step:
        """A program has submitted something: has the pool look at it."""
        if self.structure == KERNEL:
            yield costs.ENTRY.value + costs.POOL_RUN.value + post_ns(lists, requests)
            self._poll()
        else:
            yield costs.HANDOVER.value
            self._call()

    def enter_again(self) -> Step:
        """A program that is in the kernel anyway has something more for the pool."""
        yield post_ns(1, 1)
        self._poll()

    def run(self) -> int:
        """What the node's thread does (spindle/pool/pooling.py): the pool, and what that leaves to who drives it.
        Returns how many regions were asked for."""
        now = int(self.net.clock.now)
        self.pool.run(now)
        self.finder.advance(now)
        asked = self.pool.asked()
        for link in asked:
            what, value, change = link.wish
            if what == "find":
                self.finder.open(link, value.decode(), now, partial(self._found, link), change)
            else:
                self.finder.close(link, value)
                link.answer("done")
        if asked or self.found:
            self.found = False
            self.finder.advance(now)  # sends their lookups
            self.pool.run(now)  # gives their answers
        return len(asked)

    def _found(self, link: Link, handle: int, _why: str) -> None:
        self.found = True
        link.answer("done" if handle >= 0 else "nobody", max(0, handle))

    def _poll(self) -> None:
        self.run()
        self.net.send(self.net.take(self.number), self.net.clock.now, self.dcqps)
        self._wake(self.net.clock.now)

    def _news(self) -> None:
        self._told += 1
        if self.structure == KERNEL:  # who entered the kernel polls there
            self._poll()
        else:
            self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self.net.clock.at(max(self._thread_free, self.net.clock.now), self._thread)

    def _thread(self) -> None:
        """The pool's thread does all that there is."""
        self._called = False
        told, self._told = self._told, 0
        reads = self.finder.reads
        asked = self.run()
        taken = self.net.take(self.number)
        lists = sum(is_told or kind == "message" for _, posts in taken for kind, _, _, is_told in posts)
        requests = sum(len(posts) for _, posts in taken)
        ns = (costs.POOL_RUN.value + self.links * costs.POOL_LINK.value + post_ns(lists, requests)
              + told * costs.POOL_DONE.value + asked * costs.POOL_FIND.value
              + (self.finder.reads - reads) * costs.POOL_LOOKUP.value)
        self._thread_free = self.net.clock.now + ns
        self.net.send(taken, self._thread_free)
        self._wake(self._thread_free + costs.HANDOVER.value)


class Program:
    """A program with one link to a host, or with one that is bound to a port. `shared`: also with KERNEL over the
    connection that all of the host have."""

    def __init__(self, host: Host, to: Host | None = None, *, port: int = 0, size: int = USER_BYTES,
                 shared: bool = False) -> None:
        self.host = host
        self.link = host.pool.open_link(None if to is None else to.id)
        host.links += 1
        self.user = LinkUser(self.link.user_page, self.link.pool_page)
        self.memory = Mapping.create("program", size)
        self.buffer = self.link.add_buffer(self.memory)
        self.region = -1
        if port:
            host.pool.bind(self.link, port)
        if to is not None and host.structure == KERNEL and not shared:
            host.pool.move(self.link, host.connect(to))
            host.pool.run(0)
            host.pool.tidy()

    def reach(self, owner: Host, memory: Mapping, *, write: bool = False) -> None:
        """Has the link reach this memory, without a lookup."""
        writer = owner.pool.connections(self.host.id)[0] if write else None
        key = owner.regions.register(memory, writer=writer)
        grant = owner.regions.whole_grant(key)
        self.region = self.link.open_region(grant, 1 << 62)

    def find(self, name: str) -> Step:
        """Has the link reach the region of that name of its host, by the pool's own lookup."""
        raw = name.encode()
        self.memory.view()[: len(raw)] = raw
        self.user.find(len(raw), self.buffer)
        yield from self.host.enter(1, 1)
        ((_, status, handle),) = yield self.user.take
        if status != "done":
            raise AssertionError(f"region {name!r}: {status}")
        self.region = handle

    def requests(self, n: int, size: int = 8, *, write: bool = False) -> Step:
        """One list, until it has completed."""
        self.submit(n, size, write=write)
        yield from self.host.enter(1, n)
        well((yield self.user.take))

    def submit(self, n: int, size: int = 8, *, write: bool = False) -> None:
        for k in range(n):
            add = self.user.write if write else self.user.read
            add(self.region, 0, size, self.buffer, k * 8 if size == 8 else 0)
        self.user.submit()

    def send(self, size: int, *, port: int = 0, to: int = 0) -> Step:
        self.user.send(size, self.buffer, 0, port=port, to=to)
        yield from self.host.enter(1, 1)


class Reader:
    """Reads without a pool, as a program with a device of its own, or the kernel for itself."""

    def __init__(self, host: Host, owner: Host, memory: Mapping, size: int = USER_BYTES) -> None:
        self.host, self.asker, self.memory = host, Asker(), Mapping.create("reader", size)
        key = owner.regions.register(memory)
        self.region = host.regions.reach(host.pool.connections(owner.id)[0], owner.regions.whole_grant(key))

    def read(self, n: int = 1, size: int = 8) -> Step:
        requests = RequestList()
        for _ in range(n):
            requests.read(self.region, 0, size, self.memory)
        self.host.regions.post(self.asker, requests)
        self.host.net.send(self.host.net.take(self.host.number), self.host.net.clock.now)
        well((yield self.asker.take))


def well(completions: list[tuple[Any, ...]]) -> None:
    """A run in which a request fails shows nothing."""
    for done in completions:
        if done[1] != "done":
            raise AssertionError(f"a request ended as {done[1]}: {done[2]}")


def make_hosts(n: int, structure: str, *, dc: bool = False) -> tuple[Clock, Network, list[Host]]:
    """All connected with each other, once."""
    clock = Clock()
    net = Network(clock, n, dc=dc)
    hosts = [Host(net, number, structure) for number in range(n)]
    for k, one in enumerate(hosts):
        for other in hosts[k + 1 :]:
            one.connect(other)
            one.meet(other)
    return clock, net, hosts
