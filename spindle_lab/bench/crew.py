"""Starts the processes of a benchmark, keeps them in step, and sees to it that none outlives it.

Why processes and not threads: a node is a process in real life, and what is measured is what crosses between them.

Rules: every wait has a bound; a worker that fails ends the whole run with that worker's own traceback; leaving the
`with` block kills whatever is still running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from spindle_lab.bench.channel import Channel, ChannelClosed

READY_TIMEOUT_S = 30.0
STDERR_SHOWN = 4000  # bytes of a failed worker's stderr that its error quotes


class BenchFailed(RuntimeError):
    """A benchmark could not be run to its end; the message says which process failed and how."""


class Worker:
    """One child process and the line to it."""

    def __init__(self, name: str, role: str, config: dict[str, Any]) -> None:
        self.name = name
        self.channel, theirs = Channel.pair()
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        fd = theirs.end.fileno()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spindle_lab.bench.worker", str(fd), str(os.getpid())],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=self.stderr,
                stderr=self.stderr,
                env=worker_environment(),
            )
        finally:
            theirs.close()
        self.channel.send({"role": role, "config": config})

    def expect(self, event: str, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        """The worker's next message, which must be `event`. Raises BenchFailed with what the worker says instead."""
        try:
            message, fds = self.channel.receive(timeout_s)
        except TimeoutError:
            raise BenchFailed(f"{self.name} did not say {event!r} within {timeout_s:g} s{self.said()}") from None
        except ChannelClosed:
            code = self.wait(1.0)
            raise BenchFailed(f"{self.name} ended with code {code} before it said {event!r}{self.said()}") from None
        if message.get("event") != event:
            raise BenchFailed(f"{self.name} failed:\n{message.get('traceback', message)}{self.said()}")
        return message, fds

    def said(self) -> str:
        """The end of what the worker wrote to stdout and stderr, for error messages."""
        size = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, size - STDERR_SHOWN))
        text = self.stderr.read().decode(errors="replace").strip()
        return f"; it wrote:\n{text}" if text else ""

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Ends the worker: politely by closing the line, then by SIGKILL. Idempotent."""
        self.channel.close()
        if self.wait(2.0) is None:
            self.process.kill()
            self.process.wait()
        self.stderr.close()


def worker_environment() -> dict[str, str]:
    """Ours, with the place of this package on the path: a checkout works without being installed."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}


class Crew:
    """The workers of one run, in rank order. To be used as a context manager."""

    def __init__(self, role: str, configs: Sequence[dict[str, Any]], names: Sequence[str] | None = None) -> None:
        self.workers: list[Worker] = []
        try:
            for rank, config in enumerate(configs):
                self.workers.append(Worker(names[rank] if names else f"node {rank}", role, config))
        except BaseException:
            self.close()
            raise

    def gather(self, event: str, timeout_s: float = READY_TIMEOUT_S) -> list[dict[str, Any]]:
        """One message `event` from each worker, within timeout_s together. Raises BenchFailed."""
        return [message for message, _ in self.gather_fds(event, timeout_s)]

    def gather_fds(self, event: str, timeout_s: float = READY_TIMEOUT_S) -> list[tuple[dict[str, Any], list[int]]]:
        """As gather(), with the descriptors that came along; the caller closes them."""
        until = time.monotonic() + timeout_s
        return [worker.expect(event, max(0.05, until - time.monotonic())) for worker in self.workers]

    def broadcast(self, message: dict[str, Any]) -> None:
        for worker in self.workers:
            worker.channel.send(message)

    def close(self) -> None:
        # All lines first: the workers end at the same time instead of one after the other.
        for worker in self.workers:
            worker.channel.close()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def play(crew: Crew, timeout_s: float) -> list[dict[str, Any]]:
    """Ready, go, done, and only then stop: a node that has everything is still needed by those that haven't."""
    crew.gather("ready", max(READY_TIMEOUT_S, timeout_s))
    crew.broadcast({"event": "go"})
    done = crew.gather("done", timeout_s)
    crew.broadcast({"event": "stop"})
    crew.gather("stopped")
    return done
