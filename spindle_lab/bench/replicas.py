"""`bench replicas`: a replicated counter and a replicated dictionary in several processes, and the same with pysyncobj.

Why beside each other: pysyncobj (Raft, in Python) is what Python programs take for objects that are the same
everywhere. It decides by a majority and goes on without a minority that is slow; here every member must have a command
before any carries it out. Both give one order of all commands.

Rules: a process is a replica; each adds to the counter, one command after the other, and then keeps DEPTH puts into the
dictionary in flight. The systems take turns, run by run, on one machine: what counts is the ratio. All replicas must
have counted everything at the end. Unless told otherwise pysyncobj looks for work every 50 ms and sends what there is
every 100 ms; so it runs a second time with short periods (TUNED).
"""

from __future__ import annotations

import importlib.util
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Crew, play
from spindle_lab.bench.results import median

DEPTH = 50  # puts that a process has in flight
KEYS = 1000
WAIT_S = 60.0
TUNED = {"autoTickPeriod": 0.001, "appendEntriesPeriod": 0.002}  # s
OTHERS: dict[str, dict[str, float]] = {"pysyncobj": {}, "pysyncobj-tuned": TUNED}
SPINDLE = "spindle"


class System(Protocol):
    """What a process does with either."""

    def add(self) -> int: ...
    def put(self, key: str, value: str, done: Callable[[], None]) -> None: ...
    def count(self) -> int: ...
    def close(self) -> None: ...


class Spindle:
    """With a node in the process."""

    def __init__(self, rank: int, config: dict[str, Any]) -> None:
        from dds.domain import DomainParticipant
        from dds.replicated import Replica
        from dds.replicated.batteries import Counter, dict_of

        self._participant = DomainParticipant.embedded(node_id=rank + 1, runtime_dir=config["directory"])
        self._counter = Replica(self._participant, "counter", Counter)
        self._dict = Replica(self._participant, "dict", dict_of(str, str))
        self._counter.wait_for(lambda _: len(self._counter.replicas()) == config["nodes"], int(WAIT_S * 1e9))

    def add(self) -> int:
        return int(self._counter.add(1))

    def put(self, key: str, value: str, done: Callable[[], None]) -> None:
        def told(future: Future[Any]) -> None:
            future.result()  # an exception is logged, and the put is missed at the end
            done()

        self._dict.put.future(key, value).add_done_callback(told)

    def count(self) -> int:
        self._counter.synchronize(int(WAIT_S * 1e9))
        return int(self._counter.value())

    def close(self) -> None:
        self._participant.close()


def pysyncobj_system(rank: int, config: dict[str, Any]) -> System:
    """The same with pysyncobj, made by a function because the class needs the library."""
    from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

    class Both(SyncObj):
        def __init__(self) -> None:
            mine, *others = config["addresses"][rank:] + config["addresses"][:rank]
            conf = SyncObjConf(dynamicMembershipChange=False, **OTHERS[config["system"]])
            super().__init__(mine, others, conf)
            self.total = 0
            self.entries: dict[str, str] = {}

        @replicated
        def raise_by(self, n: int) -> int:
            self.total += n
            return self.total

        @replicated
        def store(self, key: str, value: str) -> None:
            self.entries[key] = value

    both = Both()
    until = time.monotonic() + WAIT_S
    while not both.isReady():
        if time.monotonic() > until:
            raise BenchFailed("pysyncobj has found no leader")
        time.sleep(0.01)

    class Pysyncobj:
        def add(self) -> int:
            return int(both.raise_by(1, sync=True))

        def put(self, key: str, value: str, done: Callable[[], None]) -> None:
            def told(_: Any, error: int) -> None:
                if error == FAIL_REASON.SUCCESS:
                    done()
                else:  # its queue is full, or it has just lost its leader: once more
                    self.put(key, value, done)

            both.store(key, value, callback=told)

        def count(self) -> int:
            both.raise_by(0, sync=True)
            return int(both.total)

        def close(self) -> None:
            both.destroy()

    return Pysyncobj()


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One process. Says its rates and latencies."""
    rank, count = config["rank"], config["count"]
    system: System = (Spindle if config["system"] == SPINDLE else pysyncobj_system)(rank, config)
    for _ in range(5):
        system.add()
    channel.send({"event": "ready"})
    channel.receive()
    latencies = []
    start = time.perf_counter()
    for _ in range(count):
        before = time.perf_counter()
        system.add()
        latencies.append(time.perf_counter() - before)
    alone_s = time.perf_counter() - start
    free, left = threading.Semaphore(DEPTH), threading.Semaphore(0)
    puts = config["puts"]

    def done() -> None:
        free.release()
        left.release()

    start = time.perf_counter()
    for k in range(puts):
        free.acquire()
        system.put(f"{rank}-{k % KEYS}", "x" * 100, done)
    for _ in range(puts):
        if not left.acquire(timeout=WAIT_S):
            raise BenchFailed(f"process {rank}: a put was not carried out within {WAIT_S:g} s")
    many_s = time.perf_counter() - start
    channel.send({"event": "done", "adds_per_s": count / alone_s, "puts_per_s": puts / many_s,
                  "latency_us": median(latencies) * 1e6})
    channel.receive()
    # Whoever is asked last has counted everything: the others wait for that.
    total = config["nodes"] * (count + 5)
    until = time.monotonic() + WAIT_S
    while system.count() < total and time.monotonic() < until:
        time.sleep(0.01)
    if system.count() != total:
        raise BenchFailed(f"process {rank} has counted {system.count()}, not {total}")
    channel.send({"event": "stopped"})
    try:
        channel.receive()  # until everybody has: a replica that goes takes part in no majority
    finally:
        system.close()


def addresses(count: int) -> Iterator[str]:
    """Free ports of this host, for pysyncobj."""
    open_ones = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    for one in open_ones:
        yield f"127.0.0.1:{one.getsockname()[1]}"
        one.close()


def run_once(system: str, nodes: int, count: int, puts: int) -> dict[str, float]:
    """Commands a second of all processes together, and the median of their latencies in us. Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        Path(directory).chmod(0o700)
        shared = {"system": system, "nodes": nodes, "count": count, "puts": puts, "directory": directory,
                  "addresses": list(addresses(nodes))}
        with Crew("replicas", [{**shared, "rank": rank} for rank in range(nodes)]) as crew:
            done = play(crew, 3 * WAIT_S)
    return {"adds_per_s": sum(one["adds_per_s"] for one in done), "puts_per_s": sum(one["puts_per_s"] for one in done),
            "latency_us": median([one["latency_us"] for one in done])}


def run(nodes: int = 3, count: int = 300, puts: int = 5000, repeat: int = 3) -> dict[str, Any]:
    """Medians of each system that is installed, and how many times pysyncobj's rates ours are. Raises BenchFailed."""
    systems = [SPINDLE, *(OTHERS if importlib.util.find_spec("pysyncobj") is not None else ())]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(repeat):
        for name in systems:
            slow = name == "pysyncobj"  # a few are enough to see what its periods make of it
            found[name].append(run_once(name, nodes, min(count, 50) if slow else count, puts))
    result: dict[str, Any] = {"processes": nodes, "in_flight": DEPTH}
    if len(systems) == 1:
        result["pysyncobj"] = "not installed: pip install pysyncobj"
    for name, runs in found.items():
        medians = {what: median([one[what] for one in runs]) for what in runs[0]}
        result[name] = {what: round(value) for what, value in medians.items()}
        if name != SPINDLE:
            ours = result[SPINDLE]
            result[f"{name}_ratio"] = {
                "adds": round(ours["adds_per_s"] / medians["adds_per_s"], 2),
                "puts": round(ours["puts_per_s"] / medians["puts_per_s"], 2),
                "latency": round(ours["latency_us"] / medians["latency_us"], 4)}
    return result
