"""What systemd is told: that the node is ready, what it does, and that it makes progress.

Why the watchdog looks at two threads: an event loop that answers proves nothing about the predicate thread, which
carries the messages. A node whose predicate thread stands still is of no use, but would look alive for ever.

Rules:
- A sign of life (WATCHDOG=1) goes out from the event loop at half of the interval that systemd asks for, and only if
  the predicate thread has made a pass since it was rung at the sign before. So a hang of either ends the signs after at
  most half an interval, and systemd acts one interval later.
- Ringing costs a sleeping thread one wake-up; nothing is rung unless somebody asks for signs of life.
- Without NOTIFY_SOCKET there is nobody to tell, and all of this does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle_core.engine import Engine

SEND_TIMEOUT_S = 1.0
LOG = logging.getLogger("spindle.daemon")


class ServiceManager:
    """The service manager that started this process, see sd_notify(3), or nobody."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path[:1] == "@" else path if path[:1] == "/" else ""
        self.watchdog_s = _watchdog_s(environment) if self._address else 0.0  # 0: nobody asks for signs of life

    def tell(self, *lines: str) -> None:
        """Lines as READY=1, in one datagram."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(SEND_TIMEOUT_S)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            LOG.warning("systemd can't be told %s at %s: %s", lines[0], self._address.replace("\0", "@"), error)

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self.tell(f"STATUS={text}")


def _watchdog_s(environment: Mapping[str, str]) -> float:
    interval_us, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not interval_us.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(interval_us) / 1e6


class Watchdog:
    """Signs of life of this process; between two lives of a node, those of the event loop alone. For the loop's thread.
    """

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self._engine: Engine | None = None
        self._passes = -1  # that the engine had made when it was rung
        self._complained = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on. Idempotent; nothing if nobody asks for it."""
        if self._timer is None and self._manager.watchdog_s > 0:
            self._look()

    def watch(self, engine: Engine | None) -> None:
        """This engine has to make progress from now on; None: there is none at present."""
        self._engine, self._passes, self._complained = engine, -1, False

    def stop(self) -> None:
        """No more signs. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _look(self) -> None:
        if self._progress():
            self._manager.tell("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._manager.watchdog_s / 2, self._look)

    def _progress(self) -> bool:
        """Whether the predicate thread has moved since it was rung last; rings it again."""
        engine = self._engine
        if engine is None:
            return True
        counters = engine.counters.snapshot()
        passes = counters["laps"] + counters["sleeps"]
        moved = passes != self._passes
        if moved:
            self._complained = False
        elif not self._complained:
            self._complained = True
            LOG.error("the predicate thread has made no pass for %.3g s although it was rung: no sign of life goes to "
                      "systemd until it does", self._manager.watchdog_s / 2)
        self._passes = passes
        os.eventfd_write(engine.bell_fd, 1)
        return moved
