"""The APIs under measurement, behind one face: a writer and a reader of one topic, on a node of its own.

Rules: reliable and keep-all on every API, so that nothing may be lost; the reader is there before the writer; `matched`
is what the group says, not what we hope.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spindle.client import Session
    from spindle.config.settings import NodeConfig

TOPIC = "bench"
IDLE_WINDOW = 16  # slots of a topic in which nobody writes
EACH_MAX = 64  # samples taken at a time where they are wanted one by one


class Port(abc.ABC):
    """One application's writer and reader."""

    writes_arrays = False  # write_many() takes an array of records

    @abc.abstractmethod
    def write(self, payload: bytes) -> None:
        """One message; blocks while there is no room."""

    @abc.abstractmethod
    def write_many(self, payloads: Any) -> None:
        """All of them, as one batch: messages, or an array of records."""

    @abc.abstractmethod
    def take(self, n: int) -> list[Any]:
        """Up to n samples, without waiting."""

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Until there is a sample, or the timeout."""

    @property
    @abc.abstractmethod
    def session(self) -> Session:
        """The session with the node."""

    def matched(self, readers: int, writers: int) -> bool:
        """True once so many nodes read the topic and so many write it."""
        topics = {topic.spec.name: topic for topic in self.session.topics()}
        found = topics.get(TOPIC)
        return found is not None and len(found.members) == readers and len(found.senders) == writers

    def found(self) -> str:
        """Who is there, for an error's text."""
        return f"{self.session.topics()} in {self.session.view()}"

    def take_rows(self, n: int, account: Callable[[Any], None]) -> int:
        """Has up to n samples accounted in place, as an array of bytes of shape (count, size); returns how many."""
        raise NotImplementedError("this API has no batches in place")

    def counters(self) -> dict[str, int]:
        """The node's counters."""
        return self.session.counters().snapshot()

    def each(self, timeout_s: float) -> Iterator[Any]:
        """Samples one by one as they come, until none has come for so long."""
        while True:
            samples = self.take(EACH_MAX)
            if samples:
                yield from samples
                continue
            before = time.monotonic()
            self.wait(timeout_s)
            if time.monotonic() - before >= timeout_s:
                return

    @abc.abstractmethod
    def lost(self) -> int:
        """Samples that the reader says it has lost."""

    @abc.abstractmethod
    def close(self) -> None: ...


def node_config(config: dict[str, Any]) -> NodeConfig:
    """The configuration of this rank's embedded node, with the switches that were asked for."""
    from pathlib import Path

    from spindle.config.settings import NodeConfig
    from spindle_lab.bench.options import SWITCHES

    settings: dict[str, Any] = {name: name in config["switches"] for name in SWITCHES}
    settings["skip_idle"] = config["skip_idle"]
    return NodeConfig(
        node_id=config["rank"] + 1,
        runtime_dir=Path(config["runtime_dir"]),
        busy_poll_us=config["busy_poll_us"],
        log_level="warning",
        fabric=config["fabric"],
        **settings,
        **config["patience"],
        **config["node_options"],
    )


class SessionPort(Port):
    """spindle.client: what the DDS layer stands on."""

    def __init__(self, config: dict[str, Any]) -> None:
        from spindle.client import attach, embed
        from spindle.group.levels import Level
        from spindle.group.topics import TopicSpec

        if config["daemon"]:
            self._session = attach(runtime_dir=config["runtime_dir"], node_id=config["rank"] + 1)
        else:
            self._session = embed(config=node_config(config))
        level = Level[config["level"].upper()]
        self.idle = []
        for number in range(config["idle_topics"]):
            name = f"{TOPIC}-idle-{number}"
            self.session.declare_topic(TopicSpec(name, level=level, size_max=config["size"], window=IDLE_WINDOW))
            self.idle.append((self.session.open_reader(name, keep_all=True, from_history=False),
                              self.session.open_writer(name)))  # fmt: skip
        self.session.declare_topic(TopicSpec(TOPIC, level=level, size_max=config["size"], window=config["window"]))
        self.reader = self.session.open_reader(TOPIC, keep_all=True, from_history=False)
        sends = config["rank"] < config["n_senders"]
        self.writer = self.session.open_writer(TOPIC) if sends else None

    @property
    def session(self) -> Session:
        return self._session

    def write(self, payload: bytes) -> None:
        assert self.writer is not None
        self.writer.inbox.write(payload)

    def write_many(self, payloads: Any) -> None:
        assert self.writer is not None
        self.writer.inbox.write_many(payloads)

    def take(self, n: int) -> list[Any]:
        return self.reader.log.take(n)

    def wait(self, timeout_s: float) -> None:
        self.reader.log.wait(timeout_s)

    def lost(self) -> int:
        return int(self.reader.log.lost)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader.close()
        self.session.close()


class DdsPort(Port):
    """The DDS API, used as its users do."""

    def __init__(self, config: dict[str, Any]) -> None:
        from dds.core import InstanceState, ReadCondition, SampleState, ViewState, WaitSet
        from dds.domain import Domain, DomainParticipant
        from dds.pub import DataWriter
        from dds.sub import DataReader
        from dds.topic import Topic

        rank = config["rank"]
        if config["daemon"]:
            self.participant = DomainParticipant(runtime_dir=config["runtime_dir"], node_id=rank + 1)
        else:
            self.domain = Domain(0, node_config(config))
            self.participant = DomainParticipant.embedded(0)
        qos = qos_of(config["level"])
        self.idle = []
        for number in range(config["idle_topics"]):
            unused: Topic[bytes] = Topic(
                self.participant, f"{TOPIC}-idle-{number}", bytes, qos, size_max=config["size"], window=IDLE_WINDOW
            )
            self.idle.append(
                (DataReader(self.participant, unused, qos), DataWriter(self.participant, unused, qos))
            )
        topic: Topic[Any]
        if config["in_place"]:
            import numpy as np

            self.writes_arrays = True
            record = np.dtype([("data", "u1", (config["size"],))])
            topic = Topic(self.participant, TOPIC, record, qos, window=config["window"])
            self.record = record
        else:
            topic = Topic(self.participant, TOPIC, bytes, qos, size_max=config["size"], window=config["window"])
        self.reader = DataReader(self.participant, topic, qos)
        self.take_samples = self.reader.take
        self.condition = ReadCondition(self.reader, SampleState.Any | ViewState.Any | InstanceState.Any)
        self.waitset = WaitSet(self.participant)
        self.waitset.attach(self.condition)
        if rank < config["n_senders"]:
            self.writer = writer = DataWriter(self.participant, topic, qos)
            # What the loops call is the writer's own method: nothing of ours between.
            self.write = writer.write  # type: ignore[method-assign, assignment]
            self.write_many = writer.write_many  # type: ignore[method-assign, assignment]

    def write(self, payload: bytes) -> None:
        raise NotImplementedError("this rank sends nothing")

    def write_many(self, payloads: Any) -> None:
        raise NotImplementedError("this rank sends nothing")

    def take(self, n: int) -> list[Any]:
        return self.take_samples(n)

    def take_rows(self, n: int, account: Callable[[Any], None]) -> int:
        with self.reader.take_batch(n) as batch:
            if len(batch):
                account(batch.array["data"])
            return len(batch)

    def wait(self, timeout_s: float) -> None:
        self.waitset.wait(int(timeout_s * 1e9))

    def each(self, timeout_s: float) -> Iterator[Any]:
        return self.reader.take_iter(timeout=int(timeout_s * 1e9))

    @property
    def session(self) -> Session:
        return self.participant.session

    def matched(self, readers: int, writers: int) -> bool:
        """The group's view of it, and the reader's own."""
        return super().matched(readers, writers) and len(self.reader.get_matched_publications()) == writers

    def lost(self) -> int:
        return int(self.reader.get_sample_lost_status().total_count)

    def close(self) -> None:
        self.participant.close()


def qos_of(level: str) -> Any:
    """The Qos that stands for a level; nothing is ever overtaken."""
    from dds.qos import Policy, Qos
    from dds.util import duration

    if level == "unordered":
        return Qos(Policy.Reliability.BestEffort, Policy.History.KeepAll)
    durability = {
        "atomic": Policy.Durability.Volatile,
        "volatile": Policy.Durability.TransientLocal,
        "logged": Policy.Durability.Persistent,
    }[level]
    return Qos(Policy.Reliability.Reliable(duration(seconds=30)), durability, Policy.History.KeepAll)
