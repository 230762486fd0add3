"""What systemd hears of a daemon: ready, views, signs of life, the end.

Goal: a service manager knows when applications can attach, and gets signs of life only while both the event loop and
the predicate thread make progress. Method: real daemons, a datagram socket in systemd's role; a single thread of a
daemon is made to stand still by ptrace, as a hang in the kernel or an endless loop would, while the others go on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.service.sd_notify import ServiceManager
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until

INTERVAL_S = 0.4  # of the watchdog
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WAIT_ALL = 0x40000000  # __WALL


class Manager:
    """The socket that systemd would have; `told` has everything that was said, line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))

    def wait_for(self, start: str, timeout_s: float = 15.0) -> str:
        """The next line that starts like this; AssertionError if there is none in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                lines = self._sock.recv(4096).decode().splitlines()
            except TimeoutError:
                raise AssertionError(f"systemd was not told {start} within {timeout_s:g} s") from None
            self.told += lines
            for line in lines:
                if line.startswith(start):
                    return line

    def is_silent(self, for_s: float) -> bool:
        """No sign of life for so long, besides one that may have been on its way."""
        self._sock.settimeout(INTERVAL_S)
        try:
            self._sock.recv(4096)
        except TimeoutError:
            pass
        try:
            self.wait_for("WATCHDOG=1", for_s)
        except AssertionError:
            return True
        return False

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def manager(runtime_dir: Path) -> Iterator[Manager]:
    made = Manager(runtime_dir / "notify")
    yield made
    made.close()


@contextmanager
def told_daemon(manager: Manager, runtime_dir: Path, node_id: int = 1, **environment: str) -> Iterator[Daemon]:
    environment = {"NOTIFY_SOCKET": str(manager.path), **environment}
    daemon = Daemon(node_id, runtime_dir=runtime_dir, environment=environment)
    try:
        yield daemon.wait_ready()
    finally:
        daemon.stop()


@contextmanager
def standing_still(threads: list[int]) -> Iterator[None]:
    """These threads stop, and no others of their process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seized = []
    try:
        for thread in threads:
            if libc.ptrace(PTRACE_SEIZE, thread, None, None):
                pytest.skip(f"ptrace is forbidden here: {os.strerror(ctypes.get_errno())}")
            seized.append(thread)
            assert libc.ptrace(PTRACE_INTERRUPT, thread, None, None) == 0
            _, status = os.waitpid(thread, WAIT_ALL)
            assert os.WIFSTOPPED(status)
        yield
    finally:
        for thread in seized:
            libc.ptrace(PTRACE_DETACH, thread, None, None)


def other_threads(daemon: Daemon) -> list[int]:
    """All threads but the one of the event loop."""
    return [int(name) for name in os.listdir(f"/proc/{daemon.pid}/task") if int(name) != daemon.pid]


def watchdog(interval_s: float = INTERVAL_S) -> dict[str, str]:
    return {"WATCHDOG_USEC": str(int(interval_s * 1e6))}


@pytest.mark.slow
def test_ready_views_and_the_end_are_told(manager: Manager, runtime_dir: Path) -> None:
    with told_daemon(manager, runtime_dir) as daemon:
        manager.wait_for("READY=1")
        assert manager.told == [
            "STATUS=looking for the group of domain 0", "READY=1", f"MAINPID={daemon.pid}",
            "STATUS=node 1, view 0, members 1",
        ]  # fmt: skip
        second = Daemon(2, runtime_dir=runtime_dir)
        try:
            second.wait_ready()
            assert manager.wait_for("STATUS=").endswith("view 1, members 1 2")
        finally:
            second.stop()
        assert manager.wait_for("STATUS=").endswith("view 2, members 1")
        daemon.process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert manager.told[-1] == "STATUS=leaving the group"
    assert "WATCHDOG=1" not in manager.told, "nobody asked for it"


@pytest.mark.slow
def test_signs_of_life_come_at_half_the_interval(manager: Manager, runtime_dir: Path) -> None:
    with told_daemon(manager, runtime_dir, **watchdog()):
        manager.wait_for("WATCHDOG=1")
        started = time.monotonic()
        for _ in range(6):
            manager.wait_for("WATCHDOG=1", INTERVAL_S)
        assert time.monotonic() - started > 2.5 * INTERVAL_S


@pytest.mark.slow
def test_a_predicate_thread_that_stands_still_ends_the_signs_of_life(manager: Manager, runtime_dir: Path) -> None:
    """The event loop goes on all the time, and says in the log what it misses."""
    with told_daemon(manager, runtime_dir, **watchdog()) as daemon:
        manager.wait_for("WATCHDOG=1")
        with standing_still(other_threads(daemon)):
            assert manager.is_silent(4 * INTERVAL_S)
        manager.wait_for("WATCHDOG=1")
        assert daemon.log.count("the predicate thread has made no pass") == 1


@pytest.mark.slow
def test_an_event_loop_that_stands_still_ends_the_signs_of_life(manager: Manager, runtime_dir: Path) -> None:
    with told_daemon(manager, runtime_dir, **watchdog()) as daemon:
        manager.wait_for("WATCHDOG=1")
        with standing_still([daemon.pid]):
            assert manager.is_silent(4 * INTERVAL_S)
        manager.wait_for("WATCHDOG=1")


@pytest.mark.slow
def test_another_life_of_the_node_is_watched_like_the_first(manager: Manager, runtime_dir: Path) -> None:
    """Method: the second of three daemons is stopped until the others go on without it, and joins again."""
    settings = ["--set", "membership.suspect_timeout_s=0.3", "--set", "membership.rejoin=true"]
    with daemons(runtime_dir, 3, settings) as (_, two, _), attach(node_id=1) as watching:
        two.terminate()
        environment = {"NOTIFY_SOCKET": str(manager.path), **watchdog()}
        again = Daemon(2, *settings, runtime_dir=runtime_dir, environment=environment)
        try:
            again.wait_ready()
            os.kill(again.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: watching.view().node_ids == (1, 3), 15)
            finally:
                os.kill(again.pid, signal.SIGCONT)
            manager.wait_for("STATUS=looking for the group of domain 0 again: ")
            manager.wait_for("STATUS=node 2, view ")
            manager.wait_for("WATCHDOG=1")
            with standing_still(other_threads(again)):
                assert manager.is_silent(3 * INTERVAL_S)
            assert "STOPPING=1" not in manager.told
        finally:
            again.stop()


def test_a_watchdog_for_another_process_is_none(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1000000"}
    assert ServiceManager(environment).watchdog_s == 1
    assert ServiceManager({**environment, "WATCHDOG_PID": str(os.getpid())}).watchdog_s == 1
    assert ServiceManager({**environment, "WATCHDOG_PID": "1"}).watchdog_s == 0
    assert ServiceManager({**environment, "WATCHDOG_USEC": "soon"}).watchdog_s == 0
    assert ServiceManager({"WATCHDOG_USEC": "1000000"}).watchdog_s == 0, "nobody to tell"


def test_abstract_addresses_and_absent_managers(caplog: pytest.LogCaptureFixture) -> None:
    name = f"spindle-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).status("well")
        assert sock.recv(100) == b"STATUS=well"
    ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1")
    assert f"can't be told READY=1 at @{name}" in caplog.text
    ServiceManager({}).tell("READY=1")
    ServiceManager({"NOTIFY_SOCKET": "relative"}).tell("READY=1")
