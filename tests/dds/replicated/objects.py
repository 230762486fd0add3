"""The objects of these tests, and programs that replicate them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dds import DomainParticipant
from dds.replicated import Object, Replica, command, query


class Ledger(Object):
    """Who has written what, and whatever a test wants to be large."""

    lines: list[str]
    ballast: bytes = b""
    gone: int = 0

    def __init__(self) -> None:
        self.lines = []

    @command
    def append(self, line: str) -> int:
        """How many lines there are then."""
        self.lines.append(line)
        return len(self.lines)

    @command
    def remove(self, line: str) -> None:
        """Raises ValueError if it isn't there; it is counted all the same."""
        self.gone += 1
        self.lines.remove(line)

    @command
    def load(self, size: int) -> None:
        self.ballast = bytes(size)

    @command
    def touch(self, data: bytes) -> None:
        """Changes nothing, and fills the topic."""

    @command
    def draw(self) -> list[int]:
        """Agreed random numbers, time and place."""
        return [self.order.random.randrange(1 << 40), self.order.timestamp, self.order.index]

    @command
    def differ(self) -> int:
        """What no command may do."""
        self.lines.append(str(os.getpid()))
        return len(self.lines)

    @query
    def all(self) -> list[str]:
        return list(self.lines)

    @query
    def size(self) -> int:
        return len(self.lines)

    @query
    def weight(self) -> int:
        return len(self.ballast)


PROGRAM = """
import sys
from tests.dds.replicated.objects import run
run(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "logged")
"""


def run(node_id: int, where: str, logged: bool) -> None:
    participant = (DomainParticipant.remote(where.split(",")) if node_id < 0 else
                   DomainParticipant(node_id=node_id or None, runtime_dir=Path(where)))
    ledger = Replica(participant, "ledger", Ledger, logged=logged, history_bytes=1 << 20)
    print("live", flush=True)
    for line in sys.stdin:
        what, _, text = line.rstrip("\n").partition(" ")
        if what == "append":
            print(ledger.append(text), flush=True)
        elif what == "pump":  # as fast as it can, until it is killed
            threading.Thread(target=pump, args=(ledger, text), daemon=True).start()
        elif what == "size":
            ledger.synchronize()
            print(ledger.size(), flush=True)
        elif what == "last":
            ledger.synchronize()
            print(ledger.all()[-1], flush=True)


def pump(ledger: Replica[Ledger], name: str) -> None:
    for k in range(1 << 30):
        ledger.append(f"{name} {k}")


class Program:
    """A program with a replica, which does what it is told."""

    def __init__(self, node_id: int, where: str, logged: bool = False) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(node_id), where, "logged" if logged else "memory"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_live(self) -> Program:
        assert self.line() == "live"
        return self

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def ask(self, what: str) -> str:
        self.tell(what)
        return self.line()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def programs(where: str, *node_ids: int, logged: bool = False) -> Iterator[list[Program]]:
    """Programs with replicas of one ledger, all live."""
    started = [Program(node_id, where, logged) for node_id in node_ids]
    try:
        yield [one.wait_live() for one in started]
    finally:
        for one in started:
            one.kill()
            assert one.process.stdin is not None and one.process.stdout is not None
            one.process.stdin.close()
            one.process.stdout.close()
