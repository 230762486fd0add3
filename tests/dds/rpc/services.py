"""The service of these tests, and a program that serves it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dds import DomainParticipant, duration
from dds.rpc import CallTimeout, Client, Server, oneway, raises, service
from tests.support import wait_until


@dataclass
class Short(Exception):
    """An error with a field."""

    litres: float


@service(raises=[Short])
class Pumps:
    """What the tests call."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.gate = threading.Event()
        self.carried_out = 0

    def add(self, a: int, b: int = 1) -> int:
        self.carried_out += 1
        return a + b

    def fill(self, size: int) -> bytes:
        return b"x" * size

    @raises(ZeroDivisionError)
    def divide(self, a: float, b: float) -> float:
        return a / b

    def drain(self, litres: float) -> None:
        raise Short(litres)

    def fail(self, text: str) -> None:
        raise RuntimeError(text)

    def wrong(self) -> int:
        return "no number"  # type: ignore[return-value]

    def wait(self) -> str:
        """Until the test says so."""
        self.carried_out += 1
        self.gate.wait(30)
        return "open"

    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "awake"

    @oneway
    def note(self, text: str) -> None:
        self.noted.append(text)

    def who(self) -> int:
        return os.getpid()

    def count(self) -> int:
        return self.carried_out

    def pause(self) -> None:
        """Until somebody kills the program."""
        print("pausing", flush=True)
        threading.Event().wait(60)


def give_up_on(client: Client[Pumps], timeout_ns: int) -> None:
    """A call of add() whose caller has given up, and whose server can know it."""
    with pytest.raises(CallTimeout):
        client.add.within(timeout_ns)(1)
    client._core._writer.wait_for_acks(duration(seconds=20))
    there_ns = time.monotonic_ns()  # at the server's node, where its time began no later
    wait_until(lambda: time.monotonic_ns() > there_ns + timeout_ns)


PROGRAM = """
import sys
from pathlib import Path
from tests.dds.rpc.services import serve
serve(int(sys.argv[1]), sys.argv[2])
"""


def serve(node_id: int, where: str) -> None:
    participant = (DomainParticipant.remote(where.split(",")) if node_id < 0 else
                   DomainParticipant(node_id=node_id or None, runtime_dir=Path(where)))
    with Server(participant, Pumps(), instance=f"at {node_id}", workers=4) as server:
        print("serving", flush=True)
        server.wait()


@contextmanager
def serving(node_id: int, where: str) -> Iterator[subprocess.Popen[str]]:
    """A program that serves, beside node `node_id` (0 = any), or -1: on a host without a node."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(node_id), where], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "serving\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
