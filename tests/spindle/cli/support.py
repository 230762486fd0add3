"""Running the command line in tests: in this process, where nothing depends on a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spindle.cli.root import run

ROOT = Path(__file__).resolve().parents[3]


@dataclasses.dataclass(frozen=True)
class Result:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Calls `spindle` in this process: `cli("topics", "--json")`."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *args: object) -> Result:
        self._capfd.readouterr()
        code = run([str(one) for one in args])
        sys.stdout.flush()
        out, err = self._capfd.readouterr()
        return Result(code, out, err)


class Spawned(subprocess.Popen[bytes]):
    """A process that a failing test ends; `with` would wait for it, perhaps for ever."""

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def spawn(*args: object, **options: Any) -> Spawned:
    """`spindle` as a process of its own, with pipes."""
    for name in ("stdin", "stdout", "stderr"):
        options.setdefault(name, subprocess.PIPE)
    command = [sys.executable, "-m", "spindle.cli", *(str(one) for one in args)]
    return Spawned(command, cwd=ROOT, **{"env": dict(os.environ), **options})
