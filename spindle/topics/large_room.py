"""Room for the large samples that writers of a node have on their way, by topic: who comes first is served first.

Memory that a program has and doesn't fill takes room, too, for as long as nobody else needs it. After FILL_S that goes
to who waits: so a program that hangs, or is stopped in a debugger, keeps no other from writing. What it fills in the
end counts again, where there is room, or is refused.

On the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections import deque

from spindle.errors import NoResources

FILL_S = 30.0  # that memory may wait to be filled while somebody waits for its room


@dataclasses.dataclass(eq=False)
class Unfilled:
    """Memory for a sample that `holder` fills; `counts`: it takes room."""

    topic: str
    size: int
    holder: object
    fd: int
    since_s: float
    counts: bool = True


class LargeRoom:
    """`capacity`: bytes of each topic, or one sample that is larger."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}  # bytes that somebody waits for
        self._unfilled: list[Unfilled] = []

    @property
    def used(self) -> int:
        """Bytes of all topics."""
        return sum(self._used.values())

    async def take(self, topic: str, size: int, timeout_s: float, holder: object) -> bool:
        """False if there was no room in time. Raises NoResources when the node stops."""
        if self._take_now(topic, size):
            return True
        self._take_back(topic, holder)
        if timeout_s <= 0:
            return self._take_now(topic, size)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = size, future
        self._waiting.setdefault(topic, deque()).append(waits)
        deadline = _now_s() + timeout_s
        try:
            self._admit(topic)
            while not future.done() and (left_s := deadline - _now_s()) > 0:
                await asyncio.wait({future}, timeout=min(left_s, self._next_s(topic, holder)))
                self._take_back(topic, holder)
            if future.done():
                future.result()
            return future.done()
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give(topic, size)  # it came when nobody waited any more
            raise
        finally:
            if not future.done():
                future.cancel()
                with contextlib.suppress(KeyError, ValueError):
                    self._waiting[topic].remove(waits)
                self._admit(topic)  # those behind it may fit

    def give(self, topic: str, size: int) -> None:
        """It is not needed any more."""
        self._used[topic] -= size
        self._admit(topic)

    def _has(self, topic: str, size: int) -> bool:
        used = self._used.get(topic, 0)
        return used == 0 or used + size <= self._capacity

    def _take_now(self, topic: str, size: int) -> bool:
        """Behind those that wait."""
        if self._waiting.get(topic) or not self._has(topic, size):
            return False
        self._used[topic] = self._used.get(topic, 0) + size
        return True

    def _admit(self, topic: str) -> None:
        queue = self._waiting.get(topic, deque())
        while queue and self._has(topic, queue[0][0]):
            size, future = queue.popleft()
            if not future.done():
                self._used[topic] = self._used.get(topic, 0) + size
                future.set_result(None)
        if not queue:
            self._waiting.pop(topic, None)
        if not self._used.get(topic):
            self._used.pop(topic, None)

    # --- memory that is being filled

    def begin(self, topic: str, size: int, holder: object, fd: int) -> Unfilled:
        """Room that was taken has memory now."""
        found = Unfilled(topic, size, holder, fd, _now_s())
        self._unfilled.append(found)
        return found

    def filled(self, one: Unfilled) -> None:
        """What is to be handed over counts from now on. Raises NoResources if others have its room; it is over then."""
        self._unfilled.remove(one)
        if one.counts:
            return
        if not self._has(one.topic, one.size):
            raise NoResources(f"topic {one.topic!r}: memory for a sample of {one.size} bytes was not filled for "
                              f"{FILL_S:g} s, and others got its room: write the sample again")
        self._used[one.topic] = self._used.get(one.topic, 0) + one.size

    def dropped(self, one: Unfilled) -> None:
        """It is not filled."""
        self._unfilled.remove(one)
        if one.counts:
            self.give(one.topic, one.size)

    def check(self, holder: object) -> None:
        """Raises NoResources if memory of this one doesn't count any more: it has had its share."""
        for one in self._unfilled:
            if one.holder is holder and not one.counts:
                raise NoResources(f"this program has been filling a sample of {one.size} bytes of topic {one.topic!r} "
                                  f"for more than {FILL_S:g} s, and others wait for memory: write it, or give it back, "
                                  "before the next one")

    def _others(self, topic: str, holder: object) -> list[Unfilled]:
        return [one for one in self._unfilled if one.topic == topic and one.counts and one.holder is not holder]

    def _take_back(self, topic: str, holder: object) -> None:
        """Room of what others should have filled by now; `holder` waits for it."""
        for one in self._others(topic, holder):
            if _now_s() - one.since_s >= FILL_S:
                one.counts = False
                self.give(topic, one.size)

    def _next_s(self, topic: str, holder: object) -> float:
        """Until some of that may be taken back."""
        return max(0.0, min((one.since_s + FILL_S for one in self._others(topic, holder)), default=math.inf) - _now_s())

    def stop(self) -> None:
        """Who waits is told."""
        for queue in self._waiting.values():
            for _, future in queue:
                if not future.done():
                    future.set_exception(NoResources("the node stops"))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
