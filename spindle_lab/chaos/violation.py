"""A promise that a round has broken, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SHOWN = 5  # places of one kind that a violation lists


class Violation(NamedTuple):
    """A broken promise: its name, and who saw what."""

    promise: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


def some(things: Sequence[object]) -> str:
    """The first of them, and how many more there are."""
    shown = ", ".join(map(str, things[:SHOWN]))
    return shown if len(things) <= SHOWN else f"{shown} and {len(things) - SHOWN} more"
