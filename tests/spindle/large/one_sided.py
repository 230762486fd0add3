"""Ways as over RDMA, without a device: regions over TCP, whose owner's processor a thread of the test stands in for."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from spindle_core.fabric.regions.regions import Regions
from spindle_core.fabric.regions.tcp import TcpPart
from tests.spindle_core.cluster import connection

ADDRESS = b"of a stand-in"


class TcpWay:
    """One end; `driven`: by the thread of the pair, too."""

    def __init__(self, pair: Ways, regions: Regions, sock: socket.socket, driven: bool) -> None:
        self.part, self.regions, self.sock = TcpPart(regions), regions, sock
        self.peer = -1
        self.connected = threading.Event()
        if driven:
            pair.driven.append(regions)

    def prepare(self) -> tuple[int, bytes]:
        self.peer = self.part.connect(self.sock.detach())
        return self.peer, ADDRESS

    def connect(self, peer: int, address: bytes) -> None:
        if address != ADDRESS:
            raise ValueError(f"{address!r} is no address")
        self.connected.set()


class Ways:
    """Both ends of one way: the landing's, and that of who writes. Python's lock keeps who drives apart."""

    def __init__(self) -> None:
        self.socks = connection()
        self.driven: list[Regions] = []
        self.ends: list[TcpWay] = []

    def landing(self, regions: Regions) -> TcpWay:
        return self._end(regions, 0)

    def writing(self, regions: Regions) -> TcpWay:
        return self._end(regions, 1)

    def _end(self, regions: Regions, which: int) -> TcpWay:
        end = TcpWay(self, regions, self.socks[which], driven=which == 0)
        self.ends.append(end)
        return end

    def cut(self) -> None:
        """It breaks at the landing; who writes finds out."""
        landing = self.ends[0]
        with contextlib.suppress(ConnectionError):  # it has ended already
            landing.regions.cut(landing.peer)


@contextlib.contextmanager
def ways() -> Iterator[Ways]:
    """A way, whose landing is driven until the end."""
    made = Ways()
    over = threading.Event()

    def drive() -> None:
        while not over.wait(0.0002):
            for regions in tuple(made.driven):
                regions.progress()

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
        for sock in made.socks:
            sock.close()


def no_way(regions: Regions) -> TcpWay:
    """Of a device that has no more."""
    raise OSError("the device has no more")
