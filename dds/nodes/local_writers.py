"""Reading one's own writes.

Why: in DDS programs a writer and a reader of one process often face each other, and `writer.write(x); reader.take()`
is expected to find x, because there a local write reaches local readers before it returns. Here a sample is delivered
when the group has it, some tens of microseconds later. So a read that finds less than was asked for, while samples
written in this process are on their way, waits for them a little.

Rules: waiting is paid from two budgets, which time refills. The one for a read that has found nothing yet is generous:
it follows a single write, or a program that would ask again at once. The one for a read that has found less than it
wanted is small, so that a program that writes and takes in a loop keeps its speed. A wait at the end of which all is
there costs a moment, however busy the machine; one that is given up costs what it took.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from dds.internal import publication_handle

if TYPE_CHECKING:
    from spindle.client import WriterHandle

    InboxWriter = Any

MOMENT_S = 0.0002  # a delivery with its wake-ups, where the processors are free
OWNERS_MAX = 4096  # writers of a topic whose participants are remembered


class Budget:
    """Seconds to spend: `most_s` at first, and again after a while, because `share` of the time is added."""

    def __init__(self, most_s: float, share: float) -> None:
        self._most_s = most_s
        self._share = share
        self._left_s = most_s
        self._looked_at = time.monotonic()

    def left_s(self) -> float:
        now = time.monotonic()
        self._left_s = min(self._most_s, self._left_s + (now - self._looked_at) * self._share)
        self._looked_at = now
        return self._left_s

    def spend(self, seconds: float) -> float:
        """Returns what it takes."""
        self._left_s -= seconds
        self._looked_at = time.monotonic()
        return seconds

    def spend_a_moment(self, spent_s: float) -> None:
        """Of a wait that has taken so much, and at the end of which all was there: what is more than a moment was not
        the group's, but of others who had the processor, and is given back."""
        self._left_s += max(0.0, spent_s - MOMENT_S)


class LocalWriters:
    """The open writers (spindle.client.WriterHandle) of one topic in this process.

    owners  publication handle -> number of the participant, also of writers that were closed lately
    """

    _all: dict[tuple[int, str], LocalWriters] = {}

    def __init__(self) -> None:
        self.handles: list[weakref.ref[WriterHandle]] = []
        self.owners: dict[int, int] = {}
        self.budget_empty = Budget(1.0, 0.05)
        self.budget_short = Budget(0.02, 0.005)

    @classmethod
    def of(cls, domain_id: int, topic: str) -> LocalWriters:
        return cls._all.setdefault((domain_id, topic), cls())

    def add(self, handle: WriterHandle, participant: int) -> None:
        """Call it before the writer writes anything."""
        number = publication_handle(handle.session.node_id, handle.writer_id, handle.relay)
        self.owners.pop(number, None)  # the newest last
        self.owners[number] = participant
        while len(self.owners) > OWNERS_MAX:
            del self.owners[next(iter(self.owners))]
        self.handles = [*(one for one in self.handles if one() is not None), weakref.ref(handle)]

    @classmethod
    def forget(cls, participant: int) -> None:
        """It is closed. The handles of its writers may be those of others' from now on."""
        for one in list(cls._all.values()):
            for number in [number for number, owner in list(one.owners.items()) if owner == participant]:
                one.owners.pop(number, None)

    def discard(self, handle: WriterHandle) -> None:
        self.handles = [one for one in self.handles if one() not in (None, handle)]

    def on_their_way(self) -> list[tuple[InboxWriter, int]]:
        """Writers with undelivered samples, and the count that each must reach."""
        found = []
        for ref in self.handles:
            handle = ref()
            if handle is not None and not handle.inbox.is_gone:
                committed = handle.inbox.committed
                if handle.inbox.acknowledged < committed:
                    found.append((handle.inbox, committed))
        return found


__all__ = ["LocalWriters"]
