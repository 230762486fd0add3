"""The processes of a round: daemons with their disks, talkers and watchers; started, heard, signalled, collected.

Rules:
- If the round dies, the kernel kills its processes (PR_SET_PDEATHSIG): nothing outlives it.
- What a process says on stderr goes to a file in the round's directory, where the checker and people find it.
- Nothing here waits. `listen` takes what has come, `look` notices who has ended; the round calls both often.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spindle_lab.chaos.disk import Disk
from spindle_lab.chaos.history import DaemonLife, History
from spindle_lab.chaos.hosts import Hosts

EXTRA_NODES = range(11, 17)  # those that come and go
CLOCKS_S = (0, 0, -3, 1, 5000, -5000, 400 * 86400, -400 * 86400)  # by which a host's clock may be wrong
OWN_PORTS = 20000, 32768  # from which nodes take theirs, where applications elsewhere must find them
BASE_PORT = 7400  # a node listens at this port plus its number, where there are several hosts
PR_SET_PDEATHSIG = 1
VIEW_LINE = re.compile(r"view (\d+): nodes ([\d ]+)$")
LOG_TAIL = 4096  # bytes

_LIBC = ctypes.CDLL(None)  # loaded before any fork


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One child process. `said` has the JSON objects that it printed, by their event, the newest each."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, environment: dict[str, str],
                 enter: Callable[[], None] | None = None) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.said: dict[str, dict[str, Any]] = {}
        self.printed: list[str] = []
        self.killed = False  # by us
        self.stopped = False
        self._rest = b""

        def begin() -> None:
            _die_with_parent()
            if enter is not None:
                enter()

        with self.log.open("ab") as stderr:
            self.popen = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                env={**os.environ, **environment}, preexec_fn=begin,
            )
        assert self.popen.stdout is not None
        os.set_blocking(self.popen.stdout.fileno(), False)

    @property
    def running(self) -> bool:
        return self.popen.returncode is None

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self.popen.send_signal(number)
                if number == signal.SIGKILL:
                    self.killed = True
                if number in (signal.SIGSTOP, signal.SIGCONT):
                    self.stopped = number == signal.SIGSTOP

    def order(self, line: str) -> None:
        """Write a line to its stdin; nothing happens if it has ended."""
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.popen.stdin.write(line.encode() + b"\n")
            self.popen.stdin.flush()

    def take_output(self) -> None:
        """Take what it has printed."""
        assert self.popen.stdout is not None
        with contextlib.suppress(BlockingIOError, ValueError):
            while chunk := os.read(self.popen.stdout.fileno(), 65536):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    self._heard(line.decode(errors="replace"))

    def _heard(self, line: str) -> None:
        self.printed.append(line)
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                self.said[told["event"]] = told

    def close(self) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class DaemonProcess(Process):
    """One life of a node."""

    def __init__(self, life: DaemonLife, number: int, arguments: Sequence[str], directory: Path,
                 environment: dict[str, str], disk: Disk, enter: Callable[[], None] | None) -> None:
        super().__init__(f"daemon-{life.node}-{number}", arguments, directory, environment, enter)
        self.life = life
        self.disk = disk
        life.pid, life.started = self.popen.pid, time.monotonic_ns()

    @property
    def ready(self) -> bool:
        return any(" ready, " in line for line in self.printed)


class Stage:
    """All processes of a round, and what is on record of them."""

    def __init__(self, directory: Path, seed: str, settings: Sequence[str], library: Path | None, pace: float,
                 nodes: Sequence[int] = (), hosts: Hosts | None = None) -> None:
        self.directory = directory
        self.hosts = hosts
        self.excused: set[int] = set()  # exit codes that no new life of a node is to blame for
        self.history = History()
        self.daemons: dict[int, DaemonProcess] = {}
        self.talkers: dict[int, Process] = {}
        self.watchers: dict[int, Process] = {}
        self.auditors: dict[int, Process] = {}
        self.wanderers: dict[int, Process] = {}  # 0: one that goes on at any node
        self.externals: dict[str, Process] = {}  # "talker" and "watcher" on a host without a node
        self.disks: dict[int, Disk] = {}
        self._ended: list[Process] = []
        self._seed, self._settings, self._library, self._pace = seed, settings, library, pace
        self._numbers = 0
        self._nodes = list(nodes)
        runtimes = [directory / f"run-{host}" for host in hosts.numbers] if hosts is not None else [directory / "run"]
        self._records = directory / "records"
        # Wanderers find only the core nodes: an extra node that is alone would begin the logged topic anew.
        self._known = directory / "known"
        for one in (*runtimes, self._records, self._known, self._known / "domain-0"):
            one.mkdir(mode=0o700)
        for node in nodes:
            name = f"domain-0/node-{node}.sock"
            (self._known / name).symlink_to(self.runtime_of(node) / name)
        self._secret = directory / "secret"
        self._secret.write_text(secrets.token_hex(32))
        self._secret.chmod(0o600)
        self._addresses = free_addresses(nodes) if hosts is None else {}
        self._environment = {"PYTHONFAULTHANDLER": "1"}
        for name in ("SPINDLE_DOMAIN", "SPINDLE_NODE_ID", "SPINDLE_CONFIG", "SPINDLE_EMBED"):
            os.environ.pop(name, None)
        self._selector = selectors.DefaultSelector()

    def host_of(self, node: int) -> int:
        """Where a node lives, and its applications; 0 if all live on this machine."""
        return (node - 1) % len(self.hosts.numbers) + 1 if self.hosts is not None else 0

    def runtime_of(self, node: int) -> Path:
        """The directory of its sockets."""
        return self.directory / (f"run-{self.host_of(node)}" if self.hosts is not None else "run")

    def _network(self, node: int) -> list[str]:
        """Settings of a node that has others, or applications, on other hosts."""
        if self.hosts is None:
            if node not in self._addresses:
                return []
            return [f"network.listen={json.dumps(self._addresses[node])}", self._secret_setting]
        hosts = self.hosts

        def address(one: int) -> str:
            return f"{hosts.address(self.host_of(one))}:{BASE_PORT + one}"

        return [f"network.listen={json.dumps(address(node))}", self._secret_setting,
                f"network.contacts={json.dumps([address(one) for one in self._nodes])}"]

    @property
    def _secret_setting(self) -> str:
        """Without it an external application might find a node of somebody else at a dead node's port."""
        return f"network.secret={json.dumps(str(self._secret))}"

    @property
    def disk_faults(self) -> bool:
        return self._library is not None

    # --- starting

    def start_daemon(self, node: int) -> DaemonProcess:
        """A new life of a node that doesn't run."""
        disk = self.disk(node)
        disk.directory.mkdir(exist_ok=True)
        arguments = ["-m", "spindle.cli", "daemon", "--node", str(node), "--journal-dir", str(disk.directory)]
        for setting in [*self._settings, *self._network(node)]:
            arguments += ["--set", setting]
        life = DaemonLife(node, 0, 0, excused=set(self.excused))
        environment = self._environment | {"SPINDLE_RUNTIME_DIR": str(self.runtime_of(node))}
        if self._library is not None:
            environment |= disk.environment(self._library)
        self._numbers += 1
        if self.hosts is not None:
            environment["SPINDLE_CHAOS_CLOCK_S"] = str(random.Random(f"clock {node} {self._numbers}").choice(CLOCKS_S))
        enter = self.hosts.entry(self.host_of(node)) if self.hosts is not None else None
        daemon = DaemonProcess(life, self._numbers, arguments, self.directory, environment, disk, enter)
        life.log = daemon.log
        self.history.daemons.append(life)
        self.daemons[node] = self._add(daemon)
        return daemon

    def disk(self, node: int) -> Disk:
        if node not in self.disks:
            self.disks[node] = Disk(self.directory / f"disk-{node}.control", self.directory / f"journal-{node}")
        return self.disks[node]

    def start_talker(self, node: int) -> None:
        self.talkers[node] = self._application("talker", node, ["--pace", str(self._pace)])

    def start_watcher(self, node: int) -> None:
        self.watchers[node] = self._application("watcher", node, [])

    def start_auditor(self, node: int) -> None:
        self.auditors[node] = self._application("auditor", node, ["--audit"])

    def start_wanderer(self, node: int) -> None:
        self.wanderers[node] = self._application("wanderer", node, ["--wander"], self._known)

    def start_external(self, kind: str) -> None:
        """A talker or a watcher that knows the nodes by their addresses only."""
        addresses = list(self._addresses.values())
        random.Random(f"{self._seed} {kind}").shuffle(addresses)
        pace = ["--pace", str(self._pace)] if kind == "talker" else []
        self.externals[kind] = self._application(kind, 0, ["--nodes", ",".join(addresses), "--secret",
                                                                str(self._secret), *pace])

    def _application(self, kind: str, node: int, more: Sequence[str], runtime: Path | None = None) -> Process:
        self._numbers += 1
        name = f"{kind}-{node}-{self._numbers}"
        record = self._records / f"{name}.jsonl"
        module = "talker" if kind == "talker" else "watcher"
        arguments = ["-m", f"spindle_lab.chaos.{module}", "--node", str(node), "--record", str(record), "--seed",
                     f"{self._seed}/{name}", "--number", str(self._numbers), *more]
        environment = self._environment | {"SPINDLE_RUNTIME_DIR": str(runtime or self.runtime_of(node))}
        enter = self.hosts.entry(self.host_of(node)) if self.hosts is not None and node else None
        return self._add(Process(name, arguments, self.directory, environment, enter))

    def _add(self, process: Any) -> Any:
        assert process.popen.stdout is not None
        self._selector.register(process.popen.stdout, selectors.EVENT_READ, process)
        return process

    @property
    def _tables(self) -> tuple[dict[Any, Any], ...]:
        return self.daemons, self.talkers, self.watchers, self.auditors, self.wanderers, self.externals

    # --- hearing and looking

    def listen(self, timeout_s: float) -> None:
        """Wait at most so long for anybody to say something, and take it."""
        for key, _ in self._selector.select(timeout_s):
            key.data.take_output()
        self.look()

    def look(self) -> None:
        """Notice who has ended."""
        for table in self._tables:
            for node, process in list(table.items()):
                if process.popen.poll() is not None:
                    self._collect(process)
                    del table[node]

    def _collect(self, process: Process) -> None:
        code = process.popen.returncode
        process.take_output()
        self._selector.unregister(process.popen.stdout)  # type: ignore[arg-type]
        process.close()
        self._ended.append(process)
        if isinstance(process, DaemonProcess):
            process.life.code = code
            process.life.ended = process.life.ended or time.monotonic_ns()
        elif not process.killed and code != 0:
            self.history.trouble.append(f"{process.name} ended with code {code}, see {process.log}")

    # --- ending

    def kill(self, node: int) -> None:
        """kill -9 of a node."""
        daemon = self.daemons[node]
        if daemon.popen.poll() is None:  # else it has ended by itself, and its exit code counts
            if daemon.life.asked == "leave":
                daemon.life.excused.add(0)  # it may have come to its end just now
            daemon.life.asked = "kill"
            daemon.life.ended = time.monotonic_ns()
            daemon.send(signal.SIGKILL)

    def ask_to_leave(self, node: int) -> None:
        daemon = self.daemons[node]
        if daemon.popen.poll() is None and not daemon.life.asked:
            daemon.life.asked = "leave"
            if not daemon.ready:
                daemon.life.excused.add(-signal.SIGTERM)  # it may not listen to signals yet
            daemon.send(signal.SIGTERM)

    def everybody(self) -> list[Process]:
        return [one for table in self._tables for one in table.values()]

    def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Listen until the condition holds; False if it doesn't in time."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                return False
            self.listen(0.01)
        return True

    def close(self) -> None:
        """Kill whatever is left."""
        for node in list(self.daemons):
            self.kill(node)
        for process in self.everybody():
            process.send(signal.SIGKILL)
        for process in self.everybody():
            process.popen.wait()
        self.look()
        for disk in self.disks.values():
            disk.close()
        self._selector.close()

    # --- what is known of the group

    def ranks(self) -> list[int]:
        """Running members of the newest view that a running daemon has logged, by rank: the first one leads."""
        newest: tuple[int, list[int]] = (-1, [])
        for daemon in self.daemons.values():
            found = view_of(daemon.log)
            if found is not None and found[0] > newest[0]:
                newest = found
        return [node for node in newest[1] if node in self.daemons]

    def records(self) -> list[Path]:
        return list(self._records.iterdir())


def free_addresses(nodes: Sequence[int]) -> dict[int, str]:
    """Addresses on loopback that nobody uses now, with ports that the kernel gives nobody who doesn't ask for them."""
    addresses: dict[int, str] = {}
    while len(addresses) < len(nodes):
        port = random.SystemRandom().randrange(*OWN_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if (address := f"127.0.0.1:{port}") not in addresses.values():
                addresses[nodes[len(addresses)]] = address
    return addresses


def view_of(log: Path) -> tuple[int, list[int]] | None:
    """Number and members of the last view in a daemon's log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        found = VIEW_LINE.search(line)
        if found:
            return int(found[1]), list(map(int, found[2].split()))
    return None


__all__ = ["DaemonProcess", "Process", "Stage", "view_of"]
