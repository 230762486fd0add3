"""`bench limit` over connections: what one stream moves on this machine, with nothing else going on.

Over TCP, loopback is measured twice, one after the other: by iperf3, where it is installed, and by a sender and a
receiver of our own that do nothing but hand a hot block to the kernel and take it out again. The better one is the
limit. Over verbs, one member writes its row into another one's copy of it, through a reliable connection that loops
back at the device; it writes the whole row again as soon as all of it has arrived.

A multicast is compared by the bytes of payload that leave all nodes together: each message leaves its sender once for
every other node, and all of that goes through the one kernel or device that one stream has for itself here.
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import subprocess
import time
from typing import Any

from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Crew
from spindle_lab.bench.reach import check_fabric
from spindle_lab.bench.results import median_run

BLOCK_SIZE = 128 * 1024  # of one call, as iperf3's
RECEIVER, SENDER = range(2)
WRITES, GAP = 16, 4096  # over verbs: writes on the way at once, and bytes between two of them


def run_once(seconds: float = 1.0, fabric: str = "tcp") -> dict[str, Any]:
    """One measurement of each kind that there is, each over so many seconds. Raises BenchFailed."""
    if fabric == "verbs":
        return {"bytes_per_s": verbs_rate(seconds)}
    measured = {"own_bytes_per_s": own_rate(seconds)}
    found = iperf_rate(seconds)
    if found is not None:
        measured["iperf3_bytes_per_s"] = found
    return {"bytes_per_s": max(measured.values()), **measured}


def run(seconds: float, repeat: int, fabric: str = "tcp") -> dict[str, Any]:
    """The median of `repeat` runs."""
    return median_run([run_once(seconds, fabric) for _ in range(repeat)], key="bytes_per_s")


def own_rate(seconds: float) -> int:
    """Bytes per second that a receiving process gets from a sending one."""
    with Crew("stream", [{"part": part, "seconds": seconds} for part in (RECEIVER, SENDER)],
              names=["receiver", "sender"]) as crew:
        receiver, sender = crew.workers
        message, _ = receiver.expect("listening", 30.0)
        sender.channel.send(message)
        done, _ = receiver.expect("done", seconds + 30.0)
    return round(done["bytes"] / done["elapsed_s"])


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One process of own_rate()."""
    if config.get("fabric") == "verbs":
        work_over_verbs(channel, config)
        return
    block = bytearray(BLOCK_SIZE)
    if config["part"] == SENDER:
        message, _ = channel.receive(30.0)
        with socket.create_connection(("127.0.0.1", message["port"]), 10.0) as end:
            until = time.monotonic() + config["seconds"]
            while time.monotonic() < until:
                end.sendall(block)
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel.send({"event": "listening", "port": server.getsockname()[1]})
        server.settimeout(30.0)
        end, _ = server.accept()
    with end:
        end.settimeout(30.0)
        total = end.recv_into(block)
        start = time.monotonic()
        while n := end.recv_into(block):
            total += n
        channel.send({"event": "done", "bytes": total, "elapsed_s": time.monotonic() - start})


def verbs_rate(seconds: float) -> int:
    """Bytes per second that one member writes into the row of another process through the RDMA device."""
    check_fabric("verbs")
    with Crew("stream", [{"part": part, "seconds": seconds, "fabric": "verbs"} for part in (RECEIVER, SENDER)],
              names=["receiver", "sender"]) as crew:
        addresses = crew.gather("address")
        for worker, other in zip(crew.workers, reversed(addresses), strict=True):
            worker.channel.send(other)
        crew.gather("connected")
        crew.broadcast({"event": "go"})
        done, _ = crew.workers[1].expect("done", seconds + 60.0)
        crew.broadcast({"event": "stop"})
    return round(done["bytes"] / done["elapsed_s"])


def work_over_verbs(channel: Channel, config: dict[str, Any]) -> None:
    """One process of verbs_rate()."""
    from spindle_core.fabric.verbs import VerbsFabric

    rank = config["part"]
    fabric = VerbsFabric(rank, 2)
    fabric.make_row(f"stream-{rank}", WRITES * BLOCK_SIZE)
    channel.send({"event": "address", "address": fabric.local_address(1 - rank).hex()})
    message, _ = channel.receive(30.0)
    fabric.connect(1 - rank, bytes.fromhex(message["address"]))
    channel.send({"event": "connected"})
    channel.receive(30.0)
    if rank == SENDER:
        start = time.monotonic()
        while time.monotonic() - start < config["seconds"]:
            # A gap behind each, so that they stay writes of their own.
            fabric.post_writes([(1 - rank, k * BLOCK_SIZE, BLOCK_SIZE - GAP) for k in range(WRITES)])
            while not fabric.drained:
                fabric.progress()
        sent = fabric.statistics()["bytes_sent"]
        channel.send({"event": "done", "bytes": sent, "elapsed_s": time.monotonic() - start})
    while not select.select([channel.end], [], [], 0.0)[0]:
        fabric.progress()
    channel.receive(30.0)


def iperf_rate(seconds: float) -> int | None:
    """The same by iperf3; None where it isn't installed."""
    program = shutil.which("iperf3")
    if program is None:
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = subprocess.Popen([program, "-s", "-1", "-B", "127.0.0.1", "-p", port], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.1)
            done = subprocess.run([program, "-c", "127.0.0.1", "-p", port, "-t", f"{max(1, round(seconds))}", "-J"],
                                  capture_output=True, text=True, timeout=seconds + 60.0, check=False)
            if done.returncode == 0:
                return round(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8)
    finally:
        server.kill()
        server.wait()
    raise BenchFailed(f"iperf3 does not work here: {done.stdout.strip()[-500:]}")
