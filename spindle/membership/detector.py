"""Who has been silent for too long: finds members that hang, which no closed connection gives away.

Why beside the connections: a process that ends is reported by the kernel at once, and needs no clock. One that is
stopped, swapped out or caught in a loop keeps its connections; all that shows is that its heartbeat stands still.

Why silence is summed up instead of measured between two times: a node that was stopped itself, or got no processor,
would take its own absence for everybody else's. So a look that comes late counts for no more silence than one that is
roughly in time, and after a stall of half the timeout the count begins anew for all.

Rules:
- Sans-IO: times are given, in integers of ns of any clock that does not jump (one that goes back counts as standing
  still). The driver calls `late()` every `wait_ns()`.
- A heartbeat is a number that only has to change. What it says is not believed, so nobody can promise to live longer.
- Every member gets the whole timeout after `restart()`: in a new epoch all rows begin at zero, and the member that
  installs it last is not accused for that.
- The detector accuses; whether a suspicion may follow is the machine's to say (`Machine.may_suspect`), so it names a
  silent member again at every look.
"""

from __future__ import annotations

from collections.abc import Mapping

BEATS_PER_TIMEOUT = 20  # looks, and heartbeats, in one timeout, unless the bounds below make them more or fewer
INTERVAL_MIN_NS, INTERVAL_MAX_NS = 5_000_000, 50_000_000
LOST = 2  # times the timeout: after that nobody waits for one on another host, even if a majority needs it
STALL = 2  # a gap between two looks of timeout / STALL was a stall of our own


class Detector:
    """Watches the members of one epoch after the other, by rank. See the module's text."""

    def __init__(self, timeout_ns: int) -> None:
        self.set_timeout(timeout_ns)
        self.stalled = False  # true after a look that came too late to accuse anybody
        self._looked_ns: int | None = None
        self._beats: dict[int, int] = {}  # by rank: the heartbeat that was seen last
        self._silent_ns: dict[int, int] = {}  # ... and for how long it has stood still

    def set_timeout(self, timeout_ns: int) -> None:
        """Another timeout; before restart(). ValueError unless it is more than 0."""
        if timeout_ns <= 0:
            raise ValueError(f"a timeout of {timeout_ns} ns: must be more than 0")
        self.timeout_ns = timeout_ns
        self.interval_ns = min(max(timeout_ns // BEATS_PER_TIMEOUT, INTERVAL_MIN_NS), INTERVAL_MAX_NS)

    def restart(self, now_ns: int) -> None:
        """A new epoch: other rows, and the whole timeout for everybody in them."""
        self._looked_ns = now_ns
        self._beats.clear()
        self._silent_ns.clear()

    def late(self, now_ns: int, beats: Mapping[int, int]) -> list[int]:
        """One look at the heartbeats of those who are to be watched, by rank; the ranks that have been silent for the
        timeout, lowest first. A rank that is not in `beats` any more is forgotten."""
        gap_ns = 0 if self._looked_ns is None else max(0, now_ns - self._looked_ns)
        self._looked_ns = now_ns
        self.stalled = gap_ns >= max(self.timeout_ns // STALL, 2 * self.interval_ns)
        counted_ns = 0 if self.stalled else min(gap_ns, 2 * self.interval_ns)
        silent_ns: dict[int, int] = {}
        for rank, value in beats.items():
            still = self._beats.get(rank) == value and not self.stalled
            silent_ns[rank] = self._silent_ns[rank] + counted_ns if still else 0
        self._beats, self._silent_ns = dict(beats), silent_ns
        return sorted(rank for rank, ns in silent_ns.items() if ns >= self.timeout_ns)

    def silent_ns(self, rank: int) -> int:
        """For how long the member has been silent, as far as this node was awake to see it; 0 if it isn't watched."""
        return self._silent_ns.get(rank, 0)

    def lost(self) -> set[int]:
        """Ranks that have been silent for much longer than the timeout."""
        return {rank for rank, ns in self._silent_ns.items() if ns >= LOST * self.timeout_ns}

    def wait_ns(self) -> int:
        """Until the next look: one interval, or less if somebody's time is up sooner."""
        left = [self.timeout_ns - ns for ns in self._silent_ns.values() if ns < self.timeout_ns]
        return max(1_000_000, min([self.interval_ns, *left]))
