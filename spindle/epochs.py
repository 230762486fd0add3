"""The memory of the next epoch: made while the current one carries traffic, and exchanged with the other members.

Why here and not in the machine: descriptors travel over connections that may have to be made first, and in any order.
The machine asks for a view to be prepared and hears when it is; everything in between is this module's.

Rules:
- An offer is a member's row and doorbell for one ballot of one view. Offers may come before this node has begun to
  prepare; they are kept for a few ballots and closed when a later view is installed.
- Of two members that are not connected, the one of higher rank connects, and tries until the view is given up.
- Whoever can't be reached, or whose row doesn't fit, is nobody's end but its own: the view stays unprepared until the
  leader proposes another. Only memory that can't be made here is this node's failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.errors import MembershipError, SpindleError
from spindle.layout import subgroups_of
from spindle.proto import node_pb2 as pb
from spindle.wire import close_all

if TYPE_CHECKING:
    from spindle.peers import Peer, Peers
    from spindle.view import View
    from spindle_core.engine import Engine
    from spindle_core.epoch import Epoch

Key = tuple[int, int, int]  # group id, view id, ballot
OFFERS_MAX = 1024  # kept for views that this node has not begun to prepare
OFFER_FDS = 3  # row, doorbell page, doorbell eventfd
REACH_AGAIN_S = 0.05  # between two attempts to reach somebody
LOG = logging.getLogger("spindle.node")


class NextEpoch:
    """What is being prepared.

    on_ready(ballot)         all rows are exchanged
    on_unfit(node_id, why)   this member of the view offered a row that is none
    on_error(error)          the own memory can't be made
    """

    def __init__(self, engine: Engine, peers: Peers, node_id: int, on_ready: Callable[[int], None],
                 on_unfit: Callable[[int, str], None], on_error: Callable[[SpindleError], None]) -> None:
        self._engine, self._peers, self._node_id = engine, peers, node_id
        self._on_ready, self._on_unfit, self._on_error = on_ready, on_unfit, on_error
        self._view: View | None = None
        self._ballot = 0
        self._epoch: Epoch | None = None
        self._missing: set[int] = set()  # node ids whose row is not attached yet
        self._offered: set[int] = set()  # node ids that have ours
        self._offers: dict[Key, dict[int, list[int]]] = {}  # early ones
        self._connecting: set[asyncio.Task[None]] = set()

    def prepare(self, view: View, ballot: int) -> None:
        """Begins; forgets what was prepared before. Calls on_ready at once where there is nobody to wait for."""
        self.discard()
        rank = view.rank_of(self._node_id)
        if rank is None:  # this node leaves
            self._on_ready(ballot)
            return
        try:
            self._epoch = self._engine.new_epoch(view.view_id, rank, view.node_ids, subgroups_of(view))
        except (ValueError, OSError, MemoryError) as error:
            self._on_error(MembershipError(f"the memory of view {view.view_id} cannot be made: {error}"))
            return
        self._view, self._ballot = view, ballot
        self._missing = set(view.node_ids) - {self._node_id}
        for node_id in sorted(self._missing):
            if node_id in self._peers.connected:
                self._offer(node_id)
            else:
                self._connect(node_id)
        for node_id, fds in self._offers.pop((view.group_id, view.view_id, ballot), {}).items():
            self._attach(node_id, fds)
        self._look()

    def _connect(self, node_id: int, pause_s: float = 0.0) -> None:
        """Begins to connect to a node of the view, if that is this node's part."""
        view = self._view
        assert view is not None
        mine, other = view.rank_of(self._node_id), view.rank_of(node_id)
        if mine is not None and other is not None and other < mine:
            task = asyncio.get_running_loop().create_task(self._reach(view, self._ballot, node_id, pause_s))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _reach(self, view: View, ballot: int, node_id: int, pause_s: float) -> None:
        member = view.member(node_id)
        assert member is not None
        await asyncio.sleep(pause_s)
        while self._view is view and self._ballot == ballot:
            try:
                await self._peers.reach(member, timeout_s=5.0)  # added() makes the offer
                return
            except SpindleError as error:
                LOG.debug("view %d: %s", view.view_id, error)
                await asyncio.sleep(REACH_AGAIN_S)

    def added(self, peer: Peer) -> None:
        """A node is connected now."""
        if self._view is not None and peer.node_id in self._view.node_ids:
            self._offer(peer.node_id)

    def gone(self, node_id: int, again: bool) -> None:
        """A node is not connected any more; should it come back, it may have missed the offer. `again`: its connection
        was all that ended, so it is tried again."""
        self._offered.discard(node_id)
        if again and self._view is not None:
            self._connect(node_id, REACH_AGAIN_S)

    def _offer(self, node_id: int) -> None:
        if self._epoch is None or self._view is None or node_id in self._offered:
            return
        self._offered.add(node_id)
        offer = pb.RowOffer(group_id=self._view.group_id, view_id=self._view.view_id, ballot=self._ballot)
        self._peers.send(
            node_id, pb.PeerMessage(row_offer=offer),
            [self._epoch.row.fd, self._engine.bell.fd, self._engine.bell_fd])

    def take_offer(self, node_id: int, offer: pb.RowOffer, fds: list[int]) -> None:
        """A member's row. Raises MembershipError if it came without its descriptors."""
        if len(fds) != OFFER_FDS:
            close_all(fds)
            raise MembershipError(f"node {node_id} offered its row with {len(fds)} descriptors, not {OFFER_FDS}")
        key = offer.group_id, offer.view_id, offer.ballot
        if self._view is not None and key == (self._view.group_id, self._view.view_id, self._ballot):
            self._attach(node_id, fds)
            self._look()
            return
        if sum(len(offers) for offers in self._offers.values()) >= OFFERS_MAX:
            close_all(fds)
            raise MembershipError(f"more than {OFFERS_MAX} rows are offered for views that nobody proposed here")
        early = self._offers.setdefault(key, {})
        close_all(early.pop(node_id, ()))
        early[node_id] = fds

    def _attach(self, node_id: int, fds: list[int]) -> None:
        assert self._view is not None and self._epoch is not None
        rank = self._view.rank_of(node_id)
        if rank is None or node_id not in self._missing:
            close_all(fds)
            return
        member = self._view.members[rank]
        try:
            self._epoch.attach_peer(rank, *fds)
        except (ValueError, OSError) as error:
            self._on_unfit(node_id, f"the row of {member} does not fit: {error}")
            return
        if self._epoch.row_identity(rank)[1] != member.incarnation:
            self._on_unfit(node_id, f"{member} offered the row of another of its lives")
            return
        self._missing.discard(node_id)

    def _look(self) -> None:
        if self._view is not None and not self._missing:
            self._on_ready(self._ballot)

    def take(self, view_id: int) -> Epoch:
        """The prepared epoch, to be installed; early offers for this view, older ones and other groups are closed."""
        epoch, self._epoch = self._epoch, None
        if epoch is None or self._view is None or self._view.view_id != view_id or self._missing:
            raise MembershipError(f"view {view_id} is to be installed but was not prepared")
        group_id = self._view.group_id
        self._view = None
        self._offered.clear()
        for key in [key for key in self._offers if key[0] != group_id or key[1] <= view_id]:
            for fds in self._offers.pop(key).values():
                close_all(fds)
        return epoch

    def discard(self) -> None:
        """Gives up what is being prepared."""
        if self._epoch is not None:
            self._epoch.close()
        self._epoch = self._view = None
        self._missing.clear()
        self._offered.clear()
        for task in self._connecting:
            task.cancel()

    def close(self) -> None:
        """Gives up everything. Idempotent."""
        self.discard()
        for offers in self._offers.values():
            for fds in offers.values():
                close_all(fds)
        self._offers.clear()
