"""The edge of the host without a node: programs there use it, or nodes directly, or both.

It has one life after the other, as a node has; nobody depends on it but programs that know no node of their own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from spindle.config.settings import NodeConfig
from spindle.errors import SpindleError
from spindle.service.edge import serve_edge
from spindle_lab.whole.loop import SimLoop
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.system import Process
    from spindle_lab.whole.world import World


class Silent:
    """A service manager that isn't there."""

    def tell(self, *lines: str) -> None: ...

    def status(self, text: str) -> None: ...


class EdgeSlot:
    """The edge and its lives."""

    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host
        self.manager = Silent()
        self.process: Process | None = None
        self.stopping: asyncio.Event | None = None
        self.leaving = False
        self.loop: SimLoop | None = None

    @property
    def running(self) -> bool:
        """It has a life that has not ended."""
        return self.process is not None and self.process.alive and self.process.result is None

    @property
    def path(self) -> Path:
        """Of its socket."""
        return self.world.runtime_dir(self.host) / "domain-0" / "edge.sock"

    def start(self) -> None:
        """A new life, unless there is one, or it was told to leave for good."""
        if self.running or self.leaving:
            return
        world = self.world
        process = self.process = world.system.process("edge", self.host, world.uid)
        self.stopping = None
        nodes = [world.endpoint(one.node_id) for one in world.nodes]
        world.system.random.shuffle(nodes)
        config = NodeConfig(runtime_dir=world.runtime_dir(self.host), edge_nodes=tuple(nodes), plain=True)

        def main() -> None:
            loop = self.loop = SimLoop(world.system, process, world.keep_back)
            self.stopping = asyncio.Event()
            if self.leaving:  # it was told before it had begun
                self.stopping.set()
            try:
                loop.run(serve_edge(config, self.stopping, self))  # type: ignore[arg-type]
                process.result = "left"
            except SpindleError as error:
                process.result = str(error)
                raise Violation("E1", f"the edge ends: {type(error).__name__}: {error}") from error
            world.note("the edge has ended")

        process.spawn(main)

    def edge_ready(self, path: Path) -> None:
        """It takes programs."""
        self.world.note("the edge takes programs")

    def kill(self) -> None:
        """kill -9, and a new life soon."""
        world, system = self.world, self.world.system
        if self.running and self.process is not None:
            world.note("kill -9 of the edge")
            world.met("an edge dies")
            system.kill(self.process)
        system.after(system.random.randrange(100_000_000), self.start)

    def leave(self) -> None:
        """It is told to stop, as by SIGTERM, and doesn't come again."""
        self.leaving = True
        if self.running and self.stopping is not None and self.process is not None:
            with self.world.system.within(self.process):
                self.stopping.set()
