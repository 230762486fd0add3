"""What all replicas agree on beside the object's own state, and the bytes of both: a snapshot.

Rules: it follows from the entries of the order alone, and is the same at every replica at the same place of the order.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

from dds.rpc.values import Fields

ORIGINS_MAX = 4096  # replicas that are gone, whose last command is remembered
CHECKS_MAX = 64  # checks that not every replica has answered


@dataclasses.dataclass
class Check:
    """The digests after one command. expected: replicas that were live then; said: digests, in the order they came."""

    index: int
    expected: list[bytes]
    said: list[tuple[bytes, bytes]] = dataclasses.field(default_factory=list)

    def verdict(self) -> bytes | None:
        """The digest of most, of equally many the first; None until everybody has said his."""
        if {origin for origin, _ in self.said}.issuperset(self.expected):
            # A Counter keeps the order in which its elements came.
            return collections.Counter(digest for _, digest in self.said).most_common(1)[0][0] if self.said else b""
        return None


@dataclasses.dataclass
class Agreed:
    """lineage     see Entry
    index       commands carried out
    timestamp   of the last one, UTC ns: never earlier than that of the one before
    live        replicas that have the state; the first one gives snapshots
    done        number of the last command of each origin
    wants       replicas that need a snapshot and wait for somebody to begin one
    serving     who gives one now: number, for whom, and `total` when it was taken
    total       bytes of all entries so far
    kept_from   `total` when the last snapshot was taken that is complete: what comes after the last entry before it is
                enough to have the state
    completed   `total` when that was complete
    signature   of the class of those that are live
    """

    lineage: bytes
    index: int = 0
    timestamp: int = 0
    live: list[bytes] = dataclasses.field(default_factory=list)
    done: dict[bytes, int] = dataclasses.field(default_factory=dict)
    wants: list[bytes] = dataclasses.field(default_factory=list)
    serving: dict[bytes, tuple[int, list[bytes], int]] = dataclasses.field(default_factory=dict)
    total: int = 0
    kept_from: int = 0
    completed: int = 0
    checks: list[Check] = dataclasses.field(default_factory=list)
    signature: bytes = b""

    def is_new(self, origin: bytes, number: int) -> bool:
        """False for a command that was here before: sent again because a node had died."""
        return number > self.done.get(origin, 0)

    def note_done(self, origin: bytes, number: int) -> None:
        self.done.pop(origin, None)  # the newest last
        self.done[origin] = number
        while len(self.done) > ORIGINS_MAX + len(self.live):
            del self.done[next(one for one in self.done if one not in self.live)]

    def note_complete(self, donor: bytes, number: int) -> None:
        """The last piece of a snapshot has come."""
        if self.serving.get(donor, (None,))[0] == number:
            _, _, self.kept_from = self.serving.pop(donor)
            self.completed = self.total

    def encode(self, state: bytes) -> bytes:
        """A snapshot: this, and the object's `state`."""
        serving = [(donor, *one) for donor, one in self.serving.items()]
        checks = [(one.index, one.expected, one.said) for one in self.checks]
        return _fields().encode((self.lineage, self.index, self.timestamp, self.live, self.done, self.wants, serving,
                                 self.total, self.kept_from, self.completed, checks, self.signature, state))

    @classmethod
    def decode(cls, data: bytes) -> tuple[Agreed, bytes]:
        """ValueError for what encode() doesn't make."""
        (lineage, index, timestamp, live, done, wants, serving, total, kept_from, completed, checks, signature,
         state) = _fields().decode(data)
        return cls(lineage, index, timestamp, live, done, wants,
                   {donor: (number, served, at) for donor, number, served, at in serving}, total, kept_from, completed,
                   [Check(index, expected, said) for index, expected, said in checks], signature), state


@functools.cache
def _fields() -> Fields:
    return Fields("Snapshot", {
        "lineage": bytes, "index": int, "timestamp": int, "live": list[bytes], "done": dict[bytes, int],
        "wants": list[bytes], "serving": list[tuple[bytes, int, list[bytes], int]], "total": int, "kept_from": int,
        "completed": int, "checks": list[tuple[int, list[bytes], list[tuple[bytes, bytes]]]], "signature": bytes,
        "state": bytes})


__all__ = ["Agreed", "Check"]
