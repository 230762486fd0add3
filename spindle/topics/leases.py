"""Leases: writers that have promised a sign of life at times, and what is said in their name when there is none.

Why the node: whoever hangs can't say so itself, and that it does must be found at the same place in the order by all
readers. So the writer's node says it, as one more message of that writer.

Rules: a lease never runs out early. The node looks at its writers several times while a lease runs; time counts from
the look that has seen the last sign, so what delays the node itself delays the end of the lease. A writer that lives
again, and has nothing to say, is said to be alive; one that has, shows it by its message.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.group.leases import Lease
    from spindle.topics.ports import WriterPort
    from spindle_core.engine import Engine

LOOKS = 5  # while a lease runs


@dataclasses.dataclass(eq=False)
class _Watched:
    port: WriterPort
    lease: Lease
    signs: tuple[int, int]
    seen_at: float  # time of the loop
    timer: asyncio.TimerHandle | None = None
    lapsed: bool = False


class Leases:
    """Those of one node's writers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watched: dict[WriterPort, _Watched] = {}

    def watch(self, port: WriterPort, lease: Lease) -> None:
        """Its lease begins now."""
        now = asyncio.get_running_loop().time()
        watched = self._watched[port] = _Watched(port, lease, port.inbox.signs_of_life, now)
        self._later(watched)

    def forget(self, port: WriterPort) -> None:
        """Nothing is said in its name any more. Idempotent."""
        watched = self._watched.pop(port, None)
        if watched is not None and watched.timer is not None:
            watched.timer.cancel()

    def stop(self) -> None:
        """Forgets all."""
        for port in list(self._watched):
            self.forget(port)

    def _later(self, watched: _Watched) -> None:
        loop = asyncio.get_running_loop()
        watched.timer = loop.call_later(watched.lease.duration_ns / 1e9 / LOOKS, self._look, watched)

    def _look(self, watched: _Watched) -> None:
        now, signs = asyncio.get_running_loop().time(), watched.port.inbox.signs_of_life
        if signs != watched.signs:
            committed = signs[0] != watched.signs[0]
            watched.signs, watched.seen_at = signs, now
            if watched.lapsed:
                watched.lapsed = False
                if not committed:
                    self._say(watched, watched.lease.revival)
        elif not watched.lapsed and now - watched.seen_at >= watched.lease.duration_ns / 1e9:
            watched.lapsed = True
            self._say(watched, watched.lease.lapse)
        self._later(watched)

    def _say(self, watched: _Watched, tag: int) -> None:
        with self._engine.parked():
            watched.port.inbox.say(tag)


__all__ = ["Leases"]
