"""What a writer has promised, and whether it keeps to it: its deadline, and signs of life.

Two look at the lease: the program here, for the writer's own status, and the writer's node, which says in the topic's
order that it has run out (`spindle.topics.leases`). A writer that is alive by itself (Liveliness.Automatic) gives its
signs from here: none comes from a program that is stopped.

A deadline that a writer misses is its own to know, too: with exclusive ownership it says so in the order, so that its
instance is free for another at the same place for all readers (`dds.readers.standing`). Once for each silence: an idle
topic stays silent.

Rules: nothing but time stands between a writer that is alive by itself and its signs, so they come from a thread on
which nothing of the program runs (`Runtime.signs`). What this says never uses up what the program must be told.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dds.messages.inline_qos import of_writer
from dds.messages.operations import ANNOUNCES_QOS, KEYLESS_HANDLE, LAPSES, MISSES_DEADLINE, REVIVES
from dds.policy import policies
from dds.qos import Qos
from dds.waiting.deadlines import Deadlines
from dds.writers.written import Written
from spindle.group.leases import Lease

if TYPE_CHECKING:
    from dds.contracts import AWriter
    from dds.matching.matching import Runtime
    from dds.writers.link import WriterLink

AUTOMATIC, BY_PARTICIPANT = 0, 1  # policies.liveliness_kind()
SIGNS = 4  # while a lease runs


def lease_of(qos: Qos) -> Lease | None:
    """What the node is asked to watch."""
    duration = policies.lease_ns(qos)
    return Lease(duration, LAPSES, REVIVES) if duration else None


class Vigil:
    """Over one writer with the Qos `offered`. Begins with start().

    say           sends a message with this payload and tag, if there is room at once
    elsewhere     the samples go by another writer of the node's, so that they are no signs of life of this one
    hears_writes  it has to be told of each write
    """

    def __init__(self, writer: AWriter, runtime: Runtime, link: WriterLink, written: Written | None, offered: Qos,
                 say: Callable[[bytes, int, int], None], elsewhere: bool) -> None:
        self._writer = weakref.ref(writer)
        self._runtime = runtime
        self._link = link
        self._written = written
        self._say = say
        self._elsewhere = elsewhere
        self._exclusive = policies.is_exclusive(offered)
        self._inline = of_writer(offered)
        self._lease_ns = policies.lease_ns(offered)
        self._kind = policies.liveliness_kind(offered)
        self._lock = threading.Lock()
        period = policies.deadline_ns(offered)
        self._deadlines = Deadlines(period) if period else None
        self._given_up: set[int] = set()  # instances of which it has said that it missed their deadline
        self._signs = _Signs(self)
        self._sign_ns = time.monotonic_ns()  # the last one that counts for this writer
        self._lost = False
        self.hears_writes = bool(period) or (bool(self._lease_ns) and self._kind != AUTOMATIC)

    @staticmethod
    def is_needed(offered: Qos) -> bool:
        return bool(policies.deadline_ns(offered) or policies.lease_ns(offered))

    def start(self) -> None:
        """Once the writer is complete."""
        if self._lease_ns and self._kind == BY_PARTICIPANT:
            self._runtime.add_vigil(self)
        if self._lease_ns:
            self._runtime.signs.look(self._signs)
        self._runtime.alarms.look(self)

    def change(self, offered: Qos) -> None:
        """The writer goes by this Qos from now on."""
        self._inline = of_writer(offered)
        period = policies.deadline_ns(offered)
        with self._lock:
            if self._deadlines is None or not period:
                self._deadlines = Deadlines(period) if period else None
            else:
                self._deadlines.change(period)
        self.hears_writes = bool(period) or (bool(self._lease_ns) and self._kind != AUTOMATIC)
        self._runtime.alarms.look(self)

    # --- what the program does

    def written(self, instance: int) -> None:
        """A sample of this instance was written."""
        now, first = time.monotonic_ns(), False
        with self._lock:
            if self._deadlines is not None:
                first = not len(self._deadlines)
                self._deadlines.written(instance, now)
                self._given_up.discard(instance)
        if self._lease_ns:
            self._sign(now)
        if first:
            self._runtime.alarms.look(self)

    def ended(self, instance: int) -> None:
        """The writer has no more to say about it."""
        with self._lock:
            if self._deadlines is not None:
                self._deadlines.ended(instance, time.monotonic_ns())
                self._given_up.discard(instance)

    def assert_liveliness(self) -> None:
        """The program says that the writer lives; with Liveliness.ManualByParticipant, that it lives itself."""
        if self._lease_ns and self._kind != AUTOMATIC:
            self._sign(time.monotonic_ns())  # of the other manual writers of the participant, too
            self._link.handle.give_sign_of_life()

    def _sign(self, now_ns: int) -> None:
        """The program has done something that shows that the writer lives."""
        self.lives(now_ns)
        if self._elsewhere:
            self._link.handle.give_sign_of_life()
        if self._kind == BY_PARTICIPANT:
            for one in self._runtime.vigils:
                if one is not self:
                    one.lives(now_ns)
                    one._link.handle.give_sign_of_life()

    def lives(self, now_ns: int) -> None:
        """The lease begins anew."""
        self._sign_ns = now_ns
        if self._lost:
            self._lost = False
            self._runtime.signs.look(self._signs)

    # --- what time does

    def _on_time(self) -> float | None:
        writer = self._writer()
        if writer is None or not writer._open:
            return None
        now = time.monotonic_ns()
        with self._lock:
            if self._deadlines is None:
                return None
            late, missed, following = self._deadlines.late(), self._deadlines.missed(now), self._deadlines.next_ns
            news = [one for one, _ in missed if one not in self._given_up] if self._exclusive else []
            self._given_up.update(news)  # first: a sample that is written from here on takes it back
        for instance in news:
            if not self._say_late(instance):
                self._given_up.discard(instance)  # it says so when the next period has passed
        if late or missed:  # last: who hears of it here can rely on that it was said
            writer._misses(late + missed)
        return None if following is None else max(0.001, (following - now) / 1e9)

    def _say_late(self, instance: int) -> bool:
        """False if that can't be said now: there is no room, or no node."""
        payload = b"" if instance == KEYLESS_HANDLE or self._written is None else self._written.payload(instance)
        if payload is None:
            return True
        inline, behind = self._inline, self._inline.encoded()
        tag = MISSES_DEADLINE | (ANNOUNCES_QOS if behind else 0)
        try:
            self._say(bytes(payload) + behind, tag, inline.key_mask ^ (0 if instance == KEYLESS_HANDLE else instance))
        except Exception:  # whatever it is, the program hears of it when it writes
            return False
        return True

    def look_at_lease(self) -> float | None:
        """See Timed."""
        writer = self._writer()
        if writer is None or not writer._open:
            return None
        following = self._look_at_lease(writer, now := time.monotonic_ns())
        return None if following is None else max(0.001, (following - now) / 1e9)

    def _look_at_lease(self, writer: Any, now: int) -> int | None:
        if self._kind == AUTOMATIC:
            self._link.handle.give_sign_of_life()
            return now + self._lease_ns // SIGNS
        if not self._lost and now - self._sign_ns >= self._lease_ns:
            self._lost = True
            writer._loses_liveliness()
        return None if self._lost else self._sign_ns + self._lease_ns


class _Signs:
    """The lease of a vigil, for the thread that gives signs of life."""

    def __init__(self, vigil: Vigil) -> None:
        self._vigil = weakref.ref(vigil)

    def _on_time(self) -> float | None:
        vigil = self._vigil()
        return None if vigil is None else vigil.look_at_lease()


__all__ = ["Vigil", "lease_of"]
