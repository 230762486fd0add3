"""What a writer has promised, and whether it keeps to it: its deadline, and signs of life.

Two look at the lease: the program here, for the writer's own status, and the writer's node, which says in the topic's
order that it has run out (`spindle.topics.leases`). A writer that is alive by itself (Liveliness.Automatic) gives its
signs from here: none comes from a program that is stopped.

A deadline that a writer misses is its own to know, too: with exclusive ownership it says so in the order, so that its
instance is free for another at the same place for all readers (`dds.standing`).
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from dds import policies
from dds.deadlines import Deadlines
from dds.exceptions import DDSException
from dds.instances import KEYLESS_HANDLE, LAPSES, MISSES_DEADLINE, REVIVES, Written
from dds.qos import Qos
from dds.writing import send
from spindle.group.leases import Lease

if TYPE_CHECKING:
    from dds.contracts import AWriter
    from dds.links import WriterLink
    from dds.matching import Runtime

AUTOMATIC, BY_PARTICIPANT = 0, 1  # policies.liveliness_kind()
SIGNS = 4  # while a lease runs


def lease_of(qos: Qos) -> Lease | None:
    """What the node is asked to watch."""
    duration = policies.lease_ns(qos)
    return Lease(duration, LAPSES, REVIVES) if duration else None


class Vigil:
    """Over one writer with the Qos `offered`. Begins with start().

    hears_writes  it has to be told of each write
    """

    def __init__(self, writer: AWriter, runtime: Runtime, link: WriterLink, written: Written | None, offered: Qos
                 ) -> None:
        self._writer = weakref.ref(writer)
        self._runtime = runtime
        self._link = link
        self._written = written
        self._exclusive = policies.is_exclusive(offered)
        self._lease_ns = policies.lease_ns(offered)
        self._kind = policies.liveliness_kind(offered)
        self._lock = threading.Lock()
        period = policies.deadline_ns(offered)
        self._deadlines = Deadlines(period) if period else None
        self._sign_ns = time.monotonic_ns()  # the last one that counts for this writer
        self._lost = False
        self.hears_writes = bool(period) or (bool(self._lease_ns) and self._kind != AUTOMATIC)

    @staticmethod
    def is_needed(offered: Qos) -> bool:
        return bool(policies.deadline_ns(offered) or policies.lease_ns(offered))

    def start(self) -> None:
        """Once the writer is complete."""
        if self._lease_ns and self._kind == BY_PARTICIPANT:
            self._runtime.vigils.add(self)
        self._runtime.alarms.look(self)

    # --- what the program does

    def written(self, instance: int) -> None:
        """A sample of this instance was written."""
        now, first = time.monotonic_ns(), False
        if self._deadlines is not None:
            with self._lock:
                first = not len(self._deadlines)
                self._deadlines.written(instance, now)
        if self._lease_ns:
            self._sign(now)
        if first:
            self._runtime.alarms.look(self)

    def ended(self, instance: int) -> None:
        """The writer has no more to say about it."""
        if self._deadlines is not None:
            with self._lock:
                self._deadlines.ended(instance)

    def assert_liveliness(self) -> None:
        """The program says that the writer lives; with Liveliness.ManualByParticipant, that it lives itself."""
        if self._lease_ns and self._kind != AUTOMATIC:
            self._sign(time.monotonic_ns())  # of the other manual writers of the participant, too
            self._link.handle.give_sign_of_life()

    def _sign(self, now_ns: int) -> None:
        """The program has done something that shows that the writer lives."""
        self.lives(now_ns)
        if self._kind == BY_PARTICIPANT:
            for one in list(self._runtime.vigils):
                if one is not self:
                    one.lives(now_ns)
                    one._link.handle.give_sign_of_life()

    def lives(self, now_ns: int) -> None:
        """The lease begins anew."""
        self._sign_ns = now_ns
        if self._lost:
            self._lost = False
            self._runtime.alarms.look(self)

    # --- what time does

    def _on_time(self) -> float | None:
        writer = self._writer()
        if writer is None or not writer._open:
            return None
        now = time.monotonic_ns()
        times = [self._look_at_deadlines(writer, now), self._look_at_lease(writer, now)]
        following = [one for one in times if one is not None]
        return max(0.001, (min(following) - now) / 1e9) if following else None

    def _look_at_deadlines(self, writer: Any, now: int) -> int | None:
        if self._deadlines is None:
            return None
        with self._lock:
            missed, following = self._deadlines.missed(now), self._deadlines.next_ns
        if missed:
            writer._misses(missed)
        for instance, _ in missed if self._exclusive else ():
            payload = b"" if instance == KEYLESS_HANDLE or self._written is None else self._written.payload(instance)
            if payload is None:
                continue
            try:
                send(self._link, payload, None, 0.0, MISSES_DEADLINE)
            except DDSException:
                pass  # no room: it says so when the next period has passed
        return following

    def _look_at_lease(self, writer: Any, now: int) -> int | None:
        if not self._lease_ns:
            return None
        if self._kind == AUTOMATIC:
            self._link.handle.give_sign_of_life()
            return now + self._lease_ns // SIGNS
        if not self._lost and now - self._sign_ns >= self._lease_ns:
            self._lost = True
            writer._loses_liveliness()
        return None if self._lost else self._sign_ns + self._lease_ns


__all__ = ["Vigil", "lease_of"]
