"""Goal: the multicast and latency benchmarks move everything in order under every option, and report all their keys.

Method: real node processes with few messages. Not speed: that is for `spindle bench suite`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from spindle.rdma.devices import sysfs_devices
from spindle_lab.bench import lines, multicast, suite
from spindle_lab.bench.cli import bench
from spindle_lab.bench.options import MulticastOptions
from spindle_lab.bench.reach import offer_to
from tests.spindle_core.fabric.verbs_peers import needs_verbs

KEYS = {
    "messages_per_s", "bytes_per_s", "latency_us", "order_identical", "lost", "nulls", "pushes", "posts", "cpu_s",
    "batch_mean",
}  # fmt: skip


def checked(**options: Any) -> dict[str, Any]:
    options.setdefault("count", 300)
    options.setdefault("window", 16)
    result = multicast.run_once(MulticastOptions(timeout_s=30.0, sample_every=4, **options))
    assert result.keys() >= KEYS
    assert result["batch_mean"].keys() == {"send", "receive", "delivery"}
    assert (result["lost"], result["corrupt"]) == (0, 0)
    assert result["latency_us"]["samples"] > 0
    assert result["latency_us"]["p50"] <= result["latency_us"]["p99"] <= result["latency_us"]["p99.9"]
    return result


@pytest.mark.parametrize("switches", ["baseline", "batching", "nulls", "spindle", "batch_send,null_sends"])
def test_core_under_every_switch(switches: str) -> None:
    """Goal: order and completeness don't depend on the switches, and those that are off leave no trace."""
    result = checked(switches=switches)
    assert result["order_identical"]
    if "null" not in switches and switches != "spindle":
        assert result["nulls"] == 0
    if switches == "baseline":
        assert set(result["batch_mean"].values()) == {1.0}


@pytest.mark.parametrize("senders", ["half", "one"])
def test_core_with_fewer_senders(senders: str) -> None:
    assert checked(senders=senders)["order_identical"]


@pytest.mark.parametrize("delayed", ["one", "half", "silent"])
def test_core_with_delayed_senders(delayed: str) -> None:
    """Goal: a run ends with the undelayed senders' last message, and the hash up to there is the same everywhere."""
    result = checked(delayed=delayed, delay_us=500.0)
    assert result["order_identical"]
    assert result["nulls"] > 0


def test_core_unordered_loses_nothing() -> None:
    checked(level="unordered")


@pytest.mark.parametrize("level", ["atomic", "unordered"])
@pytest.mark.parametrize("switches", ["baseline", "spindle"])
def test_core_over_connections(switches: str, level: str) -> None:
    """Goal: the same run over another fabric, which says what went over it: each message leaves its sender twice."""
    result = checked(fabric="tcp", switches=switches, level=level)
    assert result["order_identical"] or level == "unordered"
    assert result["traffic"]["bytes_sent"] >= 3 * 2 * 300 * 1024


def test_latency_counts_every_message_at_every_receiver() -> None:
    """Goal: a paced run samples all. Method: 50 messages at 2,000/s, three receivers."""
    result = multicast.latency_run(
        MulticastOptions(senders="one", pace_per_s=2000.0, count=50, timeout_s=30.0), repeat=1
    )
    assert result["latency_us"]["samples"] == 150
    assert result["elapsed_s"] >= 50 / 2000


@pytest.mark.slow
def test_command_with_limit_prints_json() -> None:
    """Goal: the ratio to the limit is there, and the output is one JSON object."""
    result = CliRunner().invoke(bench, ["multicast", "--nodes", "2", "--count", "300", "--limit", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output).keys() >= KEYS | {"ratio_to_limit", "limit_messages_per_s", "runs"}


@pytest.mark.slow
def test_command_over_connections_with_limit() -> None:
    """Goal: the limit is one stream, the ratio that of all bytes which leave nodes, and a node's share of that."""
    result = CliRunner().invoke(bench, ["multicast", "--fabric", "tcp", "--count", "500", "--limit", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["limit_bytes_per_s"] == max(found["limit_own_bytes_per_s"], found.get("limit_iperf3_bytes_per_s", 0))
    assert found["ratio_to_limit"] == round(found["leaving_bytes_per_s"] / found["limit_bytes_per_s"], 3)
    assert found["ratio_of_a_node"] <= found["ratio_to_limit"]


def test_impossible_options_are_a_usage_error() -> None:
    result = CliRunner().invoke(bench, ["multicast", "--daemon"])
    assert result.exit_code == 2
    assert "--api dds" in result.output


def test_commands_of_the_suite_parse() -> None:
    """Goal: the command beside each number is one that exists. Method: let click parse, without running."""
    for options in (
        MulticastOptions(size=10240),
        MulticastOptions(api="dds", daemon=True, single=True),
        MulticastOptions(switches="batch_send", claim=1),
        MulticastOptions(delayed="one"),
        MulticastOptions(senders="one", pace_per_s=1000.0, api="dds"),
    ):
        words = lines.command_of(options, 5).split()[2:]
        command = bench.commands[words[0]]
        context = command.make_context(words[0], words[1:])
        assert context.params["repeat"] == 5


@pytest.mark.slow
def test_suite_table_survives_a_failing_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one figure that can't be measured is a line that says so. Method: two sections, of which one raises."""

    def fails(plan: lines.Plan) -> list[lines.Line]:
        raise suite.BenchFailed("node 0 failed:\ndetails")

    def works(plan: lines.Plan) -> list[lines.Line]:
        return [lines.Line("a", "1/s", "at least 1/s", True, "spindle bench a")]

    monkeypatch.setattr(suite, "SECTIONS", {"bad": ("Bad", fails), "good": ("Good", works)})
    result = suite.run(lines.QUICK)
    assert (result["met"], result["promised"]) == (1, 2)
    text = suite.markdown(result)
    assert "| Bad | failed: node 0 failed: |" in text
    document = f"# Title\n{suite.BEGIN}\nold\n{suite.END}\nrest"
    written = suite.rewritten(document, text)
    assert written.startswith("# Title")
    assert written.endswith("rest")
    assert "old" not in written
    assert suite.rewritten(written, text) == written
    assert suite.rewritten("no markers", text) == text
    assert "| a | 1/s | at least 1/s | yes | `spindle bench a` |" in text


@pytest.mark.skipif(any(device.active() for device in sysfs_devices()), reason="this host has an RDMA device")
@pytest.mark.parametrize("command", [["multicast"], ["multicast", "--api", "dds"], ["latency"], ["limit"], ["idle"],
                                     ["failover"]])
def test_without_a_device_verbs_are_refused_with_what_to_do(command: list[str]) -> None:
    result = CliRunner().invoke(bench, [*command, "--fabric", "verbs"])
    assert result.exit_code == 1 and "no RDMA device" in result.output and "spindle doctor" in result.output


@needs_verbs
def test_core_over_verbs() -> None:
    """Goal: the same run through an RDMA device, with what the device was asked for each message."""
    result = checked(fabric="verbs", window=64)
    assert result["order_identical"] and result["verbs"]["posts_per_message"] < 1


def test_what_verbs_are_asked_for_each_message() -> None:
    traffic = {"posts": 30, "work_requests": 20, "doorbells": 10, "signalled": 2, "inlined": 15}
    figures = multicast.posting(MulticastOptions(fabric="verbs"), [{"delivered": 100}] * 2, [{"traffic": traffic}] * 2)
    assert figures == {"verbs": {
        "posts_per_message": 0.3, "work_requests_per_message": 0.2, "doorbells_per_message": 0.1,
        "work_requests_per_doorbell": 2.0, "signalled_share": 0.1, "inlined_share": 0.75}}  # fmt: skip
    assert multicast.posting(MulticastOptions(), [{"delivered": 100}], [{"traffic": {}}]) == {}
    assert offer_to({"a": 1, "private": {"0": "x", "2": "y"}}, 2) == {"a": 1, "private": "y"}
