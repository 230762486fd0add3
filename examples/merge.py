"""Merges several ordered streams into one, so that everybody who merges the same streams gets the same sequence.

Why: a topic's samples come in the same order on every node, but two topics are two orders, and which of two samples of
different topics is taken first is chance: it differs between nodes. A program that keeps state from both topics would
drift apart from its twins. So the merge may use only what is the same everywhere: the content of each stream and its
order.

Rules:
- A sample's key is (time, stream, position): the time of measurement that it carries, the number of its stream, its
  position there. A time that runs back (a second writer, a clock set back) counts as the latest one seen in its
  stream, which is the stream's watermark. So keys grow within a stream, and are a function of that stream alone.
- The smallest key goes first. It is let out once every other stream is known to have nothing smaller to come: it has a
  sample waiting, or its watermark has passed. Arrival never matters.
- A stream that falls silent holds the others back (`waiting_for`). To go on without it on one's own account would end
  the agreement: a twin may still have got its last sample. Instead anybody writes an empty sample, with the time that
  is waited for, into the silent topic itself. It takes its place in that topic's order, the same on every node, and
  so the silence is agreed too (alert_monitor.py does this).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

NEVER = -1
"""Watermark of a stream of which nothing has been seen; all times are larger."""


class Waiting(NamedTuple):
    """Stream `stream` holds the merge back: a sample of it with a time of at least `time_ns` would let it go on."""

    stream: int
    time_ns: int


class Merge(Generic[T]):
    """Deterministic merge of `streams` streams; see the module's rules.

    Invariant: keys let out never decrease, and a stream's samples keep their order.
    """

    def __init__(self, streams: int) -> None:
        if streams < 1:
            raise ValueError(f"a merge needs at least one stream, not {streams}")
        self._queues: list[deque[tuple[int, T]]] = [deque() for _ in range(streams)]
        self._watermarks_ns = [NEVER] * streams
        self.late = 0
        """Samples whose time ran back, over all streams."""

    def push(self, stream: int, time_ns: int, sample: T) -> list[tuple[int, T]]:
        """Adds the next sample of a stream. Returns the (stream, sample) pairs that may go now, in the merged order."""
        if time_ns < 0:
            raise ValueError(f"time_ns must not be negative: {time_ns}")
        if time_ns < self._watermarks_ns[stream]:
            self.late += 1
            time_ns = self._watermarks_ns[stream]
        self._watermarks_ns[stream] = time_ns
        self._queues[stream].append((time_ns, sample))
        released: list[tuple[int, T]] = []
        while (first := self._first()) is not None and self._may_go(first):
            released.append((first, self._queues[first].popleft()[1]))
        return released

    def _first(self) -> int | None:
        """The stream whose waiting sample has the smallest key."""
        heads = [(queue[0][0], stream) for stream, queue in enumerate(self._queues) if queue]
        return min(heads)[1] if heads else None

    def _may_go(self, first: int) -> bool:
        time_ns = self._queues[first][0][0]
        return all(
            queue or (self._watermarks_ns[stream], stream) > (time_ns, first)
            for stream, queue in enumerate(self._queues)
            if stream != first
        )

    @property
    def backlog(self) -> int:
        """Samples held, over all streams."""
        return sum(len(queue) for queue in self._queues)

    def waiting_for(self) -> list[Waiting]:
        """Who would have to say more, and up to which time, for all that is held to go; empty if nothing is held."""
        held = [(queue[-1][0], stream) for stream, queue in enumerate(self._queues) if queue]
        if not held:
            return []
        last = max(held)
        return [
            Waiting(stream, last[0] + 1)
            for stream, watermark_ns in enumerate(self._watermarks_ns)
            if stream != last[1] and (watermark_ns, stream) < last
        ]
