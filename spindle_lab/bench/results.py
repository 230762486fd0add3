"""Numbers to results: percentiles, medians of runs, and how they are shown.

Rules: a median run is a run that happened, with all of its own numbers, not a mix of the medians of each; latencies
are in microseconds, rates per second, sizes in bytes, times in seconds, and the key says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def merge_counts(parts: Iterable[Mapping[str, int]]) -> dict[int, int]:
    """Sums histograms (latency in ns to messages) of several receivers."""
    merged: dict[int, int] = {}
    for part in parts:
        for ns, count in part.items():
            merged[int(ns)] = merged.get(int(ns), 0) + count
    return merged


def percentile(counts: Mapping[int, int], q: float) -> float:
    """The value in ns below or at which a share q of the samples lies; 0.0 without samples."""
    total = sum(counts.values())
    seen = 0
    for ns in sorted(counts):
        seen += counts[ns]
        if seen >= q * total:
            return float(ns)
    return 0.0


def latency_us(counts: Mapping[int, int], max_ns: int = 0) -> dict[str, float]:
    """p50, p99, p99.9 and max in microseconds, and how many samples there were."""
    return {
        "p50": round(percentile(counts, 0.50) / 1000, 2),
        "p99": round(percentile(counts, 0.99) / 1000, 2),
        "p99.9": round(percentile(counts, 0.999) / 1000, 2),
        "max": round(max_ns / 1000, 2),
        "samples": sum(counts.values()),
    }


def median_run(runs: Sequence[dict[str, Any]], key: str = "messages_per_s") -> dict[str, Any]:
    """The run whose `key` is the median (the lower one of an even number), with all values of `key` as `runs`."""
    ordered = sorted(runs, key=lambda run: run[key])
    chosen = dict(ordered[(len(ordered) - 1) // 2])
    chosen["runs"] = [run[key] for run in runs]
    return chosen


def median(values: Sequence[float]) -> float:
    """The lower median, so that it is one of the values."""
    return sorted(values)[(len(values) - 1) // 2]


def mean(total: int, parts: int) -> float:
    """Mean batch size; 0.0 when there was no batch."""
    return round(total / parts, 2) if parts else 0.0


def rate_text(value: float) -> str:
    """A rate with three digits that mean something: 3,012,345 is 3,010,000."""
    if value < 1000:
        return f"{value:.3g}"
    digits = len(str(int(value)))
    unit = 10 ** (digits - 3)
    return f"{round(value / unit) * unit:,}"


def as_json(result: Any) -> str:
    return json.dumps(result, indent=2)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
