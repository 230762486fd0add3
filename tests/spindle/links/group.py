"""Nodes that programs of a test have links between: real daemons, on one host or each on a host of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spindle.client.attaching import attach
from spindle.client.session import Session
from tests.spindle.daemons import Daemon, daemons
from tests.spindle.hosts import Host, hosts

KINDS = ["one host", "hosts"]


class Group:
    """`session(n)` attaches to node n, once until that is started anew; `program(n)` is another one each time."""

    def __init__(self, stack: ExitStack, directories: dict[int, Path], running: list[Daemon], made: list[Host]) -> None:
        self._stack, self._directories, self._running, self._made = stack, directories, running, made
        self._sessions: dict[int, Session] = {}

    def directory(self, number: int) -> Path:
        """The runtime directory of a node."""
        return self._directories[number]

    def daemon(self, number: int) -> Daemon:
        if self._made:
            return self._made[number - 1].running
        return [one for one in self._running if one.node_id == number][-1]

    def session(self, number: int) -> Session:
        if number not in self._sessions:
            self._sessions[number] = self.program(number)
        return self._sessions[number]

    def program(self, number: int) -> Session:
        return self._stack.enter_context(attach(node_id=number, runtime_dir=self._directories[number]))

    @contextmanager
    def apart(self) -> Iterator[Group]:
        """The same nodes, with sessions that end here."""
        with ExitStack() as stack:
            yield Group(stack, self._directories, self._running, self._made)

    def start(self, number: int) -> None:
        """Starts a node anew that was killed or has left."""
        self._sessions.pop(number, None)
        if self._made:
            self._made[number - 1].start().wait_ready()
        else:
            self._running.append(Daemon(number, runtime_dir=self._directories[number]))
            self._running[-1].wait_ready()


@contextmanager
def group_of(kind: str, directory: Path, count: int, *settings: str) -> Iterator[Group]:
    """Nodes 1 to `count`, all in one view; none of them may have a defect to tell of in the end."""
    with ExitStack() as stack:
        if kind == "one host":
            options = [part for one in settings for part in ("--set", one)]
            running = stack.enter_context(daemons(directory, count, options))
            group = Group(stack, dict.fromkeys(range(1, count + 1), directory), running, [])
        else:
            made = stack.enter_context(hosts(directory, count, *settings))
            group = Group(stack, {host.number: host.directory for host in made}, [], made)
        yield group
        for number in range(1, count + 1):
            log = group.daemon(number).log
            assert not any(word in log for word in ("Traceback", "never retrieved", "defect")), log


def descriptors_of(pid: int) -> list[str]:
    """What the descriptors of a process are, sorted."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0].split(" ")[0])
        except OSError:
            continue
    return sorted(found)


def mappings_of(pid: int) -> list[str]:
    """Which shared memories a process has mapped, sorted."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted(line.split("/memfd:")[1].split(" ")[0] for line in lines if "/memfd:" in line)
