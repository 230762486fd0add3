"""Goal: the parts of the simulated operating system behave as those of a real one do, as far as nodes rely on it.

Method: a few threads and processes in a `System`, run until they have ended.
"""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spindle.transport.frames import receive_some
from spindle_core.ends import make_pair
from spindle_lab.whole.disk import SECTOR, Disk
from spindle_lab.whole.patches import REAL_CLOSE, REAL_DUP, patched
from spindle_lab.whole.shortage import Shortage
from spindle_lab.whole.system import Process, System
from spindle_lab.whole.turns import Stuck


def run(system: System, *mains: Callable[[], None]) -> Process:
    process = system.process("p", "h1", os.geteuid())
    with patched(system):
        for main in mains:
            process.spawn(main)
        while process.threads:
            system.run_one()
    for _, error in process.failures:
        raise error
    return process


@pytest.mark.parametrize("seed", range(5))
def test_a_condition_wakes_who_waits_and_time_only_passes_for_them(seed: int) -> None:
    said = []

    def waiter() -> None:
        with condition:
            assert condition.wait_for(lambda: said, 3600.0)
        said.append(("woken", time.monotonic()))

    def teller() -> None:
        time.sleep(1000.0)
        with condition:
            said.append(("told", time.monotonic()))
            condition.notify_all()

    system = System(seed)
    with patched(system):
        condition = threading.Condition()
    began = time.monotonic()
    run(system, waiter, teller)
    assert [what for what, _ in said] == ["told", "woken"]
    assert 1000.0 <= said[1][1] < 1000.1
    assert time.monotonic() - began < 30.0


def test_a_lock_is_held_by_one_thread_also_while_that_waits() -> None:
    inside: list[int] = []

    def work() -> None:
        with lock:
            inside.append(1)
            time.sleep(0.01)
            assert len(inside) == 1
            inside.pop()

    system = System(1)
    with patched(system):
        lock = threading.Lock()
    run(system, work, work, work)
    assert system.now_ns >= 30_000_000


def test_an_event_wakes_who_waits_and_the_end_of_a_thread_who_joins_it() -> None:
    said: list[str] = []

    def waiter() -> None:
        assert not event.wait(0.5)
        assert event.wait(3600.0) and event.is_set()
        event.clear()
        said.append("woken")
        assert not event.is_set() and not event.wait(0.0)

    def joiner() -> None:
        time.sleep(1.0)
        thread = threading.Thread(target=time.sleep, args=(5.0,))
        thread.start()
        event.set()
        thread.join(1.0)
        assert thread.is_alive() and said == ["woken"]
        thread.join()
        assert not thread.is_alive()
        thread.join()

    system = System(1)
    with patched(system):
        event = threading.Event()
    run(system, waiter, joiner)
    assert 6_000_000_000 <= system.now_ns < 6_100_000_000


def test_who_waits_for_nothing_that_can_come_is_found() -> None:
    system = System(1)
    process = system.process("p", "h1", 0)
    with patched(system):
        process.spawn(lambda: threading.Event().wait())
        with pytest.raises(Stuck):
            for _ in range(100):
                system.run_one()
        system.end()


def test_what_was_synced_outlives_the_power_and_the_rest_in_part() -> None:
    outcomes = set()
    for seed in range(60):
        disk = Disk(System(seed))
        directory = Path("/journal")
        handle = disk.create(directory / "a")
        disk.write(handle, [b"safe"], 0)
        disk.sync(handle)
        disk.sync_directory(directory)
        disk.write(handle, [b"x" * SECTOR * 3], 4)
        disk.close(disk.create(directory / "b"))
        disk.lose_power()
        assert set(disk.names(directory)) in ({"a"}, {"a", "b"})
        again = disk.open(directory / "a")
        content = disk.read(again, 10_000, 0)
        assert content.startswith(b"safe") and set(content[4:]) <= {ord("x")}
        outcomes.add((len(content), "b" in disk.names(directory)))
    assert {length for length, _ in outcomes} > {4, 4 + 3 * SECTOR}  # lost, kept, and torn
    assert {named for _, named in outcomes} == {True, False}


def test_a_disk_that_is_full_or_fails_says_so_and_keeps_what_it_has() -> None:
    disk = Disk(System(1))
    handle = disk.create(Path("/journal/a"))
    disk.write(handle, [b"first"], 0)
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        disk.write(handle, [b"second"], 5)
    disk.full, disk.failing = False, True
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(handle)
    disk.failing = False
    assert disk.read(handle, 100, 0) == b"first"


def test_a_killed_process_lets_go_of_its_locks() -> None:
    system = System(1)
    disk = Disk(system)
    one, other = system.process("one", "h1", 0), system.process("other", "h1", 0)
    with system.within(one):
        assert disk.lock(Path("/journal/lock")) is not None
    with system.within(other):
        assert disk.lock(Path("/journal/lock")) is None
    disk.killed(one)
    with system.within(other):
        assert disk.lock(Path("/journal/lock")) is not None


def given(sock: socket.socket, *fds: int) -> None:
    """These go along with a byte, and their sender keeps none of them."""
    socket.send_fds(sock, [b"x"], list(fds))
    for fd in fds:
        os.close(fd)


def test_whoever_is_killed_lets_go_of_sockets_that_it_was_given() -> None:
    """Others hear of it, as a kernel closes them. What it was given beside them others may have, too."""
    system = System(1)
    giver, taker = system.process("giver", "h1", 0), system.process("taker", "h1", 0)
    with patched(system):
        with system.within(giver):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            heard, rung = make_pair()
            memory = os.memfd_create("memory")
        with system.within(taker):
            taken = socket.socket(fileno=theirs.detach())
        with system.within(giver):
            given(ours, rung, memory)
        with system.within(taker):
            _, fds = receive_some(taken)
            fds.append(os.dup(fds[0]))
        poll = select.poll()
        poll.register(heard, select.POLLIN)
        assert not poll.poll(0) and stat.S_ISSOCK(os.fstat(fds[0]).st_mode)
        system.kill(taker)
        assert [mask & select.POLLHUP for _, mask in poll.poll(0)] == [select.POLLHUP]
        assert stat.S_ISREG(os.fstat(fds[1]).st_mode)
        system.kill(giver)
    os.close(fds[1])


def test_a_socket_that_is_given_on_is_its_last_owners() -> None:
    """Also where code of C has closed it, which says nothing of that, and its number is the next owner's."""
    system = System(1)
    first, second = system.process("first", "h1", 0), system.process("second", "h1", 0)
    with patched(system):
        with system.within(first):
            _, rung = make_pair()
        on_the_way = REAL_DUP(rung)
        REAL_CLOSE(rung)
        with system.within(second):
            os.dup2(on_the_way, rung)
            second.own_if_socket(rung)
        REAL_CLOSE(on_the_way)
        poll = select.poll()
        poll.register(rung, select.POLLIN)
        system.kill(first)
        assert [mask & select.POLLHUP for _, mask in poll.poll(0)] == [select.POLLHUP]  # it is open, the other end not
        system.kill(second)
        assert not stat.S_ISSOCK(os.fstat(rung).st_mode)


def test_randomness_is_the_seeds() -> None:
    drawn = []
    for _ in range(2):
        with patched(System(9)):
            import secrets

            drawn.append((secrets.token_bytes(8), os.urandom(4), secrets.randbits(64)))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != random.Random(8).randbytes(8)


def test_a_process_that_runs_short_stays_short_from_turn_to_turn() -> None:
    """Others open and close meanwhile, so that there are holes among the numbers."""
    system = System(0)
    opened: list[int] = []
    refused: list[int] = []

    def short() -> None:
        system.current.short = Shortage(system, descriptors=3, mappings=None)
        for turn in range(20):
            time.sleep(0.001)
            try:
                opened.append(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE
                refused.append(turn)
            if turn == 9:
                os.close(opened.pop())
        system.current.short = None

    def other() -> None:
        mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]
        for n in range(20):
            time.sleep(0.001)
            os.close(mine.pop(n % len(mine)))
            if n % 3 == 0:
                mine.append(os.open(os.devnull, os.O_RDONLY))
        for fd in mine:
            os.close(fd)

    process = system.process("p", "h1", os.geteuid())
    neighbour = system.process("q", "h1", os.geteuid())
    with patched(system):
        process.spawn(short)
        neighbour.spawn(other)
        while process.threads or neighbour.threads:
            system.run_one()
    assert not process.failures and not neighbour.failures
    assert refused == [*range(3, 10), *range(11, 20)]
    for fd in opened:
        os.close(fd)
