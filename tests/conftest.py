"""Fixtures for all tests: a runtime directory of the test's own, and no process, node or session left behind by any.

Rules: no test meets a daemon of this machine's user, since XDG_RUNTIME_DIR points into the test's own directory; a test
that leaves a process running fails, and the process is killed; a test after which a session still has its threads,
although nobody refers to it any more, fails too, and not a later one that counts threads.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import descendants, left_behind, product_threads, threads_left_behind

_PR_SET_CHILD_SUBREAPER = 36

# A machine that is busy with something else is no reason to fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_configure() -> None:
    # Orphans of a killed child become children of pytest instead of init's, so that left_behind() sees them.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # What a shell starts in the background ignores Ctrl-C, and so would all that is started here to be sent one.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes that run tests side by side tell each other of them by name."""
    own = re.compile(rf"0x[0-9a-f]{{6,}}|\bpid {os.getpid()}\b")
    if unstable := [item.nodeid for item in items if own.search(item.nodeid)]:
        raise pytest.UsageError(f"named otherwise in every process (give the parameters ids): {', '.join(unstable)}")


@pytest.fixture(autouse=True)
def no_process_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test that ends before its processes do. Processes of wider fixtures are known before it starts."""
    before = descendants()
    yield
    left = left_behind(before)
    if left:
        pytest.fail("left processes behind (now killed):\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def few_descriptors() -> Iterator[None]:
    """What ended nodes and simulated worlds hold goes with the garbage: not some day, but before it is much."""
    yield
    if len(os.listdir("/proc/self/fd")) > 500:
        gc.collect()


@pytest.fixture(autouse=True)
def no_session_left_behind() -> Iterator[None]:
    """Fails the test that ends before its sessions and embedded nodes do."""
    before = product_threads()
    yield
    left = threads_left_behind(before)
    if left:
        pytest.fail("left threads behind: " + ", ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for nodes' sockets, private and with a short path (a Unix socket's has at most 107 bytes).

    It is also what the default configuration chooses, in this process and in those it starts.
    """
    base = Path(tempfile.mkdtemp(prefix="spindle-", dir="/tmp"))
    directory = base / "spindle"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    for name in ("SPINDLE_RUNTIME_DIR", "SPINDLE_DOMAIN", "SPINDLE_NODE_ID", "SPINDLE_CONFIG"):  # of who runs the tests
        monkeypatch.delenv(name, raising=False)
    try:
        yield directory
    finally:
        shutil.rmtree(base, ignore_errors=True)
