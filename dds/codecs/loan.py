"""A place in a writer's ring that a program fills itself, which saves the copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dds.exceptions import DDSException, translate
from dds.internal import source_stamp


class Loan:
    """Memory for one sample in the writer's ring: `data` is filled in place, then commit() sends it.

    As a context manager it gives `data`, commits at the end of the block, and discards if the block raises.
    One loan of a writer may be open at a time; `data` must not be used after it has ended. What is larger than the
    topic's slots has memory of its own: then `data` stays valid, and what is written to it later goes nowhere.
    """

    def __init__(self, inbox: Any, memory: memoryview, data: Any, timestamp: int,
                 again: Callable[[bytes, int, int], None] | None, key_of: Callable[[Any], int] | None = None) -> None:
        """`again` writes the sample through the next node if this one has gone, with the same key; None if there can't
        be a next one. `key_of`: handle of the sample's instance, where the node wants to know it."""
        self.data = data
        self._inbox: Any = inbox
        self._timestamp = timestamp
        self._again = again
        self._key_of = key_of
        self._spare = None if again is None else memory[:]  # stays readable when the loan has ended

    @property
    def is_open(self) -> bool:
        return self._inbox is not None

    def commit(self, size: int | None = None, timestamp: int | None = None) -> None:
        """Send it; `size` may be less than was loaned, for topics of bytes. DDSException if the loan has ended; a
        timestamp raises as that of write(), and the loan stays open."""
        at = self._timestamp if timestamp is None else source_stamp(timestamp)
        key = 0 if self._key_of is None or self._inbox is None else self._key_of(self.data)
        inbox = self._end()
        try:
            inbox.commit(size, at, key)
        except Exception as error:
            inbox.abort()
            if self._again is None or self._spare is None or not isinstance(error, ConnectionError):
                raise translate(error, "committing a loan") from error
            self._again(bytes(self._spare[:size]), at, key)

    def discard(self) -> None:
        """Give the memory back; nothing is sent. Nothing happens if the loan has ended."""
        if self._inbox is not None:
            self._end().abort()

    def _end(self) -> Any:
        if self._inbox is None:
            raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, "this loan has ended")
        inbox, self._inbox, self.data = self._inbox, None, None
        return inbox

    def __enter__(self) -> Any:
        return self.data

    def __exit__(self, kind: object, *_: object) -> None:
        if self._inbox is not None:
            if kind is None:
                self.commit()
            else:
                self.discard()

    def __del__(self) -> None:
        try:
            self.discard()
        except Exception:
            pass  # the writer is closed
