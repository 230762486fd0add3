"""Goal: the bare loops move every byte at every geometry, and their processes never outlive or hang a run.

Method: tiny runs of real processes; sums are compared by the benchmark itself. Not speed: that is for `make bench`.
"""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from spindle_lab.bench import bare, doorbell, limit, memcpy
from spindle_lab.bench.cli import bench
from spindle_lab.bench.crew import BenchFailed, Crew


@pytest.mark.parametrize(("nodes", "size", "senders"), [(1, 16, 1), (2, 1000, 1), (3, 1024, 3)])
def test_limit_delivers_everything(nodes: int, size: int, senders: int) -> None:
    """Goal: sums agree and the keys are there. Method: rings of 8 slots, so that they wrap many times."""
    result = limit.run_once(nodes, size, senders=senders, count=500, window=8)
    assert result["messages_per_s"] > 0
    assert result["bytes_per_s"] > 0
    assert (result["nodes"], result["size"], result["senders"], result["count"]) == (nodes, size, senders, 500)


def test_limit_command_prints_json() -> None:
    """Goal: one JSON object. Method: the command in this process."""
    result = CliRunner().invoke(bench, ["limit", "--nodes", "2", "--count", "200", "--repeat", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.output)["runs"]) == 2


@pytest.mark.slow
def test_a_node_left_alone_gives_up() -> None:
    """Goal: no endless loop when a peer has died. Method: one of two nodes, with a time limit of 10 ms."""
    rows = [bytearray(bare.row_size(8, 64)) for _ in range(2)]
    with pytest.raises(TimeoutError, match="node 0"):
        bare.run_limit(rows, 0, [True, True], 100, 64, 8, 4, 10_000_000)


def test_short_rows_are_refused() -> None:
    """Goal: no access behind a row. Method: rows one byte too small."""
    rows = [bytearray(bare.row_size(8, 64) - 1)]
    with pytest.raises(ValueError, match="are needed"):
        bare.run_limit(rows, 0, [True], 1, 64, 8, 4, 1)


@pytest.mark.slow
def test_memcpy_has_a_rate_for_every_ring() -> None:
    """Goal: the keys and plausible rates. Method: a millisecond each."""
    result = memcpy.run(seconds=0.001)
    assert [row["ring"] for row in result["rings"]] == list(memcpy.RING_SIZES)
    assert all(row["bytes_per_s"] > 0 for row in result["rings"])


def test_a_failing_worker_is_named_with_its_traceback() -> None:
    """Goal: the error says who and why. Method: a worker whose configuration lacks everything."""
    with Crew("limit", [{}]) as crew, pytest.raises(BenchFailed, match=r"node 0 failed(.|\n)*KeyError"):
        crew.broadcast({"event": "rows"})
        crew.broadcast({"event": "go"})
        crew.gather("ready", 10.0)
        crew.gather("done", 10.0)


def test_workers_end_with_the_crew() -> None:
    """Goal: no process is left. Method: leave the block while the workers wait; their pids must be gone."""
    with Crew("limit", [{}, {}]) as crew:
        pids = [worker.process.pid for worker in crew.workers]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_doorbell_has_a_price() -> None:
    """Goal: each ring is heard once and all figures are there, no wake-up before its ring; whoever calls keeps its
    cores."""
    cores = os.sched_getaffinity(0)
    result = doorbell.run(rounds=50, gap_us=100)
    assert result["rounds"] == 50 and os.sched_getaffinity(0) == cores
    assert ("idle_core" in result) == (len(cores) > 1)
    for found in (result, result["same_core"], result.get("idle_core", result)):
        assert 0 < found["ring_us"]["p50"] <= found["ring_us"]["p99"]
        assert 0 < found["wakeup_us"]["p50"] <= found["wakeup_us"]["p99"]
