"""Programs as tests run them: what they print is collected, and every wait has a bound."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class Program:
    """A running program; `lines` is what it has printed so far, stderr included."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            text=True,
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def until(self, words: str, timeout_s: float = 30.0) -> str:
        """The first line with these words."""

        def found() -> str:
            return next((line for line in self.lines if words in line), "")

        return wait_until(found, timeout_s, f"{words!r} from {self.process.args}, got {self.lines[-5:]}")

    def report(self, event: str) -> dict[str, Any]:
        """The newest JSON report of that kind, {} if there is none."""
        for line in reversed(self.lines):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("event") == event:
                    return found
        return {}

    def tell(self, line: str) -> None:
        """By its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait(self, timeout_s: float = 30.0) -> int:
        code = self.process.wait(timeout_s)
        self._thread.join(timeout_s)
        return code

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        self.process.send_signal(number)
        return self.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(5)
        assert self.process.stdout is not None and self.process.stdin is not None
        self.process.stdout.close()
        self.process.stdin.close()


Start = Callable[..., Program]
Daemons = Callable[[int], list[Program]]


def members(daemon: Program) -> int:
    views = [line for line in daemon.lines if "INFO view " in line]
    return len(views[-1].rpartition("nodes ")[2].split()) if views else 0
