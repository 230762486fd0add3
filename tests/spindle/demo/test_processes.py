"""Goal: the demonstration's children are heard, bounded and ended. Method: small Python programs as children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from spindle.demo.processes import Child, DemoFailed

T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, 30)

    return asyncio.run(bounded())


def test_reports_and_lines_are_told_apart(tmp_path: Path) -> None:
    """Goal: JSON objects are reports by event, the rest goes to on_line."""
    lines: list[str] = []

    async def work() -> None:
        script = "print('hello'); print('{\"event\": \"ready\", \"n\": 1}'); print('{not json')"
        child = await Child.start("child", ["-c", script], tmp_path, on_line=lines.append)
        assert (await child.until_report("ready", 20))["n"] == 1
        assert child.failure(await child.wait(20)) == ""

    run(work())
    assert lines == ["hello", "{not json"]


def test_a_request_is_answered(tmp_path: Path) -> None:
    """Goal: ask() waits for the answer to this request, not an earlier one. Method: a child that counts."""
    script = """
import sys
for n, line in enumerate(sys.stdin):
    print('{"event": "report", "n": %d, "said": "%s"}' % (n, line.strip()), flush=True)
"""

    async def work() -> None:
        child = await Child.start("child", ["-c", script], tmp_path)
        assert [(await child.ask("a", "report", 20))["n"] for _ in range(3)] == [0, 1, 2]
        assert child.process.stdin is not None
        child.process.stdin.close()
        assert await child.wait(20) == 0

    run(work())


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    """Goal: the reason is in the message. Method: a child that raises before it is ready."""

    async def work() -> None:
        child = await Child.start("poor child", ["-c", "raise SystemExit('no such thing')"], tmp_path)
        with pytest.raises(DemoFailed, match=r"(?s)poor child ended \(exit code 1\).*no such thing"):
            await child.until_report("ready", 20)

    run(work())


def test_a_child_that_ignores_the_signal_is_killed_and_said(tmp_path: Path) -> None:
    """Goal: every end is bounded, and a kill counts as failure. Method: a child that ignores SIGTERM."""
    script = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"event": "up"}', flush=True)
time.sleep(60)
"""

    async def work() -> None:
        child = await Child.start("deaf", ["-c", script], tmp_path)
        await child.until_report("up", 20)
        code = await child.end(0.2)
        assert code == -9
        assert "deaf did not end when told to and was killed" in child.failure(code)

    run(work())


def test_waiting_has_a_bound(tmp_path: Path) -> None:
    """Goal: a silent child doesn't hang the demonstration. Method: one that sleeps."""

    async def work() -> None:
        child = await Child.start("silent", ["-c", "import time; time.sleep(60)"], tmp_path)
        try:
            with pytest.raises(DemoFailed, match=r"its report 'ready' did not come within 0\.3 s"):
                await child.until_report("ready", 0.3)
        finally:
            await child.end(5)

    run(work())
