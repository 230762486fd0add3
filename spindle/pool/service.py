"""Links of a node: its pool, made when somebody first needs it, and the connections of that.

Runs on the node's event loop, as the node does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spindle.errors import ConnectionEnded, NodeStopped, NoResources, SpindleError, shortage
from spindle.group.view import VERBS, fabric_between
from spindle.pool.lives import life_of
from spindle.pool.neighbours import Neighbours
from spindle.transport.wire import close_all

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Member
    from spindle.pool.duplexes import Duplexes
    from spindle.pool.pooling import Pooling
    from spindle.proto import node_pb2 as pb
    from spindle.transport.network import DataHello, Network
    from spindle.transport.peer import Peer
    from spindle.transport.peers import Peers
    from spindle_core.fabric.regions.regions import Regions
    from spindle_core.fabric.regions.verbs import VerbsPart

KINDS = ("link_offer", "link_map", "link_mapped", "link_over", "link_more",
         "link_settle", "link_duplex", "link_duplex_made")
LOG = logging.getLogger("spindle.links")


class NodeLinks:
    """See the module's text. `stop()` is idempotent."""

    def __init__(self, config: NodeConfig, me: Member, peers: Peers, network: Network | None,
                 member_of: Callable[[int], Member | None], spawn: Callable[..., Any]) -> None:
        self._config, self._me, self._member_of = config, me, member_of
        self._pooling: Pooling | None = None
        self._stopped: SpindleError | None = None
        self.neighbours = Neighbours(me.node_id, config.domain_id, peers, self.pooling, self._endpoint_of, spawn,
                                     self._has_rdma)
        self.neighbours.incarnation = me.incarnation
        self.neighbours.network = network
        self._duplexes: Duplexes | None = None
        self._peers, self._spawn = peers, spawn

    @property
    def duplexes(self) -> Duplexes:
        """Made at the first call: a node whose programs use no links needs none."""
        if self._duplexes is None:
            from spindle.pool.duplexes import Duplexes

            self._duplexes = Duplexes(self._me.node_id, self._peers, self._spawn)
            self._duplexes.incarnation = self._me.incarnation
        return self._duplexes

    def _endpoint_of(self, node_id: int) -> str:
        member = self._member_of(node_id)
        return "" if member is None else member.endpoint

    def _has_rdma(self, node_id: int) -> bool:
        member = self._member_of(node_id)
        return member is not None and fabric_between(self._me, member) == VERBS

    def rdma_to(self, node_id: int) -> Callable[[Regions], VerbsPart] | None:
        """Makes a way over this node's RDMA device for one connection alone, to that node; None where the devices don't
        reach each other. What it returns raises RdmaUnavailable."""
        return partial(self._make_rdma, peers=1) if self._has_rdma(node_id) else None

    def _make_rdma(self, regions: Regions, **bounds: int) -> VerbsPart:
        """Raises RdmaUnavailable."""
        from spindle.rdma.network import ack_timeout
        from spindle_core.fabric.regions.verbs import VerbsPart  # loads libibverbs: only where it is used

        return VerbsPart(regions, device=self._config.rdma_device,
                         ack_timeout=ack_timeout(self._config.suspect_timeout_s), **bounds)

    def pooling(self) -> Pooling:
        """The pool; made at the first call. Raises NodeStopped, NoResources."""
        if self._stopped is not None:
            raise NodeStopped(str(self._stopped))
        if self._pooling is None:
            from spindle.pool.pooling import Pooling

            try:
                made = Pooling(life_of(self._me.node_id, self._me.incarnation), asyncio.get_running_loop(),
                               self._config.busy_poll_us / 1e6, self.neighbours.lost, self.neighbours.lacking,
                               self.neighbours.dedicated.wanted, self.neighbours.dedicated.over,
                               self.neighbours.settling.wanted,
                               self._make_rdma if self._me.rdma_network else None)
                try:
                    made.start()
                except OSError:
                    made.stop()
                    raise
            except OSError as error:
                raise shortage(error, "the node's links") or NoResources(f"no links: {error}") from error
            self._pooling = made
            LOG.info("node %d serves links", self._me.node_id)
        return self._pooling

    def heard(self, peer: Peer, kind: str, message: pb.PeerMessage, fds: Sequence[int]) -> None:
        """A message of one of KINDS; takes over its descriptors. Raises WireError."""
        if self._stopped is not None:
            close_all(fds)
        elif kind == "link_offer":
            try:
                self.pooling()
            except SpindleError as error:
                LOG.warning("no links to node %d: %s", peer.node_id, error)
                close_all(fds)
                return
            self.neighbours.heard_offer(peer, message.link_offer, fds)
        elif kind == "link_map":
            close_all(fds)
            self.neighbours.heard_map(peer, message.link_map)
        elif kind == "link_over":
            close_all(fds)
            self.neighbours.heard_over(peer, message.link_over)
        elif kind == "link_settle":
            close_all(fds)
            self.neighbours.settling.heard(peer, message.link_settle)
        elif kind == "link_duplex":
            close_all(fds)
            self.duplexes.heard_asked(peer, message.link_duplex)
        elif kind == "link_duplex_made":
            self.duplexes.heard_made(peer, message.link_duplex_made, fds)
        elif kind == "link_more":
            close_all(fds)
            self.neighbours.dedicated.heard(peer, message.link_more)
        else:
            self.neighbours.heard_mapped(peer, message.link_mapped, fds)

    def gone(self, peer: Peer) -> None:
        """That life of a node has gone, or was cast out."""
        if self._stopped is None:
            self.neighbours.gone(peer)
            if self._duplexes is not None:
                self._duplexes.gone(peer)

    def token_for(self, hello: DataHello) -> bytes | None:
        """Of a data connection for links, which is of no view."""
        return None if self._stopped is not None else self.neighbours.token_for(hello)

    def stop(self, error: SpindleError) -> None:
        """Nothing of it acts any more when this returns."""
        if self._stopped is not None:
            return
        self._stopped = error
        if self._pooling is not None:
            self._pooling.stop()
        self.neighbours.close(ConnectionEnded(str(error)))
        if self._duplexes is not None:
            self._duplexes.close()


def is_for_links(hello: DataHello) -> bool:
    """A data connection of views has the id of one; those of links belong to none."""
    return hello.view_id == 0
