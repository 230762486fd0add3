"""Two nodes' pools in one process, with the control connection between them in the test's hands."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from spindle.errors import ConnectionEnded, SpindleError
from spindle.pool.lives import life_of
from spindle.pool.neighbours import Neighbours
from spindle.pool.pooling import Pooling
from spindle.proto import node_pb2 as pb
from spindle_core.errors import RdmaUnavailable
from spindle_core.fabric.regions.regions import Part, Regions
from spindle_core.memory import Mapping
from tests.spindle.pool.device import Device, Network


class Side:
    """One node: its pool, and what it has said and the other one not heard yet."""

    def __init__(self, node_id: int, incarnation: int, local: bool, network: Network | None = None) -> None:
        self.node_id, self.incarnation, self.local = node_id, incarnation, local
        self.said: deque[tuple[pb.PeerMessage, list[int]]] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.streams: list[socket.socket] = []  # of data connections that it opened
        self.refused = 0  # data connections that are to fail
        self.connected: dict[int, Any] = {}
        self.neighbours = Neighbours(node_id, 0, self, self.pooling, str, self.spawn,  # type: ignore[arg-type]
                                     lambda _: network is not None)
        self.neighbours.incarnation = incarnation
        self.neighbours.network = self  # type: ignore[assignment]
        self.pool = Pooling(life_of(node_id, incarnation), asyncio.get_running_loop(), 0.0, self.neighbours.lost,
                            self.neighbours.lacking, self.neighbours.dedicated.wanted, self.neighbours.dedicated.over,
                            self.neighbours.settling.wanted,
                            None if network is None else lambda regions: Device(regions, network))
        self.pool.start()
        self.other: Side

    def pooling(self) -> Pooling:
        return self.pool

    def meet(self, other: Side) -> None:
        self.other = other
        conn = SimpleNamespace(peer=SimpleNamespace(local=self.local, pid=0))  # its process is not known
        self.connected[other.node_id] = SimpleNamespace(node_id=other.node_id, incarnation=other.incarnation, conn=conn)

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def send(self, node_id: int, message: pb.PeerMessage, fds: Sequence[int], incarnation: int) -> bool:
        assert (node_id, incarnation) == (self.other.node_id, self.other.incarnation)
        self.said.append((message, [os.dup(fd) for fd in fds]))
        return True

    def hear(self) -> bool:
        """The next thing that the other one has said; False: nothing."""
        if not self.other.said:
            return False
        message, fds = self.other.said.popleft()
        peer, kind = self.connected[self.other.node_id], message.WhichOneof("body")
        if kind == "link_offer":
            self.neighbours.heard_offer(peer, message.link_offer, fds)
        elif kind == "link_over":
            self.neighbours.heard_over(peer, message.link_over)
        elif kind == "link_settle":
            self.neighbours.settling.heard(peer, message.link_settle)
        elif kind == "link_more":
            self.neighbours.dedicated.heard(peer, message.link_more)
        elif kind == "link_map":
            self.neighbours.heard_map(peer, message.link_map)
        else:
            self.neighbours.heard_mapped(peer, message.link_mapped, fds)
        return True

    async def data(self, endpoint: str, hello: Any, incarnation: int, token: bytes, timeout_s: float) -> int:
        """As Network: a data connection to the other one."""
        await asyncio.sleep(0)
        expected = self.other.neighbours.token_for(hello)
        if self.refused or expected is None or not hmac.compare_digest(expected, token):
            self.refused = max(0, self.refused - 1)
            raise ConnectionEnded(f"node {endpoint} does not expect this data connection")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
        for one in (ours, theirs):
            one.setblocking(False)
        self.streams.append(ours.dup())
        self.other.neighbours.take_stream(hello, theirs.detach())
        assert self.other.neighbours.token_for(hello) is None, "it is for one connection"
        return ours.detach()

    def cut(self) -> None:
        """The data connections end by themselves."""
        for sock in self.streams:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.streams.clear()

    async def reach(self) -> int:
        return await self.neighbours.reach(self.other.node_id)

    async def finds(self, name: str) -> bool:
        """Whether the other one offers a region of that name; raises ConnectionEnded where there is no way to it."""
        life = await self.reach()
        entry, why = await self.pool.ask(lambda answer: self.pool.finder.look_up(life, name, 0, answer))
        if entry is None and "offers no region" not in why:
            raise ConnectionEnded(why)
        return entry is not None

    async def close(self) -> None:
        self.cut()
        self.pool.stop()
        self.neighbours.close(ConnectionEnded("over"))
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        for _, fds in self.said:
            for fd in fds:
                os.close(fd)
        self.said.clear()


class Scarce(Part):
    """In place of a device that takes only so many memories."""

    def __init__(self, regions: Regions, room: int) -> None:
        super().__init__(regions, "scarce")
        self.room = room
        self.known: set[Mapping] = set()

    def know(self, memory: Mapping) -> None:
        if memory not in self.known:
            self.add_memory(0, memory, 0, memory.size, 1)
            self.known.add(memory)

    def let_go(self, memory: Mapping) -> None:
        self.known.discard(memory)

    def add_memory(self, key: int, memory: Mapping, begin: int, size: int, rights: int) -> None:
        if not self.room:
            raise RdmaUnavailable("it can't be pinned")
        self.room -= 1


@contextlib.asynccontextmanager
async def pair(local: bool, network: Network | None = None) -> Any:
    """Two sides that know each other; whatever is on the way between them only moves when a test lets it. `network`: on
    which they have a device each."""
    sides = Side(1, 11, local, network), Side(2, 22, local, network)
    for one, other in (sides, sides[::-1]):
        one.meet(other)
    try:
        yield sides
    finally:
        for one in sides:
            await one.close()


async def settle(sides: tuple[Side, Side], done: asyncio.Future[Any]) -> Any:
    """Lets everything through until that is done; its result."""
    while not done.done():
        for one in sides:
            one.hear()
        await asyncio.sleep(0.0005)
    return done.result()


def result_of(task: asyncio.Future[Any]) -> Any:
    """What it returned, or its SpindleError."""
    try:
        return task.result()
    except SpindleError as error:
        return error
