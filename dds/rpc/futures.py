"""The futures that callers wait for: of calls of a service, and of commands of a replicated object."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


def settle(future: Future[R], error: BaseException | None, result: R) -> None:
    """Settle a future, by `error` or else `result`, unless its caller has cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


__all__ = ["settle"]
