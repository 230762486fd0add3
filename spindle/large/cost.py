"""What a large sample costs of the bytes that a reader elsewhere has granted."""

from __future__ import annotations

COST_MIN = 16 << 10  # of however small a one: it takes a descriptor and a place beside the log, not bytes alone


def large_cost(size: int) -> int:
    """Beside its entry's record, for a sample of so many bytes."""
    return max(size, COST_MIN)
