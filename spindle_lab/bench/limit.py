"""`bench limit`: what the hardware allows for a multicast's work. The loops and the why are in bare.pyx."""

from __future__ import annotations

import os
from typing import Any

from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Crew
from spindle_lab.bench.results import median_run

RING_BYTES = 640 * 1024  # of one sender: three of them, and what the loops touch besides, stay in the cache
STALL_TIMEOUT_S = 10.0


def window_for(size: int) -> int:
    """Slots of a ring: the largest power of two that fits RING_BYTES, at least 8."""
    slots = max(8, RING_BYTES // ((size + 63) // 64 * 64))
    return 1 << (min(slots, 4096).bit_length() - 1)


def count_for(size: int) -> int:
    """Messages per sender for a run of about half a second."""
    return max(2000, min(2_000_000, 1_200_000_000 // max(size, 512)))


def run_once(
    nodes: int = 3, size: int = 1024, *, senders: int | None = None, count: int = 0, window: int = 0
) -> dict[str, Any]:
    """One run of `nodes` processes of which the first `senders` send `count` messages of `size` bytes each.

    Returns messages_per_s and bytes_per_s as delivered at each node, cpu_s of all processes together. Raises
    BenchFailed, also when a sum differs from what was filled.
    """
    from spindle_core.memory import Mapping
    from spindle_lab.bench import bare

    senders = nodes if senders is None else senders
    count = count or count_for(size)
    window = window or window_for(size)
    config = {
        "nodes": nodes,
        "size": size,
        "count": count,
        "window": window,
        "sending": [rank < senders for rank in range(nodes)],
        "batch_max": max(1, window // 8),
    }
    rows = [Mapping.create(f"limit-{rank}", bare.row_size(window, size)) for rank in range(nodes)]
    try:
        with Crew("limit", [{**config, "rank": rank} for rank in range(nodes)]) as crew:
            for worker in crew.workers:
                worker.channel.send({"event": "rows"}, tuple(row.fd for row in rows))
            crew.gather("ready")
            crew.broadcast({"event": "go"})
            done = crew.gather("done", 60.0)
    finally:
        for row in rows:
            row.close()
    filled = sum(result["filled_sum"] for result in done) % 2**64
    if any(result["received_sum"] != filled for result in done):
        raise BenchFailed("the bare loops read other bytes than they filled: these numbers would mean nothing")
    elapsed_s = (max(r["end_ns"] for r in done) - min(r["start_ns"] for r in done)) / 1e9
    rate = senders * count / elapsed_s
    return {
        "nodes": nodes,
        "size": size,
        "senders": senders,
        "count": count,
        "window": window,
        "elapsed_s": round(elapsed_s, 4),
        "messages_per_s": round(rate),
        "bytes_per_s": round(rate * size),
        "cpu_s": round(sum(r["cpu_s"] for r in done), 3),
    }


def run(nodes: int, size: int, *, senders: int | None, count: int, window: int, repeat: int) -> dict[str, Any]:
    """The median of `repeat` runs."""
    return median_run([run_once(nodes, size, senders=senders, count=count, window=window) for _ in range(repeat)])


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One process of the limit."""
    from spindle_core.memory import Mapping
    from spindle_lab.bench import bare
    from spindle_lab.bench.worker import cpu_s

    _, fds = channel.receive(30.0)
    rows = [Mapping.attach(os.dup(fd), writable=True) for fd in fds]
    views = [row.view() for row in rows]
    # Page tables are filled before the clock starts; what is there stays as it is.
    for view in views:
        bytes(view[::4096])
    channel.send({"event": "ready"})
    channel.receive(60.0)
    before_s = cpu_s()
    result = bare.run_limit(
        views,
        config["rank"],
        config["sending"],
        config["count"],
        config["size"],
        config["window"],
        config["batch_max"],
        int(STALL_TIMEOUT_S * 1e9),
    )
    channel.send({"event": "done", "cpu_s": cpu_s() - before_s, **result})
    channel.receive(60.0)
