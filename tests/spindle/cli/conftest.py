"""Fixtures of the command line's tests: `spindle` in this process, and a node that is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spindle.cli.support import Cli
from tests.spindle.stand_in import StandInNode


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("SPINDLE_DOMAIN", "SPINDLE_NODE_ID", "SPINDLE_RUNTIME_DIR", "SPINDLE_CONFIG", "SPINDLE_DEBUG",
                 "SPINDLE_NODES", "SPINDLE_CLIENT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capfd)


@pytest.fixture
def stand_in(runtime_dir: Path) -> Iterator[StandInNode]:
    """Node 7 of domain 0, where the commands look for it; nothing orders its messages."""
    directory = runtime_dir / "domain-0"
    directory.mkdir()
    with StandInNode(directory / "node-7.sock") as node:
        yield node
