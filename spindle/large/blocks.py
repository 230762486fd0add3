"""Blocks of large samples that reach another host's memory by one-sided writes, where RDMA devices reach each other.

Who reads has a landing: memory of BLOCKS blocks, of which its grant names who gives the only writer. Who gives copies
what comes next into a block of its own and writes that over. When the write has completed, it says over their data
connection what lies in the next block of the landing; who reads takes it out, and says how many blocks may be filled
again. So the bytes pass by the kernel on both hosts, and all that decides stays on the data connection: whoever is mad
can break that, and nothing else.

Why copies, not the samples themselves: memory that a device may touch is pinned, so it could be neither sealed nor
closed, and used again by nobody; and to have 100 MB registered costs about what copying them does, while these blocks
stay in the processor's cache.

Rules: an end belongs to one thread. A write that doesn't complete may land later, in a block that nobody looks into any
more: who gives uses this way no longer then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spindle.errors import ConnectionEnded, WireError
from spindle.large.routes import BLOCK
from spindle_core.fabric.regions.regions import GRANT, Regions
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.memory import Mapping

BLOCKS = 16  # of one landing
SIZE = BLOCKS * BLOCK


class Way(Protocol):
    """A part of regions whose connections are made of two addresses: spindle_core/fabric/regions/verbs.pyx."""

    def prepare(self) -> tuple[int, bytes]:
        """This end of a connection: its number, and its address. Raises OSError."""

    def connect(self, peer: int, address: bytes) -> None:
        """Raises ValueError, OSError."""


MakeWay = Callable[[Regions], Way]  # raises OSError


class _End:
    """`address` is for the other end. Raises OSError where memory or the device doesn't suffice."""

    def __init__(self, make_way: MakeWay) -> None:
        self._regions = Regions()
        try:
            self._way = make_way(self._regions)
            self._memory = Mapping.private(SIZE)
            self._peer, self.address = self._way.prepare()
        except BaseException:
            self._regions.close()
            raise

    def close(self) -> None:
        """Nothing lands any more, nor is written. Idempotent."""
        self._regions.close()


class Landing(_End):
    """Of who reads. `card` is all that the other end needs to know. `taken`: blocks that were taken out."""

    def __init__(self, make_way: MakeWay) -> None:
        super().__init__(make_way)
        self.taken = 0
        try:
            key = self._regions.register(self._memory, writer=self._peer)
            self.card = self._regions.grant(key, self._peer) + self.address
        except BaseException:
            self.close()
            raise

    def connect(self, address: bytes) -> None:
        """The other end may write from now on. Raises ValueError, OSError."""
        self._way.connect(self._peer, address)

    def block(self, size: int) -> memoryview:
        """What lies in the next block, of which the other end says that so many bytes are filled. Raises WireError."""
        if not 0 < size <= BLOCK:
            raise WireError(f"{size} bytes don't lie in a block of {BLOCK}")
        at = self.taken % BLOCKS * BLOCK
        return self._memory.view()[at : at + size]


class BlockWriter(_End):
    """Of who gives, for the landing with this card. Raises ValueError, OSError."""

    def __init__(self, make_way: MakeWay, card: bytes) -> None:
        super().__init__(make_way)
        try:
            self._way.connect(self._peer, card[GRANT.size:])
            self._landing = self._regions.reach(self._peer, card[: GRANT.size])
            _, size, *_ = GRANT.unpack(card[: GRANT.size])
            if size != SIZE:
                raise ValueError(f"a landing has {SIZE} bytes, not {size}")
            self._regions.know(self._memory)
        except BaseException:
            self.close()
            raise
        self._asker, self._list = Asker(), RequestList()
        self._view = self._memory.view()
        self._written = self._completed = self._taken = 0  # blocks, so far

    @property
    def fds(self) -> list[int]:
        """Readable, while somebody sleeps, when something has completed."""
        return self._regions.wait_fds

    @property
    def room(self) -> int:
        """Blocks that may be filled."""
        return BLOCKS - (self._written - self._taken)

    def write(self, piece: memoryview) -> None:
        """The next block, of which there is room. Raises ConnectionEnded."""
        at = self._written % BLOCKS * BLOCK
        self._view[at : at + len(piece)] = piece
        self._list.clear()
        self._list.write(self._landing, at, len(piece), self._memory, at)
        try:
            self._regions.post(self._asker, self._list)
        except (ValueError, OSError) as error:
            raise ConnectionEnded(f"the way over RDMA is over: {error}") from error
        self._written += 1

    def completed(self) -> int:
        """How many more blocks lie in the landing since this was last asked, in the order written. Raises
        ConnectionEnded once one doesn't get there."""
        self._regions.progress()
        found = self._asker.take()
        wrong = next((status for _, status, _, _ in found if status != "done"), "")
        if wrong:
            why = next(iter(self._regions.failures().values()), "")
            raise ConnectionEnded(f"a write over RDMA was {wrong}{why and f': {why}'}")
        self._completed += len(found)
        return len(found)

    def took(self, count: int) -> None:
        """So many more may be filled again. Raises WireError."""
        if count > self._completed - self._taken:
            raise WireError(f"{count} blocks were taken, of {self._completed - self._taken}")
        self._taken += count

    def fall_asleep(self) -> bool:
        """Before a wait for `fds`: False if something has completed, and nobody may wait. wake_up() afterwards."""
        return not self._regions.fall_asleep()

    def wake_up(self) -> None:
        """See fall_asleep()."""
        self._regions.wake_up()
