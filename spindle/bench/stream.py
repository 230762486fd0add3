"""`bench limit --fabric tcp`: what one TCP stream over loopback moves on this machine, with nothing else going on.

Two measurements of the same, one after the other: iperf3, where it is installed, and a sender and a receiver of our own
that do nothing but hand a hot block to the kernel and take it out again. The better one is the limit.

A multicast is compared by the bytes of payload that leave all nodes together: each message leaves its sender once for
every other node, and all of that goes through the one kernel that one stream has for itself here.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from typing import Any

from spindle.bench.channel import Channel
from spindle.bench.crew import BenchFailed, Crew
from spindle.bench.results import median_run

BLOCK_SIZE = 128 * 1024  # of one call, as iperf3's
RECEIVER, SENDER = range(2)


def run_once(seconds: float = 1.0) -> dict[str, Any]:
    """Both measurements, each over so many seconds. Raises BenchFailed."""
    measured = {"own_bytes_per_s": own_rate(seconds)}
    found = iperf_rate(seconds)
    if found is not None:
        measured["iperf3_bytes_per_s"] = found
    return {"bytes_per_s": max(measured.values()), **measured}


def run(seconds: float, repeat: int) -> dict[str, Any]:
    """The median of `repeat` runs."""
    return median_run([run_once(seconds) for _ in range(repeat)], key="bytes_per_s")


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
