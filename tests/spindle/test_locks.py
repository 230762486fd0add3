"""Goal: whatever interrupts who waits, the lock is free afterwards, and others go on.

Method: a wait is interrupted at each place where Python runs signal handlers, one after the other.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from spindle.locks import Condition, Latch, Taking
from tests.interrupts import Interrupt, interrupted_everywhere
from tests.support import wait_until


def is_free(condition: Condition) -> bool:
    """For another thread."""
    found: list[bool] = []

    def look() -> None:
        if condition.acquire(blocking=False):
            condition.release()
            found.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return bool(found)


def test_who_is_interrupted_leaves_nothing_behind() -> None:
    condition, latch = Condition(), Latch()

    def wait() -> None:
        with condition:
            condition.wait(0.0001)
        latch.wait(0.0001)

    def check(error: BaseException) -> None:
        assert isinstance(error, Interrupt)
        for one in (condition, latch._cond):
            assert is_free(one) and not one._waiters

    assert interrupted_everywhere(wait, check) > 10


def test_who_tells_is_heard() -> None:
    condition, told, heard = Condition(), [], []

    def listen(how_long: float | None) -> None:
        with condition:
            while not told:
                condition.wait(how_long)
            heard.append(condition.wait_for(lambda: len(told) == 2, how_long))

    threads = [threading.Thread(target=listen, args=(one,)) for one in (None, 60.0, None)]
    for one in threads:
        one.start()
    for number in (1, 2):
        with condition, condition:  # it may be taken again
            told.append(number)
            condition.notify_all()
    for one in threads:
        one.join(20)
    assert heard == [True] * 3
    with condition:
        assert not condition.wait(0) and not condition.wait(0.001) and not is_free(condition)
    assert is_free(condition)
    with pytest.raises(RuntimeError):
        condition.wait(0)


def test_it_is_the_lock_of_another_condition() -> None:
    lock, begun, done = Condition(), [], []
    other = threading.Condition(lock)  # type: ignore[arg-type]

    def listen() -> None:
        with lock:
            begun.append(True)
            done.append(other.wait(60))

    thread = threading.Thread(target=listen)
    thread.start()
    wait_until(lambda: begun)
    with lock:
        other.notify()
    thread.join(20)
    assert done == [True]


def test_a_latch_is_set_once_for_all() -> None:
    latch = Latch()
    assert not latch.is_set() and not latch.wait(0)
    thread = threading.Thread(target=latch.set)
    thread.start()
    assert latch.wait(20) and latch.is_set() and latch.wait(0)
    thread.join()


def test_it_begins_anew_whoever_held_it() -> None:
    condition, held, over = Condition(), threading.Event(), threading.Event()

    def hold() -> None:
        with condition:
            held.set()
            over.wait(20)
            condition.begin_anew()
            condition.acquire()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20) and not is_free(condition)
    over.set()
    thread.join()
    assert is_free(condition)


def test_who_is_interrupted_while_it_has_a_lock_gives_it_back() -> None:
    lock = threading.Lock()

    def use() -> None:
        with Taking(lock, 0.0, lambda: TimeoutError("somebody has it")):
            len("")

    def check(error: BaseException) -> None:
        assert isinstance(error, Interrupt) and not lock.locked()

    assert interrupted_everywhere(use, check) >= 2
    use()
    assert not lock.locked()


def test_a_lock_that_was_not_taken_is_not_given_back() -> None:
    condition = Condition()
    with condition:
        refused: list[str] = []

        def ask(timeout_s: float) -> None:
            with pytest.raises(TimeoutError) as error, Taking(
                    condition, timeout_s, lambda: TimeoutError("somebody has it")):
                pass
            refused.append(str(error.value))

        threads = [threading.Thread(target=ask, args=(one,)) for one in (0.0, 0.01)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert refused == ["somebody has it"] * 2 and not is_free(condition)
    assert is_free(condition)
    with Taking(condition, None, TimeoutError):
        assert not is_free(condition)
    assert is_free(condition)


@pytest.mark.parametrize("room", ["dds", "spindle/client", "spindle/cli", "spindle/links"])
def test_where_signals_come_nobody_waits_with_threadings_own(room: str) -> None:
    """Goal: commands and programs are ended by signals; none ends by "release unlocked lock" then."""
    found = [f"{file}: {line.strip()}" for file in sorted(Path(room).rglob("*.py"))
             for line in file.read_text().splitlines()
             if re.search(r"threading\.(Event|Condition|Semaphore|Barrier)\(|queue\.Queue\(", line)]
    allowed = ("dds/rpc/server.py", "dds/waiting/wake.py")  # threads of our own, which no handler interrupts
    assert not [one for one in found if not one.startswith(allowed)]
