"""Regions that a node offers by name, from their beginning to their end.

Who has found a region may use it until its lease ends. So the owner that ends one takes the name away at once, waits
for the longest lease that somebody may have and until what was posted meanwhile has completed, ends the key, and gives
the memory back when nothing of what had begun touches it any more (KRCore, section 4.2: "waits for this period before
freeing").

Time is given, in ns of one clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from spindle_core.fabric.regions.regions import Regions
from spindle_core.links.directory import Directory
from spindle_core.links.pool import Pool
from spindle_core.memory import Mapping

LEASE_NS = 1_000_000_000
# What clocks of two hosts may differ by within a lease (a hundredth of it), and what a request may take from its post
# to the owner's memory before its connection is given up.
GRACE_NS = 1_010_000_000


@dataclass
class _Ending:
    key: int
    memory: Mapping
    due_ns: int  # no lease lasts any more
    settles: bool = False
    ended: bool = False


class Exports:
    """What one node offers. `directory.memory` is registered for all to read, under `key`. `settle(then)`: does `then`
    when nobody has anything on the way any more that was posted before; where a late request does no harm, at once."""

    def __init__(self, pool: Pool, settle: Callable[[Callable[[], None]], None] = lambda then: then()) -> None:
        self._pool, self._settle = pool, settle
        self._regions: Regions = pool.regions
        self.directory = Directory()
        self.key = self._regions.register(self.directory.memory)
        self._open: dict[str, tuple[int, Mapping]] = {}
        self._ending: list[_Ending] = []

    def offer(self, name: str, memory: Mapping, *, writer: int = 0, atomics: bool = False) -> int:
        """Lets all nodes read this memory; lets the node with id `writer` write it, or all change words by `atomics`.
        Returns its key.

        ValueError where the name is taken or is none, or as Regions.register says; ConnectionError where that node
        isn't connected.
        """
        if name in self.directory:
            raise ValueError(f"there is a region {name!r} already")
        peer = None
        if writer:
            connections = self._pool.connections(writer)
            if not connections:
                raise ConnectionError(f"there is no connection to node {writer}")
            peer = connections[0]
        key = self._regions.register(memory, writer=peer, atomics=atomics)
        try:
            self.directory.put(name, self._regions.whole_grant(key), writer)
        except ValueError:
            self._regions.deregister(key)
            self._regions.idle(memory)  # nobody has heard of it: it goes at once
            raise
        self._open[name] = key, memory
        return key

    def end(self, name: str, now_ns: int) -> int:
        """Nobody finds the region from now on. Its memory may be used again when advance() gives it back. Returns when
        its key ends. KeyError if it isn't offered."""
        key, memory = self._open.pop(name)
        self.directory.remove(name)
        self._ending.append(_Ending(key, memory, now_ns + LEASE_NS + GRACE_NS))
        return now_ns + LEASE_NS + GRACE_NS

    def advance(self, now_ns: int) -> list[Mapping]:
        """Ends keys whose time has come. Returns memory that nothing touches any more."""
        given_back = []
        for one in list(self._ending):
            if not one.settles and now_ns >= one.due_ns:
                one.settles = True
                self._settle(partial(self._end_key, one))
            if one.ended and self._regions.idle(one.memory):
                self._ending.remove(one)
                given_back.append(one.memory)
        return given_back

    def _end_key(self, one: _Ending) -> None:
        self._regions.deregister(one.key)
        one.ended = True

    @property
    def next_ns(self) -> int:
        """When advance() has something to do; 2**63 - 1: never."""
        return min((0 if one.ended else one.due_ns for one in self._ending if one.ended or not one.settles),
                   default=2**63 - 1)
