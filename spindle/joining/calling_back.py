"""Whether a newcomer of another host is reached where it says, before it is let in.

Why: a newcomer opens all its connections itself. So if its address can't be reached (a wrong `advertise`, a firewall
that lets connections out only), nobody would notice before the next newcomer has to connect to it, and that one would
be blamed. Here the node with the wrong address is told, and no view change waits for it.

Rules: the leader that was asked connects once, as a stranger would, and expects this life of this node. Meanwhile the
group goes on, and further requests of the same life are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from spindle.errors import ConnectionEnded, JoinFailed, NoResources, SpindleError
from spindle.membership import messages as m
from spindle.membership.codec import message_to_wire
from spindle.proto import opening_pb2

if TYPE_CHECKING:
    import asyncio

    from spindle.group.view import Member
    from spindle.transport.peers import Peer, Peers

CALL_TIMEOUT_S = 4.0  # for its address to answer, and again for what is there to say who it is
LOG = logging.getLogger("spindle.node")


class CallingBack:
    """`heard(node_id, request)` gets the requests to join of those who are reached, and of those of this host."""

    def __init__(self, peers: Peers, heard: Callable[[int, m.Message], None],
                 spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._peers, self._heard, self._spawn = peers, heard, spawn
        self._calling: set[tuple[int, int]] = set()

    def take(self, peer: Peer, request: m.JoinRequest, leads: bool) -> None:
        """A request to join. A node that doesn't lead only passes it on."""
        member, me = request.member, self._peers.me
        assert me is not None
        if not leads or member.host == me.host or not member.endpoint or self._peers.network is None:
            self._heard(peer.node_id, request)
        elif member.life not in self._calling:
            self._calling.add(member.life)
            self._spawn(self._call(peer, request))

    async def _call(self, peer: Peer, request: m.JoinRequest) -> None:
        member = request.member
        try:
            await self._reach(member)
        except NoResources as error:  # this node's failure: it can't tell, so it lets the newcomer in
            LOG.warning("%s", error)
        except SpindleError as error:
            assert self._peers.me is not None
            text = (f"node {self._peers.me.node_id} does not reach {member} at {member.endpoint}, where it says that "
                    f"others reach it: {error}. Look at its [network] listen and advertise, and at the firewall")
            LOG.warning("not let in: %s", text)
            refusal = message_to_wire(m.Rejection(0, JoinFailed.__name__, text))
            self._peers.send(member.node_id, refusal, incarnation=member.incarnation)
            return
        finally:
            self._calling.discard(member.life)
        if self._peers.connected.get(peer.node_id) is peer:
            self._heard(peer.node_id, request)

    async def _reach(self, member: Member) -> None:
        assert self._peers.network is not None
        conn = await self._peers.network.control(member.endpoint, CALL_TIMEOUT_S)
        reply = await self._peers.ask(conn, opening_pb2.CONTACT, CALL_TIMEOUT_S)
        conn.close()
        if (reply.node_id, reply.incarnation) != member.life:
            raise ConnectionEnded(f"node {reply.node_id} is there, in a life of its own")
