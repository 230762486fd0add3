"""How the nodes of a core run reach each other: one class for each fabric, and the table that `--fabric` chooses from.

The nodes are processes of one host whatever the fabric, so that all of them are measured in the same way. The parent
only passes round what each node offers: a few values, and descriptors where the fabric has some to give.

Rules: `make` before the epoch, `offer` after it; `attach` gets what all the others offer, and returns when every one of
them is attached. Under `PRIVATE`, and behind the first two descriptors, there is one value or descriptor for each other
rank, which gets only its own. Nodes ring each other as real ones do, each by a bell of its own (`spindle_core.ends`).
"""

from __future__ import annotations

import os
import socket
from typing import Any

from spindle_core.engine import Engine
from spindle_core.epoch import Epoch
from spindle_core.fabric.fabric import Fabric

Offer = tuple[dict[str, Any], list[int]]  # values and descriptors
CONNECT_TIMEOUT_S = 10.0
PRIVATE = "private"
SHARED_FDS = 2


def check_fabric(fabric: str) -> None:
    """Raises BenchFailed, with what to do, where this host has no such fabric."""
    if fabric != "verbs":
        return
    from spindle.rdma.devices import sysfs_devices
    from spindle_lab.bench.crew import BenchFailed

    devices = sysfs_devices()
    if not any(device.active() for device in devices):
        there = f" with an active port (there is {', '.join(one.name for one in devices)})" if devices else ""
        raise BenchFailed(f"--fabric verbs: no RDMA device{there}; `rdma link` and `spindle doctor` say what there is,"
                          " `make rdma-test ARGS=bench` measures on guests that have one in software")
    try:
        import spindle_core.fabric.verbs  # noqa: F401 (is it built, and is the library there?)
    except ImportError as error:
        raise BenchFailed(f"--fabric verbs: {error}; install libibverbs-dev and build again (`make ext`)") from error


def offer_to(values: dict[str, Any], rank: int) -> dict[str, Any]:
    """What the member of that rank gets of another one's values."""
    if PRIVATE not in values:
        return values
    return {**values, PRIVATE: values[PRIVATE][str(rank)]}


def fds_to(fds: list[int], owner: int, rank: int) -> list[int]:
    """What the member of that rank gets of the descriptors that the member of rank `owner` offers."""
    if len(fds) <= SHARED_FDS:
        return fds
    return [*fds[:SHARED_FDS], fds[SHARED_FDS + (rank if rank < owner else rank - 1)]]


class Shm:
    """Peers map each other's rows."""

    def __init__(self, rank: int, nodes: int) -> None:
        self.rank, self.nodes = rank, nodes

    def make(self, engine: Engine) -> Fabric | None:
        """The fabric of the epoch that is about to be made; None: the one of a host."""
        self.engine = engine
        return None

    def offer(self, engine: Engine, epoch: Epoch) -> Offer:
        self.ringers = epoch.make_ringers((peer for peer in range(self.nodes) if peer != self.rank), engine.all_fd)
        return {}, [epoch.row.fd, engine.bell.fd, *[ringer.heard for ringer in self.ringers.values()]]

    def attach(self, epoch: Epoch, offers: dict[int, Offer]) -> None:
        for peer, (_, (row_fd, page_fd, heard_fd)) in offers.items():
            self.engine.hear(heard_fd)
            epoch.attach_peer(peer, row_fd, page_fd, os.dup(self.ringers[peer].fd))
            self.ringers.pop(peer).close()


class Tcp(Shm):
    """A connection over loopback for each pair: the member of higher rank connects."""

    def make(self, engine: Engine) -> Fabric | None:
        from spindle_core.fabric.tcp import TcpFabric

        self.server = socket.create_server(("127.0.0.1", 0), backlog=self.nodes)
        return TcpFabric(self.rank, self.nodes, engine.bell_fd)

    def offer(self, engine: Engine, epoch: Epoch) -> Offer:
        values = {"port": self.server.getsockname()[1], "layout_hash": epoch.layout_hash(), "row_size": epoch.row.size,
                  "incarnation": engine.incarnation}
        return values, []

    def attach(self, epoch: Epoch, offers: dict[int, Offer]) -> None:
        with self.server:
            for peer, (values, _) in offers.items():
                if peer < self.rank:
                    end = socket.create_connection(("127.0.0.1", values["port"]), CONNECT_TIMEOUT_S)
                    end.sendall(bytes([self.rank]))
                    self._take(epoch, peer, end, values)
            self.server.settimeout(CONNECT_TIMEOUT_S)
            for _ in range(self.rank + 1, self.nodes):
                end, _ = self.server.accept()
                end.settimeout(CONNECT_TIMEOUT_S)
                [peer] = end.recv(1)
                self._take(epoch, peer, end, offers[peer][0])

    @staticmethod
    def _take(epoch: Epoch, peer: int, end: socket.socket, values: dict[str, Any]) -> None:
        epoch.attach_stream(peer, end.detach(), values["incarnation"], values["layout_hash"], values["row_size"])


class Verbs(Shm):
    """A reliable connection for each pair through the RDMA device, which loops back what is for its own host."""

    def make(self, engine: Engine) -> Fabric | None:
        from spindle_core.fabric.verbs import VerbsFabric

        return VerbsFabric(self.rank, self.nodes, engine.bell_fd)

    def offer(self, engine: Engine, epoch: Epoch) -> Offer:
        values = {"layout_hash": epoch.layout_hash(), "row_size": epoch.row.size, "incarnation": engine.incarnation,
                  PRIVATE: {str(peer): epoch.verbs_address(peer).hex() for peer in range(self.nodes)
                            if peer != self.rank}}
        return values, []

    def attach(self, epoch: Epoch, offers: dict[int, Offer]) -> None:
        for peer, (values, _) in offers.items():
            epoch.attach_verbs(peer, bytes.fromhex(values[PRIVATE]), values["incarnation"], values["layout_hash"],
                               values["row_size"])


REACHES = {"shm": Shm, "tcp": Tcp, "verbs": Verbs}
