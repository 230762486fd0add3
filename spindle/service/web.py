"""The cockpit of a daemon: a process beside it, started when the node is a member and ended with it.

Why a process: the page shows what one asks for, and may take time, memory and descriptors for it; a node has none to
spare. It attaches like any application, so the node needs nothing of it, and goes on whatever becomes of it.

Rules: a cockpit that ends by itself is started again, after a pause that grows; that it can't run is logged and costs
the node nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import sys
import time
from typing import TYPE_CHECKING

from spindle.errors import ConfigError
from spindle.programs import module_arguments
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig

PAUSE_S, PAUSE_MAX_S = 1.0, 60.0  # before it is started again; doubles with each life that was short
SETTLED_S = 60.0  # a life that lasted so long was no failed attempt
END_TIMEOUT_S = 3.0
LOG = logging.getLogger("spindle.daemon")


def check_installed() -> None:
    """Raises ConfigError if what it takes is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError("[web] listen: the cockpit takes the package aiohttp, which is not installed: "
                          "pip install aiohttp, or leave [web] listen out")


class CockpitProcess:
    """Of one life of the node."""

    def __init__(self, config: NodeConfig, node_id: int) -> None:
        from spindle.config.reference import toml_text

        self._told = json.dumps({"config": toml_text(config), "node_id": node_id}).encode() + b"\n"
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Ends it. Idempotent."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self) -> None:
        pause_s = PAUSE_S
        while True:
            started_s = time.monotonic()
            try:
                code = await self._run()
            except OSError as error:
                LOG.warning("the cockpit can't be started: %s", error)
            else:
                if code in (ConfigError.exit_code, 2):
                    LOG.warning("the cockpit can't run with this configuration; the node goes on without")
                    return
                LOG.warning("the cockpit has ended with exit code %d", code)
            if time.monotonic() - started_s > SETTLED_S:
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _run(self) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *module_arguments("spindle.cockpit"), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL, start_new_session=True)
        assert process.stdin is not None
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(self._told)
                await process.stdin.drain()
            return await process.wait()
        finally:
            process.stdin.close()  # this ends it
            if process.returncode is None:
                await self._end(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            await within(END_TIMEOUT_S, process.wait())
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


__all__ = ["CockpitProcess", "check_installed"]
