"""Nodes of one group, on one loop in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from spindle.config.settings import NodeConfig
from spindle.node.node import Node

BOUND_S = 60.0


def run_with_nodes(runtime_dir: Path, count: int, body: Callable[..., Awaitable[None]]) -> None:
    """Starts so many nodes, awaits body(*nodes) once all of them have the view of all, and stops them whatever came of
    it. All of that within a bound."""

    async def inside() -> None:
        nodes = [Node(NodeConfig(runtime_dir=runtime_dir, join_timeout_s=20.0)) for _ in range(count)]

        async def bounded() -> None:
            for node in nodes:
                await node.start()
            while any(len(node.view().node_ids) < count for node in nodes):  # the newest may have it first
                await asyncio.sleep(0.001)
            await body(*nodes)

        try:
            await asyncio.wait_for(bounded(), BOUND_S)
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))

    asyncio.run(inside())
