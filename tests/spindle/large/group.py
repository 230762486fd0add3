"""Real nodes on one loop, on one host or on several, and large samples for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from spindle.config.settings import NodeConfig
from spindle.errors import NodeStopped
from spindle.large import memory
from spindle.node.node import Node
from tests.spindle.links.group import descriptors_of
from tests.support import free_ports

BOUND_S = 60.0
TOPIC = "images"
PERIOD = 4093  # bytes, of pattern()


def run_on_hosts(directory: Path, hosts: Sequence[Sequence[int]], body: Callable[..., Awaitable[None]],
                 **settings: Any) -> None:
    """Starts nodes with these ids, those of one sequence on one host, awaits body(*nodes) once all have the view of
    all, and stops them. Hosts are runtime directories, between which it is TCP. Nothing may be left open."""
    ids = [node_id for host in hosts for node_id in host]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(ids))] if len(hosts) > 1 else []
    problems: list[dict[str, Any]] = []

    def node(node_id: int, host: int) -> Node:
        place = directory / f"host-{host}"
        place.mkdir(exist_ok=True)
        network = {"listen": addresses[ids.index(node_id)], "contacts": tuple(addresses)} if addresses else {}
        return Node(NodeConfig(runtime_dir=place, node_id=node_id, join_timeout_s=30.0, **network, **settings))

    async def inside() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        nodes = [node(node_id, host) for host, here in enumerate(hosts) for node_id in here]

        async def bounded() -> None:
            await asyncio.gather(*(node.start() for node in nodes))
            while any(len(node.view().node_ids) < len(nodes) for node in nodes):
                await asyncio.sleep(0.001)
            await body(*nodes)

        try:
            await asyncio.wait_for(bounded(), BOUND_S)
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))

    gc.collect()
    before = descriptors_of(os.getpid())
    asyncio.run(inside())
    assert problems == []
    gc.collect()
    after = descriptors_of(os.getpid())
    assert after == before, Counter(after) - Counter(before)


def sealed(content: bytes) -> int:
    """A large sample's memory with this content."""
    fd = memory.make(len(content))
    with memory.filling(fd, len(content)) as view:
        view[:] = content
    memory.seal(fd)
    return fd


def content_of(fd: int, size: int = -1) -> bytes:
    """What is in a sample that nobody can change; closes it. `size`: unless it is that of its memory."""
    try:
        size = os.fstat(fd).st_size if size < 0 else size
        memory.check(fd, size)
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def pattern(size: int, seed: int = 0) -> bytes:
    """No two of its blocks are alike; it begins anew every PERIOD bytes."""
    block = bytes((seed * 31 + number * 7 + (number >> 8)) & 255 for number in range(PERIOD))
    return (block * (size // len(block) + 1))[:size]


async def bring(node: Node, large_id: int, size: int, sources: Sequence[int], urgent: bool = False) -> bytes:
    """Has a node bring it and keep it; what it then has."""
    brought = await node.large.bring(large_id, size, TOPIC, sources, urgent)
    node.large.store.put(large_id, brought.fd, size, TOPIC)
    return content_of(node.large.store.open(large_id), size)


async def until(condition: Callable[[], Any]) -> None:
    """Waits for it, on the loop."""
    while not condition():
        await asyncio.sleep(0.001)


@contextlib.contextmanager
def stopping(tasks: Sequence[asyncio.Task[Any]]) -> Iterator[None]:
    """Those that are left in the end are cancelled."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def crash(node: Node) -> Any:
    """Ends it at once, as by a fault."""
    return node.abandon(NodeStopped("it crashes"))
