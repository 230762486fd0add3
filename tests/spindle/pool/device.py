"""A stand-in for RDMA devices: ends that are made, connected and given up as those of a device, between pools of one
process.

Beneath, each end is one of a TCP connection, whose far end the test has; what comes there is carried to the far end of
the other one, once each of the two was connected with the other one's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading

from spindle_core.fabric.regions.regions import Regions
from spindle_core.fabric.regions.tcp import TcpPart

ADDRESS = struct.Struct("<Q")


class Network:
    """Which ends there are, and how they are connected."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.rng = random.Random(seed)
        self.fails = 0.0  # how likely it is that something can't be had
        self.open = asyncio.Event()  # else nothing comes through
        self.open.set()
        self._lock = threading.Lock()
        self._far: dict[int, socket.socket] = {}
        self._towards: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def might_fail(self) -> None:
        with self._lock:
            if self.rng.random() < self.fails:
                raise OSError("the device has no more")

    def add(self, far: socket.socket) -> int:
        with self._lock:
            number = len(self._far) + 1
            self._far[number] = far
        return number

    def connect(self, ours: int, theirs: int) -> None:
        """ValueError where there is no such end."""
        with self._lock:
            if theirs not in self._far:
                raise ValueError("those bytes are no address")
            self._towards[ours] = theirs
            if self._towards.get(theirs) == ours:
                self.loop.call_soon_threadsafe(self._join, ours, theirs)

    def _join(self, one: int, other: int) -> None:
        for here, there in ((one, other), (other, one)):
            task = self.loop.create_task(self._carry(self._far[here], self._far[there]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := await self.loop.sock_recv(here, 1 << 16):
                await self.open.wait()
                await self.loop.sock_sendall(there, data)
        for one in (here, there):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        self.open.set()
        for far in self._far.values():
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        for far in self._far.values():
            far.close()


class Device(TcpPart):
    """The way of one pool over it. `ends`: those that were made and not given up, by their number there."""

    def __new__(cls, regions: Regions, _network: Network) -> Device:
        return TcpPart.__new__(cls, regions)

    def __init__(self, regions: Regions, network: Network) -> None:
        super().__init__(regions)
        self.network = network
        self.ends: dict[int, int] = {}
        self.connected: set[int] = set()

    def prepare(self) -> tuple[int, bytes]:
        self.network.might_fail()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            near = socket.create_connection(listening.getsockname())
            far, _ = listening.accept()
        for one in (near, far):
            one.setblocking(False)
        peer = TcpPart.connect(self, near.detach())
        self.ends[peer] = self.network.add(far)
        return peer, ADDRESS.pack(self.ends[peer])

    def connect(self, peer: int, address: bytes) -> None:  # type: ignore[override]
        if peer not in self.ends or peer in self.connected or len(address) != ADDRESS.size:
            raise ValueError(f"peer {peer} has no end that waits for this address")
        self.network.might_fail()
        self.network.connect(self.ends[peer], ADDRESS.unpack(address)[0])
        self.connected.add(peer)

    def give_up(self, peer: int) -> None:
        del self.ends[peer]
        self.connected.discard(peer)
        super().give_up(peer)
