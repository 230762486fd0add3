"""Daemons on several hosts: a host here is a runtime directory of its own, so nodes reach each other over loopback.

Applications on hosts without a node come to them by their addresses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.spindle.daemons import Daemon
from tests.support import free_ports


class Host:
    """A node that can be started, killed and started anew."""

    def __init__(self, number: int, directory: Path, addresses: Sequence[str], settings: Sequence[str]) -> None:
        self.number = number
        self.address = addresses[number - 1]
        self.directory = directory / f"host-{number}"
        self.directory.mkdir(exist_ok=True)
        self.contacts = list(addresses)
        self.settings = list(settings)
        self.daemon: Daemon | None = None

    def start(self) -> Daemon:
        arguments = [f"network.listen={json.dumps(self.address)}", f"network.contacts={json.dumps(self.contacts)}",
                     *self.settings]
        options = [part for one in arguments for part in ("--set", one)]
        self.daemon = Daemon(self.number, *options, runtime_dir=self.directory)
        return self.daemon

    @property
    def running(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon


@contextmanager
def hosts(directory: Path, count: int, *settings: str, run: int = 0) -> Iterator[list[Host]]:
    """Nodes 1 to `count`, each on a host of its own, all ready; or only the first `run` of them, which then are all
    contacts. `settings` as `spindle daemon --set` takes them."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    made = [Host(number, directory, addresses, settings) for number in range(1, count + 1)]
    for host in made:
        host.contacts = addresses[: run or count]
    try:
        for host in made[: run or count]:
            host.start()
        for host in made[: run or count]:
            host.running.wait_ready()
        yield made
    finally:
        for host in reversed(made):
            if host.daemon is not None:
                host.daemon.stop()
