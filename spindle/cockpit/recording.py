"""Recordings that are started from the page: `spindle record` as a process of its own, one for each topic.

Why the command: what it writes, and what it does when a disk is full or its node goes away, is the same whoever starts
it. Where this release has no such command, nothing can be recorded from the page.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spindle.errors import SpindleError
from spindle.programs import module_arguments

RUNNING_MAX = 8
END_TIMEOUT_S = 10.0
# The process is sent SIGINT when this one ends, however that is: prctl(PR_SET_PDEATHSIG).
END_WITH_US = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGINT)"


class Recordings:
    """`options`: of every `spindle record`, which say where the node is. `directory`: where files go; None: nowhere.
    ended(topic, text) is called for one that has ended by itself, when somebody next asks what runs."""

    def __init__(self, directory: Path | None, options: list[str], ended: Callable[[str, str], object]) -> None:
        self._directory = directory
        self._options = options
        self._ended = ended
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path, float]] = {}
        self._lock = threading.Lock()

    @property
    def possible(self) -> bool:
        return self._directory is not None and importlib.util.find_spec("spindle.cli.record") is not None

    def start(self, topic: str, node_id: int) -> Path:
        """Where the recording goes. Raises SpindleError."""
        if self._directory is None or not self.possible:
            raise SpindleError("no directory for recordings is set: [web] recordings, or "
                               "`spindle cockpit --recordings`")
        with self._lock:
            self._collect()
            if topic in self._running:
                raise SpindleError(f"topic {topic} is being recorded to {self._running[topic][1]}")
            if len(self._running) >= RUNNING_MAX:
                raise SpindleError(f"{RUNNING_MAX} recordings run, which is the limit of this cockpit: end one")
            self._directory.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^\w.-]+", "-", topic).strip("-") or "topic"
            path = self._directory / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.mcap"
            process = subprocess.Popen(
                [sys.executable, *module_arguments("spindle.cli", END_WITH_US), "record", *self._options,
                 "--node", str(node_id), "-o", str(path), "--", topic],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
            try:
                code = process.wait(0.5)
            except subprocess.TimeoutExpired:
                self._running[topic] = process, path, time.time()
                return path
            raise SpindleError(f"spindle record ended with exit code {code}: {_end(process)[1]}")

    def stop(self, topic: str) -> str:
        """Says what became of it. Raises SpindleError if it isn't recorded."""
        with self._lock:
            found = self._running.pop(topic, None)
        if found is None:
            raise SpindleError(f"topic {topic} is not being recorded")
        code, said = _end(found[0])
        if code not in (0, -signal.SIGINT):
            raise SpindleError(f"spindle record ended with exit code {code}: {said}; what there is, is in {found[1]}")
        return f"topic {topic} was recorded to {found[1]}"

    def running(self) -> list[dict[str, Any]]:
        with self._lock:
            self._collect()
            return [{"topic": topic, "path": str(path), "since": since_s}
                    for topic, (_, path, since_s) in self._running.items()]

    def close(self) -> None:
        """Ends all. Idempotent."""
        with self._lock:
            running, self._running = self._running, {}
        for process, _, _ in running.values():
            _end(process)

    def _collect(self) -> None:
        for topic, (process, path, _) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[topic]
                code, said = _end(process)
                self._ended(topic, f"the recording of topic {topic} has ended by itself, with exit code {code}: {said}"
                                   f"; what there is, is in {path}")


def _end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit code, and the last line that it has said."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    lines = (said or b"").decode(errors="replace").strip().splitlines()
    return process.returncode, lines[-1] if lines else "it said nothing"


__all__ = ["Recordings"]
