"""The production engine, stepped by the world: its predicate thread is one more of those that take turns.

What `spindle_core.thread` does around a pass is done here: announcing sleep before the last look, waking when rung.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Any

from spindle_core.engine import Engine
from spindle_lab.whole.system import REAL_EPOLL
from spindle_lab.whole.turns import Waiter

if TYPE_CHECKING:
    from spindle_lab.whole.system import Process, System


class SimEngine(Engine):
    """`spindle_core.engine.Engine` in a run."""

    system: System

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.process: Process = self.system.current
        self.running = False
        self.waiter = Waiter()  # while the engine sleeps, its deadline is the next heartbeat
        self.waiter.runnable = True
        # What the predicate thread sleeps at, edge-triggered as there: its own bell, and the bells that others ring.
        with self.system.plenty():
            self.edges = REAL_EPOLL()
        self.waiter.edges_fd = self.edges.fileno()
        for fd in (self.bell_fd, self.all_fd):
            self.edges.register(fd, select.EPOLLIN | select.EPOLLET)
        self.waits: list[int] = []
        self.node: Any = None  # the node that has this engine, once it serves

    def start(self) -> None:
        """The node's engine begins to run."""
        self.running = True
        self.process.engines.append(self)
        self.process.waiters.append(self.waiter)
        self.system.watch(self.edges.fileno(), self.waiter)

    def hear(self, fd: int) -> None:
        """As the engine's."""
        super().hear(fd)
        self.edges.register(fd, select.EPOLLIN | select.EPOLLET)

    def unhear(self, fd: int) -> None:
        """As the engine's."""
        super().unhear(fd)
        self.edges.unregister(fd)

    def stop(self, **more: Any) -> None:
        """The node's engine has ended."""
        if self.running:
            self.running = False
            self.process.engines.remove(self)
            self.process.waiters.remove(self.waiter)
            self.system.unwatch(self.edges.fileno())
            self._unwatch()
        super().stop(**more)

    def install(self, epoch: Any) -> Any:
        """As the engine's; what its fabric waits for wakes it, too."""
        unsent = super().install(epoch)
        self._unwatch()
        if self.running and epoch.fabric.wait_fd >= 0:
            with self.system.plenty():
                fd = os.dup(epoch.fabric.wait_fd)
            self.waits.append(fd)
            self.system.watch(fd, self.waiter)
        self.wake()
        return unsent

    def _unwatch(self) -> None:
        for fd in self.waits:
            self.system.unwatch(fd)
            os.close(fd)
        self.waits.clear()

    def wake(self) -> None:
        """It looks again."""
        self.waiter.wake()
