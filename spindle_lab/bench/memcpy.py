"""`bench memcpy`: copy bandwidth of this machine by the size of the ring that is copied round.

Read it as: memory that stays in the cache against memory that doesn't. It says how large windows and logs may be
before copies slow down.
"""

from __future__ import annotations

from typing import Any

KIB = 1024
RING_SIZES = tuple(KIB << k for k in (4, 6, 7, 8, 9, 10, 12, 14, 16, 18))  # 16 KiB to 256 MiB


def run(block: int = 4096, seconds: float = 0.15) -> dict[str, Any]:
    """Copies pieces of `block` bytes for `seconds` at each ring size; source and target ring are of that size each."""
    from spindle_lab.bench.bare import copy_rate

    rates = []
    for size in RING_SIZES:
        if size >= block:
            rates.append({"ring": size, "bytes_per_s": round(copy_rate(size, size, block, int(seconds * 1e9)))})
    small_target = copy_rate(RING_SIZES[-1], 64 * KIB, block, int(seconds * 1e9)) if block <= 64 * KIB else 0.0
    return {
        "block": block,
        "rings": rates,
        "hot_bytes_per_s": max(r["bytes_per_s"] for r in rates),
        "cold_bytes_per_s": rates[-1]["bytes_per_s"],
        "cold_to_hot_bytes_per_s": round(small_target),
    }
