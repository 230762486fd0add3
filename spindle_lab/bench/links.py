"""`bench links`: what opening a link, a read and a call cost, beside what this machine takes for a doorbell and for a
fresh TLS connection.

Two daemons of one host, and a third one that counts as another host, so it is reached over TCP. This process is the
program that opens, reads and calls; a second one offers regions, answers calls, and accepts TLS connections.

Rules: each figure is a percentile of single calls, one after the other, in one run; what counts are their ratios.
"cached" is a link to a node that the program has used before, "uncached" a region that its node has never heard of.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from spindle.links import duplexes
from spindle.links.duplexes import FIRST
from spindle_lab.bench import doorbell
from spindle_lab.bench.app_run import Daemon
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Crew
from spindle_lab.bench.doorbell import percentiles_us
from spindle_lab.bench.replicas import addresses

OWN, BESIDE, FAR = 1, 2, 3  # nodes: the program's, the other one of its host, and that of the other host
PORT = 7
REGIONS = 60  # of each node, so many uncached lookups
CALL_BYTES = 64
OTHER_MEMORY = 4096  # of a link, in bytes: no earlier one is used again for it
READY_TIMEOUT_S = 30.0


# ---- the other program -----------------------------------------------------------------------------------------------


def work(channel: Channel, config: dict[str, Any]) -> None:
    """Offers regions at each node, answers calls at the one beside, and accepts TLS connections."""
    from spindle.client.attaching import attach
    from spindle.links import Links

    over = threading.Event()
    sessions = {node: attach(node_id=node, runtime_dir=config["directories"][str(node)])
                for node in (OWN, BESIDE, FAR)}
    for session in sessions.values():
        for number in range(REGIONS):
            Links(session).offer(f"region {number}", 4096)
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config["certificate"], config["key"])
    context.load_verify_locations(config["authority"])
    context.verify_mode = ssl.CERT_REQUIRED

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with context.wrap_socket(connection, server_side=True) as stream:
                stream.sendall(b"12345678")

    def answer() -> None:
        with Links(sessions[BESIDE]).listen(PORT) as port:
            channel.send({"event": "ready", "tls_port": listener.getsockname()[1]})
            while not over.is_set():
                message = port.receive(0.1)
                if message is not None and message.call:
                    port.answer(message, message.data)

    threads = [threading.Thread(target=one, daemon=True) for one in (accept, answer)]
    for thread in threads:
        thread.start()
    channel.receive()
    over.set()
    threads[1].join()
    listener.close()
    for session in sessions.values():
        session.close()
    channel.send({"event": "stopped"})


# ---- this one --------------------------------------------------------------------------------------------------------


def timed(rounds: int, call: Callable[[int], object]) -> dict[str, float]:
    """Percentiles of so many calls, of which each gets its number."""
    times_ns = []
    for number in range(rounds):
        before = time.perf_counter_ns()
        call(number)
        times_ns.append(time.perf_counter_ns() - before)
    return percentiles_us(times_ns)


def make_keys(directory: Path) -> dict[str, str]:
    """Paths of an authority, and of a certificate with its key."""
    from spindle.security.authority import certificate_pem, make_authority, make_node

    authority = make_authority("bench", 1)
    pair = make_node(authority, "node", [OWN], 1)
    files = {"authority": certificate_pem(authority.certificate), "certificate": certificate_pem(pair.certificate),
             "key": pair.key_pem}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return {name: str(directory / name) for name in files}


def fresh_tls(keys: dict[str, str], port: int) -> Callable[[int], None]:
    """Connects, proves who both are, and reads 8 bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(keys["authority"])
    context.load_cert_chain(keys["certificate"], keys["key"])

    def connect(_: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as stream:
            if len(stream.recv(8)) != 8:
                raise BenchFailed("the other end closed a TLS connection before it had said anything")

    return connect


def core_reads(rounds: int) -> dict[str, float]:
    """Reads of 64 bytes over shared memory, without a pool between: as whoever drives the regions does them."""
    import os

    from spindle_core.fabric.regions.regions import Regions
    from spindle_core.fabric.regions.requests import Asker, RequestList
    from spindle_core.fabric.regions.shm import ShmPart
    from spindle_core.memory import Mapping

    regions = Regions()
    shm = ShmPart(regions)
    post = ShmPart.make_post()
    peer = shm.connect(post, shm.keys, post, shm.bell, os.dup(shm.bell_fd))
    memory, into = Mapping.create("bench", 4096), Mapping.create("bench", 4096)
    region = regions.reach(peer, regions.whole_grant(regions.register(memory)), memory)
    asker, requests = Asker(), RequestList()

    def read(_: int) -> None:
        requests.clear()
        requests.read(region, 0, 64, into)
        regions.post(asker, requests)
        asker.take()

    return timed(rounds, read)


def run(rounds: int = 2000) -> dict[str, Any]:
    """Raises BenchFailed."""
    from spindle.client.attaching import attach
    from spindle.links import Links
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as name:
        directory = Path(name)
        directory.chmod(0o700)
        directories = {OWN: directory, BESIDE: directory, FAR: directory / "far"}
        directories[FAR].mkdir()
        keys = make_keys(directory)
        daemons = []
        try:
            where = list(addresses(len(directories)))
            for node, address in zip(directories, where, strict=True):
                daemons.append(Daemon(node, directories[node], {
                    "network.listen": f'"{address}"', "network.contacts": f'["{where[0]}"]'}))
                daemons[-1].wait_ready()
            config = {"directories": {str(node): str(path) for node, path in directories.items()}, **keys}
            with Crew("links", [config]) as crew, attach(node_id=OWN, runtime_dir=directory) as session:
                tls_port = crew.gather("ready", READY_TIMEOUT_S)[0]["tls_port"]
                result = measure(Links(session), rounds, fresh_tls(keys, tls_port))
                crew.broadcast({"event": "stop"})
                crew.gather("stopped")
        finally:
            for daemon in reversed(daemons):
                daemon.close()
    return result


@contextmanager
def through_pools() -> Iterator[None]:
    """New links go through the pools of the nodes meanwhile, as to another host."""
    with patch.object(duplexes, "FIRST", 1 << 30):
        yield


def measure(links: Any, rounds: int, tls: Callable[[int], None]) -> dict[str, Any]:
    def first_read(node: int) -> Callable[[int], None]:
        def cached(_: int) -> None:
            with links.open(node) as link:
                link.region("region 0").read(0, 8)

        return cached

    def uncached(node: int) -> Callable[[int], None]:
        def find(number: int) -> None:
            with links.open(node) as link:
                link.region(f"region {1 + number}").read(0, 8)

        return find

    def new(_: int) -> None:
        held.append(links.open(BESIDE))
        held[-1].region("region 0").read(0, 8)

    held: list[Any] = []
    result: dict[str, Any] = {"rounds": rounds, "wakeup": doorbell.run(min(rounds, 1000))}
    result["open_cached_own_node_us"] = opened = timed(rounds, first_read(OWN))
    result["open_cached_beside_us"] = timed(rounds, first_read(BESIDE))
    result["open_cached_far_us"] = timed(rounds, first_read(FAR))
    result["open_uncached_beside_us"] = timed(REGIONS - 1, uncached(BESIDE))
    result["open_uncached_far_us"] = timed(REGIONS - 1, uncached(FAR))
    result["open_new_us"] = timed(60, new)
    for link in held:
        link.close()
    result["fresh_tls_us"] = tls_us = timed(min(rounds, 200), tls)
    with links.open(BESIDE) as link:
        region = link.region("region 0")
        result["read_64_us"] = timed(rounds, lambda _: region.read(0, 64))
        data = bytes(CALL_BYTES)
        for _ in range(FIRST):
            link.call(PORT, data)
        result["call_64_us"] = called = timed(rounds, lambda _: link.call(PORT, data))
    with through_pools(), links.open(BESIDE, memory=OTHER_MEMORY) as link:
        result["call_64_pools_us"] = timed(rounds, lambda _: link.call(PORT, data))
    with links.open(FAR) as link:
        region = link.region("region 0")
        result["read_64_far_us"] = timed(rounds, lambda _: region.read(0, 64))
    result["core_read_64_us"] = core_reads(rounds)
    bell = result["wakeup"]["ring_us"]["p50"] + result["wakeup"]["wakeup_us"]["p50"]
    result["ratios"] = {"call_to_ring_and_wakeup": round(called["p50"] / bell, 2),
                        "tls_to_open": round(tls_us["p50"] / opened["p50"], 1)}
    return result
