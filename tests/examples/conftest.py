"""The examples are programs, not a package: their directory goes onto the path, as when one of them is run.

`daemons` starts real daemons, `programs` the examples; both end what they started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.support import EXAMPLES, Daemons, Program, Start, members
from tests.support import wait_until

if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))


@pytest.fixture
def programs() -> Iterator[Start]:
    """programs("hello_publisher.py", "--node", 1): starts an example. A first argument of "-m" starts a module."""
    started: list[Program] = []

    def start(script: str, *options: object, **environment: str) -> Program:
        arguments = [script if script == "-m" else str(EXAMPLES / script), *map(str, options)]
        started.append(Program(arguments, environment))
        return started[-1]

    yield start
    for program in reversed(started):
        program.close()


@pytest.fixture
def daemons(programs: Start, tmp_path: Path, runtime_dir: Path) -> Daemons:
    """daemons(3): starts nodes 1 to 3 in the test's own runtime directory and waits until they are one group."""

    def start(count: int) -> list[Program]:
        found = [
            programs("-m", "spindle.cli", "daemon", "--node", node, "--journal-dir", tmp_path / f"journal-{node}")
            for node in range(1, count + 1)
        ]
        for daemon in found:
            daemon.until(" ready")
        if count > 1:
            for daemon in found:
                wait_until(lambda daemon=daemon: members(daemon) == count, 20, "all nodes in one view")
        return found

    return start
