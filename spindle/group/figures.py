"""What a node says of a topic in numbers, and what can be told from two looks at them.

`figures` of a topic in a status: messages and bytes delivered live into the log there, and of how many messages it was
delivered how long after their source timestamps: {upper bound in ns: messages}, "inf" for all later ones. Between hosts
that includes what their clocks differ by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Latencies:
    """Messages by their latency: upper bounds in ns, each with how many are below it and not below the one before."""

    counts: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, figures: Mapping[str, Any] | None) -> Latencies:
        """Of a topic's figures."""
        found = (figures or {}).get("latencies") or {}
        return cls(tuple(sorted((float(bound), int(count)) for bound, count in found.items())))

    @property
    def count(self) -> int:
        return sum(count for _, count in self.counts)

    def since(self, before: Latencies) -> Latencies:
        """Those that came after another look; all of them if the log was made anew in between."""
        earlier = dict(before.counts)
        if any(count > dict(self.counts).get(bound, 0) for bound, count in earlier.items()):
            return self
        return Latencies(tuple((bound, count - earlier.get(bound, 0)) for bound, count in self.counts
                               if count > earlier.get(bound, 0)))

    def __add__(self, other: Latencies) -> Latencies:
        both = dict(self.counts)
        for bound, count in other.counts:
            both[bound] = both.get(bound, 0) + count
        return Latencies(tuple(sorted(both.items())))

    def within_s(self, part: float) -> float | None:
        """The time within which this part of the messages was delivered, as exactly as it is known (to a fifth); None
        without messages, infinite where it took longer than is counted (18 minutes)."""
        left = part * self.count
        for bound, count in self.counts:
            left -= count
            if left <= 0:
                return bound * 1e-9
        return None


def behind(topic: Mapping[str, Any]) -> int | None:
    """Messages that are received at some member and that the slowest has yet to deliver, as a topic's part of a
    status tells; None if the node isn't a member, or the topic has no order."""
    numbers = topic.get("stability") or {}
    received, delivered = numbers.get("received"), numbers.get("delivered")
    if not received or not delivered or topic.get("level") == "unordered":
        return None
    return max(0, max(received) - min(delivered))


__all__ = ["Latencies", "behind"]
