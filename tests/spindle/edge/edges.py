"""Edges as processes, for tests: each on a host of its own, that is, a runtime directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.spindle.daemons import Daemon
from tests.spindle.hosts import Host


class EdgeHost:
    """A host without a node that has an edge, which can be killed and started anew."""

    def __init__(self, directory: Path, addresses: Sequence[str], arguments: Sequence[str] = ()) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._arguments = ["--edge", "--nodes", ",".join(addresses), *arguments]
        self.daemon: Daemon | None = None

    @property
    def path(self) -> Path:
        return self.directory / "domain-0" / "edge.sock"

    def start(self) -> Daemon:
        self.daemon = Daemon(0, *self._arguments, runtime_dir=self.directory)
        return self.daemon.wait_ready()

    @property
    def running(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon


@contextlib.contextmanager
def edge_of(directory: Path, hosts: Sequence[Host], *arguments: str) -> Iterator[EdgeHost]:
    """An edge that brings programs to the nodes of these hosts."""
    edge = EdgeHost(directory / "edge", [host.address for host in hosts], arguments)
    try:
        edge.start()
        yield edge
    finally:
        if edge.daemon is not None:
            edge.daemon.stop()
