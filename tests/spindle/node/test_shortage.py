"""Goal: memory and descriptors that run out at a node are that node's failure: it says so and ends, or waits for them
for a moment; nobody else is blamed, suspected or held up.

Method: three daemons of one host; the system's own limits of one of them are lowered while it runs (prlimit), and
another one changes the view.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import logging
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from spindle.client.attaching import attach
from spindle.client.embedding import embed
from spindle.config.settings import NodeConfig
from spindle.errors import NO_THREAD, NoResources, shortage
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.epochs import NextEpoch
from spindle.node.node import Node
from spindle.transport.frames import receive_some, send_some
from tests.spindle.daemons import Daemon, daemons
from tests.spindle.node.test_node import Group, until, with_group
from tests.spindle.users import STRANGER_UID, needs_root, run_as
from tests.support import open_descriptors, wait_until

NO_RESOURCES = 15  # exit code


@contextlib.contextmanager
def descriptors(pid: int, most: int) -> Iterator[None]:
    """As long as this lasts the process can have no descriptor of this number or above."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def memory(pid: int, more: int) -> Iterator[None]:
    """As long as this lasts the process can map no more than so many bytes beside what it has."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGESIZE") + more, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)


def lowest_free(pid: int, room: int = 0, kept: Collection[int] = ()) -> int:
    """The limit of descriptors under which so many more can be opened: what ended before leaves holes. `kept`: of those
    that are open, which count as free."""
    if pid == os.getpid():
        gc.collect()  # garbage that goes later would make room
    used = {int(one) for one in os.listdir(f"/proc/{pid}/fd")}.difference(kept)
    free = (number for number in range(1 << 20) if number not in used)
    return next(itertools.islice(free, room, None))


def leads_to(pid: int, fd: int) -> str:
    """What a descriptor is of; empty if the process, which goes on, has closed it meanwhile."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except FileNotFoundError:
        return ""


def lowest_for_next_view(pid: int, room: int = 0) -> int:
    """The same for its next view: what a node keeps aside for that (`Reserve`) is given back then."""
    descriptors = map(int, os.listdir(f"/proc/{pid}/fd"))
    return lowest_free(pid, room, {fd for fd in descriptors if fd > 2 and leads_to(pid, fd) == os.devnull})


def declare(runtime_dir: Path, daemon: Daemon, name: str, size_max: int = 100) -> None:
    with attach(runtime_dir=runtime_dir, node_id=daemon.node_id) as session:
        session.declare_topic(TopicSpec(name, size_max=size_max))
        session.open_writer(name)


def members(runtime_dir: Path, daemon: Daemon) -> tuple[int, ...]:
    with attach(runtime_dir=runtime_dir, node_id=daemon.node_id) as session:
        return session.view().node_ids


def assert_own_failure(runtime_dir: Path, group: list[Daemon], short: Daemon, what: str) -> None:
    assert short.wait() == NO_RESOURCES, short.log
    assert f"needs {what} that this process cannot get" in short.log or "can open no more" in short.log
    stay = [daemon for daemon in group if daemon is not short]
    for daemon in stay:
        wait_until(lambda one=daemon: short.node_id not in members(runtime_dir, one), what="the others go on")
        assert set(members(runtime_dir, daemon)) == {one.node_id for one in stay}
        assert f"goes on without node {short.node_id}" in daemon.log
    assert "it failed: " in "".join(daemon.log for daemon in stay)  # who hears it first says whose failure it was
    assert "goes on without" not in short.log


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 2], ids=["the leader", "a member"])
def test_a_node_without_descriptors_ends_by_itself(runtime_dir: Path, which: int) -> None:
    with daemons(runtime_dir, 3) as group:
        short = group[which]
        with descriptors(short.pid, lowest_for_next_view(short.pid)):
            declare(runtime_dir, group[1], "t")
            assert_own_failure(runtime_dir, group, short, "descriptors")


@pytest.mark.slow
def test_a_node_that_has_room_for_its_own_row_but_not_for_the_others_blames_nobody(runtime_dir: Path) -> None:
    """The descriptors of the others' rows get lost on their way in, with nothing wrong in what they sent."""
    with daemons(runtime_dir, 3) as group:
        short = group[1]
        with descriptors(short.pid, lowest_for_next_view(short.pid, 2)):
            declare(runtime_dir, group[0], "t")
            assert_own_failure(runtime_dir, group, short, "descriptors")


@pytest.mark.slow
def test_a_node_without_memory_for_a_view_ends_by_itself(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as group:
        short = group[2]
        with memory(short.pid, 100 << 20):
            declare(runtime_dir, group[0], "t", size_max=32 << 20)
            assert_own_failure(runtime_dir, group, short, "memory")


@pytest.mark.slow
def test_a_node_without_memory_for_the_others_rows_blames_nobody(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as group:
        short = group[2]
        with memory(short.pid, 400 << 20):  # a row of this view takes 256 MiB
            declare(runtime_dir, group[0], "t", size_max=32 << 20)
            assert_own_failure(runtime_dir, group, short, "memory")


@pytest.mark.slow
def test_a_shortage_that_passes_costs_nobody_anything(runtime_dir: Path) -> None:
    """The node waits for a moment with its part of the view change, as others may give something back."""
    with daemons(runtime_dir, 3) as group, ThreadPoolExecutor() as threads:
        short = group[2]
        with attach(runtime_dir=runtime_dir, node_id=1) as session:
            session.declare_topic(TopicSpec("t", size_max=32 << 20))
            with memory(short.pid, 100 << 20):
                opened = threads.submit(session.open_writer, "t")
                wait_until(lambda: "waiting up to 4 s for it" in short.log, what="the node waits")
                assert "prepared by" in session.status()["awaiting"]
            opened.result(10)
        for daemon in group:
            assert members(runtime_dir, daemon) == (1, 2, 3)


def test_descriptors_that_are_lost_on_the_way_in_are_not_their_sender_s_fault() -> None:
    one, other = socket.socketpair()
    with one, other, open(os.devnull, "rb") as nothing:
        send_some(one, memoryview(b"x"), [nothing.fileno()] * 3)
        with descriptors(os.getpid(), lowest_free(os.getpid())), pytest.raises(NoResources, match="can open no more"):
            receive_some(other)
        send_some(one, memoryview(b"y"), [nothing.fileno()])
        data, fds = receive_some(other)
        assert data == b"y" and len(fds) == 1
        os.close(fds[0])


@with_group
async def test_a_row_that_can_not_be_attached_leaves_nothing_open(group: Group) -> None:
    """The second node of a process has the first one's descriptors, and none left for its own end of the ring."""
    first = await group.start()
    hear = NextEpoch._hear

    def no_more(self: NextEpoch, node_id: int, fd: int) -> None:
        if self._node_id != first.node_id:
            os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        hear(self, node_id, fd)

    def rows() -> int:
        found = 0
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the listing's own
                found += "memfd:spindle-row" in os.readlink(f"/proc/self/fd/{fd}")
        return found

    gc.collect()  # or rows of earlier tests' nodes, which are garbage, might go meanwhile
    before = rows()
    with patch.object(NextEpoch, "_hear", no_more), pytest.raises(NoResources):
        await group.start(fabric="shm")
    await until(lambda: rows() == before, "nothing of the first node's row is open for the second")


@pytest.mark.slow
def test_a_node_that_lacks_descriptors_from_the_beginning_says_so_and_keeps_none(
        runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: whatever of a start it is that has no descriptor left, that is what the caller is told. Method: one more
    descriptor at a time, until the start succeeds. (Found by the simulator.)"""
    async def start(room: int) -> None:
        node = Node(NodeConfig(runtime_dir=runtime_dir))
        with descriptors(os.getpid(), lowest_free(os.getpid(), room)):
            await node.start()
        await node.stop()

    def are_open() -> int:
        gc.collect()
        return open_descriptors()

    async def more_and_more() -> int:
        await start(100)  # what is imported and made once
        before = are_open()
        for room in range(100):
            try:
                await start(room)
                return room
            except NoResources as error:
                assert "needs descriptors" in str(error)
            await until(lambda: are_open() == before, "nothing is left of it")
        return 100

    caplog.set_level(logging.CRITICAL + 1, "spindle")  # what is captured would keep the error, and that the node
    assert 3 < asyncio.run(more_and_more()) < 100


# ---- threads (ulimit -u, TasksMax= of a service)


@contextlib.contextmanager
def no_thread(name: str) -> Iterator[None]:
    """None whose name begins so starts."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name.startswith(name):
            raise RuntimeError(NO_THREAD)
        start(self)

    with patch.object(threading.Thread, "start", refused):
        yield


@needs_root
def test_what_python_says_when_there_is_no_thread() -> None:
    program = """
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            threading.Thread(target=print).start()
        except RuntimeError as error:
            print(error)
        """
    run = subprocess.run(run_as(STRANGER_UID, program, imports="import resource, threading"), capture_output=True,
                         text=True, timeout=30, check=False)
    assert run.stdout == f"{NO_THREAD}\n", run
    assert shortage(RuntimeError("another one"), "x") is None
    not_loaded = ImportError("reader.so: cannot open shared object file: Too many open files")
    assert "descriptors" in str(shortage(not_loaded, "x")) and shortage(ImportError("no such module"), "x") is None


@with_group
async def test_a_node_without_its_thread_ends(group: Group) -> None:
    """It hung in its end, as there was no thread to wait for."""
    with no_thread("spindle-predicates"), pytest.raises(NoResources, match=r"needs threads.*TasksMax"):
        await group.start()
    node = await group.start()
    assert node.view().node_ids == (node.node_id,)


@with_group
async def test_a_journal_without_its_thread_is_the_opener_s_failure_alone(group: Group) -> None:
    """The journal can be opened once there is one: nothing of it is locked, or open."""
    node = await group.start(journal_dir=group.runtime_dir / "journal")
    await node.declare_topic(TopicSpec("t", level=Level.LOGGED))
    with no_thread("journal"), pytest.raises(NoResources, match="the journal of topic 't' needs threads"):
        await node.open_writer("t")
    await until(lambda: not journal_files(), "nothing of it is open")
    await node.open_writer("t")
    assert journal_files()


def journal_files() -> list[str]:
    """Those that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(one for one in found if "/journal/" in one)


def test_a_request_for_which_there_is_no_thread_is_refused_in_words(
        runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with embed(config=NodeConfig(runtime_dir=runtime_dir, journal_dir=runtime_dir / "journal")) as session:
        with patch("spindle.topics.journals._check_fits", side_effect=RuntimeError(NO_THREAD)), pytest.raises(
                NoResources, match="needs threads"):
            session.declare_topic(TopicSpec("t", level=Level.LOGGED))
        session.declare_topic(TopicSpec("t", level=Level.LOGGED))
    assert "Traceback" not in caplog.text
