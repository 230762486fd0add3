"""`bench keyed`: what taking a sample costs its reader, of types with a key and of the same types without one.

One embedded node with a writer and a reader for each kind; the writer's batch is all there before the reader takes it.
What counts is processor time of the reader's thread, in rounds that take turns, so that other work on the machine
hardly matters. And what instances cost in memory: with all alive, and after they have gone.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from spindle_lab.bench.crew import BenchFailed

BATCH = 256  # samples of one round
WAIT_S = 20.0
RECORD_PAD = 1000  # bytes of a record beside its fields: together about 1 KB


def run(rounds: int = 101, keys: int = 1000, instances: int = 100_000) -> dict[str, Any]:
    """Nanoseconds of the reader for each sample, and the ratios; bytes for each instance. Raises BenchFailed."""
    import numpy as np

    from dds import DataReader, DataWriter, Domain, DomainParticipant, Policy, Qos, Topic
    from dds.idl import IdlStruct
    from dds.idl.annotations import key
    from spindle.config.settings import NodeConfig

    @dataclasses.dataclass
    class Plain(IdlStruct):
        number: int
        x: float
        name: str

    @dataclasses.dataclass
    class Keyed(IdlStruct):
        number: int
        key("number")
        x: float
        name: str

    dtype = np.dtype([("number", "i4"), ("x", "f8"), ("rest", f"S{RECORD_PAD}")])
    rows = np.zeros(BATCH, dtype)
    numbers = iter(range(1 << 62))

    def idl_samples(cls: Any) -> list[Any]:
        return [cls(next(numbers) % keys, 1.5, "name") for _ in range(BATCH)]

    def records(_: Any) -> Any:
        rows["number"] = [next(numbers) % keys for _ in range(BATCH)]
        return rows

    qos = Qos(Policy.Reliability.Reliable(int(WAIT_S * 1e9)), Policy.History.KeepAll)
    last = Qos(Policy.Reliability.Reliable(int(WAIT_S * 1e9)), Policy.History.KeepLast(1))
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        domain = Domain(0, NodeConfig(node_id=1, runtime_dir=Path(directory), log_level="warning"))
        participant = DomainParticipant.embedded(0)
        try:
            kinds = {}
            for name, data_type, fields, make, reader_qos in (
                ("idl", Plain, (), idl_samples, qos), ("idl_keyed", Keyed, (), idl_samples, qos),
                ("idl_keyed_keep_last", Keyed, (), idl_samples, last),
                ("records", dtype, (), records, qos), ("records_keyed", dtype, ("number",), records, qos),
                ("in_place", dtype, (), records, qos), ("in_place_keyed", dtype, ("number",), records, qos),
            ):  # fmt: skip
                topic: Topic[Any] = Topic(participant, f"bench-{name}", data_type, qos, keys=list(fields))
                reader, writer = DataReader(participant, topic, reader_qos), DataWriter(participant, topic, qos)
                kinds[name] = (lambda t=data_type, m=make: m(t), reader, writer, name.startswith("in_place"))
            found: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(rounds):
                for name, (fresh, reader, writer, in_place) in kinds.items():
                    found[name].append(taken_ns(fresh(), reader, writer, in_place, len(found[name]) * BATCH, keys))
            costs = {name: round(statistics.median(one[rounds // 10:])) for name, one in found.items()}
            memory = memory_of(instances, Keyed, *kinds["idl_keyed"][1:3])
        finally:
            participant.close()
            domain.close()
    return {
        "keys": keys,
        "take_ns": costs,
        "keyed_to_unkeyed": {
            "idl": round(costs["idl_keyed"] / costs["idl"], 2),
            "idl_keep_last": round(costs["idl_keyed_keep_last"] / costs["idl"], 2),
            "records": round(costs["records_keyed"] / costs["records"], 2),
        },
        "in_place_keyed_more_ns": costs["in_place_keyed"] - costs["in_place"],
        **memory,
    }


def taken_ns(samples: Any, reader: Any, writer: Any, in_place: bool, before: int, keys: int) -> float:
    """Writes a batch, waits for it, takes it; ns of taking for each sample."""
    writer.write_many(samples)
    if not writer.wait_for_acks(int(WAIT_S * 1e9)):
        raise BenchFailed(f"a batch was not delivered within {WAIT_S:g} s")
    got = 0
    start_ns = time.thread_time_ns()
    while got < BATCH:
        if in_place:
            with reader.take_batch(BATCH) as batch:
                count = len(batch)
        else:
            taken = reader.take(BATCH)
            count = len(taken)
            del taken
        if not count:
            break
        got += count
    used_ns = time.thread_time_ns() - start_ns
    if got < min(BATCH, keys):
        raise BenchFailed(f"{got} of {BATCH} samples came")
    return used_ns / BATCH


def memory_of(instances: int, cls: Any, reader: Any, writer: Any) -> dict[str, Any]:
    """Bytes of the reader's and the writer's memory for each instance that is alive, and that is left after each has
    gone."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for start in range(1 << 20, (1 << 20) + instances, BATCH):
            numbers = range(start, min(start + BATCH, (1 << 20) + instances))
            taken_all(reader, writer, [cls(number, 1.5, "name") for number in numbers], writer.write)
        gc.collect()
        alive = tracemalloc.get_traced_memory()[0]
        for start in range(1 << 20, (1 << 20) + instances, BATCH):
            numbers = range(start, min(start + BATCH, (1 << 20) + instances))
            taken_all(reader, writer, [cls(number, 1.5, "name") for number in numbers], writer.unregister_instance)
        gc.collect()
        gone = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return {"instances": instances, "bytes_alive": round((alive - before) / instances),
            "bytes_gone": round((gone - before) / instances)}


def taken_all(reader: Any, writer: Any, samples: list[Any], send: Any) -> None:
    """Sends each, and takes what comes of it."""
    for sample in samples:
        send(sample)
    writer.wait_for_acks(int(WAIT_S * 1e9))
    got = 0
    while got < len(samples):
        count = len(reader.take(BATCH))
        if not count:
            raise BenchFailed(f"{got} of {len(samples)} came")
        got += count
