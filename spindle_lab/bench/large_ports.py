"""What the programs of `bench large` write to and read from: this project's DDS API, and the systems beside it.

Each sample is a number of 8 bytes and then words that all say one value, which follows from the number; `take` gives
the number, and the sum of the words. Our own and iceoryx2's are filled and read in place; cyclonedds' go through its
encoding, as it has no other way.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.peer_ports import check_peer, packages, shared_memory_prefix, taken_counts
from spindle_lab.bench.peer_ports import clean_up as clean_up
from spindle_lab.bench.peer_ports import missing as missing

PEERS = ("iceoryx2", "cyclonedds")
TOPIC, SMALL = "large", "small"
QUEUE_SAMPLES = 2  # of each reader (iceoryx2)
MASK = (1 << 64) - 1


def value_of(number: int) -> int:
    """What all words of a sample say."""
    return (number + 1) * 0x0101010101010101 & MASK


class Port:
    def __init__(self, config: dict[str, Any]) -> None:
        self.nodes = config["nodes"]
        self.words = config["size"] // 8 - 1

    def sum_of(self, number: int) -> int:
        return value_of(number) * self.words & MASK

    def put(self, number: int) -> None:
        raise NotImplementedError

    def take(self, timeout_s: float) -> tuple[int, int]:
        raise NotImplementedError

    def wait_matched(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not self.matched():
            if time.monotonic() > until:
                raise BenchFailed("readers and writer have not found each other in time")
            time.sleep(0.01)

    def matched(self) -> bool:
        raise NotImplementedError


class SpindlePort(Port):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        os.environ["SPINDLE_RUNTIME_DIR"] = config["runtime_dir"]
        os.environ["SPINDLE_NODE_ID"] = str(config["node"])
        import numpy as np

        import dds

        self.np, self.dds = np, dds
        is_small = config["part"].startswith("small")
        kind: Any = bytes if is_small else np.dtype([("number", "u8"), ("words", "u8", (self.words,))])
        self.participant = dds.DomainParticipant()
        qos = dds.Qos(dds.Policy.Reliability.Reliable(dds.duration(seconds=30)), dds.Policy.History.KeepAll)
        topic: Any = dds.Topic(self.participant, SMALL if is_small else TOPIC, kind, qos=qos)
        self.reader = self.writer = None  # type: Any
        if config["part"].endswith("reader"):
            self.reader = dds.DataReader(self.participant, topic, qos=qos)
        else:
            self.writer = dds.DataWriter(self.participant, topic, qos=qos)

    def put(self, number: int) -> None:
        with self.writer.loan() as sample:
            sample["number"] = number
            sample["words"] = self.np.uint64(value_of(number))

    def take(self, timeout_s: float) -> tuple[int, int]:
        for sample in self.reader.take_iter(timeout=int(timeout_s * 1e9)):
            return int(sample["number"]), int(sample["words"].sum())
        raise BenchFailed("no sample came in time")

    def put_small(self, now_ns: int) -> None:
        self.writer.write(now_ns.to_bytes(8, "little") * 8)

    def take_small(self, timeout_s: float) -> list[int]:
        for sample in self.reader.take_iter(timeout=int(timeout_s * 1e9)):
            more = self.reader.take(64)
            return [int.from_bytes(one[:8], "little") for one in (sample, *more)]
        raise BenchFailed("no message came in time")

    def matched(self) -> bool:
        if self.reader is not None:
            return len(self.reader.get_matched_publications()) == 1
        return len(self.writer.get_matched_subscriptions()) == self.nodes


class IceoryxPort(Port):
    """Loaned slices. What no queue holds waits in the program: see peer_ports.IceoryxPort."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        import numpy as np

        [iceoryx2] = packages("iceoryx2")
        self.np = np
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        own = iceoryx2.config.default()
        own.global_cfg.prefix = iceoryx2.FileName.new(shared_memory_prefix(config["runtime_dir"]))
        own.global_cfg.root_path = iceoryx2.Path.new(config["runtime_dir"])
        self.iox_node = iceoryx2.NodeBuilder.new().config(own).create(iceoryx2.ServiceType.Ipc)
        self.taken = taken_counts(config["runtime_dir"], self.nodes)
        self.size = 8 * (self.words + 1)
        self.service = (
            self.iox_node.service_builder(iceoryx2.ServiceName.new(TOPIC))
            .publish_subscribe(iceoryx2.Slice[ctypes.c_uint64])
            .max_publishers(1).max_subscribers(self.nodes).max_nodes(2 * self.nodes)
            .enable_safe_overflow(False).subscriber_max_buffer_size(QUEUE_SAMPLES).open_or_create()
        )  # fmt: skip
        self.rank, self.sent = config["node"] - 1, 0
        if config["part"] == "writer":
            self.publisher = (
                self.service.publisher_builder().initial_max_slice_len(self.words + 1)
                .backpressure_strategy(iceoryx2.BackpressureStrategy.DiscardData).create()
            )  # fmt: skip
        else:
            self.subscriber = self.service.subscriber_builder().buffer_size(QUEUE_SAMPLES).create()

    def put(self, number: int) -> None:
        while self.sent >= min(row[0] for row in self.taken) + QUEUE_SAMPLES:
            time.sleep(0.0002)
        self.sent += 1
        slot = self.publisher.loan_slice_uninit(self.words + 1)
        address = ctypes.cast(slot.payload().as_ptr(), ctypes.c_void_p).value
        assert address is not None
        words = self.np.ctypeslib.as_array((ctypes.c_uint64 * (self.words + 1)).from_address(address))
        words[0] = number
        words[1:] = self.np.uint64(value_of(number))
        slot.assume_init().send()

    def take(self, timeout_s: float) -> tuple[int, int]:
        until = time.monotonic() + timeout_s
        while (sample := self.subscriber.receive()) is None:
            if time.monotonic() > until:
                raise BenchFailed("no sample came in time")
            time.sleep(0.0002)
        # The view says that it has as many words as bytes (iceoryx2 0.10).
        words = self.np.frombuffer(sample.payload().as_memory_view(), self.np.uint64, self.words + 1)
        found = int(words[0]), int(words[1:].sum())
        del words
        sample.delete()
        self.taken[self.rank][0] += 1
        return found

    def matched(self) -> bool:
        found = self.service.dynamic_config
        return bool(found.number_of_subscribers == self.nodes and found.number_of_publishers == 1)


class CyclonePort(Port):
    """One array of octets; `bytes` in and out."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        import numpy as np

        from spindle_lab.bench import peer_ports

        self.np = np
        plain = {"size": 8 * (self.words + 1), "runtime_dir": config["runtime_dir"], "rank": config["node"] - 1,
                 "n_senders": 0}
        self.is_writer = config["part"] == "writer"
        if self.is_writer:
            plain |= {"rank": 0, "n_senders": 1}
        self.port = peer_ports.CyclonePort(plain)
        if self.is_writer:
            self.port.reader = self.port.condition = self.port.waitset = None  # its node has a reader already

    def put(self, number: int) -> None:
        words = self.np.full(self.words + 1, value_of(number), self.np.uint64)
        words[0] = number
        self.port.write(words.tobytes())

    def take(self, timeout_s: float) -> tuple[int, int]:
        until = time.monotonic() + timeout_s
        while not (found := self.port.take(1)):
            if time.monotonic() > until:
                raise BenchFailed("no sample came in time")
            self.port.wait(1.0)
        words = self.np.frombuffer(bytes(found[0]), self.np.uint64)
        return int(words[0]), int(words[1:].sum())

    def matched(self) -> bool:
        if self.is_writer:
            return len(self.port.writer.get_matched_subscriptions()) == self.nodes
        return len(self.port.reader.get_matched_publications()) == 1


def open_port(config: dict[str, Any]) -> Any:
    """Raises BenchFailed for a system that isn't installed."""
    if config["api"] == "spindle":
        return SpindlePort(config)
    check_peer(config["api"])
    return IceoryxPort(config) if config["api"] == "iceoryx2" else CyclonePort(config)


__all__ = ["PEERS", "clean_up", "missing", "open_port", "value_of"]
