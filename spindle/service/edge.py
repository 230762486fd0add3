"""An edge as a process: what `spindle.service.daemon` runs where the configuration names nodes elsewhere.

Rules: readiness is a line on stdout, as of a node: `spindle: edge ready, domain 0, at /run/spindle/domain-0/edge.sock`.
From then on programs can attach; whether a node serves is another matter, and they are told so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from spindle.edge.edge import Edge
from spindle.security.identity import APPLICATION
from spindle.security.trust import REMIND_S, Trust

if TYPE_CHECKING:
    from pathlib import Path

    from spindle.config.settings import NodeConfig
    from spindle.service.sd_notify import ServiceManager

LOG = logging.getLogger("spindle.daemon")


class Face(Protocol):
    """What the outside sees of a daemon, see `spindle.service.daemon`."""

    manager: ServiceManager

    def edge_ready(self, path: Path) -> None:
        """The edge takes programs."""


async def serve_edge(config: NodeConfig, stopping: asyncio.Event, face: Face) -> None:
    """Runs an edge until `stopping` is set. Raises what keeps it from starting."""
    trust = Trust.of(config, APPLICATION)

    def found(address: str) -> None:
        LOG.info("programs of this host are served by the node at %s", address)
        face.manager.status(f"at the node {address}")

    edge = Edge(config, trust, found)
    reminding = asyncio.ensure_future(_remind(trust))
    try:
        await edge.start()
        face.edge_ready(edge.path)
        told, failed = asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(edge.failed())
        await asyncio.wait({told, failed}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if failed.done():
            failed.result()
        failed.cancel()
    finally:
        reminding.cancel()
        face.manager.tell("STOPPING=1", "STATUS=ending")
        await edge.close()


async def _remind(trust: Trust) -> None:
    """Warns every day while the certificate is about to end, as a node does."""
    while True:
        if warning := trust.ends_soon():
            LOG.warning("%s", warning)
        await asyncio.sleep(REMIND_S)
