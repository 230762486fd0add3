"""Closing on threads of its own: what was forgotten, and what a signal must not interrupt.

Why: the garbage collector runs finalizers on whatever thread happens to allocate, perhaps one that holds the lock, or
serves the connection, that closing would wait for. So a finalizer only hands its work over.

Rules: `put` takes no lock that anybody could hold. Work is done in the order in which it came. Who needs forgotten
entities to be really gone (a status, a new participant) calls `flush` first.

Handlers of signals run on the main thread, and may raise anywhere: what is closed half would stay so. So the main
thread has others close (`unbroken`), and only waits. Whoever is interrupted in waiting leaves them to it.
"""

from __future__ import annotations

import _thread as threads
import os
import queue
import threading
import weakref
from collections.abc import Callable

from dds.waiting import wake
from spindle.locks import Latch

FLUSH_S = 10.0  # how long flush() waits; longer than closing should ever take

_work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # put() is reentrant, for finalizers
_thread: threading.Thread | None = None
_idle = True
_jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
_undone: list[weakref.ref[Job]] = []  # that the main thread puts there; several where it was interrupted
_workers = 0  # threads that do them: as many, so that no job waits for another


class Job:
    """What `unbroken` has done."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.done = work, Latch()
        self.error: BaseException | None = None


def unbroken(work: Callable[[], None]) -> None:
    """Have `work` done where no signal's handler interrupts it; raises what it raises. If a handler raises here, it was
    not begun, or is done to its end meanwhile."""
    global _undone, _workers
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    _undone = [one for one in _undone if (left := one()) is not None and not left.done.is_set()]
    if len(_undone) >= _workers:
        try:
            threads.start_new_thread(_work_off, (_jobs,))  # one step, unlike Thread.start()
        except RuntimeError:  # there is room for no thread, or the program is at its end
            work()
            return
        _workers += 1
    job = Job(work)
    _undone.append(weakref.ref(job))  # before it can begin; if it never does, nobody has it
    _jobs.put(job)
    job.done.wait()
    try:
        if job.error is not None:
            raise job.error
    finally:
        job.error = None


def _work_off(jobs: queue.SimpleQueue[Job]) -> None:
    while True:
        job = jobs.get()
        try:
            job.work()
        except BaseException as error:
            job.error = error
        job.done.set()
        del job


def start() -> None:
    """Start the thread, if it doesn't run yet. Not for finalizers: this allocates and locks. It isn't asked whether it
    lives: where a signal's handler raises in Thread.is_alive(), CPython takes it for ended (before 3.13)."""
    global _thread
    if _thread is None:
        thread = threading.Thread(target=_run, name="dds closing", daemon=True)
        wake.start(thread, "an entity")
        _thread = thread


def put(work: Callable[[], None]) -> None:
    """Have `work` done soon. For finalizers."""
    global _idle
    _idle = False
    _work.put(work)


def flush(timeout_s: float = FLUSH_S) -> None:
    """Return when all work that was put so far is done, or after `timeout_s`."""
    if _idle or _thread is None or _thread is threading.current_thread():
        return
    done = Latch()
    _work.put(done.set)
    done.wait(timeout_s)


def _run() -> None:
    global _idle
    while True:
        work = _work.get()
        try:
            work()
        except Exception as error:
            import logging

            logging.getLogger("dds").debug("closing a forgotten entity: %s", error)
        del work
        _idle = _work.empty()


def _after_fork_in_child() -> None:
    """The thread is the parent's, and so is what it has to do."""
    global _thread, _work, _idle, _jobs, _undone, _workers
    _thread, _work, _idle = None, queue.SimpleQueue(), True
    _jobs, _undone, _workers = queue.SimpleQueue(), [], 0


os.register_at_fork(after_in_child=_after_fork_in_child)
