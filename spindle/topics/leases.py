"""Leases: writers that have promised a sign of life at times, and what is said in their name when there is none.

Why the node: whoever hangs can't say so itself, and that it does must be found at the same place in the order by all
readers. So the writer's node says it, as one more message of that writer.

Rules: a lease never runs out early. The node looks at its writers several times while a lease runs, at all with the
same lease in one round. Only time in which it did look counts: a node that was busy or stopped, perhaps together with
its writers, gives them as much time as one that looks for the first time. Rounds cost a bounded share of the node's
time; where there are more writers than that allows for, leases run out later. A writer that lives again, and has
nothing to say, is said to be alive; one that has, shows it by its message. Who begins to read is told once more of
those that are not alive.
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
COUNTED = 2  # of what passed since the last round at most so many times what was planned
PAUSE = 9  # at least so many times as long as a round takes


@dataclasses.dataclass(eq=False)
class _Watched:
    """silent_s  how long it has given no sign, as far as that was looked at
    lapsed    it was said to give none
    unsure    another node may have said so: the writer came from there
    repeat    to be said once more
    """

    port: WriterPort
    lease: Lease
    signs: tuple[int, int]
    silent_s: float
    lapsed: bool = False
    unsure: bool = False
    repeat: bool = False


class _Round:
    """The writers whose leases have one duration."""

    def __init__(self, engine: Engine, duration_s: float) -> None:
        self._engine = engine
        self._duration_s = duration_s
        self._planned_s = duration_s / LOOKS
        self._looked_at = asyncio.get_running_loop().time()
        self._timer: asyncio.TimerHandle | None = None
        self.watched: dict[WriterPort, _Watched] = {}
        self._later()

    def add(self, port: WriterPort, lease: Lease) -> None:
        gone_s = asyncio.get_running_loop().time() - self._looked_at  # since a round that had nothing to do with it
        self.watched[port] = _Watched(port, lease, port.inbox.signs_of_life, -gone_s, unsure=port.relayed != 0)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._planned_s, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        passed_s, self._looked_at = min(now - self._looked_at, COUNTED * self._planned_s), now
        words = [(one.port, tag) for one in self.watched.values() if (tag := self._judge(one, passed_s))]
        if words:
            with self._engine.parked():
                for port, tag in words:
                    port.inbox.say(tag)
        self._planned_s = max(self._duration_s / LOOKS, PAUSE * (loop.time() - now))
        self._later()

    def _judge(self, one: _Watched, passed_s: float) -> int:
        """The tag of what is to be said of a writer, 0 if nothing is."""
        signs = one.port.inbox.signs_of_life
        repeat, one.repeat = one.repeat, False
        if signs != one.signs:
            committed, doubtful = signs[0] != one.signs[0], one.lapsed or one.unsure
            one.signs, one.silent_s, one.lapsed, one.unsure = signs, 0.0, False, False
            return one.lease.revival if doubtful and not committed else 0
        one.silent_s += passed_s
        if one.lapsed:
            return one.lease.lapse if repeat else 0
        if one.silent_s < self._duration_s:
            return 0
        one.lapsed = True
        return one.lease.lapse


class Leases:
    """Those of one node's writers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rounds: dict[int, _Round] = {}  # by duration, ns

    def watch(self, port: WriterPort, lease: Lease) -> None:
        """Its lease begins now."""
        found = self._rounds.get(lease.duration_ns)
        if found is None:
            found = self._rounds[lease.duration_ns] = _Round(self._engine, lease.duration_ns / 1e9)
        found.add(port, lease)

    def forget(self, port: WriterPort) -> None:
        """Nothing is said in its name any more. Idempotent."""
        found = self._rounds.get(port.lease.duration_ns) if port.lease is not None else None
        if found is not None and found.watched.pop(port, None) is not None and not found.watched:
            assert port.lease is not None
            self._rounds.pop(port.lease.duration_ns).stop()

    def has_lapsed(self, port: WriterPort) -> bool:
        """True if this writer was said to give no sign of life, and has given none since."""
        found = self._rounds.get(port.lease.duration_ns) if port.lease is not None else None
        watched = None if found is None else found.watched.get(port)
        return watched is not None and watched.lapsed

    def repeat(self, topic: str) -> None:
        """Somebody has begun to read this topic, who can't have heard yet which of its writers are not alive."""
        for one in self._rounds.values():
            for watched in one.watched.values():
                watched.repeat = watched.repeat or watched.port.topic == topic

    def stop(self) -> None:
        """Forgets all."""
        for one in self._rounds.values():
            one.stop()
        self._rounds.clear()


__all__ = ["Leases"]
