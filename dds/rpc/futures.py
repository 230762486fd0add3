"""The futures that callers wait for: of calls of a service, and of commands of a replicated object."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from spindle.locks import Condition

R = TypeVar("R")


class Outcome(Future[R]):
    """A future whose lock a signal to who waits for it can't leave taken: who settles it, and all others of the same
    client or replica, never wait for that."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()

    def wait(self, timeout_s: float | None) -> bool:
        """True as soon as it is settled or cancelled, False after `timeout_s` (None: never)."""
        with self._condition:
            return self._condition.wait_for(self.done, timeout_s)


def settle(future: Future[R], error: BaseException | None, result: R) -> None:
    """Settle a future, by `error` or else `result`, unless its caller has cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


__all__ = ["Outcome", "settle"]
