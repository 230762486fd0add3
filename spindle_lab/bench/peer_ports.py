"""Other systems behind the face of app_ports.py, so that the same loops measure them in the same run.

They are what Python programs take for data on one host: cyclonedds-python (DDS over loopback), and iceoryx2 (shared
memory, one reader's queue for each writer). Neither gives one order over all writers; a run reports that as it finds
it, and fails only for what is lost, torn, or out of the order of its own writer.

Rules: as for our own ports nothing may be lost, so a writer waits; every reader gets every writer's messages, its own
node's too; each reader reads every byte, from where the library puts it: an array member of a decoded sample
(cyclonedds), a copy or, with `in_place`, the shared memory itself (iceoryx2). What a peer has no call for, batches, is
a loop over its call for one message. The extra `bench` brings the packages.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spindle_lab.bench.app_ports import TOPIC, Port
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.options import PEERS, WRITER

QUEUE_MESSAGES = 256  # of each reader for each writer (iceoryx2)
SENDER_BYTE = 6  # of a message: the lower byte of its sender
SHARED_MEMORY = Path("/dev/shm")


def missing(api: str) -> str:
    """What to install for this peer, as a text for people; empty if it is there."""
    package = PEERS[api]
    return "" if importlib.util.find_spec(package) else f"not installed in this environment: pip install {package}"


def check_peer(api: str) -> None:
    """Raises BenchFailed unless the package of this API is installed."""
    if why := missing(api):
        raise BenchFailed(f"{api} is {why}")


def packages(*names: str) -> list[Any]:
    """Modules that mypy needn't find: they are not installed everywhere."""
    return [importlib.import_module(name) for name in names]


def domain_of(runtime_dir: str) -> int:
    """A DDS domain for this run, 1 to 229: those of the runs of one host rarely meet, and never one's default."""
    return 1 + zlib.crc32(runtime_dir.encode()) % 229


def shared_memory_prefix(runtime_dir: str) -> str:
    return f"{Path(runtime_dir).name}-"


def taken_counts(runtime_dir: str, nodes: int) -> list[memoryview]:
    """How many messages each reader has taken from each writer: [reader][writer], in memory that all processes share.
    Each row is written by its reader only."""
    with open(Path(runtime_dir) / "taken", "a+b") as file:
        os.ftruncate(file.fileno(), 8 * nodes * nodes)
        words = memoryview(mmap.mmap(file.fileno(), 8 * nodes * nodes)).cast("Q")
    return [words[reader * nodes : (reader + 1) * nodes] for reader in range(nodes)]


def clean_up(runtime_dir: str) -> None:
    """Removes what iceoryx2's processes leave in shared memory when they are killed, or simply end."""
    for left in SHARED_MEMORY.glob(f"{shared_memory_prefix(runtime_dir)}*"):
        left.unlink(missing_ok=True)


class PeerPort(Port):
    """What our own ports have a session for."""

    @property
    def session(self) -> Any:
        raise NotImplementedError("a peer's port has no session of ours")

    def found(self) -> str:
        return "others"

    def write_many(self, payloads: Any) -> None:
        write = self.write
        for payload in payloads:
            write(payload)

    def counters(self) -> dict[str, int]:
        return {}

    def lost(self) -> int:
        return 0  # what is missing shows in the tally


class CyclonePort(PeerPort):
    """cyclonedds-python: samples of one array of octets (given and taken as `bytes`), a wait set and `take`."""

    def __init__(self, config: dict[str, Any]) -> None:
        # What one host needs and no more: loopback, and a domain that nobody else is in.
        os.environ["CYCLONEDDS_URI"] = (
            '<CycloneDDS><Domain Id="any"><General><Interfaces><NetworkInterface name="lo" multicast="true"/>'
            "</Interfaces></General></Domain></CycloneDDS>"
        )
        core, idl, types = packages("cyclonedds.core", "cyclonedds.idl", "cyclonedds.idl.types")
        domain, pub, sub, topics, util = packages(
            "cyclonedds.domain", "cyclonedds.pub", "cyclonedds.sub", "cyclonedds.topic", "cyclonedds.util")

        self.kind = idl.make_idl_struct("Message", "Message", {"data": types.array[types.uint8, config["size"]]})
        qos = core.Qos(core.Policy.Reliability.Reliable(util.duration(seconds=30)), core.Policy.History.KeepAll)
        self.participant = domain.DomainParticipant(domain_of(config["runtime_dir"]))
        topic = topics.Topic(self.participant, TOPIC, self.kind, qos=qos)
        self.reader = sub.DataReader(self.participant, topic, qos=qos)
        everything = core.SampleState.Any | core.ViewState.Any | core.InstanceState.Any
        self.condition = core.ReadCondition(self.reader, everything)
        self.waitset = core.WaitSet(self.participant)
        self.waitset.attach(self.condition)
        self.writer: Any = None
        if config["rank"] < config["n_senders"]:
            self.writer = pub.DataWriter(self.participant, topic, qos=qos)

    def write(self, payload: bytes) -> None:
        self.writer.write(self.kind(data=payload))

    def take(self, n: int) -> list[Any]:
        return [sample.data for sample in self.reader.take(n)]

    def wait(self, timeout_s: float) -> None:
        self.waitset.wait(int(timeout_s * 1e9))

    def matched(self, readers: int, writers: int) -> bool:
        """Both sides see all of the other: then nothing that is written passes anybody by."""
        if len(self.reader.get_matched_publications()) != writers:
            return False
        return self.writer is None or len(self.writer.get_matched_subscriptions()) == readers

    def close(self) -> None:
        del self.waitset, self.condition, self.reader, self.writer, self.participant


class IceoryxPort(PeerPort):
    """iceoryx2: slices of bytes in shared memory, and an event for those that wait; polling: no event.

    A publisher that is to wait for a full queue (RetryUntilDelivered) sleeps with the interpreter's lock held, and with
    three of them at once runs didn't end, or lost messages (iceoryx2 0.10). So readers say in memory of our own how
    many messages they have taken from whom, and no publisher gets further ahead than a queue holds. Publisher and
    subscriber are two processes (`part`).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        import ctypes

        [iceoryx2] = packages("iceoryx2")
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self.size = config["size"]
        self.polls = config["api"] == "iceoryx2-polling"
        # Names, files and memory of this run alone, to be removed with it.
        own = iceoryx2.config.default()
        own.global_cfg.prefix = iceoryx2.FileName.new(shared_memory_prefix(config["runtime_dir"]))
        own.global_cfg.root_path = iceoryx2.Path.new(config["runtime_dir"])
        self.node = iceoryx2.NodeBuilder.new().config(own).create(iceoryx2.ServiceType.Ipc)
        name, nodes = iceoryx2.ServiceName.new(TOPIC), config["nodes"]
        self.taken = taken_counts(config["runtime_dir"], nodes)
        self.service = (
            self.node.service_builder(name).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
            .max_publishers(nodes).max_subscribers(nodes).max_nodes(2 * nodes)
            .enable_safe_overflow(False).subscriber_max_buffer_size(QUEUE_MESSAGES).open_or_create()
        )  # fmt: skip
        event = (
            self.node.service_builder(name).event().max_listeners(nodes).max_notifiers(nodes).max_nodes(2 * nodes)
            .open_or_create()
        )  # fmt: skip
        if config["part"] == WRITER:
            self.publisher = (
                self.service.publisher_builder().initial_max_slice_len(self.size)
                .backpressure_strategy(iceoryx2.BackpressureStrategy.DiscardData).create()
            )  # fmt: skip
            self.notifier = event.notifier_builder().create()
            self.fill = ctypes.memmove
            self.rank, self.sent, self.free_until = config["rank"], 0, 0
        else:
            self.rank = config["rank"]
            self.milliseconds = iceoryx2.Duration.from_millis
            self.listener = event.listener_builder().create()
            self.subscriber = self.service.subscriber_builder().buffer_size(QUEUE_MESSAGES).create()

    def send(self, payload: bytes) -> None:
        while self.sent >= self.free_until:
            self.free_until = min(row[self.rank] for row in self.taken) + QUEUE_MESSAGES
            if self.sent >= self.free_until:
                os.sched_yield()
        self.sent += 1
        slot = self.publisher.loan_slice_uninit(self.size)
        self.fill(slot.payload().as_ptr(), payload, self.size)
        slot.assume_init().send()

    def write(self, payload: bytes) -> None:
        self.send(payload)
        if not self.polls:
            self.notifier.notify()

    def write_many(self, payloads: Any) -> None:
        for payload in payloads:
            self.send(payload)
        if not self.polls:
            self.notifier.notify()

    def take(self, n: int) -> list[Any]:
        found: list[Any] = []
        receive = self.subscriber.receive
        while len(found) < n:
            sample = receive()
            if sample is None:
                break
            found.append(sample.payload().as_memory_view().tobytes())
            sample.delete()
        self.say_taken(found)
        return found

    def say_taken(self, payloads: list[bytes]) -> None:
        """Lets their publishers go on: a message's first word says whose it is (payload.pxd)."""
        for payload in payloads:
            self.taken[self.rank][payload[SENDER_BYTE]] += 1

    def take_rows(self, n: int, account: Callable[[Any], None]) -> int:
        """One sample at a time, where it lies in the shared memory."""
        receive = self.subscriber.receive
        for taken in range(n):
            sample = receive()
            if sample is None:
                return taken
            view = sample.payload().as_memory_view().cast("B")
            account(view.cast("B", (1, self.size)))
            sender = view[SENDER_BYTE]
            sample.delete()
            self.taken[self.rank][sender] += 1
        return n

    def wait(self, timeout_s: float) -> None:
        if self.polls:
            os.sched_yield()
        else:
            self.listener.timed_wait(self.milliseconds(int(timeout_s * 1000)))

    def matched(self, readers: int, writers: int) -> bool:
        found = self.service.dynamic_config
        return bool(found.number_of_subscribers == readers and found.number_of_publishers == writers)

    def close(self) -> None:
        """Nothing: what it has left behind goes with the run."""
