"""`python -m spindle_lab.bench`: the benchmarks without the rest of the command line."""

from __future__ import annotations

from spindle_lab.bench.cli import bench

if __name__ == "__main__":
    bench(prog_name="python -m spindle_lab.bench")
