"""What a process holds, and whether that grows.

Rules: a figure is noted while nobody uses the daemon, so that notes can be compared. Of all notes after the first
minutes the medians of the first and of the last fifth are compared: one note in the middle of something says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spindle_lab.bench.results import median

MEMORY_GROWTH_MAX = 0.02
FIFTH = 5


@dataclass(frozen=True)
class Note:
    """What one process held at one moment. `of` raises OSError if the process has gone."""

    at_s: float
    memory_bytes: int
    descriptors: int
    mappings: int

    @classmethod
    def of(cls, pid: int, at_s: float) -> Note:
        base = Path(f"/proc/{pid}")
        resident = int((base / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        mappings = (base / "maps").read_text().count("\n")
        return cls(at_s, resident, len(os.listdir(base / "fd")), mappings)


@dataclass(frozen=True)
class Growth:
    """From the first fifth of the notes to the last one."""

    what: str
    first: float
    last: float

    @property
    def too_much(self) -> bool:
        return self.last > self.first * (1 + (MEMORY_GROWTH_MAX if self.what == "memory_bytes" else 0.0))

    def __str__(self) -> str:
        unit = 1e6 if self.what == "memory_bytes" else 1
        return f"{self.what.replace('memory_bytes', 'memory (MB)')} {self.first / unit:g} -> {self.last / unit:g}"


def growth(notes: Sequence[Note], warm_s: float) -> list[Growth]:
    """Of each figure, over the notes made after `warm_s`. ValueError if these are fewer than ten."""
    later = [asdict(note) for note in notes if note.at_s >= warm_s]
    share = len(later) // FIFTH
    if share < 2:
        raise ValueError(f"{len(later)} notes after the first {warm_s:g} s: too few to say anything, run for longer")
    first, last = later[:share], later[-share:]
    return [Growth(what, median([note[what] for note in first]), median([note[what] for note in last]))
            for what in ("memory_bytes", "descriptors", "mappings")]
