"""A thread's waits for one reader, one after the other, as an iterator has them.

Why an object: what a wait needs is made before it, and given back after the last one. So little is left to be done
between the moment a message comes and the moment the program has it.
"""

from __future__ import annotations

from dds.contracts import ACondition, AReader
from dds.waiting.wake import Deadline, Waker


class ReaderWait:
    """To be used as a context manager, by one thread. `timeout` in ns, None = never."""

    def __init__(self, reader: AReader, timeout: int | None) -> None:
        self._reader, self._timeout = reader, timeout
        self._deadline: Deadline | None = None
        self._waker: Waker | None = None

    def begin_anew(self) -> None:
        """The timeout counts from the next wait."""
        self._deadline = None

    def wait(self, condition: ACondition | None) -> bool:
        """Wait until there may be something for `condition` (None = anything unread); False if there is nothing and the
        timeout is over. Raises DDSException as the reader does when it is asked."""
        reader, waker = self._reader, self._waker
        if waker is None:
            waker = self._waker = reader._hub.enter()
        if self._deadline is None:
            self._deadline = Deadline(self._timeout)
        known = reader._known(condition)
        if known < 0:
            return True
        left_s = self._deadline.left_s()
        if left_s == 0:
            return False
        reader._source.wait(waker, left_s, known)
        return True

    def __enter__(self) -> ReaderWait:
        return self

    def __exit__(self, *_: object) -> None:
        if self._waker is not None:
            self._reader._hub.exit(self._waker)


__all__ = ["ReaderWait"]
