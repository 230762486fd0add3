"""What costs are measured on: views and connections of one process, and threads that have a processor of their own."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spindle_core.engine import Engine, SubgroupSpec, Switches
from spindle_core.epoch import Epoch
from spindle_core.fabric.tcp import TcpFabric


def median(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


def mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)


def words(n: int) -> memoryview:
    return memoryview(bytearray(8 * n)).cast("Q")


def cores() -> tuple[int, int]:
    """Two processors that this process may use; the same one twice where there is one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def apart() -> float:
    """The share of pairs of threads that are on different cores, where there are more threads than cores."""
    return 1 - 1 / len(os.sched_getaffinity(0))


def together(
    here: Callable[[], Any], there: Callable[[], Any], places: tuple[int, int] | None = None
) -> tuple[Any, Any]:
    """What both return, each on a thread and a processor of its own."""
    results: list[Any] = [None, None]
    failures: list[BaseException] = []

    def run(k: int, function: Callable[[], Any], place: int) -> None:
        try:
            os.sched_setaffinity(0, {place})  # of this thread alone
            results[k] = function()
        except BaseException as error:
            failures.append(error)

    pairs = zip((here, there), places or cores(), strict=True)
    threads = [threading.Thread(target=run, args=(k, *pair), daemon=True) for k, pair in enumerate(pairs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results[0], results[1]


@contextmanager
def view(n: int, topics: int = 1, *, window: int = 128, size: int = 16, fabric: str = "shm"
         ) -> Iterator[tuple[list[Engine], list[Epoch]]]:  # fmt: skip
    """A view of n members, all of them here, none of them with a thread that runs."""
    members = tuple(range(n))
    specs = [SubgroupSpec(t + 1, members, members, window, size) for t in range(topics)]
    engines = [Engine(rank + 1, switches=Switches(skip_idle=False, exchange_first=False)) for rank in members]
    epochs = []
    for rank, engine in enumerate(engines):
        made = TcpFabric(rank, n, engine.bell_fd) if fabric == "tcp" else None
        epochs.append(engine.new_epoch(1, rank, tuple(range(1, n + 1)), specs, made))
    try:
        for one in members:
            for other in range(one):
                if fabric == "tcp":
                    for (a, b), end in zip(((one, other), (other, one)), connection(), strict=True):
                        epochs[a].attach_stream(
                            b, end, engines[b].incarnation, epochs[b].layout_hash(), epochs[b].row.size)  # fmt: skip
                else:
                    for a, b in ((one, other), (other, one)):
                        peer = engines[b]
                        epochs[a].attach_peer(
                            b, os.dup(epochs[b].row.fd), os.dup(peer.bell.fd), os.dup(peer.bell_fd))  # fmt: skip
        for engine, epoch in zip(engines, epochs, strict=True):
            engine.install(epoch)
            for _ in range(20):
                engine.step_once()
        yield engines, epochs
    finally:
        for engine in engines:
            engine.stop(drain_s=0)


def connection() -> tuple[int, int]:
    """Both ends of one over loopback, as descriptors."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one.detach(), other.detach()


@contextmanager
def two_ends(row_size: int) -> Iterator[tuple[TcpFabric, TcpFabric]]:
    """Two fabrics over one connection."""
    pair = TcpFabric(0, 2), TcpFabric(1, 2)
    try:
        for rank, (fabric, end) in enumerate(zip(pair, connection(), strict=True)):
            fabric.make_row(f"measure-{rank}", row_size)
            fabric.connect(1 - rank, end)
        yield pair
    finally:
        for fabric in pair:
            fabric.close()
