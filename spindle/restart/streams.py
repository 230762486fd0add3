"""How far a history on its way may be ahead of who takes it: both ends of that.

Why count bytes: chunks are bounded, but a line, a disk or a log may be slow, and what waits for the slowest of them
lies in somebody's memory.

Rules: of each history at most AHEAD_BYTES and one chunk are on their way, the receiver's queue included. The receiver
says now and then how much it has taken; a giver that sends more than that allows is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spindle.errors import SpindleError, WireError
from spindle.proto import node_pb2 as pb
from spindle.restart.pieces import CHUNK_COST_MAX, cost

AHEAD_BYTES = 1 << 20


class Unavailable(SpindleError):
    """A node can't give the history that it was asked for, or not any more."""


class Refused(Unavailable):
    """The node is there and says that it can't give a history, or what it gives is none."""


class Window:
    """The giver's end."""

    def __init__(self) -> None:
        self._sent = self._taken = 0
        self._moved = asyncio.Event()

    async def room(self) -> None:
        """Returns when the next chunk may be sent."""
        while self._sent - self._taken >= AHEAD_BYTES:
            self._moved.clear()
            await self._moved.wait()

    def sent(self, chunk: pb.HistoryChunk) -> None:
        """A chunk goes now."""
        self._sent += cost(chunk)

    def took(self, taken: int) -> None:
        """The receiver has taken so much, in all. Raises WireError if that was never sent."""
        if taken > self._sent:
            raise WireError(f"{taken} bytes of a history were taken, of {self._sent} that were sent")
        self._taken = max(self._taken, taken)
        self._moved.set()


class Stream:
    """The receiver's end. Take its chunks; leave the context to stop it. `tell` sends a word to the giver."""

    def __init__(self, node_id: int, number: int, tell: Callable[[pb.HistoryMore], object],
                 forget: Callable[[int], object]) -> None:
        self.node_id, self._number = node_id, number
        self._tell, self._forget = tell, forget
        self._chunks: asyncio.Queue[pb.HistoryChunk | None] = asyncio.Queue()
        self._waiting = 0  # cost of what has come and isn't taken yet
        self._taken = self._told = 0
        self._taking = 0  # cost of the chunk that is being used
        self._ended = False

    def put(self, chunk: pb.HistoryChunk | None) -> None:
        """A chunk has come; None: none will come any more. Raises WireError if it was sent without leave."""
        if chunk is not None:
            self._waiting += cost(chunk)
            if self._waiting > AHEAD_BYTES + CHUNK_COST_MAX:
                raise WireError(f"{self._waiting} bytes of a history came at once, limit {AHEAD_BYTES}")
        self._chunks.put_nowait(chunk)

    async def take(self) -> pb.HistoryChunk:
        """The next chunk; the one before it counts as used now. Raises Unavailable."""
        self._used()
        chunk = await self._chunks.get()
        if chunk is None:
            raise Unavailable(f"node {self.node_id} is gone")
        if chunk.problem:
            self._ended = True
            raise Refused(f"node {self.node_id}: {chunk.problem}")
        self._ended = chunk.last
        self._taking = cost(chunk)
        return chunk

    def _used(self) -> None:
        self._waiting -= self._taking
        self._taken += self._taking
        self._taking = 0
        if self._taken - self._told >= AHEAD_BYTES // 4:
            self._told = self._taken
            self._tell(pb.HistoryMore(number=self._number, taken=self._taken))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget(self._number)
        if not self._ended:
            self._tell(pb.HistoryMore(number=self._number, stop=True))
