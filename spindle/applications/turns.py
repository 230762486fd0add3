"""Turns: how much of the control loop's time goes to requests before everything else on it has its chance again.

Why: views, peers and connections are served by the loop that serves applications, and a few dozen of these can ask for
more than there is time. What they ask waits then, in the order in which it came; what the group needs doesn't.

Rules: whoever works for an application waits for a turn, and says for how long it worked. Once TURN_S of work is done
the next one comes with the loop's next round. So a round has TURN_S of requests in it, and one request more.

Beside that no application has more than a few requests at work: see Room.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Iterator

TURN_S = 0.005
WOKEN_AT_ONCE = 8  # waiters in a round; one that then finds the turn over gets its place back


class Room:
    """Of one application: its requests that are at work, so many at most. Nothing else of it is read while there is no
    room; so a request that may wait for something that is still to be read leaves the room meanwhile."""

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, 0
        self._free = asyncio.Event()

    async def acquire(self) -> None:
        """For the one who reads."""
        while self._inside >= self._most:
            self._free.clear()
            await self._free.wait()
        self._inside += 1

    def release(self) -> None:
        """One is done."""
        self._inside -= 1
        self._free.set()

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Somebody else may have the place meanwhile; who comes back doesn't wait for one. How many do so at once is
        the caller's to bound."""
        self.release()
        try:
            yield
        finally:
            self._inside += 1


class Turns:
    """Of one loop. `rounds` counts how often a turn was over."""

    def __init__(self) -> None:
        self.rounds = 0
        self._spent_s = 0.0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._renewing = False

    async def wait(self) -> None:
        """Returns when there is time. First come, first served."""
        if not self._waiting and self._spent_s < TURN_S:
            return
        number = next(self._numbers)
        while True:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (number, future))
            self._renew_soon()
            await future
            if self._spent_s < TURN_S:
                return

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Counts all time inside as work. Waiting counts, too: that only lets others wait for the next round."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - begin
            self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._renewing = False
        self.rounds += self._spent_s >= TURN_S
        self._spent_s = 0.0
        woken = 0
        while self._waiting and woken < WOKEN_AT_ONCE:
            future = heapq.heappop(self._waiting)[1]
            if not future.done():  # its task may have been cancelled
                future.set_result(None)
                woken += 1
        if self._waiting:
            self._renew_soon()
