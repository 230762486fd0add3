"""`python -m spindle.bench`: the benchmarks without the rest of the command line."""

from __future__ import annotations

from spindle.bench.cli import bench

if __name__ == "__main__":
    bench(prog_name="python -m spindle.bench")
