"""Nodes of one process that reach each other over an RDMA device: each has a runtime directory of its own, so it counts
as a host of its own. The guests of `make rdma-test` have such a device, and this address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from spindle.config.settings import NodeConfig
from spindle.node.node import Node

BOUND_S = 60.0  # of each step: these devices are slow
HOST = "10.77.0.1"
PORT = 7420  # of the first node


def config_of(directory: Path, number: int, of: int, suspect_timeout_s: float = 8.0) -> NodeConfig:
    """Of node `number` of so many, from 1 on."""
    own = directory / str(number)
    own.mkdir(exist_ok=True)
    contacts = tuple(f"{HOST}:{PORT + k}" for k in range(of))
    return NodeConfig(runtime_dir=own, node_id=number, listen=contacts[number - 1], contacts=contacts, plain=True,
                      fabric="verbs", join_timeout_s=BOUND_S, suspect_timeout_s=suspect_timeout_s)


@contextlib.asynccontextmanager
async def group(directory: Path, of: int, suspect_timeout_s: float = 8.0) -> AsyncIterator[list[Node]]:
    """So many nodes in one view."""
    nodes = [Node(config_of(directory, number, of, suspect_timeout_s)) for number in range(1, of + 1)]
    try:
        await asyncio.gather(*[node.start() for node in nodes])
        await until(lambda: all(len(node.view().node_ids) == of for node in nodes))
        yield nodes
    finally:
        await asyncio.gather(*[node.stop() for node in nodes])


async def until(condition: Callable[[], Any]) -> None:
    """Raises TimeoutError."""
    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(look(), BOUND_S)
