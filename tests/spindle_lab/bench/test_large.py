"""Goal: large samples are measured, and what is read is what was written; beside other systems where they are there.

Method: short runs with samples of a few megabytes; the command, as people call it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from spindle_lab.bench import large
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.large_ports import PEERS, missing, value_of


@pytest.mark.slow
def test_samples_and_small_messages() -> None:
    found = large.run(2, 5 * large.MB, 3, repeat=1, peers=False, seconds=0.2)
    assert found["bytes_read_per_s"] >= 2 * found["bytes_per_s"] - 2 > 0 and found["memcpy_cold_bytes_per_s"] > 0
    assert found["ratio_of_memcpy"] == pytest.approx(2 * found["ratio_of_memcpy_each_node"], rel=0.01, abs=0.002)
    paced = found["paced"]
    assert 0 < paced["alone_us"]["p50"] <= paced["alone_us"]["p99"] and paced["beside_us"]["p99"] > 0


@pytest.mark.slow
def test_nodes_that_are_apart() -> None:
    found = large.run(2, 5 * large.MB, 3, repeat=1, peers=False, paced=False, apart=True)
    assert found["bytes_per_s"] > 0 and found["stream_bytes_per_s"] > 0 and found["ratio_of_stream_each_node"] > 0
    assert "ratio_of_memcpy" not in found


@pytest.mark.slow
@pytest.mark.parametrize("api", PEERS)
def test_others(api: str) -> None:
    if why := missing(api):
        pytest.skip(f"{api} is {why}")
    assert large.run_peer(api, 2, 1 * large.MB, 2)["bytes_per_s"] > 0


def test_samples_differ_and_what_is_wrong_is_told() -> None:
    assert len({value_of(number) for number in range(200)}) == 200
    large.check([{"wrong": 0}], "x")
    with pytest.raises(BenchFailed, match="don't count"):
        large.check([{"wrong": 0}, {"wrong": 1}], "x")


@pytest.mark.slow
def test_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "spindle.cli", "bench", "large", "--nodes", "1", "--megabytes", "4", "--count", "1",
         "--repeat", "1", "--no-peers", "--no-paced", "--json"],
        capture_output=True, text=True, timeout=120, env=os.environ, check=True)
    assert json.loads(run.stdout)["size"] == 4_000_000
