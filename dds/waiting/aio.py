"""Waiting in an event loop, without a thread: the loop watches the descriptors of readers and wakers itself.

Rules: imported only by coroutines, because asyncio takes long to import. A wait ends with its task: nothing stays
registered in the loop. One whose loop is closed first ends when it is forgotten: asyncio doesn't finish the generators
of a closed loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from dds.contracts import ABell, ACondition, AReader
from dds.exceptions import closed, translate
from dds.waiting.wake import Deadline, Waker
from spindle.locks import Taking

FAIR = 64  # samples that are yielded before other tasks get a turn


class AReaderOfSamples(AReader, Protocol):
    """See `dds.sub.DataReader`."""

    def _next(self, condition: ACondition | None, take: bool) -> Any:
        """One sample that fits, or None."""


class AWaitSet(Protocol):
    """See `dds.conditions.WaitSet`."""

    _waker: Waker

    def _look(self) -> int:
        """How many are triggered; makes sure that the waker rings when that may have changed."""

    def _readers(self) -> Sequence[AReader]:
        """Those whose samples decide that."""

    def _check_not_inherited(self) -> None:
        """DDSNodeLost in a child after fork()."""

    def _one_waits(self) -> Taking:
        """For the time of a wait; refused with a DDSException if somebody else waits there."""


class LoopWait:
    """Lets the running loop watch some readers and a waker. `wait()` any number of times, then `close()`. Making one
    raises DDSException (OUT_OF_RESOURCES) where there are no descriptors left."""

    def __init__(self, readers: Iterable[AReader], waker: Waker) -> None:
        self._fds: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._waker = waker
        self._future: asyncio.Future[bool] | None = None
        self.bell: ABell | None = None  # of the last reader, which this watches
        try:
            for reader in readers:
                self.bell = reader._source.bell
                if self.bell is not None:
                    # A duplicate of our own: the loop takes each descriptor once, and others may wait for this reader.
                    self._add(os.dup(self.bell.fileno()), self._rung, reader)
            self._add(os.dup(waker.fd), self._woken)
        except BaseException as error:  # the loop must not go on watching half of them
            self.close()
            if isinstance(error, OSError):
                raise translate(error, "a wait") from error  # there is no descriptor left
            raise

    def _add(self, fd: int, callback: Any, *args: Any) -> None:
        self._fds.append(fd)
        self._loop.add_reader(fd, callback, *args)

    def _rung(self, reader: AReader) -> None:
        reader._source.clear(self._waker)
        self._finish(True)

    def _woken(self) -> None:
        self._waker.clear()
        self._finish(True)

    def _finish(self, woken: bool) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(woken)

    async def wait(self, timeout_s: float | None) -> None:
        """Return when something was rung, or after `timeout_s` (None = never)."""
        self._future = self._loop.create_future()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._finish, False)
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
            os.close(fd)

    def __del__(self) -> None:
        self.close()


async def iterate(reader: AReaderOfSamples, condition: ACondition | None, timeout: int | None, take: bool) -> Any:
    """Samples of `reader` as they come; ends `timeout` ns after the last one (None = never)."""
    waker = reader._hub.enter()
    wait: LoopWait | None = None
    given = 0
    try:
        while True:
            sample = reader._next(condition, take)
            if sample is not None:
                yield sample
                given += 1
                if given % FAIR == 0:
                    await asyncio.sleep(0)
                continue
            deadline = Deadline(timeout)
            while not reader._ready(condition):
                left_s = deadline.left_s()
                if left_s == 0:
                    return
                if wait is not None and wait.bell is not reader._source.bell:
                    wait.close()
                    wait = None
                if wait is None:
                    wait = LoopWait([reader], waker)
                await wait.wait(left_s)
                if not reader._open:
                    raise closed(repr(reader))
    finally:
        if wait is not None:
            wait.close()
        reader._hub.exit(waker)


async def wait_waitset(waitset: AWaitSet, timeout: int | None) -> int:
    """WaitSet.wait in the running loop."""
    waitset._check_not_inherited()
    deadline = Deadline(timeout)
    with waitset._one_waits():
        while True:
            count = waitset._look()
            left_s = deadline.left_s()
            if count or left_s == 0:
                return count
            wait = LoopWait(waitset._readers(), waitset._waker)
            try:
                await wait.wait(left_s)
            finally:
                wait.close()
