"""Leases: what a writer promises about signs of life, and what its node says when there is none."""

from __future__ import annotations

import dataclasses

from spindle.errors import ConfigError
from spindle.group.topics import TAG_MAX

LEASE_NS_MIN = 10_000_000  # a node looks at its writers several times while a lease runs


@dataclasses.dataclass(frozen=True)
class Lease:
    """duration_ns  how long a writer may give no sign of life: neither a message nor a word that it lives
    lapse        tag (1 to 255) of the message without payload that its node says in its name then
    revival      tag of the one that it says when the writer lives again, and has no message that shows it
    Raises ConfigError for what can't be.
    """

    duration_ns: int
    lapse: int
    revival: int

    def __post_init__(self) -> None:
        if self.duration_ns < LEASE_NS_MIN:
            raise ConfigError(f"a lease of {self.duration_ns / 1e6:g} ms is too short; {LEASE_NS_MIN / 1e6:g} ms is "
                              "the shortest")
        if not (0 < self.lapse <= TAG_MAX and 0 < self.revival <= TAG_MAX):
            raise ConfigError(f"a lease needs two tags of 1 to {TAG_MAX}, not {self.lapse} and {self.revival}")


__all__ = ["LEASE_NS_MIN", "Lease"]
