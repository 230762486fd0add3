"""Waiting for something for so long at most, without losing a cancellation; and for a thread that may hang.

Why not `asyncio.wait_for`: before Python 3.12 it may return the result and forget that its task was cancelled, if both
happen at once. Then the cancelled task goes on: an opening that nobody waits for any more, a task of a topic that has
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def within(timeout_s: float | None, what: Awaitable[T]) -> T:
    """What `what` returns or raises; None: however long it takes. Raises asyncio.TimeoutError when the time is over.
    `what` has ended, cancelled if need be, when this ends."""
    task = asyncio.ensure_future(what)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _cancelled(task)
        raise
    if not task.done():
        await _cancelled(task)
        if task.cancelled() or isinstance(task.exception(), asyncio.CancelledError):  # so ends a gather()
            raise asyncio.TimeoutError
    return task.result()


async def aside(work: Callable[[], T]) -> T:
    """What `work` returns or raises, on a thread of its own. Who is cancelled doesn't wait for that, nor does the end
    of the process: what asks a server that hangs, and can't be told to stop, would hold up either; and on the few
    threads that a loop has for such work, everybody else who needs one. Raises RuntimeError if there can be no more
    threads."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, problem: BaseException | None) -> None:
        if found.cancelled():
            return
        if problem is not None:
            found.set_exception(problem)
        else:
            found.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except Exception as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, problem)

    threading.Thread(target=run, name="spindle aside", daemon=True).start()
    return await found


async def _cancelled(task: asyncio.Future[T]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at: nobody else asks
