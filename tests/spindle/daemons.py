"""Real daemons as processes, for tests of everything that needs more than one.

Rules: a daemon is waited for by its ready line, never by sleeping; whatever is still running when the context ends is
stopped, and its log shown if it didn't end as asked.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_TIMEOUT_S = 20.0


class Daemon:
    """One `spindle daemon`. `ready_line` is what it said when it was ready, `log` what it wrote to stderr so far.
    `within`: what starts it elsewhere, as `ip netns exec NAME` does."""

    def __init__(
        self, node_id: int, *arguments: str, runtime_dir: Path, environment: dict[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.node_id = node_id
        self.ready_line = ""
        self._log: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        command = [*within, sys.executable, "-m", "spindle.cli", "daemon", "--runtime-dir", str(runtime_dir)]
        if node_id:
            command += ["--node", str(node_id)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self._readers = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return "".join(self._log)

    def wait_ready(self) -> Daemon:
        """Returns itself once the daemon has said that it is ready."""
        line = self._lines.get(timeout=READY_TIMEOUT_S)
        assert "ready" in line, f"node {self.node_id} did not get ready; exit code {self.wait()}, log:\n{self.log}"
        self.ready_line = line
        return self

    def wait(self, timeout_s: float = 15.0) -> int:
        """The exit code."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(5)
        return code

    def terminate(self) -> int:
        """Asks it to leave; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.wait()

    def stop(self) -> None:
        """Ends it in whatever way works."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"node {self.node_id} did not leave; log:\n{self.log}") from None
        self.wait()
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("(end of output)")

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        self._log.extend(self.process.stderr)


@contextmanager
def daemons(runtime_dir: Path, count: int, arguments: Sequence[str] = ()) -> Iterator[list[Daemon]]:
    """Nodes 1 to `count` of domain 0, all ready and in one view."""
    started: list[Daemon] = []
    try:
        for node_id in range(1, count + 1):
            started.append(Daemon(node_id, *arguments, runtime_dir=runtime_dir))
            started[-1].wait_ready()
        yield started
    finally:
        for daemon in reversed(started):
            daemon.stop()
