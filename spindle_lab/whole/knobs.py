"""Bounds and pieces that are so large in production that a short run never meets them: a run may make them small.

Each is a constant of a module of the node. Whatever holds for the large one must hold for the small one.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from spindle_lab.whole.system import System

# Module, constant, and what it may be instead.
KNOBS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("spindle.transport.frames", "READ_BYTES", (64, 200, 4096)),
    ("spindle.transport.peers", "BULK_QUEUED_MAX", (0,)),
    ("spindle.applications.application", "REQUESTS_AT_ONCE", (1, 2)),
    ("spindle.restart.pieces", "CHUNK_BYTES", (100, 500, 4000)),
    ("spindle.restart.pieces", "CHUNK_MESSAGES", (1, 7)),
    ("spindle.restart.streams", "AHEAD_BYTES", (1, 3000)),
    ("spindle.restart.catching_up", "WAITING_MAX", (1, 3000)),
    ("spindle.topics.local_topic", "APPEND_BYTES", (1, 3000)),
    ("spindle.restart.disk", "COPY_BYTES", (1, 600)),
    ("spindle.journal.writer", "COMMIT_BYTES", (1, 2000)),
    ("spindle.journal.writer", "TAKE_MAX", (1, 3)),
    ("spindle.journal.writer", "COMMITS_MAX", (2, 9)),
    ("spindle.journal.growing", "RESERVE_MAX", (4096,)),
)
# The same, drawn apart, so that they change nothing in runs in which they stay as they are.
LATER: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("spindle.restart.chain", "LIVES_MAX", (2, 3)),
    ("spindle.large.giver", "PIECE_MAX", (700, 5000)),
    ("spindle.large.reader", "BLOCK", (900, 20_000)),
    ("spindle_core.links.dedication", "MUCH", (1, 50_000)),
    ("spindle_core.links.finder", "LEASE_NS", (10_000_000, 40_000_000)),
    ("spindle.pool.pooling", "MAPPED_MAX", (0, 1)),
    ("spindle.pool.pooling", "MAPPED_S", (0.0, 0.01)),
    ("spindle.links.ends", "IDLE_MAX", (0, 1)),
    ("spindle.links.link", "REGIONS_MAX", (1, 2)),
    ("spindle.links.port", "LINKS_FOR_ANSWERS_MAX", (1,)),
    ("spindle.links.duplexes", "FIRST", (1, 2, 1000)),
    ("spindle.large.memory", "REUSED_MIN", (1, 3000)),
    ("spindle.topics.larges", "CLEARED_BYTES_PER_S", (100_000, 4 << 30)),
)


@contextmanager
def turned(system: System) -> Iterator[list[str]]:
    """While in it, some of these constants are small; yields which ones."""
    apart = random.Random(f"knobs {system.seed}")
    said = []
    with ExitStack() as stack:
        for rng, (where, name, choices) in [*((system.random, one) for one in KNOBS), *((apart, one) for one in LATER)]:
            if rng.random() < 0.3:
                value = rng.choice(choices)
                stack.enter_context(patch.object(importlib.import_module(where), name, value))
                said.append(f"{where.rpartition('.')[2]}.{name} = {value}")
        yield said
