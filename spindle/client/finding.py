"""Which of a site's nodes serves a session: they are tried in order, beginning behind the node that was lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spindle.client.nodes import is_edge
from spindle.client.remote_link import Link, open_link
from spindle.errors import AccessDenied, ConfigError, NoDaemon, NodeStopped, NoResources, ProtocolMismatch, SpindleError
from spindle.proto import relay_pb2 as rb
from spindle.transport.names import HostNames

if TYPE_CHECKING:
    from spindle.client.nodes import NodeAddresses

CONNECT_TIMEOUT_S = 3.0  # for one node, if there are others
CLIENT_BYTES = 16
EDGE_NODES = 3


class Finder:
    """Opens the links of one session. Nodes know the session by its `client`, and tell its links apart by their turns.
    For one thread at a time."""

    def __init__(self, nodes: NodeAddresses, domain_id: int, name: str) -> None:
        self._addresses = nodes.addresses
        self._names = HostNames(one for one in nodes.addresses if not is_edge(one))
        self._trust = nodes.trust()
        self._domain_id = domain_id
        self._name = name
        self._client = os.urandom(CLIENT_BYTES)
        self._turn = 0
        self._next = 0  # of the addresses: where to look first

    def __len__(self) -> int:
        """How many nodes there may be: an edge stands for several."""
        return sum(map(_nodes_at, self._addresses))

    def pass_over(self) -> None:
        """The node that was found last is no good: the search goes on behind it."""
        self._next = (self._next + 1) % len(self._addresses)

    def find(self, timeout_s: float) -> Link:
        """A link to the first node that serves. Raises why none does."""
        self._names.begin()
        problems: list[SpindleError] = []
        each_s = timeout_s if len(self._addresses) == 1 else min(CONNECT_TIMEOUT_S, timeout_s)
        for k in range(len(self._addresses)):
            number = (self._next + k) % len(self._addresses)
            for _ in range(_nodes_at(self._addresses[number])):
                try:
                    link = self._open(self._addresses[number], each_s)
                except (SpindleError, OSError) as error:
                    problems.append(error if isinstance(error, SpindleError) else NodeStopped(str(error)))
                    if not isinstance(error, NodeStopped):
                        break  # an edge has the next one ready when the present one has said that it stops
                else:
                    self._next = number
                    return link
        for kind in (AccessDenied, ProtocolMismatch, ConfigError, NoResources, NodeStopped):
            for problem in problems:
                if isinstance(problem, kind):
                    raise problem
        raise NoDaemon(f"no node of domain {self._domain_id} serves: {'; '.join(map(str, problems))}. Start one, or "
                       "check the addresses ($SPINDLE_NODES)")

    def _open(self, address: str, timeout_s: float) -> Link:
        self._turn += 1
        begin = rb.Begin(client=self._client, turn=self._turn)
        return open_link(address, self._names, self._trust, self._domain_id, self._name, begin, timeout_s)


def _nodes_at(address: str) -> int:
    return EDGE_NODES if is_edge(address) else 1
