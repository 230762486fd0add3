"""What operators want of the group: that a member leaves in order, or that the others go on without it.

Rules: who may ask is decided before (`spindle.security.access`). A member that is asked to leave does so itself; one
that is cast out is suspected, as if it had failed, and the group's ordinary rules do the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.errors import SpindleError
from spindle.logs import NODE_LEAVES, about
from spindle.proto import node_pb2 as pb

if TYPE_CHECKING:
    from spindle.node.changes import Changes
    from spindle.transport.peers import Peers

BY_MAX = 200  # characters of who asks
LOG = logging.getLogger("spindle.node")


class Operating:
    """Of one node. `leave_wanted` is set when somebody wants it to leave; whoever runs the node stops it then.
    `check` raises unless the node runs."""

    def __init__(self, check: Callable[[], object], changes: Callable[[], Changes], peers: Peers) -> None:
        self.leave_wanted = asyncio.Event()
        self._check = check
        self._changes = changes
        self._peers = peers

    def ask_to_leave(self, node_id: int, by: str) -> None:
        """Makes a member, perhaps this node, leave the group in order; its daemon then ends. Raises SpindleError if
        there is no such member."""
        changes = self._check_member(node_id)
        if node_id == changes.me.node_id:
            self.hear(node_id, by)
        else:
            self._peers.send(node_id, pb.PeerMessage(leave_asked=pb.LeaveAsked(by=by[:BY_MAX])))

    def cast_out(self, node_id: int, by: str) -> None:
        """The group goes on without a member, as if it had failed. Raises SpindleError if there is no such member, or
        too few would remain."""
        changes = self._check_member(node_id)
        if node_id == changes.me.node_id:
            raise SpindleError(f"node {node_id} can't cast itself out: let it leave the group, or ask another member")
        if not changes.machine.may_suspect({node_id}):
            raise SpindleError(f"without node {node_id} no majority of the members would remain, and nobody could go "
                               "on; let it leave in order instead")
        LOG.warning("node %d is cast out: %s wants it", node_id, by)
        changes.machine.suspect(node_id, f"{by} has cast it out")
        changes.drive()

    def hear(self, own_id: int, by: str) -> None:
        """Somebody wants this node to leave."""
        by = by if by.isprintable() else "somebody"
        LOG.warning("node %d leaves the group: %s wants it", own_id, by, extra=about(NODE_LEAVES, node=own_id, by=by))
        self.leave_wanted.set()

    def _check_member(self, node_id: int) -> Changes:
        self._check()
        changes = self._changes()
        node_ids = changes.view.node_ids if changes.view is not None else ()
        if node_id not in node_ids:
            raise SpindleError(f"node {node_id} is no member of the group: {' '.join(map(str, node_ids))} are")
        return changes


__all__ = ["Operating"]
