"""Nodes of a run: each node id has one life after the other, as a daemon of its own or inside a program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spindle.errors import SpindleError
from spindle.service.daemon import serve
from spindle_lab.whole.embedding import Embedding
from spindle_lab.whole.loop import SimLoop

if TYPE_CHECKING:
    from spindle.applications.attachment import Attachments
    from spindle_lab.whole.system import Process
    from spindle_lab.whole.world import World


class NodeSlot:
    """A node id and its lives."""

    def __init__(self, world: World, node_id: int, host: str) -> None:
        self.world, self.node_id, self.host = world, node_id, host
        self.process: Process | None = None
        self.attachments: Attachments | None = None
        self.stopping: asyncio.Event | None = None
        self.loop: SimLoop | None = None
        self.ends: list[str] = []
        self.wanted = True  # to be there in the end
        self.served = 0  # lives that have taken applications

    @property
    def running(self) -> bool:
        """It has a life that has not ended."""
        return self.process is not None and self.process.alive and self.process.result is None

    @property
    def serving(self) -> bool:
        """It takes applications."""
        return self.running and self.attachments is not None

    def start(self) -> None:
        """A new life."""
        world = self.world
        process = self.process = world.system.process(f"n{self.node_id}", self.host, world.uid)
        self.attachments = self.stopping = None
        config = world.config(self)

        def main() -> None:
            loop = self.loop = SimLoop(world.system, process, world.keep_back)
            self.stopping = asyncio.Event()
            try:
                loop.run(serve(config, self.stopping, self.serves))
                self.ended("left")
            except SpindleError as error:
                self.ended(f"{type(error).__name__}: {error}")

        process.spawn(main)

    def serves(self, attachments: Attachments) -> None:
        """This life takes applications now."""
        world, process = self.world, self.process
        assert process is not None
        self.attachments = attachments
        self.served += 1
        for engine in process.engines:
            engine.node = attachments.node
        world.note(f"{process} serves, view {attachments.node.view().view_id}")
        if world.agreed is not None:
            world.agreed.serves(attachments.node)

    def ended(self, result: str) -> None:
        """This life has ended by itself."""
        process = self.process
        assert process is not None
        process.result = result
        if result != "left":  # what still runs of it ends with the process, and who holds a pidfd of it hears of that
            self.world.system.after(0, lambda: self.world.system.kill(process))
        self.ends.append(result.partition(":")[0])
        self.world.note(f"{process} ends: {result}")
        self.world.check_ended(self)

    def leave(self) -> None:
        """It is told to stop, as by SIGTERM."""
        if self.stopping is not None:
            assert self.process is not None
            self._owes()
            with self.world.system.within(self.process):
                self.stopping.set()

    def _owes(self) -> None:
        """What has been written here by now must still be delivered."""
        for writing in self.world.checks.writings:
            if writing.node is self.process and not self.world.silent:  # it does not wait long for who hangs
                writing.owed = writing.count


class EmbeddedSlot(NodeSlot):
    """A node id of a program that has its node in its own process."""

    program: Embedding | None = None
    lives = 0

    def start(self) -> None:
        """A new life of both."""
        world = self.world
        self.lives += 1  # what one has written is not to be taken for another's
        self.process = world.system.process(f"e{self.node_id}-{self.lives}", self.host, world.uid)
        self.attachments = self.loop = None
        self.program = Embedding(world, self)
        world.programs.append(self.program)

    def serves(self, attachments: Attachments) -> None:
        """The program goes on when it has attached."""
        assert self.process is not None
        self.loop = self.process.loops[-1]
        super().serves(attachments)

    def leave(self) -> None:
        """The program closes its session, and the node leaves with it."""
        if self.program is not None:
            self._owes()
            self.program.leaving = True
