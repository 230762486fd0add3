"""Types and programs for tests of recordings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dds
from dds.idl import make_idl_struct
from dds.idl.annotations import appendable
from dds.idl.types import float64, int32, sequence
from tests.spindle.cli.support import Cli, Spawned, spawn
from tests.support import wait_until

LONG = dds.duration(seconds=15)
POINT = make_idl_struct("Point", "flight.Point", {"x": float64, "y": float64})
STATE = make_idl_struct("State", "flight.State", {"number": int32, "name": str, "track": sequence[POINT]})
FIX = make_idl_struct("Fix", "flight.Fix", {"aircraft": str, "altitude": int32},
                      field_annotations={"aircraft": {"key": True}})
WIDER = appendable(make_idl_struct("Grows", "flight.Grows", {"number": int32, "more": int32}))
GROWS = appendable(make_idl_struct("Grows", "flight.Grows", {"number": int32}))
OTHER_STATE = make_idl_struct("State", "flight.State", {"number": str, "speed": float64})
RECORD = np.dtype([("time", "f8"), ("feet", "f4")])


@contextmanager
def recording(topics: list[str], out: Path, participant: dds.DomainParticipant, names: list[str], *more: object
              ) -> Iterator[Spawned]:
    """`spindle record`, once it reads these topics of the node. Ends it as Ctrl-C does; it must end well."""
    session = participant._runtime.session
    before = {name: readers(session, name) for name in names}
    with spawn("record", *topics, "-o", out, *more) as command:
        try:
            wait_until(lambda: all(readers(session, name) > before[name] for name in names), 30,
                       "spindle record reads the topics")
            yield command
            if command.poll() is None:
                command.send_signal(2)
            _, err = command.communicate(timeout=30)
            assert command.returncode == 0, err.decode()
        finally:
            if command.poll() is None:
                command.kill()
                command.communicate()


def readers(session: Any, topic: str) -> int:
    return sum(not one.is_writer for one in session.endpoints(topic))


class Collecting:
    """Takes all samples of some readers as they come, on a thread; `got` has (topic, sample, instance state)."""

    def __init__(self, *readers: dds.DataReader[Any]) -> None:
        self.got: list[tuple[str, Any, int]] = []
        self._readers, self._ends = readers, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.is_set():
            for reader in self._readers:
                for sample in reader.take(100):
                    self.got.append((reader.topic.name, sample, int(sample.sample_info.instance_state)))
            self._ends.wait(0.002)

    def __enter__(self) -> Collecting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def written(writer: dds.DataWriter[Any], *samples: Any) -> None:
    for sample in samples:
        writer.write(sample)
    assert writer.wait_for_acks(LONG)


def played(cli: Cli, *arguments: object) -> Any:
    result = cli("replay", *arguments)
    assert result.code == 0, result.err
    return result


def a_state(number: int) -> Any:
    return STATE(number, f"n{number}", [POINT(number, -1.0)] * (number % 3))
