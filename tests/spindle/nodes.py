"""Nodes of one group, on one loop in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from spindle.config.settings import NodeConfig
from spindle.node.node import Node

BOUND_S = 60.0


def run_with_nodes(runtime_dir: Path, count: int, body: Callable[..., Awaitable[None]]) -> None:
    """Starts so many nodes, awaits body(*nodes) with a bound, and stops them whatever came of it."""

    async def inside() -> None:
        nodes = [Node(NodeConfig(runtime_dir=runtime_dir, join_timeout_s=20.0)) for _ in range(count)]
        try:
            for node in nodes:
                await node.start()
            await asyncio.wait_for(body(*nodes), BOUND_S)
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))

    asyncio.run(inside())
