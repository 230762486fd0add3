"""Goal: memory of a large sample doesn't change as long as anybody has it, and is used again only when nobody does.

Method: memory in every state between made and used again, with others who have it: by a descriptor, a mapping, in
another process, of another user. The kernel is asked in each.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spindle.errors import ConfigError, NoResources, SampleUnfit
from spindle.large import memory

SIZE = memory.REUSED_MIN
STRANGER = 65534  # a user who isn't the node's


@pytest.fixture
def made() -> Iterator[int]:
    fd = memory.make_closable(SIZE)
    yield fd
    os.close(fd)


@pytest.fixture
def closed() -> Iterator[int]:
    """Memory with a pattern, which was closed, and may be used again."""
    fd = memory.make_closable(SIZE)
    memory.write_whole(fd, bytes(range(256)) * (SIZE // 256), 0)
    reads, again = memory.close(fd)
    assert again
    yield reads
    os.close(reads)


@contextmanager
def in_another_process(body: Callable[[], None]) -> Iterator[int]:
    """It runs body(), says that it has, and then waits to be killed."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            body()
            os.write(writes, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writes)
    try:
        assert os.read(reads, 1) == b"x"
        yield pid
    finally:
        os.close(reads)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("size", [0, -1, memory.SIZE_MAX + 1])
def test_sizes_that_no_sample_has(size: int) -> None:
    with pytest.raises(ConfigError, match="a large sample has 1 to 4294967296 bytes"):
        memory.make(size)


def test_what_is_mapped_to_be_written_is_not_sealed() -> None:
    fd = memory.make(4096)
    with memory.filling(fd, 4096), pytest.raises(SampleUnfit, match="end all mappings"):
        memory.seal(fd)
    memory.seal(fd)
    os.close(fd)


def test_memory_is_a_little_larger_than_its_sample() -> None:
    """Goal: samples of nearly one size can have one memory, and not much is wasted."""
    before = 0
    for size in (1, SIZE - 1, SIZE, SIZE + 1, 2 << 20, (2 << 20) + 1, 10_000_000, 100_000_000, (1 << 30) + 1,
                 memory.SIZE_MAX):
        capacity = memory.capacity_of(size)
        assert size <= capacity <= max(size + size // 4, size + (2 << 20)) and capacity >= before
        assert size >= SIZE or capacity == size
        before = capacity
    assert memory.capacity_of(100_000_000) == memory.capacity_of(95_000_000)
    assert memory.capacity_of(memory.SIZE_MAX) == memory.SIZE_MAX
    fd = memory.make_closable(SIZE + 1)
    closed, _ = memory.close(fd)
    memory.check(closed, SIZE + 1)
    with pytest.raises(SampleUnfit, match="its memory has"):
        memory.check(closed, 3 << 20)
    os.close(closed)


def test_what_is_closed_is_only_read(closed: int) -> None:
    memory.check(closed, SIZE)
    with pytest.raises(OSError):
        os.pwrite(closed, b"x", 0)
    with pytest.raises(OSError):
        mmap.mmap(closed, SIZE)
    with pytest.raises(OSError):
        os.ftruncate(closed, 0)
    fd = memory.open_to_write(closed)  # which its owner may, but not without being seen
    with pytest.raises(SampleUnfit, match="somebody may write to it"):
        memory.check(closed, SIZE)
    os.close(fd)
    memory.check(closed, SIZE)
    with pytest.raises(SampleUnfit, match="somebody may write to it"):
        memory.check(memory.make_closable(SIZE), SIZE)


def test_who_keeps_it_mapped_to_be_written_is_refused(made: int) -> None:
    mapped = mmap.mmap(made, SIZE)
    with pytest.raises(SampleUnfit, match="end all mappings"):
        memory.close(os.dup(made))
    mapped.close()


def test_who_keeps_a_descriptor_has_it_sealed(made: int) -> None:
    """The same of a process that was forked meanwhile: its program may not even know of it."""
    closed, again = memory.close(os.dup(made))
    assert not again
    with pytest.raises(OSError):
        os.pwrite(made, b"x", 0)
    memory.check(closed, SIZE)
    assert not memory.is_free(closed)
    os.close(closed)

    fd = memory.make_closable(SIZE)
    with in_another_process(lambda: None):
        closed, again = memory.close(fd)
    assert not again
    os.close(closed)


@pytest.mark.parametrize("seals", [0x10, fcntl.F_SEAL_SEAL, 0x10 | fcntl.F_SEAL_SEAL, fcntl.F_SEAL_WRITE])
def test_who_seals_it_in_part_harms_nobody(seals: int) -> None:
    """0x10: F_SEAL_FUTURE_WRITE."""
    fd = memory.make_closable(SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    try:
        closed, again = memory.close(fd)
    except SampleUnfit:
        assert seals & fcntl.F_SEAL_SEAL
        return
    assert not again and not memory.is_free(closed)
    assert fcntl.fcntl(closed, fcntl.F_GET_SEALS) & memory.SEALS == memory.SEALS
    os.close(closed)


def test_it_is_free_when_nobody_has_it(closed: int) -> None:
    """By a descriptor, a mapping, or both; in this process and in another, until that has died."""
    assert memory.is_free(closed)
    given = memory.open_anew(closed)
    assert not memory.is_free(closed)
    mapped = mmap.mmap(given, SIZE, prot=mmap.PROT_READ)
    os.close(given)
    assert not memory.is_free(closed), "a mapping keeps it, too"
    mapped.close()
    assert memory.is_free(closed)

    mappings = []

    def read() -> None:
        fd = memory.open_anew(closed)
        mappings.append(mmap.mmap(fd, SIZE, prot=mmap.PROT_READ))
        os.close(fd)

    with in_another_process(read):
        assert not memory.is_free(closed)
        memory.check(closed, SIZE)
    assert memory.is_free(closed)


def test_what_is_free_is_used_again_with_what_was_in_it(closed: int) -> None:
    again = memory.open_to_write(closed)
    assert os.pread(again, 3, 7) == bytes([7, 8, 9])
    memory.write_whole(again, b"new", 7)
    reads, reusable = memory.close(again)
    assert reusable and os.pread(closed, 3, 7) == b"new"
    os.close(reads)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_who_are_not_its_owner(closed: int) -> None:
    """Goal: they can't open it to be written, nor make it so; and they believe nothing but seals."""
    def try_all() -> None:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        os.close(os.open(f"/proc/self/fd/{closed}", os.O_RDONLY))
        for harm in (lambda: os.close(os.open(f"/proc/self/fd/{closed}", os.O_RDWR)),
                     lambda: os.truncate(f"/proc/self/fd/{closed}", 0), lambda: os.fchmod(closed, 0o666),
                     lambda: fcntl.fcntl(closed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)):
            with pytest.raises(PermissionError):
                harm()
        with pytest.raises(SampleUnfit, match="somebody may write to it"):
            memory.check(closed, SIZE)

    with in_another_process(try_all):
        pass
    memory.seal_closed(closed)

    def check() -> None:
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        memory.check(closed, SIZE)

    with in_another_process(check):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_memory_of_another_user_is_not_believed(closed: int) -> None:
    """Its owner can open it to write at any time; and root is granted a lease all the same."""
    os.fchown(closed, STRANGER, -1)
    with pytest.raises(SampleUnfit, match="somebody may write to it"):
        memory.check(closed, SIZE)


LOOKING = """
import os, threading
from spindle.large import memory

closed, _ = memory.close(memory.make_closable(memory.REUSED_MIN))
over = False
opened = refused = 0

def open_it():
    global opened, refused
    while not over:
        try:
            os.close(os.open(f"/proc/self/fd/{closed}", os.O_RDWR | os.O_NONBLOCK))
            opened += 1
        except BlockingIOError:
            refused += 1

thread = threading.Thread(target=open_it)
thread.start()
while refused < 20:
    memory.is_closed(closed)
over = True
thread.join()
print("alive")
"""


def test_who_opens_it_while_the_kernel_is_asked_kills_nobody() -> None:
    """The kernel tells a lease's holder by a signal, which would end it."""
    found = subprocess.run([sys.executable, "-c", LOOKING], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (0, "alive\n"), found.stderr


def test_without_a_descriptor_it_is_sealed(made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has filled a sample has no way back."""
    def short(_fd: int) -> int:
        raise NoResources("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "open_anew", short)
        closed, again = memory.close(os.dup(made))
    assert not again
    memory.check(closed, SIZE)
    with pytest.raises(OSError):
        os.pwrite(closed, b"x", 0)
    os.close(closed)


def test_what_is_sealed_can_be_sealed_again(closed: int) -> None:
    for _ in range(2):
        memory.seal_closed(closed)
        assert memory.is_sealed(closed)


def test_without_proc_it_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
        fd = memory.make_closable(SIZE)
    closed, again = memory.close(fd)
    assert not again
    memory.check(closed, SIZE)
    os.close(closed)
