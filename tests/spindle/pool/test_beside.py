"""Goal: a node opens memory of another process of its host itself, that memory and nothing else; or else it asks.

Method: a process that has memory, and tells which; two pools in one process (pair.py), each of which knows the pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.pool import pooling as pooling_module
from spindle.pool.beside import attach_as_sealed, open_file_of
from spindle.pool.lives import life_of
from spindle_core.memory import Mapping
from tests.spindle.links.group import descriptors_of
from tests.spindle.pool.pair import Side, pair, settle

OWNER = """
import os, sys
from spindle_core.memory import Mapping
memory = Mapping.create("x", 4096)
memory.view()[:5] = b"hello"
if "sealed" in sys.argv:
    memory.seal_writes()
os.mkfifo(sys.argv[1] + "/fifo")
fifo = os.open(sys.argv[1] + "/fifo", os.O_RDWR)
print(memory.fd, os.fstat(memory.fd).st_ino, fifo, os.fstat(fifo).st_ino, flush=True)
input()
"""


@contextlib.contextmanager
def owner(directory: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process, and what it says: descriptor and inode of its memory, and of a FIFO."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(directory), *more], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process, [int(word) for word in process.stdout.readline().split()]
        finally:
            process.kill()


def device() -> int:
    memory = Mapping.create("any", 1)
    return os.fstat(memory.fd).st_dev


@pytest.mark.parametrize("sealed", [False, True])
def test_memory_of_another_process_is_opened_as_it_is_sealed(tmp_path: Path, sealed: bool) -> None:
    with owner(tmp_path, *(["sealed"] if sealed else [])) as (process, (fd, inode, _, _)):
        memory = attach_as_sealed(open_file_of(process.pid, fd, inode, device()))
    assert bytes(memory.view()[:5]) == b"hello"  # also after its owner's end
    assert memory.writable != sealed


def test_another_file_is_not_opened(tmp_path: Path) -> None:
    """To open alone does something: of a FIFO it ends the wait of who opens the other end."""
    gc.collect()
    before = descriptors_of(os.getpid())
    with owner(tmp_path) as (process, (fd, inode, fifo, fifo_inode)):
        of_memory = device()
        for wrong in ((fifo, inode, of_memory), (fd, inode + 1, of_memory), (fifo, fifo_inode, of_memory)):
            with patch.object(os, "open", wraps=os.open) as opened:
                with pytest.raises(ConnectionError, match="another file"):
                    open_file_of(process.pid, *wrong)
            assert [call.args[1] & os.O_PATH for call in opened.call_args_list] == [os.O_PATH]
        with pytest.raises(ConnectionError, match="has no descriptor 999"):
            open_file_of(process.pid, 999, inode, of_memory)
    with pytest.raises(ConnectionError, match="has no descriptor"):
        open_file_of(process.pid, fd, inode, of_memory)
    gc.collect()
    assert descriptors_of(os.getpid()) == before


def test_a_lease_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Of an owner that means harm: whoever opens its memory would wait for /proc/sys/fs/lease-break-time."""
    script = OWNER.replace("input()", """
import fcntl, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
again = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDWR)
os.close(memory.fd)
fcntl.fcntl(again, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(again, flush=True)
input()""")
    with patch(f"{__name__}.OWNER", script), owner(tmp_path) as (process, (_, inode, _, _)):
        assert process.stdout is not None
        with pytest.raises(ConnectionError, match="can't be opened"):
            open_file_of(process.pid, int(process.stdout.readline()), inode, device())


def with_a_region(body: Callable[[Side, Side, int, Any], Any]) -> None:
    """Runs `body(one, two, life of two, key of a region that two offers)`; one knows two's process, which is this."""
    async def inside() -> None:
        async with pair(True) as (one, two):
            one.connected[2].conn.peer.pid = os.getpid()
            life = await settle((one, two), asyncio.ensure_future(one.reach()))
            memory = Mapping.create("table", 4096)
            memory.view()[:4] = b"here"
            key = await two.pool.do(lambda: two.pool.exports.offer("table", memory))
            await body(one, two, life, key)

    gc.collect()
    before = descriptors_of(os.getpid())
    asyncio.run(inside())
    gc.collect()
    assert descriptors_of(os.getpid()) == before


def test_a_region_of_this_host_is_mapped_without_asking_its_owner() -> None:
    async def body(one: Side, two: Side, life: int, key: int) -> None:
        memory = await one.pool.do(lambda: one.pool.mapping_of(life, key))
        assert bytes(memory.view()[:4]) == b"here" and not one.said
        assert await one.pool.do(lambda: one.pool.mapping_of(life, key)) is memory
        assert await one.pool.do(lambda: one.pool.mapping_of(life, key + 1)) is None  # nothing is open there
        await two.pool.do(lambda: two.pool.regions.deregister(key))
        await one.pool.do(one.pool._mapped.clear)
        del memory
        assert await one.pool.do(lambda: one.pool.mapping_of(life, key)) is None  # it has ended
        assert await one.pool.do(lambda: one.pool.mapping_of(life_of(3, 33), key)) is None  # of nobody

    with_a_region(body)


def test_memory_of_a_key_that_ends_meanwhile_is_not_taken() -> None:
    async def body(one: Side, two: Side, life: int, key: int) -> None:
        def open_late(*which: Any) -> int:
            found = open_file_of(*which)
            asyncio.run_coroutine_threadsafe(two.pool.do(lambda: two.pool.regions.deregister(key)), loop).result(10)
            return found

        loop = asyncio.get_running_loop()
        with patch.object(pooling_module, "open_file_of", open_late):
            assert await one.pool.do(lambda: one.pool.mapping_of(life, key)) is None

    with_a_region(body)


@pytest.mark.parametrize("error", [PermissionError, ConnectionError, OSError], ids=lambda one: one.__name__)
def test_its_owner_is_asked_where_that_can_not_be_done(error: type[Exception]) -> None:
    """Who may not look doesn't try again."""
    async def body(one: Side, two: Side, life: int, key: int) -> None:
        with patch.object(pooling_module, "open_file_of", side_effect=error) as tried:
            for _ in range(2):
                assert await one.pool.do(lambda: one.pool.mapping_of(life, key)) is None
            assert tried.call_count == (1 if error is PermissionError else 2)
            peer = await one.pool.do(lambda: one.pool.pool.connections(life)[0])
            assert await one.pool.do(lambda: one.pool._mapping_for_peer(peer, key)) is None
            while not one.said:
                await asyncio.sleep(0)
            while await one.pool.do(lambda: (life, key) not in one.pool._mapped):
                one.hear()
                two.hear()
                await asyncio.sleep(0.001)

    with_a_region(body)


def test_memory_that_can_not_be_mapped_is_one_memory() -> None:
    """That is no reason not to look for others of its owner."""
    async def body(one: Side, two: Side, life: int, key: int) -> None:
        with patch.object(pooling_module, "attach_as_sealed", side_effect=lambda fd: os.close(fd) or fail()):
            assert await one.pool.do(lambda: one.pool.mapping_of(life, key)) is None
        assert await one.pool.do(lambda: one.pool.mapping_of(life, key)) is not None

    def fail() -> None:
        raise PermissionError

    with_a_region(body)


def test_a_life_that_has_gone_is_not_looked_for() -> None:
    async def body(one: Side, two: Side, life: int, key: int) -> None:
        one.neighbours.gone(one.connected[2])
        while await one.pool.do(lambda: life in one.pool._lives.values()):
            await asyncio.sleep(0.001)
        assert await one.pool.do(lambda: (one.pool._pids, one.pool.mapping_of(life, key))) == ({}, None)

    with_a_region(body)
