"""What tests of every part need: waiting with a bound, and the processes and threads that a test has started or stops.

Why waiting is here: a test that sleeps is either slow or wrong. `wait_until` asks again until the condition holds and
fails with the condition's name when it doesn't.
"""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Threads that must end with what they serve: embedded nodes, sessions, participants that look for another node.
_SERVING = ("spindle node", "spindle control", "spindle events", "dds reattaching")

_claimed: deque[socket.socket] = deque(maxlen=100)  # ports of free_ports(); the oldest are given back

# Helpers that Python's own multiprocessing keeps for the life of the process that used it.
_LASTING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def readable(one: int | socket.socket, timeout_s: float) -> bool:
    """True once there is something to read, False after `timeout_s`; of any number, which select() doesn't take."""
    poller = select.poll()
    poller.register(one, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def wait_until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "", interval_s: float = 0.005) -> T:
    """Calls `condition` until it returns something true, and returns that; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            name = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {timeout_s:g} s: {name} (last answer: {result!r})")
        time.sleep(interval_s)


def open_descriptors() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/fd"))


def descriptors_before() -> int:
    """The same at the beginning of a test: garbage of earlier ones, which may go at any time, has none of them."""
    gc.collect()
    return open_descriptors()


def seeds(count: int, quick: int) -> list[Any]:
    """For parametrize(): 0 to `count` - 1, of which `make test` runs the first `quick` only."""
    import pytest  # not in the processes that tests start

    return [pytest.param(seed, marks=() if seed < quick else pytest.mark.slow) for seed in range(count)]


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has, and that nobody is given while this process or its node lives and dies.

    Below the range from which the kernel picks, so that no connection of anybody takes one between two lives of a
    listener; each is claimed by the name of a socket, so that tests that run side by side get different ones.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    candidates = list(range(max(1024, first - 12_000), first))
    random.SystemRandom().shuffle(candidates)  # not the seed that a test may have set
    for port in candidates:
        if len(found) == count:
            return found
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0spindle-test-port-{port}")
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:
            claim.close()
            continue
        _claimed.append(claim)
        found.append(port)
    raise AssertionError("no port is free")


def descendants() -> dict[int, int]:
    """Running processes below this one: process id to start time, which tells a reused id from the old one.

    Zombies are left out: they have ended, and collecting them is their parent's affair. Every test asks several times.
    """
    if _is_childless():
        return {}
    parent_of: dict[int, int] = {}
    started: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            try:
                stat = os.read(fd, 4096)
            finally:
                os.close(fd)
        except OSError:
            continue  # ended meanwhile
        # The command, in parentheses, may hold anything; what follows its last parenthesis is state, parent, ...
        fields = stat[stat.rindex(b")") + 2 :].split(None, 20)
        if fields[0] not in (b"Z", b"X"):
            parent_of[int(name)] = int(fields[1])
            started[int(name)] = int(fields[19])
    below: dict[int, int] = {}
    ancestors = {os.getpid()}
    while ancestors:
        children = {pid for pid, parent in parent_of.items() if parent in ancestors and pid not in below}
        below.update((pid, started[pid]) for pid in children)
        ancestors = children
    return {pid: start for pid, start in below.items() if not _is_lasting(pid)}


def command_of(pid: int) -> str:
    """The command line of a process, or "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def halt(pid: int) -> None:
    """SIGSTOP, and wait until every thread of the process stands still: kill() returns while they may yet run on, and
    what they do in that moment, such as acknowledging a message, has then happened after all."""
    os.kill(pid, signal.SIGSTOP)

    def states() -> set[bytes]:
        found = set()
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                found.add(stat.read_bytes().rpartition(b")")[2].split()[0])
            except OSError:
                pass  # a thread that ended meanwhile
        return found

    wait_until(lambda: states() <= {b"T", b"Z", b"X"}, what=f"process {pid} stands still")


def left_behind(before: dict[int, int], grace_s: float = 2.0) -> list[str]:
    """Descendants that were not there `before` and do not end within `grace_s`. Kills them; returns their commands."""

    def remaining() -> set[tuple[int, int]]:
        return set(descendants().items()) - set(before.items())

    if not remaining():
        return []
    with suppress(AssertionError):
        wait_until(lambda: not remaining(), grace_s)
    commands = []
    for pid, _ in sorted(remaining()):
        commands.append(f"{pid}: {command_of(pid)}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return commands


def product_threads(prefixes: tuple[str, ...] = _SERVING) -> set[threading.Thread]:
    """Running threads of nodes and sessions in this process."""
    return {one for one in threading.enumerate() if one.name.startswith(prefixes)}


def threads_left_behind(before: set[threading.Thread], grace_s: float = 2.0) -> list[str]:
    """Names of threads that were not there `before` and do not end within `grace_s`, after all garbage is collected."""
    if product_threads() - before:
        gc.collect()  # a session that was forgotten in a reference cycle ends by this
        with suppress(AssertionError):
            wait_until(lambda: not product_threads() - before, grace_s)
    return sorted(one.name for one in product_threads() - before)


def _is_childless() -> bool:
    """No process is a child of this one, which is the subreaper of all below it; none then has any."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _is_lasting(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _LASTING)
