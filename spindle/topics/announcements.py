"""Endpoints of the whole group: which readers, writers, topics and participants applications have announced, and where.

Why not in the views: matching of readers and writers is for people and for the DDS layer's statuses; a view change for
each would stop traffic for nothing. So they are soft state: told to all, forgotten with their node.

Rules: a node announces its own applications' endpoints only, and says all of them to every new connection. An
endpoint is known by its guid; announced again it replaces itself. A guid belongs to the node that announced it first:
an application elsewhere that could announce the same guid could also withdraw it, and so hide the first endpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from spindle.errors import AccessDenied, TopicLimit, WireError
from spindle.group.codec import endpoint_from_wire, endpoint_to_wire
from spindle.group.endpoints import PORT, Endpoint
from spindle.group.events import ANNOUNCED, ENDPOINT_ADDED, ENDPOINT_REMOVED, WITHDRAWN, Event
from spindle.proto import attach_pb2
from spindle.proto import node_pb2 as pb

ENDPOINTS_MAX = 65536  # of one node
LOG = logging.getLogger("spindle.node")


class Announcements:
    """The list of endpoints. broadcast(message), send(node_id, message) and tell(event) are the ways out."""

    def __init__(self, broadcast: Callable[[pb.PeerMessage], None], send: Callable[[int, pb.PeerMessage], object],
                 tell: Callable[[Event], None]) -> None:
        self._broadcast, self._send, self._tell = broadcast, send, tell
        self._own: dict[bytes, Endpoint] = {}
        self._others: dict[int, dict[bytes, Endpoint]] = {}
        self._owned: dict[bytes, dict[bytes, Endpoint]] = {}  # by the participant that they belong to

    def announce(self, endpoint: Endpoint) -> None:
        """An endpoint of our own. Raises TopicLimit beyond ENDPOINTS_MAX, AccessDenied if another node has the guid."""
        if (holder := self._holder(endpoint.guid)) is not None:
            raise AccessDenied(f"guid {endpoint.guid.hex()} is announced by an application of node {holder}")
        if len(self._own) >= ENDPOINTS_MAX and endpoint.guid not in self._own:
            raise TopicLimit(f"this node has announced {ENDPOINTS_MAX} readers, writers, topics and participants, "
                             "which is the limit: close some")
        self._own[endpoint.guid] = endpoint
        self._broadcast(pb.PeerMessage(endpoint_added=endpoint_to_wire(endpoint)))
        self._came(endpoint)

    def withdraw(self, guid: bytes) -> None:
        """One of our own has gone; nothing happens if it was never announced."""
        endpoint = self._own.pop(guid, None)
        if endpoint is not None:
            self._broadcast(pb.PeerMessage(endpoint_removed=pb.EndpointRemoved(guid=guid)))
            self._went(endpoint)

    def introduce(self, node_id: int) -> None:
        """Tells a newly connected node everything of ours."""
        for endpoint in self._own.values():
            self._send(node_id, pb.PeerMessage(endpoint_added=endpoint_to_wire(endpoint)))

    def heard(self, node_id: int, message: attach_pb2.Endpoint) -> None:
        """Another node announced one. Raises ConfigError if it is malformed, WireError beyond ENDPOINTS_MAX."""
        endpoint = endpoint_from_wire(message)
        known = self._others.setdefault(node_id, {})
        if endpoint.node_id != node_id or (len(known) >= ENDPOINTS_MAX and endpoint.guid not in known):
            raise WireError(f"node {node_id} announced an endpoint of node {endpoint.node_id}, or more than "
                            f"{ENDPOINTS_MAX}")
        if endpoint.guid in self._own or self._holder(endpoint.guid) not in (None, node_id):
            LOG.warning("node %d announces guid %s, which is another endpoint's: it is not heeded", node_id,
                        endpoint.guid.hex())
            return
        known[endpoint.guid] = endpoint
        self._came(endpoint)

    def _came(self, endpoint: Endpoint) -> None:
        self._owned.setdefault(endpoint.owner, {})[endpoint.guid] = endpoint
        self._tell(Event(ENDPOINT_ADDED if endpoint.kind == PORT else ANNOUNCED, endpoint=endpoint))

    def _went(self, endpoint: Endpoint) -> None:
        owned = self._owned.get(endpoint.owner, {})
        owned.pop(endpoint.guid, None)
        if not owned:
            self._owned.pop(endpoint.owner, None)
        self._tell(Event(ENDPOINT_REMOVED if endpoint.kind == PORT else WITHDRAWN, endpoint=endpoint))

    def _holder(self, guid: bytes) -> int | None:
        """The other node that has announced it."""
        return next((node_id for node_id, known in self._others.items() if guid in known), None)

    def heard_gone(self, node_id: int, guid: bytes) -> None:
        endpoint = self._others.get(node_id, {}).pop(guid, None)
        if endpoint is not None:
            self._went(endpoint)

    def drop_node(self, node_id: int) -> None:
        """Its endpoints went with the node."""
        for endpoint in self._others.pop(node_id, {}).values():
            self._went(endpoint)

    def list(self, topic: str = "", everything: bool = False) -> list[Endpoint]:
        """All readers and writers, or those of one topic; `everything`: topics and participants, too."""
        found = [*self._own.values(), *(one for known in self._others.values() for one in known.values())]
        return [one for one in found if (everything or one.kind == PORT) and (not topic or one.topic == topic)]

    def of_owner(self, owner: bytes) -> Iterable[Endpoint]:
        """All that belongs to one participant, itself included."""
        return self._owned.get(owner, {}).values()
