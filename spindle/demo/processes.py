"""The demonstration's child processes: started, listened to, and ended whatever happens.

Why so careful: a demonstration that leaves a daemon behind, or hangs, proves the opposite.

Rules:
- A child has a session of its own, so that Ctrl-C reaches only the demonstration, which then ends the children in
  order.
- If the demonstration itself is killed, the kernel sends its children SIGTERM (prctl PR_SET_PDEATHSIG).
- Every wait has a bound. A child that doesn't end within it is killed, and that counts as a failure.
- A child's stdout is read line by line: JSON objects are kept as its reports, other lines are passed on. Its stderr
  goes to a file, of which the end is shown if something failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
STDERR_SHOWN = 12  # lines


class DemoFailed(Exception):
    """The demonstration can't go on; the text says what failed and shows what the process wrote."""


def _die_with_parent() -> None:
    """Runs in the child before exec."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


_LIBC = ctypes.CDLL(None)  # loaded before any fork


class Child:
    """One process. `report` has the JSON objects that it printed, the newest of each "event"."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, stderr_path: Path) -> None:
        self.name = name
        self.process = process
        self.report: dict[str, dict[str, Any]] = {}
        self.killed = False
        self._stderr_path = stderr_path
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: Sequence[str],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        terminal: bool = False,
    ) -> Child:
        """Starts `sys.executable *arguments`. terminal: its stdout is ours, nothing is read from it."""
        stderr_path = directory / (name.replace("/", "-").replace(" ", "-") + ".log")
        with stderr_path.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=None if terminal else asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        child = cls(name, process, stderr_path)
        if not terminal:
            child._reader = asyncio.ensure_future(child._read(on_line))
        return child

    async def _read(self, on_line: Callable[[str], None] | None) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            try:
                found = json.loads(line) if line.startswith("{") else None
            except ValueError:
                found = None
            if isinstance(found, dict):
                self.report[str(found.get("event"))] = found
            elif on_line is not None:
                on_line(line)
            self._changed.set()
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Waits until a report makes `condition()` true. Raises DemoFailed when time is up or the child has ended."""
        end = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            if self._reader is not None and self._reader.done() and not condition():
                await self.wait(2.0)
                raise DemoFailed(f"{self.name} ended (exit code {self.process.returncode}) before {what}{self.tail()}")
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                raise DemoFailed(f"{self.name}: {what} did not come within {timeout_s:g} s{self.tail()}")
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.5))

    async def until_report(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Waits for a report of that kind and returns it."""
        await self.until(lambda: event in self.report, timeout_s, f"its report {event!r}")
        return self.report[event]

    async def ask(self, request: str, event: str, timeout_s: float) -> dict[str, Any]:
        """Writes a line to its stdin and returns the report that answers it."""
        self.report.pop(event, None)
        await self.tell(request)
        return await self.until_report(event, timeout_s)

    async def tell(self, text: str) -> None:
        """Writes a line to its stdin. Raises DemoFailed if it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        try:
            await self.process.stdin.drain()
        except ConnectionError:
            raise DemoFailed(f"{self.name} has ended{self.tail()}") from None

    def send(self, number: int) -> None:
        """Sends a signal if it still runs."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def wait(self, timeout_s: float) -> int:
        """Its exit code. When the time is up it is killed, with all that it started."""
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except asyncio.TimeoutError:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        if self._reader is not None:
            await self._reader
        assert self.process.returncode is not None
        return self.process.returncode

    async def end(self, timeout_s: float, number: int = signal.SIGTERM) -> int:
        """Signals and waits."""
        self.send(number)
        return await self.wait(timeout_s)

    def failure(self, code: int) -> str:
        """What to say about an exit code, empty if it is fine."""
        if self.killed:
            return f"{self.name} did not end when told to and was killed{self.tail()}"
        if code:
            return f"{self.name} ended with exit code {code}{self.tail()}"
        return ""

    def tail(self) -> str:
        """The end of its stderr, to append to a message."""
        with contextlib.suppress(OSError):
            lines = self._stderr_path.read_text(errors="replace").splitlines()[-STDERR_SHOWN:]
            if lines:
                return ":\n" + "\n".join(f"    {line}" for line in lines)
        return ""
