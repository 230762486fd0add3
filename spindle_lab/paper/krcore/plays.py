"""What is played: each function is one experiment, and returns its figures. Times in us, rates in millions a second.

The cluster is the paper's: ten hosts, of which one is the server; 240 clients on the other nine.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator

from spindle_core.memory import Mapping
from spindle_lab.paper.krcore import costs
from spindle_lab.paper.krcore.hosts import DAEMON, KERNEL, Host, Program, Reader, Step, make_hosts, well
from spindle_lab.paper.krcore.network import Clock, Dcqp

HOSTS, CLIENTS, WORKERS_HERE = 10, 240, 24
BATCH = 64  # requests in a list of those who want throughput: the longest list
DCQPS = 8  # of a processor (4.2)
PORT = 7


class Counter:
    """When things were done, and how fast that was in the steady part."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._times, self._counts = clock, [0.0], [0]

    def add(self, n: int = 1) -> None:
        self._times.append(self._clock.now)
        self._counts.append(self._counts[-1] + n)

    @property
    def total(self) -> int:
        return self._counts[-1]

    @property
    def rate(self) -> float:
        """Between a quarter and three quarters of all: from when all have begun until the first is through."""
        first = next(k for k, n in enumerate(self._counts) if n >= self.total / 4)
        last = next(k for k, n in enumerate(self._counts) if n >= self.total * 3 / 4)
        return (self._counts[last] - self._counts[first]) / (self._times[last] - self._times[first]) * 1e3


def spread(hosts: list[Host], n: int) -> Iterator[Host]:
    """Where n clients are: on all hosts but the first, in turn."""
    for k in range(n):
        yield hosts[1 + k % (len(hosts) - 1)]


def timed(clock: Clock, times: list[float], step: Step) -> Step:
    before = clock.now
    yield from step
    times.append((clock.now - before) / 1e3)


def repeated(clock: Clock, times: list[float], n: int, make: Callable[[], Step]) -> Step:
    for _ in range(n):
        yield from timed(clock, times, make())


# ---- one client ----------------------------------------------------------------------------------------------------

def verbs_read(size: int = 8, *, n: int = 10) -> float:
    """A read by a program that has the device to itself."""
    clock, _, (server, client) = make_hosts(2, KERNEL)
    reader = Reader(client, server, Mapping.create("server", max(4096, size)), max(4096, size))
    times: list[float] = []
    client.start(repeated(clock, times, n, lambda: reader.read(1, size)))
    clock.run()
    return statistics.fmean(times)


def link_read(structure: str, size: int = 8, *, dc: bool = False, n: int = 10) -> float:
    """A read over a link."""
    clock, _, (server, client) = make_hosts(2, structure, dc=dc)
    program = Program(client, server, size=max(4096, size))
    program.reach(server, Mapping.create("server", max(4096, size)))
    times: list[float] = []
    client.start(repeated(clock, times, n, lambda: program.requests(1, size)))
    clock.run()
    return statistics.fmean(times)


def cached_connect() -> float:
    """A link, and a region of which the node knows already."""
    clock, _, (server, client) = make_hosts(2, DAEMON)
    server.exports.offer("table", Mapping.create("table", 4096))
    times: list[float] = []

    def run() -> Step:
        yield from Program(client, server).find("table")
        yield from timed(clock, times, Program(client, server).find("table"))

    client.start(run())
    clock.run()
    return times[0]


def echo(structure: str, *, n: int = 10) -> float:
    """A message to a port, and the answer to the link that it came from."""
    clock, _, (server, client) = make_hosts(2, structure)
    times: list[float] = []
    answering(server, [client])
    program = Program(client, server)

    def call() -> Step:
        yield from program.send(8, port=PORT)
        yield program.user.messages

    client.start(repeated(clock, times, n, call))
    clock.run()
    return statistics.fmean(times)


def answering(server: Host, clients: list[Host], *, in_kernel: bool = False) -> None:
    """One thread of the server gives each message back, one by one, by a link of each sender's own: of one link only
    messages for one other link go together. `in_kernel`: it need not enter the kernel."""
    bound = Program(server, port=PORT)
    hosts = {client.id: client for client in clients}
    back: dict[tuple[int, int], Program] = {}

    def serve() -> Step:
        while True:
            messages = yield bound.user.messages
            if server.structure == KERNEL and not in_kernel:
                yield costs.ENTRY.value
            for node, link, _ in messages:
                yield costs.SERVE.value
                program = back.get((node, link)) or Program(server, hosts[node], shared=True)
                back[node, link] = program
                program.user.take()
                program.user.send(8, program.buffer, 0, to=link)
                yield from server.enter_again() if server.structure == KERNEL else server.enter()

    server.start(serve())


def missed(structure: str) -> float:
    """What a read takes more whose region the node has to look up."""
    clock, _, (server, client) = make_hosts(2, structure)
    known, times = Mapping.create("server", 4096), []
    server.exports.offer("region", known)
    program = Program(client, server)
    valid = Reader(client, server, Mapping.create("valid", 4096))

    def run() -> Step:
        if structure == KERNEL:  # the paper's: the request waits in the kernel for two reads of ValidMR
            program.reach(server, known)
            before = clock.now
            for _ in range(2):
                yield from valid.read(1, int(costs.META_BYTES.value))
        else:
            before = clock.now
            yield from program.find("region")
        times.append((clock.now - before) / 1e3)

    client.start(run())
    clock.run()
    return times[0]


# ---- connecting ----------------------------------------------------------------------------------------------------

def connecting(structure: str, clients: int = CLIENTS, each: int = 8) -> dict[str, float]:
    """Clients connect to one server again and again, nothing of which is cached.

    KERNEL, as the paper does it: a link, and two reads of the meta server. DAEMON: a link, and the pool's lookup of a
    region of which its node has not heard. Either makes no connection.
    """
    clock, net, hosts = make_hosts(HOSTS if clients > 1 else 2, structure)
    server, made = hosts[0], net.connections
    meta = Mapping.create("meta", 1 << 16)
    most = -(-clients // (len(hosts) - 1)) * each
    if structure == DAEMON:
        for k in range(most):
            server.exports.offer(f"region {k}", meta)
    names = {host: iter(range(most)) for host in hosts[1:]}
    times: list[float] = []
    count = Counter(clock)

    def run(host: Host) -> Step:
        reader = Reader(host, server, meta) if structure == KERNEL else None
        for _ in range(each):
            before = clock.now
            if reader is not None:
                yield costs.ENTRY.value + costs.POOL_RUN.value
                link = host.pool.open_link(server.id)
                for _ in range(2):
                    yield from reader.read(1, int(costs.META_BYTES.value))
            else:
                program = Program(host, server)
                link = program.link
                yield from program.find(f"region {next(names[host])}")
                host.links -= 1
                host.finder.forget(link)
            times.append((clock.now - before) / 1e3)
            host.pool.close_link(link)
            count.add()

    for host in spread(hosts, clients):
        host.start(run(host))
    clock.run()
    return {"us": statistics.fmean(times), "rate": count.rate if clients > 1 else 0.0,
            "links": count.total, "connections": net.connections - made,
            "lookups": sum(host.finder.reads for host in hosts)}


def asking(clients: int = CLIENTS, each: int = 8) -> float:
    """The same, where a thread of the server answers instead of its memory: rate."""
    clock, _, hosts = make_hosts(HOSTS, KERNEL)
    answering(hosts[0], hosts[1:], in_kernel=True)
    count = Counter(clock)

    def run(program: Program) -> Step:
        for _ in range(each):
            yield from program.send(8, port=PORT)
            yield program.user.messages
            program.user.take()
            count.add()

    for host in spread(hosts, clients):
        host.start(run(Program(host, hosts[0], shared=True)))
    clock.run()
    return count.rate


def mesh() -> dict[str, float]:
    """240 workers on ten hosts, each of which shall reach all others: it needs a link to each other host, since a link
    reaches all ports there."""
    clock, net, hosts = make_hosts(HOSTS, DAEMON)
    made, links, over = net.connections, 0, []
    for host in hosts:
        host.exports.offer("mesh", Mapping.create("mesh", 4096))

    def run(host: Host) -> Step:
        nonlocal links
        for other in hosts:
            if other is not host:
                yield from Program(host, other).find("mesh")
                links += 1
        over.append(clock.now / 1e3)

    for host in hosts:
        for _ in range(WORKERS_HERE):
            host.start(run(host))
    clock.run()
    return {"us": max(over), "links": links, "connections": net.connections - made,
            "lookups": sum(host.finder.reads for host in hosts)}


def starting(structure: str, workers: int = 180) -> dict[str, float]:
    """Workers of a hash on another host start at once: each connects as in connecting(), and gets one key: two buckets
    in one list, then the entry."""
    clock, net, hosts = make_hosts(HOSTS, structure)
    server, made, over = hosts[0], net.connections, []
    table = Mapping.create("table", 1 << 16)
    server.exports.offer("table", table)

    def run(host: Host) -> Step:
        program = Program(host, server, shared=True)
        if structure == KERNEL:
            reader = Reader(host, server, table)
            yield costs.ENTRY.value + costs.POOL_RUN.value
            for _ in range(2):
                yield from reader.read(1, int(costs.META_BYTES.value))
            program.reach(server, table)
        else:
            yield from program.find("table")
        yield from program.requests(2, 64)
        yield from program.requests(1, 64)
        over.append(clock.now / 1e3)

    for host in spread(hosts, workers):
        host.start(run(host))
    clock.run()
    return {"us": max(over), "connections": net.connections - made}


# ---- much at once --------------------------------------------------------------------------------------------------

def throughput(structure: str, *, write: bool = False, dc: bool = False, clients: int = CLIENTS, each: int = 6
               ) -> dict[str, float]:
    """Clients post lists of BATCH requests of 8 bytes, one after the other."""
    clock, net, hosts = make_hosts(HOSTS, structure, dc=dc)
    server = hosts[0]
    memories: dict[Host, Mapping] = {host: Mapping.create("server", 4096) for host in hosts[1:]}
    count = Counter(clock)

    def run(program: Program) -> Step:
        for _ in range(each):
            yield from program.requests(BATCH, write=write)
            count.add(BATCH)

    for host in spread(hosts, clients):
        program = Program(host, server)
        program.reach(server, memories[host], write=write)
        host.start(run(program))
    clock.run()
    return {"rate": count.rate, "requests": net.landed["write" if write else "read"]}


def fan_out(dcqps: int, seed: int = 1) -> float:
    """One client reads of 64 links to hosts at random. 0: over reliable connections, of which each has to be posted to
    and looked at by itself."""
    clock, _, hosts = make_hosts(HOSTS + 1, KERNEL, dc=dcqps > 0)
    client, rng = hosts[0], random.Random(seed)
    client.dcqps = [Dcqp() for _ in range(dcqps)]
    memories = {host: Mapping.create("server", 4096) for host in hosts[1:]}
    programs = []
    for _ in range(BATCH):
        host = rng.choice(hosts[1:])
        programs.append(Program(client, host))
        programs[-1].reach(host, memories[host])
    times: list[float] = []

    def run() -> Step:
        if not dcqps:
            for program in programs:
                program.submit(1)
                yield from client.enter(1, 1)
        else:
            for program in programs:
                program.submit(1)
            yield from client.enter(BATCH, BATCH)
        for program in programs:
            well((yield program.user.take))

    client.start(timed(clock, times, run()))
    clock.run()
    return times[0]


