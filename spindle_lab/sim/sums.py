"""What many runs came to, in sum: the same for the core alone and for whole nodes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Run(Protocol):
    """What is needed of the outcome of one run. It has the fields of its Summary, too, each a number or counts."""

    seed: int
    hash: int

    @property
    def failed(self) -> bool:
        """A promise was broken."""


R = TypeVar("R", bound=Run)


@dataclasses.dataclass
class Sums(Generic[R]):
    """Sums over the runs of a batch: a subclass adds fields that outcomes have as well."""

    seeds: int = 0
    hash: int = 0
    seconds: float = 0.0
    failed: list[R] = dataclasses.field(default_factory=list)

    def add(self, outcome: R) -> None:
        """One more."""
        self.seeds += 1
        self.hash ^= outcome.hash
        if outcome.failed:
            self.failed.append(outcome)
        for field in dataclasses.fields(self)[len(dataclasses.fields(Sums)) :]:
            sums, more = getattr(self, field.name), getattr(outcome, field.name)
            if isinstance(sums, dict):
                for name, count in more.items():
                    sums[name] = sums.get(name, 0) + count
            else:
                setattr(self, field.name, sums + more)

    def take(self, outcomes: Iterator[R], failures_max: int, on_outcome: Callable[[R], None]) -> None:
        """All of them, or until so many have failed. `on_outcome` hears of each."""
        began = time.monotonic()
        for outcome in outcomes:
            self.add(outcome)
            on_outcome(outcome)
            if len(self.failed) >= failures_max:
                break
        self.seconds = time.monotonic() - began
        self.failed.sort(key=lambda one: one.seed)
