"""Waiting for something for so long at most, without losing a cancellation.

Why not `asyncio.wait_for`: before Python 3.12 it may return the result and forget that its task was cancelled, if both
happen at once. Then the cancelled task goes on: an opening that nobody waits for any more, a task of a topic that has
gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
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


async def _cancelled(task: asyncio.Future[T]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at: nobody else asks
