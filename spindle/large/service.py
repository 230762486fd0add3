"""Large samples of a node: what it has, what it brings, and what it gives to other nodes.

Whoever learns that a sample is in the order, and hasn't got its bytes, awaits `bring()` and puts what it returns into
`store`; who makes one puts it there before it tells anybody. Nothing of it acts before that: a node without large
samples has no thread for them, and no connection. What they lay in waits in `spare` for the next ones.

On the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spindle.errors import SpindleError
from spindle.large.bringing import Bringing, Brought
from spindle.large.handing import Handing
from spindle.large.pieces import BALLOT
from spindle.large.spare import SpareMemory
from spindle.large.store import Store
from spindle.transport.wire import close_all

if TYPE_CHECKING:
    from spindle.group.view import Member
    from spindle.large.blocks import MakeWay
    from spindle.large.ways import Ways
    from spindle.proto import node_pb2 as pb
    from spindle.transport.network import DataHello, Network
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers

KINDS = ("large_ask", "large_here", "large_coming", "large_lacking", "large_unwanted", "large_reach", "large_token")
UNFINISHED_BYTES_MAX = 256 << 20
SILENCE_S = 5.0  # without a byte of it, until the next source is asked


class NodeLarge:
    """See the module's text. `stop()` is idempotent."""

    def __init__(self, domain_id: int, me: Member, peers: Peers, network: Network | None,
                 member_of: Callable[[int], Member | None], spawn: Callable[..., Any], spare_max: int = 0,
                 closes: bool = True, bytes_max: int = UNFINISHED_BYTES_MAX, silence_s: float = SILENCE_S,
                 rdma_to: Callable[[int], MakeWay | None] = lambda _: None) -> None:
        self.store, self.spare = Store(), SpareMemory(spare_max)
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.bringing = Bringing(peers, self.store, self.spare, closes, bytes_max, silence_s, self._more, spawn)
        self.handing = self.bringing.handing = Handing(peers, self.bringing.find, silence_s)
        self.ways: Ways | None = None
        if network is not None:
            from spindle.large.ways import Ways

            self.ways = self.bringing.ways = Ways(domain_id, me, peers, network, member_of, self.bringing.find, rdma_to)
        self.store.watchers += [self._more, self._came]

    async def bring(self, large_id: int, size: int, topic: str, sources: Sequence[int], urgent: bool = False,
                    delivered: bool = False) -> Brought:
        """See Bringing.bring()."""
        return await self.bringing.bring(large_id, size, topic, sources, urgent, delivered)

    @property
    def bytes_read(self) -> tuple[int, int]:
        """Of samples, from other hosts so far: over TCP, over RDMA."""
        return (0, 0) if self.ways is None else self.ways.bytes_read

    def _more(self, large_id: int) -> None:
        """On any thread: there is more of it, or it has gone."""
        if self.ways is not None:
            self.ways.changed(large_id)

    def _came(self, large_id: int) -> None:
        """On any thread."""
        self._loop.call_soon_threadsafe(self.handing.changed, large_id)

    def heard(self, peer: Peer, kind: str, message: pb.PeerMessage, fds: Sequence[int]) -> None:
        """A message of one of KINDS; takes over its descriptors."""
        if self._stopped:
            close_all(fds)
        elif kind == "large_here":
            self.handing.heard_here(peer, message.large_here, fds)
        elif kind == "large_ask":
            self.handing.heard_ask(peer, message.large_ask)
        elif kind == "large_unwanted":
            self.handing.heard_unwanted(peer, message.large_unwanted)
        elif kind == "large_coming":
            self.handing.heard_coming(peer, message.large_coming)
        elif kind == "large_lacking":
            self.handing.heard_lacking(peer, message.large_lacking)
        elif self.ways is not None and kind == "large_reach":
            self.ways.heard_reach(peer, message.large_reach)
        elif self.ways is not None:
            self.ways.heard_token(peer, message.large_token)

    def gone(self, peer: Peer) -> None:
        """That life of a node has gone, or was cast out."""
        self.handing.gone(peer)
        if self.ways is not None:
            self.ways.gone(peer)

    def token_for(self, hello: DataHello) -> bytes | None:
        """Of a data connection for large samples, which is of no view."""
        return None if self._stopped or self.ways is None else self.ways.token_for(hello)

    def take_stream(self, hello: DataHello, fd: int) -> None:
        """Such a connection is there; takes over the descriptor."""
        if self._stopped or self.ways is None:
            close_all([fd])
        else:
            self.ways.take_stream(hello, fd)

    def stop(self, error: SpindleError) -> None:
        """Nothing of it acts any more when this returns."""
        if self._stopped:
            return
        self._stopped = True
        self.bringing.stop(str(error))
        self.handing.stop(str(error))
        if self.ways is not None:
            self.ways.stop(str(error))
        self.store.close()
        self.spare.clear()


def is_for_large(hello: DataHello) -> bool:
    """A data connection that reads large samples."""
    return hello.view_id == 0 and hello.ballot == BALLOT
