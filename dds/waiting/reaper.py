"""Closing what was forgotten, on a thread of its own.

Why: the garbage collector runs finalizers on whatever thread happens to allocate, perhaps one that holds the lock, or
serves the connection, that closing would wait for. So a finalizer only hands its work over.

Rules: `put` takes no lock that anybody could hold. Work is done in the order in which it came. Who needs forgotten
entities to be really gone (a status, a new participant) calls `flush` first.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from spindle.locks import Latch

FLUSH_S = 10.0  # how long flush() waits; longer than closing should ever take

_work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # put() is reentrant, for finalizers
_thread: threading.Thread | None = None
_idle = True


def start() -> None:
    """Start the thread, if it doesn't run yet. Not for finalizers: this allocates and locks. It isn't asked whether it
    lives: where a signal's handler raises in Thread.is_alive(), CPython takes it for ended (before 3.13)."""
    global _thread
    if _thread is None:
        thread = threading.Thread(target=_run, name="dds closing", daemon=True)
        thread.start()
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
    global _thread, _work, _idle
    _thread, _work, _idle = None, queue.SimpleQueue(), True


os.register_at_fork(after_in_child=_after_fork_in_child)
