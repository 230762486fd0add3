"""`bench large`: large samples to all nodes of a host, beside what its memory allows, and beside small messages.

Each node is a daemon, each with a program that reads; one more program writes. A sample is a NumPy record that is
filled where it lies (`DataWriter.loan`), a new value in every byte, and read where it lies: each reader sums all of it
and compares the sum.

Two figures. How many bytes a second are read, at each node and at all together, beside `bench memcpy` for memory out
of the cache, measured before and after: a copy reads each byte once and writes it once; here each is written once and
read once at each node. And what becomes of the latency of a paced topic of small messages when samples move beside it
at half the rate that they can have.

With the nodes apart, each as on a host of its own, what there is to compare with is one stream over TCP: each sample
leaves its host once, and goes on from host to host.

Rules: nothing may be lost or different, or the run has failed. The first samples don't count: they find memory that the
machine has not looked at for long.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from spindle_core.slices import be_prompt
from spindle_lab.bench import memcpy, pacing
from spindle_lab.bench.app_run import Daemons, directory_of
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Crew
from spindle_lab.bench.doorbell import percentiles_us
from spindle_lab.bench.large_ports import PEERS, clean_up, missing, open_port

MB = 1_000_000
WARM = 12  # samples that don't count: as many memories as are under way have to be made first
READY_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 60.0
SMALL_BYTES = 64


# ---- the programs ----------------------------------------------------------------------------------------------------


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One program: it does what each "go" says until it is told to stop."""
    from spindle_lab.bench.worker import cpu_s

    pacing.precise_timers()
    port = open_port(config)
    channel.send({"event": "ready"})
    while True:
        message, _ = channel.receive()
        if message["event"] == "match":
            port.wait_matched(READY_TIMEOUT_S)
            channel.send({"event": "matched"})
            continue
        if message["event"] != "go":
            break
        before_s = cpu_s()
        result = PARTS[config["part"]](port, message)
        channel.send({"event": "done", "cpu_s": cpu_s() - before_s, **result})
    channel.send({"event": "stopped"})
    channel.receive()


def write_samples(port: Any, go: dict[str, Any]) -> dict[str, Any]:
    """As fast as they go, or one each `gap_s`."""
    start_ns = due_ns = time.monotonic_ns()
    for number in range(go["first"], go["first"] + go["count"]):
        if number == go["first"] + go["warm"]:
            start_ns = time.monotonic_ns()
        pacing.sleep_until_ns(due_ns)
        port.put(number)
        due_ns += int(go["gap_s"] * 1e9)
    return {"start_ns": start_ns}


def read_samples(port: Any, go: dict[str, Any]) -> dict[str, Any]:
    wrong = 0
    for number in range(go["first"], go["first"] + go["count"]):
        got, total = port.take(STALL_TIMEOUT_S)
        wrong += got != number or total != port.sum_of(number)
    return {"end_ns": time.monotonic_ns(), "wrong": wrong}


def write_small(port: Any, go: dict[str, Any]) -> dict[str, Any]:
    be_prompt()  # as nodes are: see docs/operations.md, "Beside busy programs"
    due_ns = time.monotonic_ns()
    for _ in range(go["count"]):
        pacing.sleep_until_ns(due_ns)
        port.put_small(time.monotonic_ns())
        due_ns += int(go["gap_s"] * 1e9)
    return {}


def read_small(port: Any, go: dict[str, Any]) -> dict[str, Any]:
    be_prompt()  # as nodes are: see docs/operations.md, "Beside busy programs"
    times_ns: list[int] = []
    while len(times_ns) < go["count"]:
        for written_ns in port.take_small(STALL_TIMEOUT_S):
            times_ns.append(time.monotonic_ns() - written_ns)
    return {"times_ns": times_ns}


PARTS = {"writer": write_samples, "reader": read_samples, "small writer": write_small, "small reader": read_small}


# ---- the runs --------------------------------------------------------------------------------------------------------


def parts_of(nodes: int, size: int, api: str, runtime_dir: str, apart: bool = False) -> list[dict[str, Any]]:
    """The readers, and behind them the writer."""
    def part(name: str, node: int) -> dict[str, Any]:
        return {"api": api, "nodes": nodes, "size": size, "part": name, "node": node,
                "runtime_dir": str(directory_of(Path(runtime_dir), node, apart))}

    return [*(part("reader", rank + 1) for rank in range(nodes)), part("writer", 1)]


def go(crew: Crew, orders: list[dict[str, Any]], timeout_s: float) -> list[dict[str, Any]]:
    """One phase: each program does what its order says."""
    for worker, order in zip(crew.workers, orders, strict=True):
        worker.channel.send({"event": "go", **order})
    return crew.gather("done", timeout_s)


def get_ready(crew: Crew) -> None:
    crew.gather("ready", READY_TIMEOUT_S)
    crew.broadcast({"event": "match"})
    crew.gather("matched", READY_TIMEOUT_S)


def stop(crew: Crew) -> None:
    crew.broadcast({"event": "stop"})
    crew.gather("stopped", READY_TIMEOUT_S)


def check(readers: list[dict[str, Any]], api: str) -> None:
    if any(one["wrong"] for one in readers):
        raise BenchFailed(f"{api}: samples were lost, or read other than they were written: these numbers don't count")


def stream(crew: Crew, nodes: int, size: int, count: int) -> dict[str, Any]:
    """`count` samples as fast as they go, behind those that don't count."""
    order = {"first": 0, "count": WARM + count, "warm": WARM, "gap_s": 0.0}
    done = go(crew, [order] * (nodes + 1), (WARM + count) * STALL_TIMEOUT_S)
    readers, writer = done[:nodes], done[nodes]
    check(readers, "large")
    elapsed_s = (max(one["end_ns"] for one in readers) - writer["start_ns"]) / 1e9
    return {
        "samples_per_s": round(count / elapsed_s, 2),
        "bytes_per_s": round(count * size / elapsed_s),
        "bytes_read_per_s": round(nodes * count * size / elapsed_s),
        "cpu_ms_of_a_sample": {
            "writing": round(writer["cpu_s"] * 1000 / (WARM + count), 1),
            "reading": round(sum(one["cpu_s"] for one in readers) * 1000 / (WARM + count) / nodes, 1),
        },
    }


def run_ours(nodes: int, size: int, count: int, apart: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        path = Path(directory)
        settings = {"topics.large_capacity": str(max(256 << 20, 3 * size))}
        parts = parts_of(nodes, size, "spindle", directory, apart)
        with Daemons(path, nodes, settings, apart=apart) as daemons, Crew("large", parts) as crew:
            get_ready(crew)
            before_s = sum(one.cpu_s() for one in daemons.members)
            result = stream(crew, nodes, size, count)
            spent_s = sum(one.cpu_s() for one in daemons.members) - before_s
            result["cpu_ms_of_a_sample"]["daemons"] = round(spent_s * 1000 / (WARM + count), 1)
            stop(crew)
    return result


def run_peer(api: str, nodes: int, size: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        try:
            with Crew("large", parts_of(nodes, size, api, directory)) as crew:
                get_ready(crew)
                result = stream(crew, nodes, size, count)
                stop(crew)
        finally:
            clean_up(directory)
    return result


def run_paced(nodes: int, size: int, samples_per_s: float, seconds: float, rate: float, apart: bool) -> dict[str, Any]:
    """The paced topic alone, and beside samples at half of what they can have."""
    count, gap_s = int(seconds * rate), 1.0 / rate
    large_gap_s = 2.0 / samples_per_s
    n_large = max(2, int(seconds / large_gap_s))
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        path = Path(directory)
        configs = parts_of(nodes, size, "spindle", directory, apart)
        small = [{**one, "part": f"small {one['part']}"} for one in configs]
        settings = {"topics.large_capacity": str(max(256 << 20, 3 * size))}
        with Daemons(path, nodes, settings, apart=apart), Crew("large", configs + small) as crew:
            get_ready(crew)
            found = []
            first = 0
            for large in (0, WARM, n_large):  # the second run only makes the memory known
                orders = [{"first": first, "count": large, "warm": 0, "gap_s": large_gap_s}] * len(configs)
                orders += [{"count": count if large != WARM else 1, "gap_s": gap_s}] * len(small)
                done = go(crew, orders, 10 * seconds + large * STALL_TIMEOUT_S)
                check(done[:nodes], "large")
                first += large
                times = [one for reader in done[len(configs):len(configs) + nodes] for one in reader["times_ns"]]
                found.append(percentiles_us(times))
            stop(crew)
    alone, beside = found[0], found[2]
    return {
        "rate": rate, "alone_us": alone, "beside_us": beside,
        "large_bytes_per_s": round(size / large_gap_s), "p99_ratio": round(beside["p99"] / alone["p99"], 2),
    }


def copy_rate() -> float:
    """Bytes a second of a copy of memory out of the cache."""
    from spindle_lab.bench.bare import copy_rate as measure

    return float(measure(memcpy.RING_SIZES[-1], memcpy.RING_SIZES[-1], memcpy.KIB * 4, int(0.3e9)))


def stream_rate() -> float:
    """Bytes a second of one stream over TCP on loopback, the better of iperf3's, where that is installed, and ours."""
    from spindle_lab.bench import stream as streams

    return float(streams.run_once()["bytes_per_s"])


def run(nodes: int = 3, size: int = 100 * MB, count: int = 40, *, repeat: int = 3, peers: bool = True,
        paced: bool = True, seconds: float = 5.0, apart: bool = False) -> dict[str, Any]:
    """The median of `repeat` runs, each between two copies; `apart`, two streams over TCP. Raises BenchFailed."""
    size = size // 8 * 8
    beside = stream_rate if apart else copy_rate
    rates, runs = [beside()], []
    for _ in range(repeat):
        runs.append(run_ours(nodes, size, count, apart))
        rates.append(beside())
    runs.sort(key=lambda one: one["bytes_per_s"])
    middle = runs[len(runs) // 2]
    rate = statistics.median(rates)
    result: dict[str, Any] = {"nodes": nodes, "size": size, "count": count, "repeat": repeat, "apart": apart}
    if apart:
        result |= {"stream_bytes_per_s": round(rate), **middle,
                   "ratio_of_stream_each_node": round(middle["bytes_per_s"] / rate, 3)}
    else:
        result |= {"memcpy_cold_bytes_per_s": round(rate), **middle,
                   "ratio_of_memcpy_each_node": round(middle["bytes_per_s"] / rate, 3),
                   "ratio_of_memcpy": round(middle["bytes_read_per_s"] / rate, 3)}
    if paced:
        result["paced"] = run_paced(nodes, size, middle["samples_per_s"], seconds, 1000.0, apart)
    for api in PEERS if peers else ():
        if why := missing(api):
            result[api] = why
            continue
        try:
            result[api] = run_peer(api, nodes, size, max(2, count // 4))
        except BenchFailed as error:
            result[api] = f"failed: {str(error).strip().splitlines()[-1][:160]}"
    return result
