"""Goal: the benchmarks of applications lose nothing and keep the order, through every API, embedded and with daemons.

Method: real processes with few messages; daemons in a directory of their own. Not speed.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from click.testing import CliRunner

from spindle_lab.bench import app_run, idle, multicast, startup
from spindle_lab.bench.cli import bench
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.options import MulticastOptions


def checked(**options: Any) -> dict[str, Any]:
    options.setdefault("count", 300)
    result = multicast.run_once(MulticastOptions(timeout_s=60.0, sample_every=4, **options))
    assert (result["lost"], result["corrupt"], result["order_identical"]) == (0, 0, True)
    assert result["latency_us"]["samples"] > 0
    return result


@pytest.mark.slow
@pytest.mark.parametrize("api", ["session", "dds"])
@pytest.mark.parametrize("single", [False, True])
def test_embedded_nodes(api: str, single: bool) -> None:
    checked(api=api, single=single)


@pytest.mark.slow
def test_records_in_place() -> None:
    checked(api="dds", in_place=True, nodes=2)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["session", "dds"])
def test_a_daemon_per_node(api: str) -> None:
    """Goal: the same through daemons, whose CPU time is counted."""
    result = checked(api=api, daemon=True)
    assert len(result["cpu_share"]["daemons"]) == 3


@pytest.mark.slow
def test_switches_reach_the_daemons() -> None:
    """Goal: --switches means the daemons' too. Method: the baseline's batches are of one message."""
    result = checked(api="session", daemon=True, switches="baseline", nodes=2)
    assert (result["nulls"], result["batch_mean"]["send"]) == (0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("delayed", ["one", "silent"])
def test_delayed_applications(delayed: str) -> None:
    checked(api="session", delayed=delayed, delay_us=500.0)


@pytest.mark.slow
def test_latency_of_applications() -> None:
    result = multicast.latency_run(
        MulticastOptions(api="dds", senders="one", pace_per_s=500.0, count=25, nodes=2, timeout_s=60.0)
    )
    assert result["latency_us"]["samples"] == 50
    assert (result["lost"], result["order_identical"]) == (0, True)


@pytest.mark.slow
def test_idle_view_pushes_nothing() -> None:
    """Goal: quiescence, and the keys. Method: two nodes, half a second."""
    result = idle.run(nodes=2, seconds=0.5)
    assert (result["pushes"], result["nulls"]) == (0, 0)
    assert len(result["cpu_share_daemons"]) == 2


@pytest.mark.slow
def test_startup_has_all_its_figures() -> None:
    result = startup.run(repeat=1)
    times = ("import_dds_ms", "node_ready_ms", "second_node_ready_ms", "attach_ms", "first_attach_ms")
    for key in (*times, "resident_mb"):
        assert result[key] > 0


def test_a_daemon_that_does_not_come_up_is_reported(tmp_path: Any) -> None:
    """Goal: the daemon's own words in the error. Method: an impossible setting."""
    with pytest.raises(BenchFailed, match="node 1 did not come up"):
        app_run.Daemons(tmp_path, 1, {"core.busy_poll_us": "-1"})


def test_own_cpu_time_is_that_of_the_process() -> None:
    assert app_run.process_cpu_s(os.getpid()) == pytest.approx(sum(os.times()[:2]), abs=0.1)


@pytest.mark.slow
def test_idle_command_prints_json() -> None:
    result = CliRunner().invoke(bench, ["idle", "--nodes", "1", "--seconds", "0.2", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["nodes"] == 1
