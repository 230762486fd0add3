"""Brings the bytes of large samples to this node, from whoever has them.

The caller names the sources, the best one first. Each is asked in turn: one of this host for the memory itself, one of
another host for the bytes, which are written into memory of this node and can be read there while they come. When a
source doesn't have it, dies, or gives nothing for `silence_s`, the next one is asked, and goes on where the other one
stopped. When all have been asked and none brought it further, that is an error, which says what was wrong with each.

On the node's event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spindle.errors import NodeStopped, NoResources, SampleMissing, SampleUnfit, SpindleError, refusal
from spindle.large import memory
from spindle.large.turns import Turn, Turns
from spindle.proto import opening_pb2

if TYPE_CHECKING:
    from spindle.large.filling import Filling
    from spindle.large.handing import Handing, Source
    from spindle.large.spare import SpareMemory
    from spindle.large.store import Store
    from spindle.large.ways import Ways
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers


class Brought(NamedTuple):
    """A descriptor of a sample's memory, to read; `again`: this node has made it, and may use it again."""

    fd: int
    again: bool


class _Bring:
    """One sample that is on its way, for however many want it."""

    def __init__(self, filling: Filling, sources: list[int], urgent: bool, delivered: bool = False) -> None:
        self.filling, self.sources, self.urgent, self.delivered = filling, sources, urgent, delivered
        self.turn: Turn | None = None
        self.task: asyncio.Task[Brought]
        self.users = 0
        self.hurry: Callable[[], None] = lambda: None  # tells whoever sends it now


class Bringing:
    """See the module's text. `bytes_max` bounds the memory of what comes over the network and isn't whole yet;
    `closes`: it may be used again, else it is sealed, see memory.py."""

    def __init__(self, peers: Peers, store: Store, spare: SpareMemory, closes: bool, bytes_max: int, silence_s: float,
                 on_more: Callable[[int], None], spawn: Callable[..., Any]) -> None:
        self._peers, self._store, self._spare, self._silence_s = peers, store, spare, silence_s
        self._closes = closes
        self._on_more, self._spawn = on_more, spawn
        self._under_way: dict[int, _Bring] = {}
        self._turns = Turns(bytes_max)
        self._stopped = ""
        self.handing: Handing
        self.ways: Ways | None = None  # to nodes of other hosts

    def find(self, large_id: int) -> Source | None:
        """What is here of a sample, or on its way. For any thread."""
        held = self._store.find(large_id)
        if held is not None:
            return held
        bring = self._under_way.get(large_id)
        return None if bring is None else bring.filling

    async def bring(self, large_id: int, size: int, topic: str, sources: Sequence[int], urgent: bool = False,
                    delivered: bool = False) -> Brought:
        """The memory of a sample, whose descriptor is the caller's. `urgent`: nothing behind it in its topic
        can be delivered before it. `delivered`: a source that doesn't have it has let go of it, and is not waited for.
        All who want one sample share one way; what is said of it and its sources are those of who came first.

        Raises SampleMissing, SampleUnfit (two samples of one id), ConfigError (its size), NoResources, NodeStopped.
        """
        memory.check_size(size)
        if self._stopped:
            raise NodeStopped(self._stopped)
        source = self.find(large_id)
        if source is not None and source.size != size:
            raise SampleUnfit(f"the large sample {large_id:#x} has {source.size} bytes here, not {size}")
        bring = self._under_way.get(large_id)
        if source is not None and bring is None:
            return Brought(source.open(), False)
        if bring is None:
            from spindle.large.filling import Filling

            filling = Filling(large_id, size, topic, self._on_more, lambda size: self._memory_for(topic, size))
            bring = self._begin(filling, list(sources), urgent, delivered)
        elif urgent and not bring.urgent:
            self._hurry(bring)
        bring.users += 1
        try:
            await asyncio.wait({bring.task})
            if bring.task.cancelled():
                raise NodeStopped(self._stopped or "the node stops")
            return Brought(memory.open_anew(bring.task.result().fd), bring.task.result().again)
        finally:
            bring.users -= 1
            if not bring.users:
                self._nobody_wants(bring)

    def _begin(self, filling: Filling, sources: list[int], urgent: bool, delivered: bool) -> _Bring:
        bring = _Bring(filling, sources, urgent, delivered)
        self._under_way[filling.large_id] = bring
        bring.task = self._spawn(self._from_any(bring))
        bring.task.add_done_callback(lambda task: self._over(bring, task))
        return bring

    def _over(self, bring: _Bring, task: asyncio.Task[Brought]) -> None:
        """Before anybody is told who waits for it."""
        error = SampleMissing("nobody wants it there any more") if task.cancelled() else task.exception()
        self._forget(bring)
        if bring.turn is not None:
            self._turns.end(bring.turn)
        bring.filling.end("" if error is None else str(error))
        if error is not None:  # else who waits for it here finds it in the store in a moment
            self.handing.failed(bring.filling.large_id, str(error))

    def _forget(self, bring: _Bring) -> None:
        if self._under_way.get(bring.filling.large_id) is bring:
            del self._under_way[bring.filling.large_id]

    def _nobody_wants(self, bring: _Bring) -> None:
        self._forget(bring)  # who wants it from now on begins anew
        if not bring.task.done():
            bring.task.cancel()
        elif not bring.task.cancelled() and bring.task.exception() is None:
            os.close(bring.task.result().fd)

    def _hurry(self, bring: _Bring) -> None:
        bring.urgent = True
        if bring.turn is not None:
            self._turns.hurry(bring.turn)
        bring.hurry()

    def _memory_for(self, topic: str, size: int) -> int:
        """To be filled from another host. Raises NoResources."""
        if not self._closes:
            return memory.make(size)
        fd = self._spare.take(topic, self, memory.capacity_of(size))
        return fd if fd >= 0 else self._spare.make(size)

    async def _from_any(self, bring: _Bring) -> Brought:
        filling = bring.filling
        while True:
            before, refused = filling.reached, True
            wrong: list[str] = []
            for node_id in bring.sources:
                if self._stopped:
                    raise NodeStopped(self._stopped)
                peer = self._peers.connected.get(node_id)
                try:
                    if peer is None:
                        raise SampleMissing(f"node {node_id} is not connected")
                    return await self._from(bring, peer)
                except (NoResources, NodeStopped):
                    raise
                except SpindleError as error:
                    wrong.append(str(error))
                    refused = refused and isinstance(error, SampleMissing) and error.refused
            if filling.reached == before:
                raise refusal(
                    f"the bytes of a large sample of {filling.topic!r} can't be had ({filling.size} bytes, id "
                    f"{filling.large_id:#x}): {'; '.join(wrong) or 'nobody is known to have them'}", refused)

    async def _from(self, bring: _Bring, peer: Peer) -> Brought:
        filling = bring.filling
        if not peer.abilities & opening_pb2.GIVES_LARGE:
            raise refusal(f"node {peer.node_id} runs a release without large samples; run the same on all nodes")
        if peer.conn.peer.local:
            fd = await self.handing.ask(peer, filling.large_id, filling.size, bring.delivered)
            return Brought(fd, False)
        if self.ways is None:
            raise refusal(f"node {peer.node_id} runs on another host, and this node has no [network] listen")
        return await self._over_network(bring, peer, self.ways)

    async def _over_network(self, bring: _Bring, peer: Peer, ways: Ways) -> Brought:
        filling = bring.filling
        if bring.turn is None:
            bring.turn = self._turns.ask(filling.size, bring.urgent)
        filling.waits = True
        await bring.turn.begins
        filling.waits = False
        reader = await ways.reader(peer)
        fetch = reader.want(filling, bring.urgent, bring.delivered)
        bring.hurry = lambda: reader.hurry(fetch)
        try:
            while not fetch.done.done():
                before = filling.reached, reader.received
                await asyncio.wait({fetch.done}, timeout=self._silence_s)
                if not fetch.done.done() and before == (filling.reached, reader.received):
                    raise SampleMissing(f"node {peer.node_id} has sent nothing of it for {self._silence_s:g} s")
            fetch.done.result()
            return Brought(filling.open(), filling.again)
        finally:
            bring.hurry = lambda: None
            reader.unwant(fetch)

    def stop(self, why: str) -> None:
        """Brings nothing any more. Idempotent."""
        self._stopped = why
        for bring in tuple(self._under_way.values()):
            bring.task.cancel()

