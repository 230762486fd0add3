"""Goal: other systems are measured by the same loops, and a system that isn't installed is said, not measured.

Method: real processes with few messages where a package is installed; the tables from runs that are made up here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from spindle_lab.bench import multicast, peer_ports, peers
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.lines import QUICK
from spindle_lab.bench.options import PEERS, MulticastOptions, OptionError


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def delivered_whole(**options: Any) -> dict[str, Any]:
    result = multicast.run_once(MulticastOptions(count=600, timeout_s=60.0, sample_every=4, **options))
    assert (result["lost"], result["corrupt"], result["ordered"]) == (0, 0, False)
    assert result["latency_us"]["samples"] > 0
    return result


@needs("iceoryx2")
@pytest.mark.parametrize("in_place", [False, True])
def test_iceoryx2_delivers_all(in_place: bool) -> None:
    """Goal: more messages than a queue holds come whole, and nothing is left in shared memory."""
    before = set(Path("/dev/shm").glob("spindle-bench-*"))
    result = delivered_whole(api="iceoryx2", in_place=in_place)
    assert result["messages_per_s"] > 0 and result["cpu_s"] > 0
    assert set(Path("/dev/shm").glob("spindle-bench-*")) <= before


@needs("iceoryx2")
def test_iceoryx2_polling_at_a_pace() -> None:
    result = multicast.latency_run(
        MulticastOptions(api="iceoryx2-polling", senders="one", pace_per_s=1000.0, count=200, timeout_s=60.0))
    assert (result["lost"], result["latency_us"]["samples"]) == (0, 600)


@needs("cyclonedds")
def test_cyclonedds_delivers_all() -> None:
    delivered_whole(api="cyclonedds")


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the run says what to install; the section says so in a line of its own, and measures the rest."""
    monkeypatch.setattr(peer_ports.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchFailed, match="pip install iceoryx2"):
        multicast.run_once(MulticastOptions(api="iceoryx2", count=1))
    measured: list[str] = []

    def run(options: MulticastOptions) -> dict[str, Any]:
        measured.append(options.api)
        return made_up(options, 1000)

    monkeypatch.setattr(peers.multicast, "run_once", run)
    lines = peers.section(QUICK)
    assert set(measured) == {"dds"}
    assert {line.what for line in lines if "pip install" in line.value} == set(PEERS)
    assert all(line.met is None for line in lines)  # nobody to be ahead of


def made_up(options: MulticastOptions, rate: int, *, lost: int = 0) -> dict[str, Any]:
    return {
        "messages_per_s": rate, "bytes_per_s": rate * options.size, "lost": lost, "corrupt": 0,
        "ordered": options.ordered, "order_identical": options.ordered,
        "latency_us": {"p50": 1.0, "p99": 2.0}, "cpu_share": {"applications": [0.1], "daemons": []},
    }  # fmt: skip


def test_who_leads_is_told_and_a_lossy_run_of_a_peer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"dds": 1000, "iceoryx2": 1500, "iceoryx2-polling": 1500, "cyclonedds": 10}
    lossy: list[str] = []

    def run(options: MulticastOptions) -> dict[str, Any]:
        lose = options.api == "cyclonedds"
        lossy.extend(["x"] * lose)
        return made_up(options, rates[options.api] * (2 if options.in_place and options.api == "dds" else 1), lost=lose)

    monkeypatch.setattr(peer_ports.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(peers.multicast, "run_once", run)
    lines = {line.what: line for line in peers.section(QUICK)}
    assert lines["batches of bytes, 1024 bytes"].met is False
    assert lines["NumPy records, read in place, 1024 bytes"].met is True
    assert lossy and "none of 1 runs" in lines["cyclonedds-python, 1024 bytes"].value
    assert peers.text_of(list(lines.values())).count("\n") == len(lines) - 1


def test_what_peers_cannot_do_is_refused() -> None:
    for api in PEERS:
        with pytest.raises(OptionError, match="without a daemon"):
            MulticastOptions(api=api, daemon=True)
    with pytest.raises(OptionError, match="--in-place"):
        MulticastOptions(api="cyclonedds", in_place=True)
