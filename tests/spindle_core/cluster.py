"""Several engines in one process over one host's memory: the smallest real group, driven by hand or by threads.

With a simulated network their rows are as the network says, copied or shared; then by hand only.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.engine import Engine, SubgroupSpec, Switches
from spindle_core.epoch import Epoch
from spindle_core.fabric.sim import SimFabric, SimNetwork
from spindle_core.fabric.tcp import TcpFabric
from spindle_core.inbox import Inbox
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader

STUCK_S = 30.0


def connection(buffer: int = 0) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over loopback, with socket buffers of so many bytes (0: as the system thinks fit)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF) if buffer else ():
            end.setsockopt(socket.SOL_SOCKET, option, buffer)
    return one, other


def asleep(engine: Engine) -> bool:
    """Its predicate thread is, or is about to be, blocked."""
    return engine.bell.view()[32] & 1 == 1


class Cluster:
    """`n` engines, node ids 1..n, with one epoch installed; step by step unless start() is called."""

    def __init__(
        self,
        n: int,
        specs: Sequence[SubgroupSpec] | None = None,
        *,
        window: int = 8,
        size_max: int = 64,
        level: int = 1,
        senders: Sequence[int] | None = None,
        switches: Switches | None = None,
        busy_poll_us: int = 20,
        nice: int = 0,
        realtime: int = 0,
        network: SimNetwork | None = None,
        tcp: bool = False,
        verbs: bool = False,
        tcp_buffer: int = 0,
    ) -> None:
        everybody = tuple(range(n))
        if specs is None:
            sending = tuple(senders if senders is not None else everybody)
            specs = [SubgroupSpec(1, everybody, sending, window, size_max, level)]
        self.n = n
        self.network, self.tcp, self.tcp_buffer = network, tcp, tcp_buffer
        self.verbs = verbs
        self.pairs: list[Any] = []  # of each node, over verbs
        self.engines = [Engine(i + 1, switches=switches, busy_poll_us=busy_poll_us, nice=nice, realtime=realtime)
                        for i in range(n)]
        self.specs = list(specs)
        self.epochs: list[Epoch] = []
        self.logs: dict[tuple[int, int], DeliveryLog] = {}
        self.started = False
        self.install(1, self.specs)

    def prepare(self, epoch: int, specs: Sequence[SubgroupSpec]) -> list[Epoch]:
        """Every node's memory of the next epoch, all exchanged."""
        ids = [e.node_id for e in self.engines]
        if self.network is not None:
            simulated = [e.new_epoch(epoch, i, ids, list(specs), SimFabric(self.network, epoch, i, ids))
                         for i, e in enumerate(self.engines)]
            for i, mine in enumerate(simulated):
                for k, theirs in enumerate(simulated):
                    if i != k:
                        mine.attach_local(k, theirs)
            return simulated
        if self.tcp:
            connected = [e.new_epoch(epoch, i, ids, list(specs), TcpFabric(i, self.n, e.bell_fd))
                         for i, e in enumerate(self.engines)]
            for i, mine in enumerate(connected):
                for k in range(i + 1, self.n):
                    one, other = connection(self.tcp_buffer)
                    layout = mine.layout_hash(), mine.row.size
                    mine.attach_stream(k, one.detach(), self.engines[k].incarnation, *layout)
                    connected[k].attach_stream(i, other.detach(), self.engines[i].incarnation, *layout)
            return connected
        if self.verbs:
            from spindle_core.fabric.verbs import VerbsFabric  # only where it could be built
            from spindle_core.fabric.verbs_pairs import VerbsPairs

            self.pairs = self.pairs or [VerbsPairs() for _ in self.engines]
            reached = [e.new_epoch(epoch, i, ids, list(specs), VerbsFabric(i, self.n, e.bell_fd, pairs=self.pairs[i],
                                                                           epoch=epoch))
                       for i, e in enumerate(self.engines)]
            for i, mine in enumerate(reached):
                for k, theirs in enumerate(reached):
                    if i != k:
                        mine.attach_verbs(k, theirs.verbs_address(i), self.engines[k].incarnation, mine.layout_hash(),
                                          mine.row.size)
            return reached
        epochs = [e.new_epoch(epoch, i, ids, list(specs)) for i, e in enumerate(self.engines)]
        for i, mine in enumerate(epochs):
            for k, theirs in enumerate(epochs):
                if i != k:
                    mine.attach_peer(
                        k,
                        os.dup(theirs.row.fd),
                        os.dup(theirs.bell.fd),
                        os.dup(theirs.bell_fd),
                    )
        return epochs

    def install(self, epoch: int, specs: Sequence[SubgroupSpec]) -> list[dict[int, int]]:
        self.epochs = self.prepare(epoch, specs)
        self.specs = list(specs)
        return [engine.install(e) for engine, e in zip(self.engines, self.epochs, strict=True)]

    def start(self) -> None:
        self.started = True
        for engine in self.engines:
            engine.start()

    def stop(self) -> None:
        for engine in self.engines:
            engine.stop()

    def settle(self, passes_max: int = 100_000) -> int:
        """Steps all engines in turn until nobody has anything to do; returns the passes in which somebody had.

        Bounded in those; what a connection still has on its way is the kernel's affair, for STUCK_S at a time.
        """
        passes, moved_s = 0, time.monotonic()
        while passes < passes_max:
            landed = self.network.land_all() if self.network is not None else 0
            done = any([engine.step_once() for engine in self.engines])
            if done or landed:
                passes, moved_s = passes + 1, time.monotonic()
            elif all(epoch.fabric.drained for epoch in self.epochs):
                return passes
            elif time.monotonic() - moved_s > STUCK_S:
                raise AssertionError(f"nothing has moved for {STUCK_S} s, and not all has arrived")
            else:
                time.sleep(0)
        raise AssertionError(f"not quiet after {passes_max} passes")

    def reader(self, node: int, topic_id: int = 1, *, keep_all: bool = True, from_history: bool = False,
               capacity: int = 1 << 20, hot: int = 64 << 10, keep_history: bool = False,
               large_max: int = 1 << 20) -> LogReader:
        """A reader of a topic on one node (0-based), with the node's log made on first use."""
        engine = self.engines[node]
        log = self.logs.get((node, topic_id))
        if log is None:
            log = self.logs[node, topic_id] = DeliveryLog(
                capacity, hot, keep_history, larges=engine.larges, large_max=large_max)
            engine.bind_log(topic_id, log)
        cursor = Cursor(keep_all, from_history)
        engine.add_reader(topic_id, cursor)
        reader = LogReader(
            Mapping.attach(os.dup(log.mapping.fd)),
            Mapping.attach(os.dup(cursor.mapping.fd), True),
            os.dup(cursor.their_fd),
            Mapping.attach(os.dup(engine.bell.fd)),
            os.dup(engine.bell_fd),
        )
        self.kept = [*getattr(self, "kept", []), cursor]
        return reader

    def writer(self, node: int, topic_id: int = 1, *, slots: int = 16, size_max: int = 64, keep: bool = False
               ) -> InboxWriter:
        """A writer of a topic on one node (0-based). keep: what is in doubt."""
        engine = self.engines[node]
        inbox = Inbox(size_max, slots, 7)
        engine.add_inbox(topic_id, inbox)
        self.kept = [*getattr(self, "kept", []), inbox]
        return InboxWriter(
            Mapping.attach(os.dup(inbox.ring.fd), True),
            Mapping.attach(os.dup(inbox.progress.fd)),
            os.dup(inbox.their_fd),
            Mapping.attach(os.dup(engine.bell.fd)),
            os.dup(engine.bell_fd),
            keep,
        )
