"""An application of the benchmarks: publishes and subscribes through an API, in a process of its own.

Why a port between: the loops that measure are the same for every API, so that their numbers can be compared. What
differs is in app_ports.py.

Rules: publisher and subscriber run at the same time, as in a program that does both. Batches are lists of bytes, as a
user would write them; with `single`, one write call and one sample object for every message.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from spindle_lab.bench import pacing
from spindle_lab.bench.app_ports import Port
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.open_port import open_port
from spindle_lab.bench.options import READER, WRITER
from spindle_lab.bench.tally import Tally, fill_rows, make_payloads, monotonic_ns
from spindle_lab.bench.worker import cpu_s

BATCH_BYTES = 64 * 1024  # of one write_many: a part of the ring, so that filling and sending overlap
TAKE_BYTES = 64 * 1024  # of one take: samples that are still in the cache when they are looked at
MATCH_TIMEOUT_S = 20.0  # at least: it is a third of the run's
POLL_S = 0.01  # between looks at things that take long anyway


class Publisher:
    """The sending half: fills every payload and hands it over."""

    def __init__(self, port: Port, config: dict[str, Any], over: threading.Event) -> None:
        self.port = port
        self.over = over
        self.rank: int = config["rank"]
        self.count: int = config["counts"][self.rank]
        self.size: int = config["size"]
        self.sample_every: int = config["sample_every"]
        self.single: bool = config["single"]
        self.in_place: bool = config["in_place"]
        self.delay_s: float = config["delay_us"] / 1e6 if self.count < 0 else 0.0
        self.pace_per_s: float = config["pace_per_s"]
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if self.pace_per_s:
                self.paced()
            elif self.delay_s or self.count < 0:
                self.delayed()
            elif self.single:
                self.one_by_one()
            elif self.in_place and self.port.writes_arrays:
                self.arrays()
            else:
                self.batches()
        except BaseException as error:
            self.error = error
            self.over.set()

    def batches(self) -> None:
        batch = max(1, min(512, BATCH_BYTES // self.size))
        while self.sent < self.count:
            n = min(batch, self.count - self.sent)
            self.port.write_many(make_payloads(self.rank, self.sent, n, self.size, self.sample_every))
            self.sent += n

    def arrays(self) -> None:
        import numpy as np

        batch = max(1, min(512, BATCH_BYTES // self.size))
        rows = np.zeros(batch, np.dtype([("data", "u1", (self.size,))]))
        while self.sent < self.count:
            part = rows[:min(batch, self.count - self.sent)]
            fill_rows(part.view(np.uint8).reshape(-1), self.rank, self.sent, self.size, self.sample_every)
            self.port.write_many(part)
            self.sent += len(part)

    def one_by_one(self) -> None:
        write, rank, size, every = self.port.write, self.rank, self.size, self.sample_every
        for index in range(self.count):
            write(make_payloads(rank, index, 1, size, every)[0])
        self.sent = self.count

    def delayed(self) -> None:
        while not self.over.is_set():
            self.port.write(make_payloads(self.rank, self.sent, 1, self.size, self.sample_every)[0])
            self.sent += 1
            pacing.sleep_ns(int(self.delay_s * 1e9))

    def paced(self) -> None:
        period_ns = int(1e9 / self.pace_per_s)
        due_ns = monotonic_ns()
        for index in range(self.count):
            due_ns += period_ns
            pacing.sleep_until_ns(due_ns)
            self.port.write(make_payloads(self.rank, index, 1, self.size, 1)[0])
        self.sent = self.count


def receive_batches(port: Port, tally: Tally, over: threading.Event, most: int) -> None:
    while not tally.done and not over.is_set():
        samples = port.take(most)
        if samples:
            tally.take_list(samples)
        else:
            port.wait(0.1)


def receive_in_place(port: Port, tally: Tally, over: threading.Event, most: int) -> None:
    while not tally.done and not over.is_set():
        if not port.take_rows(most, tally.take_rows):
            port.wait(0.1)


def receive_one_by_one(port: Port, tally: Tally, over: threading.Event, most: int) -> None:
    account = tally.take
    while not tally.done and not over.is_set():
        samples = port.take(most)
        for sample in samples:
            account(sample)
        if not samples:
            port.wait(0.1)


def receive_paced(port: Port, tally: Tally, over: threading.Event, most: int) -> None:
    """As a program does that waits for each sample: its way of iterating is what is measured."""
    account = tally.take
    while not tally.done and not over.is_set():
        for sample in port.each(0.1):
            account(sample)
            if tally.done:
                break


def publish_alone(publisher: Publisher) -> dict[str, Any]:
    """The measured part of a process that only publishes."""
    cpu_before_s = cpu_s()
    start_ns = monotonic_ns()
    publisher.run()
    if publisher.error is not None:
        raise publisher.error
    return {"start_ns": start_ns, "cpu_s": cpu_s() - cpu_before_s, "sent": publisher.sent}


def await_matched(port: Port, config: dict[str, Any]) -> None:
    """Until all readers and writers of the run are members. Raises TimeoutError."""
    # The idle topics are opened first, and each of them takes a few views of the group.
    timeout_s = max(MATCH_TIMEOUT_S, config["timeout_s"] / 3) + 0.5 * config["idle_topics"]
    until = time.monotonic() + timeout_s
    while not port.matched(config["nodes"], config["n_senders"]):
        if time.monotonic() > until:
            raise TimeoutError(
                f"not all of {config['nodes']} readers and {config['n_senders']} writers were there "
                f"after {timeout_s:g} s, but {port.found()}"
            )
        time.sleep(POLL_S)


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One application: opens its port, waits until all others are there, plays its part, reports."""
    pacing.precise_timers()
    port = open_port(config)
    await_matched(port, config)
    channel.send({"event": "ready"})
    channel.receive(config["timeout_s"])
    channel.send({"event": "done", **measure(port, config)})
    channel.receive(config["timeout_s"])
    port.close()
    channel.send({"event": "stopped"})


def measure(port: Port, config: dict[str, Any]) -> dict[str, Any]:
    """The measured part. Returns what multicast.assemble() wants of a node."""
    over = threading.Event()
    publisher = Publisher(port, config, over)
    if config["part"] == WRITER:
        return publish_alone(publisher)
    tally = Tally(config["counts"])
    thread = threading.Thread(target=publisher.run, name="publisher", daemon=True)
    counters_before = port.counters()
    cpu_before_s = cpu_s()
    start_ns = monotonic_ns()
    publishes = publisher.count and config["part"] != READER
    if publishes:
        thread.start()
    watchdog = threading.Timer(config["timeout_s"], over.set)
    watchdog.daemon = True
    watchdog.start()
    receive = receive_one_by_one if config["single"] else receive_batches
    if config["in_place"]:
        receive = receive_in_place
    if config["pace_per_s"]:
        receive = receive_paced
    receive(port, tally, over, max(1, TAKE_BYTES // config["size"]))
    report_ns = monotonic_ns()
    used_s = cpu_s() - cpu_before_s
    counters = port.counters()
    over.set()
    watchdog.cancel()
    if publishes:
        thread.join(5.0)
    if publisher.error is not None:
        raise publisher.error
    return {
        "tally": tally.result(),
        "start_ns": start_ns,
        "report_ns": report_ns,
        "cpu_s": used_s,
        "sent": publisher.sent,
        "counters": {name: value - counters_before.get(name, 0) for name, value in counters.items()},
        "reader_lost": port.lost(),
    }
